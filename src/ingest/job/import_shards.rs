//! Imports the shards of a file that was cut: they are joined, and become a container, a tensor, or a tensor of bytes with an
//! object a shard.
//!
//! In place, each shard is a file outside the store of its own. A tensor of a container that lies in several shards is
//! copied. A file that is one tensor has an object for each shard, from the first whole element to the last, and the
//! elements in between are copied.

#[cfg(feature = "mount")]
use std::os::unix::ffi::OsStrExt;
#[cfg(feature = "mount")]
use std::path::Path;
use std::sync::Arc;

use crate::format::log::catalog::Content;
#[cfg(feature = "mount")]
use crate::format::log::catalog::OutsidePlace;
use crate::ingest::bytes::joined_file::JoinedFile;
use crate::ingest::bytes::options::{Options, Origin, Report};
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::room;
use crate::ingest::bytes::store_parts::{How, InPlace, store_parts};
#[cfg(feature = "mount")]
use crate::ingest::find::store_paths::{StoreFiles, identity};
use crate::ingest::find::target::Target;
#[cfg(feature = "mount")]
use crate::ingest::find::walk::mtime;
use crate::ingest::job::import_file::{OutsideSource, check_untouched};
#[cfg(feature = "mount")]
use crate::ingest::job::import_file::{Source, import_recognized, stays_at};
use crate::ingest::publish::commit;
#[cfg(feature = "mount")]
use crate::ingest::recognize::content::recognize_import;
use crate::ingest::recognize::parts::{Part, PartTensor, Recognized, WholeTensor};
use crate::model::{Dtype, Error, Progress, Result, Shape, human};
#[cfg(feature = "mount")]
use crate::store::Settings;
use crate::store::disk::File;
#[cfg(feature = "mount")]
use crate::store::disk::files::open_source;
use crate::store::{Collection, Use};
use crate::stream::Digester;

/// A shard.
pub(in crate::ingest) struct Shard {
    pub file: Arc<dyn File>,
    bytes: u64,
    /// The file as a data file, if it stays in place.
    outside: Option<OutsideSource>,
}

impl Shard {
    /// A shard that is copied. Fails with `Invalid` for an empty one.
    pub fn new(file: Arc<dyn File>, name: &str) -> Result<Shard> {
        let bytes = file.len().map_err(|error| Error::io(name, error))?;
        match bytes {
            0 => Err(Error::invalid(format!("the shard {name} is empty"))),
            bytes => Ok(Shard { file, bytes, outside: None }),
        }
    }

    /// The shard at a path. With `stores`, it stays there; it must be none of their files.
    #[cfg(feature = "mount")]
    pub fn open(collection: &Collection, path: &Path, stores: Option<&StoreFiles>) -> Result<Shard> {
        let failed = |error| Error::io(path.display(), error);
        let shard = Shard::new(open_source(path).map_err(failed)?, &path.display().to_string())?;
        let Some(stores) = stores else { return Ok(shard) };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let real = std::fs::canonicalize(path).map_err(failed)?;
        stores.refuse(path, &real, identity(&metadata))?;
        let place = OutsidePlace::Path(real.as_os_str().as_bytes().to_vec());
        let outside = stays_at(collection, &shard.file, place, mtime(&metadata))?;
        Ok(Shard { file: outside.1.clone(), outside: Some(outside), ..shard })
    }
}

/// Imports a file from its shards, in this order. On an error nothing of it appears.
#[cfg(feature = "mount")]
pub(in crate::ingest) fn import_joined(
    collection: &Arc<Collection>,
    settings: &Settings,
    target: &Target,
    shards: Vec<Shard>,
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let files = shards.iter().map(|shard| shard.file.clone()).collect();
    let joined: Arc<dyn File> = Arc::new(JoinedFile::new(files)?);
    let (recognized, note) =
        recognize_import(collection, target.path().as_bytes(), &joined, &target.name, options.strict)?;
    let is_in_place = shards.iter().any(|shard| shard.outside.is_some());
    if recognized.content == Content::Plain {
        if options.whole.is_none() && (options.tier.is_some() || options.pack) {
            let note = if note.is_empty() { note } else { format!(" ({note})") };
            return Err(Error::invalid(format!(
                "tier and pack need tensors, and the shards are no container{note}; say what they are: --dtype bf16"
            )));
        }
        // Each shard keeps its own object: it can be stored, moved and reconstructed alone.
        if is_in_place || options.whole.is_none() && note.is_empty() {
            let whole = options.whole.clone().unwrap_or(WholeTensor { dtype: Dtype::U8, shape: None });
            let report = import_pieces(collection, target, &shards, &whole, origin, options, progress)?;
            return Ok(Report { note, ..report });
        }
    }
    let outside: Vec<OutsideSource> = shards.into_iter().filter_map(|shard| shard.outside).collect();
    let source = Source { file: &joined, recognized, note, outside };
    let report = import_recognized(collection, settings, target, source, origin, options, progress)?;
    Ok(with_copied(report))
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
    let shards =
        sources.iter().zip(1..).map(|(source, place)| Shard::new(source.clone(), &format!("{place}")));
    let shards: Vec<Shard> = shards.collect::<Result<_>>()?;
    let whole = WholeTensor { dtype: Dtype::U8, shape: None };
    import_pieces(collection, target, &shards, &whole, origin, options, progress)
}

/// A piece of a tensor: whole elements, of one shard if it has a place.
struct Piece {
    begin: u64,
    end: u64,
    /// The shard, and where this begins in the whole.
    shard: Option<(usize, u64)>,
}

/// The pieces of a tensor with elements, or blocks of elements, of `size` bytes: whole elements of one shard, and the
/// elements that lie in several.
fn pieces(shards: &[Shard], size: u64) -> Vec<Piece> {
    let (mut pieces, mut at, mut begin) = (Vec::with_capacity(shards.len()), 0_u64, 0_u64);
    for (place, shard) in shards.iter().enumerate() {
        let end = begin.saturating_add(shard.bytes);
        let from = at.max(begin.next_multiple_of(size));
        let until = end - end % size;
        if from < until {
            if at < from {
                pieces.push(Piece { begin: at, end: from, shard: None });
            }
            pieces.push(Piece { begin: from, end: until, shard: Some((place, begin)) });
            at = until;
        }
        begin = end;
    }
    if at < begin {
        pieces.push(Piece { begin: at, end: begin, shard: None });
    }
    pieces
}

/// Imports a tensor whose shards are objects of their own.
fn import_pieces(
    collection: &Arc<Collection>,
    target: &Target,
    shards: &[Shard],
    whole: &WholeTensor,
    origin: &Origin,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report> {
    let bytes = shards.iter().map(|shard| shard.bytes).sum();
    whole.shape_of(bytes)?;
    let more = room::more_than_there(&collection.state(), target, Use::exact(bytes).and(Use::FILE));
    let _held = collection.meter().reserve(more)?;
    let joined: Arc<dyn File> =
        Arc::new(JoinedFile::new(shards.iter().map(|shard| shard.file.clone()).collect())?);
    let dtype = whole.dtype;
    let name = String::from_utf8_lossy(&target.name).into_owned();
    let mut uncommitted = Uncommitted::new(collection);
    let mut report = Report { tensors: 1, ..Report::default() };
    let mut stored = Vec::with_capacity(shards.len());
    for Piece { begin, end, shard } in pieces(shards, dtype.block().1.max(1)) {
        let of = shard.and_then(|(place, first)| Some((shards.get(place)?, first)));
        let (source, first) = of.map_or((&joined, 0), |(shard, first)| (&shard.file, first));
        let shape = Shape::new(&[dtype.elements_in(end - begin)]).unwrap_or_default();
        let tensor = PartTensor { own_name: name.clone(), name: name.clone(), dtype, shape, view: None };
        let part = Part { begin: begin - first, end: end - first, tensor: Some(tensor) };
        let recognized = Recognized {
            content: Content::Plain,
            bytes: end - begin,
            parts: vec![part],
            records: None,
            note: String::new(),
            data_files: Vec::new(),
            shards: None,
        };
        let outside = of.and_then(|(shard, _)| shard.outside.as_ref());
        let in_place =
            outside.map(|(outside, _)| InPlace { file: outside.file, begin: 0, end: outside.bytes });
        let in_place: Vec<InPlace> = in_place.into_iter().collect();
        let how = How { options, outside: &in_place, digester: Digester::blake3() };
        let mut parts =
            store_parts(&mut uncommitted, collection, source, &recognized, &|_| None, how, progress)?;
        match outside {
            Some(outside) => {
                check_untouched(outside)?;
                parts.outside.push(outside.0.as_ref().clone());
            }
            None if shards.iter().any(|shard| shard.outside.is_some()) => report.copied += end - begin,
            None => {}
        }
        report.stored += parts.stored();
        stored.push(parts);
    }
    report.bytes = bytes;
    let parents = options.parents.as_ref();
    let has_parent = commit::publish_shards(uncommitted, collection, target, origin, whole, stored, parents)?;
    report.children = u64::from(has_parent);
    Ok(with_copied(report))
}

/// Adds to the remark that bytes were copied although the shards stay in place.
fn with_copied(report: Report) -> Report {
    if report.copied == 0 {
        return report;
    }
    let copied = format!("{} lie across shards and were copied", human(report.copied));
    let note = if report.note.is_empty() { copied } else { format!("{}; {copied}", report.note) };
    Report { note, ..report }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Piece, Shard, pieces};
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::disk::{Disk, File, Open};

    #[test]
    fn pieces_are_whole_elements_and_cover_all_bytes_whatever_the_cuts_are() {
        let file: Arc<dyn File> = MemoryDisk::new().open("shard", Open::Create).unwrap();
        for size in [1, 2, 4, 18] {
            for cuts in 0..4096_u64 {
                // Shards of 1 to 16 bytes, and one that completes the last element.
                let mut lens: Vec<u64> = (0..3).map(|place| cuts / 16_u64.pow(place) % 16 + 1).collect();
                let sum: u64 = lens.iter().sum();
                lens.push(sum.next_multiple_of(size) - sum + size);
                let shard = |bytes: &u64| Shard { file: file.clone(), bytes: *bytes, outside: None };
                let shards: Vec<Shard> = lens.iter().map(shard).collect();
                let mut at = 0;
                for Piece { begin, end, shard } in pieces(&shards, size) {
                    assert!(begin == at && end > begin && begin % size == 0 && end % size == 0, "{lens:?}");
                    if let Some((place, first)) = shard {
                        let before: u64 = lens[..place].iter().sum();
                        assert!(before == first && begin >= first && end <= first + lens[place], "{lens:?}");
                    }
                    at = end;
                }
                assert_eq!(at, lens.iter().sum::<u64>());
            }
        }
    }
}
