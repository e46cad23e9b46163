//! A checkpoint of the log while files are in use, with the same content.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use support::{Place, Random, npy_file, run, shell};

/// The tree as `ls` and `sha256sum` show it.
fn picture(mountpoint: &std::path::Path) -> String {
    let script =
        "find demo/c -printf '%p %i %s %m %n %T@\\n' | sort; find demo/c -type f -exec sha256sum {} + | sort";
    String::from_utf8(shell(mountpoint, script).stdout).unwrap()
}

#[test]
fn a_log_of_many_small_changes_is_rewritten_with_the_same_content() {
    let mut random = Random(5);
    let place = Place::new();
    let source = place.write("w.npy", npy_file(&random.floats(64 << 10)));
    place.import("demo/c", &[&source], &["--tier", "q5:all"]);
    let mounted = place.mount(&[]);
    fs::create_dir(mounted.path("demo/c/d")).unwrap();
    fs::write(mounted.path("demo/c/d/plain"), random.bytes(100_000)).unwrap();
    fs::hard_link(mounted.path("demo/c/d/plain"), mounted.path("demo/c/second")).unwrap();
    std::os::unix::fs::symlink("d/plain", mounted.path("demo/c/link")).unwrap();
    let tensor = fs::OpenOptions::new().write(true).open(mounted.path("demo/c/w")).unwrap();
    let log = place.store().join("demo/c/meta.log");
    let mut largest = 0;
    let mut written_anew = false;
    // Each round is a few batches: names that are created and removed, a patch, an append.
    for round in 0..16_000_u64 {
        let name = mounted.path(format!("demo/c/f{}", round % 50));
        fs::write(&name, random.bytes(50)).unwrap();
        if round % 3 == 0 {
            fs::remove_file(&name).unwrap();
        }
        if round % 100 == 0 {
            tensor.write_all_at(&random.floats(1), random.below(1000) as u64 * 4).unwrap();
            tensor.sync_all().unwrap();
        }
        let bytes = fs::metadata(&log).unwrap().size();
        written_anew |= bytes < largest;
        largest = largest.max(bytes);
    }
    assert!(written_anew, "the log only grew, to {largest} bytes");
    drop(tensor);
    let before = picture(&mounted.mountpoint);
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    let after = picture(&mounted.mountpoint);
    let differs = before.lines().zip(after.lines()).find(|(one, other)| one != other);
    assert!(before == after, "{differs:?}");
    // Numbers are never used again.
    let highest = fs::metadata(mounted.path("demo/c/f49")).map_or(0, |found| found.ino());
    fs::write(mounted.path("demo/c/new"), b"new").unwrap();
    assert!(fs::metadata(mounted.path("demo/c/new")).unwrap().ino() > highest);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}
