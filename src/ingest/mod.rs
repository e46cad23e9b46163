//! Files into tensors: what a file holds is recognized, its bytes become blocks, and
//! its names appear, all at once, when everything is durable.
//!
//! Invariants:
//! 1. A name appears only with a batch that was written after all bytes behind it were
//!    synced: an import that is cut off leaves whole files only.
//! 2. Every byte of a file belongs to exactly one object.

mod arrive;
mod batch;
mod blocking;
mod drafts;
#[cfg(feature = "mount")]
mod import_job;
#[cfg(feature = "mount")]
mod inside;
#[cfg(feature = "mount")]
mod manifest;
mod moved;
mod names;
mod parents;
mod publish;
mod recognize;
#[cfg(feature = "mount")]
mod request;
mod room;
mod shards;
mod store_parts;
mod uncommitted;
#[cfg(feature = "mount")]
mod walk;

pub use arrive::{Bytes, arrive, arrive_as, is_scanned, may_be_recognized};
pub use batch::check_batch;
pub use blocking::Blocking;
#[cfg(feature = "mount")]
pub use import_job::{Evict, Plan, Sum, Watch};
pub use moved::name_parts_again;
pub use names::PERMISSIONS;
pub use parents::Parents;
pub use publish::Target;
pub use recognize::{Part, PartTensor, Recognized, recognize};
#[cfg(feature = "mount")]
pub use request::{Request, parse_collection, parse_encoder};
pub use shards::import_shards;

use std::sync::Arc;

use crate::format::log::catalog::OutsideFile;
use crate::ingest::uncommitted::Uncommitted;
use crate::model::{Dtype, Encoder, Error, Result, Shape, Tier};
use crate::store::Collection;
use crate::store::Settings;
use crate::store::disk::File;
use crate::stream::Digester;

/// How files are taken in.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The tier that float tensors go to; exact without one.
    pub tier: Option<MoveTo>,
    /// How scales are chosen.
    pub encoder: Encoder,
    /// How tensors are cut into blocks.
    pub blocking: Blocking,
    /// Where the lineage parents are of the tensors.
    pub parents: Option<Parents>,
    /// The absolute path of the source, without links, where its bytes are to stay there:
    /// nothing is copied, and it must not change from then on.
    pub in_place: Option<Vec<u8>>,
}

/// A tier, and which tensors go there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoveTo {
    /// The tier.
    pub tier: Tier,
    /// Every float tensor, not only those that quantizers of models take.
    pub all: bool,
}

/// Tensors with fewer elements stay exact where not all are asked for.
const ELEMENTS_MIN: u64 = 65_536;

impl MoveTo {
    /// `q5` or `q5:all`. `Err` says what is wrong.
    pub fn parse(text: &str) -> Result<MoveTo> {
        let (name, all) = match text.split_once(':') {
            Some((name, "all")) => (name, true),
            Some((_, other)) => {
                return Err(Error::invalid(format!("{other:?} after the colon: only all can stand there")));
            }
            None => (text, false),
        };
        match Tier::from_name(name) {
            Some(Tier::Absent) | None => Err(Error::invalid(format!(
                "{name:?} is no tier to move to; there are exact, q8, q7, q5, q3 and q3x"
            ))),
            Some(tier) => Ok(MoveTo { tier, all }),
        }
    }

    /// Whether a tensor is one that goes there when many are asked for: float tensors; without
    /// `all` only those that quantizers of models take too. Back to exact all float tensors go.
    pub fn takes(self, dtype: Dtype, shape: &Shape, name: &str, settings: &Settings) -> bool {
        let is_large = || shape.dimensions().len() >= 2 && shape.elements() >= ELEMENTS_MIN;
        dtype.is_quantizable()
            && (self.all || self.tier == Tier::Exact || (is_large() && !settings.keeps(name)))
    }

    /// The tier that a tensor of a file goes to as it comes in, if it goes anywhere.
    fn of(self, tensor: &PartTensor, settings: &Settings) -> Option<Tier> {
        let takes = self.takes(tensor.dtype, &tensor.shape, &tensor.name, settings);
        (takes && self.tier != Tier::Exact).then_some(self.tier)
    }
}

/// What a file was before it came in.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Permission bits.
    pub mode: u32,
    /// User and group that it will belong to.
    pub owner: (u32, u32),
    /// When it was used, in nanoseconds since 1970.
    pub atime: i64,
    /// When its bytes changed, in nanoseconds since 1970.
    pub mtime: i64,
    /// The SHA-256 that it must have.
    pub sha256: Option<[u8; 32]>,
}

impl Origin {
    /// `Invalid` where it must have another SHA-256 than was `found`.
    fn check(&self, found: Option<[u8; 32]>) -> Result<()> {
        let Some(expected) = self.sha256.filter(|expected| Some(*expected) != found) else { return Ok(()) };
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (found, expected) = (found.map(hex).unwrap_or_default(), hex(expected));
        Err(Error::invalid(format!("its SHA-256 is {found}, the manifest says {expected}")))
    }
}

/// Who is told how far an import is, and may stop it.
pub trait Progress: Sync {
    /// So many more bytes of the source were taken in.
    fn advance(&self, bytes: u64);
    /// Whether to stop: the import then fails with `Interrupted`.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Nobody is told.
pub struct Silent;

impl Progress for Silent {
    fn advance(&self, _bytes: u64) {}
}

/// What came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Tensors that have names now.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
}

/// Takes in one file. On an error nothing of it appears.
pub fn import_file(
    collection: &Arc<Collection>,
    settings: &Settings,
    target: &Target,
    source: &Arc<dyn File>,
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let outside = outside(collection, source, origin, options)?;
    let source = outside.as_ref().map_or(source, |(_, file)| file);
    let recognized = recognize(source, &target.name)?;
    let tier_of = |tensor: &PartTensor| options.tier.and_then(|to| to.of(tensor, settings));
    let _held = room::reserve(collection, target, &recognized, &tier_of, options)?;
    let mut uncommitted = Uncommitted::new(collection);
    let digester = match origin.sha256 {
        Some(_) => Digester::with_sha256(),
        None => Digester::blake3(),
    };
    let mut stored_parts = store_parts::store_parts(
        &mut uncommitted,
        collection,
        source,
        &recognized,
        &tier_of,
        store_parts::How { options, outside: outside.as_ref().map(|(outside, _)| outside.file), digester },
        progress,
    )?;
    if let Some((_, file)) = &outside
        && !file.is_untouched().map_err(|error| Error::io("asking for its time", error))?
    {
        return Err(Error::invalid("it was changed while it was imported; import it again"));
    }
    stored_parts.outside =
        outside.filter(|_| !stored_parts.objects.is_empty()).map(|(outside, _)| outside.as_ref().clone());
    origin.check(stored_parts.digests.sha256())?;
    let (bytes, stored) = (stored_parts.bytes, stored_parts.stored());
    let parents = options.parents.as_ref();
    let (tensors, children) =
        publish::publish(uncommitted, collection, target, origin, recognized, stored_parts, parents)?;
    Ok(Report { tensors, children, bytes, stored })
}

/// The source as a data file that is not the store's own, and the file itself.
type OutsideSource = (Arc<OutsideFile>, Arc<dyn File>);

fn outside(
    collection: &Collection,
    source: &Arc<dyn File>,
    origin: &Origin,
    options: &Options,
) -> Result<Option<OutsideSource>> {
    let Some(path) = &options.in_place else { return Ok(None) };
    if options.tier.is_some() {
        return Err(Error::invalid("what stays in place is exact; move it to a tier when it is there"));
    }
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    let file = collection.outside_number()?;
    let outside = Arc::new(OutsideFile { file, path: path.clone(), bytes, mtime: origin.mtime });
    let opened = collection.open_outside(&outside)?;
    Ok(Some((outside, opened)))
}
