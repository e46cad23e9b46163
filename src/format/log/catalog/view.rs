//! Encodes the view of a tensor in its Node entry.

use std::sync::Arc;

use crate::format::cursor::{Reader, Writer};
use crate::format::files::View;
use crate::format::log::catalog::{Content, NodeEntry, NodeType};
use crate::format::values::read_list;
use crate::model::{DIMENSIONS_MAX, Error, Result};

pub(super) fn view_of(node: &NodeEntry) -> Option<&Arc<View>> {
    match &node.node_type {
        NodeType::File(file) => file.view.as_ref(),
        _ => None,
    }
}

pub(super) fn write_view(out: &mut Writer, view: &View) {
    out.u64(view.begin).u32(view.strides.len() as u32);
    for stride in &view.strides {
        out.u64(*stride);
    }
}

/// Reads the view of a node, and sets it. Fails unless the node is a tensor of a container whose elements can lie so.
pub(super) fn read_view(bytes: &mut Reader<'_>, node: &mut NodeEntry) -> Result<()> {
    let begin = bytes.u64()?;
    let view = View { begin, strides: read_list(bytes, DIMENSIONS_MAX, 8, Reader::u64)?.into() };
    let invalid = || Error::corrupt("a view of something that is not a tensor of a container");
    let NodeType::File(file) = &mut node.node_type else { return Err(invalid()) };
    let tensor = file.tensor.as_ref().filter(|_| file.content == Content::Part && file.container.is_some());
    let tensor = tensor.filter(|tensor| tensor.dtype.block().0 == 1 && file.objects.len() == 1);
    if tensor.is_none_or(|tensor| view.range(tensor.dtype, &tensor.shape).is_none()) {
        return Err(invalid());
    }
    file.view = Some(Arc::new(view));
    Ok(())
}
