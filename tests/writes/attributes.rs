//! Times of access, and the link counts of directories.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use crate::calls::{World, errno, utimens};
use crate::support::{Random, container_of, run};

const OMIT: (i64, i64) = (0, libc::UTIME_OMIT);

/// Time of access and of writing, in seconds and nanoseconds.
fn times(path: &Path) -> ((i64, i64), (i64, i64)) {
    let found = fs::symlink_metadata(path).unwrap();
    ((found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec()))
}

fn links(path: &Path) -> u64 {
    fs::metadata(path).unwrap().nlink()
}

#[test]
fn a_time_of_access_that_is_set_stays_until_it_is_set_again() {
    let mut world = World::new();
    fs::create_dir(world.path("d")).unwrap();
    fs::write(world.path("d/f"), b"some").unwrap();
    symlink("f", world.path("d/l")).unwrap();
    fs::write(world.path("d/m.safetensors"), container_of(&mut Random(3), &[("w", 100), ("v", 10)])).unwrap();
    let made = times(&world.path("d/f"));
    assert!(made.0.0 > 1_600_000_000, "{made:?}");
    // One of the two times only.
    utimens(&world.path("d/f"), (1_000, 7), OMIT).unwrap();
    assert_eq!(times(&world.path("d/f")), ((1_000, 7), made.1));
    utimens(&world.path("d/f"), OMIT, (2_000, 8)).unwrap();
    assert_eq!(times(&world.path("d/f")), ((1_000, 7), (2_000, 8)));
    let others = ["d", "d/l", "d/m.safetensors", "d/w", "."];
    for (number, name) in (1..).zip(others) {
        utimens(&world.path(name), (-number, 999_999_999), (number, 1)).unwrap();
    }
    // A tensor has its own; that of its container is not given to it.
    let tensor = times(&world.path("d/v")).0;
    assert!(tensor.0 > 1_600_000_000, "{tensor:?}");
    let mut file = File::options().append(true).open(world.path("d/f")).unwrap();
    file.write_all(b" more").unwrap();
    drop(file);
    assert_eq!(fs::read(world.path("d/f")).unwrap(), b"some more");
    fs::rename(world.path("d/f"), world.path("d/g")).unwrap();
    fs::hard_link(world.path("d/g"), world.path("d/h")).unwrap();
    assert_eq!(fs::read_dir(world.path("d")).unwrap().count(), 6);
    fs::read_link(world.path("d/l")).unwrap();
    for round in ["at once", "after a remount", "after a kill"] {
        assert_eq!(times(&world.path("d/g")).0, (1_000, 7), "{round}");
        assert_eq!(times(&world.path("d/h")).0, (1_000, 7), "{round}");
        assert_eq!(times(&world.path("d/v")).0, tensor, "{round}");
        for (number, name) in (1..).zip(others) {
            assert_eq!(times(&world.path(name)).0, (-number, 999_999_999), "{name}, {round}");
        }
        match round {
            "at once" => world.remount(),
            _ => world.crash(),
        }
    }
    // One without a name has it too, and a tenant takes none.
    let file = File::open(world.path("d/g")).unwrap();
    fs::remove_file(world.path("d/g")).unwrap();
    fs::remove_file(world.path("d/h")).unwrap();
    assert_eq!(file.metadata().unwrap().atime(), 1_000);
    drop(file);
    assert_eq!(errno(utimens(&world.mounted().path("t"), (1, 1), OMIT)), libc::EPERM);
    world.check();
}

#[test]
fn imports_and_exports_keep_the_time_of_access() {
    let mut world = World::new();
    let place = world.mounted().store.parent().unwrap().to_owned();
    let (source, out) = (place.join("source"), place.join("out"));
    let (source, out) = (source.as_path(), out.as_path());
    fs::write(source, b"some bytes").unwrap();
    utimens(source, (1_500_000_000, 5), (1_400_000_000, 6)).unwrap();
    let store = world.mounted().store.clone();
    run(["import".as_ref(), store.as_os_str(), "t/c".as_ref(), source.as_os_str()]).ok();
    let wanted = ((1_500_000_000, 5), (1_400_000_000, 6));
    assert_eq!(times(&world.path("source")), wanted);
    world.while_unmounted(|store| {
        run(["export".as_ref(), store.as_os_str(), "t/c/source".as_ref(), out.as_os_str()]).ok();
    });
    assert_eq!(times(out), wanted);
    world.check();
}

#[test]
fn the_links_of_a_directory_are_two_and_the_directories_in_it() {
    let mut world = World::new();
    let path = |world: &World, name: &str| world.path(name);
    let check = |world: &World, wanted: &[(&str, u64)]| {
        for (name, count) in wanted {
            assert_eq!(links(&path(world, name)), *count, "{name}");
        }
    };
    for name in ["a", "a/b", "a/c", "d", "d/e"] {
        fs::create_dir(path(&world, name)).unwrap();
    }
    fs::write(path(&world, "a/f"), b"a file is none").unwrap();
    symlink("b", path(&world, "a/l")).unwrap();
    check(&world, &[(".", 4), ("a", 4), ("a/b", 2), ("d", 3)]);
    // Elsewhere, in place, over an empty one, and away.
    fs::rename(path(&world, "a/b"), path(&world, "d/b")).unwrap();
    check(&world, &[("a", 3), ("d", 4)]);
    fs::rename(path(&world, "d/b"), path(&world, "d/x")).unwrap();
    fs::rename(path(&world, "d/x"), path(&world, "a/c")).unwrap();
    check(&world, &[("a", 3), ("d", 3)]);
    fs::remove_dir(path(&world, "a/c")).unwrap();
    check(&world, &[("a", 2), (".", 4)]);
    // Directories that come and go with a container.
    fs::write(path(&world, "a/m.safetensors"), container_of(&mut Random(1), &[("x/y/w", 10), ("z/w", 10)]))
        .unwrap();
    check(&world, &[("a", 4), ("a/x", 3), ("a/x/y", 2)]);
    for kills in [false, true] {
        if kills {
            world.crash()
        } else {
            world.remount()
        }
        check(&world, &[(".", 4), ("a", 4), ("a/x", 3), ("d", 3), (".ctl", 2), (".as", 2)]);
    }
    fs::remove_file(path(&world, "a/m.safetensors")).unwrap();
    check(&world, &[("a", 2)]);
    // Tenants and collections.
    let tenant = world.mounted().path("t");
    assert_eq!((links(&tenant), links(&world.mounted().path(""))), (3, 3));
    fs::create_dir(world.mounted().path("t/other")).unwrap();
    fs::create_dir(world.mounted().path("another")).unwrap();
    assert_eq!((links(&tenant), links(&world.mounted().path(""))), (4, 4));
    fs::remove_dir(world.mounted().path("t/other")).unwrap();
    fs::remove_dir(world.mounted().path("another")).unwrap();
    assert_eq!((links(&tenant), links(&world.mounted().path(""))), (3, 3));
    world.check();
}
