//! Forms of private files: a user without permission to read a file cannot read its forms.

use std::fs;
use std::os::unix::fs::chown;

use support::{Mounted, Place, Random, as_user, npy_file, set_mode};

const ALICE: u32 = 65_534;
const BOB: u32 = 65_533;

/// Whether a user can read a file of a form of `a/c`.
fn reads(mounted: &Mounted, user: u32, name: &str) -> bool {
    let line = format!("cat a/c/.as/{name} > /dev/null");
    let answer = as_user(user, user, &mounted.mountpoint, &line);
    match answer.code {
        Some(0) => true,
        _ => {
            assert!(answer.err.contains("Permission denied"), "{name}: {answer:?}");
            false
        }
    }
}

/// `a/c` of Alice with `open.npy`, `mine.npy` of mode 0600, and `kept/k.npy` in a directory of mode 0700.
fn place() -> (Place, Mounted) {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--allow-other"]);
    let collection = mounted.path("a/c");
    fs::create_dir_all(collection.join("kept")).unwrap();
    for name in ["open.npy", "mine.npy", "kept/k.npy"] {
        fs::write(collection.join(name), npy_file(&Random(4).floats(64))).unwrap();
    }
    for name in [
        "",
        "open.npy",
        ".tensors/open",
        "mine.npy",
        ".tensors/mine",
        "kept",
        "kept/k.npy",
        "kept/.tensors/k",
    ] {
        chown(collection.join(name), Some(ALICE), Some(ALICE)).unwrap();
    }
    for name in ["mine.npy", ".tensors/mine"] {
        set_mode(&collection.join(name), 0o600);
    }
    set_mode(&collection.join("kept"), 0o700);
    (place, mounted)
}

const MINE: [&str; 7] = [
    "f16/mine.npy",
    "bf16/mine",
    "npy/mine.npy",
    "safetensors/mine.safetensors",
    "q3/mine.npy",
    "q8/mine",
    "f32/kept/k.npy",
];

#[test]
fn a_user_without_read_permission_cannot_read_any_form_of_a_file() {
    let (place, mounted) = place();
    for name in ["f16/open.npy", "npy/open.npy", "q3/open"] {
        assert!(reads(&mounted, ALICE, name) && reads(&mounted, BOB, name), "{name}");
    }
    for name in MINE {
        assert!(reads(&mounted, ALICE, name), "{name}");
        assert!(!reads(&mounted, BOB, name), "{name}");
    }
    mounted.unmount();
    let mounted = place.mount(&["--read-only", "--allow-other"]);
    for name in MINE {
        assert!(reads(&mounted, ALICE, name) && !reads(&mounted, BOB, name), "{name}, read-only");
    }
    fs::read(mounted.path("a/c/.as/f16/mine.npy")).unwrap();
}

#[test]
fn a_form_of_a_whole_collection_requires_permission_to_read_all_of_it() {
    let wholes = ["safetensors/_all.safetensors", "sha256/SHA256SUMS"];
    let (place, mounted) = place();
    let check = |mounted: &Mounted, user, wanted, what: &str| {
        for whole in wholes {
            assert_eq!(reads(mounted, user, whole), wanted, "{whole}: {what}");
        }
    };
    check(&mounted, ALICE, true, "all of it is hers");
    check(&mounted, BOB, false, "a file and a directory are hers alone");
    let again = |mounted: Mounted| {
        // The kernel may keep attributes for some seconds.
        mounted.unmount();
        place.mount(&["--allow-other"])
    };
    for name in ["mine.npy", ".tensors/mine"] {
        set_mode(&mounted.path("a/c").join(name), 0o644);
    }
    let mounted = again(mounted);
    check(&mounted, BOB, false, "a directory is hers alone");
    set_mode(&mounted.path("a/c/kept"), 0o755);
    let mounted = again(mounted);
    check(&mounted, BOB, true, "nothing is hers alone");
    for name in ["mine.npy", ".tensors/mine"] {
        let path = mounted.path("a/c").join(name);
        chown(&path, Some(BOB), Some(BOB)).unwrap();
        set_mode(&path, 0o600);
    }
    let mounted = again(mounted);
    check(&mounted, ALICE, false, "a file is Bob's alone");
    check(&mounted, BOB, false, "the collection is not his");
    for whole in wholes {
        fs::read(mounted.path("a/c/.as").join(whole)).unwrap();
    }
}
