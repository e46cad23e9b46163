//! What is free, and what an interrupted import has left.

use std::collections::HashSet;
use std::sync::Arc;

use crate::format::record::Record;
use crate::model::{Error, ObjectId, Result};
use crate::store::Collection;
use crate::store::blocks::Blocks;
use crate::store::collection::{Touched, Writer};
use crate::store::slots::Slots;
use crate::store::state::Object;

impl Collection {
    /// The free space of a tier file, from what the blocks say; those of objects that
    /// were deleted while somebody reads them count too.
    pub(super) fn space_of(&self, number: u8, dropped: &[Arc<Object>]) -> Slots {
        let state = self.state.read();
        let objects = state.objects().chain(dropped);
        let payloads = objects.flat_map(|object| payloads(object));
        let used = payloads.filter(|(tier, _, _)| *tier == number).map(|(_, offset, len)| (offset, len));
        Slots::around(used)
    }

    /// Frees what deleted objects lie in, once nobody reads them any more. The batch
    /// that deleted them is durable.
    pub(super) fn reclaim(&self, writer: &mut Writer) {
        let dropped = std::mem::take(&mut writer.dropped);
        let (unread, read): (Vec<_>, Vec<_>) =
            dropped.into_iter().partition(|object| Arc::strong_count(object) == 1);
        writer.dropped = read;
        let mut homes = HashSet::new();
        for object in &unread {
            for (number, offset, len) in payloads(object) {
                if let Some(Some(slots)) = writer.slots.get_mut(usize::from(number)) {
                    slots.give_back(offset, len);
                }
            }
            homes.extend(object.home().map(|home| home.file));
        }
        for object in &writer.dropped {
            object.home().map(|home| homes.remove(&home.file));
        }
        homes.retain(|home| !self.state.read().is_home(*home));
        for home in homes {
            self.remove_data_file(home);
        }
    }

    /// Removes a data file that no object has. One that cannot be removed now is found
    /// when the collection is opened again.
    pub fn remove_data_file(&self, id: u64) {
        let path = self.data_path(id);
        match self.disk.remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                log::warn!("removing {path}: {error}");
            }
            _ => {}
        }
    }

    /// Gives back what an interrupted import has left: objects that no file has, and
    /// data files that no object has.
    pub(super) fn recover(&self) -> Result<()> {
        if self.writer.lock().is_none() {
            return Ok(());
        }
        let orphans = self.orphans();
        if !orphans.is_empty() {
            self.commit(Touched::default(), |batch, _| {
                for object in &orphans {
                    batch.record(Record::Delete { object: *object });
                }
                Ok(())
            })?;
        }
        let homes: HashSet<u64> =
            self.state.read().objects().filter_map(|object| object.home()).map(|home| home.file).collect();
        let directory = format!("{}/data", self.path());
        let listed = self.disk.list(&directory);
        for file in listed.map_err(|error| Error::io(format!("listing {directory}"), error))? {
            let id = u64::from_str_radix(&file.name, 16).ok().filter(|_| file.name.len() == 16);
            if id.is_some_and(|id| !homes.contains(&id)) {
                let path = format!("{directory}/{}", file.name);
                self.disk.remove_file(&path).map_err(|error| Error::io(format!("removing {path}"), error))?;
            }
        }
        Ok(())
    }

    fn orphans(&self) -> Vec<ObjectId> {
        let state = self.state.read();
        let mut owned: HashSet<ObjectId> = HashSet::new();
        for node in state.nodes() {
            if let Some(file) = node.file() {
                owned.extend(file.objects.iter().copied());
            }
        }
        let mut orphans: Vec<ObjectId> =
            state.objects().map(|object| object.entry.id).filter(|id| !owned.contains(id)).collect();
        orphans.sort_unstable();
        orphans
    }
}

/// The payloads of an object in tier files: the file's number, offset and bytes.
fn payloads(object: &Object) -> Vec<(u8, u64, u64)> {
    let blocks = object.blocks.read();
    if matches!(*blocks, Blocks::Run(_)) {
        return Vec::new();
    }
    let stored = blocks.described(object.cut()).map(|(_, block)| block.stored);
    let kept = stored.filter(|stored| !stored.in_data && stored.len > 0);
    kept.map(|stored| (stored.tier.byte(), stored.offset, u64::from(stored.len))).collect()
}
