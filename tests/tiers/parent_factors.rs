//! Fine-tunes that are stored as factors of their difference from their base. NumPy is the oracle.

use std::fs;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;

use support::{
    Mounted, Place, Random, answer, assert_same, fsck, get, python_line, refused_set, run, set, tierfs,
    wait_until,
};

/// Makes a base in bf16, and merges: the base plus a product of rank 16, rounded, whose size relative to that of the base is
/// given. Each merge is made of the one before it.
const MAKE: &str = "import json, numpy as np, struct, sys
folder, side, changes = sys.argv[1], int(sys.argv[2]), [float(c) for c in sys.argv[3:]]
r = np.random.default_rng(5)
def bf16(x):
    bits = x.astype('<f4').view('<u4')
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype('<u2')
def wide(x):
    return (x.astype('<u4') << 16).view('<f4').astype('f8')
def save(name, w):
    head = json.dumps({'w': {'dtype': 'BF16', 'shape': list(w.shape), 'data_offsets': [0, 2 * w.size]}}).encode()
    head += b' ' * (-len(head) % 8)
    open(f'{folder}/{name}.safetensors', 'wb').write(struct.pack('<Q', len(head)) + head + w.tobytes())
w = bf16(r.standard_normal((side, side)) * 0.02)
save('v0', w)
for number, change in enumerate(changes):
    merge = r.standard_normal((side, 16)) @ r.standard_normal((16, side))
    w = bf16(wide(w) + merge * change * np.linalg.norm(wide(w)) / np.linalg.norm(merge))
    save(f'v{number + 1}', w)";

/// The error of a file of elements relative to a merge, and that of the best approximation: the base plus the leading 16
/// singular values of the difference, rounded.
const COMPARE: &str = "import numpy as np, sys
side = int(sys.argv[4])
def read(path):
    return (np.frombuffer(open(path, 'rb').read()[-2 * side * side:], '<u2').astype('<u4') << 16).view('<f4').astype('f8').reshape(side, side)
base, merge, found = map(read, sys.argv[1:4])
u, s, v = np.linalg.svd(merge - base, full_matrices=False)
best = base + (u[:, :16] * s[:16]) @ v[:16]
bits = best.astype('<f4').view('<u4')
best = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16).astype('<u4').view('<f4').astype('f8')
print(*(np.linalg.norm(x - merge) / np.linalg.norm(merge) for x in (found, best)))";

/// Merges of a base with these changes, each imported as the child of the one before: `t/v0`, `t/v1`, ...
fn models(side: usize, changes: &[&str]) -> Place {
    let place = Place::new();
    fs::create_dir(place.path("m")).unwrap();
    let (folder, side) = (place.path("m").display().to_string(), side.to_string());
    python_line(MAKE, [&[folder.as_str(), side.as_str()], changes].concat());
    for number in 0..=changes.len() {
        let parent = format!("t/v{}", number.saturating_sub(1));
        let options: &[&str] = if number == 0 { &[] } else { &["--parent", &parent] };
        place.import(&format!("t/v{number}"), &[&source(&place, number)], options);
    }
    place
}

fn source(place: &Place, number: usize) -> std::path::PathBuf {
    place.path(format!("m/v{number}.safetensors"))
}

/// The path of a merge in a mount.
fn file(mounted: &Mounted, number: usize) -> std::path::PathBuf {
    mounted.path(format!("t/v{number}/v{number}.safetensors"))
}

/// Checks that a merge reads as it was imported.
#[track_caller]
fn assert_exact(place: &Place, mounted: &Mounted, number: usize) {
    let wanted = fs::read(source(place, number)).unwrap();
    assert_same(&fs::read(file(mounted, number)).unwrap(), &wanted, &format!("version {number}"));
}

/// Evicts a merge to factors. Returns its stored bytes.
#[track_caller]
fn factored(mounted: &Mounted, number: usize, lossy: &str) -> u64 {
    let w = mounted.path(format!("t/v{number}/w"));
    set(&w, "lossy", lossy).unwrap();
    set(&w, "reconstruct", "factor:rank=16").unwrap();
    set(&w, "evict", "1").unwrap_or_else(|error| panic!("{error}: {}", get(&w, "why")));
    assert_eq!(get(&w, "tier"), "absent");
    get(&w, "bytes_stored").parse().unwrap()
}

#[test]
fn a_merge_of_rank_16_takes_a_sixth_exactly_and_a_thirtieth_rounded() {
    for change in ["0.05", "0.2"] {
        let place = models(1024, &[change]);
        let mounted = place.mount(&[]);
        let exact = factored(&mounted, 1, "deny");
        assert!(exact <= 350_000, "{exact} bytes at a change of {change}");
        assert_exact(&place, &mounted, 1);
        mounted.unmount();
        fsck(&place.store());
        let mounted = place.mount(&[]);
        assert_exact(&place, &mounted, 1);
        // It is exact, so it can be stored exactly again.
        set(&mounted.path("t/v1/w"), "tier", "exact").unwrap();
        assert_exact(&place, &mounted, 1);
        let rounded = factored(&mounted, 1, "allow");
        assert!(rounded <= 140_000, "{rounded} bytes at a change of {change}");
        let found = place.write("found", fs::read(mounted.path("t/v1/w")).unwrap());
        let paths = [source(&place, 0), source(&place, 1), found];
        let paths: Vec<&std::ffi::OsStr> = paths.iter().map(|path| path.as_os_str()).collect();
        let line = python_line(COMPARE, [&paths[..], &["1024".as_ref()]].concat());
        let errors: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        println!("change {change}: {exact} bytes exact, {rounded} bytes at an error of {errors:?}");
        assert!(errors[0] < 0.00125 && errors[0] < errors[1] * 1.03, "{errors:?} at a change of {change}");
        assert!(refused_set(&mounted.path("t/v1/w"), "tier", "exact", Errno::INVAL).contains("more precise"));
        let shown = get(&mounted.path("t/v1/w"), "error");
        assert!(shown.starts_with("max=") && !shown.contains("max=0e0"), "{shown}");
    }
}

#[test]
fn a_rank_by_energy_is_that_of_the_difference() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/v1/w");
    set(&w, "lossy", "allow").unwrap();
    set(&w, "reconstruct", "factor:energy=0.999").unwrap();
    set(&w, "evict", "1").unwrap();
    let stored: u64 = get(&w, "bytes_stored").parse().unwrap();
    let blocks = fs::read_to_string(mounted.path("t/v1/.ctl/blocks/w")).unwrap().lines().count() as u64;
    assert_eq!(stored, 32 + 16 * (2 * (256 + 256) + 4) + blocks * 38);
}

#[test]
fn the_base_of_factors_stays_as_it_is_until_its_children_are_exact_again() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    factored(&mounted, 1, "deny");
    let base = mounted.path("t/v0/w");
    let written = || fs::OpenOptions::new().write(true).open(&base).map(|file| file.write_all_at(b"xx", 64));
    assert!(!matches!(written(), Ok(Ok(()))));
    set(&base, "lossy", "allow").unwrap();
    for (name, value) in [("tier", "q8"), ("evict", "discard")] {
        assert!(refused_set(&base, name, value, Errno::BUSY).contains("differences"), "{name}");
    }
    assert_exact(&place, &mounted, 1);
    set(&mounted.path("t/v1/w"), "tier", "exact").unwrap();
    wait_until("the base is free", || matches!(written(), Ok(Ok(()))));
    assert_exact(&place, &mounted, 1);
}

#[test]
fn a_base_that_is_stored_in_factors_or_a_lower_tier_serves_its_children() {
    let place = models(256, &["0.2", "0.1", "0.05", "0.05"]);
    let mounted = place.mount(&[]);
    for number in 1..4 {
        factored(&mounted, number, "deny");
    }
    let last = mounted.path("t/v4/w");
    set(&last, "reconstruct", "factor:rank=16").unwrap();
    assert!(refused_set(&last, "evict", "1", Errno::INVAL).contains("deep"));
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&["--read-only"]);
    for number in (0..=4).rev() {
        assert_exact(&place, &mounted, number);
    }
    mounted.unmount();
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    let base = mounted.path("t/v0/w");
    set(&base, "lossy", "allow").unwrap();
    set(&base, "tier", "q8").unwrap();
    factored(&mounted, 1, "deny");
    assert_exact(&place, &mounted, 1);
}

#[test]
fn a_child_of_a_discarded_base_needs_consent_to_become_factors_of_its_own() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    let (base, w) = (mounted.path("t/v0/w"), mounted.path("t/v1/w"));
    set(&base, "lossy", "allow").unwrap();
    set(&base, "evict", "discard").unwrap();
    set(&w, "reconstruct", "factor:rank=16").unwrap();
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("parent"));
    assert_exact(&place, &mounted, 1);
    set(&w, "lossy", "allow").unwrap();
    set(&w, "evict", "1").unwrap();
    // Factors of the tensor itself are f32.
    assert_eq!(get(&w, "bytes_stored"), (32 + 16 * (4 * (256 + 256) + 4)).to_string());
}

#[test]
fn a_difference_that_is_no_product_is_refused_or_the_tensor_itself_is_factored() {
    let place = Place::new();
    let line = "import numpy as np, sys
r = np.random.default_rng(1)
np.save(sys.argv[1] + '/a.npy', r.standard_normal((256, 256)).astype('<f4'))
b = r.standard_normal((256, 4)) @ r.standard_normal((4, 256)) * 0.1
np.save(sys.argv[1] + '/b.npy', b.astype('<f4'))";
    fs::create_dir(place.path("m")).unwrap();
    python_line(line, [place.path("m")]);
    place.import("t/base", &[&place.path("m/a.npy")], &[]);
    place.import("t/tune", &[&place.path("m/b.npy")], &["--parent", "t/base/a"]);
    let mounted = place.mount(&[]);
    let b = mounted.path("t/tune/b");
    set(&b, "reconstruct", "factor:rank=4").unwrap();
    let before = fs::read(&b).unwrap();
    assert!(refused_set(&b, "evict", "1", Errno::INVAL).contains("at most"));
    assert_same(&fs::read(&b).unwrap(), &before, "refused");
    set(&b, "lossy", "allow").unwrap();
    set(&b, "evict", "1").unwrap();
    assert_eq!(get(&b, "bytes_stored"), (32 + 4 * (4 * (256 + 256) + 4)).to_string());
    // The base is free.
    fs::remove_file(mounted.path("t/base/a.npy")).unwrap();
}

#[test]
fn blocks_that_are_written_leave_the_product_and_join_the_next_one() {
    let place = models(512, &["0.2"]);
    let mounted = place.mount(&[]);
    factored(&mounted, 1, "deny");
    let w = mounted.path("t/v1/w");
    let mut wanted = fs::read(&w).unwrap();
    let write = |at: usize, wanted: &mut Vec<u8>| {
        let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
        file.write_all_at(&[0x3c; 64], at as u64).unwrap();
        wanted[at..at + 64].fill(0x3c);
    };
    write(100_000, &mut wanted);
    assert_same(&fs::read(&w).unwrap(), &wanted, "after a write");
    // The blocks that are absent already get the new factors too.
    assert_eq!(get(&w, "tier"), "mixed");
    set(&w, "evict", "1").unwrap();
    assert_eq!(get(&w, "tier"), "absent");
    assert_same(&fs::read(&w).unwrap(), &wanted, "evicted again");
    write(300_000, &mut wanted);
    // Factors of the tensor itself would take the product away from the other blocks.
    set(&w, "lossy", "allow").unwrap();
    set(&w, "reconstruct", "factor:rank=400").unwrap();
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("at most"));
    set(&w, "reconstruct", "delta").unwrap();
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert_same(&fs::read(mounted.path("t/v1/w")).unwrap(), &wanted, "mounted again");
}

#[test]
fn flipped_bits_of_factors_are_errors_and_never_other_bytes() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    factored(&mounted, 1, "deny");
    mounted.unmount();
    let wanted = fs::read(source(&place, 1)).unwrap();
    let mut random = Random(29);
    for name in ["factor.dat", "factor.dat", "factor.dat", "delta.dat", "delta.dat"] {
        let path = place.store().join("t/v1").join(name);
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        let used: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
        flipped[used[random.below(used.len())]] ^= 1 << random.below(8);
        fs::write(&path, &flipped).unwrap();
        let answer = run(["fsck".as_ref(), place.store().as_os_str()]);
        assert!(answer.code == Some(3) && answer.out.contains(name), "{}", answer.out);
        let mounted = place.mount(&["--read-only"]);
        let found = fs::File::open(file(&mounted, 1)).unwrap();
        let mut failed = 0;
        for (at, wanted) in (0..).step_by(4096).zip(wanted.chunks(4096)) {
            let mut bytes = vec![0; wanted.len()];
            match found.read_exact_at(&mut bytes, at) {
                Ok(()) => assert_same(&bytes, wanted, "a part"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                    failed += 1;
                }
            }
        }
        assert!(failed > 0, "{name}");
        drop(found);
        mounted.unmount();
        fs::write(&path, &whole).unwrap();
    }
    fsck(&place.store());
}

#[test]
fn factors_of_differences_survive_a_kill_a_compaction_and_an_unmounted_repair() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    factored(&mounted, 1, "deny");
    mounted.kill();
    drop(mounted);
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert_exact(&place, &mounted, 1);
    run(["compact".as_ref(), mounted.path("").as_os_str()]).ok();
    assert_exact(&place, &mounted, 1);
    assert_eq!(get(&mounted.path("t/v1/w"), "tier"), "absent");
    mounted.unmount();
    run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_exact(&place, &mounted, 1);
}

#[test]
fn a_clone_of_a_base_and_its_child_reads_as_they_do() {
    for lossy in ["deny", "allow"] {
        let place = models(256, &["0.2"]);
        let mounted = place.mount(&[]);
        factored(&mounted, 1, lossy);
        let wanted = fs::read(file(&mounted, 1)).unwrap();
        mounted.unmount();
        fs::create_dir(place.path("remote")).unwrap();
        let url = format!("file://{}", place.path("remote").display());
        let pushed = |collection: &str, options: &[&str]| {
            answer(tierfs().arg("push").arg(place.store()).args([collection, url.as_str()]).args(options))
        };
        pushed("t/v1", &["--create"]).failed(1, &["push that first"]);
        pushed("t/v0", &["--create"]).ok();
        pushed("t/v1", &[]).ok();
        let other = Place::new();
        run(["init".as_ref(), other.store().as_os_str()]).ok();
        for collection in ["t/v0", "t/v1"] {
            answer(tierfs().args(["clone", &url, collection]).arg(other.store())).ok();
        }
        let cloned = other.mount(&[]);
        assert_same(&fs::read(file(&cloned, 1)).unwrap(), &wanted, lossy);
        let w = cloned.path("t/v1/w");
        assert_eq!(get(&w, "tier"), "absent");
        set(&w, "tier", if lossy == "deny" { "exact" } else { "q8" }).unwrap();
        cloned.unmount();
        fsck(&other.store());
    }
}

#[test]
fn a_base_with_other_epochs_is_an_error_until_the_digest_of_the_child_proves_it() {
    let place = models(256, &["0.2"]);
    let mounted = place.mount(&[]);
    factored(&mounted, 1, "deny");
    mounted.unmount();
    // The base is imported again elsewhere, and a block is written as it was.
    let (base, child) = (place.store().join("t/v0"), place.store().join("t/v1"));
    fs::rename(&base, place.path("base")).unwrap();
    fs::rename(&child, place.path("child")).unwrap();
    place.import("t/v0", &[&source(&place, 0)], &[]);
    let mounted = place.mount(&[]);
    let w = fs::OpenOptions::new().read(true).write(true).open(mounted.path("t/v0/w")).unwrap();
    let mut bytes = [0; 64];
    w.read_exact_at(&mut bytes, 640).unwrap();
    w.write_all_at(&[0; 64], 640).unwrap();
    w.sync_all().unwrap();
    w.write_all_at(&bytes, 640).unwrap();
    drop(w);
    mounted.unmount();
    fs::rename(place.path("child"), &child).unwrap();
    let said = run(["fsck".as_ref(), place.store().as_os_str()]);
    assert!(said.code == Some(3) && said.out.contains("has changed"), "{said:?}");
    let mounted = place.mount(&["--read-only"]);
    let found = fs::read(mounted.path("t/v1/w"));
    assert_eq!(found.err().and_then(|error| error.raw_os_error()), Some(Errno::IO.raw_os_error()));
    mounted.unmount();
    let said = run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]);
    assert!(said.out.contains("the recorded digest proves"), "{said:?}");
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert_exact(&place, &mounted, 1);
}

#[test]
fn factors_on_another_parent_with_equal_names_and_epochs_are_an_error() {
    for lossy in ["deny", "allow"] {
        let place = models(256, &["0.2"]);
        let mounted = place.mount(&[]);
        factored(&mounted, 1, lossy);
        mounted.unmount();
        fs::remove_dir_all(place.store().join("t/v0")).unwrap();
        let other = place.write("other/v0.safetensors", fs::read(source(&place, 1)).unwrap());
        place.import("t/v0", &[&other], &[]);
        let found = run(["fsck".as_ref(), place.store().as_os_str()]);
        assert!(found.code == Some(3) && found.out.contains("t/v0: a block"), "{}", found.out);
        let mounted = place.mount(&[]);
        let error = fs::read(file(&mounted, 1)).expect_err("a sum with another parent");
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()), "lossy={lossy}");
        mounted.unmount();
    }
}
