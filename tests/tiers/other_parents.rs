//! Children of differences whose parent was lost, and whose name has other bytes of the same shape since.

use std::fs;
use std::path::Path;

use rustix::io::Errno;

use support::{Mounted, Place, Random, answer, container_of, events, get, run, set, tierfs, wait_until};

const TENSORS: [(&str, usize); 2] = [("w", 300_000), ("b/v", 70_001)];
const NAME: &str = "m.safetensors";

/// A change of an element.
type Change = fn(f32) -> f32;

/// The bytes of the elements of a container.
fn elements(container: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    let bytes = 4 * TENSORS.iter().map(|(_, count)| count).sum::<usize>();
    let begin = container.len() - bytes;
    container[begin..].chunks_exact_mut(4)
}

/// A container of numbers with 16 significant bits, whose differences are short.
fn container(seed: u64) -> Vec<u8> {
    let mut made = container_of(&mut Random(seed), &TENSORS);
    elements(&mut made).for_each(|element| element[..2].fill(0));
    made
}

/// A copy with one of `step` elements changed by `change`.
fn changed(container: &[u8], step: usize, change: Change) -> Vec<u8> {
    let mut child = container.to_vec();
    for element in elements(&mut child).step_by(step) {
        let before = f32::from_le_bytes((&*element).try_into().unwrap());
        element.copy_from_slice(&change(before).to_le_bytes());
    }
    child
}

/// Loses a collection, and imports other bytes under its name.
fn replace(place: &Place, collection: &str, seed: u64) {
    fs::remove_dir_all(place.store().join(collection)).unwrap();
    let other = place.write(&format!("other/{collection}/{NAME}"), container(seed));
    place.import(collection, &[&other], &[]);
}

/// Checks that a file of differences from `parent` reads nowhere, and that everything finds it.
#[track_caller]
fn assert_broken(place: &Place, child: &str, parent: &str) {
    let store = place.store();
    let found = run(["fsck".as_ref(), store.as_os_str()]);
    let text = format!("{parent}: a block is kept as a difference");
    assert!(found.code == Some(3) && found.out.contains(child) && found.out.contains(&text), "{}", found.out);
    assert!(found.out.contains("is not the one that the difference was made from"), "{}", found.out);
    let mounted = place.mount(&[]);
    let file = mounted.path(child).join(NAME);
    assert_unread(&file);
    wait_until("an event", || told(&mounted, child, parent));
    assert_unread(&mounted.path(child).join(".tensors/w"));
    let why = get(&file, "why");
    assert!(why.contains(parent), "{why}");
    answer(tierfs().arg("verify").arg(&file)).failed(3, &[]);
    answer(tierfs().arg("scrub").arg(&mounted.mountpoint)).failed(3, &[]);
    mounted.unmount();
}

#[track_caller]
fn assert_unread(file: &Path) {
    let found = fs::read(file).map(|bytes| bytes.len()).map_err(|error| error.raw_os_error());
    assert_eq!(found, Err(Some(Errno::IO.raw_os_error())));
}

/// Whether a reader of events was told of the child and of the parent.
fn told(mounted: &Mounted, child: &str, parent: &str) -> bool {
    let mut events = events(mounted, "corruption").into_iter();
    events
        .any(|event| event["path"].as_str().unwrap().starts_with(child) && event.to_string().contains(parent))
}

#[test]
fn a_child_of_another_parent_with_equal_names_and_epochs_is_an_error_in_each_kind_of_difference() {
    let kinds: [(&str, &str, usize, Change); 3] = [
        ("patch", "deny", 100, |before| before + 1.0),
        ("exact", "deny", 1, |before| f32::from_bits(before.to_bits() ^ 1 << 16)),
        ("scaled", "allow", 100, |before| before + 0.001),
    ];
    for (kind, lossy, step, change) in kinds {
        let place = Place::new();
        let base = container(61);
        place.import("t/base", &[&place.write(&format!("base/{NAME}"), &base)], &[]);
        let child = place.write(&format!("tune/{NAME}"), changed(&base, step, change));
        place.import("t/tune", &[&child], &["--parent", "t/base"]);
        let mounted = place.mount(&[]);
        let file = mounted.path("t/tune").join(NAME);
        set(&file, "lossy", lossy).unwrap();
        set(&file, "reconstruct", "delta").unwrap();
        set(&file, "evict", "1").unwrap();
        let before = fs::read(&file).unwrap();
        assert_eq!(kind == "scaled", before != fs::read(&child).unwrap(), "{kind}");
        mounted.unmount();
        // The parent that it was made from is found again wherever it was moved.
        let kept = place.path("kept");
        fs::rename(place.store().join("t/base"), &kept).unwrap();
        fs::create_dir(place.store().join("t/base")).unwrap();
        replace(&place, "t/base", 62);
        assert_broken(&place, "t/tune", "t/base");
        fs::remove_dir_all(place.store().join("t/base")).unwrap();
        fs::rename(&kept, place.store().join("t/base")).unwrap();
        let mounted = place.mount(&[]);
        assert!(fs::read(mounted.path("t/tune").join(NAME)).unwrap() == before, "{kind}");
        mounted.unmount();
    }
}

#[test]
fn a_chain_of_three_whose_root_is_another_one_is_an_error_at_each_level() {
    let place = Place::new();
    let mut bytes = container(63);
    place.import("t/v0", &[&place.write(&format!("v0/{NAME}"), &bytes)], &[]);
    for (number, parent) in [(1, "t/v0"), (2, "t/v1"), (3, "t/v2")] {
        bytes = changed(&bytes, 100, |before| before + 1.0);
        let source = place.write(&format!("v{number}/{NAME}"), &bytes);
        let options = ["--parent", parent, "--reconstruct", "delta"];
        place.import(&format!("t/v{number}"), &[&source], &options);
    }
    replace(&place, "t/v0", 64);
    for child in ["t/v1", "t/v2", "t/v3"] {
        assert_broken(&place, child, "t/v0");
    }
    // A killed daemon, and logs that are written anew, change nothing of it.
    let mounted = place.mount(&[]);
    answer(tierfs().arg("compact").arg(&mounted.mountpoint)).ok();
    mounted.kill();
    drop(mounted);
    assert_broken(&place, "t/v3", "t/v0");
}
