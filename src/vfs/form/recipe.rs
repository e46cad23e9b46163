//! The recipe of a file in a form: the parts that it consists of.

use std::ops::Range;
use std::sync::Arc;

use crate::engine::MovePreview;
use crate::format::files::cgeb::Runs;
use crate::format::files::safetensors::Weight;
use crate::format::log::catalog::TensorEntry;
use crate::model::{Dtype, Encoder, EntryId, Error, Result, Tier};
use crate::store::Collection;
use crate::store::FileUse;
use crate::store::Node;
use crate::store::Object;
use crate::store::{OpenObject, ROOT, StridedElements, Verify};
use crate::stream::{AssembledBatch, Cast, Dequantized, Parts, Segment, Stream, Strided, Zeros, batch_index};
use crate::vfs::form::adapters::MergedTensor;
use crate::vfs::form::batch::{self, Rows};
use crate::vfs::form::gguf_model::ModelTensor;
use crate::vfs::form::sums::{self, Summed};
use crate::vfs::form::vectors::{Vectors, bytes_of_vectors};

/// How the bytes of a tensor are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shown {
    Plain,
    /// Cast to floats of another type.
    Cast(Dtype),
    /// With the values that they would have after a move to a tier.
    Moved(Tier, Encoder),
}

/// Elements that lie in objects of other tensors.
#[derive(Clone)]
pub(super) struct View {
    pub elements: Arc<StridedElements>,
    /// For each object, the tier and the encoder of a move that is previewed; empty without one.
    pub moves: Vec<Option<(Tier, Encoder)>>,
}

/// Consecutive objects that are shown in the same way.
#[derive(Clone)]
pub(super) struct Source {
    /// The objects in order.
    pub objects: Vec<Arc<Object>>,
    /// Where in them the elements are, if they do not follow each other.
    pub view: Option<View>,
    /// The type of their elements.
    pub dtype: Dtype,
    /// How to show them.
    pub shown: Shown,
    /// Total bytes according to the catalog.
    pub bytes: u64,
}

/// A part of a file in a form.
pub(super) enum Part {
    Literal(Vec<u8>),
    /// A number of zero bytes.
    Zeros(u64),
    /// A tensor, or bytes between tensors.
    Source(Source),
    /// Some of the bytes that a source shows.
    Slice {
        source: Source,
        elements: Arc<StridedElements>,
    },
    /// Rows of a matrix as records.
    Rows {
        source: Source,
        rows: u64,
        dimension: u32,
    },
    /// Rows of a matrix in f32, each after its length.
    Vectors {
        source: Source,
        rows: u64,
        dimension: u64,
    },
    /// The index of these records.
    Index {
        source: Source,
        rows: u64,
        dimension: u32,
    },
    /// An embedding batch, assembled from its parts.
    Batch {
        runs: Arc<Runs>,
        parts: Vec<Source>,
    },
    /// The index of the embedding batch `node`.
    BatchIndex {
        runs: Arc<Runs>,
        node: EntryId,
    },
    Sums(Vec<Summed>),
    /// A weight that is stored as codes, as elements of a type.
    Weight(ShownWeight),
    /// A tensor of a model in its GGUF file.
    ModelTensor(ModelTensor),
    /// A tensor that an adapter changes.
    Merged(Box<MergedTensor>),
}

/// A weight and the tensors that it consists of, by name.
pub(super) struct ShownWeight {
    pub weight: Arc<Weight>,
    pub sources: Vec<(String, Source)>,
    pub to: Dtype,
}

/// The parts of a file in a form, which determine its size and its bytes.
pub struct Recipe {
    pub(super) collection: Arc<Collection>,
    /// Creation time of the source in Unix seconds.
    pub(super) created_at: u64,
    pub(super) parts: Vec<Part>,
    /// The files that it follows from, beside the file that it shows, where these are others.
    pub(super) inputs: Vec<Arc<Node>>,
}

impl Source {
    /// Bytes after the conversion; `None` on overflow.
    fn shown_bytes(&self) -> Option<u64> {
        match self.shown {
            Shown::Cast(to) => self.dtype.elements_in(self.bytes).checked_mul(to.bytes()),
            _ => Some(self.bytes),
        }
    }

    /// The bytes of a block that is decoded as a whole; 0 where all bytes are stored as they are.
    fn decoded_block_bytes(&self) -> u64 {
        let encoded = self.objects.iter().filter(|object| object.stored() != object.bytes());
        encoded.map(|object| u64::from(object.entry.block_bytes)).max().unwrap_or_default()
    }

    /// Counts an access to some of the bytes of the objects, or to all.
    fn count_use(&self, of: Option<Range<u64>>, file_use: FileUse) {
        let mut begin = 0;
        for object in &self.objects {
            let (layout, end) = (object.layout(), begin + object.bytes());
            let range = of.clone().unwrap_or(begin..end);
            let (from, until) = (range.start.max(begin), range.end.min(end));
            if from < until {
                object.count_use(layout.index(from - begin)..layout.index(until - 1 - begin) + 1, file_use);
            }
            begin = end;
        }
    }

    pub(super) fn stream(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Stream> {
        let found: u64 = self.objects.iter().map(|object| object.bytes()).sum();
        if found != self.bytes && self.view.is_none() {
            let text = "it is being written to, and its size does not match its header";
            return Err(Error::new(crate::model::ErrorKind::Busy, text));
        }
        let moves = self.view.as_ref().map(|view| view.moves.as_slice()).unwrap_or_default();
        let segments = self.objects.iter().enumerate().map(|(place, object)| {
            let open = OpenObject::open(collection, object, verify)?;
            let moved = match self.shown {
                Shown::Moved(to, encoder) => Some((to, encoder)),
                _ => moves.get(place).copied().flatten(),
            };
            Ok(match moved {
                Some((to, encoder)) => Segment::Computed(Arc::new(MovePreview::new(open, to, encoder))),
                None => Segment::Object(open),
            })
        });
        let mut source = Stream::new(segments.collect::<Result<_>>()?)?;
        if let Some(view) = &self.view {
            let strided = Strided::new(view.elements.clone(), source);
            source = Stream::new(vec![Segment::Computed(Arc::new(strided))])?;
        }
        match self.shown {
            Shown::Cast(to) if to != self.dtype => {
                let cast = Cast { source, from: self.dtype, to };
                Stream::new(vec![Segment::Computed(Arc::new(cast))])
            }
            _ => Ok(source),
        }
    }
}

impl Part {
    /// Some of the bytes of a source.
    pub(super) fn slice(source: Source, elements: StridedElements) -> Part {
        Part::Slice { source, elements: Arc::new(elements) }
    }

    fn bytes(&self) -> Option<u64> {
        match self {
            Part::Literal(bytes) => Some(bytes.len() as u64),
            Part::Zeros(bytes) => Some(*bytes),
            Part::Source(source) => source.shown_bytes(),
            Part::Slice { elements, .. } => Some(elements.bytes()),
            Part::Rows { rows, dimension, .. } => Rows::bytes_of(*rows, *dimension),
            Part::Vectors { rows, dimension, .. } => bytes_of_vectors(*rows, *dimension),
            Part::Index { rows, .. } => batch::index_bytes(*rows),
            Part::Batch { runs, .. } => Some(runs.bytes()),
            Part::BatchIndex { runs, .. } => batch::index_bytes(runs.records()),
            Part::Sums(files) => Some(sums::bytes(files)),
            Part::Weight(shown) => shown.weight.shape.elements().checked_mul(shown.to.bytes()),
            Part::ModelTensor(tensor) => Some(tensor.bytes()),
            Part::Merged(tensor) => tensor.bytes(),
        }
    }

    fn segment(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Segment> {
        let rows = |source: &Source, rows, dimension| {
            let rows = Rows::new(source.stream(collection, verify)?, rows, dimension);
            Ok(Segment::Computed(Arc::new(rows)))
        };
        match self {
            Part::Literal(bytes) => Ok(Segment::literal(bytes.as_slice())),
            Part::Zeros(bytes) => Ok(Segment::Computed(Arc::new(Zeros(*bytes)))),
            Part::Source(source) => {
                source.stream(collection, verify).map(|stream| Segment::Computed(Arc::new(stream)))
            }
            Part::Slice { source, elements } => {
                let strided = Strided::new(elements.clone(), source.stream(collection, verify)?);
                Ok(Segment::Computed(Arc::new(strided.with_blocks(source.decoded_block_bytes()))))
            }
            Part::Rows { source, rows: count, dimension } => rows(source, *count, *dimension),
            Part::Vectors { source, rows, dimension } => {
                let (rows, dimension) = (*rows, *dimension);
                let source = source.stream(collection, verify)?;
                Ok(Segment::Computed(Arc::new(Vectors { source, rows, dimension })))
            }
            Part::Index { source, rows: count, dimension } => {
                let batch = Stream::new(vec![rows(source, *count, *dimension)?])?;
                Ok(Segment::literal(batch::index(&batch, *count, *dimension)?))
            }
            Part::Batch { runs, parts } => {
                let parts =
                    parts.iter().map(|part| part.stream(collection, verify)).collect::<Result<_>>()?;
                Ok(Segment::Computed(Arc::new(AssembledBatch::new(runs.clone(), parts)?)))
            }
            Part::BatchIndex { node, .. } => {
                let index = batch_index(collection, *node, verify)?;
                let gone = || Error::new(crate::model::ErrorKind::Gone, "it is no longer an embedding batch");
                Ok(Segment::Computed(Arc::new(index.ok_or_else(gone)?)))
            }
            Part::Sums(files) => Ok(Segment::literal(sums::text(collection, files, verify)?)),
            Part::Merged(tensor) => tensor.segment(collection, verify),
            Part::Weight(shown) => shown.segment(collection, verify),
            Part::ModelTensor(tensor) => tensor.segment(collection, verify),
        }
    }
}

impl ShownWeight {
    /// Its elements.
    pub(super) fn segment(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Segment> {
        let open = |(name, source): &(String, Source)| {
            Ok((name.clone(), (source.stream(collection, verify)?, source.dtype)))
        };
        let parts: Parts = self.sources.iter().map(open).collect::<Result<_>>()?;
        Ok(Segment::Computed(Arc::new(Dequantized::new(self.weight.clone(), parts, self.to))))
    }
}

impl Recipe {
    /// The files that it follows from, beside the file that it shows, where these are others.
    pub fn inputs(&self) -> &[Arc<Node>] {
        &self.inputs
    }

    /// Size of the file. Fails with `Corrupt` above 2^63 - 1 bytes.
    pub fn bytes(&self) -> Result<u64> {
        let mut sum = 0_u64;
        for part in &self.parts {
            let more =
                part.bytes().and_then(|bytes| sum.checked_add(bytes)).filter(|sum| *sum <= i64::MAX as u64);
            sum = more.ok_or_else(|| Error::corrupt("a file of more than 2^63 - 1 bytes"))?;
        }
        Ok(sum)
    }

    /// Counts an access to all source objects. Called when the file is opened, because the daemon does not see reads from
    /// the page cache.
    pub fn count_use(&self) {
        // A form has many tensors; the thresholds of the collection count for all.
        let file_use = self.collection.use_of(ROOT, self.created_at);
        for part in &self.parts {
            let sources: Vec<&Source> = match part {
                Part::Source(source) | Part::Rows { source, .. } | Part::Vectors { source, .. } => {
                    vec![source]
                }
                Part::Batch { parts, .. } => parts.iter().collect(),
                Part::Weight(shown) => shown.sources.iter().map(|(_, source)| source).collect(),
                Part::ModelTensor(tensor) => tensor.sources(),
                Part::Merged(tensor) => {
                    tensor.count_use_of_adapter();
                    tensor.sources().0
                }
                Part::Slice { source, elements } => {
                    let is_range = elements.dimensions.len() == 1 && source.view.is_none();
                    let range = is_range.then(|| elements.begin..elements.begin + elements.bytes());
                    source.count_use(range, file_use);
                    continue;
                }
                _ => continue,
            };
            sources.into_iter().for_each(|source| source.count_use(None, file_use));
        }
        self.collection.note_use();
    }

    /// The bytes of the file as a stream. Fails with `Busy` while a source changes its size.
    pub fn stream(&self, verify: Verify) -> Result<Stream> {
        let segments = self.parts.iter().map(|part| part.segment(&self.collection, verify));
        Stream::new(segments.collect::<Result<_>>()?)
    }
}

/// A tensor, shown in this way.
pub(super) fn source(objects: Vec<Arc<Object>>, tensor: &TensorEntry, shown: Shown) -> Result<Source> {
    let bytes = tensor.dtype.bytes_of(tensor.shape.elements());
    let bytes = bytes.ok_or_else(|| Error::corrupt("a tensor of more bytes than can be counted"))?;
    Ok(Source { objects, view: None, dtype: tensor.dtype, shown, bytes })
}

#[cfg(test)]
mod tests {
    use super::{Part, Shown, Source};
    use crate::model::Dtype;

    #[test]
    fn a_cast_whose_size_overflows_has_no_size() {
        let part = |bytes| {
            let shown = Shown::Cast(Dtype::F32);
            Part::Source(Source { objects: Vec::new(), view: None, dtype: Dtype::F8E4M3, shown, bytes })
        };
        assert_eq!(part(1 << 61).bytes(), Some(1 << 63));
        assert_eq!(part(1 << 62).bytes(), None);
    }
}
