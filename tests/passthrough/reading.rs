//! Passthrough reads give the source's bytes, without requests to the daemon.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::fixture::{Fixture, WHOLE, number};
use support::{Mapping, Place, WritableMapping, answer, assert_same, open_direct, read_at};

#[test]
fn a_verified_file_is_read_again_without_the_daemon() {
    let mut fixture = Fixture::new(&[]);
    for round in 0..2 {
        for name in WHOLE {
            let (opens, _) = fixture.by_kernel(|| fixture.check(name));
            assert_eq!(opens, 0, "{name}: read before it was checked, round {round}");
            let before = number(&fixture.path(name));
            for _ in 0..2 {
                assert_same(&fixture.read_by_kernel(&fixture.path(name)), &fixture.source(name), name);
                assert_eq!(number(&fixture.path(name)), before, "{name}");
            }
        }
        // A tensor inside a container begins elsewhere; a small file has a slot.
        for name in ["deep/er/b", "x", "config.json"] {
            let (opens, _) = fixture.by_kernel(|| (0..2).for_each(|_| drop(fs::read(fixture.path(name)))));
            assert_eq!(opens, 0, "{name}");
        }
        if round == 0 {
            fixture.unmount();
            fixture.mount(&["--read-only"]);
        }
    }
}

#[test]
fn a_descriptor_and_its_name_have_one_inode_number_with_and_without_passthrough() {
    let fixture = Fixture::new(&[]);
    let path = fixture.path("x.npy");
    let daemon = fs::File::open(&path).unwrap();
    fixture.check("x.npy");
    let (opens, kernel) = fixture.by_kernel(|| fs::File::open(&path).unwrap());
    assert_eq!(opens, 1);
    let numbers = [&daemon, &kernel].map(|file| file.metadata().unwrap().ino());
    assert_eq!(numbers, [number(&path); 2]);
    // cp refuses a file whose inode number changes between stat and open.
    let copy = fixture.place.path("copy");
    answer(std::process::Command::new("cp").arg("-a").arg(&path).arg(&copy)).ok();
    assert_same(&fs::read(copy).unwrap(), &fixture.source("x.npy"), "cp");
    // Earlier descriptors through the daemon continue unchanged.
    let reopened = fs::File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&daemon)));
    let wanted = fixture.source("x.npy");
    for file in [daemon, kernel, reopened.unwrap()] {
        let mut got = vec![0; wanted.len()];
        assert_eq!(read_at(&file, &mut got, 0), wanted.len());
        assert_same(&got, &wanted, "an open file");
    }
}

#[test]
fn a_plain_file_declared_a_tensor_is_read_without_the_daemon() {
    let mut fixture = Fixture::new(&[]);
    let path = fixture.path("tensor");
    let bytes = fixture.source("x.npy")[..32_768].to_vec();
    fs::write(&path, &bytes).unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.tierfs.dtype", b"f32", flags).unwrap();
    fixture.unmount();
    fixture.mount(&[]);
    let path = fixture.path("tensor");
    assert_same(&fs::read(&path).unwrap(), &bytes, "first");
    assert_same(&fixture.read_by_kernel(&path), &bytes, "second");
    // Attributes by name work as before.
    rustix::fs::setxattr(&path, "user.tierfs.shape", b"2x4096", flags).unwrap();
    let mut value = [0; 100];
    let len = rustix::fs::getxattr(&path, "user.tierfs.shape", &mut value[..]).unwrap();
    assert_eq!(value[..len], *b"2x4096");
    assert_same(&fixture.read_by_kernel(&path), &bytes, "third");
}

#[test]
fn mappings_show_the_source_and_private_stores_stay_private() {
    let fixture = Fixture::new(&[]);
    let (name, wanted) = ("model.safetensors", fixture.source("model.safetensors"));
    let early = Mapping::of(&fixture.path(name), libc::MAP_SHARED);
    fixture.check(name);
    let before = fixture.data();
    let (opens, ()) = fixture.by_kernel(|| {
        let shared = Mapping::of(&fixture.path(name), libc::MAP_SHARED);
        let private = Mapping::of(&fixture.path(name), libc::MAP_PRIVATE);
        let mut stored =
            WritableMapping::whole(&fs::File::open(fixture.path(name)).unwrap(), libc::MAP_PRIVATE);
        stored.bytes().fill(7);
        for mapping in [&early, &shared, &private] {
            assert_same(mapping.bytes(), &wanted, "a mapping");
        }
        assert_same(&fs::read(fixture.path(name)).unwrap(), &wanted, "beside mappings");
    });
    assert_eq!(opens, 4);
    assert!(before == fixture.data(), "a private store reached the store");
}

#[test]
fn direct_reads_of_any_length_succeed() {
    let fixture = Fixture::new(&[]);
    fixture.check("sub/vocab.txt");
    let wanted = fixture.source("sub/vocab.txt");
    let kernel = fs::File::open(fixture.path("sub/vocab.txt")).unwrap();
    let (opens, direct) = fixture.by_kernel(|| open_direct(&fixture.path("sub/vocab.txt")));
    assert_eq!(opens, 0);
    let mut got = vec![0; 1003];
    for file in [&kernel, &direct] {
        assert_eq!(read_at(file, &mut got, 77), 1003);
        assert_same(&got, &wanted[77..1080], "an odd range");
    }
    assert_same(&fixture.read_by_kernel(&fixture.path("sub/vocab.txt")), &wanted, "afterwards");
}

#[test]
fn a_file_with_wrong_bytes_never_uses_passthrough() {
    let mut fixture = Fixture::new(&[]);
    let wanted = fixture.source("sub/vocab.txt");
    let (path, _) = fixture.data().into_iter().find(|(_, bytes)| *bytes == wanted).unwrap();
    fixture.unmount();
    let mut file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(99_999)).unwrap();
    file.write_all(&[!wanted[99_999]]).unwrap();
    fixture.mount(&[]);
    let (opens, ()) = fixture.by_kernel(|| {
        for _ in 0..3 {
            let failed = fs::read(fixture.path("sub/vocab.txt")).unwrap_err();
            assert_eq!(failed.raw_os_error(), Some(libc::EIO));
        }
    });
    assert_eq!(opens, 0);
}

#[test]
fn a_data_file_of_another_length_is_not_used_for_passthrough() {
    for change in [-1_i64, 1] {
        let fixture = Fixture::new(&[]);
        fixture.check("sub/vocab.txt");
        let wanted = fixture.source("sub/vocab.txt");
        let (path, _) = fixture.data().into_iter().find(|(_, bytes)| *bytes == wanted).unwrap();
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len((wanted.len() as i64 + change) as u64).unwrap();
        let (opens, read) = fixture.by_kernel(|| fs::read(fixture.path("sub/vocab.txt")));
        assert_eq!(opens, 0);
        // The kernel may still have the verified bytes.
        if let Ok(read) = read {
            assert_same(&read, &wanted, "after the change");
        }
    }
}

#[test]
fn the_daemon_serves_every_read_without_passthrough() {
    for options in [&["-o", "passthrough=off"][..], &["--passthrough", "off"], &["--verify", "always"]] {
        let fixture = Fixture::new(options);
        let (opens, ()) = fixture.by_kernel(|| {
            for name in WHOLE {
                for _ in 0..3 {
                    fixture.check(name);
                }
                let mapping = Mapping::of(&fixture.path(name), libc::MAP_SHARED);
                assert_same(mapping.bytes(), &fixture.source(name), name);
            }
        });
        assert_eq!(opens, 0, "{options:?}");
        fixture.mounted.unmount();
    }
}

#[test]
fn a_daemon_without_the_privilege_serves_every_read() {
    let place = Place::new();
    let source = place.write("vocab.txt", (0..100_000_u32).map(|at| (at * 7) as u8).collect::<Vec<_>>());
    place.import("demo/model", &[&source], &[]);
    fs::create_dir(place.path("mnt")).unwrap();
    // Its privileges are those of its own namespace.
    let script = format!(
        "'{0}' mount store mnt --log log; trap \"'{0}' umount mnt\" EXIT
         for round in 1 2 3; do cmp vocab.txt mnt/demo/model/vocab.txt; done
         grep passthrough_opens mnt/.ctl/stats.json",
        support::program().display()
    );
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "bash", "-euc", &script]);
    let said = answer(command.env("TIERFS_LOG", "info").current_dir(place.path(""))).ok();
    assert!(said.contains("\"passthrough_opens\": 0"), "{said}");
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert!(log.contains("the kernel does not read files of this store itself"), "{log}");
}

#[test]
fn another_user_reads_permitted_files_by_passthrough() {
    let fixture = Fixture::new(&["--allow-other"]);
    fixture.check("sub/vocab.txt");
    fs::set_permissions(fixture.path("sub/vocab.txt"), std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .unwrap();
    let as_nobody = |program: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(program);
        answer(command.arg("demo/model/sub/vocab.txt").current_dir(&fixture.mounted.mountpoint))
    };
    let (opens, read) = fixture.by_kernel(|| as_nobody(&["cksum"]).ok());
    let wanted = answer(std::process::Command::new("cksum").arg(fixture.source.join("sub/vocab.txt"))).ok();
    assert_eq!((opens, read.split(' ').next()), (1, wanted.split(' ').next()));
    // The privileges of the daemon give the user no further access.
    as_nobody(&["truncate", "-s", "0"]).failed(1, &["Permission denied"]);
    fs::set_permissions(fixture.path("sub/vocab.txt"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    as_nobody(&["cat"]).failed(1, &["Permission denied"]);
    let mut byte = [0];
    assert_eq!(fs::File::open(fixture.path("sub/vocab.txt")).unwrap().read_at(&mut byte, 0).unwrap(), 1);
}
