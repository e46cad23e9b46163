//! Daemons that are replaced, and killed, while programs use the mount.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, SeekFrom, copy_file_range, linkat, seek};
use rustix::io::Errno;

use support::{
    Aligned, Mapping, Mounted, Place, Random, SetOnDrop, answer, checked, daemons, ended, kill_daemon,
    npy_file, replace, run, scale, take_over, text, tierfs, wait_until,
};

/// How often a daemon is replaced, and killed.
fn rounds() -> u32 {
    10 * scale()
}

const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 8;

fn store() -> (Place, Vec<u8>) {
    let place = Place::new();
    let bytes = Random(7).bytes(BLOCK * BLOCKS);
    place.import("demo/model", &[&place.write("x.bin", &bytes)], &[]);
    (place, bytes)
}

/// Whether programs may see an error of what they write when a daemon dies: never that there is no daemon.
fn is_of_a_dead_daemon(error: &io::Error) -> bool {
    let allowed = [libc::ESTALE, libc::EIO, libc::EEXIST, libc::ENOENT];
    error.raw_os_error().is_some_and(|number| allowed.contains(&number))
}

/// Programs that use a mount, and what they have seen.
struct Programs<'a> {
    directory: &'a Path,
    bytes: &'a [u8],
    /// Whether daemons die.
    dies: bool,
    /// Whether the kernel reads files itself. An open between two daemons may be ESTALE then.
    passes_through: bool,
    is_over: AtomicBool,
    reads: Mutex<Vec<Duration>>,
    /// Numbers of the key-value files that were renamed into place.
    kept: Mutex<BTreeSet<u64>>,
    /// Records that fsync has confirmed.
    synced: AtomicU64,
    lost: AtomicU64,
}

impl Programs<'_> {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    #[track_caller]
    fn check(&self, what: &str, error: &io::Error) {
        assert!(self.dies && is_of_a_dead_daemon(error), "{what}: {error}");
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    fn block(&self, at: usize) -> &[u8] {
        &self.bytes[at * BLOCK..(at + 1) * BLOCK]
    }

    /// Opens, reads, and reads past the page cache by a descriptor that stays open.
    fn read(&self) {
        let direct =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.directory.join("x.bin"));
        let (direct, mut random, mut memory) = (direct.unwrap(), Random(1), Aligned::new(BLOCK));
        while self.goes_on() {
            let at = random.below(BLOCKS);
            let since = Instant::now();
            let count = direct.read_at(memory.pages(BLOCK), (at * BLOCK) as u64).unwrap();
            self.reads.lock().unwrap().push(since.elapsed());
            assert!(count == BLOCK && memory.pages(BLOCK) == self.block(at), "block {at} by the open file");
            let since = Instant::now();
            let mut read = vec![0; BLOCK];
            let file = self.open();
            file.read_exact_at(&mut read, (at * BLOCK) as u64).unwrap();
            self.reads.lock().unwrap().push(since.elapsed());
            assert!(read == self.block(at), "block {at}");
        }
    }

    fn open(&self) -> File {
        loop {
            match File::open(self.directory.join("x.bin")) {
                Err(error) if self.passes_through && error.raw_os_error() == Some(libc::ESTALE) => {}
                file => return file.unwrap(),
            }
        }
    }

    fn map(&self) {
        let mapping = Mapping::of(&self.directory.join("x.bin"), libc::MAP_SHARED);
        while self.goes_on() {
            assert!(mapping.bytes() == self.bytes, "the mapping");
            if self.passes_through {
                continue;
            }
            let fresh = Mapping::of(&self.directory.join("x.bin"), libc::MAP_PRIVATE);
            assert!(fresh.bytes() == self.bytes, "a new mapping");
        }
    }

    fn list(&self) {
        while self.goes_on() {
            let names: Vec<_> =
                fs::read_dir(self.directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(names.iter().any(|name| name == "x.bin"), "{names:?}");
            fs::metadata(self.directory.join("x.bin")).unwrap();
        }
    }

    /// Appends records, and syncs each.
    fn write(&self) {
        let path = self.directory.join("records");
        let open = || OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let mut file = open();
        while self.goes_on() {
            let next = self.synced.load(Ordering::Relaxed);
            let written = match &file {
                Ok(file) => file.write_all_at(&next.to_le_bytes(), next * 8).and_then(|()| file.sync_all()),
                Err(error) => Err(io::Error::from_raw_os_error(error.raw_os_error().unwrap())),
            };
            match written {
                Ok(()) => self.synced.store(next + 1, Ordering::Relaxed),
                Err(error) => {
                    self.check("the writer", &error);
                    file = open();
                }
            }
        }
    }

    /// Creates, writes, closes and renames files.
    fn keep(&self) {
        for number in 0.. {
            if !self.goes_on() {
                return;
            }
            match self.keep_one(number) {
                Ok(()) => drop(self.kept.lock().unwrap().insert(number)),
                Err(error) => self.check("the key-value writer", &error),
            }
        }
    }

    fn keep_one(&self, number: u64) -> io::Result<()> {
        let (draft, name) =
            (self.directory.join(format!("draft-{number}")), self.directory.join(format!("kv-{number}")));
        let mut file = OpenOptions::new().write(true).create_new(true).open(&draft)?;
        let written = file.write_all(&value(number));
        // SAFETY: the number is that of a descriptor which nothing else has.
        let closed = checked(unsafe { libc::close(file.into_raw_fd()) }.into());
        written.and(closed.map(drop))?;
        fs::rename(draft, name)
    }
}

fn value(number: u64) -> Vec<u8> {
    Random(number).bytes(BLOCK)
}

/// Uses the mount while `disturb` replaces or kills daemons, and checks that nothing that was confirmed is lost.
fn disturbed(mounted: Mounted, bytes: &[u8], [dies, passes_through]: [bool; 2], disturb: impl Fn(&Mounted)) {
    let directory = mounted.mountpoint.join("demo/model");
    let programs = Programs {
        directory: &directory,
        bytes,
        dies,
        passes_through,
        is_over: AtomicBool::new(false),
        reads: Mutex::default(),
        kept: Mutex::default(),
        synced: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&programs.is_over);
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.read()));
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.map()));
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.list()));
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.write()));
        scope.spawn(|| (SetOnDrop(&programs.is_over), programs.keep()));
        for round in 0..rounds() {
            let (reads, kept) = (programs.reads.lock().unwrap().len(), programs.kept.lock().unwrap().len());
            wait_until("the programs", || {
                let more = programs.reads.lock().unwrap().len() > reads + 10;
                !programs.goes_on() || more && programs.kept.lock().unwrap().len() > kept
            });
            assert!(programs.goes_on(), "a program has failed before round {round}");
            disturb(&mounted);
        }
    });
    let mut reads = programs.reads.into_inner().unwrap();
    reads.sort_unstable();
    let late = reads[reads.len() * 99 / 100];
    let (kept, lost) = (programs.kept.into_inner().unwrap(), programs.lost.into_inner());
    let records = programs.synced.into_inner();
    println!(
        "{} reads, the 99th percentile {late:?}, the longest {:?}; {} files and {records} records, {lost} failures",
        reads.len(),
        reads.last().unwrap(),
        kept.len()
    );
    assert!(late <= Duration::from_secs(1), "{late:?}");
    let check = |directory: &Path| {
        for number in &kept {
            let found = fs::read(directory.join(format!("kv-{number}"))).unwrap();
            assert!(found == value(*number), "file {number}");
        }
        for entry in fs::read_dir(directory).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(number) = name.strip_prefix("kv-") {
                let found = fs::read(directory.join(&name)).unwrap();
                assert!(found == value(number.parse().unwrap()), "{name}");
            }
        }
        let found = fs::read(directory.join("records")).unwrap();
        for number in 0..records {
            let record = &found[number as usize * 8..][..8];
            assert_eq!(record, number.to_le_bytes(), "record {number}");
        }
        assert!(fs::read(directory.join("x.bin")).unwrap() == bytes);
    };
    check(&directory);
    let store = mounted.store.clone();
    mounted.unmount();
    answer(tierfs().arg("fsck").arg(&store)).ok();
}

mod heavy {
    use super::{disturbed, kill_daemon, replace, store};

    #[test]
    fn programs_notice_nothing_while_their_daemon_is_replaced() {
        let (place, bytes) = store();
        disturbed(place.mount(&["--passthrough", "off"]), &bytes, [false, false], replace);
        disturbed(place.mount(&[]), &bytes, [false, true], replace);
    }

    #[test]
    fn programs_read_on_while_their_daemon_is_killed_and_lose_nothing_that_was_confirmed() {
        let (place, bytes) = store();
        disturbed(
            place.mount(&["--keep-device", "--passthrough", "off"]),
            &bytes,
            [true, false],
            kill_daemon,
        );
        disturbed(place.mount(&["--keep-device"]), &bytes, [true, true], kill_daemon);
    }

    #[test]
    fn a_kept_mount_is_replaced_and_killed_in_turn() {
        let (place, bytes) = store();
        disturbed(place.mount(&["--keep-device"]), &bytes, [true, true], |mounted| {
            replace(mounted);
            kill_daemon(mounted);
        });
    }
}

#[test]
fn a_file_open_for_writing_goes_on_after_a_takeover_and_is_stale_after_a_crash() {
    let (place, bytes) = store();
    let mounted = place.mount(&["--keep-device"]);
    let path = mounted.mountpoint.join("demo/model/new");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"before ").unwrap();
    replace(&mounted);
    file.write_all(b"after").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"before after");
    file.sync_all().unwrap();
    file.write_all(b" lost").unwrap();
    let reader = File::open(mounted.mountpoint.join("demo/model/x.bin")).unwrap();
    kill_daemon(&mounted);
    for failed in [file.write_all(b"x"), file.sync_all(), file.read_at(&mut [0; 4], 0).map(drop)] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
    let mut read = vec![0; bytes.len()];
    reader.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    // The kernel's pages with the lost bytes are gone too; a periodic sync may have recorded them before.
    let mut memory = Aligned::new(4096);
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let stored = direct.read_at(memory.pages(4096), 0).unwrap();
    let stored = memory.pages(stored).to_vec();
    assert!(stored == b"before after" || stored == b"before after lost", "{}", text(&stored));
    assert_eq!(fs::read(&path).unwrap(), stored);
    drop((file, reader, direct));
    // The next daemon, which takes over from one that goes on, does not revive files whose writes are lost.
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    kill_daemon(&mounted);
    replace(&mounted);
    for failed in [file.write_all(b"x"), file.sync_all()] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }
    drop(file);
    fs::write(&path, b"again").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"again");
    mounted.unmount();
}

/// Asserts that a copy of a whole file by copy_file_range(2) has these bytes.
fn assert_copied(from: &File, to: &Path, bytes: &[u8]) {
    let to_file = File::create(to).unwrap();
    let (mut at, mut written) = (0, 0);
    while (at as usize) < bytes.len() {
        let copied = copy_file_range(from, Some(&mut at), &to_file, Some(&mut written), bytes.len()).unwrap();
        assert!(copied > 0);
    }
    drop(to_file);
    assert!(fs::read(to).unwrap() == bytes);
}

#[test]
fn a_removed_file_that_the_kernel_reads_is_read_and_copied_after_a_takeover() {
    let (place, bytes) = store();
    let mounted = place.mount(&[]);
    let directory = mounted.mountpoint.join("demo/model");
    let named = File::open(directory.join("x.bin")).unwrap();
    fs::write(directory.join("other"), b"new").unwrap();
    fs::rename(directory.join("other"), directory.join("x.bin")).unwrap();
    replace(&mounted);
    let mut read = vec![0; bytes.len()];
    named.read_exact_at(&mut read, 0).unwrap();
    assert!(read == bytes);
    assert_copied(&named, &directory.join("copy"), &bytes);
    let sought = seek(&named, SeekFrom::Data(5));
    assert!(matches!(sought, Ok(5) | Err(Errno::OPNOTSUPP)), "{sought:?}");
    drop(named);
    mounted.unmount();
}

#[test]
fn files_without_a_name_and_files_that_no_close_has_ended_go_on_after_several_takeovers() {
    let (place, bytes) = store();
    let mounted = place.mount(&["--passthrough", "off"]);
    let directory = mounted.mountpoint.join("demo/model");
    let mut options = OpenOptions::new();
    let nameless = options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(0o600);
    let nameless = nameless.open(&directory).unwrap();
    nameless.write_all_at(&bytes, 0).unwrap();
    let array = npy_file(&bytes);
    let mut whole = File::create(directory.join("later.npy")).unwrap();
    whole.write_all(&array).unwrap();
    // The second one comes before the first new daemon has looked at all open files.
    replace(&mounted);
    replace(&mounted);
    drop(whole);
    let own = format!("/proc/self/fd/{}", nameless.as_raw_fd());
    linkat(CWD, own, CWD, directory.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(nameless);
    assert!(fs::read(directory.join("named")).unwrap() == bytes);
    assert!(fs::read(directory.join("later.npy")).unwrap() == array);
    assert!(fs::read(directory.join(".tensors/later")).unwrap() == bytes);
    mounted.unmount();
    answer(tierfs().arg("fsck").arg(place.store())).ok();
}

#[test]
fn a_removed_file_that_is_open_goes_on_after_a_takeover() {
    removed_files_go_on(&["--passthrough", "off"]);
}

#[test]
fn a_removed_file_that_the_kernel_reads_goes_on_after_a_takeover() {
    removed_files_go_on(&[]);
}

fn removed_files_go_on(options: &[&str]) {
    let (place, bytes) = store();
    let mounted = place.mount(options);
    let directory = mounted.mountpoint.join("demo/model");
    let path = directory.join("gone");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    fs::remove_file(&path).unwrap();
    let named = File::open(directory.join("x.bin")).unwrap();
    fs::write(directory.join("other"), b"new").unwrap();
    fs::rename(directory.join("other"), directory.join("x.bin")).unwrap();
    for _ in 0..2 {
        replace(&mounted);
        for open in [&file, &named] {
            let again = File::open(format!("/proc/self/fd/{}", open.as_raw_fd()));
            // The kernel goes on with the physical file, which the new daemon does not give again.
            assert!(again.is_ok() || options.is_empty(), "{open:?}: {again:?}");
            for open in again.iter().chain([open]) {
                let mut read = vec![0; bytes.len()];
                open.read_exact_at(&mut read, 0).unwrap();
                assert!(read == bytes);
                assert_eq!(open.metadata().unwrap().len(), bytes.len() as u64);
            }
        }
        file.write_all_at(b"changed", 100).unwrap();
        let mut read = [0; 7];
        file.read_exact_at(&mut read, 100).unwrap();
        assert_eq!(&read, b"changed");
        file.write_all_at(&bytes[100..107], 100).unwrap();
    }
    assert_eq!(fs::read(directory.join("x.bin")).unwrap(), b"new");
    drop((file, named));
    mounted.unmount();
    answer(tierfs().arg("fsck").arg(place.store())).ok();
}

#[test]
fn systemd_hears_which_process_has_the_mount_before_the_former_one_ends() {
    let (place, bytes) = store();
    let mountpoint = place.path("mnt");
    fs::create_dir_all(&mountpoint).unwrap();
    let socket = place.path("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hear = || {
        let mut message = [0; 100];
        let len = listener.recv(&mut message).unwrap();
        text(&message[..len]).trim().to_owned()
    };
    // As the unit does.
    let mut unit = tierfs();
    unit.args(["mount", "--foreground"]).arg(place.store()).arg(&mountpoint).env("NOTIFY_SOCKET", &socket);
    let mut former = unit.spawn().unwrap();
    assert_eq!(hear(), "READY=1");
    let mut reload = tierfs();
    answer(reload.args(["mount", "--takeover"]).arg(&mountpoint).env("NOTIFY_SOCKET", &socket)).ok();
    let [now] = daemons(&mountpoint)[..] else { panic!("{:?}", daemons(&mountpoint)) };
    assert_eq!([hear(), hear()], [format!("MAINPID={now}"), "READY=1".to_owned()]);
    assert_eq!(ended(&mut former, "the former daemon"), Some(0));
    assert!(fs::read(mountpoint.join("demo/model/x.bin")).unwrap() == bytes);
    run(["umount".as_ref(), mountpoint.as_os_str()]).ok();
}

#[test]
fn a_takeover_by_a_program_that_cannot_is_refused_and_the_daemon_goes_on() {
    let (place, bytes) = store();
    let mounted = place.mount(&[]);
    let path = mounted.mountpoint.join("demo/model/x.bin");
    let file = File::open(&path).unwrap();
    let daemon = daemons(&mounted.mountpoint);
    let goes_on = |what: &str| {
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == bytes && fs::read(&path).unwrap() == bytes, "{what}");
        fs::write(mounted.mountpoint.join("demo/model/y"), what).unwrap();
        assert_eq!(daemons(&mounted.mountpoint), daemon, "{what}");
    };
    // Settings of another version.
    let settings = place.store().join("tierfs.toml");
    let known = fs::read_to_string(&settings).unwrap();
    fs::write(&settings, known.replace("format = ", "format = 9")).unwrap();
    take_over(&mounted).failed(1, &["is not taken over, and its daemon goes on", "format 9"]);
    fs::write(&settings, &known).unwrap();
    goes_on("settings");
    // A program with another version of the hand-over, programs that say nothing or nonsense, and one that ends.
    let socket = socket(&mounted);
    for (hello, said) in [
        (b"tierfsTO\xff\0\0\0".as_slice(), "version 255"),
        (b"nonsense\x02\0\0\0", ""),
        (b"tier", ""),
        (b"", ""),
    ] {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(hello).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(text(&answer).contains(said), "{}", text(&answer));
        goes_on(said);
    }
    // One that gets the mount, and says why it cannot.
    let mut stream = UnixStream::connect(&socket).unwrap();
    stream.write_all(b"tierfsTO\x02\0\0\0").unwrap();
    let mut head = [0; 5];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[0], 1);
    let mut offer = vec![0; u32::from_le_bytes(head[1..].try_into().unwrap()) as usize];
    stream.read_exact(&mut offer).unwrap();
    stream.write_all(&[1, 0, 0, 0, 0]).unwrap();
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head, [1, 0, 0, 0, 0]);
    stream.write_all(&[0, 3, 0, 0, 0, b'w', b'h', b'y']).unwrap();
    goes_on("refused at the end");
    assert!(mounted.log().contains("why"), "{}", mounted.log());
    drop(stream);
    drop(file);
    run(["mount".as_ref(), "--takeover".as_ref(), place.store().as_os_str()])
        .failed(1, &["no tierfs is mounted on"]);
    mounted.unmount();
}

/// The socket by which the daemon of a mount is asked.
fn socket(mounted: &Mounted) -> std::path::PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let shown = mounted.mountpoint.to_str().unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(shown)).unwrap();
    let (_, minor) = line.split(' ').nth(2).unwrap().split_once(':').unwrap();
    format!("/run/tierfs/{minor}.sock").into()
}
