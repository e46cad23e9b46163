//! Fetches pieces while no lock of a collection is held: a read that needs bytes of a remote ends, the bytes
//! are fetched, and the read begins again.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::clones::shared_file::SharedFile;

/// A read begins again at most this often: others may evict the bytes meanwhile. The last time it waits for
/// them with its locks.
const TRIES: usize = 3;

/// A range of a file that a read lacks.
struct Wanted {
    file: Arc<SharedFile>,
    offset: u64,
    len: u64,
}

thread_local! {
    /// The ranges that the read of this thread lacks; `None` outside such a read.
    static WANTED: RefCell<Option<Vec<Wanted>>> = const { RefCell::new(None) };
}

/// Ends a read also if it panics.
struct Ending;

impl Drop for Ending {
    fn drop(&mut self) {
        WANTED.with_borrow_mut(|wanted| *wanted = None);
    }
}

/// Calls `work`, which reads. If it lacks bytes of a remote, they are fetched after it has returned an
/// error, and it is called again. It must have no other effect until it succeeds.
pub fn fetched_outside<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    if WANTED.with_borrow(Option::is_some) {
        // The outer read fetches.
        return work();
    }
    for _ in 0..TRIES {
        let (done, wanted) = {
            let _ending = Ending;
            WANTED.with_borrow_mut(|wanted| *wanted = Some(Vec::new()));
            let done = work();
            (done, WANTED.with_borrow_mut(Option::take).unwrap_or_default())
        };
        if done.is_ok() || wanted.is_empty() {
            return done;
        }
        for Wanted { file, offset, len } in wanted {
            let brought = file.bring(offset, len);
            brought.map_err(|error| Error::io(format!("reading {}", file.path()), error))?;
        }
    }
    work()
}

/// Notes that the read of this thread lacks a range. `None` outside such a read, which then has to fetch the
/// range itself; otherwise the error that ends it.
pub(super) fn noted(file: &Arc<SharedFile>, offset: u64, len: u64) -> Option<io::Error> {
    WANTED.with_borrow_mut(|wanted| {
        wanted.as_mut().map(|wanted| {
            wanted.push(Wanted { file: file.clone(), offset, len });
            io::Error::new(io::ErrorKind::WouldBlock, "its bytes are fetched first")
        })
    })
}
