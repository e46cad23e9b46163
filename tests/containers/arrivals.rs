//! Settings of directories for what arrives: tiers, types, rows and blocks of files that programs write, rename and
//! append to. Stored values are compared with those of an import into the same tier.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::io::Errno;
use support::{
    Fixture, Random, assert_same, get, refused_set, run, safetensors_file, script, set, text, try_get,
    wait_until,
};

/// Bytes of a row of 8x128 numbers of f32.
const ROW: usize = 8 * 128 * 4;

/// A mount whose collection has a directory `kv` with settings.
fn with_settings(pairs: &[(&str, &str)]) -> Fixture {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("kv")).unwrap();
    pairs.iter().for_each(|(key, value)| set(&fixture.path("kv"), key, value).unwrap());
    fixture
}

const ROWS_IN_Q8: [(&str, &str); 4] =
    [("lossy", "allow"), ("arrive", "q8"), ("dtype", "f32"), ("row", "8x128")];

/// The same bytes after an import into a tier.
fn imported(fixture: &Fixture, name: &str, bytes: &[u8], options: &[&str]) -> Vec<u8> {
    let source = fixture.place.write(&format!("sources/{name}"), bytes);
    fixture.place.import("ref/r", &[&source], options);
    fs::read(fixture.mounted().path("ref/r").join(name)).unwrap()
}

/// The same bytes after an import as one tensor of rows.
fn imported_rows(fixture: &Fixture, bytes: &[u8], tier: &str) -> Vec<u8> {
    let shape = format!("{}x8x128", bytes.len() / ROW);
    let options = ["--shard-of", "rows", "--dtype", "f32", "--shape", &shape, "--tier", tier];
    let source = fixture.place.write("sources/rows", bytes);
    fixture.place.import("ref/r", &[&source], &options);
    fs::read(fixture.mounted().path("ref/r/rows")).unwrap()
}

fn container(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let data = [random.floats(400 * 300), random.floats(50), random.bytes(120_000), random.floats(70_000)];
    let mut ends = vec![0];
    data.iter().for_each(|data| ends.push(ends.last().unwrap() + data.len()));
    let header = serde_json::json!({
        "w": { "dtype": "F32", "shape": [400, 300], "data_offsets": [ends[0], ends[1]] },
        "small": { "dtype": "F32", "shape": [5, 10], "data_offsets": [ends[1], ends[2]] },
        "whole": { "dtype": "U8", "shape": [400, 300], "data_offsets": [ends[2], ends[3]] },
        "norm.weight": { "dtype": "F32", "shape": [700, 100], "data_offsets": [ends[3], ends[4]] },
    });
    safetensors_file(&header.to_string(), &data.concat())
}

fn append(path: &PathBuf, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

#[test]
fn a_container_arrives_in_the_tier_by_every_way_that_programs_write_it() {
    let mut fixture = with_settings(&[("lossy", "allow:q8"), ("arrive", "q8")]);
    let bytes = container(1);
    let wanted = imported(&fixture, "m.safetensors", &bytes, &["--tier", "q8"]);
    assert!(wanted != bytes);
    let source = fixture.place.path("sources/m.safetensors");
    let at = |name: &str| fixture.path(&format!("kv/{name}"));
    fs::write(at("written.safetensors"), &bytes).unwrap();
    fs::copy(&source, at("copied.safetensors")).unwrap();
    let mut synced = File::create(at("synced.safetensors")).unwrap();
    for part in bytes.chunks(100_000) {
        synced.write_all(part).unwrap();
        synced.sync_all().unwrap();
    }
    assert_same(&fs::read(at("synced.safetensors")).unwrap(), &bytes, "before the close");
    drop(synced);
    for hidden in [".m.safetensors.Ab12", ".m.safetensors", "m.safetensors.tmp", "m.partial"] {
        fs::write(at(hidden), &bytes).unwrap();
        assert_same(&fs::read(at(hidden)).unwrap(), &bytes, hidden);
        let name = format!("renamed-{}.safetensors", hidden.len());
        fs::rename(at(hidden), at(&name)).unwrap();
    }
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    assert_same(&fixture.read("m.safetensors"), &bytes, "outside of the directory");
    fs::rename(fixture.path("m.safetensors"), at("moved.safetensors")).unwrap();
    let names = support::names(&fixture.path("kv"));
    let names: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    for _ in 0..2 {
        for name in &names {
            assert_same(&fixture.read(&format!("kv/{name}")), &wanted, name);
            let tensors = fixture.path(&format!("kv/.tensors/{name}"));
            let tiers: Vec<String> = ["w", "small", "whole", "norm.weight"]
                .iter()
                .map(|tensor| get(&tensors.join(tensor), "tier"))
                .collect();
            assert_eq!(tiers, ["q8", "exact", "exact", "exact"], "{name}");
            let why = try_get(&fixture.path(&format!("kv/{name}")), "why");
            assert!(!why.is_ok_and(|why| why.contains("kept")), "{name}");
        }
        fixture.crash();
    }
    fixture.check();
}

#[test]
fn rows_that_are_appended_are_rounded_once() {
    let mut fixture = with_settings(&ROWS_IN_Q8);
    let mut random = Random(2);
    let first = random.floats(96 * 8 * 128);
    let path = fixture.path("kv/stream");
    fs::write(&path, &first).unwrap();
    let before = fs::read(&path).unwrap();
    assert_same(&before, &imported_rows(&fixture, &first, "q8"), "as an import");
    assert_eq!(
        (get(&path, "dtype"), get(&path, "shape"), get(&path, "tier")),
        three("f32", "96x8x128", "q8")
    );
    // Four rows are a block.
    let more: Vec<Vec<u8>> = (0..3).map(|_| random.floats(4 * 8 * 128)).collect();
    for (place, rows) in more.iter().enumerate() {
        append(&path, rows);
        let shape = format!("{}x8x128", 100 + 4 * place);
        assert_eq!(
            (get(&path, "dtype"), get(&path, "shape"), get(&path, "tier")),
            three("f32", &shape, "q8")
        );
    }
    let mut all = [first, more.concat()].concat();
    let wanted = imported_rows(&fixture, &all, "q8");
    for _ in 0..2 {
        let found = fixture.read("kv/stream");
        assert_same(&found[..before.len()], &before, "rows that were there");
        assert_same(&found, &wanted, "each row, rounded once");
        fixture.remount();
    }
    // The last block is not whole.
    for _ in 0..3 {
        let rows = random.floats(3 * 8 * 128);
        append(&path, &rows);
        all.extend(rows);
    }
    let found = fixture.read("kv/stream");
    assert_same(&found[..wanted.len()], &wanted, "rows in whole blocks");
    let worst = worst_of(&all, &found);
    assert!(worst < 0.02, "{worst}");
    // Replaced by other rows.
    let other = random.floats(100 * 8 * 128);
    fs::write(fixture.path("kv/stream"), &other).unwrap();
    assert_same(&fixture.read("kv/stream"), &imported_rows(&fixture, &other, "q8"), "other rows");
    fixture.check();
}

fn three(dtype: &str, shape: &str, tier: &str) -> (String, String, String) {
    (dtype.to_owned(), shape.to_owned(), tier.to_owned())
}

/// The largest difference of two arrays of f32 of -1 to 1.
fn worst_of(one: &[u8], other: &[u8]) -> f32 {
    let numbers = |bytes: &[u8]| -> Vec<f32> {
        bytes.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
    };
    let pairs = numbers(one).into_iter().zip(numbers(other));
    pairs.map(|(one, other)| (one - other).abs() / one.abs().max(1.0)).fold(0.0, f32::max)
}

#[test]
fn a_stream_grows_from_nothing_and_is_read_meanwhile() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(3).floats(80 * 8 * 128);
    let path = fixture.path("kv/stream");
    let mut file = File::create(&path).unwrap();
    for (place, row) in rows.chunks(ROW).enumerate() {
        file.write_all(row).unwrap();
        if place % 16 == 0 {
            file.sync_all().unwrap();
            let end = (place + 1) * ROW;
            assert_same(&fs::read(&path).unwrap(), &rows[..end], "while it is written");
        }
    }
    let reader = File::open(&path).unwrap();
    drop(file);
    let wanted = imported_rows(&fixture, &rows, "q8");
    assert_same(&fs::read(&path).unwrap(), &wanted, "after the close");
    let mut found = vec![0; rows.len()];
    reader.read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &wanted, "by a reader that was there");
    drop(reader);
    // Of several writers the last one to close it.
    let both = fixture.path("kv/both");
    let mut one = File::create(&both).unwrap();
    let other = OpenOptions::new().write(true).open(&both).unwrap();
    one.write_all(&rows).unwrap();
    drop(one);
    assert_same(&fs::read(&both).unwrap(), &rows, "before the last close");
    drop(other);
    assert_same(&fs::read(&both).unwrap(), &wanted, "after the last close");
    // One row at a time, each in an open of its own: below 65,536 elements all stays exact.
    let slow = fixture.path("kv/slow");
    for (place, row) in rows.chunks(ROW).enumerate() {
        if place == 0 {
            fs::write(&slow, row).unwrap()
        } else {
            append(&slow, row)
        }
        let tier = if place < 63 { "exact" } else { "q8" };
        assert_eq!(get(&slow, "tier"), tier, "after {} rows", place + 1);
    }
    assert!(worst_of(&rows, &fs::read(&slow).unwrap()) < 0.02);
    assert_eq!(get(&slow, "shards"), "1");
    fixture.check();
}

#[test]
fn a_renamed_container_shows_the_arrived_bytes_at_once() {
    let mut fixture = Fixture::new();
    fixture.unmount();
    fixture.mount_with(&["--passthrough", "off"]);
    fs::create_dir(fixture.path("kv")).unwrap();
    for (key, value) in [("lossy", "allow"), ("arrive", "q8")] {
        set(&fixture.path("kv"), key, value).unwrap();
    }
    let bytes = container(11);
    let wanted = imported(&fixture, "m.safetensors", &bytes, &["--tier", "q8"]);
    for (from, to) in [("m.safetensors.tmp", "m.safetensors"), ("x.part", "x.safetensors")] {
        let (from, to) = (fixture.path(&format!("kv/{from}")), fixture.path(&format!("kv/{to}")));
        fs::write(&from, &bytes).unwrap();
        let reader = File::open(&from).unwrap();
        fs::rename(&from, &to).unwrap();
        assert_same(&fs::read(&to).unwrap(), &wanted, "by the new name");
        let mut found = vec![0; bytes.len()];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &wanted, "by a reader that was there");
    }
    fixture.check();
}

#[test]
fn a_rename_by_which_a_file_arrives_keeps_no_thread_of_requests_waiting() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let (from, to) = (fixture.path("rows"), fixture.path("kv/rows"));
    fs::write(&from, Random(12).floats(1000 * 8 * 128)).unwrap();
    let tasks = format!("/proc/{}/task", fixture.mounted().daemon().unwrap());
    let recognizes = || {
        let tasks = fs::read_dir(&tasks).unwrap().flatten();
        let mut names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
        // A thread may have ended meanwhile.
        names.any(|name| name.is_ok_and(|name| name.trim() == "recognition"))
    };
    wait_until("the file is closed", || !recognizes());
    let renaming = std::thread::spawn(move || fs::rename(from, to).unwrap());
    let mut has_recognized = false;
    while !renaming.is_finished() {
        has_recognized |= recognizes();
    }
    renaming.join().unwrap();
    assert!(has_recognized);
    assert_eq!(get(&fixture.path("kv/rows"), "tier"), "q8");
    fixture.check();
}

#[test]
fn a_file_arrives_after_the_last_write_of_a_handle_with_several_descriptors() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(13).floats(160 * 8 * 128);
    let (first, second) = rows.split_at(rows.len() / 2);
    let path = fixture.path("kv/rows");
    let mut file = File::create(&path).unwrap();
    file.write_all(first).unwrap();
    drop(file.try_clone().unwrap());
    file.write_all(second).unwrap();
    // Another program opens it meanwhile.
    drop(OpenOptions::new().write(true).open(&path).unwrap());
    assert_same(&fs::read(&path).unwrap()[first.len()..], second, "while it is written");
    drop(file);
    assert_same(&fs::read(&path).unwrap(), &imported_rows(&fixture, &rows, "q8"), "after the last close");
    fixture.check();
}

#[test]
fn without_consent_or_whole_rows_files_stay_as_they_are() {
    let mut fixture = with_settings(&[("arrive", "q8"), ("dtype", "f32"), ("row", "8x128")]);
    let rows = Random(4).floats(70 * 8 * 128);
    let (model, path, odd) =
        (fixture.path("kv/m.safetensors"), fixture.path("kv/rows"), fixture.path("kv/odd"));
    fs::write(&path, &rows).unwrap();
    fs::write(&model, container(4)).unwrap();
    fs::write(&odd, &rows[..rows.len() - 4]).unwrap();
    for path in [&path, &model] {
        assert_eq!(get(path, "why"), "kept exact: arrive=q8 needs lossy=allow or lossy=allow:q8");
        assert_eq!(get(path, "tier"), "exact");
    }
    assert_same(&fs::read(&path).unwrap(), &rows, "rows");
    assert_same(&fs::read(&model).unwrap(), &container(4), "a container");
    assert_eq!(get(&path, "shape"), "70x8x128");
    let why = "kept as a plain file: its 286716 bytes are not whole rows of 8x128 f32, 4096 bytes each";
    assert_eq!(get(&odd, "why"), why);
    assert_eq!(try_get(&odd, "dtype"), Err(Errno::NODATA));
    // A consent that ends above the tier does not cover it.
    set(&fixture.path("kv"), "lossy", "allow:q8").unwrap();
    set(&fixture.path("kv"), "arrive", "q5").unwrap();
    fs::write(fixture.path("kv/q5"), &rows).unwrap();
    assert_eq!(get(&fixture.path("kv/q5"), "tier"), "exact");
    // Settings say nothing of files that are there.
    set(&fixture.path("kv"), "lossy", "allow").unwrap();
    for name in ["rows", "m.safetensors", "odd"] {
        assert_eq!(get(&fixture.path(&format!("kv/{name}")), "tier"), "exact", "{name}");
    }
    append(&odd, &rows[rows.len() - 4..]);
    assert_same(&fs::read(&odd).unwrap(), &imported_rows(&fixture, &rows, "q5"), "whole rows now");
    assert_eq!(try_get(&odd, "why"), Err(Errno::NODATA));
    // Broken containers, empty files and indexes do not become tensors.
    fs::write(fixture.path("kv/broken.safetensors"), &rows).unwrap();
    fs::write(fixture.path("kv/empty"), b"").unwrap();
    fs::write(fixture.path("kv/x.safetensors.index.json"), br#"{"weight_map":{"w":"m.safetensors"}}"#)
        .unwrap();
    for name in ["broken.safetensors", "empty", "x.safetensors.index.json"] {
        assert_eq!(try_get(&fixture.path(&format!("kv/{name}")), "dtype"), Err(Errno::NODATA), "{name}");
    }
    fixture.remount();
    fixture.check();
}

#[test]
fn settings_are_inherited_and_ended_below() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(5).floats(72 * 8 * 128);
    let below = fixture.path("kv/below");
    fs::create_dir(&below).unwrap();
    let made = |directory: &PathBuf, name: &str| {
        let path = directory.join(name);
        fs::write(&path, &rows).unwrap();
        path
    };
    assert_eq!(get(&made(&below, "1"), "tier"), "q8");
    set(&below, "row", "128").unwrap();
    assert_eq!(get(&made(&below, "2"), "shape"), "576x128");
    set(&below, "row", "none").unwrap();
    let flat = made(&below, "3");
    assert_eq!(
        (get(&flat, "dtype"), get(&flat, "shape"), get(&flat, "tier")),
        three("f32", "73728", "exact")
    );
    set(&below, "arrive", "q8:all").unwrap();
    assert_eq!(get(&made(&below, "4"), "tier"), "q8");
    set(&below, "dtype", "BF16").unwrap();
    set(&below, "row", "8x128").unwrap();
    assert_eq!(get(&made(&below, "5"), "shape"), "144x8x128");
    set(&below, "dtype", "none").unwrap();
    let plain = made(&below, "6");
    assert_eq!(try_get(&plain, "dtype"), Err(Errno::NODATA));
    assert_same(&fs::read(&plain).unwrap(), &rows, "a plain file");
    set(&below, "dtype", "f32").unwrap();
    set(&below, "arrive", "exact").unwrap();
    assert_same(&fs::read(made(&below, "7")).unwrap(), &rows, "exact rows");
    set(&below, "arrive", "warm").unwrap();
    assert_eq!(get(&made(&below, "8"), "tier"), "q7");
    let shown = run(["get".as_ref(), below.as_os_str()]).ok();
    for line in ["arrive=q7\n", "dtype=f32\n", "row=8x128\n", "lossy=allow\n"] {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    for (key, value) in [
        ("arrive", "q4"),
        ("arrive", "absent"),
        ("row", "0x8"),
        ("dtype", "float"),
        ("head_dim", "5000"),
        ("block_bytes", "1000"),
    ] {
        assert!(refused_set(&below, key, value, Errno::INVAL).contains(value), "{key}={value}");
    }
    for key in ["arrive", "row", "head_dim", "block_bytes"] {
        assert!(refused_set(&flat, key, "8", Errno::INVAL).contains("directories"), "{key}");
    }
    fixture.check();
}

#[test]
fn packed_arrivals_and_blocks_are_as_set() {
    let mut fixture = with_settings(&[("arrive", "packed"), ("dtype", "bf16"), ("row", "2x96")]);
    let kv = fixture.path("kv");
    let halves: Vec<u8> =
        Random(6).floats(96 * 2000).chunks_exact(4).flat_map(|value| [value[2], value[3]]).collect();
    let packed = kv.join("packed");
    fs::write(&packed, &halves).unwrap();
    let stored = |path: &PathBuf| get(path, "bytes_stored").parse::<usize>().unwrap();
    assert!(stored(&packed) < halves.len());
    assert_same(&fs::read(&packed).unwrap(), &halves, "packed");
    append(&packed, &halves);
    assert!(stored(&packed) < 2 * halves.len() * 95 / 100);
    assert_same(&fs::read(&packed).unwrap(), &halves.repeat(2), "packed, appended");
    set(&kv, "arrive", "exact").unwrap();
    // 170 positions of 96 numbers.
    for (key, value, block) in [("head_dim", "96", 170 * 96 * 2), ("block_bytes", "4096", 4096)] {
        set(&kv, key, value).unwrap();
        for (name, tier) in [("exact", "exact"), ("q8", "q8")] {
            set(&kv, "arrive", tier).unwrap();
            set(&kv, "lossy", "allow").unwrap();
            let path = kv.join(format!("{key}-{name}"));
            fs::write(&path, &halves).unwrap();
            assert_eq!(get(&path, "blocks"), halves.len().div_ceil(block).to_string(), "{key} {tier}");
            assert_eq!(get(&path, "tier"), tier);
        }
        set(&kv, key, "none").unwrap();
    }
    let exact = kv.join("head_dim-exact");
    assert_same(&fs::read(exact).unwrap(), &halves, "exact");
    fixture.crash();
    assert_same(&fixture.read("kv/block_bytes-exact"), &halves, "exact, after a kill");
    fixture.check();
}

#[test]
fn rsync_writes_in_place_and_from_a_hidden_name() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(7).floats(128 * 8 * 128);
    let source = fixture.place.write("sources/rsynced", &rows);
    let wanted = imported_rows(&fixture, &rows, "q8");
    for (options, name) in [("--inplace", "one"), ("-t", "two")] {
        let to = fixture.path(&format!("kv/{name}"));
        let command = format!("rsync {options} {} {}", source.display(), to.display());
        script(&fixture.place.path(""), &command).ok();
        assert_same(&fs::read(&to).unwrap(), &wanted, options);
        assert_eq!(get(&to, "tier"), "q8");
    }
    let (from, to) = (fs::metadata(&source).unwrap(), fs::metadata(fixture.path("kv/two")).unwrap());
    assert_eq!(from.modified().unwrap(), to.modified().unwrap());
    // More rows of the same file, which rsync writes where they belong.
    let more = [rows.clone(), Random(8).floats(40 * 8 * 128)].concat();
    fs::write(&source, &more).unwrap();
    let to = fixture.path("kv/one");
    script(&fixture.place.path(""), &format!("rsync --inplace {} {}", source.display(), to.display())).ok();
    assert_eq!((get(&to, "tier"), get(&to, "shape")), ("q8".to_owned(), "168x8x128".to_owned()));
    assert!(worst_of(&more, &fs::read(&to).unwrap()) < 0.02);
    fixture.check();
}

#[test]
fn a_killed_daemon_leaves_the_written_or_the_arrived_bytes() {
    let mut fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(9).floats(90 * 8 * 128);
    let mut file = File::create(fixture.path("kv/open")).unwrap();
    file.write_all(&rows).unwrap();
    file.sync_all().unwrap();
    fs::write(fixture.path("kv/closed"), &rows).unwrap();
    fixture.crash();
    drop(file);
    let wanted = imported_rows(&fixture, &rows, "q8");
    assert_same(&fixture.read("kv/open"), &rows, "not closed");
    assert_same(&fixture.read("kv/closed"), &wanted, "closed");
    append(&fixture.path("kv/closed"), &rows);
    fixture.crash();
    let found = fixture.read("kv/closed");
    let whole = rows.len() / (16 << 10) * (16 << 10);
    assert_same(&found[..whole], &wanted[..whole], "blocks that were whole");
    assert!(worst_of(&rows.repeat(2), &found) < 0.02);
    fixture.check();
}

#[test]
fn a_small_write_stays_a_patch_and_a_pinned_file_stays() {
    let fixture = with_settings(&ROWS_IN_Q8);
    let rows = Random(10).floats(100 * 8 * 128);
    let path = fixture.path("kv/rows");
    fs::write(&path, &rows).unwrap();
    let patch = 0.123_456_79_f32.to_le_bytes();
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&patch, 40_000).unwrap();
    assert_same(&fs::read(&path).unwrap()[40_000..40_004], &patch, "exactly");
    assert_eq!((get(&path, "tier"), get(&path, "chain")), ("q8".to_owned(), "1".to_owned()));
    set(&path, "pin", "1").unwrap();
    append(&path, &rows[..ROW * 20]);
    assert_eq!(get(&path, "tier"), "mixed");
    let found = fs::read(&path).unwrap();
    assert_same(&found[found.len() - ROW * 16..], &rows[ROW * 4..ROW * 20], "appended to a pinned file");
    let listed = text(&std::process::Command::new("ls").arg(fixture.path("kv")).output().unwrap().stdout);
    assert_eq!(listed, "rows\n");
    fixture.check();
}
