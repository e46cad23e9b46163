//! Files without a name (`O_TMPFILE`), which linkat(2) may give one.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, linkat};
use rustix::io::Errno;

use support::{Fixture, Random, WritableMapping, assert_same, container_of, refused, set_mode};

fn nameless(directory: &Path, mode: u32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).mode(mode);
    options.open(directory).unwrap()
}

fn give_name(file: &File, path: &Path) -> Result<(), Errno> {
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

#[test]
fn a_file_without_a_name_is_gone_when_it_is_closed_unless_it_gets_one() {
    let mut fixture = Fixture::new();
    let names = || support::names(&fixture.path(""));
    let before = names();
    let file = nameless(&fixture.path(""), 0o640);
    let bytes = Random(1).bytes(3_000_000);
    file.write_all_at(&bytes, 0).unwrap();
    file.set_len(2_900_000).unwrap();
    file.sync_all().unwrap();
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.nlink(), found.mode() & 0o7777), (2_900_000, 0, 0o640));
    assert_eq!(names(), before);
    let mut read = vec![0; 2_900_000];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_same(&read, &bytes[..2_900_000], "without a name");
    drop(file);
    // With a name it is a file like others.
    let file = nameless(&fixture.path(""), 0o600);
    let mut mapping = {
        file.write_all_at(&bytes, 0).unwrap();
        WritableMapping::whole(&file, libc::MAP_SHARED)
    };
    mapping.write(70_000, b"mapped");
    mapping.sync().unwrap();
    let mut wanted = bytes.clone();
    wanted[70_000..70_006].copy_from_slice(b"mapped");
    set_mode(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), 0o644);
    fs::write(fixture.path("taken"), b"first").unwrap();
    assert_eq!(give_name(&file, &fixture.path("taken")), Err(Errno::EXIST));
    give_name(&file, &fixture.path("named")).unwrap();
    let found = fs::metadata(fixture.path("named")).unwrap();
    let same = file.metadata().unwrap();
    assert_eq!((found.ino(), found.nlink(), found.mode() & 0o7777), (same.ino(), 1, 0o644));
    assert_same(&fixture.read("named"), &wanted, "with a name");
    // It goes on as it was, under each of its names.
    give_name(&file, &fixture.path("second")).unwrap();
    file.write_all_at(b"later", 5).unwrap();
    mapping.write(9000, b"stored");
    drop((mapping, file));
    wanted[5..10].copy_from_slice(b"later");
    wanted[9000..9006].copy_from_slice(b"stored");
    for _ in 0..2 {
        assert_same(&fixture.read("named"), &wanted, "closed");
        assert_same(&fixture.read("second"), &wanted, "closed");
        assert_eq!(fixture.read("taken"), b"first");
        fixture.crash();
    }
    fixture.check();
}

#[test]
fn a_container_is_recognized_with_its_name_and_survives_a_crash() {
    let mut fixture = Fixture::new();
    let model = container_of(&mut Random(2), &[("a", 300_000), ("b/c", 7)]);
    for (name, bytes) in [("m.safetensors", &model[..]), ("small", b"a few bytes"), ("empty", b"")] {
        let file = nameless(&fixture.path(""), 0o644);
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
        give_name(&file, &fixture.path(name)).unwrap();
        // Still open at the crash.
        std::mem::forget(file);
    }
    let a = fixture.read(".tensors/a");
    assert_same(&a, &model[model.len() - 4 * 300_007..][..1_200_000], "the tensor");
    fixture.crash();
    for (name, bytes) in [("m.safetensors", &model[..]), ("small", b"a few bytes"), ("empty", b"")] {
        assert_same(&fixture.read(name), bytes, name);
    }
    assert_same(&fixture.read(".tensors/a"), &a, "the tensor");
    // Those without a name at a crash leave nothing.
    let files = fixture.data_files();
    let file = nameless(&fixture.path(""), 0o644);
    file.write_all_at(&model, 0).unwrap();
    file.sync_all().unwrap();
    std::mem::forget(file);
    fixture.crash();
    assert_same(&fixture.read("m.safetensors"), &model, "m.safetensors");
    assert_eq!(fixture.data_files(), files);
    fixture.check();
}

#[test]
fn a_file_without_a_name_may_stay_so_and_belongs_to_a_collection() {
    let fixture = Fixture::new();
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(libc::O_TMPFILE | libc::O_EXCL);
    let file = options.open(fixture.path("")).unwrap();
    assert_eq!(give_name(&file, &fixture.path("x")), Err(Errno::NOENT));
    drop(file);
    for directory in ["", "demo"] {
        refused(options.open(fixture.mounted().path(directory)), libc::EOPNOTSUPP);
    }
    // Another collection is another device, as for other links.
    fs::create_dir_all(fixture.mounted().path("demo/other")).unwrap();
    let file = nameless(&fixture.path(""), 0o644);
    assert_eq!(give_name(&file, &fixture.mounted().path("demo/other/x")), Err(Errno::XDEV));
    // Copies into it and out of it.
    let bytes = Random(3).bytes(400_000);
    fs::write(fixture.path("source"), &bytes).unwrap();
    let source = File::open(fixture.path("source")).unwrap();
    let mut done = 0;
    while done < bytes.len() {
        let copied = rustix::fs::copy_file_range(&source, None, &file, None, bytes.len()).unwrap();
        assert!(copied > 0);
        done += copied;
    }
    give_name(&file, &fixture.path("copy")).unwrap();
    drop((file, source));
    assert_same(&fixture.read("copy"), &bytes, "the copy");
    fixture.check();
}
