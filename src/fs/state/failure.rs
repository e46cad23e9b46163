//! Failures of requests: errors are counted and logged, and a panic in one request fails that request only, since
//! a reply that is dropped unsent answers EIO.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::control::Mounted;
use crate::fs::kernel::errno::{Errno, errno};
use crate::model::{Error, ErrorKind};
use crate::store::EventKind;
use crate::trace;

/// Counts and logs an error. Returns the error number for the program.
pub(in crate::fs) fn failed(mounted: &Mounted, doing: &str, error: &Error) -> Errno {
    let counters = &mounted.counters;
    match error.kind() {
        ErrorKind::Corrupt => {
            counters.corrupt.fetch_add(1, Ordering::Relaxed);
            counters.errors.fetch_add(1, Ordering::Relaxed);
            log::error!("{doing}: {error}");
        }
        ErrorKind::Io | ErrorKind::Unsupported => {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            log::error!("{doing}: {error}");
        }
        _ => log::debug!("{doing}: {error}"),
    }
    traced(error)
}

/// Logs an error that is the program's. Returns the error number for the program.
pub(in crate::fs) fn refused(doing: &str, error: &Error) -> Errno {
    log::debug!("{doing}: {error}");
    traced(error)
}

fn traced(error: &Error) -> Errno {
    let number = errno(error);
    trace::note_errno(number.number());
    // Other errors of these kinds are answers: there is no such name or attribute.
    if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Absent) {
        trace::note_failure(error);
    }
    number
}

/// Runs one request and logs a panic in it. The dropped reply has answered EIO by then.
pub(in crate::fs) fn guarded(mounted: &Mounted, operation: &str, request: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(request)).is_err() {
        let text = "a bug in tierfs: the request was answered with an error";
        log::error!("{operation}: {text}");
        mounted.store().events().tell(EventKind::Panic, "", operation, text);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::guarded;
    use crate::control::{Mounted, controls};
    use crate::model::{Owner, StoreId};
    use crate::store::Verify;
    use crate::store::disk::Disk;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::{Access, Store};
    use crate::vfs::{ListMode, Vfs};

    #[test]
    fn a_panic_in_a_request_is_logged_and_contained() {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        Store::create(&*disk, StoreId(1)).unwrap();
        let store = Arc::new(Store::open(disk, Access::Write, "").unwrap());
        let vfs =
            Vfs::new(store.clone(), ListMode::Files, Verify::First, Owner { uid: 0, gid: 0 }, controls());
        let mounted = Mounted::new(Arc::new(vfs), String::new(), toml::Table::new());
        guarded(&mounted, "lookup", || ());
        guarded(&mounted, "read", || panic!("a bug"));
        let (start, end) = store.events().range();
        let mut told = vec![0; (end - start) as usize];
        store.events().read(start, &mut told).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
        assert_eq!((&told["kind"], &told["cause"]), (&"panic".into(), &"read".into()));
    }
}
