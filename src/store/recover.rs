//! What is free, and what an interrupted import has left.

use std::collections::HashSet;

use crate::format::record::Record;
use crate::model::{Error, ObjectId, Result};
use crate::store::Collection;
use crate::store::collection::Touched;
use crate::store::slots::Slots;

impl Collection {
    /// The free space of a tier file, from what the blocks say.
    pub(super) fn space_of(&self, number: u8) -> Slots {
        let state = self.state.read();
        let mut used = Vec::new();
        for object in state.objects() {
            let blocks = object.blocks.read();
            let cut = object.cut();
            if matches!(*blocks, crate::store::blocks::Blocks::Run(_)) {
                continue;
            }
            for (_, block) in blocks.described(cut) {
                if !block.stored.in_data && block.stored.tier.byte() == number {
                    used.push((block.stored.offset, u64::from(block.stored.len)));
                }
            }
        }
        Slots::around(used.into_iter())
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
