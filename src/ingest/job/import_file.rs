//! Imports one file: recognizes it, reserves quota, stores its parts, publishes its name. Several files can become the
//! shards of one tensor.

use std::sync::Arc;

use crate::format::files::safetensors;
use crate::format::log::catalog::{Content, OutsideFile};
use crate::ingest::bytes::options::{Options, Origin, Report};
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::{room, store_parts};
use crate::ingest::find::provenance::Provenance;
use crate::ingest::find::target::Target;
use crate::ingest::publish::commit;
use crate::ingest::recognize::content::recognize_import;
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized};
use crate::model::{Error, Kept, KeptBy, MoveTo, Progress, Result, Tier};
use crate::store::disk::File;
use crate::store::{Collection, ROOT, Settings, Use, is_untouched};
use crate::stream::Digester;

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
    let file = outside.as_ref().map_or(source, |(_, file)| file).clone();
    let (recognized, note) =
        recognize_import(collection, target.path().as_bytes(), &file, &target.name, options.strict)?;
    let source = Source { file: &file, recognized, note, outside };
    import_recognized(collection, settings, target, source, origin, options, progress)
}

/// A source that was recognized.
pub(in crate::ingest) struct Source<'a> {
    pub file: &'a Arc<dyn File>,
    pub recognized: Recognized,
    /// The note of its recognition, or an empty text.
    pub note: String,
    /// The file, if it stays in place.
    pub outside: Option<OutsideSource>,
}

/// [`import_file`] after the recognition.
pub(in crate::ingest) fn import_recognized(
    collection: &Arc<Collection>,
    settings: &Settings,
    target: &Target,
    source: Source<'_>,
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let Source { file: source, mut recognized, note, outside } = source;
    if let (Content::Plain, Some(whole)) = (recognized.content, &options.whole) {
        recognized = recognized.into_tensor(&target.name, whole)?;
    }
    let packs = outside.is_none() && (options.pack || is_set_to_pack(collection, target));
    let encoded_tier = options.tier.filter(|_| !recognized.content.has_checksums());
    let rules = KeepRules { settings, has_codes: has_codes(&recognized) };
    let tier_of = |tensor: &PartTensor| {
        let tier = encoded_tier.and_then(|to| tier_of(to, tensor, rules));
        tier.or_else(|| tensor.packed_tier(options.blocking).filter(|_| packs))
    };
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
    if let Some((recorded, file)) = &outside
        && !is_untouched(&**file, recorded).map_err(|error| Error::io("asking for its time", error))?
    {
        return Err(Error::invalid("it was changed while it was imported; import it again"));
    }
    stored_parts.outside =
        outside.filter(|_| !stored_parts.objects.is_empty()).map(|(outside, _)| outside.as_ref().clone());
    origin.check(stored_parts.digests.sha256())?;
    let (bytes, stored) = (stored_parts.bytes, stored_parts.stored());
    let (data_file, is_shared) = (stored_parts.data_file(), stored_parts.is_shared);
    let blake3 = stored_parts.digests.blake3();
    let places = options.places.clone();
    let provenance = (!places.is_empty()).then(|| Provenance::new(origin.mtime, blake3, places));
    let (encoded, kept) = encoded(&recognized, options.tier, rules);
    let parents = options.parents.as_ref();
    let attributes = commit::Attributes { parents, why: note.clone(), provenance };
    let (tensors, children) =
        commit::publish(uncommitted, collection, target, origin, recognized, stored_parts, attributes)?;
    if let Some(number) = data_file.filter(|_| !options.no_share) {
        collection.offer_data_file(number, bytes);
    }
    let shared = if is_shared { bytes } else { 0 };
    Ok(Report { tensors, children, encoded, kept, bytes, stored, shared, note })
}

/// Whether any tensors of the file are codes.
pub(super) fn has_codes(recognized: &Recognized) -> bool {
    let tensors = recognized.parts.iter().filter_map(|part| part.tensor.as_ref());
    safetensors::has_codes(tensors.map(|tensor| (&*tensor.own_name, tensor.dtype, &tensor.shape)))
}

/// The rules by which tensors of a file stay exact.
#[derive(Clone, Copy)]
struct KeepRules<'a> {
    settings: &'a Settings,
    /// Whether any tensors of the file are codes.
    has_codes: bool,
}

impl KeepRules<'_> {
    fn kept_by(self, tensor: &PartTensor) -> Option<KeptBy> {
        self.settings.keeps(&tensor.name, self.has_codes)
    }
}

/// Numbers of tensors that go to a tier, and of those that stay exact.
fn encoded(recognized: &Recognized, tier: Option<MoveTo>, rules: KeepRules<'_>) -> (u64, Kept) {
    let (mut encoded, mut kept) = (0, Kept::default());
    let Some(to) = tier.filter(|to| to.aim.tier() != Tier::Exact) else { return (encoded, kept) };
    for tensor in recognized.parts.iter().filter_map(|part| part.tensor.as_ref()) {
        let by = to.kept_by(tensor.dtype, &tensor.shape, || rules.kept_by(tensor));
        let by = if tensor.view.is_some() { Some(KeptBy::View) } else { by };
        let by =
            if recognized.content.has_checksums() { Some(by.unwrap_or(KeptBy::Checksummed)) } else { by };
        match by {
            Some(by) => kept.count(by),
            None => encoded += 1,
        }
    }
    (encoded, kept)
}

/// The tier of an imported tensor, if it moves anywhere.
fn tier_of(to: MoveTo, tensor: &PartTensor, rules: KeepRules<'_>) -> Option<Tier> {
    let takes = tensor.view.is_none() && to.takes(tensor.dtype, &tensor.shape, || rules.kept_by(tensor));
    Some(to.aim.tier()).filter(|tier| takes && *tier != Tier::Exact)
}

/// Whether the directory of a new file has the setting to pack arriving tensors.
fn is_set_to_pack(collection: &Collection, target: &Target) -> bool {
    let state = collection.state();
    let (directories, replaced) = room::found(&state, target);
    let node = replaced.or(directories.last().copied()).unwrap_or(ROOT);
    collection.packs(&state, node)
}

/// The source as an external data file, and the open file.
pub(in crate::ingest) type OutsideSource = (Arc<OutsideFile>, Arc<dyn File>);

fn outside(
    collection: &Collection,
    source: &Arc<dyn File>,
    origin: &Origin,
    options: &Options,
) -> Result<Option<OutsideSource>> {
    let Some(path) = &options.in_place else { return Ok(None) };
    if options.tier.is_some() {
        return Err(Error::invalid(
            "files in place stay exact; import them first, then move them: tierfs tier",
        ));
    }
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    let file = collection.outside_number()?;
    let outside = Arc::new(OutsideFile { file, path: path.clone(), bytes, mtime: origin.mtime });
    let opened = collection.open_outside(&outside)?;
    Ok(Some((outside, opened)))
}

/// Imports files as the shards of one tensor of bytes, in the order given. On an error nothing
/// appears.
pub fn import_shards(
    collection: &Arc<Collection>,
    target: &Target,
    sources: &[Arc<dyn File>],
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let lengths = sources.iter().map(|source| source.len());
    let bytes = lengths.sum::<std::io::Result<u64>>();
    let bytes = bytes.map_err(|error| Error::io("asking for a shard's size", error))?;
    let whole = Use::exact(bytes).and(Use::FILE);
    let more = room::more_than_there(&collection.state(), target, whole);
    let _held = collection.meter().reserve(more)?;
    let mut uncommitted = Uncommitted::new(collection);
    let mut shards = Vec::with_capacity(sources.len());
    let mut report = Report { tensors: 1, ..Report::default() };
    for (place, source) in sources.iter().enumerate() {
        let bytes = source.len().map_err(|error| Error::io("asking for a shard's size", error))?;
        if bytes == 0 {
            return Err(Error::invalid(format!("shard {} is empty", place + 1)));
        }
        let whole = Part { begin: 0, end: bytes, tensor: None };
        let (content, parts) = (Content::Plain, vec![whole]);
        let recognized = Recognized {
            content,
            bytes,
            parts,
            records: None,
            note: String::new(),
            data_files: Vec::new(),
            shards: None,
        };
        let how = store_parts::How::plain(options);
        let stored_parts = store_parts::store_parts(
            &mut uncommitted,
            collection,
            source,
            &recognized,
            &|_| None,
            how,
            progress,
        )?;
        report.bytes += bytes;
        report.stored += stored_parts.stored();
        shards.push(stored_parts);
    }
    let parents = options.parents.as_ref();
    let has_parent = commit::publish_shards(uncommitted, collection, target, origin, shards, parents)?;
    report.children = u64::from(has_parent);
    Ok(report)
}
