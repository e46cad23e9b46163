//! Forms that preview a move: they show the bytes that the move then makes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::with_many_types;
use support::{Place, files_below, minilm, set, wait_until};

fn all(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files_below(folder).into_iter().map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

/// Sets the tier of a collection and waits for the job.
fn move_all(mounted: &support::Mounted, collection: &Path, tier: &str) {
    let jobs = || fs::read_to_string(mounted.path(".ctl/jobs")).unwrap();
    let before = jobs().lines().count();
    set(collection, "tier", tier).unwrap();
    wait_until("the job ends", || {
        jobs().lines().nth(before).is_some_and(|line| line.contains(" done in ") || line.contains(" failed"))
    });
    assert!(jobs().lines().nth(before).unwrap().contains(" done in "), "{}", jobs());
}

fn assert_equal(got: &BTreeMap<PathBuf, Vec<u8>>, wanted: &BTreeMap<PathBuf, Vec<u8>>, what: &str) {
    assert!(got.keys().eq(wanted.keys()), "{what}: other names");
    for (name, bytes) in got {
        assert!(bytes == &wanted[name], "{what}: {}", name.display());
    }
}

#[test]
fn the_preview_equals_the_result_of_the_move() {
    let (place, folder) = with_many_types();
    for (tier, encoder) in [("q8", "best"), ("q5", "absmax"), ("q3", "best")] {
        let collection = format!("t/{tier}");
        place.import(&collection, &[&folder], &[]);
        let mounted = place.mount(&["--list", "both"]);
        let collection = mounted.path(&collection);
        set(&collection, "encoder", encoder).unwrap();
        let before = all(&collection);
        let shown = all(&collection.join(".as").join(tier));
        assert!(shown.keys().eq(before.keys()));
        let differ = before.iter().filter(|(name, bytes)| shown[*name] != **bytes).count();
        // The matrices of f32 and bf16, and the container: in f16 every block has infinities.
        assert!(differ == 3, "{tier}: {differ} files would change");
        assert_equal(&all(&collection), &before, "nothing has moved");
        set(&collection, "lossy", "allow").unwrap();
        move_all(&mounted, &collection, tier);
        assert_equal(&all(&collection), &shown, tier);
        // Moved blocks are shown as they are.
        assert_equal(&all(&collection.join(".as").join(tier)), &shown, tier);
        mounted.unmount();
    }
}

#[test]
fn the_preview_of_a_model_in_5_bits_equals_the_reference_decoder() {
    let place = Place::new();
    let source = minilm().join("model.safetensors");
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c"), "encoder", "absmax").unwrap();
    for tier in ["q5", "q8"] {
        let folder = mounted.path("t/c/.as").join(tier);
        let options = ["--tier", tier, "--only-large"].map(AsRef::as_ref);
        support::python("quantized.py", [source.as_os_str(), folder.as_os_str()].into_iter().chain(options));
    }
}

#[test]
fn a_preview_does_not_show_more_precision_than_is_stored() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &["--tier", "q3"]);
    place.import("t/there", &[&folder], &["--in-place"]);
    let mounted = place.mount(&[]);
    let (collection, there) = (mounted.path("t/c"), mounted.path("t/there"));
    assert_equal(&all(&collection.join(".as/q8")), &all(&collection), "q3 shown in q8");
    let wanted = all(&there.join(".as/q8"));
    move_all(&mounted, &there, "q3");
    assert_equal(&all(&there.join(".as/q8")), &wanted, "there is an exact source");
}

#[test]
fn tensors_that_would_not_move_are_shown_unchanged() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let collection = mounted.path("t/c");
    let (matrix, shown) = (collection.join("matrix.f32"), collection.join(".as/q3/matrix.f32"));
    assert!(fs::read(&shown).unwrap() != fs::read(&matrix).unwrap());
    set(&matrix, "pin", "1").unwrap();
    assert!(fs::read(&shown).unwrap() == fs::read(&matrix).unwrap());
    set(&matrix, "pin", "0").unwrap();
    assert!(fs::read(&shown).unwrap() != fs::read(&matrix).unwrap());
    assert_eq!(set(&shown, "tier", "q3"), Err(Errno::NODATA));
}
