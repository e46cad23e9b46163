//! The table of open files, and the join of several.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use crate::format::log::catalog::NodeEntry;
use crate::ingest::{Join, Joined, is_ordinary, join};
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::disk::File;
use crate::store::{Collection, Verify};
use crate::stream::Stream;
use crate::vfs::open::file::{Head, OpenFile};
use crate::vfs::open::layout::Layout;
use crate::vfs::open::share::ClosedFiles;
use crate::vfs::open::source::StreamFile;

/// The open files, by collection and node.
#[derive(Default)]
pub struct OpenFiles {
    // The keys are numbers that this program assigns, never chosen by a user.
    open: Mutex<HashMap<(u32, EntryId), Weak<OpenFile>, RandomState>>,
    /// Those that were closed, and are to be compared with others.
    pub closed: ClosedFiles,
    /// The first bytes of files that were closed lately, as programs have written them. Held briefly; no other lock is
    /// taken with it.
    heads: Mutex<HashMap<(u32, EntryId), Head, RandomState>>,
}

/// Most files whose first bytes are known. A full table is emptied.
const HEADS_MAX: usize = 4096;

impl OpenFiles {
    /// The open file of a node; opens it if needed.
    pub fn open(&self, collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Arc<OpenFile>> {
        let key = (collection.state().number(), node);
        let mut open = self.open.lock();
        if let Some(open_file) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(open_file);
        }
        let open_file = Arc::new(OpenFile::open(collection, node, verify)?);
        // From now on the open file knows them.
        open_file.written.begins_with(self.heads.lock().remove(&key));
        if open.len() > 1024 && open.len().is_power_of_two() {
            open.retain(|_, open_file| open_file.strong_count() > 0);
        }
        open.insert(key, Arc::downgrade(&open_file));
        Ok(open_file)
    }

    /// Opens an empty file without a name, which the log does not have.
    pub fn open_nameless(
        &self,
        collection: &Arc<Collection>,
        entry: NodeEntry,
        verify: Verify,
    ) -> Result<Arc<OpenFile>> {
        let key = (collection.state().number(), entry.id);
        let open_file = Arc::new(OpenFile::nameless(collection, entry, verify)?);
        self.open.lock().insert(key, Arc::downgrade(&open_file));
        Ok(open_file)
    }

    /// The open file of a node, if it is open.
    pub fn get(&self, number: u32, node: EntryId) -> Option<Arc<OpenFile>> {
        self.open.lock().get(&(number, node)).and_then(Weak::upgrade)
    }

    /// Notes the first bytes of a file that was closed.
    pub fn note_head(&self, open_file: &OpenFile) {
        let key = (open_file.collection.state().number(), open_file.node);
        let mut heads = self.heads.lock();
        match open_file.written.head() {
            Some(head) => {
                if heads.len() >= HEADS_MAX {
                    heads.clear();
                }
                heads.insert(key, head);
            }
            None => drop(heads.remove(&key)),
        }
    }

    /// Whether the first bytes of a file, as programs have written them lately, say that it is none of the containers that
    /// a name allows.
    pub fn is_ordinary(&self, number: u32, node: EntryId, name: &[u8]) -> bool {
        let head = match self.get(number, node) {
            Some(open_file) => open_file.written.head(),
            None => self.heads.lock().get(&(number, node)).copied(),
        };
        head.is_some_and(|head| is_ordinary(name, head))
    }

    pub fn all(&self) -> Vec<Arc<OpenFile>> {
        self.open.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl OpenFiles {
    /// Makes a file of the objects of others, in their order. Nobody writes to them meanwhile, and later writes are
    /// refused. Fails with `Busy` if one has writes that are not in the log, or is open for writing.
    pub fn join(collection: &Arc<Collection>, files: &[Arc<OpenFile>], request: &Join<'_>) -> Result<Joined> {
        let mut in_order: Vec<&Arc<OpenFile>> = files.iter().collect();
        // Two requests for the same files must not wait for each other.
        in_order.sort_by_key(|file| file.node);
        in_order.dedup_by_key(|file| file.node);
        let mut held = Vec::with_capacity(in_order.len());
        for file in in_order {
            let layout = file.layout.write();
            file.check_settled(&layout)?;
            held.push((file.node, layout));
        }
        let mut objects = Vec::new();
        for file in files {
            let layout = held.binary_search_by_key(&file.node, |(node, _)| *node).ok();
            let layout = layout.and_then(|place| held.get(place)).map(|(_, layout)| layout);
            objects.extend(layout.into_iter().flat_map(|layout| layout.objects.iter().cloned()));
        }
        let stream = Arc::new(Stream::of_file(objects, None)?);
        let bytes = stream.bytes();
        let source: Arc<dyn File> = Arc::new(StreamFile { stream, bytes });
        join(collection, request, &source)
    }
}

impl OpenFile {
    /// Fails with `Busy` unless the log has all bytes of the file and no program may write to it.
    fn check_settled(&self, layout: &Layout) -> Result<()> {
        layout.check()?;
        if !self.may_be_written() && !self.is_changed() && layout.drafts == 0 {
            return Ok(());
        }
        let path = String::from_utf8_lossy(&self.path()).into_owned();
        let text = format!("{path} is open for writing, or has writes that are not recorded; close it first");
        Err(Error::new(ErrorKind::Busy, text))
    }
}
