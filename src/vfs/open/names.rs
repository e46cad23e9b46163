//! Changes of names and attributes. Each change is one batch.
//!
//! A rename can give a file other content. Its batch marks the file with a setting; recognizing the file again, here or
//! by the next mount, removes the mark.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::format::files::shard_index;
use crate::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType, ObjectIds};
use crate::format::log::record::Record;
use crate::ingest::{
    Rename, Replaced, arrive_as, is_data_file, mark_data_files, may_be_recognized, recognize_at,
};
use crate::model::{EntryId, Error, ErrorKind, NAME_BYTES_MAX, NameIn, Owner, Result, SET_GROUP_ID};
use crate::store::Batch;
use crate::store::Collection;
use crate::store::disk::File;
use crate::store::{EventKind, Node, ROOT, State, Touched, Use, Verify, end_plain_names, now_nanoseconds};
use crate::vfs::open::hub::mark_blob;
use crate::vfs::open::source::StreamFile;
use crate::vfs::open::{Changes, OpenFile, OpenFiles};

/// Creates an empty file. Fails with `Exists` where the name is taken.
pub fn create(
    collection: &Collection,
    parent: EntryId,
    name: &[u8],
    mode: u32,
    owner: Owner,
) -> Result<EntryId> {
    let file = FileEntry::new(Content::Plain, ObjectIds::new());
    make(collection, parent, name, mode, owner, NodeType::File(Box::new(file)))
}

/// Creates a directory. Fails with `Exists` where the name is taken.
pub fn make_directory(
    collection: &Collection,
    parent: EntryId,
    name: &[u8],
    mode: u32,
    owner: Owner,
) -> Result<EntryId> {
    make(collection, parent, name, mode, owner, NodeType::Directory)
}

/// Creates a symbolic link. Fails with `Exists` where the name is taken.
pub fn symlink(
    collection: &Collection,
    parent: EntryId,
    name: &[u8],
    target: &[u8],
    owner: Owner,
) -> Result<EntryId> {
    make(collection, parent, name, 0o777, owner, NodeType::Symlink(target.to_vec()))
}

fn make(
    collection: &Collection,
    parent: EntryId,
    name: &[u8],
    mode: u32,
    owner: Owner,
    node_type: NodeType,
) -> Result<EntryId> {
    let _counted = collection.meter().reserve(Use::FILE)?;
    collection
        .record(Touched::default(), |batch, state| {
            check_free(state, parent, name)?;
            let above =
                state.node(parent).map(|above| Above { mode: above.entry.mode, gid: above.entry.gid });
            let (mode, owner) = inherited(above.unwrap_or_default(), mode, owner, &node_type);
            let id = EntryId(state.last_entry() + 1);
            if let NodeType::Symlink(target) = &node_type {
                mark_blob(batch, state, NameIn { directory: parent, name }, target);
            }
            batch.node(NodeEntry::new(id, mode, owner, now_nanoseconds(), node_type));
            batch.mark_requested_by_kernel(parent, name);
            put_name(batch, parent, name, EntryId(id.0 + 1), id);
            touch_directory(batch, state, parent);
            Ok((id, plain_names_ended(batch, state, NameIn { directory: parent, name })))
        })
        .map(|(id, ended)| {
            tell(collection, ended);
            id
        })
}

/// The attributes of a directory that new nodes in it may inherit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Above {
    /// Permission bits.
    pub mode: u32,
    /// Group.
    pub gid: u32,
}

/// The mode and owner of a new node in a directory. A directory with the set-group-ID bit gives its group to
/// the node, and the bit to a directory.
pub fn inherited(above: Above, mode: u32, owner: Owner, node_type: &NodeType) -> (u32, Owner) {
    if above.mode & SET_GROUP_ID == 0 {
        return (mode, owner);
    }
    let bit = if *node_type == NodeType::Directory { SET_GROUP_ID } else { 0 };
    (mode | bit, Owner { uid: owner.uid, gid: above.gid })
}

/// Creates a hard link. Fails with `Denied` for directories and for tensors of containers.
pub fn link(collection: &Collection, node: EntryId, parent: EntryId, name: &[u8]) -> Result<()> {
    let _counted = collection.meter().reserve(Use::FILE)?;
    collection
        .record(Touched::default(), |batch, state| {
            check_free(state, parent, name)?;
            let found = known(state, node)?;
            match &found.entry.node_type {
                NodeType::Directory => return Err(Error::new(ErrorKind::Denied, "a directory has one name")),
                NodeType::File(file) if file.container.is_some() => return Err(belongs()),
                _ => {}
            }
            batch.mark_requested_by_kernel(parent, name);
            put_name(batch, parent, name, EntryId(state.last_entry() + 1), node);
            batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
            touch_directory(batch, state, parent);
            Ok(plain_names_ended(batch, state, NameIn { directory: parent, name }))
        })
        .map(|ended| tell(collection, ended))
}

/// Removes a name of a file, and with its last name the file.
pub fn unlink(collection: &Collection, parent: EntryId, name: &[u8]) -> Result<Changes> {
    collection.record(Touched::default(), |batch, state| {
        let node = named(state, parent, name)?;
        if node.entry.node_type == NodeType::Directory {
            return Err(Error::new(ErrorKind::IsDirectory, "a directory is removed with rmdir"));
        }
        batch.mark_requested_by_kernel(parent, name);
        let changes = take_away(batch, state, parent, name, node);
        touch_directory(batch, state, parent);
        Ok(changes)
    })
}

/// Removes the name of a file, if `may_go` still holds in the batch. `None` if it does not. The kernel made no request and
/// may keep the name until its time is over: the notification would end every name of the mount, for each file.
pub fn unlink_if(
    collection: &Collection,
    NameIn { directory, name }: NameIn<'_>,
    may_go: &dyn Fn(&State, &Node) -> bool,
) -> Result<Option<Changes>> {
    collection.record(Touched::default(), |batch, state| {
        let node = state.directory(directory).and_then(|names| state.node(names.get(name)?));
        let Some(node) = node.filter(|node| node.file().is_some() && may_go(state, node)) else {
            return Ok(None);
        };
        batch.mark_requested_by_kernel(directory, name);
        let changes = take_away(batch, state, directory, name, node);
        touch_directory(batch, state, directory);
        Ok(Some(changes))
    })
}

/// Removes an empty directory.
pub fn remove_directory(collection: &Collection, parent: EntryId, name: &[u8]) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let node = named(state, parent, name)?;
        let directory = state.directory(node.entry.id);
        let directory = directory.ok_or_else(|| Error::new(ErrorKind::NotDirectory, "not a directory"))?;
        if !directory.is_empty() {
            return Err(Error::new(ErrorKind::NotEmpty, "the directory is not empty"));
        }
        batch.mark_requested_by_kernel(parent, name);
        batch.entry(Entry::NameRemoved { parent, name: name.into() });
        batch.entry(Entry::NodeRemoved(node.entry.id));
        touch_directory(batch, state, parent);
        Ok(())
    })
}

/// Renames a file or a directory. An existing target is replaced, or is an error if `keep` is set.
/// Returns the node, whose content may have to be recognized again under its new name.
pub fn rename(
    collection: &Collection,
    from: NameIn<'_>,
    to: NameIn<'_>,
    keep: bool,
) -> Result<(EntryId, Changes)> {
    rename_then(collection, from, to, keep, |_, _, _| ())
}

/// As [`rename`], of a file whose first bytes say that it is none of the containers that its new name allows: its content
/// need not be recognized again.
pub fn rename_ordinary(
    collection: &Collection,
    from: NameIn<'_>,
    to: NameIn<'_>,
    keep: bool,
) -> Result<(EntryId, Changes)> {
    rename_then(collection, from, to, keep, |batch, state, id| {
        if !state.must_be_recognized_again(id) {
            batch.was_recognized_again(id);
        }
    })
}

fn rename_then(
    collection: &Collection,
    from: NameIn<'_>,
    to: NameIn<'_>,
    keep: bool,
    then: impl FnOnce(&mut Batch, &State, EntryId),
) -> Result<(EntryId, Changes)> {
    let renamed = collection.record(Touched::default(), |batch, state| {
        let entry = EntryId(state.last_entry() + 1);
        let (id, changes) = add_rename(collection, batch, state, from, to, keep, entry)?;
        then(batch, state, id);
        Ok((id, changes, plain_names_ended(batch, state, to)))
    });
    renamed.map(|(id, changes, ended)| {
        tell(collection, ended);
        (id, changes)
    })
}

/// Adds a rename to a batch. The name has the number `entry` if it is a new one.
fn add_rename(
    collection: &Collection,
    batch: &mut Batch,
    state: &State,
    from: NameIn<'_>,
    to: NameIn<'_>,
    keep: bool,
    entry: EntryId,
) -> Result<(EntryId, Changes)> {
    check_name(to.name)?;
    let node = named(state, from.directory, from.name)?;
    let id = node.entry.id;
    // The new name may make the file be split anew.
    let mut objects = node.file().into_iter().flat_map(|file| &file.objects);
    let is_split_anew = has_other_suffix(from.name, to.name);
    objects.try_for_each(|object| {
        collection.check_no_parent(*object)?;
        if is_split_anew { state.check_unshared(*object, Some(id)) } else { Ok(()) }
    })?;
    let is_directory = node.entry.node_type == NodeType::Directory;
    if is_directory && (to.directory == id || is_below(state, to.directory, id)) {
        return Err(Error::invalid("a directory cannot go into itself"));
    }
    let mut changes = Changes::default();
    let target = state.directory(to.directory).ok_or_else(no_directory)?;
    // Keeping the entry number makes a concurrent listing show a replaced name once. The first of
    // several names of a file is the one with the lowest number, so those get a new number.
    let kept = target.entry(to.name).filter(|_| state.links(id).len() == 1);
    if let Some(old) = target.get(to.name) {
        let old = known(state, old)?;
        if old.entry.id == id {
            return Ok((id, changes));
        }
        if keep {
            return Err(Error::new(ErrorKind::Exists, "the name is taken"));
        }
        match (is_directory, state.directory(old.entry.id)) {
            (false, Some(_)) => {
                return Err(Error::new(ErrorKind::IsDirectory, "the name is a directory's"));
            }
            (true, None) => return Err(Error::new(ErrorKind::NotDirectory, "the name is a file's")),
            (true, Some(directory)) if !directory.is_empty() => {
                return Err(Error::new(ErrorKind::NotEmpty, "the directory of that name is not empty"));
            }
            (true, Some(_)) => {
                batch.entry(Entry::NameRemoved { parent: to.directory, name: to.name.into() });
                batch.entry(Entry::NodeRemoved(old.entry.id));
            }
            (false, None) => changes.merge(take_away(batch, state, to.directory, to.name, old)),
        }
    }
    batch.mark_requested_by_kernel(from.directory, from.name);
    batch.mark_requested_by_kernel(to.directory, to.name);
    batch.entry(Entry::NameRemoved { parent: from.directory, name: from.name.into() });
    put_name(batch, to.directory, to.name, kept.unwrap_or(entry), id);
    batch.node(NodeEntry { ctime: now_nanoseconds(), ..node.entry.clone() });
    mark(batch, state, node, from, to);
    if let NodeType::Symlink(target) = &node.entry.node_type {
        mark_blob(batch, state, to, target);
    }
    mark_next(batch, state, node, from);
    for parent in [from.directory, to.directory] {
        touch_directory(batch, state, parent);
    }
    Ok((id, changes))
}

/// Exchanges two names (`RENAME_EXCHANGE`) of files, links or directories, in one batch. Returns the nodes that they led to.
/// Fails with `Invalid` for a file that would get another suffix, by which it could be another kind of file, and for a
/// directory and a name below it.
pub fn exchange(collection: &Collection, one: NameIn<'_>, other: NameIn<'_>) -> Result<[EntryId; 2]> {
    collection.record(Touched::default(), |batch, state| {
        let nodes = [named(state, one.directory, one.name)?, named(state, other.directory, other.name)?];
        let ids = [nodes[0].entry.id, nodes[1].entry.id];
        if ids[0] == ids[1] {
            return Ok(ids);
        }
        for (node, from, to) in [(&nodes[0], one, other), (&nodes[1], other, one)] {
            let id = node.entry.id;
            match &node.entry.node_type {
                NodeType::File(_) if has_other_suffix(from.name, to.name) => {
                    return Err(Error::invalid(
                        "files of other suffixes cannot be exchanged; rename them one by one",
                    ));
                }
                NodeType::File(file) => {
                    file.objects.iter().try_for_each(|object| collection.check_no_parent(*object))?;
                }
                NodeType::Directory if to.directory == id || is_below(state, to.directory, id) => {
                    return Err(Error::invalid("a directory cannot go into itself"));
                }
                _ => {}
            }
        }
        // Both go before one comes: each takes the place of the other.
        for NameIn { directory, name } in [one, other] {
            batch.mark_requested_by_kernel(directory, name);
            batch.entry(Entry::NameRemoved { parent: directory, name: name.into() });
        }
        let next = state.last_entry();
        for (number, node, from, to) in [(1, &nodes[0], one, other), (2, &nodes[1], other, one)] {
            put_name(batch, to.directory, to.name, EntryId(next + number), node.entry.id);
            batch.node(NodeEntry { ctime: now_nanoseconds(), ..node.entry.clone() });
            mark(batch, state, node, from, to);
            if let NodeType::Symlink(target) = &node.entry.node_type {
                mark_blob(batch, state, to, target);
            }
            mark_next(batch, state, node, from);
        }
        for parent in [one.directory, other.directory] {
            touch_directory(batch, state, parent);
        }
        Ok(ids)
    })
}

/// Plain names of tensors that a program ended.
pub(super) struct PlainNamesEnded {
    path: String,
    /// The name that the program made there.
    name: String,
}

/// Ends the plain names of tensors in a directory, and below it, in which a program makes a name: the kernel
/// does not ask for the creation of a name that a lookup finds, so the next ones must lead nowhere.
pub(super) fn plain_names_ended(
    batch: &mut Batch,
    state: &State,
    NameIn { directory, name }: NameIn<'_>,
) -> Option<PlainNamesEnded> {
    state.has_plain_names(directory).then(|| {
        batch.entry(end_plain_names(directory));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        PlainNamesEnded { path: text(&state.path(directory)), name: text(name) }
    })
}

pub(super) fn tell(collection: &Collection, ended: Option<PlainNamesEnded>) {
    let Some(PlainNamesEnded { path, name }) = ended else { return };
    let path = if path.is_empty() { collection.path() } else { format!("{}/{path}", collection.path()) };
    let text = format!(
        "plain=off: a program made {name}, so tensors open below .tensors only; tierfs set plain=on brings their \
         plain names back"
    );
    collection.event_log().tell(EventKind::Control, &path, "plain", &text);
}

/// Removes a name, and with the last one the node, its tensors and its bytes.
fn take_away(batch: &mut Batch, state: &State, parent: EntryId, name: &[u8], node: &Node) -> Changes {
    let mut changes = Changes::default();
    let id = node.entry.id;
    batch.entry(Entry::NameRemoved { parent, name: name.into() });
    match &node.entry.node_type {
        _ if state.links(id).len() > 1 => {
            mark_next(batch, state, node, NameIn { directory: parent, name });
            let entry = NodeEntry { ctime: now_nanoseconds(), ..node.entry.clone() };
            batch.node(entry);
            changes.nodes.push(id);
        }
        NodeType::File(file) => {
            remove_parts(batch, state, file);
            batch.entry(Entry::NodeRemoved(id));
            for object in state.own_objects(id, file) {
                batch.record(Record::Delete { object });
            }
        }
        NodeType::Directory | NodeType::Symlink(_) => batch.entry(Entry::NodeRemoved(id)),
    }
    changes
}

/// Removes the tensors of a container.
pub(super) fn remove_parts(batch: &mut Batch, state: &State, file: &FileEntry) {
    let parts = state.parts(file).filter(|part| part.file().is_some_and(|file| file.container.is_some()));
    parts.for_each(|part| batch.entry(Entry::NodeRemoved(part.entry.id)));
}

/// Marks a file whose first name changes, where its content may be recognized differently.
fn mark(batch: &mut Batch, state: &State, node: &Node, from: NameIn<'_>, to: NameIn<'_>) {
    let Some(file) = node.file() else { return };
    let is_other = file.content.is_container() || may_be_recognized(to.name);
    let is_index = shard_index::is_name(from.name) != shard_index::is_name(to.name);
    let has_data =
        file.content == Content::OnnxData || is_data_file(state, &state.path_of_name(to.directory, to.name));
    if is_other && has_other_suffix(from.name, to.name) || is_index || has_data {
        batch.recognize_again(node.entry.id);
    }
    mark_data_files(batch, state, node.entry.id, to.directory);
}

/// Marks a file that loses the first of its names: the next one may make it another kind of file.
fn mark_next(batch: &mut Batch, state: &State, node: &Node, gone: NameIn<'_>) {
    let links = state.links(node.entry.id);
    if let Some((first, next)) = links.first().zip(links.second())
        && *first == (gone.directory, gone.name.into())
    {
        mark(batch, state, node, gone, NameIn { directory: next.0, name: &next.1 });
    }
}

pub(super) fn put_name(batch: &mut Batch, parent: EntryId, name: &[u8], entry: EntryId, node: EntryId) {
    batch.entry(Entry::Name { parent, entry, name: name.into(), node });
}

pub(super) fn touch_directory(batch: &mut Batch, state: &State, id: EntryId) {
    if let Some(node) = state.node(id) {
        let now = now_nanoseconds();
        batch.node(NodeEntry { mtime: now, ctime: now, ..node.entry.clone() });
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::new(ErrorKind::NameTooLong, "a name of more than 255 bytes"));
    }
    if crate::model::is_reserved(&String::from_utf8_lossy(name)) {
        return Err(Error::new(
            ErrorKind::Denied,
            "the name is reserved: every collection has a directory of that name",
        ));
    }
    Ok(())
}

pub(super) fn check_free(state: &State, parent: EntryId, name: &[u8]) -> Result<()> {
    check_name(name)?;
    match state.directory(parent).ok_or_else(no_directory)?.get(name) {
        Some(_) => Err(Error::new(ErrorKind::Exists, "the name is taken")),
        None => Ok(()),
    }
}

fn named<'a>(state: &'a State, parent: EntryId, name: &[u8]) -> Result<&'a Node> {
    let node = state.directory(parent).ok_or_else(no_directory)?.get(name);
    known(state, node.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such file"))?)
}

pub(super) fn known(state: &State, node: EntryId) -> Result<&Node> {
    state.node(node).map(AsRef::as_ref).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))
}

fn is_below(state: &State, id: EntryId, above: EntryId) -> bool {
    let mut at = id;
    while at != ROOT {
        let Some((parent, _)) = state.links(at).first() else { return false };
        if *parent == above {
            return true;
        }
        at = *parent;
    }
    false
}

fn no_directory() -> Error {
    Error::new(ErrorKind::NotDirectory, "not a directory")
}

fn belongs() -> Error {
    Error::new(ErrorKind::Denied, "the tensor belongs to a container; change the container")
}

impl OpenFile {
    /// Renames a plain file that its new name makes a container, and gives it its tensors, in one batch: a name of
    /// a tensor that the replaced file had leads to one of the two at every moment. Whether it did; after an
    /// error nothing is renamed. Adds its changes to `changes`, also those before a failure.
    pub fn rename_as_container(
        &self,
        from: NameIn<'_>,
        to: NameIn<'_>,
        keep: bool,
        changes: &mut Changes,
    ) -> Result<bool> {
        let path = self.collection.state().path_of_name(to.directory, to.name);
        changes.merge(self.flush()?);
        let mut layout = self.layout.write();
        layout.check()?;
        let node = self.collection.state().node(self.node).cloned();
        let Some((node, file)) = node.as_ref().and_then(|node| Some((node, node.file()?))) else {
            return Ok(false);
        };
        // Another thread may have written since.
        if file.content != Content::Plain || self.is_changed() {
            return Ok(false);
        }
        let bytes = layout.bytes();
        let source: Arc<dyn File> = Arc::new(StreamFile { stream: layout.stream.clone(), bytes });
        let recognized = recognize_at(&self.collection, &path, &source, to.name)?;
        if recognized.content == Content::Plain {
            return Ok(false);
        }
        let (mut renamed, mut ended) = (Changes::default(), None);
        let mut add = |batch: &mut Batch, state: &State, entry| {
            let (id, replaced) = add_rename(&self.collection, batch, state, from, to, keep, entry)?;
            // By another name it may stay what it is.
            if id != self.node || state.links(id).len() != 1 {
                return Err(Error::new(ErrorKind::Gone, "the name leads to another file now"));
            }
            renamed = replaced;
            ended = plain_names_ended(batch, state, to);
            Ok(())
        };
        let (bytes, digests) = (self.bytes_of(&layout, &layout.objects, &source)?, file.digests.clone());
        let (why, mtime) = (recognized.note.clone(), node.entry.mtime);
        let is_arrival = !self.flags.unclosed.load(Ordering::Acquire);
        let rename = Some(Rename { to, add: &mut add });
        let replaced = Replaced { node: self.node, new: None, rename, is_arrival };
        let parts = arrive_as(&self.collection, replaced, recognized, bytes, digests, mtime, why)?;
        tell(&self.collection, ended);
        changes.merge(renamed);
        changes.nodes.extend(self.rounded_now(&parts.0));
        if let Err(error) = layout.replace(&self.collection, Ok(parts), self.verify) {
            log::warn!("{}: a renamed file: {error}", self.collection.path());
        }
        Ok(true)
    }

    /// Recognizes the file under its current name, and removes the mark that a rename left. Adds its changes
    /// to `changes`, also those before a failure.
    pub fn recognize_again(&self, changes: &mut Changes) -> Result<()> {
        self.recognize_now(changes)?;
        let marked = |state: &State| state.must_be_recognized_again(self.node);
        if marked(&self.collection.state()) {
            let taken = self.collection.record(Touched::default(), |batch, state| {
                if marked(state) {
                    batch.was_recognized_again(self.node);
                }
                Ok(())
            });
            // Recognizing it once more does no harm.
            if let Err(error) = taken {
                log::warn!("{}: {error}", self.collection.path());
            }
        }
        Ok(())
    }
}

/// Whether a plain file may be a container under its new name.
pub fn may_become_container(state: &State, from: &[u8], NameIn { directory, name }: NameIn<'_>) -> bool {
    may_be_recognized(name) && has_other_suffix(from, name)
        || is_data_file(state, &state.path_of_name(directory, name))
}

/// Whether a file may have other content under its new name, so that it must be recognized again.
pub fn has_other_suffix(from: &[u8], to: &[u8]) -> bool {
    suffix(from) != suffix(to)
}

fn suffix(name: &[u8]) -> &[u8] {
    name.rsplit(|byte| *byte == b'.').next().filter(|suffix| suffix.len() < name.len()).unwrap_or_default()
}

/// Recognizes renamed files that still have the mark: the process ended before, or an import took
/// their first name. Those for which there is no room are added to `waiting`.
pub fn finish_renames(
    collection: &Arc<Collection>,
    table: &OpenFiles,
    verify: Verify,
    waiting: &mut Vec<Arc<OpenFile>>,
) -> Changes {
    let mut changes = Changes::default();
    let marked: Vec<EntryId> = collection.state().to_be_recognized_again().collect();
    if marked.is_empty() || collection.check_writable().is_err() {
        return changes;
    }
    for node in marked {
        let recognized = table.open(collection, node, verify).and_then(|open_file| {
            let recognized = open_file.recognize_again(&mut changes);
            if recognized.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
                waiting.push(open_file);
            }
            recognized
        });
        if let Err(error) = recognized {
            log::warn!("{}: recognizing a file again: {error}", collection.path());
        }
    }
    changes
}
