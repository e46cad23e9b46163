//! How requests arrive: over io_uring where the kernel offers it, from the device elsewhere.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Mounted, Place, answer, imported, run, tierfs, wait_until};

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
