//! `tierfs tier --again`: tensors that are encoded anew from their exact sources.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use support::{Place, Random, get, npy_file, refused_set, run, set};

/// The elements after an import into a tier.
fn imported_into(source: &[u8], tier: &str, encoder: &str) -> Vec<u8> {
    let place = Place::new();
    let file = place.write("w.npy", source);
    place.import("t/c", &[&file], &["--tier", tier, "--encoder", encoder, "--block-bytes", "4096"]);
    fs::read(place.mount(&["--read-only"]).path("t/c/w")).unwrap()
}

fn tier_again(path: &Path, tier: &str) -> String {
    run(["tier".as_ref(), "--again".as_ref(), tier.as_ref(), path.as_os_str()]).ok()
}

#[test]
fn a_tensor_is_encoded_anew_from_its_source_with_the_present_encoder() {
    let source = npy_file(&Random(5).floats(300_000));
    for tier in ["q8", "q3", "q3x"] {
        let place = Place::new();
        let file = place.write("w.npy", &source);
        place.import("t/c", &[&file], &["--in-place", "--block-bytes", "4096"]);
        let mounted = place.mount(&[]);
        let tensor = mounted.path("t/c/w");
        set(&tensor, "encoder", "least").unwrap();
        set(&tensor, "tier", tier).unwrap();
        let before = fs::read(&tensor).unwrap();
        assert!(before == imported_into(&source, &format!("{tier}:all"), "least"));
        set(&tensor, "encoder", "best").unwrap();
        set(&tensor, "tier", tier).unwrap();
        assert!(fs::read(&tensor).unwrap() == before, "{tier}: a move to the same tier encodes nothing");
        let wanted = imported_into(&source, &format!("{tier}:all"), "best");
        assert!(wanted != before);
        let said = tier_again(&tensor, tier);
        assert!(said.contains(&format!("now {tier}")), "{said}");
        assert!(fs::read(&tensor).unwrap() == wanted, "{tier}");
        // Its source is used again, not what was read.
        tier_again(&mounted.path("t/c"), &format!("{tier}:all"));
        assert!(fs::read(&tensor).unwrap() == wanted, "{tier}, once more");
        assert_eq!(get(&tensor, "tier"), tier);
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
        assert!(
            fs::read(place.mount(&["--read-only"]).path("t/c/w")).unwrap() == wanted,
            "{tier}, mounted again"
        );
    }
}

#[test]
fn blocks_without_an_exact_source_stay() {
    let source = npy_file(&Random(6).floats(100_000));
    let place = Place::new();
    let file = place.write("w.npy", &source);
    place.import("t/copied", &[&file], &["--tier", "q8:all", "--encoder", "least", "--block-bytes", "4096"]);
    place.import("t/linked", &[&file], &["--in-place", "--block-bytes", "4096"]);
    let mounted = place.mount(&[]);
    let copied = mounted.path("t/copied/w");
    let before = fs::read(&copied).unwrap();
    let said = tier_again(&copied, "q8");
    assert!(said.contains("without an exact source"), "{said}");
    assert!(fs::read(&copied).unwrap() == before);

    let linked = mounted.path("t/linked/w");
    set(&mounted.path("t/linked"), "encoder", "least").unwrap();
    set(&linked, "lossy", "allow").unwrap();
    set(&linked, "tier", "q8").unwrap();
    let new = Random(7).floats(1024);
    let written = fs::File::options().write(true).open(&linked).unwrap();
    written.write_all_at(&new, 40_960).unwrap();
    drop(written);
    set(&linked, "tier", "q8").unwrap();
    let before = fs::read(&linked).unwrap();
    set(&mounted.path("t/linked"), "encoder", "best").unwrap();
    tier_again(&linked, "q8");
    let after = fs::read(&linked).unwrap();
    let wanted = imported_into(&source, "q8:all", "best");
    assert!(after[..40_960] == wanted[..40_960] && after[45_056..] == wanted[45_056..]);
    // The written block has no other source than its codes.
    assert!(
        after[40_960..45_056] == before[40_960..45_056] && before[40_960..45_056] != wanted[40_960..45_056]
    );

    // A changed source is no source any more.
    fs::write(&file, npy_file(&Random(8).floats(100_000))).unwrap();
    tier_again(&linked, "q8");
    assert!(fs::read(&linked).unwrap() == after);
}

#[test]
fn only_tiers_with_codes_are_made_again() {
    let place = Place::new();
    let file = place.write("w.npy", npy_file(&Random(9).floats(1000)));
    place.import("t/c", &[&file], &[]);
    let mounted = place.mount(&[]);
    for wrong in ["exact:again", "packed:again", "q8:again:all"] {
        refused_set(&mounted.path("t/c/w"), "tier", wrong, Errno::INVAL);
    }
}
