//! Requests arrive over io_uring where the kernel offers it, from the device elsewhere.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{
    Aligned, Mapping, Mounted, Place, Random, SetOnDrop, WritableMapping, answer, container_of, imported,
    open_direct, read_at, run, scale, set, tierfs, wait_until,
};

const URING: &[&str] = &["-o", "transport=uring"];

/// How requests of a mount arrive.
fn transport(mounted: &Mounted) -> String {
    let shown = mounted.stats()["transport"].as_str().unwrap().to_owned();
    let status = fs::read_to_string(mounted.path(".ctl/status")).unwrap();
    assert!(status.contains(&format!("transport    {shown}\n")), "{status}");
    shown
}

/// Whether this kernel has FUSE over io_uring, and lets programs use it.
fn is_offered() -> bool {
    let is = |path: &str, wanted: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == wanted);
    is("/sys/module/fuse/parameters/enable_uring", "Y") && is("/proc/sys/kernel/io_uring_disabled", "0")
}

/// Reads, writes, lists and removes on a mount.
fn use_of(mounted: &Mounted) {
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    fs::write(mounted.path("demo/model/notes.bin"), &bytes).unwrap();
    assert!(fs::read(mounted.path("demo/model/notes.bin")).unwrap() == bytes);
    let names: Vec<_> =
        fs::read_dir(mounted.path("demo/model")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.contains(&"notes.bin".into()) && names.contains(&"x.npy".into()), "{names:?}");
    assert!(fs::read(mounted.path("demo/model/model.safetensors")).unwrap().len() > 100);
    fs::rename(mounted.path("demo/model/notes.bin"), mounted.path("demo/model/other.bin")).unwrap();
    fs::remove_file(mounted.path("demo/model/other.bin")).unwrap();
    let gone = fs::read(mounted.path("demo/model/other.bin")).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
}

#[test]
fn requests_arrive_over_io_uring_where_the_kernel_offers_it() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(URING);
    assert_eq!(transport(&mounted), if is_offered() { "uring" } else { "classic" });
    use_of(&mounted);
    mounted.unmount();
    for (choice, wanted) in [("auto", if is_offered() { "uring" } else { "classic" }), ("classic", "classic")]
    {
        let mounted = place.mount(&["-o", &format!("transport={choice}")]);
        assert_eq!(transport(&mounted), wanted);
        use_of(&mounted);
        mounted.unmount();
    }
}

/// Makes io_uring_setup fail for a command and its children, as containers do.
fn without_io_uring(command: &mut Command) -> &mut Command {
    const SETUP: u32 = libc::SYS_io_uring_setup as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    // Load the number of the call; refuse that one.
    let steps = [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, SETUP),
        step(0x06, 0, 0, refused),
        step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let set = move || {
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
        // SAFETY: both calls read their arguments only, and `steps` lives longer than they take.
        let set = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
        };
        if set { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(set) }
}

/// Messages of a mount, which ends again.
fn messages(place: &Place, command: &mut Command, options: &[&str]) -> String {
    let mountpoint = place.path("brief");
    fs::create_dir_all(&mountpoint).unwrap();
    let mounted = answer(command.arg("mount").arg(place.store()).arg(&mountpoint).args(options));
    assert_eq!(mounted.code, Some(0), "{mounted:?}");
    run(["umount".as_ref(), mountpoint.as_os_str()]).ok();
    mounted.err
}

#[test]
fn a_mount_without_io_uring_uses_the_device() {
    let (place, _) = imported(&[]);
    let mounted = place.mount_by(without_io_uring(&mut tierfs()), "mnt", URING);
    assert_eq!(transport(&mounted), "classic");
    use_of(&mounted);
    mounted.unmount();
    let said = messages(&place, without_io_uring(&mut tierfs()), URING);
    assert!(said.contains("not by io_uring"), "{said}");
    // A mount that asked for no transport says nothing.
    let said = messages(&place, without_io_uring(&mut tierfs()), &["-o", "transport=auto"]);
    assert!(!said.contains("io_uring"), "{said}");
}

#[test]
fn a_kernel_that_gets_none_of_the_agreed_rings_uses_the_device() {
    let (place, _) = imported(&[]);
    let options = ["-o", "transport=uring", "--withhold-rings"];
    let mounted = place.mount(&options);
    assert_eq!(transport(&mounted), "classic");
    use_of(&mounted);
    mounted.unmount();
    let messages = messages(&place, &mut tierfs(), &options);
    assert_eq!(messages.contains("the rings are withheld"), is_offered(), "{messages}");
}

#[test]
fn a_daemon_killed_with_rings_leaves_no_program_waiting() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(URING);
    let file = File::open(mounted.path("demo/model/x")).unwrap();
    mounted.kill();
    let since = Instant::now();
    wait_until("an error", || fs::metadata(mounted.path("demo/nothing")).is_err());
    let gone = fs::metadata(mounted.path("demo/nothing")).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotConnected);
    drop(file);
    drop(mounted);
    assert!(since.elapsed() < Duration::from_secs(20), "{:?}", since.elapsed());
    let mounted = place.mount(URING);
    use_of(&mounted);
    mounted.unmount();
}

#[test]
fn more_programs_than_entries_wait_for_long_and_short_requests() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["-o", "transport=uring", "-o", "passthrough=off"]);
    let bytes: Vec<u8> = (0..8_000_000_u32).map(|number| (number / 7 % 253) as u8).collect();
    fs::write(mounted.path("demo/model/long.bin"), &bytes).unwrap();
    std::thread::scope(|scope| {
        for reader in 0..48_u64 {
            let (mounted, bytes) = (&mounted, &bytes);
            scope.spawn(move || {
                let file = File::open(mounted.path("demo/model/long.bin")).unwrap();
                let len = if reader % 2 == 0 { 1 << 20 } else { 5000 };
                let mut part = vec![0; len];
                for step in 0..6 {
                    let at = (reader * 131 + step * 977) * 4099 % (bytes.len() - len) as u64;
                    file.read_exact_at(&mut part, at).unwrap();
                    assert!(part == bytes[at as usize..at as usize + len], "{reader} {step}");
                    assert!(fs::metadata(mounted.path(format!("demo/none-{reader}-{step}"))).is_err());
                }
            });
        }
    });
    mounted.unmount();
}

/// A tensor that many programs read by several names while others write it and move its bytes.
struct Contended {
    mounted: Mounted,
    /// The tensor and its container, and where the tensor begins in each.
    names: [(std::path::PathBuf, usize); 2],
    /// The last version whose writer has closed the file.
    closed: AtomicU32,
    /// The last version of which something was written.
    begun: AtomicU32,
    is_over: AtomicBool,
    /// Reads and writes.
    done: AtomicU64,
}

/// Elements of the tensor. One of each page has the number of a version.
const ELEMENTS: usize = 384 << 10;
const PAGE: usize = 4096;

impl Contended {
    fn new(place: &Place, options: &[&str]) -> Contended {
        let mounted = place.mount(options);
        let name = mounted.path("acme/c/w.safetensors");
        fs::create_dir_all(name.parent().unwrap()).unwrap();
        let mut bytes = container_of(&mut Random(1), &[("w", ELEMENTS)]);
        let start = bytes.len() - 4 * ELEMENTS;
        for page in bytes[start..].chunks_mut(PAGE) {
            page[..4].copy_from_slice(&0_f32.to_le_bytes());
        }
        fs::write(&name, bytes).unwrap();
        set(&name, "tier", "packed:all").unwrap();
        set(&name, "cache", "decoded").unwrap();
        let names = [(mounted.path("acme/c/.tensors/w"), 0), (name, start)];
        let [closed, begun] = [(); 2].map(|()| AtomicU32::new(0));
        let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
        Contended { mounted, names, closed, begun, is_over, done }
    }

    /// Opens and reads the file, by one of its names and in one of three ways.
    fn read(&self, random: &mut Random) {
        let (path, start) = &self.names[random.below(2)];
        let closed = self.closed.load(Ordering::Acquire);
        let mut memory = Aligned::new(4 * ELEMENTS + 2 * PAGE);
        let (mapping, bytes): (_, &[u8]) = match random.below(5) {
            0 | 1 => {
                let mapping = Mapping::of(path, libc::MAP_SHARED);
                (Some(mapping), &[])
            }
            2 => {
                let buffer = memory.pages(4 * ELEMENTS + PAGE);
                let count = read_at(&open_direct(path), buffer, 0);
                (None, &buffer[..count])
            }
            _ => {
                let buffer = memory.pages(start + 4 * ELEMENTS);
                File::open(path).unwrap().read_exact_at(buffer, 0).unwrap();
                (None, buffer)
            }
        };
        let bytes = mapping.as_ref().map_or(bytes, |mapping| mapping.bytes());
        for (page, bytes) in bytes[*start..].chunks(PAGE).enumerate() {
            let version = f32::from_le_bytes(bytes[..4].try_into().unwrap()) as u32;
            let begun = self.begun.load(Ordering::Acquire);
            let is_right = (closed..=begun).contains(&version);
            assert!(is_right, "{}: version {version} in page {page}, not {closed}", path.display());
        }
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes a version by one of the names, with calls or through a mapping, and closes the file.
    fn write(&self, random: &mut Random) {
        let (path, start) = &self.names[random.below(2)];
        let version = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let bytes = (version as f32).to_le_bytes();
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let places = (*start..start + 4 * ELEMENTS).step_by(PAGE);
        if random.below(3) == 0 {
            let mut mapping = WritableMapping::whole(&file, libc::MAP_SHARED);
            places.for_each(|at| mapping.write(at, &bytes));
            mapping.sync().unwrap();
        } else {
            places.for_each(|at| file.write_all_at(&bytes, at as u64).unwrap());
        }
        drop(file);
        self.closed.store(version, Ordering::Release);
        self.done.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis([0, 1, 10][random.below(3)]));
    }

    /// Changes the place of the bytes, and another file that comes and goes.
    fn disturb(&self, random: &mut Random) {
        let container = &self.names[1].0;
        let other = self.mounted.path("acme/c/other.bin");
        match random.below(5) {
            // A file that is being written is not moved.
            0 => set(container, "tier", ["packed:all", "exact:all"][random.below(2)]).unwrap_or_default(),
            1 => set(container, "evict", "cache").unwrap_or_default(),
            2 => fs::write(&other, random.bytes(300_000)).unwrap(),
            3 => {
                let cut = File::options().write(true).open(&other).and_then(|file| file.set_len(5000));
                cut.unwrap_or_default();
            }
            _ => fs::rename(&other, self.mounted.path("acme/c/renamed.bin")).unwrap_or_default(),
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(5));
    }

    /// Runs readers, a writer and a disturber, for some time. Aborts the mount and fails if nothing goes on.
    fn run(&self, time: Duration) {
        let until = Instant::now() + time;
        std::thread::scope(|scope| {
            let turns = |seed: u64, turn: fn(&Contended, &mut Random)| {
                scope.spawn(move || {
                    let _ends = SetOnDrop(&self.is_over);
                    let mut random = Random(seed);
                    while !self.is_over.load(Ordering::Relaxed) {
                        turn(self, &mut random);
                    }
                })
            };
            let mut threads: Vec<_> = (1..9).map(|seed| turns(seed, Contended::read)).collect();
            threads.extend([turns(9, Contended::write), turns(10, Contended::disturb)]);
            let (mut seen, mut since) = (0, Instant::now());
            while threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(Duration::from_millis(20));
                // On a busy machine the writer needs longer for its second version.
                let limit = if self.closed.load(Ordering::Relaxed) > 1 { until } else { until + HANGS_AFTER };
                if Instant::now() >= limit {
                    self.is_over.store(true, Ordering::Relaxed);
                }
                let done = self.done.load(Ordering::Relaxed);
                if done != seen {
                    (seen, since) = (done, Instant::now());
                }
                if since.elapsed() > HANGS_AFTER {
                    self.abort();
                    panic!("nothing goes on after {done} reads and writes");
                }
            }
        });
        println!(
            "{} turns, {} versions",
            self.done.load(Ordering::Relaxed),
            self.closed.load(Ordering::Relaxed)
        );
        assert!(self.closed.load(Ordering::Relaxed) > 1);
    }

    fn abort(&self) {
        run(["umount".as_ref(), self.mounted.mountpoint.as_os_str(), "--force".as_ref()]);
    }
}

const HANGS_AFTER: Duration = Duration::from_secs(30);

#[test]
fn many_readers_and_a_writer_of_the_same_bytes_go_on_with_the_fewest_entries() {
    for options in [
        &["-o", "transport=uring", "--ring-entries", "1"][..],
        &["-o", "transport=uring", "--ring-entries", "2"],
        &["-o", "transport=uring"],
        &["-o", "transport=classic"],
    ] {
        let place = Place::new();
        run(["init".as_ref(), place.store().as_os_str()]).ok();
        let contended = Contended::new(&place, options);
        contended.run(Duration::from_secs(2) * scale());
        contended.mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}
