//! Access times, and the link counts of directories.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use support::{Fixture, Random, container_of, errno, run, utimens};

const OMIT: (i64, i64) = (0, libc::UTIME_OMIT);

/// Access and modification time, in seconds and nanoseconds.
fn times(path: &Path) -> ((i64, i64), (i64, i64)) {
    let found = fs::symlink_metadata(path).unwrap();
    ((found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec()))
}

fn links(path: &Path) -> u64 {
    fs::metadata(path).unwrap().nlink()
}

#[test]
fn an_access_time_stays_until_it_is_set_again() {
    let mut fixture = Fixture::new();
    fs::create_dir(fixture.path("d")).unwrap();
    fs::write(fixture.path("d/f"), b"some").unwrap();
    symlink("f", fixture.path("d/l")).unwrap();
    fs::write(fixture.path("d/m.safetensors"), container_of(&mut Random(3), &[("w", 100), ("v", 10)]))
        .unwrap();
    let made = times(&fixture.path("d/f"));
    assert!(made.0.0 > 1_600_000_000, "{made:?}");
    // One of the two times only.
    utimens(&fixture.path("d/f"), (1_000, 7), OMIT).unwrap();
    assert_eq!(times(&fixture.path("d/f")), ((1_000, 7), made.1));
    utimens(&fixture.path("d/f"), OMIT, (2_000, 8)).unwrap();
    assert_eq!(times(&fixture.path("d/f")), ((1_000, 7), (2_000, 8)));
    let others = ["d", "d/l", "d/m.safetensors", "d/w", "."];
    for (number, name) in (1..).zip(others) {
        utimens(&fixture.path(name), (-number, 999_999_999), (number, 1)).unwrap();
    }
    // A tensor has its own access time, independent of its container's.
    let tensor = times(&fixture.path("d/v")).0;
    assert!(tensor.0 > 1_600_000_000, "{tensor:?}");
    let mut file = File::options().append(true).open(fixture.path("d/f")).unwrap();
    file.write_all(b" more").unwrap();
    drop(file);
    assert_eq!(fs::read(fixture.path("d/f")).unwrap(), b"some more");
    fs::rename(fixture.path("d/f"), fixture.path("d/g")).unwrap();
    fs::hard_link(fixture.path("d/g"), fixture.path("d/h")).unwrap();
    assert_eq!(fs::read_dir(fixture.path("d")).unwrap().count(), 4);
    fs::read_link(fixture.path("d/l")).unwrap();
    for round in ["at once", "after a remount", "after a kill"] {
        assert_eq!(times(&fixture.path("d/g")).0, (1_000, 7), "{round}");
        assert_eq!(times(&fixture.path("d/h")).0, (1_000, 7), "{round}");
        assert_eq!(times(&fixture.path("d/v")).0, tensor, "{round}");
        for (number, name) in (1..).zip(others) {
            assert_eq!(times(&fixture.path(name)).0, (-number, 999_999_999), "{name}, {round}");
        }
        match round {
            "at once" => fixture.remount(),
            _ => fixture.crash(),
        }
    }
    // An unlinked file has one too, and a tenant takes none.
    let file = File::open(fixture.path("d/g")).unwrap();
    fs::remove_file(fixture.path("d/g")).unwrap();
    fs::remove_file(fixture.path("d/h")).unwrap();
    assert_eq!(file.metadata().unwrap().atime(), 1_000);
    drop(file);
    assert_eq!(errno(utimens(&fixture.mounted().path("demo"), (1, 1), OMIT)), libc::EPERM);
    fixture.check();
}

#[test]
fn imports_and_exports_keep_the_access_time() {
    let mut fixture = Fixture::new();
    let place = fixture.mounted().store.parent().unwrap().to_owned();
    let (source, out) = (place.join("source"), place.join("out"));
    let (source, out) = (source.as_path(), out.as_path());
    fs::write(source, b"some bytes").unwrap();
    utimens(source, (1_500_000_000, 5), (1_400_000_000, 6)).unwrap();
    let store = fixture.mounted().store.clone();
    run(["import".as_ref(), store.as_os_str(), "demo/m".as_ref(), source.as_os_str()]).ok();
    let wanted = ((1_500_000_000, 5), (1_400_000_000, 6));
    assert_eq!(times(&fixture.path("source")), wanted);
    fixture.while_unmounted(|store| {
        run(["export".as_ref(), store.as_os_str(), "demo/m/source".as_ref(), out.as_os_str()]).ok();
    });
    assert_eq!(times(out), wanted);
    fixture.check();
}

#[test]
fn the_link_count_of_a_directory_is_two_plus_its_subdirectories() {
    let mut fixture = Fixture::new();
    let path = |fixture: &Fixture, name: &str| fixture.path(name);
    let check = |fixture: &Fixture, wanted: &[(&str, u64)]| {
        for (name, count) in wanted {
            assert_eq!(links(&path(fixture, name)), *count, "{name}");
        }
    };
    for name in ["a", "a/b", "a/c", "d", "d/e"] {
        fs::create_dir(path(&fixture, name)).unwrap();
    }
    fs::write(path(&fixture, "a/f"), b"a file is none").unwrap();
    symlink("b", path(&fixture, "a/l")).unwrap();
    check(&fixture, &[(".", 4), ("a", 4), ("a/b", 2), ("d", 3)]);
    // To another directory, within one, over an empty one, and away.
    fs::rename(path(&fixture, "a/b"), path(&fixture, "d/b")).unwrap();
    check(&fixture, &[("a", 3), ("d", 4)]);
    fs::rename(path(&fixture, "d/b"), path(&fixture, "d/x")).unwrap();
    fs::rename(path(&fixture, "d/x"), path(&fixture, "a/c")).unwrap();
    check(&fixture, &[("a", 3), ("d", 3)]);
    fs::remove_dir(path(&fixture, "a/c")).unwrap();
    check(&fixture, &[("a", 2), (".", 4)]);
    // Directories of tensors are not counted, and their own count does not depend on their content.
    fs::write(path(&fixture, "a/m.safetensors"), container_of(&mut Random(1), &[("x/y/w", 10), ("z/w", 10)]))
        .unwrap();
    check(&fixture, &[("a", 2), ("a/.tensors/x", 1), ("a/.tensors", 1), ("a/.tensors/x/y", 1)]);
    for kills in [false, true] {
        if kills {
            fixture.crash()
        } else {
            fixture.remount()
        }
        check(&fixture, &[(".", 4), ("a", 2), ("a/.tensors/x", 1), ("d", 3), (".ctl", 2), (".as", 2)]);
    }
    fs::remove_file(path(&fixture, "a/m.safetensors")).unwrap();
    check(&fixture, &[("a", 2)]);
    // Tenants and collections.
    let tenant = fixture.mounted().path("demo");
    assert_eq!((links(&tenant), links(&fixture.mounted().path(""))), (3, 3));
    fs::create_dir(fixture.mounted().path("demo/other")).unwrap();
    fs::create_dir(fixture.mounted().path("another")).unwrap();
    assert_eq!((links(&tenant), links(&fixture.mounted().path(""))), (4, 4));
    fs::remove_dir(fixture.mounted().path("demo/other")).unwrap();
    fs::remove_dir(fixture.mounted().path("another")).unwrap();
    assert_eq!((links(&tenant), links(&fixture.mounted().path(""))), (3, 3));
    fixture.check();
}
