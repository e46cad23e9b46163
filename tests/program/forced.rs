//! The end of mounts that other mount namespaces have, or whose daemons do not answer.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Mounted, answer, imported, run, tierfs, wait_until};

/// A program in a mount namespace of its own, which has a mount. It ends with this.
struct Program(Child);

/// Mounts of tests that run beside this one would stay there.
const ONLY_THIS: &str =
    "awk -v keep=\"$1\" '/ - fuse.tierfs / && $5 != keep {print $5}' /proc/self/mountinfo | xargs -r umount -l
    exec sleep 1000";

impl Program {
    fn with(mounted: &Mounted) -> Program {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-c", ONLY_THIS, "sh"]);
        command.arg(&mounted.mountpoint);
        let child = command.spawn().unwrap();
        let name = format!("/proc/{}/comm", child.id());
        wait_until("the namespace", || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"));
        Program(child)
    }

    fn shown(&self) -> String {
        format!("another mount namespace: process {}, sleep", self.0.id())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn umount(mounted: &Mounted, options: &[&str]) -> Command {
    let mut command = tierfs();
    command.arg("umount").arg(&mounted.mountpoint).args(options);
    command
}

#[test]
fn umount_says_which_other_mount_namespace_it_waits_for() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let program = Program::with(&mounted);
    let mut waiting = umount(&mounted, &[]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains(&program.shown()), "{said}");
    drop(program);
    assert_eq!(support::ended(&mut waiting, "tierfs umount"), Some(0));
    place.mount(&[]).unmount();
}

#[test]
fn commands_tell_the_truth_about_a_mount_that_only_another_namespace_has_and_force_ends_it() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let program = Program::with(&mounted);
    answer(&mut umount(&mounted, &["--lazy"])).ok();
    let (store, shown) = (place.store(), mounted.mountpoint.to_str().unwrap());
    let truth = [program.shown(), format!("tierfs umount --force {shown}")];
    let truth = [truth[0].as_str(), truth[1].as_str()];
    for arguments in [
        vec!["mount".as_ref(), store.as_os_str(), mounted.mountpoint.as_os_str()],
        vec!["ls".as_ref(), store.as_os_str(), "demo/model".as_ref()],
        vec!["fsck".as_ref(), store.as_os_str()],
        vec!["umount".as_ref(), mounted.mountpoint.as_os_str()],
    ] {
        let said = run(arguments).failed(1, &truth);
        assert!(!said.contains("has it mounted on"), "{said}");
    }
    let listed = run(["status"]);
    let line = listed.out.lines().find(|line| line.starts_with(shown)).unwrap_or_default();
    assert!(
        line.contains("not mounted here any more") && truth.iter().all(|text| line.contains(text)),
        "{listed:?}"
    );
    answer(&mut umount(&mounted, &["--force"])).ok();
    assert!(!run(["status"]).out.contains(shown));
    place.mount(&[]).unmount();
}

#[test]
fn umount_does_not_wait_for_a_daemon_that_does_not_answer_and_force_aborts_its_requests() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = File::open(mounted.path("demo/model/x")).unwrap();
    mounted.signal(libc::SIGSTOP);
    let since = Instant::now();
    answer(&mut umount(&mounted, &[])).failed(1, &["in use", "--force"]);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    let listed = run(["status"]);
    let shown = mounted.mountpoint.display().to_string();
    let line = listed.out.lines().find(|line| line.starts_with(&shown)).unwrap_or_default();
    assert!(line.contains("no answer; tierfs umount --force"), "{listed:?}");
    let forced = std::thread::scope(|scope| {
        let asks = scope.spawn(|| fs::metadata(mounted.path("demo/nothing")).unwrap_err());
        let forced = scope.spawn(|| answer(&mut umount(&mounted, &["--force"])));
        let error = asks.join().unwrap();
        // The last is that of a request which waits in a ring of io_uring.
        let expected = [libc::ENOTCONN, libc::ECONNABORTED, libc::ENOENT, libc::ECANCELED];
        assert!(error.raw_os_error().is_some_and(|number| expected.contains(&number)), "{error}");
        mounted.signal(libc::SIGCONT);
        forced.join().unwrap()
    });
    forced.ok();
    assert!(since.elapsed() < Duration::from_secs(50), "{:?}", since.elapsed());
    drop(file);
    place.mount(&[]).unmount();
}

/// Unmounts behind the back of the daemon, which goes on only once `then` is mounted. Returns when the daemon has ended.
fn unmounted_by_another(mounted: &Mounted, then: impl FnOnce()) {
    let config = fs::read_to_string(mounted.path(".ctl/config")).unwrap();
    let process = config.lines().find_map(|line| line.strip_prefix("process = ")).unwrap().to_owned();
    answer(Command::new("kill").args(["-STOP", &process])).ok();
    rustix::mount::unmount(&mounted.mountpoint, rustix::mount::UnmountFlags::DETACH).unwrap();
    then();
    answer(Command::new("kill").args(["-CONT", &process])).ok();
    let running = format!("/proc/{process}");
    wait_until("the end of the daemon", || !fs::exists(&running).unwrap());
}

#[test]
fn a_daemon_that_another_program_has_unmounted_leaves_the_next_mount_at_its_place_alone() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let file = mounted.path("precious");
    unmounted_by_another(&mounted, || {
        let mut tmpfs = Command::new("mount");
        answer(tmpfs.args(["-t", "tmpfs", "tmpfs"]).arg(&mounted.mountpoint)).ok();
        fs::write(&file, b"kept").unwrap();
    });
    assert_eq!(fs::read(&file).unwrap(), b"kept");
    answer(Command::new("umount").arg(&mounted.mountpoint)).ok();

    let mounted = place.mount(&[]);
    let other = imported(&[]).0;
    unmounted_by_another(&mounted, || {
        run(["mount".as_ref(), other.store().as_os_str(), mounted.mountpoint.as_os_str()]).ok();
    });
    assert!(fs::exists(mounted.path("demo/model")).unwrap());
    // The kernel may have given the next mount the number of the one before.
    run(["mount".as_ref(), "--takeover".as_ref(), mounted.mountpoint.as_os_str()]).ok();
    run(["umount".as_ref(), mounted.mountpoint.as_os_str()]).ok();
}
