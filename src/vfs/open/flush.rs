//! Flushes the writes to an open file into the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine;
use crate::format::log::catalog::{Content, Digests, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry};
use crate::format::log::record::Record;
use crate::ingest::{Recognized, is_scanned, recognize_at};
use crate::model::{Dtype, EntryId, Error, ErrorKind, ObjectId, Result, SeedId, Shape, TensorId};
use crate::store::Batch;
use crate::store::OpenObject;
use crate::store::State;
use crate::store::Writes;
use crate::store::Written;
use crate::store::disk::File;
use crate::store::{Parts, Touched, now_nanoseconds};
use crate::vfs::open::Changes;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::layout::Layout;
use crate::vfs::open::names::remove_parts;
use crate::vfs::open::source::StreamFile;

/// Why a container stays a plain file for now.
struct LeftWhole(String);

impl LeftWhole {
    fn because(error: &Error) -> LeftWhole {
        LeftWhole(format!(
            "kept as a plain file until the disk has room to store its tensors separately: {error}"
        ))
    }
}

/// The state of a file that a flush records.
struct FlushedFile<'a> {
    objects: &'a [OpenObject],
    /// The writes to the objects.
    written: &'a [Written<'a>],
    bytes: u64,
    /// Whether the file is truncated to these bytes.
    is_cut: bool,
    mtime: i64,
    /// Why the file becomes plain, if it does.
    why: Option<String>,
    /// Whether it is left plain for now, and is recognized again later.
    is_left: bool,
}

impl OpenFile {
    /// Commits all writes to the log, so that they survive the end of this process and every name of
    /// these bytes agrees. A file without a name keeps its writes while it is open.
    pub fn flush(&self) -> Result<Changes> {
        if !self.flags.changed.load(Ordering::Acquire) {
            return Ok(Changes::default());
        }
        self.flush_locked(&mut self.layout.write())
    }

    /// As [`flush`](Self::flush), before the process ends: with as little room as possible.
    pub fn flush_at_end(&self) -> Result<Changes> {
        self.flags.ending.store(true, Ordering::Release);
        self.flush()
    }

    /// Flushes in this way, where there is no room to take a container apart: it stays a plain file, and is
    /// recognized again later.
    pub fn flush_whole(&self, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        self.flags.whole.store(true, Ordering::Release);
        let flushed = flush();
        self.flags.whole.store(false, Ordering::Release);
        flushed
    }

    fn leaves_whole(&self) -> bool {
        self.flags.whole.load(Ordering::Acquire) || self.flags.ending.load(Ordering::Acquire)
    }

    /// As [`flush`](Self::flush), after the writer closed the file. It then recognizes content for which
    /// the whole file must be read. Adds its changes to `changes`, also those before a failure.
    pub fn flush_closed(&self, changes: &mut Changes) -> Result<()> {
        let arrives = self.arrives_closed();
        self.flags.closing.store(arrives && !self.has_writers(), Ordering::Release);
        let flushed = self.flush();
        self.flags.closing.store(false, Ordering::Release);
        let has_arrived = self.flags.arrived.swap(false, Ordering::AcqRel);
        changes.merge(flushed?);
        let is_scanned = self.named().is_some_and(|(node, name)| {
            is_scanned(&name) && node.file().is_some_and(|file| file.content == Content::Plain)
        });
        if !self.flags.unclosed.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        if is_scanned && let Err(error) = self.recognize_now(changes) {
            if error.kind() == ErrorKind::Full && self.leaves_whole() {
                return self.note_left_whole(&error);
            }
            self.flags.unclosed.store(true, Ordering::Release);
            return Err(error);
        }
        if arrives && self.has_writers() {
            // The close of the last one comes here again.
            self.flags.unclosed.store(true, Ordering::Release);
            return Ok(());
        }
        if arrives {
            return if has_arrived { self.cool_arrived(changes) } else { self.arrive_closed(changes) };
        }
        // The file is complete without sharing.
        match self.share_closed() {
            Ok(shared) => changes.merge(shared),
            Err(error) => log::warn!("{}: a file shares no data file: {error}", self.collection.path()),
        }
        Ok(())
    }

    /// The other files that have bytes of its unflushed writes: the container of a tensor, or tensors of a
    /// container. `None` if the kernel was told to drop these since the last write.
    pub fn others_to_tell(&self) -> Option<Changes> {
        if self.flags.told.swap(true, Ordering::AcqRel) {
            return None;
        }
        let layout = self.layout.read();
        let state = self.collection.state();
        let file = state.node(self.node)?.file()?;
        let container = file.container;
        let views =
            state.views(container.and_then(|container| state.node(container)?.file()).unwrap_or(file));
        let views = views.map(|view| view.entry.id);
        let dirty = layout.objects.iter().filter(|open| open.object().is_dirty());
        let parts = dirty.filter_map(|open| state.part_of(open.object().entry.id));
        let nodes: HashSet<EntryId> =
            parts.chain(views).chain(container).filter(|id| *id != self.node).collect();
        Some(Changes { nodes: nodes.into_iter().collect() })
    }

    fn note_left_whole(&self, error: &Error) -> Result<()> {
        let LeftWhole(why) = LeftWhole::because(error);
        engine::note_why(&self.collection, self.node, &why)?;
        self.collection.record(Touched::default(), |batch, state| {
            if state.node(self.node).is_some() {
                batch.recognize_again(self.node);
            }
            Ok(())
        })
    }

    /// Flushes under the layout lock, which the caller holds.
    pub(super) fn flush_locked(&self, layout: &mut Layout) -> Result<Changes> {
        let flushed = self.flush_layout(layout, None);
        // Cleared only after the commit: readers of the size then ask the log. Later writes wait for
        // the layout lock.
        self.flags.changed.store(flushed.is_err(), Ordering::Release);
        self.flags.unclosed.store(true, Ordering::Release);
        match flushed {
            // The last name was removed meanwhile: the file keeps its writes while it is open.
            Err(error) if error.kind() == ErrorKind::Gone && self.named().is_none() => Ok(Changes::default()),
            Err(error) => Err(error),
            Ok(None) => Ok(Changes::default()),
            Ok(Some(changes)) => {
                self.grown.lock().flushed(layout.bytes())?;
                self.discard_drafts(&layout.objects);
                Ok(changes)
            }
        }
    }

    /// Truncates the file to its first `bytes` in one batch, together with the unflushed writes to
    /// them. Nothing changes before the batch is in the log. `None` where the file has no name.
    pub(super) fn record_truncation(&self, layout: &mut Layout, bytes: u64) -> Result<Option<Changes>> {
        self.flush_layout(layout, Some(bytes))
    }

    /// Commits the unflushed writes; with `cut`, only those to the first `cut` bytes. `None` where
    /// the file has no name any more.
    fn flush_layout(&self, layout: &mut Layout, cut: Option<u64>) -> Result<Option<Changes>> {
        layout.check()?;
        let Some((node, name)) = self.named() else { return Ok(None) };
        let Some(file) = node.file() else { return Ok(None) };
        let bytes = cut.unwrap_or(layout.bytes());
        let mtime = layout.mtime.filter(|_| cut.is_none()).unwrap_or_else(now_nanoseconds);
        let before = self.related(&node);
        let source: Arc<dyn File> = Arc::new(StreamFile { stream: layout.stream.clone(), bytes });
        // A stand-alone tensor stays one when all of its bytes are new.
        let is_new = cut.is_none()
            && layout.drafts > 0
            && layout.drafts == layout.objects.len()
            && file.content != Content::Tensor;
        let is_other = layout.is_other || cut.is_some();
        let must_be_recognized = is_new || self.must_be_recognized_again(layout, is_other, file, &name);
        let name = if must_be_recognized { self.fitting_name(name, &source) } else { name };
        // Its first bytes need not be read for that.
        let name = if self.is_ordinary(&name) { Vec::new() } else { name };
        let recognized = if must_be_recognized {
            let found = recognize_at(&self.collection, &self.path(), &source, &name);
            // Many programs use the suffix of a checkpoint; their files stay plain. A container whose parts
            // are still the same keeps them.
            let stays = |found: &Recognized| {
                !is_new
                    && match file.content {
                        Content::Plain => {
                            found.content == Content::Plain
                                && !self
                                    .collection
                                    .state()
                                    .has_other_shards(self.node, found.shards.as_deref())
                        }
                        _ => !is_other && self.has_parts(file, found),
                    }
            };
            Some(found).filter(|found| !found.as_ref().is_ok_and(stays))
        } else {
            None
        };
        let kept = cut.map_or(layout.objects.len(), |bytes| layout.kept(bytes).0);
        let objects: Vec<OpenObject> = layout.objects.iter().take(kept).cloned().collect();
        let in_memory = objects.iter().any(OpenObject::is_in_memory);
        let mut left_whole = None;
        // Blocks that a plain file shares with its source stay as they are cut, so that none is read.
        let is_plain = |found: &Recognized| {
            let shards = found.shards.as_deref();
            found.content == Content::Plain && !self.collection.state().has_other_shards(self.node, shards)
        };
        let is_copy = layout.shared > 0
            && file.content == Content::Plain
            && !self.flags.closing.load(Ordering::Acquire)
            && !matches!(&recognized, Some(Ok(found)) if !is_plain(found));
        if !is_copy && (is_new || matches!(recognized, Some(Ok(_)))) {
            let is_container = matches!(&recognized, Some(Ok(found)) if found.content != Content::Plain);
            let is_arrival = is_new && self.flags.closing.load(Ordering::Acquire);
            let is_ending = self.flags.ending.load(Ordering::Acquire);
            let taken_apart = if is_ending {
                Err(Error::new(ErrorKind::Full, "the disk was full when the mount ended"))
            } else {
                self.take_apart(layout, &objects, &source, &name, mtime, is_arrival)
            };
            let may_stay = is_new && !is_container || self.leaves_whole();
            match taken_apart {
                Ok(parts) => {
                    let is_scanned = is_scanned(&name);
                    self.flags.arrived.store(is_arrival && !is_scanned, Ordering::Release);
                    let rounded = Some(&parts.0).filter(|_| is_arrival);
                    let rounded = rounded.and_then(|objects| self.rounded_now(objects));
                    let before = before.into_iter().chain(rounded).collect();
                    return self.reload(layout, Ok(parts), before).map(Some);
                }
                // The bytes can stay where they are.
                Err(error) if error.kind() == ErrorKind::Full && may_stay => {
                    left_whole = is_container.then(|| LeftWhole::because(&error));
                }
                Err(error) => return Err(error),
            }
        }
        if in_memory {
            // The log cannot name its bytes.
            self.move_to_data_file(layout)?;
            return self.flush_layout(layout, cut);
        }
        // An empty file is recognized by the next bytes written to it.
        let explain =
            |error| if bytes == 0 { String::new() } else { format!("kept as a plain file: {error}") };
        let is_left = left_whole.is_some();
        let why = match recognized {
            Some(Ok(found)) => is_copy.then_some(found.note),
            Some(Err(error)) => Some(explain(error)),
            None => None,
        };
        let why = why.or(left_whole.map(|LeftWhole(why)| why));
        let is_plain = why.is_some();
        let mut written = Vec::new();
        let mut end = 0;
        for open in &objects {
            let begin = end;
            end += open.bytes();
            if open.object().is_dirty() || end > bytes {
                written.push(open.written_until(self.writes(open), bytes - begin)?);
            }
        }
        let mut touched = Touched::default();
        written.iter_mut().for_each(|written| touched.merge(written.touched()));
        let is_rounded = written.iter().any(Written::is_rounded);
        let flushed = FlushedFile {
            objects: &objects,
            written: &written,
            bytes,
            is_cut: cut.is_some(),
            mtime,
            why,
            is_left,
        };
        let recorded = self.record(flushed, touched)?;
        let Some(parts) = recorded else { return Ok(None) };
        written.into_iter().for_each(Written::recorded);
        let mut changes = if is_other || is_plain {
            self.reload(layout, parts, before)?
        } else {
            layout.mtime = None;
            Changes { nodes: before }
        };
        if is_rounded {
            // The kernel caches the exact bytes, but the stored ones are quantized.
            changes.nodes.push(self.node);
        }
        Ok(Some(changes))
    }

    /// How to store writes to an object, by the settings of the tensor that it belongs to.
    fn writes(&self, open: &OpenObject) -> Writes {
        let state = self.collection.state();
        let node = state.part_of(open.object().entry.id).unwrap_or(self.node);
        engine::writes(&self.collection, &state, node)
    }

    /// The state of the digests after a write.
    pub(super) fn digests(&self) -> Digests {
        if self.flags.is_new.load(Ordering::Acquire) { Digests::NotTaken } else { Digests::Outdated }
    }

    /// Commits the file. Returns its parts as the log then records them; `None` where the file has lost its last
    /// name.
    fn record(&self, flushed: FlushedFile<'_>, touched: Touched) -> Result<Option<Result<Parts>>> {
        let FlushedFile { objects, written, bytes, is_cut, mtime, why, is_left } = flushed;
        let fill = |batch: &mut Batch, state: &State| {
            let Some(node) = state.node(self.node) else { return Ok(false) };
            let Some(file) = node.file() else { return Ok(false) };
            let by_object: HashMap<_, _> =
                written.iter().map(|written| (Arc::as_ptr(written.object()), written)).collect();
            let mut ids: Vec<ObjectId> = Vec::with_capacity(objects.len());
            for open in objects {
                let found = by_object.get(&Arc::as_ptr(open.object()));
                let known = open.object().entry.id;
                ids.push(match found {
                    Some(written) if known == ObjectId(0) => self.describe(batch, state, written),
                    Some(written) => {
                        written.add(batch);
                        known
                    }
                    None => known,
                });
            }
            let kept: HashSet<ObjectId> = ids.iter().copied().collect();
            for object in state.own_objects(self.node, file).filter(|object| !kept.contains(object)) {
                batch.record(Record::Delete { object });
            }
            if is_cut && bytes == 0 || self.flags.ending.load(Ordering::Acquire) {
                // The first releases the space of drafts too.
                batch.mark_freeing();
            }
            let now = now_nanoseconds();
            let digests = if bytes == 0 { Digests::NotTaken } else { self.digests() };
            let mut entry = FileEntry { objects: ids.into(), digests, ..file.clone() };
            entry.tensor = entry.tensor.and_then(|tensor| resized(tensor, bytes));
            if entry.tensor.is_none() && entry.content == Content::Tensor {
                entry.content = Content::Plain;
                entry.why =
                    format!("no longer a tensor: its {bytes} bytes are not a whole number of rows").into();
            }
            let others = if why.is_none() { self.changed_with(state, file, written) } else { Vec::new() };
            if let Some(why) = why {
                entry.why = why.into();
                entry.content = Content::Plain;
                entry.records = None;
                remove_parts(batch, state, file);
            }
            if is_left {
                batch.recognize_again(self.node);
            }
            let is_written_over = |before: &FileEntry, now: &FileEntry| {
                let outdated = FileEntry { digests: Digests::Outdated, ..before.clone() };
                *now == outdated
            };
            if is_written_over(file, &entry) {
                // A short record, because the many objects of a container are unchanged.
                batch.entry(Entry::Written { node: self.node, mtime, ctime: now });
            } else {
                let node_type = NodeType::File(Box::new(entry));
                let entry = NodeEntry { mtime, ctime: now, node_type, ..node.entry.clone() };
                batch.node(entry);
            }
            for other in others.into_iter().filter_map(|id| state.node(id)) {
                let node = other.entry.id;
                if self.digests() == Digests::Outdated {
                    batch.entry(Entry::Written { node, mtime, ctime: now });
                    continue;
                }
                let mut entry = NodeEntry { mtime, ctime: now, ..other.entry.clone() };
                if let NodeType::File(file) = &mut entry.node_type {
                    file.digests = self.digests();
                }
                batch.node(entry);
            }
            Ok(true)
        };
        self.collection.record_then(touched, fill, |state, is_there| {
            is_there.then(|| self.collection.parts_in(state, self.node))
        })
    }

    /// The other files whose bytes changed: the container of a tensor, or the written tensors of a
    /// container.
    fn changed_with(&self, state: &State, file: &FileEntry, written: &[Written<'_>]) -> Vec<EntryId> {
        let parts = written.iter().filter_map(|written| state.part_of(written.object().entry.id));
        let others: HashSet<EntryId> = parts.chain(file.container).filter(|id| *id != self.node).collect();
        others.into_iter().collect()
    }

    /// Gives an identity to an object that was not in the log.
    fn describe(&self, batch: &mut Batch, state: &State, written: &Written<'_>) -> ObjectId {
        let path = state.path(self.node);
        let name = String::from_utf8_lossy(&path);
        let (tenant, collection) = (self.collection.tenant(), self.collection.name());
        let tensor = TensorId::of(tenant, collection, &name, TensorId(0));
        let file = state.node(self.node).and_then(|node| node.file());
        let dtype = file.and_then(|file| file.tensor.as_ref()).map(|tensor| tensor.dtype);
        let dtype = dtype.filter(|dtype| written.bytes().is_multiple_of(dtype.bytes())).unwrap_or(Dtype::U8);
        let creation = batch.next_sequence();
        let id = ObjectId::of(tensor, SeedId(0), creation);
        let entry = ObjectEntry {
            id,
            tensor,
            seed: SeedId(0),
            creation,
            dtype,
            bytes: written.bytes(),
            ..written.object().entry.clone()
        };
        batch.entry(Entry::Object(entry.clone()));
        written.add_bytes(batch, &entry);
        id
    }

    /// Reloads the layout from the log: the parts of the file as the batch left them.
    pub(super) fn reload(
        &self,
        layout: &mut Layout,
        parts: Result<Parts>,
        related: Vec<EntryId>,
    ) -> Result<Changes> {
        layout.replace(&self.collection, parts, self.verify)?;
        Ok(Changes { nodes: related })
    }
}

/// The shape of a tensor whose file has a new size. The first dimension follows the size; `None`
/// where that is not a whole number of rows.
fn resized(
    tensor: crate::format::log::catalog::TensorEntry,
    bytes: u64,
) -> Option<crate::format::log::catalog::TensorEntry> {
    if tensor.dtype.bytes_of(tensor.shape.elements()) == Some(bytes) {
        return Some(tensor);
    }
    let (first, rest) = tensor.shape.dimensions().split_first()?;
    let row = tensor.dtype.bytes_of(Shape::new(rest)?.elements()).filter(|row| *row > 0)?;
    if *first == 0 && bytes == 0 || !bytes.is_multiple_of(row) {
        return None;
    }
    let mut sizes = vec![bytes / row];
    sizes.extend_from_slice(rest);
    Some(crate::format::log::catalog::TensorEntry { shape: Shape::new(&sizes)?, ..tensor })
}
