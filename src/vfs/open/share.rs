//! Lets files share the data file of another with the same bytes.
//!
//! A container is compared when it is closed, before a program sees its tensors, which are new nodes afterwards. A plain
//! file waits until it has been closed for a while and nobody has it open: its close takes the same time whatever the
//! tenant has, and a file that lives for seconds is never compared. Its bytes are compared without a lock; one batch then
//! moves it, unless it was changed meanwhile.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::format::log::catalog::Content;
use crate::ingest::{MountedFile, Same};
use crate::model::{EntryId, Instant, ObjectId, Progress, Result, Silent};
use crate::store::{Collection, Object, Place};
use crate::vfs::open::Changes;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::layout::Layout;

/// Most files that wait. The oldest of more are not compared.
const WAITING_MAX: usize = 1 << 20;

/// Closed files that wait for a comparison, in the order of their closes.
#[derive(Default)]
pub struct ClosedFiles {
    /// Held briefly; no other lock is taken with it.
    waiting: Mutex<VecDeque<ClosedFile>>,
    /// Held while files are compared, and while a collection must have no open file. Held across I/O; comes before all
    /// other locks.
    comparing: Mutex<()>,
    /// Number of threads that wait for the end of a comparison.
    stops: AtomicUsize,
}

/// The right to compare files, and whether to go on.
pub struct Comparing<'a> {
    closed: &'a ClosedFiles,
    progress: &'a dyn Progress,
    _alone: MutexGuard<'a, ()>,
}

impl Progress for Comparing<'_> {
    fn advance(&self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.closed.stops.load(Ordering::Acquire) > 0 || self.progress.is_cancelled()
    }
}

/// A closed file. It stays neither open nor keeps its collection open.
pub struct ClosedFile {
    pub collection: Weak<Collection>,
    pub node: EntryId,
    /// When it was closed, or was found open again.
    pub since: Instant,
}

impl ClosedFile {
    /// The same file, as one that rests from now on.
    pub fn again(self) -> ClosedFile {
        ClosedFile { since: Instant::now(), ..self }
    }
}

impl ClosedFiles {
    /// Notes a file that was closed, if it is to be compared.
    pub fn note(&self, open_file: &OpenFile) {
        if open_file.takes_comparison() {
            let collection = Arc::downgrade(open_file.collection());
            self.add(ClosedFile { collection, node: open_file.node(), since: Instant::now() });
        }
    }

    pub fn add(&self, file: ClosedFile) {
        let mut waiting = self.waiting.lock();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(file);
    }

    /// Begins a comparison, which ends early if `progress` is cancelled or a collection must have no open file. `None`
    /// while that lasts, or another comparison.
    pub fn compare<'a>(&'a self, progress: &'a dyn Progress) -> Option<Comparing<'a>> {
        let alone = self.comparing.try_lock()?;
        Some(Comparing { closed: self, progress, _alone: alone })
    }

    /// Waits for the end of a comparison, which comes soon, and keeps others from beginning while the value lives.
    pub fn stop_comparing(&self) -> MutexGuard<'_, ()> {
        self.stops.fetch_add(1, Ordering::AcqRel);
        let alone = self.comparing.lock();
        self.stops.fetch_sub(1, Ordering::AcqRel);
        alone
    }

    /// Takes the first one.
    pub fn take(&self) -> Option<ClosedFile> {
        self.waiting.lock().pop_front()
    }

    /// Makes it the first one again.
    pub fn put_back(&self, file: ClosedFile) {
        self.waiting.lock().push_front(file);
    }

    pub fn count(&self) -> usize {
        self.waiting.lock().len()
    }

    /// The time of the first one.
    pub fn since(&self) -> Option<Instant> {
        self.waiting.lock().front().map(|first| first.since)
    }
}

/// A plain file that lies in a data file of its own.
struct Own {
    number: u64,
    bytes: u64,
    object: Arc<Object>,
    /// How often the object was changed.
    changes: u32,
}

impl Own {
    fn version(&self) -> (u64, u64, ObjectId, u32) {
        (self.number, self.bytes, self.object.entry.id, self.changes)
    }
}

impl OpenFile {
    /// Lets a new file that was just closed share the data file of another, or notes that it is to be compared later.
    pub(super) fn share_closed(&self) -> Result<Changes> {
        if !self.flags.is_new.load(Ordering::Acquire) || !self.collection.shares_files() {
            return Ok(Changes::default());
        }
        let mut layout = self.layout.write();
        let Some((node, name)) = self.named() else { return Ok(Changes::default()) };
        let Some(file) = node.file().filter(|file| !matches!(file.content, Content::Part | Content::Tensor))
        else {
            return Ok(Changes::default());
        };
        if self.is_changed() || layout.drafts > 0 || layout.check().is_err() {
            return Ok(Changes::default());
        }
        if file.content == Content::Plain && layout.objects.len() == 1 {
            self.flags.may_share.store(true, Ordering::Release);
            return Ok(Changes::default());
        }
        let Some(number) = self.data_file_of(&layout)? else { return Ok(Changes::default()) };
        let (before, bytes) = (self.related(&node), layout.bytes());
        let found = Same::find(&self.collection, number, bytes, &Silent)?;
        let Some(same) = found else { return Ok(Changes::default()) };
        let written = MountedFile { node: self.node, name: &name, entry: file, mtime: node.entry.mtime };
        match same.share_new(&self.collection, written)? {
            Some(parts) => self.reload(&mut layout, Ok(parts), before),
            None => Ok(Changes::default()),
        }
    }

    /// Whether the file is to be compared with others, once after the close that completed it.
    pub fn takes_comparison(&self) -> bool {
        self.flags.may_share.swap(false, Ordering::AcqRel)
    }

    /// Lets a closed plain file share the data file of another, if one has the same bytes. Whether it does now. Fails with
    /// `Interrupted` once `progress` is cancelled.
    pub fn share_later(&self, progress: &dyn Progress) -> Result<bool> {
        let Some(own) = self.own(&self.layout.read())? else { return Ok(false) };
        let found = Same::find(&self.collection, own.number, own.bytes, progress)?;
        let Some(same) = found else { return Ok(false) };
        let mut layout = self.layout.write();
        if self.own(&layout)?.map(|now| now.version()) != Some(own.version()) {
            return Ok(false);
        }
        let shared = same.share_plain(&self.collection, self.node, &own.object)?;
        let Some(parts) = shared else { return Ok(false) };
        layout.replace(&self.collection, Ok(parts), self.verify)?;
        Ok(true)
    }

    fn own(&self, layout: &Layout) -> Result<Option<Own>> {
        let Some((node, _)) = self.named() else { return Ok(None) };
        let is_plain = node.file().is_some_and(|file| file.content == Content::Plain);
        let [only] = layout.objects.as_slice() else { return Ok(None) };
        if !is_plain || self.is_unclosed() || layout.drafts > 0 || layout.check().is_err() {
            return Ok(None);
        }
        let (object, bytes) = (only.object().clone(), layout.bytes());
        let changes = object.changes();
        Ok(self.data_file_of(layout)?.map(|number| Own { number, bytes, object, changes }))
    }

    /// The data file that begins with exactly the bytes of the file.
    fn data_file_of(&self, layout: &Layout) -> Result<Option<u64>> {
        let stretches = self.stretches(layout, &layout.objects)?.unwrap_or_default();
        let mut places = stretches.iter().map(|stretch| match stretch.place {
            Place::Data(extent) | Place::Hole(extent) if extent.offset == stretch.bytes.start => {
                Some(extent.file)
            }
            _ => None,
        });
        let first = places.next().flatten();
        Ok(first.filter(|_| places.all(|place| place == first)))
    }
}
