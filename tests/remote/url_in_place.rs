//! Files that an import left at a URL, compared with the objects there: read, moved, written, pushed, replaced, away.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::{Manners, Mounted, Random, assert_same, container_of, set, tensors_of, wait_until};

use crate::sources::{Stand, same_trees};

const LLAMA: &str = "s3://bucket/models/llama";

fn store(stand: &Stand) -> String {
    stand.place.store().to_str().unwrap().to_owned()
}

/// Mounts the store, with a cache of its own.
fn mounted(stand: &Stand, options: &[&str]) -> Mounted {
    let cache = stand.place.path("cache");
    let options = [&["--cache", cache.to_str().unwrap()], options].concat();
    stand.place.mount_store_by(&mut stand.command(), stand.place.store(), "local", &options)
}

/// Bytes of the files below a directory.
fn bytes_below(directory: &Path) -> u64 {
    let len = |name: PathBuf| fs::metadata(directory.join(name)).unwrap().len();
    support::files_below(directory).into_iter().map(len).sum()
}

/// A stand whose collection acme/llama lies in the bucket.
fn in_place() -> Stand {
    let stand = Stand::with_models();
    stand.run(&["import", &store(&stand), "acme/llama", LLAMA, "--in-place"]).ok();
    stand
}

#[test]
fn a_url_stays_in_place_and_reads_as_its_objects() {
    let stand = in_place();
    assert!(bytes_below(&stand.place.store()) < 64 << 10, "{}", bytes_below(&stand.place.store()));
    let text = stand.run(&["import", &store(&stand), "acme/llama", LLAMA, "--in-place"]).ok();
    assert!(text.contains("4 files unchanged"), "{text}");
    let local = mounted(&stand, &[]);
    let shown = local.mountpoint.join("acme/llama");
    let model = shown.join("model.safetensors");
    assert_eq!(support::get(&model, "checksum"), "none until read");
    // Parts here and there, then all.
    let content = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let (file, random) = (fs::File::open(&model).unwrap(), &mut Random(11));
    for _ in 0..20 {
        let at = random.below(content.len() - 5000);
        let mut part = vec![0; 1 + random.below(5000)];
        file.read_exact_at(&mut part, at as u64).unwrap();
        assert_same(&part, &content[at..][..part.len()], "a part");
    }
    drop(file);
    assert_eq!(same_trees(&shown, &stand.object("llama")), 4);
    for (name, bytes) in tensors_of(&content) {
        assert_same(&fs::read(shown.join(".tensors").join(&name)).unwrap(), &bytes, &name);
    }
    // What was read is in the cache, and not in the store.
    let (before, _) = stand.bucket.counts();
    local.unmount();
    let local = mounted(&stand, &[]);
    assert_eq!(same_trees(&shown, &stand.object("llama")), 4);
    assert_eq!(stand.bucket.counts().0, before, "requests of a warm cache");
    local.unmount();
    assert!(bytes_below(&stand.place.store()) < 64 << 10, "{}", bytes_below(&stand.place.store()));
    let out = stand.place.path("out");
    stand.run(&["export", &store(&stand), "acme/llama", out.to_str().unwrap()]).ok();
    assert_eq!(same_trees(&out, &stand.object("llama")), 4);
    // Nothing is asked of the bucket: the program has no credentials.
    support::fsck(&stand.place.store());
}

#[test]
fn an_object_is_the_exact_source_of_moves_and_evictions() {
    let stand = in_place();
    let local = mounted(&stand, &[]);
    let model = local.path("acme/llama/model.safetensors");
    let content = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let tensor = local.path("acme/llama/a");
    let run = |arguments: &[&str]| stand.run(arguments);
    let path = model.to_str().unwrap();
    run(&["tier", "q8:all", path]).ok();
    assert_eq!(support::get(&tensor, "tier"), "q8");
    assert!(fs::read(&model).unwrap() != content);
    run(&["tier", "exact", path]).ok();
    assert_same(&fs::read(&model).unwrap(), &content, "exact again");
    run(&["tier", "q5:all", path]).ok();
    run(&["set", "reconstruct=origin", path]).ok();
    run(&["evict", path]).ok();
    assert_eq!(support::get(&tensor, "tier"), "absent");
    assert_same(&fs::read(&model).unwrap(), &content, "evicted");
    // A write becomes the store's own, and what it has not touched stays in the bucket.
    let mut changed = content.clone();
    let at = content.len() - 9000;
    changed[at..at + 100].fill(7);
    let file = fs::OpenOptions::new().read(true).write(true).open(&model).unwrap();
    file.write_all_at(&[7; 100], at as u64).unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_same(&fs::read(&model).unwrap(), &changed, "written");
    local.unmount();
    support::fsck(&stand.place.store());
    let local = mounted(&stand, &[]);
    assert_same(&fs::read(local.path("acme/llama/model.safetensors")).unwrap(), &changed, "written");
    local.unmount();
}

#[test]
fn a_daemon_imports_in_place_and_scrubs_only_what_is_here() {
    let stand = Stand::with_models();
    support::run([Path::new("init"), &stand.place.store()]).ok();
    let local = mounted(&stand, &[]);
    let import = ["import", &store(&stand), "acme/llama", LLAMA, "--in-place", "--reconstruct", "origin"];
    support::run(import).ok();
    let shown = local.mountpoint.join("acme/llama");
    assert_eq!(support::get(&shown.join("a"), "tier"), "absent");
    let (before, _) = stand.bucket.counts();
    stand.run(&["scrub", local.mountpoint.to_str().unwrap()]).ok();
    assert_eq!(stand.bucket.counts().0, before, "requests of a scrub");
    assert_eq!(same_trees(&shown, &stand.object("llama")), 4);
    // Read once, a file has checksums and digests like any other.
    let import = ["import", &store(&stand), "acme/read", LLAMA, "--in-place", "--checksum"];
    stand.run(&import).ok();
    let checksum = support::get(&local.mountpoint.join("acme/read/model.safetensors"), "checksum");
    assert!(checksum.starts_with("crc32c:"), "{checksum}");
    assert_eq!(same_trees(&local.mountpoint.join("acme/read"), &stand.object("llama")), 4);
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn an_object_that_was_replaced_is_estale_and_says_why() {
    let stand = in_place();
    let local = mounted(&stand, &[]);
    let model = local.path("acme/llama/model.safetensors");
    let path = model.to_str().unwrap();
    stand.run(&["tier", "q8:all", path]).ok();
    let seen = fs::read(local.path("acme/llama/a")).unwrap();
    let content = container_of(&mut Random(99), &[("a", 3 << 20), ("b", 70), ("c", 1 << 18)]);
    stand.replace("llama/model.safetensors", &content);
    stand.replace("llama/config.json", b"[]");
    let error = fs::read(local.path("acme/llama/config.json")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    let why = support::get(&local.path("acme/llama/config.json"), "why");
    assert!(why.contains("llama/config.json"), "{why}");
    // The copy that the store has is kept: nothing is given up for an object that is gone.
    set(&model, "reconstruct", "origin").unwrap();
    assert!(set(&model, "evict", "1").is_err());
    assert_same(&fs::read(local.path("acme/llama/a")).unwrap(), &seen, "the copy in q8");
    stand.run(&["import", &store(&stand), "acme/llama", LLAMA, "--in-place"]).ok();
    assert_eq!(same_trees(&local.mountpoint.join("acme/llama"), &stand.object("llama")), 4);
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn without_its_server_a_store_mounts_and_reads_what_it_has() {
    let stand = in_place();
    let local = mounted(&stand, &[]);
    stand.run(&["tier", "q8:all", local.path("acme/llama/a").to_str().unwrap()]).ok();
    let seen = fs::read(local.path("acme/llama/a")).unwrap();
    local.unmount();
    fs::remove_dir_all(stand.place.path("cache")).unwrap();
    let mut command = stand.command();
    let Stand { place, bucket } = stand;
    drop(bucket);
    let options = ["--cache", "none", "--timeout", "1"];
    let local = place.mount_store_by(&mut command, place.store(), "local", &options);
    assert!(support::names(&local.path("acme/llama")).contains(&"model.safetensors".to_owned()));
    assert_same(&fs::read(local.path("acme/llama/a")).unwrap(), &seen, "the copy in q8");
    let begun = Instant::now();
    let error = fs::read(local.path("acme/llama/config.json")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let why = support::get(&local.path("acme/llama/config.json"), "why");
    assert!(why.contains("s3://bucket/models/llama"), "{why}");
    local.unmount();
    support::fsck(&place.store());
}

#[test]
fn a_push_sends_the_bytes_of_files_in_place() {
    let stand = in_place();
    fs::create_dir(stand.place.path("remote")).unwrap();
    let remote = format!("file://{}", stand.place.path("remote").display());
    stand.run(&["push", &store(&stand), "acme/llama", &remote, "--create"]).ok();
    let text = stand.run(&["push", &store(&stand), "acme/llama", &remote]).ok();
    assert!(text.contains("nothing new"), "{text}");
    support::run(["fsck", &remote]).ok();
    let shown = stand.place.mount_store_by(
        &mut support::tierfs(),
        PathBuf::from(&remote),
        "remote-mount",
        &["--cache", "none"],
    );
    assert_eq!(same_trees(&shown.mountpoint.join("acme/llama"), &stand.object("llama")), 4);
    let checksum = support::get(&shown.mountpoint.join("acme/llama/model.safetensors"), "checksum");
    assert!(checksum.starts_with("crc32c:"), "{checksum}");
    shown.unmount();
}

#[test]
fn answers_that_are_cut_refused_or_of_other_ranges_change_no_byte_in_place() {
    let stand = in_place();
    stand.bucket.behave(Manners { faults: 10, wrong_ranges: 20, whole: 20, ..Manners::default() });
    for cache in ["none", "kept"] {
        let cache = if cache == "none" { PathBuf::from(cache) } else { stand.place.path(cache) };
        let options = ["--cache", cache.to_str().unwrap(), "--timeout", "20"];
        let mut command = stand.command();
        let local = stand.place.mount_store_by(&mut command, stand.place.store(), "local", &options);
        for name in ["model.safetensors", "config.json", "sub/vector.npy"] {
            let wanted = fs::read(stand.object("llama").join(name)).unwrap();
            let path = local.path("acme/llama").join(name);
            // An answer that is wrong again and again is an error, never other bytes.
            wait_until(name, || match fs::read(&path) {
                Ok(bytes) => {
                    assert_same(&bytes, &wanted, name);
                    true
                }
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                    false
                }
            });
        }
        local.unmount();
    }
}

#[test]
fn an_import_in_place_that_is_killed_is_repeated() {
    let stand = Stand::with_models();
    let random = &mut Random(21);
    for number in 0..40 {
        stand.write(&format!("many/{number}.safetensors"), container_of(random, &[("a", 4096), ("b", 70)]));
    }
    let url = "s3://bucket/models/many";
    support::run([Path::new("init"), &stand.place.store()]).ok();
    for round in 0..8 {
        let mut command = stand.command();
        let mut child =
            command.args(["import", &store(&stand), "acme/many", url, "--in-place"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 + random.below(40) as u64 * round));
        // It may have ended by itself.
        drop(child.kill());
        child.wait().unwrap();
        support::fsck(&stand.place.store());
    }
    stand.run(&["import", &store(&stand), "acme/many", url, "--in-place"]).ok();
    let local = mounted(&stand, &[]);
    assert_eq!(same_trees(&local.mountpoint.join("acme/many"), &stand.object("many")), 40);
    local.unmount();
}

#[test]
fn a_server_that_dies_during_a_read_is_an_error_until_it_is_back() {
    let stand = Stand::with_models();
    let content = Random(31).bytes(40 << 20);
    stand.write("large/data.bin", &content);
    let import = ["import", &store(&stand), "acme/large", "s3://bucket/models/large", "--in-place"];
    stand.run(&import).ok();
    let local = mounted(&stand, &["--timeout", "1"]);
    let file = fs::File::open(local.path("acme/large/data.bin")).unwrap();
    let mut part = vec![0; 4096];
    file.read_exact_at(&mut part, 0).unwrap();
    // All answers are refusals, or end early.
    stand.bucket.behave(Manners { faults: 50, ..Manners::default() });
    let begun = Instant::now();
    let failed = (0..40).find_map(|place| file.read_exact_at(&mut part, place << 20).err());
    assert_eq!(failed.unwrap().raw_os_error(), Some(libc::EIO));
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    drop(file);
    stand.bucket.behave(Manners::default());
    let path = local.path("acme/large/data.bin");
    wait_until("the server", || fs::read(&path).is_ok_and(|bytes| bytes == content));
    local.unmount();
}

/// A small file system at a directory, which is unmounted at the end.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.0.display());
        }
    }
}

#[test]
fn a_move_from_an_object_on_a_full_disk_leaves_each_block_exact_or_moved() {
    let stand = Stand::with_models();
    let (disk, flags) = (stand.place.store(), rustix::mount::MountFlags::empty());
    fs::create_dir(&disk).unwrap();
    rustix::mount::mount("tmpfs", &disk, "tmpfs", flags, c"size=2m").unwrap();
    let small = Small(disk);
    let content = container_of(&mut Random(41), &[("a", 3 << 20), ("b", 1 << 20)]);
    stand.write("full/model.safetensors", &content);
    support::run([Path::new("init"), &small.0]).ok();
    let import = ["import", &store(&stand), "acme/full", "s3://bucket/models/full", "--in-place"];
    stand.run(&import).ok();
    let local = mounted(&stand, &[]);
    let model = local.path("acme/full/model.safetensors");
    let path = model.to_str().unwrap();
    stand.run(&["tier", "q8:all", path]).failed(1, &["space"]);
    fs::read(&model).unwrap();
    rustix::mount::mount_remount(&small.0, flags, c"size=16m").unwrap();
    stand.run(&["tier", "exact", path]).ok();
    assert_same(&fs::read(&model).unwrap(), &content, "exact again");
    local.unmount();
    support::fsck(&small.0);
}

#[test]
fn copied_files_go_back_to_their_objects_by_an_import_in_place() {
    let stand = Stand::with_models();
    let store = store(&stand);
    stand.run(&["import", &store, "acme/llama", LLAMA, "--tier", "q8:all"]).ok();
    assert!(bytes_below(&stand.place.store()) > 1 << 20);
    stand.run(&["import", &store, "acme/llama", LLAMA, "--in-place"]).ok();
    let local = mounted(&stand, &[]);
    assert_eq!(same_trees(&local.mountpoint.join("acme/llama"), &stand.object("llama")), 4);
    local.unmount();
    stand.run(&["compact", &store]).ok();
    assert!(bytes_below(&stand.place.store()) < 64 << 10, "{}", bytes_below(&stand.place.store()));
    // A plain import copies them again.
    stand.run(&["import", &store, "acme/llama", LLAMA]).ok();
    support::fsck(&stand.place.store());
    assert!(bytes_below(&stand.place.store()) > 1 << 20);
}

#[test]
fn unread_files_whose_objects_are_gone_are_removed_unless_they_were_cut() {
    let stand = in_place();
    let (local, store) = (mounted(&stand, &[]), store(&stand));
    let path = |name: &str| local.path("acme/llama").join(name);
    fs::OpenOptions::new().write(true).open(path("config.json")).unwrap().set_len(1).unwrap();
    for name in ["config.json", "sub/vector.npy", "model.safetensors"] {
        fs::remove_file(stand.object("llama").join(name)).unwrap();
    }
    stand.run(&["import", &store, "acme/llama", LLAMA, "--in-place", "--delete"]);
    assert_eq!(fs::metadata(path("config.json")).unwrap().len(), 1);
    assert!(!path("sub/vector.npy").exists() && !path("model.safetensors").exists());
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn written_files_survive_when_their_objects_are_gone_and_are_copied_again_when_not() {
    let stand = in_place();
    let (local, store) = (mounted(&stand, &[]), store(&stand));
    let path = |name: &str| local.path("acme/llama").join(name);
    for name in ["config.json", "sub/vector.npy"] {
        let file = fs::OpenOptions::new().write(true).open(path(name)).unwrap();
        file.write_all_at(b"7", 0).unwrap();
        file.sync_all().unwrap();
    }
    let written = fs::read(path("config.json")).unwrap();
    assert_eq!(written, b"7}");
    let content = fs::read(stand.object("llama/sub/vector.npy")).unwrap();
    assert!(fs::read(path("sub/vector.npy")).unwrap() != content);
    fs::remove_file(stand.object("llama/config.json")).unwrap();
    stand.run(&["import", &store, "acme/llama", LLAMA]).ok();
    assert_same(&fs::read(path("sub/vector.npy")).unwrap(), &content, "copied again");
    // It may say that it leaves the file.
    stand.run(&["import", &store, "acme/llama", LLAMA, "--in-place", "--delete"]);
    assert_eq!(fs::read(path("config.json")).unwrap(), written);
    assert_same(&fs::read(path("sub/vector.npy")).unwrap(), &content, "in place again");
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn a_push_refuses_an_object_with_other_bytes_at_the_second_read() {
    let stand = Stand::with_models();
    // More than a program without a cache keeps in memory.
    stand.write("large/data.bin", vec![1; 144 << 20]);
    stand.run(&["import", &store(&stand), "acme/large", "s3://bucket/models/large", "--in-place"]).ok();
    stand.bucket.behave(Manners { changes: true, ..Manners::default() });
    let remote = format!("file://{}", stand.place.path("remote").display());
    fs::create_dir(stand.place.path("remote")).unwrap();
    let push = ["push", &store(&stand), "acme/large", &remote, "--create"];
    stand.run(&push).failed(1, &["data.bin", "other bytes than when the push began"]);
    stand.bucket.behave(Manners::default());
    stand.run(&push).ok();
    support::run(["fsck", &remote]).ok();
}
