//! Recognition of an open file: when its bytes must be looked at, under which name, and what becomes of its parts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::engine;
use crate::format::log::catalog::{Content, FileEntry};
use crate::ingest::{
    Bytes, Recognized, Written as WrittenFile, arrive, arrive_as, is_data_file, is_ordinary, is_recorded,
    is_scanned, may_be_recognized, recognize, recognize_at,
};
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::disk::File;
use crate::store::{Node, OpenObject, Parts, Stretch, Touched};
use crate::vfs::open::Changes;
use crate::vfs::open::file::OpenFile;
use crate::vfs::open::hub::names_to_recognize;
use crate::vfs::open::layout::Layout;
use crate::vfs::open::source::StreamFile;

/// Whether an error tells of the content of a file, and not of a disk that fails now.
fn is_of_content(error: &Error) -> bool {
    use ErrorKind::{Corrupt, Invalid, NotSupported, Unreadable, Unsupported};
    matches!(error.kind(), Corrupt | Invalid | NotSupported | Unreadable | Unsupported)
}

impl OpenFile {
    /// Recognizes the content again, under the current name of the file. Adds its changes to `changes`, also
    /// those before a failure.
    pub(super) fn recognize_now(&self, changes: &mut Changes) -> Result<()> {
        changes.merge(self.flush()?);
        let mut layout = self.layout.write();
        let Some((node, name)) = self.named() else { return Ok(()) };
        let Some(file) = node.file() else { return Ok(()) };
        let may_be = self.may_be_recognized_as(file, &name);
        if !may_be {
            return Ok(());
        }
        let bytes = layout.bytes();
        let source: Arc<dyn File> = Arc::new(StreamFile { stream: layout.stream.clone(), bytes });
        let is_plain = file.content == Content::Plain;
        let (path, name) = (self.path(), self.fitting_name(name, &source));
        let found = recognize_at(&self.collection, &path, &source, &name).map(|recognized| {
            let note = recognized.note.clone();
            (recognized, note)
        });
        // A container whose new name does not fit its content becomes a plain file.
        let found = found.or_else(|error| match recognize(&source, b"") {
            Ok(plain) if !is_plain => Ok((plain, format!("kept as a plain file: {error}"))),
            _ => Err(error),
        });
        match found {
            Ok((recognized, note)) if is_plain && recognized.content == Content::Plain => {
                self.record_shards(recognized.shards)?;
                if !note.is_empty() {
                    engine::note_why(&self.collection, self.node, &note)?;
                }
            }
            Ok((recognized, why)) => {
                if is_recorded(&self.collection.state(), file, &recognized) {
                    return Ok(());
                }
                let before = self.related(&node);
                let bytes = self.bytes_of(&layout, &layout.objects, &source)?;
                // A container that becomes a plain file does not arrive.
                let is_arrival =
                    recognized.content != Content::Plain && !self.flags.unclosed.load(Ordering::Acquire);
                let (digests, replaced) = (file.digests.clone(), self.replaced(is_arrival));
                let (collection, mtime) = (&self.collection, node.entry.mtime);
                let parts = arrive_as(collection, replaced, recognized, bytes, digests, mtime, why)?;
                changes.merge(Changes { nodes: before });
                changes.nodes.extend(self.rounded_now(&parts.0));
                layout.replace(collection, Ok(parts), self.verify)?;
            }
            Err(error) if is_plain && layout.bytes() > 0 && is_of_content(&error) => {
                let why = format!("kept as a plain file: {error}");
                engine::note_why(&self.collection, self.node, &why)?;
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Whether a change of its bytes may make them be recognized.
    pub fn may_be_recognized(&self) -> bool {
        self.arrives_closed()
            || self.named().is_some_and(|(node, name)| {
                node.file().is_some_and(|file| self.may_be_recognized_as(file, &name))
            })
    }

    fn may_be_recognized_as(&self, file: &FileEntry, name: &[u8]) -> bool {
        match file.content {
            Content::Part | Content::Tensor => false,
            Content::Plain => {
                let is_index = self.collection.state().is_shard_index(self.node);
                may_be_recognized(name) && !self.is_ordinary(name) || is_index || self.is_data_file()
            }
            Content::Safetensors
            | Content::Npy
            | Content::Gguf
            | Content::Cgeb
            | Content::Torch
            | Content::Npz
            | Content::Onnx
            | Content::OnnxData => true,
        }
    }

    /// Whether its first bytes, as they were written, say that it is none of the containers that its name allows.
    pub(super) fn is_ordinary(&self, name: &[u8]) -> bool {
        self.written.head().is_some_and(|head| is_ordinary(name, head))
    }

    /// Records the containers that the file names, if it is the index of a sharded model under its present name.
    fn record_shards(&self, shards: Option<String>) -> Result<()> {
        self.collection.record(Touched::default(), |batch, state| {
            if state.node(self.node).is_some() {
                batch.put_shards(state, self.node, shards);
            }
            Ok(())
        })
    }

    /// Creates new objects for the file's bytes, where they lie if possible.
    pub(super) fn take_apart(
        &self,
        layout: &Layout,
        objects: &[OpenObject],
        source: &Arc<dyn File>,
        name: &[u8],
        mtime: i64,
        is_arrival: bool,
    ) -> Result<Parts> {
        // The copied drafts are discarded with the layout.
        let bytes = self.bytes_of(layout, objects, source)?;
        arrive(&self.collection, self.replaced(is_arrival), name, bytes, self.digests(), mtime)
    }

    pub(super) fn bytes_of<'a>(
        &self,
        layout: &Layout,
        objects: &[OpenObject],
        source: &'a Arc<dyn File>,
    ) -> Result<Bytes<'a>> {
        Ok(match self.stretches(layout, objects)? {
            Some(stretches) => {
                // An object that is in the log may have other writers, so only drafts are passed on.
                let are_drafts = layout.drafts == layout.objects.len();
                let drafts = layout.objects.iter().filter(|_| are_drafts).map(|open| open.object().clone());
                Bytes::Written(WrittenFile { file: source, stretches, objects: drafts.collect() })
            }
            None => Bytes::Other(source),
        })
    }

    /// Where the bytes of these objects lie, one after the other. `None` where others cannot name them there.
    pub(super) fn stretches(&self, layout: &Layout, objects: &[OpenObject]) -> Result<Option<Vec<Stretch>>> {
        if layout.assembly.is_some() || objects.iter().any(OpenObject::is_in_memory) {
            return Ok(None);
        }
        let (mut stretches, mut begin) = (Vec::new(), 0);
        for object in objects {
            for Stretch { bytes, place } in object.stretches()? {
                Stretch::push(&mut stretches, begin + bytes.start..begin + bytes.end, place);
            }
            begin += object.bytes();
        }
        Ok(Some(stretches))
    }

    /// Whether a file has the recognized parts already, so that it can keep them.
    pub(super) fn has_parts(&self, file: &FileEntry, found: &Recognized) -> bool {
        // A model may name other data files.
        file.content != Content::Onnx
            && *file.why == *found.note
            && is_recorded(&self.collection.state(), file, found)
    }

    /// The node and the name that tells its format. `None` once the node is gone.
    pub(super) fn named(&self) -> Option<(Arc<Node>, Vec<u8>)> {
        let state = self.collection.state();
        let node = state.node(self.node)?.clone();
        // A tensor of a container has no name of its own.
        Some((node, names_to_recognize(&state, self.node).into_iter().next().unwrap_or_default()))
    }

    /// The name by which these bytes are recognized: `name`, or of several that containers can have the first that the
    /// bytes fit.
    pub(super) fn fitting_name(&self, name: Vec<u8>, source: &Arc<dyn File>) -> Vec<u8> {
        let names = names_to_recognize(&self.collection.state(), self.node);
        if names.len() < 2 {
            return name;
        }
        // Those of batches are recognized by all bytes, at the close.
        let fits = |name: &Vec<u8>| {
            !is_scanned(name) && recognize(source, name).is_ok_and(|found| found.content != Content::Plain)
        };
        names.into_iter().find(fits).unwrap_or(name)
    }

    /// The path of its first name, below the collection.
    pub(super) fn path(&self) -> Vec<u8> {
        self.collection.state().path(self.node)
    }

    /// Whether a model says that it has tensors.
    fn is_data_file(&self) -> bool {
        let state = self.collection.state();
        is_data_file(&state, &state.path(self.node))
    }

    /// The container of a tensor, or the tensors of a container.
    pub(super) fn related(&self, node: &Node) -> Vec<EntryId> {
        let Some(file) = node.file() else { return Vec::new() };
        let state = self.collection.state();
        let parts = state.parts(file).map(|part| part.entry.id);
        let container = file.container.and_then(|container| state.node(container)?.file());
        let views = container.into_iter().flat_map(|container| state.views(container));
        // For a tensor, `parts` yields the tensor itself.
        parts
            .chain(views.map(|view| view.entry.id))
            .chain(file.container)
            .filter(|id| *id != self.node)
            .collect()
    }

    /// Whether the parts of a container may have moved, or a plain file may have become a container.
    pub(super) fn must_be_recognized_again(
        &self,
        layout: &Layout,
        is_other: bool,
        file: &FileEntry,
        name: &[u8],
    ) -> bool {
        match file.content {
            Content::Part | Content::Tensor => false,
            Content::Plain => may_be_recognized(name) && !is_scanned(name) || self.is_data_file(),
            Content::Cgeb => is_other,
            Content::Safetensors
            | Content::Npy
            | Content::Gguf
            | Content::Torch
            | Content::Npz
            | Content::Onnx
            | Content::OnnxData => {
                let state = self.collection.state();
                let mut others =
                    layout.objects.iter().filter(|open| state.part_of(open.object().entry.id).is_none());
                is_other || others.any(|open| open.object().is_dirty())
            }
        }
    }
}
