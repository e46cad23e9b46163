//! Collections of files that lie elsewhere and stay there: the objects of a bucket.
//!
//! Each file becomes a data file with the same bytes at the same offsets, so what the log says of a byte holds for the
//! object. Usually only headers of containers are read. Checksums are not known then: the log has those of places, and
//! says so (`UNREAD`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::checksum;
use crate::format::log::catalog::Entry;
use crate::format::snapshot::pieces::{Stretches, pieces};
use crate::ingest::bytes::options::Origin;
use crate::ingest::bytes::pending_parts::Uncommitted;
use crate::ingest::bytes::store_parts::StoredParts;
use crate::ingest::bytes::unread::Layout;
use crate::ingest::find::target::Target;
use crate::ingest::job::mounted_file::{is_scanned, may_be_recognized};
use crate::ingest::publish::commit::{Attributes, publish};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::content::{plain, recognize_at};
use crate::ingest::recognize::data_files::is_data_file;
use crate::ingest::recognize::parts::{Part, Recognized, read};
use crate::model::{CollectionName, Error, ErrorKind, Owner, Result, StoreId};
use crate::store::disk::File;
use crate::store::disk::elsewhere::ElsewhereDisk;
use crate::store::{
    Access, Collection, DescribedFile, DescribedFiles, Elsewhere, Frozen, ROOT, Reads, Store, Touched,
    UNREAD, now_nanoseconds,
};

/// Permission bits of the files and directories.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;
/// The most bytes of all files. A manifest with their pieces would be too long, and their checksums would fill the memory.
const BYTES_MAX: u64 = 16 << 40;
/// Pieces of a file that are read at a time.
const READ_AT_ONCE: usize = 8;
/// Files that are recognized at a time: each read of a header waits for a server.
const RECOGNIZED_AT_ONCE: usize = 16;
/// Files that are recognized before the first of them is added.
const RECOGNIZED_MAX: usize = 512;

/// Describes files that lie elsewhere as the collection `place` of the store `id`, all of `owner`.
pub fn describe(
    place: CollectionName<'_>,
    id: StoreId,
    owner: Owner,
    files: &[Elsewhere],
    reads: Reads,
) -> Result<DescribedFiles> {
    let mut all: u64 = 0;
    for Elsewhere { path, file, .. } in files {
        let path = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
        all = all.saturating_add(file.len().map_err(|error| Error::io(&path, error))?);
        if all > BYTES_MAX {
            let text = format!("the files up to {path} have more than {} TiB", BYTES_MAX >> 40);
            return Err(Error::unsupported(text).at(place.name));
        }
    }
    let disk = Arc::new(ElsewhereDisk::default());
    Store::create(&*disk, id)?;
    let store = Store::open(disk.clone(), Access::Write, "")?;
    store.create_tenant(place.tenant, owner, DIRECTORY_MODE)?;
    let collection = store.collection_made(place.tenant, place.name, owner)?;
    if reads == Reads::Headers {
        collection.record(Touched::default(), |batch, _| {
            batch.entry(Entry::Setting { node: ROOT, key: UNREAD.to_owned(), value: Some(String::new()) });
            Ok(())
        })?;
    }
    let mut data_files = vec![None; files.len()];
    let added = Added { disk: &disk, collection: &collection, owner, reads };
    let (models, others): (Vec<_>, Vec<_>) =
        files.iter().zip(&mut data_files).partition(|(file, _)| is_model(file));
    // Models say which tensors their data files have.
    for mut kind in [models, others] {
        for some in kind.chunks_mut(RECOGNIZED_MAX) {
            let files: Vec<&Elsewhere> = some.iter().map(|(file, _)| *file).collect();
            for ((file, described), recognized) in some.iter_mut().zip(added.recognized_each(&files)) {
                if let Some(recognized) = recognized? {
                    **described = added.add(file, recognized)?;
                }
            }
        }
    }
    Ok(DescribedFiles { canonical: Frozen::of(&collection)?.canonical(id)?, data_files })
}

fn is_model(file: &Elsewhere) -> bool {
    file.path.last().is_some_and(|name| name.ends_with(b".onnx"))
}

/// The collection that files are added to.
struct Added<'a> {
    disk: &'a ElsewhereDisk,
    collection: &'a Arc<Collection>,
    owner: Owner,
    reads: Reads,
}

/// A file that was recognized, and a note on it.
struct RecognizedFile {
    target: Target,
    recognized: Recognized,
    why: String,
}

impl Added<'_> {
    /// Recognizes files, several at a time, up to the first that fails.
    fn recognized_each(&self, files: &[&Elsewhere]) -> Vec<Result<Option<RecognizedFile>>> {
        let (next, done, has_failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicBool::new(false));
        let work = || {
            loop {
                if has_failed.load(Ordering::Relaxed) {
                    return;
                }
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(file) = files.get(at) else { return };
                let recognized = self.recognized(file);
                has_failed.fetch_or(recognized.is_err(), Ordering::Relaxed);
                done.lock().push((at, recognized));
            }
        };
        let threads = RECOGNIZED_AT_ONCE.min(files.len());
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let mut done = done.into_inner();
        done.sort_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, recognized)| recognized).collect()
    }

    /// Recognizes a file. `None` for one without a name.
    fn recognized(&self, Elsewhere { path, file, .. }: &Elsewhere) -> Result<Option<RecognizedFile>> {
        let Some((name, directories)) = path.split_last() else { return Ok(None) };
        let target = Target::new(directories, name);
        let (recognized, why) = recognized(self.collection, &target, file)?;
        Ok(Some(RecognizedFile { target, recognized, why }))
    }

    /// Adds a file. Returns its data file.
    fn add(
        &self,
        Elsewhere { file, mtime, place, .. }: &Elsewhere,
        RecognizedFile { target, recognized, why }: RecognizedFile,
    ) -> Result<Option<DescribedFile>> {
        let Added { disk, collection, owner, reads } = *self;
        let mut uncommitted = Uncommitted::new(collection);
        let number = match recognized.bytes {
            0 => None,
            bytes => {
                disk.give(file);
                Some(uncommitted.create_data_file(bytes)?.0)
            }
        };
        let layout = |part: &Part| Layout::of(part, Blocking::BySize);
        let layouts: Vec<Layout> = recognized.parts.iter().map(layout).collect();
        let (checksums, digests) = match reads {
            Reads::Headers => {
                let identity = place.identity();
                (layouts.iter().map(|layout| layout.of_places(&identity)).collect(), Vec::new())
            }
            Reads::All => read_all(file, &layouts).map_err(|error| error.at(target.path()))?,
        };
        let objects =
            layouts.into_iter().zip(checksums).map(|(layout, blocks)| layout.stored(number, blocks));
        let stored = StoredParts::unread(recognized.bytes, objects.collect());
        let now = now_nanoseconds();
        let origin = Origin { mode: FILE_MODE, owner, atime: now, mtime: *mtime, sha256: None };
        let attributes = Attributes { parents: None, why, provenance: None };
        publish(uncommitted, collection, &target, &origin, recognized, stored, attributes)?;
        Ok(number.map(|number| DescribedFile { number, digests }))
    }
}

/// The parts of a file, and a note on it. A file that cannot be taken apart is a plain one.
fn recognized(
    collection: &Arc<Collection>,
    target: &Target,
    file: &Arc<dyn File>,
) -> Result<(Recognized, String)> {
    let (path, name) = (target.path(), &target.name);
    let is_read = may_be_recognized(name) && !is_scanned(name);
    if !is_read && !is_data_file(&collection.state(), path.as_bytes()) {
        return Ok((plain(file)?, String::new()));
    }
    match recognize_at(collection, path.as_bytes(), file, name) {
        Ok(recognized) => {
            let note = recognized.note.clone();
            Ok((recognized, note))
        }
        Err(error) if is_of_content(&error) => Ok((plain(file)?, format!("shown as a plain file: {error}"))),
        // The next try may read it.
        Err(error) => Err(error.at(path)),
    }
}

/// Whether the bytes of a file are the reason that it could not be taken apart.
fn is_of_content(error: &Error) -> bool {
    let kinds = [ErrorKind::Invalid, ErrorKind::Unsupported, ErrorKind::Unreadable, ErrorKind::Corrupt];
    kinds.contains(&error.kind())
}

/// The BLAKE3 of a piece, and the checksums of its blocks.
type ReadPiece = ([u8; 32], Vec<u32>);

/// The checksums of the blocks of each part, and the BLAKE3 of each piece of the file.
type ReadAll = (Vec<Vec<u32>>, Vec<[u8; 32]>);

/// Reads a file once, in pieces. A piece has whole blocks.
fn read_all(file: &Arc<dyn File>, layouts: &[Layout]) -> Result<ReadAll> {
    let stretch = |layout: &Layout| std::iter::once(layout.begin..layout.end).collect();
    let stretches: Vec<Stretches> =
        layouts.iter().filter(|layout| layout.begin < layout.end).map(stretch).collect();
    let cuts: Vec<Range<u64>> = pieces(&stretches).into_iter().flatten().collect();
    let blocks: Vec<Range<u64>> = layouts.iter().flat_map(Layout::blocks).collect();
    let done: Mutex<Vec<Option<ReadPiece>>> = Mutex::new(vec![None; cuts.len()]);
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        let mut bytes = Vec::new();
        while failed.lock().is_none() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(cut) = cuts.get(at) else { return };
            // A piece has less than 16 MiB.
            bytes.resize((cut.end - cut.start) as usize, 0);
            match read(file, &mut bytes, cut.start) {
                Ok(()) => {
                    let digest = *blake3::hash(&bytes).as_bytes();
                    let first = blocks.partition_point(|block| block.start < cut.start);
                    let inside = blocks.iter().skip(first).take_while(|block| block.end <= cut.end);
                    let part = |block: &Range<u64>| {
                        let range = (block.start - cut.start) as usize..(block.end - cut.start) as usize;
                        checksum::of(bytes.get(range).unwrap_or_default())
                    };
                    let checksums = inside.map(part).collect();
                    if let Some(slot) = done.lock().get_mut(at) {
                        *slot = Some((digest, checksums));
                    }
                }
                Err(error) => *failed.lock() = Some(error),
            }
        }
    };
    std::thread::scope(|scope| (0..READ_AT_ONCE.min(cuts.len())).for_each(|_| drop(scope.spawn(work))));
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let (digests, found): (Vec<_>, Vec<_>) = done.into_inner().into_iter().flatten().unzip();
    let mut found = found.into_iter().flatten();
    let each: Vec<Vec<u32>> =
        layouts.iter().map(|layout| found.by_ref().take(layout.blocks().count()).collect()).collect();
    let are_whole = each.iter().zip(layouts).all(|(each, layout)| each.len() == layout.blocks().count());
    if !are_whole || found.next().is_some() || digests.len() != cuts.len() {
        return Err(Error::corrupt("a bug in tierfs: a block lies in two pieces"));
    }
    Ok((each, digests))
}
