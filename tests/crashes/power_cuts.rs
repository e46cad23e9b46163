//! The power fails at any moment: synced bytes read as they were written.

use std::sync::Arc;

use tierfs::model::{CollectionName, Owner};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::Verify;
use tierfs::store::disk::Disk;
use tierfs::vfs::open::{self, Changes, OpenFiles};

use crate::history::{History, STORE};
use crate::power_cut_disk::CutDisk;
use support::{Random, container_of, scale};

#[test]
fn synced_files_survive_a_power_cut_and_no_file_reads_wrong_bytes() {
    for seed in 0..60 * u64::from(scale()) {
        let cut_disk = CutDisk::default();
        let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
        let mut history = History::new(&disk, seed);
        let mut chance = Random(seed + 1000);
        for step in 0..30 {
            history.step();
            if step % 3 > 0 {
                continue;
            }
            let kept = chance.below(5);
            let context = format!("seed {seed}, step {step}, {kept} of 4 kept");
            let after = cut_disk.cut(&mut chance, kept);
            let disk: Arc<dyn Disk> = Arc::new(after.clone());
            let collection = History::open(&disk);
            History::check(&history.names, &collection, &context);
            History::check_owners(&collection, |path| after.len(path).max(u64::MAX * u64::from(kept < 4)));
            drop(collection);
            // The power fails again after the recovery.
            let again = after.cut(&mut chance, 2);
            let disk: Arc<dyn Disk> = Arc::new(again);
            History::check(&history.names, &History::open(&disk), &format!("{context}, cut again"));
        }
    }
}

#[test]
fn a_file_that_grew_before_a_kill_survives_a_power_cut_after_recovery_and_sync() {
    let cut_disk = CutDisk::default();
    let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
    let mut chance = Random(77);
    disk.create_directory("t").unwrap();
    let collection = Arc::new(
        Collection::create(&disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
            .unwrap(),
    );
    open::create(&collection, ROOT, b"f", 0o644, Owner { uid: 0, gid: 0 }).unwrap();
    let find = |collection: &Collection| collection.state().directory(ROOT).unwrap().get(b"f").unwrap();
    let table = OpenFiles::default();
    let open_file = table.open(&collection, find(&collection), Verify::First).unwrap();
    let bytes = chance.bytes(256 << 10);
    open_file.write(0, &bytes[..128 << 10]).unwrap();
    open_file.flush().unwrap();
    collection.sync().unwrap();
    open_file.write(128 << 10, &bytes[128 << 10..]).unwrap();
    open_file.flush().unwrap();
    // Killed: the system still has all written bytes, and the next opening of the store finds them.
    drop((open_file, table, collection));
    History::open(&disk).sync().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(cut_disk.cut(&mut chance, 0));
    let collection = History::open(&disk);
    let table = OpenFiles::default();
    let open_file = table.open(&collection, find(&collection), Verify::First).unwrap();
    let mut found = vec![0; bytes.len()];
    assert_eq!(open_file.read(0, &mut found).unwrap(), bytes.len());
    assert!(found == bytes, "it reads otherwise");
}

#[test]
fn a_container_written_out_of_order_never_reads_wrong_bytes_and_is_whole_after_its_sync() {
    for seed in 0..8 * u64::from(scale()) {
        let cut_disk = CutDisk::default();
        let disk: Arc<dyn Disk> = Arc::new(cut_disk.clone());
        let mut chance = Random(seed + 500);
        disk.create_directory("t").unwrap();
        let collection = Arc::new(
            Collection::create(
                &disk,
                STORE,
                CollectionName::new("t", "c"),
                1,
                Owner { uid: 0, gid: 0 },
                0o755,
            )
            .unwrap(),
        );
        let name = b"m.safetensors";
        let node = open::create(&collection, ROOT, name, 0o644, Owner { uid: 0, gid: 0 }).unwrap();
        let bytes = container_of(&mut chance, &[("a", 40_001), ("b", 3), ("c", 30_000)]);
        let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
        let check = |after: CutDisk, is_whole: bool, context: &str| {
            let disk: Arc<dyn Disk> = Arc::new(after);
            let collection = History::open(&disk);
            let Some(node) = collection.state().directory(ROOT).unwrap().get(name) else {
                assert!(!is_whole, "{context}: gone");
                return;
            };
            let open_file = OpenFiles::default().open(&collection, node, Verify::First).unwrap();
            let len = open_file.bytes() as usize;
            assert!(!is_whole || len == bytes.len(), "{context}: {len} bytes");
            for at in (0..len).step_by(1000) {
                let wanted = &bytes[at..len.min(at + 1000)];
                let mut found = vec![0; wanted.len()];
                match open_file.read(at as u64, &mut found) {
                    Ok(_) if is_whole => assert!(found == wanted, "{context}: other bytes at {at}"),
                    Ok(_) => {
                        let right =
                            found.iter().zip(wanted).all(|(found, wanted)| *found == 0 || found == wanted);
                        assert!(right, "{context}: bytes at {at} that nobody wrote");
                    }
                    Err(error) => assert!(!is_whole, "{context}: {error}"),
                }
            }
        };
        let mut pieces: Vec<usize> = (0..bytes.len().div_ceil(23_000)).collect();
        for step in 0..pieces.len() {
            let piece = pieces.swap_remove(chance.below(pieces.len()));
            let (from, end) = (piece * 23_000, bytes.len().min((piece + 1) * 23_000));
            open_file.write(from as u64, &bytes[from..end]).unwrap();
            match chance.below(3) {
                0 => drop(open_file.flush().unwrap()),
                1 => {
                    open_file.flush().unwrap();
                    collection.sync().unwrap();
                }
                _ => {}
            }
            let kept = chance.below(5);
            check(
                cut_disk.cut(&mut chance, kept),
                false,
                &format!("seed {seed}, step {step}, {kept} of 4 kept"),
            );
        }
        open_file.flush_closed(&mut Changes::default()).unwrap();
        collection.sync().unwrap();
        assert!(collection.state().nodes().filter(|node| node.file().is_some()).count() == 4, "its tensors");
        History::check_owners(&collection, |path| cut_disk.len(path));
        check(cut_disk.cut(&mut chance, 0), true, &format!("seed {seed}"));
    }
}
