//! A tensor of the base, as an adapter changes it.

use std::sync::Arc;

use crate::model::{Dtype, EntryId, Result};
use crate::store::{Collection, ROOT, Verify};
use crate::stream::{Factor, Factors, LowRank, OwnTiles, Segment, Stream};
use crate::vfs::form::recipe::Source;

/// A matrix of a product.
pub(in crate::vfs::form) struct MergedFactor {
    /// The number of the adapter's tensor.
    pub node: EntryId,
    /// `None` for a matrix with the number 1 alone.
    pub source: Option<Source>,
    /// Whether the elements of one rank follow each other.
    pub is_by_rank: bool,
}

/// A product that is added.
pub(in crate::vfs::form) struct MergedProduct {
    pub left: MergedFactor,
    pub right: MergedFactor,
    pub rows: u64,
    pub columns: u64,
    pub rank: u64,
    pub scale: f32,
}

/// A tensor of a merged file. It has the type and the shape of the base's.
pub(in crate::vfs::form) struct MergedTensor {
    /// The collection of the adapter.
    pub adapter: Arc<Collection>,
    /// Creation time of the adapter in Unix seconds.
    pub adapter_created_at: u64,
    /// The tensor of the base, or the one of the adapter that takes its place.
    pub base: Source,
    pub is_base_of_adapter: bool,
    /// The type in which it is shown.
    pub to: Dtype,
    pub product: Option<MergedProduct>,
    /// The tiles of the adapter.
    pub tiles: Arc<OwnTiles>,
}

impl MergedFactor {
    fn open(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Factor> {
        let Some(source) = &self.source else {
            let one = Stream::new(vec![Segment::literal(1_f32.to_le_bytes().as_slice())])?;
            return Ok(Factor { source: one, dtype: Dtype::F32, objects: Vec::new(), is_by_rank: false });
        };
        Ok(Factor {
            source: source.stream(collection, verify)?,
            dtype: source.dtype,
            objects: source.objects.clone(),
            is_by_rank: self.is_by_rank,
        })
    }
}

impl MergedTensor {
    /// Bytes of the tensor; `None` on overflow.
    pub fn bytes(&self) -> Option<u64> {
        self.base.dtype.elements_in(self.base.bytes).checked_mul(self.to.bytes())
    }

    /// Its bytes.
    pub fn segment(&self, collection: &Arc<Collection>, verify: Verify) -> Result<Segment> {
        let of_base = if self.is_base_of_adapter { &self.adapter } else { collection };
        let factors = match &self.product {
            None => None,
            Some(product) => Some(Factors {
                left: product.left.open(&self.adapter, verify)?,
                right: product.right.open(&self.adapter, verify)?,
                rows: product.rows,
                columns: product.columns,
                rank: product.rank,
                scale: product.scale,
                tiles: self.tiles.clone(),
                number: product.right.node.0,
            }),
        };
        let base = self.base.stream(of_base, verify)?;
        Ok(Segment::Computed(Arc::new(LowRank { base, from: self.base.dtype, to: self.to, factors })))
    }

    /// The sources in the collection of the base, and those in the collection of the adapter.
    pub fn sources(&self) -> (Vec<&Source>, Vec<&Source>) {
        let product = self.product.iter().flat_map(|product| [&product.left, &product.right]);
        let mut of_adapter: Vec<&Source> = product.filter_map(|factor| factor.source.as_ref()).collect();
        if self.is_base_of_adapter {
            of_adapter.push(&self.base);
            return (Vec::new(), of_adapter);
        }
        (vec![&self.base], of_adapter)
    }

    /// Counts an access to the adapter's objects.
    pub fn count_use_of_adapter(&self) {
        let file_use = self.adapter.use_of(ROOT, self.adapter_created_at);
        for object in self.sources().1.into_iter().flat_map(|source| &source.objects) {
            object.count_use(0..object.layout().blocks(), file_use);
        }
        self.adapter.note_use();
    }
}
