//! The result of an import.

use serde_json::{Value, json};

use crate::ingest::{Report, Target, room};
use crate::model::EntryId;
use crate::store::Collection;

/// The result lists at most this many files; the counts are of all.
const LISTED_MAX: usize = 1000;

/// What an import does with a file, or in a dry run would do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Makes it.
    Import,
    /// Replaces the file of its name.
    Replace,
    /// Gives another name to bytes that the collection has.
    Link,
    /// Removes it, because the source no longer has it.
    Remove,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 4] = [Action::Import, Action::Replace, Action::Link, Action::Remove];

    /// Its word in JSON, and after `would`.
    pub fn name(self) -> &'static str {
        match self {
            Action::Import => "import",
            Action::Replace => "replace",
            Action::Link => "link",
            Action::Remove => "remove",
        }
    }
}

/// A file that an import has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// What happened to it.
    pub action: Action,
    /// Its path in the collection.
    pub path: String,
    /// Its bytes.
    pub bytes: u64,
}

/// The result of an import. In a dry run, what it would be, without what only the import itself finds:
/// tensors, stored bytes, and errors of files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Files that were imported.
    pub files: u64,
    /// Tensors that got names.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Bytes of the imported sources.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// Files that the collection had already.
    pub unchanged: u64,
    /// Names that were removed.
    pub removed: u64,
    /// What was done, in order; the first thousand.
    pub listed: Vec<Listed>,
    /// Sources that could not be imported, and why.
    pub failed: Vec<(String, String)>,
    /// Sources that were left out, and why.
    pub skipped: Vec<(String, String)>,
    /// Paths in the collection, and what is unusual about these files.
    pub notes: Vec<(String, String)>,
    /// Nodes of the collection that changed or were removed.
    pub changed: Vec<EntryId>,
}

impl Sum {
    pub(super) fn add(&mut self, report: &Report) {
        self.files += 1;
        self.tensors += report.tensors;
        self.children += report.children;
        self.bytes += report.bytes;
        self.stored += report.stored;
    }

    pub(super) fn list(&mut self, listed: Listed) {
        if self.listed.len() < LISTED_MAX {
            self.listed.push(listed);
        }
    }

    /// Notes the nodes that an import to a target changes: the directories above it, and the replaced
    /// file.
    pub(super) fn note_changed(&mut self, collection: &Collection, target: &Target) {
        let state = collection.state();
        let (directories, replaced) = room::found(&state, target);
        self.changed.push(crate::store::ROOT);
        self.changed.extend(directories);
        self.changed.extend(replaced);
        let file = replaced.and_then(|node| state.node(node)).and_then(|node| node.file());
        self.changed.extend(file.into_iter().flat_map(|file| state.parts(file)).map(|part| part.entry.id));
    }

    /// The summary that `tierfs import --json` prints.
    pub fn to_json(&self, collection: &str) -> Value {
        let listed = self.listed.iter().map(
            |Listed { action, path, bytes }| json!({ "action": action.name(), "path": path, "bytes": bytes }),
        );
        json!({
            "collection": collection,
            "files": self.files,
            "tensors": self.tensors,
            "children": self.children,
            "bytes": self.bytes,
            "bytes_stored": self.stored,
            "unchanged": self.unchanged,
            "removed": self.removed,
            "listed": listed.collect::<Vec<_>>(),
            "failed": pairs(&self.failed, "error"),
            "skipped": pairs(&self.skipped, "reason"),
            "notes": pairs(&self.notes, "note"),
        })
    }

    /// Parses the output of [`to_json`](Self::to_json), which has no changed nodes.
    pub fn from_json(text: &str) -> Option<Sum> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |key: &str| value.get(key)?.as_u64();
        let list = |key: &str| value.get(key)?.as_array();
        let mut listed = Vec::new();
        for entry in list("listed")? {
            let word = entry.get("action")?.as_str()?;
            listed.push(Listed {
                action: Action::ALL.into_iter().find(|action| action.name() == word)?,
                path: entry.get("path")?.as_str()?.to_owned(),
                bytes: entry.get("bytes")?.as_u64()?,
            });
        }
        Some(Sum {
            files: number("files")?,
            tensors: number("tensors")?,
            children: number("children")?,
            bytes: number("bytes")?,
            stored: number("bytes_stored")?,
            unchanged: number("unchanged")?,
            removed: number("removed")?,
            listed,
            failed: of_pairs(list("failed")?, "error")?,
            skipped: of_pairs(list("skipped")?, "reason")?,
            notes: of_pairs(list("notes")?, "note")?,
            changed: Vec::new(),
        })
    }
}

fn pairs(pairs: &[(String, String)], key: &str) -> Vec<Value> {
    pairs.iter().map(|(path, text)| json!({ "path": path, key: text })).collect()
}

fn of_pairs(values: &[Value], key: &str) -> Option<Vec<(String, String)>> {
    let text = |value: &Value, key: &str| value.get(key)?.as_str().map(str::to_owned);
    values.iter().map(|value| Some((text(value, "path")?, text(value, key)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::{Action, Listed, Sum};

    #[test]
    fn a_sum_is_read_as_it_is_written() {
        let pair = |text: &str| vec![(format!("/{text}"), text.to_owned())];
        let listed = |action: Action| Listed { action, path: action.name().to_owned(), bytes: 7 };
        let sum = Sum {
            files: 1,
            tensors: 2,
            children: 3,
            bytes: 4,
            stored: 5,
            unchanged: 6,
            removed: 7,
            listed: Action::ALL.map(listed).to_vec(),
            failed: pair("error"),
            skipped: pair("reason"),
            notes: pair("note"),
            changed: Vec::new(),
        };
        assert_eq!(Sum::from_json(&sum.to_json("t/c").to_string()), Some(sum));
        assert_eq!(Sum::from_json("{}"), None);
    }
}
