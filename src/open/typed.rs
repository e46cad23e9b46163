//! Declares a file to be a tensor, by its attributes `dtype` and `shape`.

use crate::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry, TensorEntry};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape, TensorId};
use crate::open::tree::known;
use crate::store::Collection;
use crate::store::{Touched, now_nanoseconds};

/// Declares the dtype and shape of a file. Without a shape the tensor has one dimension. Fails with
/// `Invalid` where the size does not match, and with `Denied` for containers and their tensors.
pub fn set_tensor(
    collection: &Collection,
    node: EntryId,
    dtype: Option<Dtype>,
    shape: Option<Shape>,
) -> Result<()> {
    let objects = collection.objects_of(node).unwrap_or_default();
    // Held because blocks are encoded as elements of the object's type.
    let _held: Vec<_> = objects.iter().map(|object| object.hold()).collect();
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        let Some(file) = found.file() else { return Err(Error::new(ErrorKind::Denied, "not a file")) };
        let before = file.tensor.as_ref();
        let dtype = dtype.or(before.map(|tensor| tensor.dtype)).unwrap_or(Dtype::U8);
        let row = || Shape::new(&[found.bytes / dtype.bytes()]);
        let agrees = |shape: &Shape| dtype.bytes_of(shape.elements()) == Some(found.bytes);
        let shape = shape.or(before.map(|tensor| tensor.shape.clone()).filter(agrees)).or_else(row);
        let Some(shape) = shape.filter(agrees) else {
            let text = format!("{} bytes do not match that shape of {dtype}", found.bytes);
            return Err(Error::invalid(text));
        };
        if before.is_some_and(|tensor| tensor.dtype == dtype && tensor.shape == shape) {
            return Ok(());
        }
        if !matches!(file.content, Content::Plain | Content::Tensor) {
            return Err(Error::new(ErrorKind::Denied, "the container declares the types of its tensors"));
        }
        let are_held = objects.iter().map(|object| object.entry.id).eq(file.objects.iter().copied());
        if !are_held || !objects.iter().all(|object| object.can_be_of(dtype)) {
            let text = "not all blocks are exact and whole elements of that type; move it to exact first";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        for object in objects.iter().filter(|object| object.dtype() != dtype) {
            collection.check_not_needed(object.entry.id)?;
            batch.entry(Entry::Object(ObjectEntry { dtype, ..object.entry_now() }));
        }
        let path = state.path(node);
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        let name = String::from_utf8_lossy(name).into();
        let tensor = Some(TensorEntry { name, dtype, shape, parent: TensorId(0) });
        let file = FileEntry { content: Content::Tensor, tensor, ..file.clone() };
        let node_type = NodeType::File(Box::new(file));
        batch.entry(Entry::Node(Box::new(NodeEntry {
            ctime: now_nanoseconds(),
            node_type,
            ..found.entry.clone()
        })));
        Ok(())
    })
}
