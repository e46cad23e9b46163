//! Imports one file: recognizes it, reserves quota, stores its parts, publishes its name.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::files::safetensors;
use crate::format::log::catalog::{Content, OutsideFile, OutsidePlace};
use crate::ingest::bytes::options::{Options, Origin, Report};
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::unread::unread_parts;
use crate::ingest::bytes::{room, store_parts};
use crate::ingest::find::provenance::Provenance;
use crate::ingest::find::target::Target;
use crate::ingest::publish::commit;
use crate::ingest::recognize::content::recognize_import;
use crate::ingest::recognize::parts::{PartTensor, Recognized};
use crate::model::{Error, Kept, KeptBy, MoveTo, Progress, Result, Tier};
use crate::store::disk::File;
use crate::store::{Collection, ROOT, Settings, is_untouched};
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
    // The source at a URL holds parts of headers, for small reads of them.
    let is_far = outside.as_ref().is_some_and(|(outside, _)| outside.object().is_some());
    let file = outside.as_ref().filter(|_| !is_far).map_or(source, |(_, file)| file).clone();
    let (recognized, note) =
        recognize_import(collection, target.path().as_bytes(), &file, &target.name, options.strict)?;
    let source = Source { file: &file, recognized, note, outside: outside.into_iter().collect() };
    import_recognized(collection, settings, target, source, origin, options, progress)
}

/// A source that was recognized.
pub(in crate::ingest) struct Source<'a> {
    pub file: &'a Arc<dyn File>,
    pub recognized: Recognized,
    /// The note of its recognition, or an empty text.
    pub note: String,
    /// The file, or the files that it consists of, if these stay in place.
    pub outside: Vec<OutsideSource>,
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
    let packs = outside.is_empty() && (options.pack || is_set_to_pack(collection, target));
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
    let in_place = in_place(&outside);
    let unread = outside.first().and_then(|(outside, _)| Some((outside, outside.object()?)));
    let mut stored_parts = match unread.filter(|(outside, _)| outside.is_unread()) {
        Some((outside, object)) => {
            progress.advance(recognized.bytes);
            unread_parts(&recognized, options.blocking, outside, &object.identity())?
        }
        None => store_parts::store_parts(
            &mut uncommitted,
            collection,
            source,
            &recognized,
            &tier_of,
            store_parts::How { options, outside: &in_place, digester },
            progress,
        )?,
    };
    outside.iter().try_for_each(check_untouched)?;
    let copied: u64 = match in_place.is_empty() {
        true => 0,
        false => {
            let copied = stored_parts.objects.iter().filter(|object| object.extent.is_none());
            copied.map(|object| object.bytes).sum()
        }
    };
    let used: HashSet<u64> =
        stored_parts.objects.iter().filter_map(|object| Some(object.extent?.file)).collect();
    let outside = outside.into_iter().filter(|(outside, _)| used.contains(&outside.file));
    stored_parts.outside = outside.map(|(outside, _)| outside.as_ref().clone()).collect();
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
    Ok(Report { tensors, children, encoded, kept, bytes, stored, shared, copied, note })
}

/// The ranges of sources that follow each other.
fn in_place(outside: &[OutsideSource]) -> Vec<store_parts::InPlace> {
    let mut begin = 0;
    let range = |(outside, _): &OutsideSource| {
        let range = store_parts::InPlace { file: outside.file, begin, end: begin + outside.bytes };
        begin = range.end;
        range
    };
    outside.iter().map(range).collect()
}

/// Fails with `Invalid` if a file that stays in place was changed since its import began.
pub(super) fn check_untouched((recorded, file): &OutsideSource) -> Result<()> {
    match is_untouched(&**file, recorded).map_err(|error| Error::io("asking for its time", error))? {
        true => Ok(()),
        false => {
            let name = recorded.name();
            Err(Error::invalid(format!("{name} was changed while it was imported; import it again")))
        }
    }
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
    let Some(place) = &options.in_place else { return Ok(None) };
    if options.tier.is_some() {
        return Err(Error::invalid(
            "files in place stay exact; import them first, then move them: tierfs tier",
        ));
    }
    if matches!(place, OutsidePlace::Object { .. }) && source.len().is_ok_and(|bytes| bytes == 0) {
        // There is nothing to ask a server for.
        return Ok(None);
    }
    stays_at(collection, source, place.clone(), origin.mtime).map(Some)
}

/// A source at a place as an external data file, and the open file.
pub(super) fn stays_at(
    collection: &Collection,
    source: &Arc<dyn File>,
    place: OutsidePlace,
    mtime: i64,
) -> Result<OutsideSource> {
    let bytes = source.len().map_err(|error| Error::io("asking for its size", error))?;
    let file = collection.outside_number()?;
    let outside = Arc::new(OutsideFile { file, place, bytes, mtime });
    let opened = collection.open_outside(&outside)?;
    Ok((outside, opened))
}
