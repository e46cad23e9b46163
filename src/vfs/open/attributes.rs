//! Sets attributes of nodes: mode, owner, times, and the element type and shape of a file.

use crate::format::files::npy;
use crate::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry, TensorEntry};
use crate::model::{
    Dtype, EntryId, Error, ErrorKind, GROUP_EXECUTES, MODE_BITS, PERMISSIONS, Result, SET_GROUP_ID,
    SET_USER_ID, Shape, TensorId,
};
use crate::store::{Collection, State, Touched, now_nanoseconds};
use crate::vfs::open::Changes;
use crate::vfs::open::names::known;

/// Attributes to set; `None` leaves one unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Access time, in nanoseconds since 1970.
    pub atime: Option<i64>,
    /// Modification time, in nanoseconds since 1970.
    pub mtime: Option<i64>,
    /// Whether a file loses its set-user-ID and set-group-ID bits. The rest of its mode stays.
    pub clears_setid: bool,
}

impl SetAttr {
    /// Sets the attributes of `entry`, and its `ctime` to now.
    pub fn apply(self, entry: &mut NodeEntry) {
        entry.mode = self.mode.map_or(entry.mode, |mode| mode & MODE_BITS);
        if self.clears_setid && matches!(entry.node_type, NodeType::File(_)) {
            entry.mode = without_setid(entry.mode);
        }
        entry.uid = self.uid.unwrap_or(entry.uid);
        entry.gid = self.gid.unwrap_or(entry.gid);
        entry.atime = self.atime.unwrap_or(entry.atime);
        entry.mtime = self.mtime.unwrap_or(entry.mtime);
        entry.ctime = now_nanoseconds();
    }
}

/// A mode without the set-user-ID bit, and without an effective set-group-ID bit.
fn without_setid(mode: u32) -> u32 {
    let group = if mode & GROUP_EXECUTES != 0 { SET_GROUP_ID } else { 0 };
    mode & !(SET_USER_ID | group)
}

/// Whether a mode has the set-user-ID bit or an effective set-group-ID bit.
pub fn has_setid(mode: u32) -> bool {
    without_setid(mode) != mode
}

/// Sets attributes of a node. The tensors of a container get its owner and permissions too, so that a
/// user who may read the container may read them. Setting the attributes of one tensor changes only
/// that tensor.
pub fn set_attr(collection: &Collection, node: EntryId, set: SetAttr) -> Result<Changes> {
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        let mut entry = found.entry.clone();
        set.apply(&mut entry);
        batch.node(entry);
        let mut changes = Changes::default();
        let has_owner = set.uid.is_some() || set.gid.is_some();
        let set = SetAttr {
            mode: set.mode.map(|mode| mode & PERMISSIONS),
            atime: None,
            mtime: None,
            clears_setid: set.clears_setid || has_owner,
            ..set
        };
        let container = found.file().filter(|file| file.content.is_container());
        for part in container.into_iter().flat_map(|file| state.parts(file)) {
            let mut entry = part.entry.clone();
            set.apply(&mut entry);
            if (entry.mode, entry.uid, entry.gid) != (part.entry.mode, part.entry.uid, part.entry.gid) {
                batch.node(entry);
                changes.nodes.push(part.entry.id);
            }
        }
        Ok(changes)
    })
}

/// Declares the dtype and shape of a file. Without a shape the tensor has one dimension. Of arrays of NumPy's, pairs of
/// bytes can be declared bf16, and bf16 pairs of bytes. Returns the nodes whose forms have other headers then. Fails with
/// `Invalid` where the size does not match, and with `Denied` for other tensors of containers.
pub fn set_tensor(
    collection: &Collection,
    node: EntryId,
    dtype: Option<Dtype>,
    shape: Option<Shape>,
) -> Result<Changes> {
    let node = array_of(&collection.state(), node).unwrap_or(node);
    let objects = collection.objects_of(node).unwrap_or_default();
    // Held because blocks are encoded as elements of the object's type.
    let _held: Vec<_> = objects.iter().map(|object| object.hold()).collect();
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        let Some(file) = found.file() else { return Err(Error::new(ErrorKind::Denied, "not a file")) };
        let before = file.tensor.as_ref();
        let container = file.container.and_then(|id| state.node(id));
        let pairs = container.zip(before).zip(dtype).and_then(|((container, before), dtype)| {
            let is_array = matches!(container.file()?.content, Content::Npy | Content::Npz);
            npy::as_pairs(before.dtype, dtype, &before.shape).filter(|_| is_array)
        });
        let is_of_pairs = pairs.is_some();
        let shape = shape.or(pairs);
        let dtype = dtype.or(before.map(|tensor| tensor.dtype)).unwrap_or(Dtype::U8);
        let row = || Shape::new(&[dtype.elements_in(found.bytes)]);
        let agrees = |shape: &Shape| dtype.bytes_of(shape.elements()) == Some(found.bytes);
        let shape = shape.or(before.map(|tensor| tensor.shape.clone()).filter(agrees)).or_else(row);
        let Some(shape) = shape.filter(agrees) else {
            let text = format!("the file has {} bytes, which do not match that shape of {dtype}", found.bytes);
            return Err(Error::invalid(text));
        };
        let is_set = before.is_some_and(|tensor| tensor.dtype == dtype && tensor.shape == shape);
        // Those of a joined file may be of another type.
        if is_set && (is_of_pairs || objects.iter().all(|object| object.dtype() == dtype)) {
            return Ok(Changes::default());
        }
        if !is_of_pairs && !matches!(file.content, Content::Plain | Content::Tensor) {
            return Err(Error::new(ErrorKind::Denied, "the container declares the types of its tensors"));
        }
        let are_held = objects.iter().map(|object| object.entry.id).eq(file.objects.iter().copied());
        if !are_held || !objects.iter().all(|object| object.can_be_of(dtype)) {
            let text = "the type can change only while all blocks are exact and hold whole elements of the new type; move the tensor to exact first";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        for object in objects.iter().filter(|object| object.dtype() != dtype) {
            collection.check_no_parent(object.entry.id)?;
            state.check_unshared(object.entry.id, Some(node))?;
            batch.entry(Entry::Object(ObjectEntry { dtype, ..object.entry_now() }));
        }
        let path = state.path(node);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into();
        let name = before.filter(|_| is_of_pairs).map_or(name, |before| before.name.clone());
        let content = if is_of_pairs { file.content } else { Content::Tensor };
        let tensor = Some(TensorEntry { name, dtype, shape, parent: TensorId(0) });
        let file = FileEntry { content, tensor, ..file.clone() };
        let node_type = NodeType::File(Box::new(file));
        batch.node(NodeEntry { ctime: now_nanoseconds(), node_type, ..found.entry.clone() });
        // Readers of the container's forms look for another node.
        let container = container.map(|container| container.entry.clone());
        let nodes = container.iter().map(|entry| entry.id).chain([node]).collect();
        container.into_iter().for_each(|entry| batch.node(NodeEntry { ctime: now_nanoseconds(), ..entry }));
        Ok(Changes { nodes })
    })
}

/// The array of an `.npy` file.
fn array_of(state: &State, node: EntryId) -> Option<EntryId> {
    let file = state.node(node)?.file().filter(|file| file.content == Content::Npy)?;
    state.parts(file).next().map(|part| part.entry.id)
}
