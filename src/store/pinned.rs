//! Pinned files: their bytes as they read, kept once more in a file of their own that is
//! contiguous, `pinned/<number>`.
//!
//! Invariants:
//! 1. A copy is whole and durable before the log names it, and is never written again.
//! 2. The batch that changes what a reader sees of a file takes its copy out of the log.
//! 3. A copy is shown, and blocks are made good of it, only once its BLAKE3 was compared
//!    since the store was opened.
//! 4. The file of a copy goes when the batch that no longer names it is durable and nobody
//!    has it open.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::catalog::{Entry, What};
use crate::format::record::Record;
use crate::model::{EntryId, Error, ErrorKind, ObjectId, Result};
use crate::store::Collection;
use crate::store::disk::{File, Open};
use crate::store::events::EventKind;
use crate::store::log::Batch;
use crate::store::migrate::is_relocation;
use crate::store::object::{Freed, Object};
use crate::store::read::OpenObject;
use crate::store::state::State;

/// The setting that says that a file is pinned, and where its copy is.
pub const PIN: &str = "pin";
/// Its value for a file that has no copy.
const WITHOUT_COPY: &str = "1";
/// Bytes of a copy that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// A file's bytes as they read, in a file of their own.
#[derive(Debug)]
pub struct PinnedCopy {
    /// Its number, which no other file of the collection has.
    pub number: u64,
    /// Its bytes.
    pub bytes: u64,
    /// BLAKE3 of them.
    pub blake3: [u8; 32],
    /// Whether they are what they were, once somebody has looked. Held while that is done.
    sound: Mutex<Option<bool>>,
}

impl PinnedCopy {
    /// A copy that was just written, and is what it should be.
    pub fn written(number: u64, bytes: u64, blake3: [u8; 32]) -> PinnedCopy {
        PinnedCopy { number, bytes, blake3, sound: Mutex::new(Some(true)) }
    }

    /// Says that it was just written, and is what it should be.
    pub fn was_written(&self) {
        *self.sound.lock() = Some(true);
    }

    /// The value of the setting: `1 NUMBER BYTES BLAKE3`.
    pub fn value(&self) -> String {
        let hash = blake3::Hash::from_bytes(self.blake3).to_hex();
        format!("{WITHOUT_COPY} {} {} {hash}", self.number, self.bytes)
    }

    /// The copy that a value of the setting names, if it names one.
    fn parse(value: &str) -> Option<PinnedCopy> {
        let mut words = value.split(' ').skip(1);
        let (number, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let blake3 = *blake3::Hash::from_hex(words.next()?).ok()?.as_bytes();
        words.next().is_none().then_some(PinnedCopy { number, bytes, blake3, sound: Mutex::new(None) })
    }

    /// Whether its bytes are what they were; `None` where nobody has looked since the store was
    /// opened, or somebody does now.
    pub fn is_sound(&self) -> Option<bool> {
        self.sound.try_lock().and_then(|sound| *sound)
    }
}

impl State {
    /// Whether a file is pinned by itself.
    pub fn is_pinned(&self, node: EntryId) -> bool {
        self.pins.contains_key(&node)
    }

    /// Whether a file must stay as it is: it is pinned, or it is a tensor of a container that is.
    pub fn is_held(&self, node: EntryId) -> bool {
        let container = self.node(node).and_then(|node| node.file()).and_then(|file| file.container);
        self.is_pinned(node) || container.is_some_and(|container| self.is_pinned(container))
    }

    /// The copy of a pinned file, if it has one.
    pub fn copy_of(&self, node: EntryId) -> Option<&Arc<PinnedCopy>> {
        self.pins.get(&node)?.as_ref()
    }

    /// Whether a pinned file has bytes and no copy of them.
    pub fn lacks_copy(&self, node: EntryId) -> bool {
        let has_bytes = self.node(node).is_some_and(|node| node.bytes > 0);
        has_bytes && self.pins.get(&node).is_some_and(Option::is_none)
    }

    /// All pinned files with their copies, in no order.
    pub fn pins(&self) -> impl Iterator<Item = (EntryId, Option<&Arc<PinnedCopy>>)> {
        self.pins.iter().map(|(node, copy)| (*node, copy.as_ref()))
    }

    /// Takes in a setting of a file, if it is that which pins it.
    pub(super) fn note_setting(&mut self, node: EntryId, key: &str, value: Option<&str>) {
        if key == PIN {
            self.set_pin(node, value);
        }
    }

    /// Pins a file, or lets it go.
    pub(super) fn set_pin(&mut self, node: EntryId, value: Option<&str>) {
        let copy = value.map(|value| PinnedCopy::parse(value).map(Arc::new));
        let before = match copy {
            Some(copy) => self.pins.insert(node, copy),
            None => self.pins.remove(&node),
        };
        self.freed.extend(before.flatten().map(Freed::Copy));
    }

    /// Forgets all copies, where the log does not say any more whether they are what files are.
    pub(super) fn forget_all_copies(&mut self) -> Result<()> {
        let nodes: Vec<EntryId> = self.pins.keys().copied().collect();
        nodes.into_iter().try_for_each(|node| self.apply_entry(pin_entry(node, Some(None))))
    }

    /// The copies that have an object's bytes, each with where they begin in it.
    fn copies_with(&self, object: ObjectId) -> Vec<(EntryId, Arc<PinnedCopy>, u64)> {
        let mut found = Vec::new();
        for (node, copy) in self.pins() {
            let (Some(copy), Some(file)) = (copy, self.node(node).and_then(|node| node.file())) else {
                continue;
            };
            if file.records.is_some() {
                // Its parts do not lie in it one after the other; their own copies have them.
                continue;
            }
            let Some(place) = file.objects.iter().position(|id| *id == object) else { continue };
            let before = file.objects.iter().take(place).filter_map(|id| self.object(*id));
            let offset = before.map(|object| object.logged_cut().bytes).sum();
            found.push((node, copy.clone(), offset));
        }
        found
    }

    /// The objects of which readers see other bytes with a batch. Copies of files that have
    /// them leave the log with it.
    pub(super) fn forget_copies(&self, batch: &mut Batch) -> Vec<Arc<Object>> {
        if batch.keeps_bytes() {
            return Vec::new();
        }
        let mut changed: HashSet<ObjectId> = HashSet::new();
        let (mut gone, mut removed) = (HashSet::new(), HashSet::new());
        for added in batch.records() {
            match (&added.record, &added.entry) {
                (_, Some(Entry::Object(object))) => {
                    changed.insert(object.id);
                }
                (_, Some(Entry::Node(node))) => {
                    let before = self.node(node.id).and_then(|node| node.file());
                    if let (Some(before), What::File(file)) = (before, &node.what)
                        && before.objects != file.objects
                    {
                        gone.insert(node.id);
                    }
                }
                (_, Some(Entry::NodeRemoved(node))) => {
                    removed.insert(*node);
                }
                (Record::Migrate { object, block, stored, .. }, _) => {
                    let known = self.object(*object);
                    let before =
                        known.and_then(|object| object.blocks.read().get(*block, object.logged_cut()));
                    if !before.is_some_and(|before| is_relocation(&before.stored, stored)) {
                        changed.insert(*object);
                    }
                }
                (
                    Record::Create { object, .. }
                    | Record::CreateRun { object, .. }
                    | Record::Delta { object, .. }
                    | Record::Factor { object, .. }
                    | Record::Delete { object },
                    _,
                ) => {
                    changed.insert(*object);
                }
                _ => {}
            }
        }
        if !changed.is_empty() {
            let has_changed = |node: &EntryId| {
                let file = self.node(*node).and_then(|node| node.file());
                file.is_some_and(|file| file.objects.iter().any(|object| changed.contains(object)))
            };
            gone.extend(self.pins.keys().filter(|node| has_changed(node)));
        }
        let has_copy = |node: &EntryId| !removed.contains(node) && self.copy_of(*node).is_some();
        for node in gone.into_iter().filter(has_copy) {
            let (key, value) = (PIN.to_owned(), Some(WITHOUT_COPY.to_owned()));
            batch.entry(Entry::Setting { node, key, value });
        }
        changed.iter().filter_map(|object| self.object(*object).cloned()).collect()
    }
}

impl Collection {
    fn pinned_directory(&self) -> String {
        format!("{}/pinned", self.path())
    }

    /// The path in the store of a copy.
    pub fn pinned_path(&self, number: u64) -> String {
        format!("{}/{number:016x}", self.pinned_directory())
    }

    /// Makes the file of a copy; the number names it. It is no copy before
    /// [`finish_pinned`](Self::finish_pinned) and a batch that names it.
    pub fn create_pinned(&self) -> Result<(u64, Arc<dyn File>)> {
        let mut writer = self.writer.lock();
        let writer = self.writable(&mut writer)?;
        self.reclaim(writer);
        let number = self.next_data(writer);
        writer.next_data = number + 1;
        let (directory, path) = (self.pinned_directory(), draft_of(&self.pinned_path(number)));
        let made = self.disk.create_directory(&directory);
        let made = made.and_then(|()| self.disk.sync_directory(&self.path()));
        let file = made.and_then(|()| self.disk.open(&path, Open::Create));
        Ok((number, file.map_err(|error| Error::io(format!("making {path}"), error))?))
    }

    /// Makes a copy that was written durable, under its own name.
    pub fn finish_pinned(&self, number: u64, file: &Arc<dyn File>) -> Result<()> {
        let path = self.pinned_path(number);
        let finished = file.sync_data().and_then(|()| self.disk.rename(&draft_of(&path), &path));
        let finished = finished.and_then(|()| self.disk.sync_directory(&self.pinned_directory()));
        finished.map_err(|error| Error::io(format!("writing {path}"), error))
    }

    /// Removes the file of a copy that no batch names. One that cannot be removed now is found
    /// when the collection is opened again.
    pub fn remove_pinned(&self, number: u64) {
        let path = self.pinned_path(number);
        for path in [draft_of(&path), path] {
            match self.disk.remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    log::warn!("removing {path}: {error}");
                }
                _ => {}
            }
        }
    }

    /// Removes files of copies that the log does not name.
    pub(super) fn remove_stray_copies(&self) -> Result<()> {
        let directory = self.pinned_directory();
        let listed = match self.disk.list(&directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(|error| Error::io(format!("listing {directory}"), error))?,
        };
        let state = self.state.read();
        let known = state.pins().filter_map(|(_, copy)| copy);
        let known: HashSet<String> = known.map(|copy| format!("{:016x}", copy.number)).collect();
        for file in listed.into_iter().filter(|file| !file.is_directory && !known.contains(&file.name)) {
            let path = format!("{directory}/{}", file.name);
            self.disk.remove_file(&path).map_err(|error| Error::io(format!("removing {path}"), error))?;
        }
        Ok(())
    }

    /// Reads a copy and compares its BLAKE3: an error says what is wrong with it. `Interrupted`
    /// where `stop` said so.
    pub fn check_copy(&self, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> Result<()> {
        let path = self.pinned_path(copy.number);
        let failed = |error| Error::io(format!("reading {path}"), error);
        let file = self.disk.open(&path, Open::Read).map_err(failed)?;
        let found = file.len().map_err(failed)?;
        if found != copy.bytes {
            return Err(Error::corrupt(format!("{path} has {found} bytes where {} should be", copy.bytes)));
        }
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < copy.bytes {
            let len = (copy.bytes - at).min(CHUNK_BYTES as u64) as usize;
            let here = chunk.get_mut(..len).unwrap_or_default();
            file.read_exact_at(here, at).map_err(failed)?;
            hasher.update(here);
            at += len as u64;
            if stop() {
                return Err(Error::new(ErrorKind::Interrupted, "it was told to stop"));
            }
        }
        match hasher.finalize().as_bytes() == &copy.blake3 {
            true => Ok(()),
            false => Err(Error::corrupt(format!("{path}: its BLAKE3 is not that which the log says"))),
        }
    }

    /// Whether a copy of a file is what it was: compared once, and told where it is not. `false`
    /// too where `stop` said so before that was known.
    pub fn is_sound(&self, node: EntryId, copy: &PinnedCopy, stop: &dyn Fn() -> bool) -> bool {
        let mut sound = copy.sound.lock();
        match *sound {
            Some(sound) => sound,
            None => self.look_at_copy(node, copy, &mut sound, stop),
        }
    }

    fn look_at_copy(
        &self,
        node: EntryId,
        copy: &PinnedCopy,
        sound: &mut Option<bool>,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        let checked = self.check_copy(copy, stop);
        if checked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
            return false;
        }
        if let Err(error) = &checked {
            let below = String::from_utf8_lossy(&self.state().path(node)).into_owned();
            let path = format!("{}/{below}", self.path());
            self.event_log.tell(EventKind::Corruption, &path, PIN, &error.to_string());
        }
        *sound.insert(checked.is_ok())
    }
}

/// When a copy is compared before a block is read out of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// Once since the store was opened: the caller has a checksum of the block.
    Once,
    /// Now.
    Again,
}

impl OpenObject {
    /// Whether a pinned copy may have the bytes of the object.
    pub fn has_pinned(&self) -> bool {
        !self.collection.state().copies_with(self.object.entry.id).is_empty()
    }

    /// Reads a block as a reader sees it, out of a pinned copy, into `out`, which has its bytes.
    /// `false` where there is none that is sound.
    pub fn read_pinned(&self, index: u32, compare: Compare, out: &mut [u8]) -> Result<bool> {
        let object = &self.object;
        let mut copies = self.collection.state().copies_with(object.entry.id);
        copies.sort_by_key(|(_, copy, _)| copy.bytes);
        let cut = object.logged_cut();
        if self.collection.damage().is_some() || cut.len(index) != out.len() {
            return Ok(false);
        }
        for (node, copy, offset) in copies {
            let collection = &self.collection;
            let is_sound = collection.is_sound(node, &copy, &|| false)
                && (compare == Compare::Once
                    || collection.look_at_copy(node, &copy, &mut copy.sound.lock(), &|| false));
            if !is_sound {
                continue;
            }
            let path = self.collection.pinned_path(copy.number);
            let file = self.collection.disk.open(&path, Open::Read);
            let read = file.and_then(|file| file.read_exact_at(out, offset + cut.start(index)));
            match read {
                Ok(()) => return Ok(true),
                Err(error) => log::warn!("{path}: {error}"),
            }
        }
        Ok(false)
    }
}

fn draft_of(path: &str) -> String {
    format!("{path}.new")
}

/// The entry that pins a file, with its copy or without, or lets it go.
pub fn pin_entry(node: EntryId, copy: Option<Option<&PinnedCopy>>) -> Entry {
    let value = copy.map(|copy| copy.map_or_else(|| WITHOUT_COPY.to_owned(), PinnedCopy::value));
    Entry::Setting { node, key: PIN.to_owned(), value }
}

#[cfg(test)]
mod tests {
    use super::PinnedCopy;

    #[test]
    fn values_of_the_setting_read_as_they_were_written_and_others_name_no_copy() {
        let copy = PinnedCopy::written(7, 12, [0xab; 32]);
        let value = copy.value();
        let read = PinnedCopy::parse(&value).unwrap();
        assert_eq!((read.number, read.bytes, read.blake3), (7, 12, [0xab; 32]));
        assert_eq!((copy.is_sound(), read.is_sound()), (Some(true), None));
        for wrong in
            ["1", "", "1 7", "1 7 12", "1 7 12 ab", "1 -7 12 ab", &format!("{value} 1"), &value[..70]]
        {
            assert!(PinnedCopy::parse(wrong).is_none(), "{wrong}");
        }
    }
}
