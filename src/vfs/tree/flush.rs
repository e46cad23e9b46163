//! Flushes open files to the log, and finds room for that.
//!
//! A closed file can differ from the log, because the disk was full or failed when it was closed, truncated or
//! recognized. It stays readable as it is until a later flush succeeds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::ingest::has_data_files;
use crate::model::{EntryId, ErrorKind, Result};
use crate::store::disk::Space;
use crate::store::{Collection, Room};
use crate::vfs::open::{self, Changes, OpenFile};
use crate::vfs::tree::ino::Ino;
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::location::{FileView, Located};
use crate::vfs::tree::vfs::Vfs;

/// How often a request that finds the disk full looks for room, with [`ROOM_WAIT`] between.
const ROOM_LOOKS: u32 = 8;
const ROOM_WAIT: Duration = Duration::from_millis(10);

impl Vfs {
    /// Flushes an open file. After a failure the invalidation for its changes is pending.
    pub fn flush(&self, open_file: &OpenFile) -> Result<Invalidation> {
        self.flushed(open_file, |open_file, changes| {
            changes.merge(open_file.flush()?);
            Ok(())
        })
    }

    /// Flushes a file that a program has closed. After a failure the invalidation for its changes is pending.
    pub fn flush_closed(&self, open_file: &OpenFile) -> Result<Invalidation> {
        let flushed = self.flushed(open_file, OpenFile::flush_closed);
        self.open_files.closed.note(open_file);
        self.open_files.note_head(open_file);
        flushed
    }

    fn flushed(
        &self,
        open_file: &OpenFile,
        flush: fn(&OpenFile, &mut Changes) -> Result<()>,
    ) -> Result<Invalidation> {
        let written = open_file.is_changed().then(|| open_file.node());
        let mut changes = Changes::default();
        let mut flushed = self.with_room(|| flush(open_file, &mut changes));
        if flushed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            flushed = open_file.flush_whole(|| flush(open_file, &mut changes));
            let number = open_file.collection().state().number();
            if let Some(whole) = self.open_files.get(number, open_file.node()) {
                self.keep_unflushed(&whole);
            }
        }
        note_flushed(open_file, &flushed);
        // A failure may follow after the writes were recorded.
        let written = written.filter(|_| flushed.is_ok() || !open_file.is_changed());
        changes.nodes.extend(written.filter(|_| open_file.may_be_stale()));
        let collection = open_file.collection();
        if let Some(node) = written {
            changes.merge(self.data_files_recognized(collection, node));
        }
        if flushed.is_err() {
            self.queue_unlogged(open_file);
        }
        self.forget_or_queue(collection, changes, written, flushed)
    }

    /// Queues the invalidation for writes that a failure keeps out of the log: every name shows them until they
    /// are there.
    pub(super) fn queue_unlogged(&self, open_file: &OpenFile) {
        if let Some(others) =
            Some(open_file).filter(|open| open.is_changed()).and_then(OpenFile::others_to_tell)
        {
            let forget = self.forget(open_file.collection(), others, Some(open_file.node()));
            self.queue_invalidation(forget);
        }
    }

    /// The invalidation after a refused write. The kernel's pages have its bytes if they come from a mapping;
    /// other names show what was written before the failure.
    pub fn refused_write(&self, open_file: &OpenFile) -> Invalidation {
        self.queue_unlogged(open_file);
        self.invalidate_nodes(open_file.collection(), [open_file.node()])
    }

    /// Recognizes the data files of a model again that was written or renamed.
    pub(super) fn data_files_recognized(&self, collection: &Arc<Collection>, model: EntryId) -> Changes {
        if has_data_files(&collection.state(), model) {
            self.recognize_marked(collection)
        } else {
            Changes::default()
        }
    }

    /// Whether a file has writes that are not in the log yet.
    pub fn is_written_to(&self, view: &FileView) -> bool {
        let number = view.collection.state().number();
        self.open_files.get(number, view.node.entry.id).is_some_and(|open_file| open_file.is_changed())
    }

    /// Flushes the open files of a collection and queues the invalidations.
    pub fn flush_all(&self, collection: &Arc<Collection>) -> Result<()> {
        let mut all = self.open_files.all();
        all.retain(|open_file| Arc::ptr_eq(open_file.collection(), collection));
        all.iter().try_for_each(|open_file| self.flush_and_queue(open_file))
    }

    /// Recognizes files again whose first name changed since they were last recognized, and queues
    /// the invalidations.
    pub fn finish_renames(&self, collection: &Arc<Collection>) {
        let changes = self.recognize_marked(collection);
        self.queue_invalidation(self.forget(collection, changes, None));
    }

    /// Recognizes the files that have the mark. Those without room wait.
    fn recognize_marked(&self, collection: &Arc<Collection>) -> Changes {
        let mut waiting = Vec::new();
        let changes = open::finish_renames(collection, &self.open_files, self.verify, &mut waiting);
        waiting.iter().for_each(|open_file| self.keep_unflushed(open_file));
        changes
    }

    /// Flushes an open file. It queues the invalidations before anybody else can find the file
    /// flushed; the thread that closes the file then sends them.
    pub fn flush_and_queue(&self, open_file: &OpenFile) -> Result<()> {
        let _invalidation_order = open_file.invalidation_order();
        self.flush(open_file).map(|forget| self.queue_invalidation(forget))
    }
}

impl Vfs {
    /// Keeps a file open until the log agrees with it. Readers have seen the writes that a full disk
    /// refused at a close; dropping the file would mix bytes of two versions.
    pub fn keep_unflushed(&self, open_file: &Arc<OpenFile>) {
        let mut kept = self.unflushed.lock();
        if waits(open_file) && !kept.iter().any(|known| Arc::ptr_eq(known, open_file)) {
            kept.push(open_file.clone());
        }
    }

    /// Whether a kept file is in a read-only collection. The close has already reported that.
    pub(super) fn is_given_up(&self, open_file: &Arc<OpenFile>) -> bool {
        let is_kept = || self.unflushed.lock().iter().any(|kept| Arc::ptr_eq(kept, open_file));
        open_file.collection().check_writable().is_err() && is_kept()
    }

    /// Flushes the kept files where that is possible now, and recognizes renamed ones again.
    pub(super) fn flush_kept(&self, forget: &mut dyn FnMut(Invalidation)) -> Result<()> {
        let mut first = Ok(());
        let kept = self.unflushed.lock().clone();
        for open_file in kept.iter().filter(|open_file| open_file.collection().check_writable().is_ok()) {
            let _invalidation_order = open_file.invalidation_order();
            let flushed = self.flush_closed(open_file).and_then(|flushed| {
                forget(flushed);
                let is_renamed = must_be_recognized_again(open_file);
                let mut changes = Changes::default();
                let recognized = if is_renamed {
                    self.with_room(|| open_file.recognize_again(&mut changes))
                } else {
                    Ok(())
                };
                // All bytes are recorded: the file is only not taken apart yet.
                let recognized = recognized.or_else(|error| match error.kind() {
                    ErrorKind::Full | ErrorKind::Quota => Ok(()),
                    _ => Err(error),
                });
                forget(self.forget(open_file.collection(), changes, None));
                recognized
            });
            first = first.and(flushed);
        }
        drop(kept);
        self.release_flushed();
        first
    }

    /// Releases the files that agree with the log. Whether there were any.
    fn release_flushed(&self) -> bool {
        let gone: Vec<_> = self.unflushed.lock().extract_if(.., |open_file| !waits(open_file)).collect();
        // Closing files may take a while, so the lock is released first.
        !gone.is_empty()
    }

    /// Recognizes a file under its new name after a completed rename. If that fails, it is tried
    /// again within seconds, or by the next mount. A full disk or quota does not fail the rename; a
    /// disk error does.
    pub(super) fn look_at_renamed(&self, open_file: &Arc<OpenFile>) -> Result<Changes> {
        let mut changes = Changes::default();
        let Err(error) = self.with_room(|| open_file.recognize_again(&mut changes)) else {
            return Ok(changes);
        };
        let collection = open_file.collection();
        log::warn!("{}: looking at a file under its other name: {error}", collection.path());
        collection.invalidate_all_names();
        self.keep_unflushed(open_file);
        match error.kind() {
            ErrorKind::Full | ErrorKind::Quota => Ok(changes),
            _ => {
                self.queue_invalidation(self.forget(collection, changes, None));
                Err(error)
            }
        }
    }

    /// Recognizes the blob of a hub cache that a new link leads to, if its name may tell more.
    pub(super) fn look_at_blob(&self, collection: &Arc<Collection>, link: EntryId) -> Result<Changes> {
        let blob = {
            let state = collection.state();
            open::blob_of_link(&state, link).filter(|blob| state.must_be_recognized_again(*blob))
        };
        let Some(blob) = blob else { return Ok(Changes::default()) };
        let open_file = self.open_files.open(collection, blob, self.verify);
        self.look_at_renamed(&open_file.inspect_err(|_| collection.invalidate_all_names())?)
    }

    /// Flushes what is left before the mount ends, when the kernel opens no unlinked file any more. A file that the log cannot take becomes a plain file, for which
    /// the log's reserve is enough. Returns the files whose writes are lost, with the reason, and the first
    /// other error.
    pub fn flush_at_end(&self) -> (Vec<(String, String)>, Result<()>) {
        self.release_unlinked();
        let mut synced = self.sync(&mut |_| ());
        if synced.is_ok() {
            self.compare_at_end();
            synced = self.sync(&mut |_| ());
        }
        let kept = self.unflushed.lock().clone();
        if kept.iter().any(|open_file| open_file.is_changed()) {
            self.make_room();
            for open_file in kept.iter().filter(|open_file| open_file.is_changed()) {
                note_flushed(open_file, &open_file.flush_at_end());
            }
            drop(kept);
            self.release_flushed();
            synced = self.sync(&mut |_| ());
        }
        let open = self.store().open_collections();
        let lost: Vec<_> = open.iter().flat_map(|open| open.all_unrecorded()).collect();
        (lost, synced)
    }

    /// Retries a request that found the disk full after reclaiming space: unlinked files that no program has open,
    /// and released space of any collection that is not durable yet. No lower layer retries, except
    /// `Collection::record`, which retries the append.
    pub(super) fn with_room<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        let mut done = work();
        for look in 0..ROOM_LOOKS {
            if done.as_ref().err().is_none_or(|error| error.kind() != ErrorKind::Full) {
                break;
            }
            // The kernel tells of the last close of a file a moment after the program's.
            if look > 0 {
                if !self.store().has_freed() {
                    break;
                }
                std::thread::sleep(ROOM_WAIT);
            }
            if self.make_room() {
                done = work();
            }
        }
        done
    }

    /// Frees the space of all that was removed. Whether there was any.
    pub fn make_room(&self) -> bool {
        let flushed = self.release_flushed();
        let unlinked = self.release_unlinked();
        let freed = self.store().make_room();
        flushed || unlinked || freed
    }

    /// Bytes that removed files give back at the next sync, or when a writer needs them.
    pub fn removed_bytes(&self) -> u64 {
        let mut in_use = HashSet::new();
        for open_file in self.open_files.all() {
            // One that is being flushed may use anything.
            let is_idle = self.is_idle_unlinked(&open_file);
            if !is_idle && !open_file.add_objects(&mut in_use) {
                return 0;
            }
        }
        let open = self.store().open_collections();
        open.iter().map(|open| open.removed_bytes(&in_use)).sum()
    }
}

/// Notes whether the log has the writes to a file.
fn note_flushed<T>(open_file: &OpenFile, flushed: &Result<T>) {
    let (collection, node) = (open_file.collection(), open_file.node());
    match flushed {
        Err(error) if open_file.is_changed() => collection.note_unrecorded(node, error),
        _ => collection.note_recorded(node),
    }
}

/// Whether a file differs from the log.
fn waits(open_file: &OpenFile) -> bool {
    let collection = open_file.collection();
    let is_there = collection.state().node(open_file.node()).is_some();
    is_there && (open_file.is_unclosed() || must_be_recognized_again(open_file))
}

fn must_be_recognized_again(open_file: &OpenFile) -> bool {
    open_file.collection().state().must_be_recognized_again(open_file.node())
}

impl Vfs {
    /// The space of the disk. Space of removed files counts as free. In a tenant or a collection with a
    /// quota, the quota is the size; in a cache directory, its limit.
    pub fn space(&self, ino: Ino) -> Result<Space> {
        let space = self.store().space()?;
        let removed = self.removed_bytes();
        let more = |free: u64| free.saturating_add(removed).min(space.total);
        let space = Space { free: more(space.free), available: more(space.available), ..space };
        let room = match self.locate(ino) {
            Ok(Located::Node(view)) => {
                let room = view.collection.meter().room();
                let cache = self.room_of_cache(&view);
                Room { bytes: [room.bytes, cache].into_iter().flatten().min(), ..room }
            }
            Ok(Located::Tenant(name)) => self.store().tenant_room(&name)?,
            _ => Room::default(),
        };
        Ok(within(space, room))
    }
}

/// The part of a disk that limits leave.
fn within(space: Space, room: Room) -> Space {
    let size = |(left, used): (u64, u64)| left.saturating_add(used);
    let left = room.bytes.map_or(u64::MAX, |(left, _)| left);
    let files_left = room.files.map_or(u64::MAX, |(left, _)| left);
    Space {
        total: room.bytes.map_or(space.total, size).min(space.total),
        free: space.free.min(left),
        available: space.available.min(left),
        files: room.files.map_or(space.files, size).min(space.files),
        files_free: space.files_free.min(files_left),
    }
}

#[cfg(test)]
mod tests {
    use super::within;
    use crate::store::Room;
    use crate::store::disk::Space;

    #[test]
    fn a_quota_is_the_size_of_what_it_limits_unless_the_disk_has_less() {
        let disk = Space { total: 1000, free: 300, available: 250, files: 90, files_free: 40 };
        assert_eq!(within(disk, Room::default()), disk);
        let within_quota = within(disk, Room { bytes: Some((100, 20)), files: Some((7, 3)) });
        let wanted = Space { total: 120, free: 100, available: 100, files: 10, files_free: 7 };
        assert_eq!(within_quota, wanted);
        let larger = within(disk, Room { bytes: Some((5000, 20)), files: None });
        assert_eq!(larger, disk);
    }
}
