//! Random histories over all kinds of files and all operations at once: tiers, packs, children of differences, clones,
//! pins, links, shared data files, mapped writes, held mappings, small disks, and a daemon that is killed between
//! requests and inside them. A naive file system says what may be read.
//!
//! `TIERFS_HISTORY_SEED` and `TIERFS_HISTORY_OPERATIONS` change the seed and the number of operations of a history,
//! `TIERFS_HISTORY_DISK` the size of its disk in MiB (0 for that of the machine).

mod mapping;
mod model;
mod steps;
mod world;

use support::scale;
use world::World;

const OPERATIONS: u64 = 700;

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

fn history(disk_mebibytes: u64, salt: u64) {
    let seed = number("TIERFS_HISTORY_SEED", u64::from(std::process::id()) << 8 | salt);
    let operations = number("TIERFS_HISTORY_OPERATIONS", OPERATIONS * u64::from(scale()));
    let disk = number("TIERFS_HISTORY_DISK", disk_mebibytes);
    println!(
        "TIERFS_HISTORY_SEED={seed} TIERFS_HISTORY_DISK={disk} TIERFS_HISTORY_OPERATIONS={operations} makes the same history"
    );
    let mut world = World::new(seed, disk);
    while world.done < operations {
        world.round();
    }
    world.finish();
}

/// For scripts/test-long.sh.
mod long {
    use super::history;

    #[test]
    fn histories_on_a_roomy_disk_agree_with_a_naive_file_system() {
        history(0, 1);
    }

    #[test]
    fn histories_on_a_disk_that_is_full_at_times_agree_with_a_naive_file_system() {
        history(12, 2);
    }

    #[test]
    fn histories_on_a_disk_that_is_full_most_of_the_time_agree_with_a_naive_file_system() {
        history(6, 3);
    }
}
