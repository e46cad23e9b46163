//! `unit=block`: the policy moves the stretches of a table by their own use, which reads and mappings show.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use crate::automatic::short_ticks;
use support::{
    Mapping, Place, Random, assert_same, get, refused_set, run, safetensors_file, set, wait_until,
};

const STRETCH: usize = 64 * 4096;

/// Ends the reader, also when the test fails.
struct Ender<'a>(&'a AtomicBool);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn hot_rows_of_a_table_stay_exact_and_come_back_while_the_others_cool() {
    let rows = Random(1).floats(STRETCH);
    let header = serde_json::json!({
        "embed": { "dtype": "F32", "shape": [4096, 64], "data_offsets": [0, rows.len()] },
    });
    assert_eq!(rows.len(), 4 * STRETCH);
    let place = Place::new();
    let source = place.write("m.safetensors", safetensors_file(&header.to_string(), &rows));
    place.import("t/c", &[&source], &["--in-place", "--block-bytes", "4096"]);
    place.import("t/q5", &[&source], &["--tier", "q5:all", "--block-bytes", "4096"]);
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let q5 = fs::read(mounted.path("t/q5/embed")).unwrap();
    let table = mounted.path("t/c/embed");
    // By stretch, where all blocks of each are of one tier.
    let tiers = || {
        let text = fs::read_to_string(mounted.path("t/c/.ctl/blocks/embed")).unwrap();
        let tier =
            |line: &str| line.split(' ').find_map(|word| word.strip_prefix("tier=")).unwrap().to_owned();
        let all: Vec<String> = text.lines().map(tier).collect();
        all.chunks(64)
            .map(
                |some| {
                    if some.iter().all(|tier| *tier == some[0]) { some[0].clone() } else { "mixed".into() }
                },
            )
            .collect::<Vec<_>>()
    };
    let (ended, is_first_used) = (AtomicBool::new(false), AtomicBool::new(false));
    // A descriptor that was opened before is read by the kernel itself.
    set(&mounted.path("t/c"), "unit", "block").unwrap();
    set(&mounted.path("t/c"), "policy", "auto:q5").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::open(&table).unwrap();
            let mapping = Mapping::of(&table, libc::MAP_SHARED);
            let bytes = mapping.bytes();
            // Otherwise the kernel reads all of so short a table around each page.
            // SAFETY: the advice changes no byte of the mapping, which outlives the call.
            let advised = unsafe { libc::madvise(bytes.as_ptr() as *mut _, bytes.len(), libc::MADV_RANDOM) };
            assert_eq!(advised, 0);
            let mut row = [0; 256];
            while !ended.load(Ordering::Relaxed) {
                file.read_exact_at(&mut row, 2 * STRETCH as u64 + 5000).unwrap();
                std::hint::black_box(mapping.bytes()[3 * STRETCH + 70_000]);
                if is_first_used.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut row, 100).unwrap();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let ender = Ender(&ended);
        wait_until("the others are cold", || tiers() == ["q5", "q5", "exact", "exact"]);
        is_first_used.store(true, Ordering::Relaxed);
        wait_until("the first is hot", || tiers()[0] == "exact");
        assert_eq!(tiers(), ["exact", "q5", "exact", "exact"]);
        drop(ender);
    });
    set(&mounted.path("t/c"), "policy", "manual").unwrap();
    let wanted = [&rows[..STRETCH], &q5[STRETCH..2 * STRETCH], &rows[2 * STRETCH..]].concat();
    assert_same(&fs::read(&table).unwrap(), &wanted, "the table");
    assert_eq!(get(&table, "tiers"), "exact=75% q5=25%");
    assert!(fs::read_to_string(mounted.path(".ctl/events")).unwrap().contains("rows 0:2048, "));
    refused_set(&table, "unit", "row", Errno::INVAL);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&["--read-only"]);
    assert_same(&fs::read(mounted.path("t/c/embed")).unwrap(), &wanted, "mounted again");
}

#[test]
fn a_table_of_very_many_pieces_moves_as_a_whole() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir_all(mounted.path("t/c")).unwrap();
    mounted.unmount();
    short_ticks(&place, "");
    let mounted = place.mount(&[]);
    let directory = mounted.path("t/c");
    for (key, value) in [("dtype", "f32"), ("row", "128"), ("block_bytes", "4096")] {
        set(&directory, key, value).unwrap();
    }
    let rows = Random(2).floats(600 * 128);
    let names: Vec<String> = (0..600).map(|number| format!("p{number:03}")).collect();
    for (name, row) in names.iter().zip(rows.chunks(512)) {
        fs::write(directory.join(name), row).unwrap();
    }
    let table = directory.join("w");
    let words = ["join".into(), table.clone().into_os_string()].into_iter();
    let words = words.chain(names.iter().map(std::ffi::OsString::from));
    run(words.chain(["--dtype", "f32", "--shape", "600x128"].map(std::ffi::OsString::from))).ok();
    names.iter().for_each(|name| fs::remove_file(directory.join(name)).unwrap());
    let settings = [("lossy", "allow"), ("down_below", "1000"), ("unit", "block"), ("policy", "auto")];
    settings.iter().for_each(|(key, value)| set(&table, key, value).unwrap());
    wait_until("all rows are cold", || get(&table, "tier") == "q8");
    let events = || fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    wait_until("the move is told", || events().contains("migration"));
    let (all, is_move) = (events(), |line: &&str| line.contains("migration"));
    let moves: Vec<&str> = all.lines().filter(is_move).collect();
    assert!(moves.len() == 1 && !moves[0].contains("rows "), "{moves:?}");
    assert_eq!(fs::read(&table).unwrap().len(), rows.len());
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}
