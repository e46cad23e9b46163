//! Fine-tunes that are stored as differences from their base.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use support::{
    Mounted, Place, Random, WritableMapping, answer, assert_same, container_of, fsck, get, npy_file,
    refused_set, run, set, tierfs, try_get, usage, utimens, wait_until,
};

const TENSORS: [(&str, usize); 2] = [("w", 300_000), ("b/v", 70_001)];

/// A container, and a copy with one element in fifty changed a little.
fn tuned(seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random(seed);
    let base = container_of(&mut random, &TENSORS);
    let child = changed(&mut random, &base);
    (base, child)
}

fn changed(random: &mut Random, base: &[u8]) -> Vec<u8> {
    let mut child = base.to_vec();
    let elements = TENSORS.iter().map(|(_, count)| count).sum::<usize>();
    let begin = child.len() - elements * 4;
    for element in child[begin..].chunks_exact_mut(4).step_by(50) {
        let before = f32::from_le_bytes(element.try_into().unwrap());
        let change = (random.below(2001) as f32 - 1000.0) / 100_000.0;
        element.copy_from_slice(&(before + change).to_le_bytes());
    }
    child
}

/// The content of a tensor with scaled differences, block by block, by the formula of the format.
fn scaled(base: &[u8], child: &[u8], block_bytes: usize) -> Vec<u8> {
    let floats = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
    };
    let mut out = Vec::new();
    for (base, child) in base.chunks(block_bytes).zip(child.chunks(block_bytes)) {
        let (mut base, child) = (floats(base), floats(child));
        let largest = base.iter().zip(&child).map(|(one, other)| (other - one).abs()).fold(0.0, f32::max);
        let scale = largest / 32767.0;
        for (element, wanted) in base.iter_mut().zip(&child) {
            if wanted != element {
                let value = ((wanted - *element) / scale).round_ties_even() as i16;
                let product = f32::from(value) * scale;
                *element += product;
            }
        }
        out.extend(base.iter().flat_map(|element| element.to_le_bytes()));
    }
    out
}

struct Models {
    place: Place,
    base: Vec<u8>,
    child: Vec<u8>,
}

fn models(seed: u64) -> Models {
    let place = Place::new();
    let (base, child) = tuned(seed);
    place.import("t/base", &[&place.write("base/m.safetensors", &base)], &[]);
    place.import("t/tune", &[&place.write("tune/m.safetensors", &child)], &["--parent", "t/base"]);
    Models { place, base, child }
}

fn read(mounted: &Mounted, path: &str) -> Vec<u8> {
    fs::read(mounted.path(path)).unwrap()
}

fn errno_of(result: std::io::Result<impl Sized>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn scaled_deltas_take_little_space_and_read_as_parent_plus_delta() {
    let Models { place, base, .. } = models(21);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/tune/w");
    assert_eq!(get(&w, "parent"), get(&mounted.path("t/base/w"), "id"));
    assert_eq!(get(&w, "reconstruct"), "none");
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("reconstruct"));
    set(&mounted.path("t/tune"), "lossy", "allow").unwrap();
    let before = read(&mounted, "t/tune/w");
    let wanted = scaled(&read(&mounted, "t/base/w"), &before, 16_384);
    assert_ne!(wanted, before, "nothing was rounded");
    set(&w, "reconstruct", "delta").unwrap();
    assert_eq!(get(&w, "reconstruct"), "delta");
    set(&w, "evict", "1").unwrap();
    assert_eq!(get(&w, "tier"), "absent");
    let stored: usize = get(&w, "bytes_stored").parse().unwrap();
    // In q3 a group of 64 elements takes 28 bytes.
    assert!(stored * 4 < 300_000 / 64 * 28, "{stored} bytes");
    assert_same(&read(&mounted, "t/tune/w"), &wanted, "after eviction");
    assert!(get(&w, "error").starts_with("max="));
    let mut part = vec![0; 1000];
    fs::File::open(&w).unwrap().read_exact_at(&mut part, 40_001).unwrap();
    assert_eq!(part, wanted[40_001..41_001]);
    // The container reads with it.
    let container = read(&mounted, "t/tune/m.safetensors");
    assert!(container.windows(4096).any(|window| window == &wanted[..4096]));
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert_same(&read(&mounted, "t/tune/w"), &wanted, "mounted again");
    // At best as precise as 8 bits.
    let w = mounted.path("t/tune/w");
    assert!(refused_set(&w, "tier", "exact", Errno::INVAL).contains("more precise"));
    set(&w, "tier", "q8").unwrap();
    assert_eq!(get(&w, "tier"), "q8");
    assert_eq!(read(&mounted, "t/base/m.safetensors"), base);
}

#[test]
fn exact_deltas_read_bit_for_bit_and_return_to_exact() {
    let Models { place, child, .. } = models(22);
    let mounted = place.mount(&[]);
    let container = mounted.path("t/tune/m.safetensors");
    set(&container, "reconstruct", "delta").unwrap();
    set(&container, "evict", "1").unwrap();
    assert_eq!(get(&container, "tier"), "absent");
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    mounted.unmount();
    fsck(&place.store());
    let mounted = place.mount(&[]);
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    let w = mounted.path("t/tune/w");
    set(&w, "tier", "exact").unwrap();
    assert_eq!(get(&w, "tier"), "exact");
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    // A write rebuilds the block first.
    let v = mounted.path("t/tune/b/v");
    assert_eq!(get(&v, "tier"), "absent");
    let mut wanted = read(&mounted, "t/tune/b/v");
    let file = fs::OpenOptions::new().write(true).open(&v).unwrap();
    file.write_all_at(b"written!", 30_001).unwrap();
    drop(file);
    wanted[30_001..30_009].copy_from_slice(b"written!");
    assert_eq!(read(&mounted, "t/tune/b/v"), wanted);
    mounted.kill();
    drop(mounted);
    let mounted = place.mount(&[]);
    assert_eq!(read(&mounted, "t/tune/b/v"), wanted);
    mounted.unmount();
    fsck(&place.store());
}

/// All changes of bytes that others need.
fn busy(mounted: &Mounted, base: &[u8]) {
    let busy = Some(Errno::BUSY.raw_os_error());
    let (w, container) = (mounted.path("t/base/w"), mounted.path("t/base/m.safetensors"));
    for path in [&w, &container] {
        let open = |options: &mut fs::OpenOptions| errno_of(options.write(true).open(path));
        assert_eq!(open(&mut fs::OpenOptions::new()), busy);
        assert_eq!(open(fs::OpenOptions::new().read(true)), busy);
        assert_eq!(open(fs::OpenOptions::new().truncate(true)), busy);
        assert!(fs::File::open(path).is_ok());
    }
    assert_eq!(errno_of(fs::remove_file(&container)), busy);
    assert_eq!(errno_of(fs::rename(&container, mounted.path("t/base/n.safetensors"))), busy);
    let other = mounted.path("t/base/other");
    fs::File::create(&other).unwrap().write_all(b"other").unwrap();
    assert_eq!(errno_of(fs::rename(&other, &container)), busy);
    fs::remove_file(&other).unwrap();
    set(&mounted.path("t/base"), "lossy", "allow").unwrap();
    for (name, value) in [("tier", "q8"), ("evict", "discard")] {
        assert!(refused_set(&w, name, value, Errno::BUSY).contains("differences"), "{name}");
    }
    assert_eq!(read(mounted, "t/base/m.safetensors"), base);
}

#[test]
fn a_parent_that_was_open_for_writing_refuses_every_write_and_shows_none() {
    let Models { place, base, child } = models(29);
    let mounted = place.mount(&[]);
    let busy = Some(Errno::BUSY.raw_os_error());
    let container = mounted.path("t/base/m.safetensors");
    let file = fs::OpenOptions::new().read(true).write(true).open(&container).unwrap();
    let mut mapping = WritableMapping::whole(&file, libc::MAP_SHARED);
    let tensor = mounted.path("t/tune/w");
    set(&tensor, "reconstruct", "delta").unwrap();
    set(&tensor, "evict", "1").unwrap();
    // Of the two tensors only `w` has a child.
    let (begin, w_bytes) = (base.len() - 370_001 * 4, 300_000 * 4);
    let (inside, border) = (begin + 4096, begin + w_bytes - 4);
    for (at, what) in [(inside, "w"), (border, "two tensors"), (16, "the header"), (base.len(), "the end")] {
        assert_eq!(errno_of(file.write_all_at(b"xxxxxxxx", at as u64)), busy, "{what}");
    }
    for at in [inside, border] {
        mapping.write(at, b"refused!");
        assert_eq!(errno_of(mapping.sync()), busy);
        // The kernel drops the pages after it has the answer.
        wait_until("the refused bytes to go", || {
            read(&mounted, "t/base/m.safetensors") == base && mapping.bytes()[..] == base[..]
        });
    }
    assert_same(&read(&mounted, "t/base/w"), &base[begin..begin + w_bytes], "the tensor");
    let error = fs::OpenOptions::new().write(true).open(&container).unwrap_err();
    assert_eq!(error.raw_os_error(), busy);
    assert!(
        get(&container, "why").contains("t/tune/w is stored as differences to it"),
        "{}",
        get(&container, "why")
    );
    assert!(get(&container, "refusal").contains("needed"));
    // Modes and times are not bytes, and a tensor without children takes writes.
    fs::set_permissions(&container, fs::Permissions::from_mode(0o600)).unwrap();
    utimens(&container, (1, 0), (2, 0)).unwrap();
    let v = fs::OpenOptions::new().write(true).open(mounted.path("t/base/b/v")).unwrap();
    v.write_all_at(b"written!", 0).unwrap();
    drop((v, mapping, file));
    assert_same(&read(&mounted, "t/tune/m.safetensors"), &child, "the child");
    assert_eq!(&read(&mounted, "t/base/m.safetensors")[begin + w_bytes..][..8], b"written!");
}

#[test]
fn a_parent_is_busy_until_its_children_are_rebuilt_or_removed() {
    let Models { place, base, child } = models(23);
    let mounted = place.mount(&[]);
    for name in ["w", "b/v"] {
        let tensor = mounted.path(Path::new("t/tune").join(name));
        set(&tensor, "reconstruct", "delta").unwrap();
        set(&tensor, "evict", "1").unwrap();
    }
    busy(&mounted, &base);
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    mounted.kill();
    drop(mounted);
    // This mount has not opened the child's collection.
    let mounted = place.mount(&[]);
    busy(&mounted, &base);
    let (w, v) = (mounted.path("t/base/w"), mounted.path("t/base/b/v"));
    set(&mounted.path("t/tune/w"), "tier", "exact").unwrap();
    set(&w, "tier", "q8").unwrap();
    assert_eq!(get(&w, "tier"), "q8");
    assert!(refused_set(&v, "tier", "q8", Errno::BUSY).contains("differences"));
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    fs::remove_file(mounted.path("t/tune/m.safetensors")).unwrap();
    wait_until("the parent is free", || fs::remove_file(mounted.path("t/base/m.safetensors")).is_ok());
    assert!(!v.exists());
    mounted.unmount();
    fsck(&place.store());
}

/// A parent with a child that is stored as differences from its tensors, and another file beside the parent.
fn one_child(seed: u64) -> Models {
    let models = models(seed);
    let place = &models.place;
    place.import("t/base", &[&place.write("other.bin", Random(seed).bytes(60_000))], &[]);
    let mounted = place.mount(&[]);
    for name in ["w", "b/v"] {
        let tensor = mounted.path(Path::new("t/tune").join(name));
        set(&tensor, "reconstruct", "delta").unwrap();
        set(&tensor, "evict", "1").unwrap();
    }
    mounted.unmount();
    models
}

#[test]
fn a_child_in_a_collection_that_does_not_open_keeps_only_its_parent_busy() {
    let Models { place, base, child } = one_child(35);
    let log = place.store().join("t/tune/meta.log");
    let whole = fs::read(&log).unwrap();
    let away = place.path("away.log");
    let mut no_header = whole.clone();
    no_header[..128].fill(0);
    // In the middle: the rest of the log is read and not trusted.
    let mut damaged = whole.clone();
    let middle = whole.len() / 256 * 128;
    damaged[middle..middle + 256].fill(0x5a);
    type Harm<'a> = &'a dyn Fn();
    let harms: [(&str, Harm); 4] = [
        ("no header", &|| fs::write(&log, &no_header).unwrap()),
        ("empty", &|| fs::write(&log, b"").unwrap()),
        ("gone", &|| fs::rename(&log, &away).unwrap()),
        ("damaged", &|| fs::write(&log, &damaged).unwrap()),
    ];
    for (what, harm) in harms {
        harm();
        let mounted = place.mount(&[]);
        eprintln!("the log of the child: {what}");
        busy(&mounted, &base);
        // A tensor without children is free.
        fs::write(mounted.path("t/base/other.bin"), b"written over").unwrap();
        fs::write(mounted.path("t/base/new"), b"new").unwrap();
        fs::remove_file(mounted.path("t/base/new")).unwrap();
        mounted.unmount();
        let mut other = base.clone();
        other.iter_mut().rev().take(4).for_each(|byte| *byte = 0);
        let source = place.write("other/m.safetensors", &other);
        place.try_import("t/base", &[&source], &[]).failed(1, &["t/tune"]);
        fs::write(&log, &whole).unwrap();
    }
    let mounted = place.mount(&[]);
    busy(&mounted, &base);
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    set(&mounted.path("t/tune/w"), "tier", "exact").unwrap();
    set(&mounted.path("t/base/w"), "tier", "q8").unwrap();
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_child_in_a_collection_that_is_away_keeps_its_parent_busy_until_a_repair_forgets_it() {
    let Models { place, base, child } = one_child(37);
    let (here, away) = (place.store().join("t/tune"), place.path("away"));
    fs::rename(&here, &away).unwrap();
    let mounted = place.mount(&[]);
    busy(&mounted, &base);
    let busy_code = Some(Errno::BUSY.raw_os_error());
    assert_eq!(errno_of(fs::rename(mounted.path("t/base"), mounted.path("t/moved"))), busy_code);
    fs::write(mounted.path("t/base/other.bin"), b"written over").unwrap();
    mounted.unmount();
    let text = run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    assert!(text.contains("t/base: tensors of t/tune, which is missing"), "{text}");
    // It comes back.
    fs::rename(&away, &here).unwrap();
    let mounted = place.mount(&[]);
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    busy(&mounted, &base);
    mounted.unmount();
    fs::rename(&here, &away).unwrap();
    run(["fsck".as_ref(), "--repair".as_ref(), place.store().as_os_str()]).ok();
    let text = run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    assert!(!text.contains("missing"), "{text}");
    let mounted = place.mount(&[]);
    set(&mounted.path("t/base/w"), "tier", "q8").unwrap();
    fs::remove_file(mounted.path("t/base/m.safetensors")).unwrap();
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_collection_of_children_that_was_renamed_keeps_no_parent() {
    let Models { place, child, .. } = one_child(38);
    let mounted = place.mount(&[]);
    for name in ["w", "b/v"] {
        set(&mounted.path("t/tune").join(name), "tier", "exact").unwrap();
    }
    wait_until("the collection needs no parent", || {
        fs::rename(mounted.path("t/tune"), mounted.path("t/tuned")).is_ok()
    });
    mounted.unmount();
    let mounted = place.mount(&[]);
    assert_eq!(read(&mounted, "t/tuned/m.safetensors"), child);
    fs::rename(mounted.path("t/base"), mounted.path("t/bases")).unwrap();
    fs::remove_file(mounted.path("t/bases/m.safetensors")).unwrap();
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn a_collection_of_children_that_was_removed_keeps_no_parent() {
    let Models { place, .. } = one_child(36);
    let mounted = place.mount(&[]);
    fs::remove_file(mounted.path("t/tune/m.safetensors")).unwrap();
    wait_until("the collection is empty", || fs::remove_dir(mounted.path("t/tune")).is_ok());
    mounted.unmount();
    let mounted = place.mount(&[]);
    fs::remove_file(mounted.path("t/base/m.safetensors")).unwrap();
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn an_import_does_not_replace_the_parent_of_others() {
    let Models { place, base, child } = models(24);
    let source = place.path("tune/m.safetensors");
    place.import("t/tune", &[&source], &["--parent", "t/base", "--reconstruct", "delta"]);
    let model = place.write("base/m.safetensors", changed(&mut Random(25), &base));
    place.try_import("t/base", &[&model], &[]).failed(1, &["differences"]);
    let mounted = place.mount(&["--read-only"]);
    assert_eq!(get(&mounted.path("t/tune/m.safetensors"), "tier"), "absent");
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    assert_eq!(read(&mounted, "t/base/m.safetensors"), base);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn the_summary_of_an_import_counts_bytes_after_tensors_became_differences() {
    let Models { place, child, .. } = models(24);
    let source = place.path("tune/m.safetensors");
    let import = |options: &[&str]| {
        let mut command = tierfs();
        command.arg("import").arg(place.store()).args(["t/tune", "--json"]).arg(&source);
        answer(command.args(options)).json()["bytes_stored"].as_u64().unwrap()
    };
    let stored = import(&["--parent", "t/base", "--reconstruct", "delta"]);
    let mounted = place.mount(&["--read-only"]);
    let [_, _, used] = usage(&mounted, "t/tune");
    assert_eq!(stored, used);
    assert!(stored < child.len() as u64 / 2, "{stored} of {} bytes", child.len());
    mounted.unmount();
}

#[test]
fn lineage_is_at_most_three_deep_and_never_a_circle() {
    let place = Place::new();
    let mut random = Random(25);
    let mut versions = vec![container_of(&mut random, &TENSORS)];
    for place in 1..5 {
        versions.push(changed(&mut random, &versions[place - 1]));
    }
    for (number, bytes) in versions.iter().enumerate() {
        let source = place.write(&format!("v{number}/m.safetensors"), bytes);
        let parent = format!("t/v{}", number.saturating_sub(1));
        let options: &[&str] = if number == 0 { &[] } else { &["--parent", &parent] };
        place.import(&format!("t/v{number}"), &[&source], options);
    }
    let source = place.path("v4/m.safetensors");
    place.try_import("t/v4", &[&source], &["--parent", "t/v4"]).failed(1, &["its own"]);
    place.try_import("t/other", &[&source], &["--parent", "t/v0/nothing"]).failed(1, &["nothing"]);
    place.try_import("t/other", &[&source], &["--parent", "t/v0/w"]).failed(1, &["alike"]);
    let mounted = place.mount(&[]);
    for number in 1..4 {
        let w = mounted.path(format!("t/v{number}/w"));
        set(&w, "reconstruct", "delta").unwrap();
        set(&w, "evict", "1").unwrap();
    }
    let w = mounted.path("t/v4/w");
    set(&w, "reconstruct", "delta").unwrap();
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("deep"));
    assert_eq!(try_get(&mounted.path("t/v0/w"), "parent"), Err(Errno::NODATA));
    set(&mounted.path("t/v0/w"), "reconstruct", "delta").unwrap();
    assert!(refused_set(&mounted.path("t/v0/w"), "evict", "1", Errno::BUSY).contains("differences"));
    mounted.unmount();
    fsck(&place.store());
    // Collections are opened from the last one to the first.
    let mounted = place.mount(&["--read-only"]);
    for (number, wanted) in versions.iter().enumerate().rev() {
        assert_eq!(&read(&mounted, &format!("t/v{number}/m.safetensors")), wanted, "version {number}");
    }
}

#[test]
fn tensors_that_differ_too_much_or_have_no_parent_are_refused() {
    let place = Place::new();
    let base = container_of(&mut Random(26), &TENSORS);
    let other = container_of(&mut Random(27), &TENSORS);
    place.import("t/base", &[&place.write("base/m.safetensors", &base)], &[]);
    let source = place.write("tune/m.safetensors", &other);
    place.import("t/tune", &[&source], &["--parent", "t/base"]);
    let mounted = place.mount(&[]);
    let w = mounted.path("t/tune/w");
    for lossy in ["deny", "allow"] {
        set(&w, "lossy", lossy).unwrap();
        set(&w, "reconstruct", "delta").unwrap();
        assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("at most"), "{lossy}");
    }
    set(&mounted.path("t/base/w"), "reconstruct", "delta").unwrap();
    assert!(refused_set(&mounted.path("t/base/w"), "evict", "1", Errno::INVAL).contains("--parent"));
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), other);
    // The parent is free as before.
    fs::remove_file(mounted.path("t/base/m.safetensors")).unwrap();
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), other);
    mounted.unmount();
    fsck(&place.store());
}

#[test]
fn flipped_bits_of_deltas_are_errors_and_never_other_bytes() {
    let Models { place, child, .. } = models(28);
    let source = place.path("tune/m.safetensors");
    place.import("t/tune", &[&source], &["--parent", "t/base", "--reconstruct", "delta"]);
    let deltas = place.store().join("t/tune/delta.dat");
    let whole = fs::read(&deltas).unwrap();
    let mut random = Random(29);
    for _ in 0..6 {
        let mut flipped = whole.clone();
        let records: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
        flipped[records[random.below(records.len())]] ^= 1 << random.below(8);
        fs::write(&deltas, &flipped).unwrap();
        let answer = run(["fsck".as_ref(), place.store().as_os_str()]);
        assert!(answer.code == Some(3) && answer.out.contains("delta.dat"), "{}", answer.out);
        let mounted = place.mount(&["--read-only"]);
        let file = fs::File::open(mounted.path("t/tune/m.safetensors")).unwrap();
        let mut failed = 0;
        for (at, wanted) in (0..).step_by(4096).zip(child.chunks(4096)) {
            let mut found = vec![0; wanted.len()];
            match file.read_exact_at(&mut found, at) {
                Ok(()) => assert_eq!(found, wanted),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
                    failed += 1;
                }
            }
        }
        assert!(failed > 0);
    }
}

#[test]
fn reconstructed_tensors_survive_a_log_rewrite_and_a_crash() {
    let Models { place, base, child } = models(30);
    let source = place.path("tune/m.safetensors");
    place.import("t/tune", &[&source], &["--parent", "t/base", "--reconstruct", "delta"]);
    let rows: Vec<u8> = Random(31).floats(64);
    // Of rank 1: all blocks are rows of one product.
    let matrix: Vec<u8> = (0..512).flat_map(|_| rows.iter().copied()).collect();
    let mut array = npy_file(&matrix);
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (512, 64), }");
    array[10..128].copy_from_slice(header.as_bytes());
    let source = place.write("x.npy", &array);
    place.import("t/tune", &[&source], &["--reconstruct", "factor:rank=1"]);
    let mounted = place.mount(&[]);
    let x = mounted.path("t/tune/x");
    assert_eq!(get(&x, "tier"), "absent");
    let product = fs::read(&x).unwrap();
    let log = place.store().join("t/tune/meta.log");
    let mut largest = 0;
    let mut written_anew = false;
    for round in 0..16_000_u64 {
        fs::write(mounted.path(format!("t/tune/f{}", round % 50)), b"x").unwrap();
        if round % 200 == 0 {
            fs::File::open(&x).unwrap().sync_all().unwrap();
        }
        let bytes = fs::metadata(&log).unwrap().len();
        written_anew |= bytes < largest;
        largest = largest.max(bytes);
        if written_anew {
            break;
        }
    }
    assert!(written_anew, "the log only grew, to {largest} bytes");
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    mounted.kill();
    drop(mounted);
    fsck(&place.store());
    let mounted = place.mount(&[]);
    for tensor in ["m.safetensors", "x"] {
        assert_eq!(get(&mounted.path(Path::new("t/tune").join(tensor)), "tier"), "absent");
    }
    assert_eq!(read(&mounted, "t/tune/m.safetensors"), child);
    assert_eq!(read(&mounted, "t/tune/x"), product);
    busy(&mounted, &base);
}

#[test]
fn shards_have_parents_and_exact_differences() {
    let place = Place::new();
    let mut random = Random(32);
    let shards: Vec<Vec<u8>> = (0..2).map(|place| random.bytes(50_000 + place * 7)).collect();
    let mut tuned = shards.clone();
    for shard in &mut tuned {
        for byte in shard.iter_mut().step_by(100) {
            *byte ^= 0x55;
        }
    }
    let import = |collection: &str, shards: &[Vec<u8>], options: &[&str]| {
        let paths: Vec<_> =
            (0..2).map(|number| place.write(&format!("{collection}/{number}"), &shards[number])).collect();
        let paths: Vec<&Path> = paths.iter().map(std::path::PathBuf::as_path).collect();
        place.import(collection, &paths, &[&["--shard-of", "kv"], options].concat());
    };
    import("t/base", &shards, &[]);
    import("t/tune", &tuned, &["--parent", "t/base/kv"]);
    let mounted = place.mount(&[]);
    let kv = mounted.path("t/tune/kv");
    assert_eq!(get(&kv, "parent"), get(&mounted.path("t/base/kv"), "id"));
    set(&kv, "reconstruct", "delta").unwrap();
    set(&kv, "evict", "1").unwrap();
    assert_eq!(get(&kv, "tier"), "absent");
    assert_eq!(fs::read(&kv).unwrap(), tuned.concat());
    // A full overwrite needs no parent.
    fs::write(&kv, b"anew").unwrap();
    assert_eq!(fs::read(&kv).unwrap(), b"anew");
    wait_until("the parent is free", || fs::write(mounted.path("t/base/kv"), b"free").is_ok());
}
