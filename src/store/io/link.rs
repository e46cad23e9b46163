//! Makes data files other names of data files with the same bytes.
//!
//! The name is made first, which keeps the file from being changed in place (`sharing` 1). Then its bytes
//! are compared, and only then a batch names objects in it.

use std::sync::Arc;

use crate::model::{Progress, Result};
use crate::store::collection::Collection;
use crate::store::collection::open_object::OpenObject;
use crate::store::disk::{File, Open};
use crate::store::link_candidates::{Sample, SharedName, is_shared};
use crate::store::object::Object;
use crate::store::upstream::cloned_file;
use crate::store::version_list::Names;

/// If two files differ, mostly one of this many samples does.
const SAMPLES: u64 = 16;
const SAMPLE_BYTES: u64 = 4096;
/// Number of candidates that are compared as a whole.
const ALIKE_MAX: usize = 3;
/// Number of files of one length and sample that are opened. Files of mostly zeros may have many.
const LOOKED_AT_MAX: usize = 64;

impl Collection {
    /// Data files that may be shared by a file with the first `bytes` bytes of `source`: those of that
    /// length, with the same bytes at some places. `own` is the data file of `source` in this collection.
    pub fn alike(
        &self,
        source: &dyn File,
        bytes: u64,
        own: Option<u64>,
        progress: &dyn Progress,
    ) -> Result<Vec<SharedName>> {
        let (path, tenant, sharing) = (self.path(), self.tenant(), self.services.sharing());
        let is_own = |name: &SharedName| own.is_some_and(|own| name.is_of(&path, own));
        let mut unsampled = sharing.take_unsampled(tenant, bytes).into_iter();
        while let Some(name) = unsampled.next() {
            if let Err(error) = progress.check() {
                sharing.put_back(tenant, bytes, std::iter::once(name).chain(unsampled));
                return Err(error);
            }
            // A file that is gone or has grown is no candidate any more.
            if let Some(sample) = self.candidate(&name, bytes).and_then(|file| sample_of(&*file, bytes)) {
                sharing.sampled(tenant, name, bytes, sample);
            }
        }
        let Some(sample) = sample_of(source, bytes) else { return Ok(Vec::new()) };
        let mut known = sharing.like(tenant, bytes, sample);
        known.retain(|name| !is_own(name));
        // The newest are the most likely ones.
        let skipped = known.len().saturating_sub(LOOKED_AT_MAX);
        known.drain(..skipped);
        known.retain(|name| {
            let Some(file) = self.candidate(name, bytes) else {
                sharing.forget(tenant, name, bytes, sample);
                return false;
            };
            has_same_samples(source, &*file, bytes)
        });
        known.truncate(ALIKE_MAX);
        Ok(known)
    }

    /// A data file of this length that other files may share.
    fn candidate(&self, name: &SharedName, bytes: u64) -> Option<Arc<dyn File>> {
        // The files of clones have one name, and samples would be fetched.
        let is_cloned = !matches!(cloned_file(self.files.upstream(), &name.path()), Ok(None));
        let file = self.files.disk().open(&name.path(), Open::Read).ok().filter(|_| !is_cloned)?;
        Some(file).filter(|file| file.len().is_ok_and(|len| len == bytes))
    }

    /// Whether files of this store share data files.
    pub fn shares_files(&self) -> bool {
        self.services.sharing().is_on()
    }

    /// Makes a data file that is another name of `name`. `None` if that is not possible, or if the file
    /// no longer has `bytes` bytes. Removed when the store is opened again, unless a committed batch
    /// gives it to an object by then.
    pub fn link_data_file(&self, name: &SharedName, bytes: u64) -> Result<Option<(u64, Arc<dyn File>)>> {
        let Some(number) = self.link_as_data_file(name)? else { return Ok(None) };
        let opened = self.data_file(number);
        if let Ok(file) = &opened
            && file.len().is_ok_and(|len| len == bytes)
        {
            return Ok(Some((number, file.clone())));
        }
        self.remove_data_file(number);
        Ok(None)
    }

    /// Makes a data file that is another name of `name`, and returns its number. `None` if that is not possible.
    pub(in crate::store) fn link_as_data_file(&self, name: &SharedName) -> Result<Option<u64>> {
        let number = self.outside_number()?;
        let is_linked = self.services.sharing().link(name, &self.files.data_path(number));
        Ok(is_linked.then_some(number))
    }

    /// Notes that a data file of `bytes` bytes belongs to a file, so that other files may share it.
    pub fn offer_data_file(&self, number: u64, bytes: u64) {
        self.services.sharing().note(self.place(), number, bytes);
    }

    /// Bytes of the blocks of an object that lie elsewhere while other files need its stretch of the data
    /// file, so that moving them freed no space.
    pub fn bytes_left_to_others(&self, object: &Object) -> u64 {
        let Some(extent) = object.extent().filter(|_| object.origin.is_none()) else { return 0 };
        let layout = object.logged_layout();
        let blocks = object.stored_blocks(0..layout.blocks(), layout);
        let left = blocks.filter(|(_, block)| !block.stored.in_data);
        let left = left.map(|(index, _)| layout.len(index) as u64).sum();
        let is_needed = left > 0 && self.data_file(extent.file).is_ok_and(|file| is_shared(&*file));
        if is_needed { left } else { 0 }
    }

    /// Number and bytes of the data files with further names, but those of versions, and the saved bytes if each
    /// name counts alike.
    pub fn shared_bytes(&self) -> Shared {
        let mut numbers: Vec<u64> = {
            let state = self.state();
            let own = state.objects().filter(|object| object.origin.is_none());
            own.filter_map(|object| object.extent()).map(|extent| extent.file).collect()
        };
        numbers.sort_unstable();
        numbers.dedup();
        let versions = Names::of_versions(&**self.files.disk(), self.place());
        let mut shared = Shared::default();
        numbers
            .into_iter()
            .filter_map(|number| self.data_file(number).ok())
            .for_each(|file| shared.count(&*file, &versions));
        shared
    }
}

/// Data files of a collection that have further names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shared {
    /// Their number.
    pub files: u64,
    /// The space that they take, in bytes.
    pub bytes: u64,
    /// The saved bytes: of a file with n names, one n-th of its space for each further name.
    pub saved: u64,
}

impl Shared {
    /// Counts a data file if it has further names than those of `versions`.
    pub(in crate::store) fn count(&mut self, file: &dyn File, versions: &Names) {
        let (Ok(attributes), Ok(len)) = (file.attributes(), file.len()) else { return };
        let links = attributes.links.saturating_sub(versions.number(&attributes));
        let bytes = attributes.space(len);
        if links > 1 {
            self.files += 1;
            self.bytes += bytes;
            self.saved += bytes - bytes / links;
        }
    }
}

impl OpenObject {
    /// Whether the object's data file has further names, so that it must not be changed in place. The
    /// caller holds `Sharing::changing`.
    pub(in crate::store) fn is_shared(&self) -> bool {
        let Some(Ok(file)) = &self.extent else { return false };
        is_shared(&**file)
    }
}

/// The sample of a file by which [`Sharing`](crate::store::link_candidates::Sharing) finds it. `None` if it cannot be read.
fn sample_of(file: &dyn File, bytes: u64) -> Option<Sample> {
    let mut buffer = [0; SAMPLE_BYTES as usize];
    let at = bytes.saturating_sub(SAMPLE_BYTES) / 2;
    let (sample, _) = buffer.split_at_mut((bytes - at).min(SAMPLE_BYTES) as usize);
    file.read_exact_at(sample, at).ok()?;
    blake3::hash(sample).as_bytes().first_chunk().map(|first| u64::from_le_bytes(*first))
}

fn has_same_samples(one: &dyn File, other: &dyn File, bytes: u64) -> bool {
    let mut buffers = [[0; SAMPLE_BYTES as usize]; 2];
    let last = bytes.saturating_sub(SAMPLE_BYTES);
    (0..SAMPLES).all(|sample| {
        let at = (u128::from(last) * u128::from(sample) / u128::from(SAMPLES - 1)) as u64;
        let len = (bytes - at).min(SAMPLE_BYTES) as usize;
        let [a, b] = &mut buffers;
        one.read_exact_at(&mut a[..len], at).is_ok()
            && other.read_exact_at(&mut b[..len], at).is_ok()
            && a[..len] == b[..len]
    })
}
