//! Reads tensors and embeddings from a mount of tierfs.
//!
//! A [`Tensor`] is a file on a mount. [`Tensor::read`] copies its elements, [`Tensor::map`] maps them, so that only the
//! pages that are used are read and decoded. [`tensors`] lists those of a container. [`Embeddings`] has the records of a
//! batch. [`set_tier`], [`pin`] and [`evict`] ask the daemon to change how a file is stored.
//!
//! The names are those of the Python package `tierfs`. The crate needs Linux, a mounted store, and nothing of the
//! daemon: it opens files, maps them, and reads and sets their extended attributes.
//!
//! ```no_run
//! use tierfs_client::{Consent, Dtype, Tensor};
//!
//! let weight = Tensor::open("/mnt/demo/minilm/.tensors/encoder.layer.0.output.dense.weight")?;
//! assert_eq!((weight.dtype(), weight.shape()), (Dtype::F32, [384, 1536].as_slice()));
//! let exact: Vec<f32> = weight.read()?;
//! weight.set_tier("q8", Consent::Given)?;
//! let error = weight.error()?.map_or(f64::INFINITY, |error| error.max);
//! println!("{} {}: largest error {error}", exact.len(), weight.tier()?);
//! # Ok::<(), tierfs_client::Error>(())
//! ```

/// The page of the manual, whose example must compile.
#[cfg(doctest)]
#[doc = include_str!("../../docs/RUST.md")]
struct Page;

#[cfg(target_endian = "big")]
compile_error!("the elements of a mount are little-endian, and this crate shows them as they are");

mod attributes;
mod dtype;
mod embeddings;
mod error;
mod layout;
mod listing;
mod memory_map;
mod npy;
mod requests;
mod shape;
mod tensor;

pub use dtype::{Dtype, Element};
pub use embeddings::{AuxEncoding, ContentHash, Embeddings, Floats, Record};
pub use error::{Error, ErrorKind, Result};
pub use listing::tensors;
pub use memory_map::Mapping;
pub use requests::{Consent, Evict, evict, pin, set_tier, unpin};
pub use tensor::{QuantizationError, Tensor};

#[cfg(test)]
mod tests {
    use super::{Embeddings, Error, Mapping, Tensor};

    #[test]
    fn threads_share_all_types() {
        fn is_shared<T: Send + Sync + 'static>() {}
        is_shared::<(Tensor, Mapping, Embeddings, Error)>();
    }
}
