//! Imports files as tensors: recognizes their content, stores their bytes as blocks, and commits all
//! names of a file at once, when everything is durable.
//!
//! Invariants:
//! 1. A name appears only with a batch that was written after all bytes behind it were synced. An
//!    interrupted import leaves complete files only.
//! 2. Every byte of a file belongs to exactly one object.

mod arrive;
mod batch;
mod blocking;
#[cfg(feature = "mount")]
mod compare;
mod diagnose;
mod drafts;
#[cfg(feature = "mount")]
mod hub;
#[cfg(feature = "mount")]
mod import_job;
#[cfg(feature = "mount")]
mod inside;
#[cfg(feature = "mount")]
mod links;
#[cfg(feature = "mount")]
mod manifest;
mod names;
mod parents;
mod provenance;
mod publish;
mod recognize;
#[cfg(feature = "mount")]
mod removal;
#[cfg(feature = "mount")]
mod request;
mod room;
mod shards;
mod store_parts;
#[cfg(feature = "mount")]
mod sum;
mod uncommitted;
#[cfg(feature = "mount")]
mod walk;

pub use arrive::{Bytes, arrive, arrive_as, is_recorded, is_scanned, may_be_recognized};
pub use batch::check_batch;
pub use blocking::Blocking;
#[cfg(feature = "mount")]
pub use hub::{HubCache, HubRepository, hub_cache};
#[cfg(feature = "mount")]
pub use import_job::{Evict, Plan, Watch};
pub use parents::Parents;
pub use publish::Target;
pub use recognize::{Part, PartTensor, Recognized, recognize};
#[cfg(feature = "mount")]
pub use request::{Request, parse_collection, parse_encoder};
pub use shards::import_shards;
#[cfg(feature = "mount")]
pub use sum::{Action, Listed, Sum};

use std::sync::Arc;

use crate::format::log::catalog::OutsideFile;
use crate::ingest::provenance::Provenance;
use crate::ingest::recognize::recognize_import;
use crate::ingest::uncommitted::Uncommitted;
use crate::model::{Encoder, Error, Kept, MoveTo, Progress, Result, Tier};
use crate::store::Collection;
use crate::store::Settings;
use crate::store::disk::File;
use crate::stream::Digester;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The tier of float tensors; exact if `None`.
    pub tier: Option<MoveTo>,
    /// How scales are chosen.
    pub encoder: Encoder,
    /// How tensors are split into blocks.
    pub blocking: Blocking,
    /// Where the lineage parents of the tensors are.
    pub parents: Option<Parents>,
    /// For an import in place, the absolute path of the source with symbolic links resolved. Nothing
    /// is copied, and the source must not change from then on.
    pub in_place: Option<Vec<u8>>,
    /// Whether to refuse files that can be kept as plain files only.
    pub strict: bool,
    /// Identify the source, so that a later import recognizes what it has imported.
    pub places: Vec<String>,
}

/// Attributes of a source file.
#[derive(Clone, Debug)]
pub struct Origin {
    /// Permission bits.
    pub mode: u32,
    /// User and group of the new file.
    pub owner: (u32, u32),
    /// Access time, in nanoseconds since 1970.
    pub atime: i64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime: i64,
    /// The SHA-256 that the file must have, if known.
    pub sha256: Option<[u8; 32]>,
}

impl Origin {
    /// Fails with `Invalid` where the expected SHA-256 differs from `found`.
    fn check(&self, found: Option<[u8; 32]>) -> Result<()> {
        let Some(expected) = self.sha256.filter(|expected| Some(*expected) != found) else { return Ok(()) };
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (found, expected) = (found.map(hex).unwrap_or_default(), hex(expected));
        Err(Error::invalid(format!("its SHA-256 is {found}, the manifest says {expected}")))
    }
}

/// The result of the import of one file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Tensors that got names.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Tensors that went to the tier that was asked for.
    pub encoded: u64,
    /// Tensors that did not, by reason.
    pub kept: Kept,
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// What is unusual about the file, or empty.
    pub note: String,
}

/// Imports one file. On an error nothing of it appears.
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
    let (recognized, note) = recognize_import(source, &target.name, options.strict)?;
    let tier_of = |tensor: &PartTensor| options.tier.and_then(|to| tier_of(to, tensor, settings));
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
    let blake3 = stored_parts.digests.blake3();
    let places = options.places.clone();
    let provenance = (!places.is_empty()).then(|| Provenance::new(origin.mtime, blake3, places));
    let (encoded, kept) = encoded(&recognized, options.tier, settings);
    let parents = options.parents.as_ref();
    let attributes = publish::Attributes { parents, why: note.clone(), provenance };
    let (tensors, children) =
        publish::publish(uncommitted, collection, target, origin, recognized, stored_parts, attributes)?;
    Ok(Report { tensors, children, encoded, kept, bytes, stored, note })
}

/// Numbers of tensors that go to a tier, and of those that stay exact.
fn encoded(recognized: &Recognized, tier: Option<MoveTo>, settings: &Settings) -> (u64, Kept) {
    let (mut encoded, mut kept) = (0, Kept::default());
    let Some(to) = tier.filter(|to| to.tier != Tier::Exact) else { return (encoded, kept) };
    for tensor in recognized.parts.iter().filter_map(|part| part.tensor.as_ref()) {
        match to.kept_by(tensor.dtype, &tensor.shape, || settings.keeps(&tensor.name)) {
            Some(by) => kept.count(by),
            None => encoded += 1,
        }
    }
    (encoded, kept)
}

/// The tier of an imported tensor, if it moves anywhere.
fn tier_of(to: MoveTo, tensor: &PartTensor, settings: &Settings) -> Option<Tier> {
    let takes = to.takes(tensor.dtype, &tensor.shape, || settings.keeps(&tensor.name));
    (takes && to.tier != Tier::Exact).then_some(to.tier)
}

/// The source as an external data file, and the open file.
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
