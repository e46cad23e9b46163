//! The tags that an import gives its files.

use crate::format::log::catalog::NodeEntry;
use crate::ingest::find::target::Target;
use crate::ingest::publish::compare::node_at;
use crate::model::{Error, Result, TAGS_MAX};
use crate::store::{Collection, Touched, now_nanoseconds, tags_entry};

/// Files that get tags in one batch.
const FILES_AT_ONCE: usize = 1000;

/// Adds tags to the files of an import that are there, also to those that were unchanged. A file keeps the tags that
/// it has.
pub(in crate::ingest) fn add_tags<'a>(
    collection: &Collection,
    targets: impl Iterator<Item = &'a Target>,
    tags: &[String],
) -> Result<()> {
    let targets: Vec<&Target> = targets.filter(|_| !tags.is_empty()).collect();
    for some in targets.chunks(FILES_AT_ONCE) {
        collection.record(Touched::default(), |batch, state| {
            for target in some {
                let Some(node) = node_at(state, target) else { continue };
                let mut own: Vec<&str> = state.tags_of(node).collect();
                let before = own.len();
                own.extend(tags.iter().map(String::as_str));
                let mut all: Vec<&str> = Vec::with_capacity(own.len());
                own.into_iter().for_each(|tag| {
                    if !all.contains(&tag) {
                        all.push(tag);
                    }
                });
                let Some(found) = state.node(node).filter(|_| all.len() > before) else { continue };
                if all.len() > TAGS_MAX {
                    let text = format!("{} would have {} tags, {TAGS_MAX} at most", target.path(), all.len());
                    return Err(Error::invalid(text));
                }
                batch.entry(tags_entry(node, &all));
                batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
            }
            Ok(())
        })?;
    }
    Ok(())
}
