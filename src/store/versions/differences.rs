//! Stores payload files of a version as differences from those of the next version.
//!
//! A file is read as the version reads it, each payload compared with its checksum, and compared with the bytes that the
//! next version has of the same tensors. The difference is written beside it, durably, before the file goes. Programs
//! that have the file open keep it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use rayon::prelude::*;

use crate::codec::ladder::Scratch;
use crate::codec::sparse::changed_elements;
use crate::format::cursor::Reader;
use crate::format::version::{CHUNK_BYTES, Stretch, VersionDifference};
use crate::format::version_description::Description;
use crate::model::{CollectionName, Dtype, Error, ErrorKind, Progress, Result};
use crate::store::disk::{Disk, File, Open, remove_if_present};
use crate::store::log::LOG_NAME;
use crate::store::pieces::difference::{apply_chunk, encode_chunk, width};
use crate::store::snapshot::canonical::Canonical;
use crate::store::snapshot::freeze::Frozen;
use crate::store::snapshot::payloads::CanonicalFile;
use crate::store::snapshot::stored_objects::{ObjectNames, StoredObjects};
use crate::store::space::slots::SLOT_ALIGN;
use crate::store::store::Store;
use crate::store::version_disk::{DIFFERENCE, DRAFT, VersionDisk, version_name};
use crate::store::version_list::{
    Names, Stored, directory, file_name, head_of, numbers, read_description, stored, write_description,
};

/// Files with less than this stay whole: a difference would save little.
const BYTES_MIN: u64 = 16 << 10;
/// A file stays whole if its difference takes more than one of so many of its bytes.
const LARGEST_SHARE: u64 = 4;
/// A file stays whole if the differences that lead to it take more than one of so many of its bytes.
const LARGEST_CHAIN_SHARE: u64 = 2;
/// The most differences that a read goes through.
const CHAIN_FILES_MAX: u32 = 32;
/// Bytes that are compared at a time. A multiple of a chunk.
const STEP_BYTES: u64 = 4 << 20;

/// Two versions of a collection, one behind the other.
pub(super) struct Neighbours<'a> {
    pub place: CollectionName<'a>,
    pub older: u64,
    pub newer: u64,
}

/// The bytes of an earlier version, and where the next version has those of the same tensors.
struct Compared {
    canonical: Canonical,
    names: ObjectNames,
    next: StoredObjects,
    disk: VersionDisk,
    /// The longest chain of differences that leads to each file of the earlier version.
    before: HashMap<String, Chain>,
}

/// A difference that was made.
struct Made {
    head: VersionDifference,
    /// Bytes of the head and of the payloads.
    bytes: u64,
}

impl Store {
    /// Stores the files of all versions but the newest as differences from the next version, as far as that saves space.
    pub fn shrink_versions(&self, place: CollectionName<'_>, progress: &dyn Progress) -> Result<()> {
        let _making = self.versions.making.lock();
        let done = self.shrink_each(place, progress);
        self.close_unused_versions();
        if let Ok(collection) = self.opened(place.tenant, place.name) {
            collection.meter().versions_changed();
        }
        done
    }

    fn shrink_each(&self, place: CollectionName<'_>, progress: &dyn Progress) -> Result<()> {
        self.remove_unfinished(place)?;
        let numbers = numbers(&*self.disk, place)?;
        let Some((_, earlier)) = numbers.split_last() else { return Ok(()) };
        let files = earlier.iter().map(|number| stored(&*self.disk, &directory(place, *number)));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut names = Names::default();
        files.iter().for_each(|files| names.count(files));
        for ((older, newer), files) in numbers.iter().zip(numbers.iter().skip(1)).zip(files) {
            let neighbours = Neighbours { place, older: *older, newer: *newer };
            match self.shrink_one(&neighbours, &files, &names, progress) {
                Err(error) if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::Full) => {
                    log::warn!("{place}: version {older} stays as it is: {error}");
                }
                done => done?,
            }
        }
        Ok(())
    }

    fn shrink_one(
        &self,
        of: &Neighbours<'_>,
        files: &[Stored],
        names: &Names,
        progress: &dyn Progress,
    ) -> Result<()> {
        let disk = &*self.disk;
        let (own, next) = (directory(of.place, of.older), directory(of.place, of.newer));
        let description = read_description(disk, &own)?;
        let may_shrink = |file: &&Stored| {
            !file.is_difference
                && file.bytes >= BYTES_MIN
                && !names.is_held_elsewhere(&file.attributes)
                && !description.keyframes.contains(&file.name)
        };
        let is_counted = read_description(disk, &next)?.changed.is_some();
        if is_counted && !files.iter().any(|file| may_shrink(&file)) {
            return Ok(());
        }
        let compared = self.compared(of)?;
        let mut changed = self.bytes_added(of)?;
        let by_name: HashMap<&str, &Stored> = files.iter().map(|file| (file.name.as_str(), file)).collect();
        for file in compared.canonical.files() {
            progress.check()?;
            let Some(name) = file_name(file.kind, file.number) else { continue };
            let Some(found) = by_name.get(name.as_str()) else { continue };
            if found.is_difference {
                changed += head_of(disk, &own, &name)?.map_or(0, |head| head.changed);
            } else if may_shrink(found) {
                changed += self.store_difference(of, &compared, file, &name)?;
            } else if !is_counted {
                let is_same = disk.open(&format!("{next}/{name}"), Open::Read).is_ok_and(|next| {
                    next.attributes().is_ok_and(|next| {
                        next.identity.is_some() && next.identity == found.attributes.identity
                    })
                });
                let counted =
                    if is_same { 0 } else { compared.make(of.newer, file, &next, None)?.head.changed };
                changed += counted;
            }
        }
        if !is_counted {
            let described = read_description(disk, &next)?;
            write_description(disk, &next, &Description { changed: Some(changed), ..described })?;
        }
        Ok(())
    }

    /// Stores a file of a version as a difference, or notes that it stays whole. Returns the changed bytes.
    fn store_difference(
        &self,
        of: &Neighbours<'_>,
        compared: &Compared,
        file: &CanonicalFile,
        name: &str,
    ) -> Result<u64> {
        let disk = &*self.disk;
        let own = directory(of.place, of.older);
        let made = self.made_difference(of, compared, file, name)?;
        match made {
            (head, true) => {
                let removed = disk.remove_file(&format!("{own}/{name}"));
                removed.map_err(|error| Error::io(format!("removing {own}/{name}"), error))?;
                Ok(head.changed)
            }
            (head, false) => {
                let mut description = read_description(disk, &own)?;
                description.keyframes.push(name.to_owned());
                write_description(disk, &own, &description)?;
                Ok(head.changed)
            }
        }
    }

    /// Makes the difference of a file of a version durable under its name, unless it would be large, or the last of a
    /// long chain. Returns its head, and whether it is there.
    fn made_difference(
        &self,
        of: &Neighbours<'_>,
        compared: &Compared,
        file: &CanonicalFile,
        name: &str,
    ) -> Result<(VersionDifference, bool)> {
        let disk = &*self.disk;
        let draft = format!("{}/{name}{DIFFERENCE}{DRAFT}", directory(of.place, of.older));
        let failed = |error: io::Error| Error::io(format!("writing {draft}"), error);
        remove_if_present(disk, &draft).map_err(failed)?;
        let made = self.write_difference(of, compared, file, name);
        if made.as_ref().map_or(true, |(_, is_there)| !is_there) {
            remove_if_present(disk, &draft).map_err(failed)?;
        }
        made
    }

    /// Writes the difference of a file of a version, and gives it its name unless it is large. Returns its head, and
    /// whether it is there.
    fn write_difference(
        &self,
        of: &Neighbours<'_>,
        compared: &Compared,
        file: &CanonicalFile,
        name: &str,
    ) -> Result<(VersionDifference, bool)> {
        let disk = &*self.disk;
        let (own, next) = (directory(of.place, of.older), directory(of.place, of.newer));
        let path = format!("{own}/{name}{DIFFERENCE}");
        let draft = format!("{path}{DRAFT}");
        let failed = |error: io::Error| Error::io(format!("writing {draft}"), error);
        let to = disk.open(&draft, Open::Create).map_err(failed)?;
        let whole: u64 = file.pieces().iter().flatten().map(|stretch| stretch.end - stretch.start).sum();
        let bytes_max = whole / LARGEST_SHARE;
        let Made { head, bytes } = compared.make(of.newer, file, &next, Some((&*to, bytes_max)))?;
        let is_small = bytes <= bytes_max && {
            let chain = Chain { files: 1, bytes }
                .and(compared.before.get(name).copied().unwrap_or_default())
                .and(chain_behind(disk, of.place, &head)?);
            chain.bytes <= whole / LARGEST_CHAIN_SHARE && chain.files <= CHAIN_FILES_MAX
        };
        let head_bytes = head.to_bytes();
        // The whole file goes only behind a head that can be read, which more than 65,535 bases have not.
        if !is_small || VersionDifference::parse(&head_bytes).ok().as_ref() != Some(&head) {
            return Ok((head, false));
        }
        let placed = to.write_at(&head_bytes, 0).and_then(|()| {
            to.sync_data()?;
            disk.rename(&draft, &path)?;
            disk.sync_directory(&own)
        });
        placed.map_err(failed)?;
        Ok((head, true))
    }

    /// Stores a file of a version, which is a difference, as a difference from another version, or whole.
    pub(super) fn rebase_files(&self, of: &Neighbours<'_>, removed: u64) -> Result<()> {
        let disk = &*self.disk;
        let own = directory(of.place, of.older);
        let files = stored(disk, &own)?;
        let mut needing = Vec::new();
        for file in files.iter().filter(|file| file.is_difference) {
            if head_of(disk, &own, &file.name)?.is_some_and(|head| head.next == removed) {
                needing.push(file.name.as_str());
            }
        }
        if needing.is_empty() {
            return Ok(());
        }
        let compared = self.compared(of)?;
        let named = compared.canonical.files().iter().filter_map(|file| file_name(file.kind, file.number));
        let named: HashSet<String> = named.collect();
        if let Some(left) = needing.iter().find(|name| !named.contains(**name)) {
            return Err(Error::corrupt(format!(
                "{own}/{left} is needed, and the log of its version does not name it"
            )));
        }
        for file in compared.canonical.files() {
            let Some(name) =
                file_name(file.kind, file.number).filter(|name| needing.contains(&name.as_str()))
            else {
                continue;
            };
            if self.made_difference(of, &compared, file, &name)?.1 {
                continue;
            }
            let (path, draft) = (format!("{own}/{name}"), format!("{own}/{name}{DRAFT}"));
            let failed = |error| Error::io(format!("writing {path}"), error);
            remove_if_present(disk, &draft).map_err(failed)?;
            if let Err(error) = self.copy_file(&compared.canonical, file, &draft) {
                // A removal is to give room on a full disk.
                remove_if_present(disk, &draft).map_err(failed)?;
                return Err(error);
            }
            disk.rename(&draft, &path).map_err(failed)?;
            disk.sync_directory(&own).map_err(failed)?;
            disk.remove_file(&format!("{path}{DIFFERENCE}")).map_err(failed)?;
            let mut description = read_description(disk, &own)?;
            description.keyframes.push(name);
            write_description(disk, &own, &description)?;
        }
        Ok(())
    }

    fn compared(&self, of: &Neighbours<'_>) -> Result<Compared> {
        let canonical = self.canonical_version(of.place, of.older)?;
        let names = canonical.object_names();
        let next = StoredObjects::of_log(&self.log_of_version(of.place, of.newer)?, self.id())?;
        let before = chains_before(&*self.disk, of)?;
        Ok(Compared { canonical, names, next, disk: VersionDisk::new(&self.disk), before })
    }

    fn canonical_version(&self, place: CollectionName<'_>, number: u64) -> Result<Canonical> {
        let version = self.opened(place.tenant, &version_name(place.name, number))?;
        Frozen::of(&version)?.canonical(self.id())
    }

    fn log_of_version(&self, place: CollectionName<'_>, number: u64) -> Result<Vec<u8>> {
        let path = format!("{}/{LOG_NAME}", directory(place, number));
        let failed = |error| Error::io(format!("reading {path}"), error);
        let file = VersionDisk::new(&self.disk).open(&path, Open::Read).map_err(failed)?;
        let mut log = vec![0; file.len().map_err(failed)? as usize];
        file.read_exact_at(&mut log, 0).map_err(failed)?;
        Ok(log)
    }

    /// Exact bytes of the newer version that the older one has nothing to compare with.
    fn bytes_added(&self, of: &Neighbours<'_>) -> Result<u64> {
        let newer = self.canonical_version(of.place, of.newer)?;
        let names = newer.object_names();
        let before = StoredObjects::of_log(&self.log_of_version(of.place, of.older)?, self.id())?;
        let mut added = 0;
        for file in newer.files() {
            for content in newer
                .contents(file, std::slice::from_ref(&(0..file.bytes)), &names)
                .iter()
                .filter(|of| of.is_named())
            {
                let new = before.places(content).into_iter().filter(|range| range.place.is_none());
                added += new.map(|range| range.len).sum::<u64>();
            }
        }
        Ok(added)
    }
}

impl Compared {
    /// Makes the difference of a file from those in `directory`, the next version. Writes the payloads to a file, behind the
    /// place of the head, until that has the given number of bytes.
    fn make(
        &self,
        next: u64,
        file: &CanonicalFile,
        directory: &str,
        to: Option<(&dyn File, u64)>,
    ) -> Result<Made> {
        let (mut names, mut bases) = (Vec::new(), Vec::new());
        let mut stretches: Vec<Stretch> = Vec::new();
        for content in self.canonical.contents(file, std::slice::from_ref(&(0..file.bytes)), &self.names) {
            for range in self.next.places(&content).into_iter().filter(|range| range.len > 0) {
                let named =
                    range.place.and_then(|place| Some((file_name(place.kind, place.number)?, place.offset)));
                let base = match named {
                    Some((name, offset)) => {
                        let known = names.iter().position(|known| *known == name);
                        let index = match known {
                            Some(index) => index,
                            None => {
                                let path = format!("{directory}/{name}");
                                let opened = self.disk_open(&path)?;
                                bases.push(opened);
                                names.push(name);
                                bases.len() - 1
                            }
                        };
                        Some((index as u32, offset))
                    }
                    None => None,
                };
                add(&mut stretches, Stretch { len: range.len, dtype: content.dtype, base });
            }
        }
        let chunks: u64 = stretches.iter().map(Stretch::chunks).sum();
        let mut head = VersionDifference {
            next,
            bytes: file.bytes,
            bases: names,
            chunks: vec![0; chunks as usize],
            stretches,
            ..VersionDifference::default()
        };
        let mut end = head.to_bytes().len() as u64;
        head.chunks.clear();
        let mut at = 0;
        // Kept from step to step: the first use of memory costs more than a comparison.
        let (mut new, mut old) = (Vec::new(), Vec::new());
        for stretch in head.stretches.clone() {
            let mut done = 0;
            while done < stretch.len {
                let len = (stretch.len - done).min(STEP_BYTES);
                self.canonical.read(file, std::slice::from_ref(&(at..at + len)), &mut new)?;
                old.resize(len as usize, 0);
                match stretch.base {
                    None => old.fill(0),
                    Some((base, offset)) => {
                        let base: &Arc<dyn File> =
                            bases.get(base as usize).ok_or_else(|| Error::corrupt("a base is missing"))?;
                        let read = base.read_exact_at(&mut old, offset + done);
                        read.map_err(|error| Error::io(format!("reading {directory}"), error))?;
                    }
                }
                let (payloads, changed) = payloads_of(stretch.dtype, &old, &new)?;
                if stretch.base.is_some() {
                    head.changed += changed;
                }
                head.chunks.extend(payloads.iter().map(|payload| payload.len() as u32));
                let joined = payloads.concat();
                if let Some((to, _)) = to.filter(|(_, bytes_max)| end + joined.len() as u64 <= *bytes_max) {
                    let written = to.write_at(&joined, end);
                    written.map_err(|error| Error::io(format!("writing beside {directory}"), error))?;
                }
                end += joined.len() as u64;
                at += len;
                done += len;
            }
        }
        Ok(Made { head, bytes: end })
    }

    fn disk_open(&self, path: &str) -> Result<Arc<dyn File>> {
        self.disk.open(path, Open::Read).map_err(|error| Error::io(format!("opening {path}"), error))
    }
}

/// Adds a stretch behind others: to the last one if it goes on in the base, also behind a short gap of both, which slots have.
fn add(stretches: &mut Vec<Stretch>, next: Stretch) {
    let goes_on = |one: &Stretch, gap: u64| match (one.base, next.base) {
        (Some((one_base, at)), Some((base, next_at))) => {
            one.dtype == next.dtype && one_base == base && at.checked_add(one.len + gap) == Some(next_at)
        }
        _ => false,
    };
    match stretches.as_mut_slice() {
        [.., last] if goes_on(last, 0) => last.len += next.len,
        [.., last, gap] if gap.base.is_none() && gap.len < SLOT_ALIGN && goes_on(last, gap.len) => {
            last.len += gap.len + next.len;
            stretches.pop();
        }
        _ => stretches.push(next),
    }
}

/// Differences that a read goes through, one after the other.
#[derive(Clone, Copy, Default)]
struct Chain {
    files: u32,
    bytes: u64,
}

impl Chain {
    /// One chain behind the other.
    fn and(self, other: Chain) -> Chain {
        Chain { files: self.files.saturating_add(other.files), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// The longest in both respects.
    fn max(self, other: Chain) -> Chain {
        Chain { files: self.files.max(other.files), bytes: self.bytes.max(other.bytes) }
    }
}

/// The longest chains of differences that lead to the files of a version, from versions that are there: a version does not
/// know which were removed.
fn chains_before(disk: &dyn Disk, of: &Neighbours<'_>) -> Result<HashMap<String, Chain>> {
    // Those that lead to it, the latest first, each with the heads and the bytes of its differences.
    let mut leading: Vec<(u64, Vec<(Stored, VersionDifference)>)> = Vec::new();
    let (mut reached, mut others) = (HashSet::from([of.older]), 0);
    for number in numbers(disk, of.place)?.into_iter().rev().skip_while(|number| *number >= of.older) {
        let (before, mut heads) = (directory(of.place, number), Vec::new());
        for file in stored(disk, &before)?.into_iter().filter(|file| file.is_difference) {
            if let Some(head) = head_of(disk, &before, &file.name)?.filter(|it| reached.contains(&it.next)) {
                heads.push((file, head));
            }
        }
        others = if heads.is_empty() { others + 1 } else { 0 };
        if others > CHAIN_FILES_MAX {
            // A difference leads to the next version, or after an interrupted removal to one a little behind it.
            break;
        }
        if !heads.is_empty() {
            reached.insert(number);
            leading.push((number, heads));
        }
    }
    let mut chains: HashMap<u64, HashMap<String, Chain>> = HashMap::new();
    for (number, heads) in leading.into_iter().rev() {
        let own = chains.remove(&number).unwrap_or_default();
        for (file, head) in heads {
            let chain = Chain { files: 1, bytes: file.bytes };
            let chain = chain.and(own.get(&file.name).copied().unwrap_or_default());
            let next = chains.entry(head.next).or_default();
            for base in head.bases {
                let longest = next.entry(base).or_default();
                *longest = longest.max(chain);
            }
        }
    }
    Ok(chains.remove(&of.older).unwrap_or_default())
}

/// The files of a version that differences of earlier ones are taken from.
pub(super) fn files_led_to(
    disk: &dyn Disk,
    place: CollectionName<'_>,
    number: u64,
) -> Result<HashSet<String>> {
    let of = Neighbours { place, older: number, newer: number };
    Ok(chains_before(disk, &of)?.into_keys().collect())
}

/// The longest chain of differences that a difference with this head goes on with: its bases may be some of a later version.
fn chain_behind(disk: &dyn Disk, place: CollectionName<'_>, head: &VersionDifference) -> Result<Chain> {
    // The files of each version that a read of the difference comes to, with the longest chain up to each.
    let mut waiting: BTreeMap<u64, HashMap<String, Chain>> = BTreeMap::new();
    let go_on = |waiting: &mut BTreeMap<u64, HashMap<String, Chain>>, head: &VersionDifference, chain| {
        let next = waiting.entry(head.next).or_default();
        for base in &head.bases {
            let longest = next.entry(base.clone()).or_insert(chain);
            *longest = longest.max(chain);
        }
    };
    let mut longest = Chain::default();
    go_on(&mut waiting, head, longest);
    // Bases belong to later versions, so all chains to a version are known when it is looked at.
    while let Some((number, files)) = waiting.pop_first() {
        let own = directory(place, number);
        for (name, chain) in files {
            longest = longest.max(chain);
            if let Some(head) = head_of(disk, &own, &name)?.filter(|head| head.next > number) {
                let bytes =
                    disk.open(&format!("{own}/{name}{DIFFERENCE}"), Open::Read).and_then(|it| it.len());
                let bytes = bytes.map_err(|error| Error::io(format!("looking at {own}/{name}"), error))?;
                go_on(&mut waiting, &head, chain.and(Chain { files: 1, bytes }));
            }
        }
    }
    Ok(longest)
}

/// The payloads of the chunks of a stretch, and the bytes of elements that differ. Each payload is tried before it counts.
fn payloads_of(dtype: Dtype, old: &[u8], new: &[u8]) -> Result<(Vec<Vec<u8>>, u64)> {
    let chunk = CHUNK_BYTES as usize;
    let made: Result<Vec<(Vec<u8>, u64)>> = old
        .par_chunks(chunk)
        .zip(new.par_chunks(chunk))
        .map_init(<(Scratch, Vec<u8>)>::default, |(scratch, again), (old, new)| {
            let mut payload = Vec::new();
            encode_chunk(dtype, old, new, &mut payload, scratch)?;
            again.clear();
            again.extend_from_slice(old);
            apply_chunk(dtype, &mut Reader::new(&payload), again, scratch)?;
            if again.as_slice() != new {
                return Err(Error::corrupt("a bug in tierfs: a difference does not give its bytes"));
            }
            let width = if new.len().is_multiple_of(width(dtype)) { width(dtype) } else { 1 };
            Ok((payload, (changed_elements(width, old, new) * width) as u64))
        })
        .collect();
    let (mut payloads, mut changed) = (Vec::new(), 0);
    for (payload, bytes) in made? {
        payloads.push(payload);
        changed += bytes;
    }
    Ok((payloads, changed))
}
