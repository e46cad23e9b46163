//! Moves of some rows of a tensor. Each block reads as after an import of the whole into its tier.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use support::{
    Fixture, Mounted, Place, Random, assert_same, get, refused_set, run, safetensors_file, set, try_get,
    wait_until,
};

/// Numbers of a row, which are not whole blocks.
const ROW: usize = 100;
const BLOCK: usize = 4096;
/// Blocks of a stretch, as `docs/manual/tiers.md` says.
const STRETCH: usize = 64;
const TIERS: [&str; 6] = ["exact", "q8", "q7", "q5", "q3x", "q3"];

/// A file with the tensor `w` of rows, and others beside it.
fn model(rows: &[u8]) -> Vec<u8> {
    let beside = Random(99).floats(1000);
    let end = rows.len();
    let header = serde_json::json!({
        "w": { "dtype": "F32", "shape": [end / ROW / 4, ROW], "data_offsets": [0, end] },
        "v": { "dtype": "F32", "shape": [1000], "data_offsets": [end, end + 4000] },
    });
    safetensors_file(&header.to_string(), &[rows, &beside].concat())
}

/// The rows after an import into each tier.
fn references(rows: &[u8]) -> BTreeMap<&'static str, Vec<u8>> {
    let place = Place::new();
    let file = place.write("m.safetensors", model(rows));
    let encoded = TIERS.iter().skip(1);
    let names = encoded.map(|tier| (*tier, format!("t/{tier}")));
    let names: Vec<_> = names.collect();
    for (tier, collection) in &names {
        place.import(collection, &[&file], &["--tier", &format!("{tier}:all"), "--block-bytes", "4096"]);
    }
    let mounted = place.mount(&["--read-only"]);
    let mut found = BTreeMap::from([("exact", rows.to_vec())]);
    for (tier, collection) in names {
        found.insert(tier, fs::read(mounted.path(Path::new(&collection).join("w"))).unwrap());
    }
    found
}

/// The blocks that a move of rows takes: whole stretches, of which the last one has the rest of the blocks.
fn taken(bytes: usize, row: usize, first: usize, end: usize) -> std::ops::Range<usize> {
    let blocks = bytes.div_ceil(BLOCK);
    let count = (blocks / STRETCH).max(1);
    let begin = |stretch: usize| if stretch < count { stretch * STRETCH } else { blocks };
    let inside = |stretch: &usize| {
        begin(*stretch) * BLOCK >= first * row && (begin(*stretch + 1) * BLOCK).min(bytes) <= end * row
    };
    let stretches: Vec<usize> = (0..count).filter(inside).collect();
    match (stretches.first(), stretches.last()) {
        (Some(first), Some(last)) => begin(*first)..begin(*last + 1),
        _ => 0..0,
    }
}

/// The tiers of the blocks of a tensor.
fn tiers_of(mounted: &Mounted, collection: &str, name: &str) -> Vec<String> {
    let table = mounted.path(collection).join(".ctl/blocks").join(name);
    let table = fs::read_to_string(table).unwrap();
    let tier = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("tier=")).unwrap().to_owned();
    table.lines().map(tier).collect()
}

fn wanted(tiers: &[&'static str], references: &BTreeMap<&'static str, Vec<u8>>) -> Vec<u8> {
    let bytes = references["exact"].len();
    let block =
        |(index, tier): (usize, &&str)| &references[*tier][index * BLOCK..((index + 1) * BLOCK).min(bytes)];
    tiers.iter().enumerate().flat_map(block).copied().collect()
}

#[test]
fn random_rows_read_as_the_codec_by_block_and_come_back_from_their_source() {
    // 4.6 stretches, of which the last one is longer.
    let rows = Random(1).floats(3000 * ROW);
    let references = references(&rows);
    let place = Place::new();
    let file = place.write("m.safetensors", model(&rows));
    place.import("t/c", &[&file], &["--in-place", "--block-bytes", "4096"]);
    let mut mounted = place.mount(&[]);
    let mut random = Random(2);
    let mut tiers = vec!["exact"; rows.len().div_ceil(BLOCK)];
    let (mut refused, mut buffer, mut before) = (0, vec![0; rows.len()], rows.clone());
    for round in 0..60 {
        let tensor = mounted.path("t/c/w");
        let reader = fs::File::open(&tensor).unwrap();
        let tier = TIERS[random.below(TIERS.len())];
        let (one, other) = (random.below(3001), random.below(3001));
        let (first, end) = (one.min(other), (one.max(other)).max(one.min(other) + 1).min(3000));
        if first >= end {
            continue;
        }
        let blocks = taken(rows.len(), ROW * 4, first, end);
        let value = format!("{tier}@{first}:{end}");
        if blocks.is_empty() {
            let why = refused_set(&tensor, "tier", &value, Errno::INVAL);
            assert!(why.contains("no whole stretch"), "{why}");
            refused += 1;
        } else {
            set(&tensor, "tier", &value).unwrap();
            tiers[blocks].fill(tier);
        }
        assert_eq!(tiers_of(&mounted, "t/c", "w"), tiers, "{value}");
        let wanted = wanted(&tiers, &references);
        assert_same(&fs::read(&tensor).unwrap(), &wanted, &value);
        // Across borders. A descriptor that the kernel serves may show the file as it was opened.
        let now = fs::File::open(&tensor).unwrap();
        for _ in 0..20 {
            let at = random.below(wanted.len());
            let len = random.below(200_000).min(wanted.len() - at);
            now.read_exact_at(&mut buffer[..len], at as u64).unwrap();
            assert!(buffer[..len] == wanted[at..at + len], "{len} bytes at {at} after {value}");
            reader.read_exact_at(&mut buffer[..len], at as u64).unwrap();
            let is_one = [&before, &wanted].into_iter().any(|bytes| buffer[..len] == bytes[at..at + len]);
            assert!(is_one, "{len} bytes at {at} after {value}, by a descriptor from before");
        }
        before = wanted;
        let has_several = tiers.iter().any(|tier| *tier != tiers[0]);
        assert_eq!(get(&tensor, "tier"), if has_several { "mixed" } else { tiers[0] });
        assert_eq!(try_get(&tensor, "tiers").is_ok(), has_several);
        drop((reader, now));
        if round % 20 == 19 {
            if round == 39 {
                mounted.kill();
                drop(mounted);
            } else {
                mounted.unmount();
            }
            run(["fsck".as_ref(), place.store().as_os_str()]).ok();
            mounted = place.mount(&[]);
        }
    }
    assert!((1..50).contains(&refused), "{refused} were refused");
    let tensor = mounted.path("t/c/w");
    set(&tensor, "tier", "q5").unwrap();
    set(&tensor, "tier", "exact@0:3000").unwrap();
    assert_same(&fs::read(&tensor).unwrap(), &rows, "all from the source");
    assert!(get(&tensor, "error").contains("max=0e0"));
    mounted.unmount();
    run(["compact".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    assert_same(&fs::read(mounted.path("t/c/m.safetensors")).unwrap(), &model(&rows), "the container");
}

#[test]
fn rows_that_are_not_there_are_refused_and_change_nothing() {
    let rows = Random(3).floats(2000 * ROW);
    let place = Place::new();
    let file = place.write("m.safetensors", model(&rows));
    place.import("t/c", &[&file], &["--block-bytes", "4096"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    assert!(refused_set(&tensor, "tier", "q8@0:2000", Errno::PERM).contains("lossy"));
    assert!(refused_set(&tensor, "tier", "q8@0:700", Errno::PERM).contains("lossy"));
    set(&mounted.path("t/c"), "lossy", "allow:q8").unwrap();
    assert!(refused_set(&tensor, "tier", "q5@0:700", Errno::PERM).contains("lossy"));
    for (value, why) in [
        ("q8@0:2001", "2000 rows"),
        ("q8@2000:2001", "2000 rows"),
        ("q8@0:18446744073709551615", "2000 rows"),
        ("q8@0:18446744073709551616", "2^64"),
        ("q8@700:0", "not after the first"),
        ("q8@5:5", "not after the first"),
        ("q8@", "FIRST:END"),
        ("q8@-1:5", "FIRST:END"),
        ("q8@0:700:again", "FIRST:END"),
        ("packed@0:700", "as a whole"),
        ("verbatim@0:700", "as a whole"),
        ("q4@0:700", "not a tier"),
        ("q8@0:600", "656 rows"),
        ("q8@1:1300", "no whole stretch"),
    ] {
        let found = refused_set(&tensor, "tier", value, Errno::INVAL);
        assert!(found.contains(why), "{value}: {found}");
    }
    for several in ["t/c", "t/c/m.safetensors"] {
        let found = refused_set(&mounted.path(several), "tier", "q8@0:700", Errno::INVAL);
        assert!(found.contains("one tensor"), "{found}");
    }
    fs::write(mounted.path("t/c/plain"), b"plain").unwrap();
    refused_set(&mounted.path("t/c/plain"), "tier", "q8@0:1", Errno::PERM);
    set(&tensor, "pin", "1").unwrap();
    refused_set(&tensor, "tier", "q8@0:700", Errno::BUSY);
    set(&tensor, "pin", "0").unwrap();
    assert_eq!(get(&tensor, "tier"), "exact");
    assert_same(&fs::read(&tensor).unwrap(), &rows, "nothing moved");
    // Consent for one request, and no way back.
    set(&tensor, "tier", "q5@0:700:lossy").unwrap();
    assert!(refused_set(&tensor, "tier", "exact@0:700", Errno::INVAL).contains("more precise"));
    assert!(refused_set(&tensor, "tier", "q8@0:1400", Errno::INVAL).contains("more precise"));
    set(&tensor, "tier", "q8@655:2000").unwrap();
    assert_eq!(get(&tensor, "tiers"), "q8=67.2% q5=32.8%");
    let before = get(&tensor, "error");
    set(&tensor, "tier", "q8@655:2000").unwrap();
    assert_eq!(get(&tensor, "error"), before);
    assert!(before.starts_with("max="));
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn the_command_moves_rows_and_shows_the_shares() {
    let rows = Random(4).floats(2000 * ROW);
    let place = Place::new();
    let file = place.write("m.safetensors", model(&rows));
    place.import("t/c", &[&file], &["--block-bytes", "4096"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    let tier = |options: &[&str]| {
        let words = ["tier", "q3", "--lossy", "--rows"].into_iter().chain(options.iter().copied());
        let words = words.map(std::ffi::OsStr::new).chain([tensor.as_os_str()]);
        run(words.collect::<Vec<_>>())
    };
    let said = tier(&["100:2000", "--dry-run"]).ok();
    assert!(said.contains("would change 1 tensor: rows 655:2000 of 2000 now q3"), "{said}");
    assert_eq!(get(&tensor, "tier"), "exact");
    let said = tier(&["100:2000"]).ok();
    assert!(said.contains("rows 655:2000 of 2000 now q3"), "{said}");
    assert!(tier(&["700:2000"]).ok().contains("rows 1310:2000"));
    let said = tier(&["655:2000"]).ok();
    assert!(said.contains("nothing to do: rows 655:2000 of 2000 are q3 already"), "{said}");
    for wrong in ["2:1", "2", "1:2:3"] {
        assert_ne!(tier(&[wrong]).code, Some(0), "{wrong}");
    }
    let shares = "exact=32.8% q3=67.2%";
    let shown = |words: &[&std::ffi::OsStr]| run(words.iter().copied()).ok();
    assert!(shown(&["stat".as_ref(), tensor.as_os_str()]).contains(shares));
    let container = mounted.path("t/c/m.safetensors");
    let listed = shown(&["ls".as_ref(), container.as_os_str(), "--tensors".as_ref()]);
    assert!(listed.lines().any(|line| line.starts_with("mixed") && line.ends_with(shares)), "{listed}");
    let page = place.path("page.html");
    shown(&["report".as_ref(), mounted.mountpoint.as_os_str(), "-o".as_ref(), page.as_os_str()]);
    assert!(fs::read_to_string(page).unwrap().contains(shares));
    fs::read(&tensor).unwrap();
    let hottest = fs::read_to_string(mounted.path(".ctl/hottest.json")).unwrap();
    let hottest: serde_json::Value = serde_json::from_str(&hottest).unwrap();
    assert_eq!(hottest[0]["tiers"], shares);
}

#[test]
fn rows_of_joined_shards_are_those_of_the_whole() {
    let rows = Random(5).floats(4000 * ROW);
    let place = Place::new();
    let names: Vec<PathBuf> = [0, 1, 2]
        .into_iter()
        .zip([&rows[..900_000], &rows[900_000..1_300_000], &rows[1_300_000..]])
        .map(|(number, part)| place.write(&format!("p{number}"), part))
        .collect();
    let parts: Vec<&Path> = names.iter().map(PathBuf::as_path).collect();
    let options = ["--shard-of", "w", "--dtype", "f32", "--shape", "4000x100", "--block-bytes", "4096"];
    place.import("t/c", &parts, &options);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/w");
    set(&tensor, "tier", "q8@1000:4000:lossy").unwrap();
    let tiers = tiers_of(&mounted, "t/c", "w");
    let found = fs::read(&tensor).unwrap();
    let border = 1000 * ROW * 4;
    assert!(found[..border] == rows[..border] && found[border..] != rows[border..]);
    assert!(tiers.iter().filter(|tier| *tier == "q8").count() > 2 * STRETCH, "{tiers:?}");
    let first = tiers.iter().position(|tier| tier == "q8").unwrap();
    assert!(
        tiers[..first].iter().all(|tier| tier == "exact") && tiers[first..].iter().all(|tier| tier == "q8")
    );
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn rows_of_a_child_move_while_its_parent_keeps_the_others() {
    let base = Random(6).floats(2000 * ROW);
    let mut tuned = base.clone();
    for at in (0..tuned.len()).step_by(40_000) {
        tuned[at..at + 4].copy_from_slice(&0.5_f32.to_le_bytes());
    }
    let place = Place::new();
    let (one, other) =
        (place.write("base/m.safetensors", model(&base)), place.write("tune/m.safetensors", model(&tuned)));
    let blocks = ["--block-bytes", "4096"];
    place.import("t/base", &[&one], &blocks);
    place.import("t/tune", &[&other], &["--parent", "t/base", "--block-bytes", "4096"]);
    let mounted = place.mount(&[]);
    let (parent, child) = (mounted.path("t/base/w"), mounted.path("t/tune/w"));
    set(&child, "reconstruct", "delta").unwrap();
    set(&child, "evict", "1").unwrap();
    set(&parent, "lossy", "allow").unwrap();
    set(&child, "lossy", "allow").unwrap();
    refused_set(&parent, "tier", "q8@0:700", Errno::BUSY);
    set(&child, "tier", "q3@0:700").unwrap();
    let references = references(&tuned);
    let border = STRETCH * BLOCK;
    let wanted = [&references["q3"][..border], &tuned[border..]].concat();
    assert_same(&fs::read(&child).unwrap(), &wanted, "some rows");
    refused_set(&parent, "tier", "q8@0:700", Errno::BUSY);
    set(&child, "tier", "exact@700:2000").unwrap();
    let tiers = tiers_of(&mounted, "t/tune", "w");
    assert_eq!(tiers[2 * STRETCH], "exact");
    set(&child, "tier", "exact@655:1312").unwrap();
    assert_same(&fs::read(&child).unwrap(), &wanted, "the others are exact");
    set(&parent, "tier", "q8@0:700").unwrap();
    assert_same(&fs::read(&child).unwrap(), &wanted, "without the parent");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn after_a_kill_each_block_is_as_before_or_after_the_move() {
    let rows = Random(7).floats(100_000 * ROW);
    let mut fixture = Fixture::new();
    let file = fixture.place.write("w", &rows);
    let shape = format!("{}x{ROW}", rows.len() / ROW / 4);
    fixture.unmount();
    let options = ["--shard-of", "w", "--dtype", "f32", "--shape", &shape, "--block-bytes", "4096"];
    fixture.place.import("demo/m", &[&file], &options);
    fixture.place.import("demo/q5", &[&file], &[&options[..], &["--tier", "q5:all"]].concat());
    fixture.mount();
    let tensor = fixture.path("w");
    let wanted = fs::read(fixture.mounted().path("demo/q5/w")).unwrap();
    let moving = std::thread::spawn(move || set(&tensor, "tier", "q5@0:90000:lossy"));
    wait_until("the move has begun", || {
        tiers_of(fixture.mounted(), "demo/m", "w").contains(&"q5".to_owned())
    });
    fixture.crash();
    let _ended = moving.join().unwrap();
    let tiers = tiers_of(fixture.mounted(), "demo/m", "w");
    let moved = tiers.iter().filter(|tier| *tier == "q5").count();
    assert!(moved.is_multiple_of(STRETCH) && moved > 0, "{moved} blocks moved");
    let found = fixture.read("w");
    for (index, tier) in tiers.iter().enumerate() {
        let block = index * BLOCK..((index + 1) * BLOCK).min(rows.len());
        let source = if tier == "q5" { &wanted } else { &rows };
        assert!(found[block.clone()] == source[block], "block {index} in {tier}");
    }
    set(&fixture.path("w"), "tier", "q5@0:90000:lossy").unwrap();
    let border = taken(rows.len(), ROW * 4, 0, 90_000).end * BLOCK;
    let found = fixture.read("w");
    assert!(found[..border] == wanted[..border] && found[border..] == rows[border..]);
    fixture.check();
}
