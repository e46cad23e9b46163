//! Files that an import left at a URL, where they meet pins, copies, children, pushes, removals and kills.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::{Manners, Mounted, Random, answer, assert_same, container_of, set, tensors_of, wait_until};

use crate::sources::{Stand, same_trees};

const LLAMA: &str = "s3://bucket/models/llama";

fn store(stand: &Stand) -> String {
    stand.place.store().to_str().unwrap().to_owned()
}

/// Mounts the store without a cache: a read of bytes that are not here asks the bucket.
fn mounted(stand: &Stand) -> Mounted {
    let options = ["--cache", "none", "--timeout", "2"];
    stand.place.mount_store_by(&mut stand.command(), stand.place.store(), "local", &options)
}

/// A stand whose collection acme/llama lies in the bucket.
fn in_place() -> Stand {
    let stand = Stand::with_models();
    stand.run(&["import", &store(&stand), "acme/llama", LLAMA, "--in-place"]).ok();
    stand
}

/// Bytes of the files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let len = |name: PathBuf| fs::metadata(directory.join(name)).unwrap().len();
    support::files_below(directory).into_iter().map(len).sum()
}

/// Bytes, or ESTALE. Whether it was bytes.
#[track_caller]
fn old_or_stale(path: &Path, wanted: &[u8]) -> bool {
    match fs::read(path) {
        Ok(found) => {
            assert_same(&found, wanted, &path.display().to_string());
            true
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
            false
        }
    }
}

#[test]
fn buckets_of_each_service_are_imported_in_place_and_say_what_they_refuse() {
    for scheme in ["s3", "gs", "az"] {
        let stand = Stand::with_models();
        let url = format!("{scheme}://bucket/models/llama");
        stand.run(&["import", &store(&stand), "acme/llama", &url, "--in-place"]).ok();
        assert!(bytes_below(&stand.place.store()) < 64 << 10);
        let out = stand.place.path("out");
        stand.run(&["export", &url, "models/llama", out.to_str().unwrap()]).ok();
        assert_eq!(same_trees(&out, &stand.object("llama")), 4, "{scheme}");
        let local = mounted(&stand);
        let shown = local.mountpoint.join("acme/llama");
        assert_eq!(same_trees(&shown, &stand.object("llama")), 4, "{scheme}");
        for (name, bytes) in tensors_of(&fs::read(stand.object("llama/model.safetensors")).unwrap()) {
            assert_same(&fs::read(shown.join(".tensors").join(&name)).unwrap(), &bytes, &name);
        }
        local.unmount();
        for (status, errno) in [
            ("403 Forbidden", libc::EACCES),
            ("416 Range Not Satisfiable", libc::ESTALE),
            ("404 Not Found", libc::ESTALE),
            ("500 Internal Server Error", libc::EIO),
        ] {
            let local = mounted(&stand);
            stand.bucket.behave(Manners { status: Some(status), ..Manners::default() });
            let path = local.path("acme/llama/config.json");
            let error = fs::read(&path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(errno), "{url} {status}: {error}");
            let why = support::get(&path, "why");
            assert!(why.contains(&url) && why.contains("config.json"), "{url} {status}: {why}");
            stand.bucket.behave(Manners::default());
            wait_until("the bucket is as before", || fs::read(&path).is_ok_and(|bytes| bytes == b"{}"));
            local.unmount();
        }
        // Replaced by a longer and by a shorter one, which a server may send although another was asked for.
        for (ignores_if_match, content) in [(false, &b"other"[..]), (true, b"other"), (true, b"x")] {
            stand.bucket.behave(Manners { ignores_if_match, ..Manners::default() });
            stand.replace("llama/config.json", content);
            let local = mounted(&stand);
            let path = local.path("acme/llama/config.json");
            let error = fs::read(&path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{url}: {error}");
            let why = support::get(&path, "why");
            assert!(why.contains(&url) && why.contains("config.json"), "{why}");
            stand.run(&["import", &store(&stand), "acme/llama", &url, "--in-place"]).ok();
            assert_same(&fs::read(&path).unwrap(), content, "imported again");
            local.unmount();
        }
        support::fsck(&stand.place.store());
    }
}

#[test]
fn a_pinned_file_reads_when_its_object_is_gone_and_others_are_stale() {
    let stand = in_place();
    let local = mounted(&stand);
    let (model, config) = (local.path("acme/llama/model.safetensors"), local.path("acme/llama/config.json"));
    let content = fs::read(stand.object("llama/model.safetensors")).unwrap();
    stand.run(&["pin", model.to_str().unwrap()]).ok();
    assert!(bytes_below(&stand.place.store()) > content.len() as u64);
    // To give the copy up is safe while the object is there, and fetches nothing of it.
    let requests = || stand.bucket.counts().0;
    let before = requests();
    stand.run(&["unpin", model.to_str().unwrap()]).ok();
    assert!(requests() - before <= 4, "{} requests", requests() - before);
    stand.run(&["pin", model.to_str().unwrap()]).ok();
    for name in ["model.safetensors", "config.json"] {
        fs::remove_file(stand.object("llama").join(name)).unwrap();
    }
    for _ in 0..2 {
        assert_same(&fs::read(&model).unwrap(), &content, "the pinned file");
        for (name, bytes) in tensors_of(&content) {
            let tensor = local.mountpoint.join("acme/llama/.tensors").join(&name);
            assert_same(&fs::read(tensor).unwrap(), &bytes, &name);
        }
    }
    let error = fs::read(&config).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    // The copy is the only one now.
    stand.run(&["unpin", model.to_str().unwrap()]).failed(1, &["only the pinned copy holds"]);
    assert_same(&fs::read(&model).unwrap(), &content, "still pinned");
    local.unmount();
    let local = mounted(&stand);
    assert_same(&fs::read(&model).unwrap(), &content, "after another mount");
    local.unmount();
}

#[test]
fn copies_of_a_file_in_place_are_its_bytes_or_stale_and_its_removal_leaves_the_object() {
    let stand = in_place();
    let local = mounted(&stand);
    let content = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let model = local.path("acme/llama/model.safetensors");
    let (whole, part) = (local.path("acme/llama/copy.safetensors"), local.path("acme/llama/part.bin"));
    fs::copy(&model, &whole).unwrap();
    let (from, to) = (fs::File::open(&model).unwrap(), fs::File::create(&part).unwrap());
    support::copy_file_range(&from, &to, 1 << 20).unwrap();
    to.sync_all().unwrap();
    drop((from, to));
    let len = fs::metadata(&part).unwrap().len() as usize;
    assert!(len > 0);
    assert_same(&fs::read(&whole).unwrap(), &content, "a copy");
    assert_same(&fs::read(&part).unwrap(), &content[..len], "a part");
    // A write into one changes no other, and not the object.
    let file = fs::OpenOptions::new().write(true).open(&whole).unwrap();
    let mut changed = content.clone();
    let at = content.len() - 5000;
    file.write_all_at(&[1; 64], at as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    changed[at..at + 64].fill(1);
    assert_same(&fs::read(&whole).unwrap(), &changed, "the changed copy");
    assert_same(&fs::read(&model).unwrap(), &content, "the file");
    assert_same(&fs::read(stand.object("llama/model.safetensors")).unwrap(), &content, "the object");
    fs::remove_file(&model).unwrap();
    fs::write(local.path(".ctl/sync"), "now").unwrap();
    local.job(".ctl/compact", "start");
    assert!(stand.object("llama/model.safetensors").exists());
    assert_same(&fs::read(&part).unwrap(), &content[..len], "a part of a file that was removed");
    local.unmount();
    let local = mounted(&stand);
    assert_same(&fs::read(&whole).unwrap(), &changed, "after another mount");
    fs::remove_file(stand.object("llama/model.safetensors")).unwrap();
    println!("copies are here: {}, {}", old_or_stale(&whole, &changed), old_or_stale(&part, &content[..len]));
    local.unmount();
}

#[test]
fn children_of_files_in_place_read_through_them_and_are_pushed() {
    let stand = in_place();
    let base = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let mut tuned = base.clone();
    let at = tuned.len() - (4 << 18);
    tuned[at..].chunks_exact_mut(4096).for_each(|page| page[0] ^= 1);
    let source = stand.place.write("tuned/model.safetensors", &tuned);
    let (store, source) = (store(&stand), source.to_str().unwrap());
    let parent = ["--parent", "acme/llama", "--reconstruct", "delta"];
    stand.run(&[&["import", &store, "acme/tuned", source][..], &parent].concat()).ok();
    let local = mounted(&stand);
    let child = local.path("acme/tuned/model.safetensors");
    assert_same(&fs::read(&child).unwrap(), &tuned, "the child");
    assert_eq!(support::get(&local.mountpoint.join("acme/tuned/.tensors/a"), "tier"), "absent");
    local.unmount();
    fs::create_dir(stand.place.path("remote")).unwrap();
    let remote = format!("file://{}", stand.place.path("remote").display());
    for name in ["acme/llama", "acme/tuned"] {
        stand.run(&["push", &store, name, &remote, "--create"]).ok();
    }
    support::run(["fsck", &remote]).ok();
    answer(support::tierfs().args(["gc", &remote])).ok();
    let far = PathBuf::from(&remote);
    let pushed = stand.place.mount_store_by(&mut support::tierfs(), far, "pushed", &["--cache", "none"]);
    assert_same(&fs::read(pushed.path("acme/tuned/model.safetensors")).unwrap(), &tuned, "the pushed child");
    assert_same(&fs::read(pushed.path("acme/llama/model.safetensors")).unwrap(), &base, "the pushed base");
    pushed.unmount();
    // Its parent is replaced: no byte of another version is taken for one of the parent's.
    stand.replace(
        "llama/model.safetensors",
        container_of(&mut Random(77), &[("a", 3 << 20), ("b", 70), ("c", 1 << 18)]),
    );
    let local = mounted(&stand);
    let error = fs::read(&child).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    let why = support::get(&child, "why");
    assert!(why.contains("llama/model.safetensors"), "{why}");
    local.unmount();
}

#[test]
fn a_file_that_moved_down_and_back_lies_in_the_bucket_again_and_not_in_the_store() {
    let stand = in_place();
    let local = mounted(&stand);
    let model = local.path("acme/llama/model.safetensors");
    let content = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let (path, here) = (model.to_str().unwrap(), || {
        local.job(".ctl/compact", "start");
        bytes_below(&stand.place.store())
    });
    stand.run(&["tier", "q8:all", path]).ok();
    assert!(here() > 2 << 20);
    let (before, _) = stand.bucket.counts();
    stand.run(&["tier", "exact", path]).ok();
    println!("{} requests of the move up", stand.bucket.counts().0 - before);
    assert!(here() < 1 << 20, "{} bytes", here());
    assert_same(&fs::read(&model).unwrap(), &content, "exact again");
    // An eviction gives a tier back without a move up.
    stand.run(&["tier", "q5:all", path]).ok();
    set(&model, "reconstruct", "origin").unwrap();
    set(&model, "evict", "1").unwrap();
    assert_same(&fs::read(&model).unwrap(), &content, "evicted");
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn a_daemon_that_is_killed_during_an_import_in_place_leaves_whole_files_and_the_import_is_repeated() {
    let stand = Stand::with_models();
    let random = &mut Random(22);
    for number in 0..60 {
        stand.write(&format!("many/{number}.safetensors"), container_of(random, &[("a", 4096), ("b", 70)]));
    }
    support::run([Path::new("init"), &stand.place.store()]).ok();
    let (url, store) = ("s3://bucket/models/many", store(&stand));
    for round in 0..4 {
        let local = mounted(&stand);
        let mut command = stand.command();
        let mut client = command.args(["import", &store, "acme/many", url, "--in-place"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(10 + random.below(60) as u64 * round));
        local.kill();
        client.wait().unwrap();
        drop(local);
        support::fsck(&stand.place.store());
    }
    let local = mounted(&stand);
    for name in support::files_below(&local.mountpoint.join("acme/many")) {
        let wanted = fs::read(stand.object("many").join(&name)).unwrap();
        assert_same(
            &fs::read(local.mountpoint.join("acme/many").join(&name)).unwrap(),
            &wanted,
            "a whole file",
        );
    }
    stand.run(&["import", &store, "acme/many", url, "--in-place"]).ok();
    assert_eq!(same_trees(&local.mountpoint.join("acme/many"), &stand.object("many")), 60);
    local.unmount();
    support::fsck(&stand.place.store());
}
