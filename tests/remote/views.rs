//! Views of a checkpoint, whose elements lie in other tensors, on a remote: pushed, mounted, in a variant, cloned,
//! evicted, written to, and pushed again.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, answer, assert_same, repository, tierfs};

/// The elements of `cube`, 5 x 6 x 7 floats of 4 bytes, with its dimensions in the order 2, 0, 1.
fn permuted(cube: &[u8]) -> Vec<u8> {
    let places =
        (0..7).flat_map(|last| (0..30).map(move |row| (row * 7 + last) * 4)).flat_map(|at| at..at + 4);
    places.map(|at| cube[at]).collect()
}

fn tensors(mounted: &Mounted) -> Vec<(String, Vec<u8>)> {
    let folder = mounted.path("acme/m/.tensors");
    let names = support::files_below(&folder);
    names.iter().map(|name| (name.display().to_string(), fs::read(folder.join(name)).unwrap())).collect()
}

#[track_caller]
fn check(mounted: &Mounted) -> Vec<u8> {
    let cube = fs::read(mounted.path("acme/m/.tensors/cube")).unwrap();
    let found = fs::read(mounted.path("acme/m/.tensors/permuted")).unwrap();
    assert_same(&found, &permuted(&cube), "permuted");
    let one = fs::read(mounted.path("acme/m/.tensors/one")).unwrap();
    assert_same(&one, &cube[((2 * 6 + 3) * 7 + 4) * 4..][..4], "one");
    cube
}

#[test]
fn views_read_the_same_from_a_remote_from_a_variant_and_in_a_clone_that_is_written_to() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    fs::copy(repository("tests/golden/models/strided.pt"), folder.join("pytorch_model.bin")).unwrap();
    place.import("acme/m", &[&folder], &[]);
    let local = place.mount(&["--read-only"]);
    let wanted = tensors(&local);
    assert!(wanted.len() > 8, "{wanted:?}");
    local.unmount();
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    let push = |store: &Path, options: &[&str]| {
        answer(tierfs().arg("push").arg(store).args(["acme/m", &url]).args(options)).ok()
    };
    push(&place.store(), &["--create", "--variants", "q8:all"]);
    let mount = |options: &[&str]| {
        let cache = place.path("cache");
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        place.mount_store_by(&mut tierfs(), PathBuf::from(&url), "remote", &options)
    };

    let remote = mount(&[]);
    assert!(tensors(&remote) == wanted);
    check(&remote);
    let whole = fs::read(remote.path("acme/m/.as/safetensors/model.safetensors")).unwrap();
    let whole = safetensors::SafeTensors::deserialize(&whole).unwrap();
    for (name, bytes) in &wanted {
        assert_same(whole.tensor(name).unwrap().data(), bytes, name);
    }
    let exact = check(&remote);
    remote.unmount();
    let variant = mount(&["--tier", "q8:all"]);
    assert_ne!(check(&variant), exact, "nothing was rounded");
    variant.unmount();

    let other = Place::new();
    support::run([Path::new("init"), &other.store()]).ok();
    answer(tierfs().args(["clone", &url, "acme/m"]).arg(other.store())).ok();
    let cloned = other.mount(&[]);
    let evict = || answer(tierfs().arg("evict").arg(cloned.path("acme/m"))).ok();
    evict();
    let open = fs::File::open(cloned.path("acme/m/.tensors/permuted")).unwrap();
    assert!(tensors(&cloned) == wanted);
    let file = fs::File::options().write(true).open(cloned.path("acme/m/.tensors/cube")).unwrap();
    file.write_all_at(&[7; 120], 8).unwrap();
    drop(file);
    let written = check(&cloned);
    assert_ne!(written, exact);
    let mut read = vec![0; written.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_same(&read, &permuted(&written), "a descriptor from before the write");
    drop(open);
    evict();
    assert_eq!(check(&cloned), written);
    let wanted = tensors(&cloned);
    cloned.unmount();
    push(&other.store(), &[]);
    support::fsck(&other.store());
    let remote = mount(&[]);
    assert!(tensors(&remote) == wanted);
    remote.unmount();
}
