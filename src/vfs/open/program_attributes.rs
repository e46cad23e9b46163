//! Sets and removes extended attributes of programs, and tags.

use crate::format::log::catalog::NodeEntry;
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::{
    ATTRIBUTES_BYTES_MAX, ATTRIBUTES_MAX, Collection, State, Touched, now_nanoseconds, program_attribute,
    tags_entry,
};
use crate::vfs::open::names::known;

/// The condition of setxattr(2) on an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetHow {
    /// It is made or replaced.
    #[default]
    Any,
    /// It must not be there.
    Create,
    /// It must be there.
    Replace,
}

/// Sets an attribute of a program. Fails with `Exists` or `Absent` as `how` asks, and with `Full` where the node would
/// have too many.
pub fn set_program_attribute(
    collection: &Collection,
    node: EntryId,
    name: &[u8],
    value: &[u8],
    how: SetHow,
) -> Result<()> {
    change(collection, node, name, |state| {
        let is_there = state.program_attribute(node, name).is_some();
        match how {
            SetHow::Create if is_there => return Err(Error::new(ErrorKind::Exists, "the attribute exists")),
            SetHow::Replace if !is_there => return Err(none()),
            _ => {}
        }
        let others = || state.program_attributes(node).filter(move |(other, _)| other != name);
        let bytes: usize = others().map(|(other, bytes)| other.len() + bytes).sum();
        if others().count() >= ATTRIBUTES_MAX || bytes + name.len() + value.len() > ATTRIBUTES_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Full,
                format!(
                    "a file has at most {ATTRIBUTES_MAX} attributes of programs, of {ATTRIBUTES_BYTES_MAX} bytes in all"
                ),
            ));
        }
        Ok(Some(value))
    })
}

/// Removes an attribute of a program. Fails with `Absent` if the node does not have it.
pub fn remove_program_attribute(collection: &Collection, node: EntryId, name: &[u8]) -> Result<()> {
    change(collection, node, name, |state| state.program_attribute(node, name).map(|_| None).ok_or_else(none))
}

/// Gives a node tags in place of those that it has.
pub fn set_tags(collection: &Collection, node: EntryId, tags: &[&str]) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        if !state.tags_of(node).eq(tags.iter().copied()) {
            batch.entry(tags_entry(node, tags));
            batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        }
        Ok(())
    })
}

fn none() -> Error {
    Error::new(ErrorKind::Absent, "there is no such attribute")
}

fn change<'a>(
    collection: &Collection,
    node: EntryId,
    name: &[u8],
    value: impl Fn(&State) -> Result<Option<&'a [u8]>>,
) -> Result<()> {
    collection.check_writable()?;
    if State::is_computed(node) {
        return Err(Error::new(ErrorKind::Denied, "this directory is made from a container; set it on that"));
    }
    collection.record(Touched::default(), |batch, state| {
        let found = known(state, node)?;
        batch.entry(program_attribute(node, name, value(state)?));
        batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        Ok(())
    })
}
