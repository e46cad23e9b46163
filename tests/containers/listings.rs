//! Listings with tensors: the mount option and the setting `list`.

use std::fs;

use support::{Fixture, Random, container_of, get, names, npy_file, script, set, try_get};

fn placed(fixture: &Fixture, folder: &str) {
    let at = fixture.path(folder);
    fs::create_dir_all(at.join("sub/own")).unwrap();
    fs::write(
        at.join("m.safetensors"),
        container_of(&mut Random(1), &[("w", 500), ("blk/0/q", 9), ("sub/r", 7)]),
    )
    .unwrap();
    fs::write(at.join("sub/x.npy"), npy_file(&Random(2).floats(30))).unwrap();
    fs::write(at.join("config.json"), b"{}").unwrap();
}

#[test]
fn a_directory_and_those_below_list_tensors_where_the_setting_says_so() {
    let mut fixture = Fixture::new();
    placed(&fixture, "d");
    placed(&fixture, "e");
    let at = |fixture: &Fixture, name: &str| names(&fixture.path(name));
    assert_eq!(get(&fixture.path("d"), "list"), "files");
    set(&fixture.path("d"), "list", "both").unwrap();
    set(&fixture.path("d"), "plain", "on").unwrap();
    set(&fixture.path("d/sub/own"), "list", "files").unwrap();
    for value in ["tensors", "containers", ""] {
        assert!(set(&fixture.path("d"), "list", value).is_err(), "{value}");
    }
    assert!(set(&fixture.path("d/config.json"), "list", "both").is_err());
    assert!(try_get(&fixture.path("d/config.json"), "list").is_err());
    fs::rename(fixture.path("d/sub/x.npy"), fixture.path("d/sub/own/x.npy")).unwrap();
    for _ in 0..2 {
        assert_eq!(at(&fixture, "d"), ["blk", "config.json", "m.safetensors", "sub", "w"]);
        assert_eq!(at(&fixture, "d/blk/0"), ["q"]);
        assert_eq!(at(&fixture, "d/sub"), ["own", "r"]);
        assert_eq!(at(&fixture, "d/sub/own"), ["x.npy"]);
        assert_eq!(at(&fixture, ".as/f16/d"), ["blk", "config.json", "m.safetensors", "sub", "w"]);
        assert_eq!(at(&fixture, "e"), ["config.json", "m.safetensors", "sub"]);
        assert_eq!(get(&fixture.path("d/sub"), "list"), "both");
        fixture.remount();
    }
    // An entry that takes the place of a tensor ends the other plain names too.
    fs::rename(fixture.path("d/config.json"), fixture.path("d").join("w")).unwrap();
    assert_eq!(at(&fixture, "d"), ["m.safetensors", "sub", "w"]);
    assert_eq!(fs::metadata(fixture.path("d/w")).unwrap().len(), 2);
    fixture.check();
}

#[test]
fn directories_that_list_tensors_are_removed_by_the_usual_tools() {
    let mut fixture = Fixture::new();
    for is_mounted_so in [false, true] {
        if is_mounted_so {
            fixture.unmount();
            fixture.mount_with(&["--allow-other", "--list", "both"]);
        }
        for remove in [
            "rm -r d",
            "find d -delete",
            "find d -depth -type f -exec rm {} + && find d -depth -type d -exec rmdir {} +",
            "python3 -c 'import shutil; shutil.rmtree(\"d\")'",
        ] {
            placed(&fixture, "d");
            if !is_mounted_so {
                set(&fixture.path("d"), "list", "both").unwrap();
            }
            set(&fixture.path("d"), "plain", "on").unwrap();
            assert_eq!(names(&fixture.path("d")).len(), 5);
            script(&fixture.path(""), remove).ok();
            assert!(!fixture.path("d").exists(), "{remove}");
        }
    }
    // The setting has no effect without the option.
    placed(&fixture, "d");
    set(&fixture.path("d"), "plain", "on").unwrap();
    fs::remove_file(fixture.path("d").join("w")).unwrap();
    assert_eq!(fs::metadata(fixture.path("d/w")).unwrap().len(), 2000);
    assert!(fs::remove_file(fixture.path("d/.tensors/w")).is_err());
    fixture.check();
}
