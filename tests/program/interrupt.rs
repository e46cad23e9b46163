//! Ctrl-C while the daemon works: the job ends, and the command reports the finished and the unfinished files.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use support::{Mounted, Place, Random, container_of, ended, npy_file, tierfs, wait_until};

use crate::lease::Lease;

/// Delays every open of a file by the daemon until this value is dropped, so a job that needs the file cannot end earlier.
/// The daemon does not wait for leases of files in place.
struct Held(Child);

impl Held {
    fn opens_of(place: &Place, path: &Path, mounted: &Mounted) -> Held {
        let log = place.path("strace");
        let daemon = mounted.daemon().unwrap().to_string();
        let mut command = Command::new("strace");
        command.args([
            "-f",
            "-p",
            &daemon,
            "-e",
            "trace=openat",
            "-e",
            "inject=openat:delay_enter=600s",
            "-P",
        ]);
        command.arg(path).stdin(Stdio::null()).stderr(File::create(&log).unwrap());
        let held = Held(command.spawn().unwrap());
        wait_until("strace", || fs::read_to_string(&log).unwrap().contains(" attached"));
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: kill takes two numbers. The program lets go of the daemon before it ends.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGTERM) };
        ended(&mut self.0, "strace");
    }
}

/// A running command, with files for its output.
struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    fn start(place: &Place, words: &[&str]) -> Running {
        let (out, err) = (place.path("out"), place.path("err"));
        let [stdout, stderr] = [&out, &err].map(|path| Stdio::from(File::create(path).unwrap()));
        let mut command = tierfs();
        let child =
            command.args(words).current_dir(place.path("")).stdout(stdout).stderr(stderr).spawn().unwrap();
        Running { child, out, err }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    /// Sends Ctrl-C once a job runs, drops `hold` once the command has cancelled the job, and waits. The exit code,
    /// standard output, standard error.
    fn interrupted<Gate>(mut self, mounted: &Mounted, gate: Gate) -> (Option<i32>, String, String) {
        let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
        wait_until("a running job", || jobs().lines().any(|line| line.contains(" running")));
        // SAFETY: kill takes two numbers.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGINT) };
        wait_until("the command cancels the job", || self.said().contains("tierfs: cancelling job"));
        drop(gate);
        let code = ended(&mut self.child, "the interrupted command");
        assert!(!jobs().contains(" running") && !jobs().contains(" waiting"), "{}", jobs());
        (code, fs::read_to_string(&self.out).unwrap(), self.said())
    }
}

#[test]
fn ctrl_c_ends_an_import_into_a_mount_and_says_what_was_imported() {
    let place = Place::new();
    place.write("model/a.safetensors", container_of(&mut Random(1), &[("a", 1000)]));
    let second = place.write("model/b.npy", npy_file(&Random(2).floats(1000)));
    place.write("model/c.txt", b"the last one");
    let mounted = place.mount(&["--create"]);
    let lease = Lease::on(&second);
    let running = Running::start(&place, &["import", "store", "t/c", "model"]);
    wait_until("the first file", || mounted.path("t/c/a.safetensors").exists());
    let (code, out, err) = running.interrupted(&mounted, lease);
    assert_eq!(code, Some(130), "{out}{err}");
    let last = out.lines().last().unwrap();
    assert_eq!(last, "t/c: cancelled: 1 file with 1 tensor, 4.0 of 4.0 KiB stored; 2 files not imported");
    let names: Vec<_> =
        fs::read_dir(mounted.path("t/c")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.safetensors"]);
    assert!(fs::read_to_string(mounted.path(".ctl/jobs")).unwrap().contains(" cancelled: "));
    mounted.unmount();
    support::fsck(&place.store());
}

/// Starts the program under strace, which delays the return of a system call. Signals to the child go to the program.
fn delayed(place: &Place, call: &str, words: &[&str]) -> Running {
    let (out, err) = (place.path("out"), place.path("err"));
    let [stdout, stderr] = [&out, &err].map(|path| Stdio::from(File::create(path).unwrap()));
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-o"]).arg(place.path("strace"));
    command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:delay_exit=500ms")]);
    command.arg(support::program()).args(words).current_dir(place.path(""));
    Running { child: command.stdout(stdout).stderr(stderr).spawn().unwrap(), out, err }
}

#[test]
fn ctrl_c_ends_an_export_and_leaves_only_whole_files() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(6), &[("a", 6 << 20)]));
    place.import("t/c", &[&source], &[]);
    let to = place.path("to");
    let mut running = delayed(&place, "pwrite64", &["export", "store", "t/c", "to"]);
    let drafts = || fs::read_dir(&to).into_iter().flatten().map(|entry| entry.unwrap());
    wait_until("a part of the file", || {
        drafts().any(|entry| entry.metadata().is_ok_and(|found| found.len() > 0))
    });
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(running.child.id() as i32, libc::SIGINT) };
    assert_eq!(ended(&mut running.child, "the export"), Some(130), "{}", running.said());
    assert!(running.said().contains("tierfs: cancelled: 0 files, 0 B"), "{}", running.said());
    assert_eq!(drafts().count(), 0);
}

#[test]
fn an_export_removes_what_a_killed_one_has_left_and_keeps_the_drafts_of_others() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(6), &[("a", 1000)]));
    place.import("t/c", &[&source], &[]);
    let left = place.write("to/.tierfs-partial-0123456789abcdef", "left");
    let used = place.write("to/.tierfs-partial-0123456789abcde0", "in use");
    let other = place.write("to/.tierfs-partial-notes", "of somebody");
    let holder = File::open(&used).unwrap();
    // SAFETY: flock takes two numbers.
    assert_eq!(unsafe { libc::flock(holder.as_raw_fd(), libc::LOCK_EX) }, 0);
    support::run(
        ["export", "store", "t/c", "to"]
            .map(|word| if word == "store" || word == "to" { place.path(word) } else { word.into() }),
    )
    .ok();
    assert!(!left.exists() && used.exists() && other.exists() && place.path("to/m.safetensors").exists());
}

#[test]
fn an_import_that_ctrl_c_ends_before_its_first_file_leaves_no_collection() {
    let place = Place::new();
    place.write("model/a.npy", npy_file(&Random(2).floats(1 << 20)));
    support::run([std::path::PathBuf::from("init"), place.store()]).ok();
    let mut running = delayed(&place, "fsync,fdatasync,pwrite64", &["import", "store", "t/c", "model"]);
    wait_until("the collection", || place.path("store/t/c").exists());
    // SAFETY: kill takes two numbers.
    unsafe { libc::kill(running.child.id() as i32, libc::SIGINT) };
    assert_eq!(ended(&mut running.child, "the import"), Some(130), "{}", running.said());
    assert!(!place.path("store/t").exists(), "{}", running.said());
    support::fsck(&place.store());
}

#[test]
fn ctrl_c_ends_a_move_and_says_what_was_moved() {
    let place = Place::new();
    place.write("copied/a.safetensors", container_of(&mut Random(3), &[("a", 1 << 16)]));
    let source = place.write("b.safetensors", container_of(&mut Random(4), &[("b", 1 << 16), ("c", 4096)]));
    place.import("t/c", &[&place.path("copied/a.safetensors")], &[]);
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    // The tensors move in the order of their paths, and those of b are read from the outside file.
    let held = Held::opens_of(&place, &source, &mounted);
    let running = Running::start(&place, &["tier", "q5:all", "--lossy", "mnt/t/c"]);
    let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    wait_until("the first tensor", || support::get(&mounted.path("t/c/a"), "tier") == "q5");
    let (code, out, err) = running.interrupted(&mounted, held);
    assert_eq!(code, Some(130), "{out}{err}");
    let last = err.lines().last().unwrap();
    assert!(last.starts_with("mnt/t/c: cancelled: 1 of 3 tensors now q5, "), "{err}");
    assert!(last.ends_with("; 2 not changed"), "{err}");
    assert!(jobs().lines().last().unwrap().contains(" cancelled: 1 of 3"), "{}", jobs());
    for tensor in ["b", "c"] {
        assert_eq!(support::get(&mounted.path("t/c").join(tensor), "tier"), "exact");
    }
    assert!(fs::read(mounted.path("t/c/b.safetensors")).unwrap() == fs::read(&source).unwrap());
    mounted.unmount();
    support::fsck(&place.store());
}

#[test]
fn ctrl_c_ends_the_check_of_a_source_before_anything_moves() {
    let place = Place::new();
    let source = place.write("m.safetensors", container_of(&mut Random(5), &[("a", 1 << 16), ("b", 4096)]));
    place.import("t/c", &[&source], &["--in-place"]);
    let mounted = place.mount(&[]);
    for words in [
        // Without consent a loss of precision depends on the source.
        ["tier", "q5:all", "mnt/t/c/m.safetensors"].as_slice(),
        &["tier", "q5:all", "mnt/t/c/a"],
        &["tier", "q5:all", "mnt/t"],
        &["tier", "q5:all", "--dry-run", "mnt/t/c/m.safetensors"],
    ] {
        let held = Held::opens_of(&place, &source, &mounted);
        let (code, out, err) = Running::start(&place, words).interrupted(&mounted, held);
        assert_eq!(code, Some(130), "{words:?}: {out}{err}");
        let last = err.lines().last().unwrap();
        assert!(last.ends_with(" not changed") || last.ends_with(": cancelled; nothing was done"), "{err}");
        for tensor in ["a", "b"] {
            assert_eq!(support::get(&mounted.path("t/c").join(tensor), "tier"), "exact", "{words:?}");
        }
    }
    mounted.unmount();
    support::fsck(&place.store());
}
