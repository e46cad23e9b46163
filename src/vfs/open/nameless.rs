//! Files without a name (`O_TMPFILE`), which may get one.
//!
//! A file without a name is an open file like one whose last name was removed: no log has its node, and its bytes are
//! drafts. A batch that makes and removes a node takes its number, so that no other node gets it. Another batch has node,
//! bytes and name at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::log::catalog::{Content, Digests, Entry, FileEntry, NodeEntry, NodeType, ObjectIds};
use crate::ingest::{Rename, Replaced, arrive_as, recognize, recognize_at};
use crate::model::{EntryId, NameIn, Owner, Result};
use crate::store::disk::File;
use crate::store::{Batch, Collection, State, Touched, Use, now_nanoseconds};
use crate::vfs::open::Changes;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::layout::Layout;
use crate::vfs::open::names::{
    Above, check_free, inherited, plain_names_ended, put_name, tell, touch_directory,
};
use crate::vfs::open::source::StreamFile;

/// The entry of an empty file without a name, as one of a directory, with a number of its own.
pub fn create_nameless(
    collection: &Collection,
    parent: EntryId,
    mode: u32,
    owner: Owner,
) -> Result<NodeEntry> {
    collection.record(Touched::default(), |batch, state| {
        let above = state.node(parent).map(|above| Above { mode: above.entry.mode, gid: above.entry.gid });
        let node_type = NodeType::File(Box::new(FileEntry::new(Content::Plain, ObjectIds::new())));
        let (mode, owner) = inherited(above.unwrap_or_default(), mode, owner, &node_type);
        let id = EntryId(state.last_entry() + 1);
        let entry = NodeEntry::new(id, mode, owner, now_nanoseconds(), node_type);
        batch.node(entry.clone());
        batch.entry(Entry::NodeRemoved(id));
        Ok(entry)
    })
}

impl OpenFile {
    /// Gives a file without a name one, with the attributes of `entry`. Fails with `Exists` where the name is taken; the file
    /// then stays as it is.
    pub fn give_name(&self, to: NameIn<'_>, entry: &NodeEntry) -> Result<Changes> {
        self.check_writable()?;
        let _counted = self.collection.meter().reserve(Use::FILE)?;
        let mut layout = self.layout.write();
        layout.check()?;
        check_free(&self.collection.state(), to.directory, to.name)?;
        self.name_node(&mut layout, to, entry)
    }

    fn name_node(&self, layout: &mut Layout, to: NameIn<'_>, entry: &NodeEntry) -> Result<Changes> {
        let path = self.collection.state().path_of_name(to.directory, to.name);
        let bytes = layout.bytes();
        let source: Arc<dyn File> = Arc::new(StreamFile { stream: layout.stream.clone(), bytes });
        let (recognized, why) = match recognize_at(&self.collection, &path, &source, to.name) {
            Ok(recognized) => {
                let note = recognized.note.clone();
                (recognized, note)
            }
            Err(_) if bytes == 0 => (recognize(&source, b"")?, String::new()),
            Err(error) => (recognize(&source, b"")?, format!("kept as a plain file: {error}")),
        };
        let mut ended = None;
        let mut add = |batch: &mut Batch, state: &State, number: EntryId| {
            check_free(state, to.directory, to.name)?;
            // A name follows its node, which gets its bytes behind.
            batch.node(entry.clone());
            batch.mark_requested_by_kernel(to.directory, to.name);
            put_name(batch, to.directory, to.name, number, self.node);
            touch_directory(batch, state, to.directory);
            ended = plain_names_ended(batch, state, to);
            Ok(())
        };
        let rename = Some(Rename { to, add: &mut add });
        let replaced = Replaced { node: self.node, new: Some(entry), rename, is_arrival: false };
        let mtime = layout.mtime.unwrap_or(entry.mtime);
        let bytes = self.bytes_of(layout, &layout.objects, &source)?;
        let parts = arrive_as(&self.collection, replaced, recognized, bytes, Digests::NotTaken, mtime, why)?;
        tell(&self.collection, ended);
        let changes = Changes { nodes: self.rounded_now(&parts.0).into_iter().collect() };
        layout.replace(&self.collection, Ok(parts), self.verify)?;
        self.grown.lock().flushed(layout.bytes())?;
        self.discard_drafts(&layout.objects);
        self.flags.changed.store(false, Ordering::Release);
        self.flags.unclosed.store(true, Ordering::Release);
        Ok(changes)
    }
}
