//! Clones by the commands, on a remote that is a directory, and mounted.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use support::{Mounted, Place, Random, answer, assert_same, container_of, set, tierfs};

use crate::mounted::{Remote, pushed};

/// A place with a store that has a clone of `acme/m`.
fn cloned(remote: &Remote) -> Place {
    let place = Place::new();
    support::run([Path::new("init"), &place.store()]).ok();
    let text = answer(tierfs().args(["clone", &remote.url, "acme/m"]).arg(place.store())).ok();
    assert!(text.starts_with("acme/m is snapshot 1: "), "{text}");
    place
}

fn evict(mounted: &Mounted) {
    answer(tierfs().arg("evict").arg(mounted.path("acme/m"))).ok();
}

fn same_files(mounted: &Mounted, remote: &Remote) {
    for name in ["large.safetensors", "sub/config.json"] {
        let wanted = fs::read(remote.place.path("in").join(name)).unwrap();
        assert_same(&fs::read(mounted.path("acme/m").join(name)).unwrap(), &wanted, name);
    }
}

#[test]
fn a_mounted_clone_is_read_evicted_written_to_pushed_and_pulled() {
    let remote = pushed();
    let place = cloned(&remote);
    let mounted = place.mount(&[]);
    same_files(&mounted, &remote);
    let q8 = fs::read(mounted.path("acme/m/q8.safetensors")).unwrap();
    // The kernel reads a file that is whole itself, and evictions spare it while it is open.
    let open = fs::File::open(mounted.path("acme/m/large.safetensors")).unwrap();
    evict(&mounted);
    same_files(&mounted, &remote);
    drop(open);
    fs::write(mounted.path("acme/m/sub/config.json"), b"mine").unwrap();
    fs::write(mounted.path("acme/m/new.txt"), b"new").unwrap();
    let push = |place: &Place| answer(tierfs().arg("push").arg(place.store()).args(["acme/m", &remote.url]));
    let text = push(&place).ok();
    assert!(text.contains("pushed snapshot 2 of acme/m"), "{text}");
    evict(&mounted);
    assert_eq!(fs::read(mounted.path("acme/m/new.txt")).unwrap(), b"new");
    assert_eq!(fs::read(mounted.path("acme/m/sub/config.json")).unwrap(), b"mine");
    assert_same(&fs::read(mounted.path("acme/m/q8.safetensors")).unwrap(), &q8, "q8");
    mounted.unmount();
    support::fsck(&place.store());
    // A second clone pulls: the store that pushed first is not a clone.
    let other = Place::new();
    support::run([Path::new("init"), &other.store()]).ok();
    let arguments = ["clone", &remote.url, "acme/m=acme/other", "--at", "1"];
    answer(tierfs().args(arguments).arg(other.store())).ok();
    let pull =
        |options: &[&str]| answer(tierfs().arg("pull").arg(other.store()).arg("acme/other").args(options));
    assert!(pull(&[]).ok().starts_with("acme/other is snapshot 2: "));
    assert!(pull(&[]).ok().starts_with("nothing new: "));
    let mounted = other.mount(&[]);
    assert_eq!(fs::read(mounted.path("acme/other/new.txt")).unwrap(), b"new");
    fs::write(mounted.path("acme/other/new.txt"), b"changed").unwrap();
    mounted.unmount();
    pull(&["--at", "1"]).failed(1, &["changed since snapshot 2", "--theirs"]);
    assert!(pull(&["--at", "1", "--theirs"]).ok().starts_with("acme/other is snapshot 1: "));
    let mounted = other.mount(&[]);
    assert_eq!(support::names(&mounted.path("acme/other")), ["large.safetensors", "q8.safetensors", "sub"]);
    mounted.unmount();
    support::fsck(&other.store());
}

#[test]
fn without_the_remote_what_is_here_reads_and_the_rest_says_why_not() {
    let remote = pushed();
    let place = cloned(&remote);
    let mounted = place.mount(&[]);
    let config = mounted.path("acme/m/sub/config.json");
    let wanted = fs::read(&config).unwrap();
    let (pieces, away) = (remote.place.path("bucket/piece"), remote.place.path("away"));
    fs::rename(&pieces, &away).unwrap();
    assert_eq!(fs::read(&config).unwrap(), wanted);
    let error = fs::read(mounted.path("acme/m/large.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    let events = support::events(&mounted, "remote");
    assert!(events.iter().all(|event| event["text"].as_str().unwrap().contains("has lost")), "{events:?}");
    assert!(!events.is_empty());
    fs::rename(away, pieces).unwrap();
    same_files(&mounted, &remote);
    mounted.unmount();
}

#[test]
fn pieces_that_a_mount_has_read_are_there_for_the_next_one_without_the_remote() {
    let remote = pushed();
    let place = cloned(&remote);
    let mounted = place.mount(&[]);
    same_files(&mounted, &remote);
    mounted.unmount();
    fs::rename(remote.place.path("bucket"), remote.place.path("away")).unwrap();
    let mounted = place.mount(&[]);
    same_files(&mounted, &remote);
    let error = fs::read(mounted.path("acme/m/q8.safetensors")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    mounted.unmount();
}

#[test]
fn a_daemon_that_is_killed_while_it_fetches_and_while_it_evicts_loses_nothing() {
    let remote = pushed();
    let place = cloned(&remote);
    for delay in [0, 5, 20, 60, 150] {
        let mounted = place.mount(&[]);
        let note = format!("written before the kill after {delay} ms");
        fs::write(mounted.path("acme/m/note.txt"), &note).unwrap();
        let path = mounted.path("acme/m/large.safetensors");
        let reader = thread::spawn(move || drop(fs::read(path)));
        let (root, evicts) = (mounted.path("acme/m"), delay % 2 == 0);
        let evicter = thread::spawn(move || {
            if evicts {
                set(&root, "evict", "1").ok();
            }
        });
        thread::sleep(Duration::from_millis(delay));
        mounted.kill();
        reader.join().unwrap();
        evicter.join().unwrap();
        drop(mounted);
        let mounted = place.mount(&[]);
        same_files(&mounted, &remote);
        assert_eq!(fs::read_to_string(mounted.path("acme/m/note.txt")).unwrap(), note);
        evict(&mounted);
        mounted.unmount();
        support::fsck(&place.store());
    }
}

#[test]
fn a_clone_may_have_the_longest_name() {
    let remote = pushed();
    let place = Place::new();
    let name = "x".repeat(255);
    support::run([Path::new("init"), &place.store()]).ok();
    let clone =
        answer(tierfs().args(["clone", &remote.url, &format!("acme/m=acme/{name}")]).arg(place.store()));
    clone.ok();
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("acme").join(name).join("sub/config.json")).is_ok());
    mounted.unmount();
}

#[test]
fn mistakes_are_answered_with_what_to_do() {
    let remote = pushed();
    let place = cloned(&remote);
    let store = place.store();
    let clone = |from: &str| answer(tierfs().args(["clone", &remote.url, from]).arg(&store));
    clone("acme/m").failed(1, &["there is a collection acme/m already"]);
    clone("acme/none").failed(1, &["has no snapshot"]);
    answer(tierfs().arg("pull").arg(remote.place.store()).arg("acme/m")).failed(1, &["is not a clone"]);
    let mounted = place.mount(&[]);
    clone("acme/m=acme/other").failed(1, &["mounted on"]);
    let error = set(&mounted.path("acme/m/sub/config.json"), "pin", "1");
    error.unwrap();
    mounted.unmount();
}

#[test]
fn a_clone_of_children_and_their_parents_has_a_lineage_of_its_own_under_any_name() {
    let (place, bucket) = (Place::new(), Place::new());
    let mut random = Random(41);
    let parent = container_of(&mut random, &[("w", 60_000)]);
    let mut child = container_of(&mut random, &[("v", 60_000)]);
    let data = child.len() - 240_000;
    child[data..].copy_from_slice(&parent[parent.len() - 240_000..]);
    child[data + 5000] ^= 1;
    let sources = [("parent.safetensors", &parent), ("child.safetensors", &child)]
        .map(|(name, bytes)| place.write(name, bytes));
    let store = place.store();
    support::run([Path::new("init"), &store]).ok();
    answer(tierfs().arg("import").arg(&store).arg("t/first").arg(&sources[0])).ok();
    let lineage = ["--parent", "t/first/w", "--reconstruct", "delta"];
    answer(tierfs().arg("import").arg(&store).arg("t/first").arg(&sources[1]).args(lineage)).ok();
    // The collection keeps no name of its own in its lineage.
    answer(tierfs().arg("mv").arg(&store).args(["t/first", "t/c"])).ok();
    let url = format!("file://{}", bucket.path("remote").display());
    fs::create_dir(bucket.path("remote")).unwrap();
    answer(tierfs().arg("push").arg(&store).args(["t/c", &url, "--create"])).ok();

    let check = |mounted: &Mounted, collection: &str| {
        for (name, bytes) in [("parent.safetensors", &parent), ("child.safetensors", &child)] {
            let found = fs::read(mounted.path("t").join(collection).join(name)).unwrap();
            assert_same(&found, bytes, &format!("{collection}/{name}"));
        }
    };
    let change = |mounted: &Mounted, collection: &str| {
        let path = mounted.path("t").join(collection).join("parent.safetensors");
        let file = fs::File::options().write(true).open(&path)?;
        std::os::unix::fs::FileExt::write_at(&file, &[9], parent.len() as u64 - 1)
    };
    let elsewhere = Place::new();
    support::run([Path::new("init"), &elsewhere.store()]).ok();
    for at in [&elsewhere, &place] {
        answer(tierfs().args(["clone", &url, "t/c=t/k"]).arg(at.store())).ok();
        let mounted = at.mount(&[]);
        check(&mounted, "k");
        assert_eq!(change(&mounted, "k").unwrap_err().raw_os_error(), Some(libc::EBUSY));
        let why = support::get(&mounted.path("t/k/parent.safetensors"), "why");
        assert!(why.contains("t/k/") && !why.contains("t/c/"), "{why}");
        set(&mounted.path("t/k/.tensors/v"), "tier", "exact").unwrap();
        assert_eq!(change(&mounted, "k").unwrap(), 1);
        mounted.unmount();
        support::fsck(&at.store());
    }
    let mounted = place.mount(&[]);
    check(&mounted, "c");
    assert_eq!(
        change(&mounted, "c").unwrap_err().raw_os_error(),
        Some(libc::EBUSY),
        "the clone's child is exact"
    );
    mounted.unmount();
}
