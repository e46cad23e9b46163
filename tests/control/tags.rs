//! Tags of files, and the directory of the mount that finds files by them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::io::Errno;

use support::{Mounted, Place, Random, get, npy_file, refused_set, run, set, try_get};

/// The names in a directory, with the targets of links.
fn names(path: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let target = fs::read_link(entry.path()).map(|target| target.to_str().unwrap().to_owned());
            (entry.file_name().into_string().unwrap(), target.unwrap_or_default())
        })
        .collect()
}

fn pairs<const N: usize>(of: [(&str, &str); N]) -> BTreeMap<String, String> {
    of.into_iter().map(|(name, target)| (name.to_owned(), target.to_owned())).collect()
}

fn two_collections() -> (Place, Mounted) {
    let place = Place::new();
    let array = place.write("w.npy", npy_file(&Random(3).floats(5000)));
    place.import("t/one", &[&array], &[]);
    place.import("u/two", &[&array], &["--tag", "model:w", "--tag", "team:x"]);
    let mounted = place.mount(&["--allow-other"]);
    fs::create_dir(mounted.path("t/one/folder")).unwrap();
    fs::write(mounted.path("t/one/folder/notes"), b"text").unwrap();
    (place, mounted)
}

#[test]
fn tags_of_all_collections_lead_to_their_files() {
    let (place, mounted) = two_collections();
    assert_eq!(get(&mounted.path("u/two/w.npy"), "tags"), "model:w,team:x");
    set(&mounted.path("t/one/folder/notes"), "tags", "team:x,draft").unwrap();
    set(&mounted.path("t/one/folder"), "tags", "draft").unwrap();
    set(&mounted.path("t/one/.tensors/w"), "tags", "model:w").unwrap();
    let check = |mounted: &Mounted| {
        let tags = mounted.path(".tags");
        assert_eq!(names(&tags), pairs([("draft", ""), ("model:w", ""), ("team:x", "")]));
        let drafts = [
            ("t%2Fone%2Ffolder", "../../t/one/folder"),
            ("t%2Fone%2Ffolder%2Fnotes", "../../t/one/folder/notes"),
        ];
        assert_eq!(names(&tags.join("draft")), pairs(drafts));
        let team = [
            ("t%2Fone%2Ffolder%2Fnotes", "../../t/one/folder/notes"),
            ("u%2Ftwo%2Fw.npy", "../../u/two/w.npy"),
        ];
        assert_eq!(names(&tags.join("team:x")), pairs(team));
        assert_eq!(names(&tags.join("model:w")).len(), 2);
        assert_eq!(fs::read(tags.join("draft/t%2Fone%2Ffolder%2Fnotes")).unwrap(), b"text");
        assert_eq!(fs::read(tags.join("draft/t%2Fone%2Ffolder/notes")).unwrap(), b"text");
        for link in fs::read_dir(tags.join("model:w")).unwrap() {
            assert!(fs::metadata(link.unwrap().path()).unwrap().len() >= 20_000);
        }
        for missing in ["none", "draft/none", "draft/u%2Ftwo%2Fw.npy"] {
            assert!(fs::symlink_metadata(tags.join(missing)).is_err(), "{missing}");
        }
        assert!(!names(&mounted.path("")).contains_key(".tags"));
    };
    check(&mounted);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    check(&mounted);
    // Renames, removals and other tags show at once.
    fs::rename(mounted.path("t/one/folder"), mounted.path("t/one/moved")).unwrap();
    let drafts = names(&mounted.path(".tags/draft"));
    assert_eq!(drafts["t%2Fone%2Fmoved%2Fnotes"], "../../t/one/moved/notes");
    assert!(fs::symlink_metadata(mounted.path(".tags/draft/t%2Fone%2Ffolder")).is_err());
    fs::remove_file(mounted.path("t/one/moved/notes")).unwrap();
    set(&mounted.path("t/one/moved"), "tags", "").unwrap();
    assert_eq!(try_get(&mounted.path("t/one/moved"), "tags"), Err(Errno::NODATA));
    assert_eq!(names(&mounted.path(".tags")), pairs([("model:w", ""), ("team:x", "")]));
    assert!(fs::write(mounted.path(".tags/new"), b"").is_err());
    assert!(fs::create_dir(mounted.path(".tags/new")).is_err());
    assert!(fs::remove_file(mounted.path(".tags/team:x/u%2Ftwo%2Fw.npy")).is_err());
    for wrong in ["a/b", ",", "a,,b", ".", "..", "a\nb"] {
        refused_set(&mounted.path("u/two/w.npy"), "tags", wrong, Errno::INVAL);
    }
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    run(["compact".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    assert_eq!(names(&mounted.path(".tags/team:x")), pairs([("u%2Ftwo%2Fw.npy", "../../u/two/w.npy")]));
}

#[test]
fn repeated_imports_add_tags_and_copies_keep_them() {
    let (place, mounted) = two_collections();
    let array = place.path("w.npy");
    mounted.unmount();
    let store = place.store();
    let import = |collection: &str, tag: &str| {
        let words = ["import".as_ref(), store.as_os_str(), collection.as_ref(), array.as_os_str()];
        run(words.into_iter().chain(["--tag".as_ref(), tag.as_ref()]))
    };
    import("u/two", "late").ok();
    import("u/two", "team:x").ok();
    import("u/two", "a,b").failed(2, &["is not a tag"]);
    let mounted = place.mount(&[]);
    assert_eq!(get(&mounted.path("u/two/w.npy"), "tags"), "model:w,team:x,late");
    // A changed source replaces the file, which keeps its tags and the attributes of programs.
    support::shell(&mounted.path("u/two"), "setfattr -n user.colour -v purple w.npy");
    place.write("w.npy", npy_file(&Random(4).floats(6000)));
    place.import("u/two", &[&array], &[]);
    assert_eq!(get(&mounted.path("u/two/w.npy"), "tags"), "model:w,team:x,late");
    support::shell(&mounted.path("u/two"), "test $(getfattr --only-values -n user.colour w.npy) = purple");
    support::shell(&mounted.path("u/two"), "cp -a w.npy copy.npy");
    assert_eq!(get(&mounted.path("u/two/copy.npy"), "tags"), "model:w,team:x,late");
    // An import into a mounted store is a request to the daemon.
    import("v/three", "new").ok();
    assert_eq!(names(&mounted.path(".tags/new")), pairs([("v%2Fthree%2Fw.npy", "../../v/three/w.npy")]));
}

#[test]
fn users_find_the_files_that_they_may_list() {
    let (_place, mounted) = two_collections();
    set(&mounted.path("t/one/folder/notes"), "tags", "team:x").unwrap();
    let as_user = |path: &str| {
        let done = std::process::Command::new("setpriv")
            .args(["--reuid=4321", "--regid=4321", "--clear-groups", "ls", "-1"])
            .arg(path)
            .current_dir(&mounted.mountpoint)
            .output()
            .unwrap();
        (done.status.success(), String::from_utf8(done.stdout).unwrap())
    };
    let mode = |path: &str, mode: u32| {
        fs::set_permissions(mounted.path(path), PermissionsExt::from_mode(mode)).unwrap();
    };
    for path in ["t", "u", "t/one", "u/two", "t/one/folder"] {
        mode(path, 0o755);
    }
    let both = "t%2Fone%2Ffolder%2Fnotes\nu%2Ftwo%2Fw.npy\n";
    assert_eq!(as_user(".tags/team:x"), (true, both.to_owned()));
    mode("t/one/folder", 0o700);
    assert_eq!(as_user(".tags/team:x"), (true, "u%2Ftwo%2Fw.npy\n".to_owned()));
    // Root has looked the name up; that does not show it to others.
    assert_eq!(names(&mounted.path(".tags/team:x")).len(), 2);
    assert!(!as_user(".tags/team:x/t%2Fone%2Ffolder%2Fnotes").0);
    mode("u", 0o700);
    assert_eq!(as_user(".tags"), (true, String::new()));
    assert!(!as_user(".tags/team:x").0);
}
