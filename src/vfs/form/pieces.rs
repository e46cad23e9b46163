//! The objects of a file with the tensors that they hold, from which a form is planned.

use std::sync::Arc;

use crate::format::files::View as FileView;
use crate::format::log::catalog::{Content, FileEntry, TensorEntry};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result, Shape};
use crate::store::{Assembly, Collection, Node, Object, OpenObject, Places, State, StridedElements, Verify};
use crate::stream::{Segment, Stream, is_castable};
use crate::vfs::form::recipe::{Part, Shown, Source, View, source};

/// Data start at multiples of the page size.
pub(super) const ALIGNMENT: u64 = 4096;

/// An object of a file, and the tensor that it holds, if any.
pub(super) struct Piece {
    pub object: Arc<Object>,
    pub tensor: Option<(EntryId, TensorEntry)>,
    /// For a tensor whose elements lie in objects of others, these objects and the elements in them.
    pub view: Option<(Vec<Arc<Object>>, Arc<StridedElements>)>,
    /// Whether the tensor is a part of a quantized weight, whose numbers mean nothing alone.
    pub is_part_of_weight: bool,
}

impl Piece {
    /// Its bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.view.as_ref().map_or_else(|| self.object.bytes(), |(_, elements)| elements.bytes())
    }

    /// Its bytes as they are stored.
    pub fn plain(&self) -> Part {
        let Some((objects, elements)) = self.view.clone() else { return plain(self.object.clone()) };
        let bytes = elements.bytes();
        let dtype = self.tensor.as_ref().map_or(Dtype::U8, |(_, tensor)| tensor.dtype);
        let view = Some(View { elements, moves: Vec::new() });
        Part::Source(Source { objects, view, dtype, shown: Shown::Plain, bytes })
    }

    /// Its tensor, shown in this way.
    pub fn source(&self, tensor: &TensorEntry, shown: Shown) -> Result<Source> {
        match self.view.clone() {
            Some((objects, elements)) => Ok(Source { shown, ..viewed(objects, elements, tensor)? }),
            None => source(vec![self.object.clone()], tensor, shown),
        }
    }

    /// The stream of the bytes of some pieces.
    pub fn stream_of<'a>(
        collection: &Arc<Collection>,
        pieces: impl Iterator<Item = &'a Piece>,
    ) -> Result<Stream> {
        let segment = |piece: &Piece| match (&piece.view, piece.plain()) {
            (Some(_), Part::Source(source)) => {
                Ok(Segment::Computed(Arc::new(source.stream(collection, Verify::First)?)))
            }
            _ => OpenObject::open(collection, &piece.object, Verify::First).map(Segment::Object),
        };
        Stream::new(pieces.map(segment).collect::<Result<_>>()?)
    }

    /// How a cast shows a tensor of this type, and the type that it has then.
    pub fn cast(&self, dtype: Dtype, to: Dtype) -> (Dtype, Shown) {
        if is_castable(dtype) && !self.is_part_of_weight {
            (to, Shown::Cast(to))
        } else {
            (dtype, Shown::Plain)
        }
    }
}

/// A tensor that is a file, with all its shards.
pub(super) fn tensor(pieces: &[Piece]) -> Result<(Source, TensorEntry)> {
    let entry = pieces.first().and_then(|piece| piece.tensor.clone());
    let (_, entry) = entry.ok_or_else(|| Error::new(ErrorKind::NotFound, "not a tensor"))?;
    if let Some((objects, elements)) = pieces.first().and_then(|piece| piece.view.clone()) {
        return Ok((viewed(objects, elements, &entry)?, entry));
    }
    let objects = pieces.iter().map(|piece| piece.object.clone()).collect();
    Ok((source(objects, &entry, Shown::Plain)?, entry))
}

/// A tensor whose elements lie in these objects of others.
pub(super) fn viewed(
    objects: Vec<Arc<Object>>,
    elements: Arc<StridedElements>,
    tensor: &TensorEntry,
) -> Result<Source> {
    let view = Some(View { elements, moves: Vec::new() });
    Ok(Source { view, ..source(objects, tensor, Shown::Plain)? })
}

/// A tensor as it is stored.
pub(super) fn stored(state: &State, node: &Node) -> Result<Source> {
    let gone = || Error::new(ErrorKind::Gone, "a tensor is gone");
    let file = node.file().ok_or_else(gone)?;
    let tensor = file.tensor.as_ref().ok_or_else(gone)?;
    match state.parts_of(file)? {
        (objects, Some(Assembly::View(elements))) => viewed(objects, elements, tensor),
        (objects, _) => source(objects, tensor, Shown::Plain),
    }
}

/// The pieces of a container all of whose tensors are views, in the order of its bytes: its tensors, and what lies
/// between these. `None` for another file.
pub(super) fn of_views(state: &State, file: &FileEntry) -> Result<Option<Vec<Piece>>> {
    let mut parts = state.parts(file).peekable();
    let is_view = |part: &Arc<Node>| part.file().is_some_and(|file| file.view.is_some());
    let may_be = matches!(file.content, Content::Safetensors | Content::Gguf | Content::Npy);
    if !may_be || parts.peek().is_none() || !parts.all(is_view) {
        return Ok(None);
    }
    let mut views = Vec::new();
    for node in state.views(file) {
        let Some((view, tensor)) = node.file().and_then(|file| file.view.as_ref().zip(file.tensor.as_ref()))
        else {
            continue;
        };
        let range = view.range(tensor.dtype, &tensor.shape).unwrap_or_default();
        let name = state.tensor_name(node).unwrap_or_default();
        let object = node.file().and_then(|file| state.object(*file.objects.first()?)).cloned();
        let object = object.ok_or_else(|| Error::corrupt("an object is missing; run tierfs fsck"))?;
        views.push((range, view, (node.entry.id, TensorEntry { name, ..tensor.clone() }), object));
    }
    views.sort_by_key(|(range, ..)| (range.start, range.end));
    let mut places = Places::of(state, file);
    let bytes = file.objects.iter().filter_map(|id| state.object(*id)).map(|object| object.bytes()).sum();
    let (mut pieces, mut at) = (Vec::with_capacity(views.len() * 2 + 1), 0);
    let gap = |places: &mut Places<'_>, pieces: &mut Vec<Piece>, begin: u64, end: u64| {
        let shape = Shape::new(&[end - begin]).unwrap_or_default();
        let tensor = TensorEntry {
            name: Box::default(),
            dtype: Dtype::U8,
            shape: shape.clone(),
            parent: crate::model::TensorId(0),
        };
        let (objects, elements) = places.under(&FileView::contiguous(begin, &shape), &tensor)?;
        let Some(object) = objects.first().cloned() else { return Ok(()) };
        pieces.push(Piece {
            object,
            tensor: None,
            view: Some((objects, elements)),
            is_part_of_weight: false,
        });
        Ok::<_, Error>(())
    };
    for (range, view, (id, tensor), object) in views {
        if range.start < at {
            return Err(Error::unsupported("a joined container whose tensors share bytes"));
        }
        if range.start > at {
            gap(&mut places, &mut pieces, at, range.start)?;
        }
        let found = places.under(view, &tensor)?;
        let is_part_of_weight = state.is_part_of_weight(id);
        pieces.push(Piece { object, tensor: Some((id, tensor)), view: Some(found), is_part_of_weight });
        at = range.end;
    }
    if at < bytes {
        gap(&mut places, &mut pieces, at, bytes)?;
    }
    Ok(Some(pieces))
}

/// The bytes of objects in a row. `None` if they are more than `most`.
pub(super) fn bytes_of(
    collection: &Arc<Collection>,
    objects: &[Arc<Object>],
    most: u64,
) -> Result<Option<Vec<u8>>> {
    let open = |object| OpenObject::open(collection, object, Verify::First).map(Segment::Object);
    let stream = Stream::new(objects.iter().map(open).collect::<Result<_>>()?)?;
    if stream.bytes() > most {
        return Ok(None);
    }
    let mut bytes = vec![0; stream.bytes() as usize];
    stream.read_exact(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// The bytes of an object, unchanged.
pub(super) fn plain(object: Arc<Object>) -> Part {
    let (dtype, bytes) = (object.dtype(), object.bytes());
    Part::Source(Source { objects: vec![object], view: None, dtype, shown: Shown::Plain, bytes })
}
