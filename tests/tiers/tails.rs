//! `tail` and `back`: the last rows stay exact, those further back go to lower tiers when files are closed and by the
//! periodic work. Each block is compared with an import of its bytes into its tier.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::automatic::short_ticks;

use support::{
    Fixture, Place, Random, assert_same, get, refused_set, run, safetensors_file, set, try_get, wait_until,
};

/// Bytes of a row of 8x32 numbers of f32: four rows are a block, 256 a stretch.
const ROW: usize = 8 * 32 * 4;
const BLOCK: usize = 4096;
const STRETCH: usize = 64;
const ROWS: [(&str, &str); 4] =
    [("lossy", "allow"), ("dtype", "f32"), ("row", "8x32"), ("block_bytes", "4096")];

fn with_settings(pairs: &[(&str, &str)]) -> Fixture {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("kv")).unwrap();
    pairs.iter().for_each(|(key, value)| set(&fixture.path("kv"), key, value).unwrap());
    fixture
}

/// As [`with_settings`], with periodic work each second.
fn with_ticks(pairs: &[(&str, &str)]) -> Fixture {
    let mut fixture = with_settings(pairs);
    fixture.unmount();
    short_ticks(&fixture.place, "");
    fixture.mount();
    // Only collections that were used since the mount follow it.
    fs::read_dir(fixture.path("kv")).unwrap();
    fixture
}

/// The bytes after an import into a tier, in blocks of 4096 bytes.
fn encoded(bytes: &[u8], tier: &str) -> Vec<u8> {
    encoded_in(bytes, tier, "4096")
}

fn encoded_in(bytes: &[u8], tier: &str, block_bytes: &str) -> Vec<u8> {
    let place = Place::new();
    let source = place.write("rows", bytes);
    let shape = format!("{}x8x32", bytes.len() / ROW);
    let options = ["--shard-of", "rows", "--dtype", "f32", "--shape", &shape, "--block-bytes", block_bytes];
    place.import("t/r", &[&source], &[&options[..], &["--tier", &format!("{tier}:all")]].concat());
    fs::read(place.mount(&["--read-only"]).path("t/r/rows")).unwrap()
}

fn append(path: &PathBuf, bytes: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(bytes).unwrap();
}

fn tiers_of(fixture: &Fixture, name: &str) -> Vec<String> {
    let table = fs::read_to_string(fixture.path(".ctl/blocks").join(name)).unwrap();
    let tier = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("tier=")).unwrap().to_owned();
    table.lines().map(tier).collect()
}

/// A stream as the settings keep it: by block its bytes, and its tier.
struct Model {
    shown: Vec<u8>,
    tiers: Vec<&'static str>,
}

impl Model {
    fn append(&mut self, bytes: &[u8]) {
        // The last block is written anew if it was not whole.
        self.shown.extend(bytes);
        self.tiers.resize(self.shown.len().div_ceil(BLOCK), "exact");
    }

    /// Moves the whole stretches behind so many rows to a tier, from what they show.
    fn cool(&mut self, rows: usize, tier: &'static str) {
        let behind = (self.shown.len() / ROW).saturating_sub(rows) * ROW;
        let whole = behind / (STRETCH * BLOCK);
        let count = (self.tiers.len() / STRETCH).max(1);
        // The last stretch has the rest of the blocks.
        let stretches =
            if whole * STRETCH * BLOCK == self.shown.len() { whole } else { whole.min(count - 1) };
        let end = stretches * STRETCH;
        let order = ["exact", "q8", "q3"];
        let place = |tier: &str| order.iter().position(|known| *known == tier);
        let due: Vec<usize> = (0..end).filter(|index| place(self.tiers[*index]) < place(tier)).collect();
        if due.is_empty() {
            return;
        }
        let now = encoded(&self.shown, tier);
        for index in due {
            let block = index * BLOCK..(index + 1) * BLOCK;
            self.shown[block.clone()].copy_from_slice(&now[block]);
            self.tiers[index] = tier;
        }
    }
}

#[test]
fn a_tail_moves_with_appends_and_each_row_is_rounded_once_a_tier() {
    rows_go_behind_a_tail(300, 1400);
}

#[test]
fn a_short_tail_leaves_the_stretch_that_it_ends_in_until_that_is_whole() {
    rows_go_behind_a_tail(3, 500);
}

fn rows_go_behind_a_tail(tail: usize, far: usize) {
    let (rows, back) = (tail.to_string(), format!("q8,q3@{far}"));
    let settings = [&ROWS[..], &[("tail", rows.as_str()), ("back", back.as_str())]].concat();
    let mut fixture = with_settings(&settings);
    let mut random = Random(1);
    let path = fixture.path("kv/stream");
    let mut model = Model { shown: Vec::new(), tiers: Vec::new() };
    let mut seen = std::collections::BTreeSet::new();
    for (round, rows) in [700, 4, 300, 52, 1, 7, 600, 256, 900, 12, 44].into_iter().enumerate() {
        let more = random.floats(rows * 8 * 32);
        if round == 0 {
            fs::write(&path, &more).unwrap()
        } else {
            append(&path, &more)
        }
        model.append(&more);
        // Rows that pass both at once are rounded once.
        model.cool(far, "q3");
        model.cool(tail, "q8");
        assert_eq!(tiers_of(&fixture, "kv/stream"), model.tiers, "round {round}");
        assert_same(&fs::read(&path).unwrap(), &model.shown, &format!("round {round}"));
        assert_eq!(get(&path, "shape"), format!("{}x8x32", model.shown.len() / ROW));
        seen.insert(try_get(&path, "tiers").unwrap_or_default());
        if round % 4 == 2 {
            if round == 2 {
                fixture.crash()
            } else {
                fixture.remount()
            }
            assert_same(&fs::read(&path).unwrap(), &model.shown, &format!("round {round}, mounted again"));
        }
    }
    assert!(seen.len() > 4 && model.tiers.contains(&"q3"), "{seen:?}");
    assert!(get(&path, "error").starts_with("max="));
    // A row that is overwritten far back is exact, and is not rounded with its neighbours.
    let new = random.floats(8 * 32);
    OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&new, 40 * ROW as u64).unwrap();
    let found = fs::read(&path).unwrap();
    assert_same(&found[..40 * ROW], &model.shown[..40 * ROW], "before the new row");
    assert_same(&found[41 * ROW..], &model.shown[41 * ROW..], "behind the new row");
    fixture.check();
}

#[test]
fn a_container_keeps_the_tail_of_each_tensor() {
    let mut fixture = with_settings(&[
        ("lossy", "allow:q8"),
        ("tail", "100"),
        ("back", "q8,q3@1000"),
        ("block_bytes", "4096"),
    ]);
    let rows = Random(2).floats(1200 * 8 * 32);
    let small = Random(3).floats(1000);
    let end = rows.len();
    let header = serde_json::json!({
        "k": { "dtype": "F32", "shape": [1200, 8, 32], "data_offsets": [0, end] },
        "scale": { "dtype": "F32", "shape": [1000], "data_offsets": [end, end + 4000] },
    });
    let bytes = safetensors_file(&header.to_string(), &[&rows[..], &small].concat());
    let names = ["kv/m.safetensors", "kv/renamed.safetensors", "kv/synced.safetensors"];
    fs::write(fixture.path(names[0]), &bytes).unwrap();
    fs::write(fixture.path("kv/renamed.safetensors.tmp"), &bytes).unwrap();
    fs::rename(fixture.path("kv/renamed.safetensors.tmp"), fixture.path(names[1])).unwrap();
    let mut synced = fs::File::create(fixture.path(names[2])).unwrap();
    synced.write_all(&bytes).unwrap();
    synced.sync_all().unwrap();
    assert_same(&fixture.read(names[2]), &bytes, "before the close");
    drop(synced);
    let q8 = encoded(&rows, "q8");
    // 1100 rows hold three stretches, of which the last one has more blocks; lossy allows no q3.
    let border = 3 * STRETCH * BLOCK;
    let begin = bytes.len() - rows.len() - small.len();
    let wanted = [&bytes[..begin], &q8[..border], &bytes[begin + border..]].concat();
    for _ in 0..2 {
        for name in names {
            assert_same(&fixture.read(name), &wanted, name);
            let why = get(&fixture.path(name), "why");
            assert!(why.contains("back=q3 needs lossy=allow"), "{why}");
        }
        fixture.remount();
    }
    fixture.check();
}

#[test]
fn the_periodic_work_moves_what_closes_have_not() {
    let mut fixture = with_ticks(&ROWS);
    let rows = Random(4).floats(1300 * 8 * 32);
    let path = fixture.path("kv/stream");
    fs::write(&path, &rows).unwrap();
    assert_eq!(get(&path, "tier"), "exact");
    let q8 = encoded(&rows, "q8");
    let q3 = encoded(&q8, "q3");
    set(&fixture.path("kv"), "back", "q8").unwrap();
    set(&fixture.path("kv"), "policy", "auto").unwrap();
    set(&fixture.path("kv"), "tail", "600").unwrap();
    let events = || fs::read_to_string(fixture.mounted().path(".ctl/events")).unwrap();
    wait_until("rows go to q8", || events().contains("back=q8"));
    wait_until("the kernel has no old pages", || fs::read(&path).unwrap().starts_with(&q8[..BLOCK]));
    let border = 2 * STRETCH * BLOCK;
    assert_same(&fs::read(&path).unwrap(), &[&q8[..border], &rows[border..]].concat(), "after a pass");
    set(&fixture.path("kv"), "back", "q8,q3@1000").unwrap();
    wait_until("rows go to q3", || events().contains("back=q8,q3@1000"));
    wait_until("the kernel has no old pages", || fs::read(&path).unwrap().starts_with(&q3[..BLOCK]));
    let first = STRETCH * BLOCK;
    let wanted = [&q3[..first], &q8[first..border], &rows[border..]].concat();
    assert_same(&fs::read(&path).unwrap(), &wanted, "after more passes");
    // The policy leaves the tail alone, and nothing comes up again.
    set(&fixture.path("kv"), "tail", "5000").unwrap();
    set(&fixture.path("kv"), "hold", "0").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_same(&fs::read(&path).unwrap(), &wanted, "with a longer tail");
    fixture.remount();
    assert_same(&fs::read(&path).unwrap(), &wanted, "mounted again");
    fixture.check();
}

#[test]
fn a_packed_tail_survives_appends_compactions_and_moves_of_the_whole() {
    let settings = [&ROWS[..3], &[("block_bytes", "16384"), ("arrive", "packed")]].concat();
    let mut fixture = with_settings(&[&settings[..], &[("tail", "100"), ("back", "q8")]].concat());
    let rows = Random(9).floats(3300 * 8 * 32);
    let q8 = encoded_in(&rows, "q8", "16384");
    let path = fixture.path("kv/stream");
    let (first, stretch) = (2600 * ROW, STRETCH * 16_384);
    fs::write(&path, &rows[..first]).unwrap();
    let tiers = tiers_of(&fixture, "kv/stream");
    assert!(tiers[..STRETCH].iter().all(|tier| tier == "q8"), "{tiers:?}");
    assert!(tiers[STRETCH..tiers.len() - 1].iter().all(|tier| tier == "packed"), "{tiers:?}");
    assert_same(&fs::read(&path).unwrap(), &[&q8[..stretch], &rows[stretch..first]].concat(), "packed");
    let mapping = support::Mapping::of(&path, libc::MAP_SHARED);
    append(&path, &rows[first..]);
    let wanted = [&q8[..2 * stretch], &rows[2 * stretch..]].concat();
    assert_same(&fs::read(&path).unwrap(), &wanted, "appended");
    // The mapping shows each page before or after.
    let old = [&q8[..stretch], &rows[stretch..first]].concat();
    for (at, page) in mapping.bytes().chunks(4096).enumerate() {
        let at = at * 4096;
        assert!([&old, &wanted].into_iter().any(|bytes| page == &bytes[at..at + page.len()]), "page at {at}");
    }
    drop(mapping);
    fixture.while_unmounted(|store| {
        run(["compact".as_ref(), store.as_os_str()]).ok();
    });
    assert_same(&fs::read(&path).unwrap(), &wanted, "compacted");
    set(&path, "tier", "q8").unwrap();
    assert_eq!(get(&path, "tier"), "q8");
    assert_same(&fs::read(&path).unwrap(), &q8, "all of it");
    fixture.check();
}

#[test]
fn rows_in_place_go_without_consent_and_each_from_the_source() {
    let rows = Random(5).floats(1300 * 8 * 32);
    let header = serde_json::json!({
        "k": { "dtype": "F32", "shape": [1300, 8, 32], "data_offsets": [0, rows.len()] },
    });
    let place = Place::new();
    let source = place.write("m.safetensors", safetensors_file(&header.to_string(), &rows));
    place.import("t/c", &[&source], &["--in-place", "--block-bytes", "4096"]);
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let tensor = mounted.path("t/c/k");
    let has = |tier: &str| try_get(&tensor, "tiers").is_ok_and(|shares| shares.contains(tier));
    set(&mounted.path("t/c"), "tail", "600").unwrap();
    set(&mounted.path("t/c"), "back", "q8").unwrap();
    wait_until("rows go to q8", || has("q8"));
    set(&mounted.path("t/c"), "back", "q8,q3@1000").unwrap();
    wait_until("rows go to q3", || has("q3"));
    let (first, border) = (STRETCH * BLOCK, 2 * STRETCH * BLOCK);
    let (q8, q3) = (encoded(&rows, "q8"), encoded(&rows, "q3"));
    wait_until("the kernel has no old pages", || fs::read(&tensor).unwrap().starts_with(&q3[..BLOCK]));
    let wanted = [&q3[..first], &q8[first..border], &rows[border..]].concat();
    assert_same(&fs::read(&tensor).unwrap(), &wanted, "from the source");
    set(&mounted.path("t/c"), "back", "none").unwrap();
    set(&tensor, "tier", "exact@0:600").unwrap();
    assert_same(&fs::read(&tensor).unwrap(), &[&rows[..border], &wanted[border..]].concat(), "up again");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn without_consent_pins_or_both_settings_rows_stay() {
    let fixture = with_ticks(&ROWS[1..]);
    let kv = fixture.path("kv");
    let rows = Random(6).floats(1300 * 8 * 32);
    let write = |name: &str| {
        let path = kv.join(name);
        fs::write(&path, &rows).unwrap();
        path
    };
    set(&kv, "back", "q8").unwrap();
    let alone = write("alone");
    set(&kv, "tail", "100").unwrap();
    let denied = write("denied");
    assert_eq!(get(&denied, "why"), "rows are kept above q8: back=q8 needs lossy=allow or lossy=allow:q8");
    let odd = kv.join("odd");
    fs::write(&odd, &rows[4..]).unwrap();
    set(&denied, "pin", "1").unwrap();
    set(&kv, "lossy", "allow").unwrap();
    wait_until("a pass", || get(&alone, "tier") == "mixed");
    assert_eq!(get(&denied, "tier"), "exact");
    assert_same(&fs::read(&denied).unwrap(), &rows, "pinned");
    assert_same(&fs::read(&odd).unwrap(), &rows[4..], "no tensor");
    set(&denied, "pin", "0").unwrap();
    wait_until("another pass", || get(&denied, "tier") == "mixed");
    // The tail stays exact, whatever `arrive` says; tensors without a tail follow it.
    set(&kv, "arrive", "q8").unwrap();
    assert_eq!(get(&write("both"), "tier"), "mixed");
    set(&kv, "back", "none").unwrap();
    assert_eq!(get(&write("arrives"), "tier"), "q8");
    let shown = run(["get".as_ref(), kv.as_os_str()]).ok();
    assert!(shown.contains("tail=100\n") && shown.contains("back=none\n"), "{shown}");
    for (key, value) in [
        ("tail", "-1"),
        ("tail", "0"),
        ("tail", "1e3"),
        ("back", "exact"),
        ("back", "q3,q8@5"),
        ("back", "q8,q3"),
        ("back", ""),
    ] {
        refused_set(&kv, key, value, Errno::INVAL);
    }
    for key in ["tail", "back"] {
        assert!(refused_set(&alone, key, "5", Errno::INVAL).contains("directories"), "{key}");
    }
    fixture.check();
}

#[test]
fn blocks_that_cannot_be_encoded_stay_and_the_others_go() {
    let fixture = with_ticks(&[&ROWS[..], &[("tail", "100"), ("back", "q8")]].concat());
    let mut rows = Random(7).floats(1300 * 8 * 32);
    rows[10 * BLOCK..10 * BLOCK + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = fixture.path("kv/stream");
    fs::write(&path, &rows).unwrap();
    let tiers = tiers_of(&fixture, "kv/stream");
    assert_eq!((tiers[9].as_str(), tiers[10].as_str(), tiers[11].as_str()), ("q8", "exact", "q8"));
    // Passes try it once more only.
    let appended = || fs::metadata(fixture.place.store().join("demo/m/meta.log")).unwrap().len();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let before = appended();
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(appended(), before);
    let found = fs::read(&path).unwrap();
    assert_same(&found[10 * BLOCK..11 * BLOCK], &rows[10 * BLOCK..11 * BLOCK], "the block");
    fixture.check();
}

#[test]
fn a_read_of_old_rows_while_the_tail_moves_sees_either_version() {
    let fixture = with_settings(&[&ROWS[..], &[("tail", "256"), ("back", "q8")]].concat());
    let path = fixture.path("kv/stream");
    let rows = Random(8).floats(256 * 20 * 8 * 32);
    let q8 = encoded(&rows, "q8");
    let first = 256 * ROW;
    fs::write(&path, &rows[..first]).unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let check = |path: &Path| {
        // In one read: each page is of one version. A decoded copy has the rows that were there when it was opened.
        let file = fs::File::open(path).unwrap();
        let mut found = vec![0; file.metadata().unwrap().len() as usize];
        let read = support::read_at(&file, &mut found, 0);
        assert!(read.is_multiple_of(BLOCK));
        found.truncate(read);
        for (index, block) in found.chunks(BLOCK).enumerate() {
            let at = index * BLOCK;
            let is_one = [&rows, &q8].into_iter().any(|bytes| block == &bytes[at..at + block.len()]);
            assert!(is_one, "block {index} of {}", found.len());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                check(&path);
            }
        });
        rows[first..].chunks(first / 2).for_each(|more| append(&path, more));
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    check(&path);
    let border = rows.len() - first;
    assert_same(&fs::read(&path).unwrap(), &[&q8[..border], &rows[border..]].concat(), "at the end");
    fixture.check();
}

#[test]
fn a_damaged_row_stops_the_tail_of_no_other_and_what_went_before_is_shown() {
    let mut fixture = with_settings(&ROWS);
    let rows = Random(10).floats(1300 * 8 * 32);
    let border = 2 * STRETCH * BLOCK;
    for name in ["a", "b"] {
        fs::write(fixture.path("kv").join(name), &rows).unwrap();
    }
    let table = fs::read_to_string(fixture.path(".ctl/blocks/kv/a")).unwrap();
    let file = table.split(' ').find_map(|word| word.strip_prefix("file=")).unwrap().trim().to_owned();
    fixture.unmount();
    short_ticks(&fixture.place, "");
    let data = fixture.place.store().join("demo/m").join(file);
    let data = OpenOptions::new().write(true).open(data).unwrap();
    // In the second stretch.
    data.write_all_at(b"damage", (STRETCH + 9) as u64 * BLOCK as u64).unwrap();
    fixture.mount();
    let (a, b) = (fixture.path("kv/a"), fixture.path("kv/b"));
    let first = |path: &Path| {
        let mut block = vec![0; BLOCK];
        fs::File::open(path).unwrap().read_exact_at(&mut block, 0).unwrap();
        block
    };
    // The kernel has the page.
    assert_same(&first(&a), &rows[..BLOCK], "before");
    let mapping = support::Mapping::of(&a, libc::MAP_SHARED);
    assert_same(&mapping.bytes()[..BLOCK], &rows[..BLOCK], "mapped before");
    set(&fixture.path("kv"), "tail", "100").unwrap();
    set(&fixture.path("kv"), "back", "q8").unwrap();
    let q8 = encoded(&rows, "q8");
    wait_until("the other file goes", || {
        tiers_of(&fixture, "kv/b")[..2 * STRETCH].iter().all(|it| it == "q8")
    });
    wait_until("the kernel has no old page", || first(&a) == q8[..BLOCK]);
    wait_until("nor has the mapping", || mapping.bytes()[..BLOCK] == q8[..BLOCK]);
    let tiers = tiers_of(&fixture, "kv/a");
    assert!(tiers[STRETCH..2 * STRETCH].iter().all(|tier| tier == "exact"), "{tiers:?}");
    assert!(tiers[2 * STRETCH..4 * STRETCH].iter().all(|tier| tier == "q8"), "{tiers:?}");
    assert_same(&fs::read(&b).unwrap()[..border], &q8[..border], "the other");
    let refusals = || {
        let events = fs::read_to_string(fixture.mounted().path(".ctl/events")).unwrap();
        events.lines().filter(|line| line.contains("refusal") && line.contains("back=q8")).count()
    };
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(refusals(), 1);
}
