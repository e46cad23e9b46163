//! Fetches pieces while no lock of a collection is held: a read that needs bytes of a remote ends, the bytes
//! are fetched, and the read begins again.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use crate::model::{Error, Result};
use crate::store::clones::shared_file::SharedFile;
use crate::store::disk::FarFile;

/// A read begins again at most this often for bytes of a clone: others may evict them meanwhile. The last time it waits for
/// them with its locks. Bytes of an object at a URL are kept until the read ends, so it never lacks them twice.
const TRIES: usize = 3;

/// A range of a file that a read lacks.
enum Wanted {
    OfClone { file: Arc<SharedFile>, offset: u64, len: u64 },
    Far { file: Arc<dyn FarFile>, offset: u64, len: usize },
}

/// A range of an object at a URL that was fetched for a read.
struct Brought {
    file: Arc<dyn FarFile>,
    offset: u64,
    bytes: Vec<u8>,
}

thread_local! {
    /// The ranges that the read of this thread lacks; `None` outside such a read.
    static WANTED: RefCell<Option<Vec<Wanted>>> = const { RefCell::new(None) };
    /// The ranges that were fetched for it, and that no disk here need keep.
    static BROUGHT: RefCell<Vec<Brought>> = const { RefCell::new(Vec::new()) };
}

/// Drops what was fetched for a read, also if that panics.
struct Dropping;

impl Drop for Dropping {
    fn drop(&mut self) {
        BROUGHT.with_borrow_mut(Vec::clear);
    }
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
    let _dropping = Dropping;
    let mut tries = 0;
    while tries < TRIES {
        let (done, wanted) = {
            let _ending = Ending;
            WANTED.with_borrow_mut(|wanted| *wanted = Some(Vec::new()));
            let done = work();
            (done, WANTED.with_borrow_mut(Option::take).unwrap_or_default())
        };
        if done.is_ok() || wanted.is_empty() {
            return done;
        }
        tries += usize::from(wanted.iter().any(|wanted| matches!(wanted, Wanted::OfClone { .. })));
        for wanted in wanted {
            match wanted {
                Wanted::OfClone { file, offset, len } => {
                    let brought = file.bring(offset, len);
                    brought.map_err(|error| Error::io(format!("reading {}", file.path()), error))?;
                }
                Wanted::Far { file, offset, len } => {
                    let mut bytes = vec![0; len];
                    let read = file.read_exact_at(&mut bytes, offset);
                    read.map_err(|error| Error::io(format!("reading {len} bytes at {offset}"), error))?;
                    BROUGHT.with_borrow_mut(|brought| brought.push(Brought { file, offset, bytes }));
                }
            }
        }
    }
    work()
}

/// Notes that the read of this thread lacks a range. `None` outside such a read, which then has to fetch the
/// range itself; otherwise the error that ends it.
pub(super) fn noted(file: &Arc<SharedFile>, offset: u64, len: u64) -> Option<io::Error> {
    WANTED.with_borrow_mut(|wanted| {
        wanted.as_mut().map(|wanted| {
            wanted.push(Wanted::OfClone { file: file.clone(), offset, len });
            fetched_first()
        })
    })
}

/// The same of an object at a URL.
pub(in crate::store) fn noted_far(file: &Arc<dyn FarFile>, offset: u64, len: usize) -> Option<io::Error> {
    WANTED.with_borrow_mut(|wanted| {
        wanted.as_mut().map(|wanted| {
            wanted.push(Wanted::Far { file: file.clone(), offset, len });
            fetched_first()
        })
    })
}

/// Copies a range of an object at a URL, if it was fetched for the read of this thread.
pub(in crate::store) fn brought(file: &Arc<dyn FarFile>, out: &mut [u8], offset: u64) -> bool {
    BROUGHT.with_borrow(|brought| {
        let is_in = |one: &&Brought| Arc::ptr_eq(&one.file, file) && one.offset == offset;
        let found = brought.iter().find(|one| is_in(one) && one.bytes.len() == out.len());
        found.is_some_and(|one| {
            out.copy_from_slice(&one.bytes);
            true
        })
    })
}

fn fetched_first() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "its bytes are fetched first")
}
