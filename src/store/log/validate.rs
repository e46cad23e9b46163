//! Validates a batch before it is written: in the log, an invalid one would count as damage.

use std::collections::HashMap;

use crate::format::log::catalog::{Entry, NodeType};
use crate::format::log::record::Record;
use crate::model::{EntryId, Error, ObjectId, Result};
use crate::store::batch::Batch;
use crate::store::object::blocks::BlockLayout;
use crate::store::object::is_relocation;
use crate::store::object::links::LINKS_MAX;
use crate::store::state::State;
use crate::store::state::by_id::ByObject;

/// The changes of the batch so far.
struct Planned<'a> {
    state: &'a State,
    /// Objects that the batch creates or resizes, or deletes (`None`).
    objects: ByObject<Option<BlockLayout>>,
    /// Nodes that the batch creates, with whether they are directories, or removes (`None`).
    nodes: HashMap<EntryId, Option<bool>>,
}

/// `Invalid` if a record refers to something that does not exist or does not fit it; `Busy` if it
/// changes an object that others depend on: `check_not_needed` says so, or that several files have.
pub(in crate::store) fn check(
    batch: &Batch,
    state: &State,
    check_not_needed: impl Fn(ObjectId) -> Result<()>,
) -> Result<()> {
    let mut planned = Planned { state, objects: ByObject::default(), nodes: HashMap::new() };
    for added in batch.records() {
        match &added.entry {
            Some(entry) => planned.entry(entry)?,
            None => planned.record(&added.record)?,
        }
        let object = match added.record {
            Record::Delete { object }
            | Record::Create { object, .. }
            | Record::CreateRun { object, .. }
            | Record::SlotRun { object, .. }
            | Record::EmptyRun { object, .. }
            | Record::Migrate { object, .. }
            | Record::Delta { object, .. }
            | Record::Factor { object, .. } => object,
            _ => continue,
        };
        let is_relocation = match &added.record {
            Record::Migrate { block, stored, .. } => state.object(object).is_some_and(|object| {
                let before = object.blocks.read().get(*block, object.logged_layout());
                before.is_some_and(|before| is_relocation(&before.stored, stored))
            }),
            _ => false,
        };
        if !is_relocation {
            check_not_needed(object)?;
            state.check_unshared(object, None)?;
        }
    }
    Ok(())
}

impl Planned<'_> {
    fn entry(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Object(object) => {
                let layout = BlockLayout { bytes: object.bytes, block_bytes: object.block_bytes };
                self.objects.insert(object.id, Some(layout));
            }
            Entry::Node(node) => {
                if let NodeType::File(file) = &node.node_type {
                    let mut bytes = 0;
                    for object in &file.objects {
                        bytes += self.object(*object)?.bytes;
                    }
                    // The elements of a view lie in objects of its container.
                    let tensor = file.tensor.as_ref().filter(|_| file.view.is_none() || bytes > 0);
                    if tensor
                        .is_some_and(|tensor| tensor.dtype.bytes_of(tensor.shape.elements()) != Some(bytes))
                    {
                        return Err(Error::invalid(format!(
                            "the type and shape of a tensor do not match its {bytes} bytes"
                        )));
                    }
                }
                self.nodes.insert(node.id, Some(node.node_type == NodeType::Directory));
            }
            Entry::NodeRemoved(id) => {
                self.nodes.insert(*id, None);
            }
            Entry::Name { parent, node, .. } => {
                self.directory(*parent)?;
                if self.is_directory(*node).is_none() {
                    return Err(Error::invalid(format!(
                        "a name leads to node {}, which does not exist",
                        node.0
                    )));
                }
            }
            Entry::NameRemoved { parent, .. } => self.directory(*parent)?,
            Entry::Written { node, .. } => {
                let is_file = self.state.node(*node).is_some_and(|node| node.file().is_some());
                if !is_file || self.nodes.get(node).is_some_and(Option::is_none) {
                    return Err(Error::invalid(format!(
                        "a write names node {}, which is not a file",
                        node.0
                    )));
                }
            }
            Entry::Collection { .. } | Entry::Setting { .. } | Entry::Outside(_) => {}
        }
        Ok(())
    }

    fn record(&mut self, record: &Record) -> Result<()> {
        if let Record::Delta { chain_len, .. } = record
            && usize::from(*chain_len) > LINKS_MAX
        {
            return Err(Error::invalid(format!("a chain of {chain_len} deltas, {LINKS_MAX} at most")));
        }
        let (object, end) = match record {
            Record::Delete { object } => {
                self.objects.insert(*object, None);
                return Ok(());
            }
            Record::Create { object, block, .. }
            | Record::Migrate { object, block, .. }
            | Record::Delta { object, block, .. } => (*object, u64::from(*block) + 1),
            Record::Factor { object, .. } => (*object, 0),
            Record::EmptyRun { object, block, count, .. } => (*object, u64::from(*block) + u64::from(*count)),
            Record::CreateRun { object, block, stored, .. }
            | Record::SlotRun { object, block, stored, .. } => {
                (*object, u64::from(*block) + u64::from(stored.len))
            }
            _ => return Ok(()),
        };
        let blocks = self.object(object)?.blocks();
        if end > u64::from(blocks) {
            return Err(Error::invalid(format!(
                "a record names block {} of object {object}, which has {blocks} blocks",
                end - 1
            )));
        }
        Ok(())
    }

    fn object(&self, id: ObjectId) -> Result<BlockLayout> {
        let planned = self.objects.get(&id).copied();
        // The state in memory may include writes that the log does not have yet.
        let logged = || self.state.object(id).map(|object| object.logged_layout());
        let found = planned.unwrap_or_else(logged);
        found.ok_or_else(|| Error::invalid(format!("a record names object {id}, which does not exist")))
    }

    fn is_directory(&self, id: EntryId) -> Option<bool> {
        let known = || self.state.node(id).map(|node| node.entry.node_type == NodeType::Directory);
        self.nodes.get(&id).copied().unwrap_or_else(known)
    }

    fn directory(&self, id: EntryId) -> Result<()> {
        match self.is_directory(id) {
            Some(true) => Ok(()),
            _ => Err(Error::invalid(format!("a name stands in node {}, which is not a directory", id.0))),
        }
    }
}
