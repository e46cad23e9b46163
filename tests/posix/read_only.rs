//! A read-only mount: each call that writes is refused with the right error and changes nothing.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use support::{Mounted, Place, Random, container_of, shell};

fn mounted() -> (Place, Mounted) {
    let place = Place::new();
    place.write("model/model.safetensors", container_of(&mut Random(3), &[("a", 100), ("b", 200)]));
    place.write("model/config.json", b"{}");
    place.import("demo/model", &[&place.path("model")], &[]);
    let mounted = place.mount(&["--read-only"]);
    (place, mounted)
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// The error number of a call that returns -1.
fn of_call(answer: i32) -> io::Result<()> {
    if answer == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[track_caller]
fn refused<T>(what: &str, answer: io::Result<T>, number: i32) {
    match answer {
        Ok(_) => panic!("{what} was done"),
        Err(error) => assert_eq!(error.raw_os_error(), Some(number), "{what}: {error}"),
    }
}

/// A tree: names, sizes, modes, times and contents.
fn picture(mounted: &Mounted) -> String {
    let script = "find . -printf '%p %y %s %m %T@ %C@ %i\\n' | sort; find . -type f -print0 | sort -z | xargs -0 sha256sum";
    String::from_utf8(shell(&mounted.mountpoint, script).stdout).unwrap()
}

#[test]
fn every_call_that_writes_is_refused_and_changes_nothing() {
    let (place, mounted) = mounted();
    let before = picture(&mounted);
    let file = mounted.path("demo/model/config.json");
    for (what, options) in [
        ("O_WRONLY", fs::OpenOptions::new().write(true)),
        ("O_RDWR", fs::OpenOptions::new().read(true).write(true)),
        ("O_APPEND", fs::OpenOptions::new().append(true)),
        ("O_TRUNC", fs::OpenOptions::new().write(true).truncate(true)),
        ("O_RDONLY with O_TRUNC", fs::OpenOptions::new().read(true).custom_flags(libc::O_TRUNC)),
        ("O_CREAT of what is there", fs::OpenOptions::new().write(true).create(true)),
    ] {
        refused(what, options.open(&file), libc::EROFS);
    }
    for folder in ["", "demo", "demo/model"] {
        let folder = mounted.path(folder);
        let new = folder.join("new");
        refused("O_CREAT", fs::File::create(&new), libc::EROFS);
        refused("O_CREAT with O_EXCL", fs::File::create_new(&new), libc::EROFS);
        refused("mkdir", fs::create_dir(&new), libc::EROFS);
        refused("symlink", std::os::unix::fs::symlink("there", &new), libc::EROFS);
        refused("link", fs::hard_link(&file, &new), libc::EROFS);
        let tmpfile = fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&folder);
        assert!(tmpfile.is_err());
        let path = c(&new);
        for (what, mode) in [("mkfifo", libc::S_IFIFO), ("socket", libc::S_IFSOCK), ("device", libc::S_IFCHR)]
        {
            // SAFETY: the path ends with a zero and lives through the call.
            refused(what, of_call(unsafe { libc::mknod(path.as_ptr(), mode | 0o600, 0x103) }), libc::EROFS);
        }
        // SAFETY: as above.
        let regular = of_call(unsafe { libc::mknod(path.as_ptr(), libc::S_IFREG | 0o600, 0) });
        refused("mknod of a file", regular, libc::EROFS);
    }
    refused("unlink", fs::remove_file(&file), libc::EROFS);
    refused("rmdir", fs::remove_dir(mounted.path("demo/model")), libc::EROFS);
    refused("rename", fs::rename(&file, mounted.path("demo/model/other")), libc::EROFS);
    refused("rename out", fs::rename(&file, place.path("other")), libc::EXDEV);
    refused("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o777)), libc::EROFS);
    refused("chown", std::os::unix::fs::chown(&file, Some(1), Some(1)), libc::EROFS);
    let path = c(&file);
    // SAFETY: the path ends with a zero and lives through the call.
    refused("truncate", of_call(unsafe { libc::truncate(path.as_ptr(), 0) }), libc::EROFS);
    // SAFETY: as above; the missing times mean the present time.
    refused("utimes", of_call(unsafe { libc::utimes(path.as_ptr(), std::ptr::null()) }), libc::EROFS);
    // A shared writable mapping needs a file that is open for writing; a private one does not.
    let script = format!(
        "! (echo x >{file}) 2>/dev/null && ! (echo x >>{file}) 2>/dev/null && ! touch {file} 2>/dev/null",
        file = file.display()
    );
    shell(&mounted.mountpoint, &script);
    assert_eq!(picture(&mounted), before);
    assert_eq!(mounted.stats()["errors"], 0, "a refusal is not an error of the store");
}

#[test]
fn each_attribute_refuses_changes_with_its_own_error() {
    let (place, read_only) = mounted();
    let flags = rustix::fs::XattrFlags::empty();
    let names = [
        ("user.tierfs.bytes_stored", libc::EPERM, libc::EPERM),
        ("user.tierfs.tier", libc::EINVAL, libc::EPERM),
        ("user.tierfs.evict", libc::EINVAL, libc::EPERM),
        ("user.tierfs.dtype", libc::EINVAL, libc::EPERM),
        ("user.tierfs.sha256", libc::EPERM, libc::EPERM),
        ("user.tierfs.colour", libc::ENODATA, libc::ENODATA),
        ("security.other", libc::EOPNOTSUPP, libc::EOPNOTSUPP),
        ("trusted.other", libc::EOPNOTSUPP, libc::EOPNOTSUPP),
    ];
    let refuses = |mounted: &Mounted, numbers: &dyn Fn(i32) -> i32| {
        for path in ["demo/model/a", "demo/model"] {
            let path = mounted.path(path);
            for (name, set_number, remove_number) in names {
                let set = rustix::fs::setxattr(&path, name, b"purple", flags).map_err(io::Error::from);
                refused(&format!("setxattr {name}"), set, numbers(set_number));
                let removed = rustix::fs::removexattr(&path, name).map_err(io::Error::from);
                refused(&format!("removexattr {name}"), removed, numbers(remove_number));
            }
        }
    };
    refuses(&read_only, &|_| libc::EROFS);
    read_only.unmount();
    refuses(&place.mount(&[]), &|number| number);
}

#[test]
fn programs_lock_and_map_read_only_files_privately() {
    let (_place, mounted) = mounted();
    let file = fs::File::open(mounted.path("demo/model/a")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let again = fs::File::open(mounted.path("demo/model/a")).unwrap();
    let second = rustix::fs::flock(&again, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    refused("a second lock", second.map_err(io::Error::from), libc::EWOULDBLOCK);
    file.sync_all().unwrap();
    use std::os::fd::AsRawFd;
    let (len, access) = (400, libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: a new private mapping of an open file.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: the mapping is 400 bytes long, writable, and used by nobody else.
    let bytes = unsafe { std::slice::from_raw_parts_mut(at.cast::<u8>(), len) };
    let before = bytes.to_vec();
    bytes.fill(7);
    assert_eq!(fs::read(mounted.path("demo/model/a")).unwrap(), before);
    // SAFETY: mapped above with this length; `bytes` is not used any more.
    unsafe { libc::munmap(at, len) };
    // SAFETY: as the mapping above; this one must fail.
    let shared =
        unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert_eq!(shared, libc::MAP_FAILED);
}

#[test]
fn modes_restrict_other_users_of_a_shared_mount() {
    let place = Place::new();
    let open = place.write("model/open", b"for all");
    let closed = place.write("model/closed", b"for root");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o600)).unwrap();
    place.import("demo/model", &[&place.path("model")], &[]);
    // Entered from inside, because nobody may lack permission for the folders above.
    let as_nobody = |mounted: &Mounted, name: &str| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"]);
        support::answer(command.arg(format!("demo/model/{name}")).current_dir(&mounted.mountpoint))
    };
    let mounted = place.mount(&[]);
    as_nobody(&mounted, "open").failed(1, &["Permission denied"]);
    mounted.unmount();
    let mounted = place.mount(&["--allow-other"]);
    assert_eq!(as_nobody(&mounted, "open").ok(), "for all");
    as_nobody(&mounted, "closed").failed(1, &["Permission denied"]);
}

#[test]
fn a_program_closes_what_it_had_open_before_it_became_another_user() {
    let place = Place::new();
    place.import("demo/model", &[&place.write("model/f", b"x")], &[]);
    let mounted = place.mount(&[]);
    let script = "import os, sys\nfile = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\nos.write(file, b'kept')\n\
                  os.setgid(65534)\nos.setuid(65534)\nos.close(file)\n\
                  try: os.stat(sys.argv[1])\nexcept PermissionError: print('refused')";
    let path = mounted.path("demo/model/new");
    assert_eq!(support::python_line(script, [&path]), "refused\n");
    assert_eq!(fs::read(&path).unwrap(), b"kept");
}
