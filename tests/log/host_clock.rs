//! A host with a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tierfs::model::{ErrorKind, Owner};
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::{Access, Clock, ROOT, Store, now_nanoseconds, now_seconds, set_host_clock};

use crate::fixture::STORE;

/// 2001-09-09, and a second more at each question.
static SECONDS: AtomicU64 = AtomicU64::new(1_000_000_000);

struct Counting;

impl Clock for Counting {
    fn seconds(&self) -> u64 {
        SECONDS.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn a_store_takes_every_time_from_the_clock_of_its_host() {
    set_host_clock(Box::new(Counting)).unwrap();
    assert_eq!(set_host_clock(Box::new(Counting)).unwrap_err().kind(), ErrorKind::Busy);
    let begin = now_seconds();
    let year = begin..begin + 31_536_000;
    assert!(year.contains(&(now_nanoseconds() as u64 / 1_000_000_000)));
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    Store::create(&*disk, STORE).unwrap();
    let store = Store::open(disk, Access::Write, "").unwrap();
    let collection = store.collection_made("t", "c", Owner { uid: 0, gid: 0 }).unwrap();
    let state = collection.state();
    let root = state.node(ROOT).unwrap();
    assert!(year.contains(&state.created_at()));
    assert!(year.contains(&(root.entry.ctime as u64 / 1_000_000_000)));
    assert!(year.contains(&store.ticks().seconds()));
    let then = tierfs::model::Instant::now();
    assert!(then.elapsed() >= Duration::from_secs(1));
    assert!(then + Duration::from_secs(1_000_000) > tierfs::model::Instant::now());
}
