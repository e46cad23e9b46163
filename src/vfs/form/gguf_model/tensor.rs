//! A tensor in the GGUF file of a model.

use std::sync::Arc;

use crate::format::files::hub::TensorLayout;
use crate::model::{Dtype, Error, Result};
use crate::store::{Collection, Verify};
use crate::stream::{Cast, Incremented, Interleaved, Quantized, Segment, Stream};
use crate::vfs::form::recipe::{ShownWeight, Source};

/// A tensor of a model, changed as the layout says: rows that are left out, then the order of rows, then one more, then a
/// cast or blocks.
pub struct ModelTensor {
    pub(super) elements: Elements,
    /// The type of the elements.
    pub(super) from: Dtype,
    pub(super) layout: TensorLayout,
}

/// The elements of a tensor.
pub(super) enum Elements {
    Stored(Source),
    /// Decoded from codes.
    Weight(ShownWeight),
}

impl ModelTensor {
    /// Its bytes in the file.
    pub fn bytes(&self) -> u64 {
        self.layout.bytes
    }

    /// The tensors that it is made of.
    pub fn sources(&self) -> Vec<&Source> {
        match &self.elements {
            Elements::Stored(source) => vec![source],
            Elements::Weight(shown) => shown.sources.iter().map(|(_, source)| source).collect(),
        }
    }

    /// Its bytes in the file, made when they are read.
    pub fn segment(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Segment> {
        let mut stream = match &self.elements {
            Elements::Stored(source) => source.stream(collection, verify)?,
            Elements::Weight(shown) => Stream::new(vec![shown.segment(collection, verify)?])?,
        };
        let layout = &self.layout;
        let wrong = || Error::corrupt("a tensor of a model has other bytes than its shape");
        let sizes = layout.shape.dimensions();
        let (rows, elements) = (sizes.first().copied().unwrap_or(1), layout.shape.elements());
        if let Some(heads) = layout.heads.filter(|heads| *heads > 0 && rows > 0) {
            let (row_bytes, head_rows) = (elements / rows * self.from.bytes(), rows / heads);
            stream = one(Interleaved { source: stream, row_bytes, head_rows })?;
        }
        let mut from = self.from;
        if from == Dtype::F64 && layout.dtype != Dtype::F32 {
            // The converter rounds to f32 first.
            stream = one(Cast { source: stream, from, to: Dtype::F32 })?;
            from = Dtype::F32;
        }
        if layout.is_incremented {
            stream = one(Incremented { source: stream, from })?;
            from = Dtype::F32;
        }
        let to = if layout.dtype.is_ggml() { Dtype::F32 } else { layout.dtype };
        if from != to {
            stream = one(Cast { source: stream, from, to })?;
        }
        if layout.dtype.is_ggml() {
            stream = one(Quantized { source: stream, to: layout.dtype })?;
        }
        // Rows past the tokens are left out.
        if stream.bytes() < layout.bytes {
            return Err(wrong());
        }
        Ok(Segment::Computed(Arc::new(Beginning { stream, bytes: layout.bytes })))
    }
}

fn one(computed: impl crate::stream::Computed + 'static) -> Result<Stream> {
    Stream::new(vec![Segment::Computed(Arc::new(computed))])
}

/// The first bytes of a stream.
struct Beginning {
    stream: Stream,
    bytes: u64,
}

impl crate::stream::Computed for Beginning {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, range: std::ops::Range<u64>, out: &mut [u8]) -> Result<()> {
        self.stream.read_exact(range.start, out)
    }
}
