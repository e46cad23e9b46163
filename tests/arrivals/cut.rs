//! The power goes at any moment: what was synced reads as it was written.

use std::sync::Arc;

use tierfs::store::disk::Disk;

use crate::disk::CutDisk;
use crate::history::History;
use crate::support::{Random, scale};

#[test]
fn after_a_power_cut_what_was_synced_is_there_and_nothing_else_reads_wrong() {
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
            // And again, after what opening has done.
            let again = after.cut(&mut chance, 2);
            let disk: Arc<dyn Disk> = Arc::new(again);
            History::check(&history.names, &History::open(&disk), &format!("{context}, cut again"));
        }
    }
}
