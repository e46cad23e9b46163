//! The result of an import.

use serde_json::{Value, json};

use crate::ingest::bytes::options::Report;
use crate::ingest::bytes::room;
use crate::ingest::find::target::Target;
use crate::ingest::job::request::Request;
use crate::model::{EntryId, Kept, human, human_part};
use crate::store::Collection;

/// The result lists at most this many files; the counts are of all.
const LISTED_MAX: usize = 1000;

/// The action of an import for a file, also in a dry run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    Import,
    /// Replaces the file of its name.
    Replace,
    /// Gives another name to bytes that the collection has already.
    Link,
    /// Stores damaged blocks of it again.
    Mend,
    /// Removes it, because the source no longer has it.
    Remove,
}

impl Action {
    pub const ALL: [Action; 5] =
        [Action::Import, Action::Replace, Action::Link, Action::Mend, Action::Remove];

    /// Its word in JSON, and after `would`.
    pub fn name(self) -> &'static str {
        match self {
            Action::Import => "import",
            Action::Replace => "replace",
            Action::Link => "link",
            Action::Mend => "mend",
            Action::Remove => "remove",
        }
    }
}

/// A file that an import has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    pub action: Action,
    /// Its path in the collection.
    pub path: String,
    pub bytes: u64,
}

/// The result of an import. In a dry run, the expected result, without tensors, stored bytes and errors
/// of files, which only the import finds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Files that were imported.
    pub files: u64,
    /// Tensors that got names.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Tensors that went to the requested tier.
    pub encoded: u64,
    /// Tensors that stayed exact although another tier was requested, by reason.
    pub exact: Kept,
    /// Whether it was cancelled.
    pub is_cancelled: bool,
    /// Bytes of the imported sources.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// Bytes of files that share a data file that the store had before.
    pub shared: u64,
    /// Bytes that were copied although their file stays in place.
    pub copied: u64,
    /// Names that were created for bytes that the collection had already.
    pub linked: u64,
    /// Files that were not reached, because the import was cancelled or the store takes no more writes.
    pub left: u64,
    /// Files that the collection had already.
    pub unchanged: u64,
    /// Files that the collection had already, and whose damaged blocks were stored again.
    pub mended: u64,
    /// Names that were removed.
    pub removed: u64,
    /// The number of the version that the collection is now, if versions are kept.
    pub version: Option<u64>,
    /// The first thousand actions, in order.
    pub listed: Vec<Listed>,
    /// Sources that could not be imported, with reasons.
    pub failed: Vec<(String, String)>,
    /// Sources that were left out, with reasons.
    pub skipped: Vec<(String, String)>,
    /// Paths in the collection, with remarks about these files.
    pub notes: Vec<(String, String)>,
    /// Nodes of the collection that changed or were removed.
    pub changed: Vec<EntryId>,
}

impl Sum {
    pub(in crate::ingest) fn add(&mut self, report: &Report) {
        self.files += 1;
        self.tensors += report.tensors;
        self.children += report.children;
        self.encoded += report.encoded;
        self.exact.add(report.kept);
        self.bytes += report.bytes;
        self.stored += report.stored;
        self.shared += report.shared;
        self.copied += report.copied;
    }

    pub(in crate::ingest) fn list(&mut self, listed: Listed) {
        self.linked += u64::from(listed.action == Action::Link);
        self.mended += u64::from(listed.action == Action::Mend);
        if self.listed.len() < LISTED_MAX {
            self.listed.push(listed);
        }
    }

    /// Notes the nodes that an import to a target changes: the directories above it, and the replaced
    /// file.
    pub(in crate::ingest) fn note_changed(&mut self, collection: &Collection, target: &Target) {
        let state = collection.state();
        let (directories, replaced) = room::found(&state, target);
        self.changed.push(crate::store::ROOT);
        self.changed.extend(directories);
        self.changed.extend(replaced);
        let file = replaced.and_then(|node| state.node(node)).and_then(|node| node.file());
        self.changed.extend(file.into_iter().flat_map(|file| state.parts(file)).map(|part| part.entry.id));
    }

    /// The result in a line: `1 file with 104 tensors, 86.7 of 86.7 MiB stored`.
    pub fn text(&self, request: &Request) -> String {
        let mut parts = vec![self.imported(request)];
        if self.exact.sum() > 0 {
            parts.push(self.exact.text());
        }
        if self.linked > 0 {
            let would = if request.dry_run { "would link" } else { "linked" };
            parts.push(format!("{would} {}", count(self.linked, "name")));
        }
        if self.mended > 0 {
            let would = if request.dry_run { "would mend" } else { "mended" };
            parts.push(format!("{would} {}", count(self.mended, "file")));
        }
        if self.unchanged > 0 {
            parts.push(format!("{} unchanged", count(self.unchanged, "file")));
        }
        if request.delete {
            let would = if request.dry_run { "would remove" } else { "removed" };
            parts.push(format!("{would} {}", count(self.removed, "file")));
        }
        if let Some(version) = self.version {
            parts.push(format!("version {version}"));
        }
        if !self.failed.is_empty() {
            parts.push(format!("{} failed", self.failed.len()));
        }
        if self.left > 0 {
            parts.push(format!("{} not imported", count(self.left, "file")));
        }
        let text = parts.join("; ");
        if self.is_cancelled { format!("cancelled: {text}") } else { text }
    }

    fn imported(&self, request: &Request) -> String {
        let files = count(self.files, "file");
        if request.dry_run {
            return format!("would import {files}, {}", human(self.bytes));
        }
        if self.files == 0 {
            let is_as_it_was = self.unchanged + self.linked + self.mended > 0;
            return if is_as_it_was { "nothing new" } else { "nothing was imported" }.to_owned();
        }
        let mut done = match request.tier.as_deref().filter(|_| self.encoded + self.exact.sum() > 0) {
            Some(tier) => {
                let tier = tier.split(':').next().unwrap_or_default();
                let all = count(self.encoded + self.exact.sum(), "tensor");
                format!("{files}; {} of {all} now {tier}", self.encoded)
            }
            None => format!("{files} with {}", count(self.tensors, "tensor")),
        };
        if let Some(parent) = &request.parent {
            let without = self.tensors.saturating_sub(self.children);
            done.push_str(&format!(", {} with a parent in {parent} and {without} without", self.children));
        }
        done.push_str(&if request.in_place {
            format!(", {} stay in place", human(self.bytes.saturating_sub(self.copied)))
        } else {
            format!(", {} stored", human_part(self.stored, self.bytes))
        });
        if self.shared > 0 {
            done.push_str(&format!(", {} of it shared with files of the store", human(self.shared)));
        }
        done
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
            "encoded": self.encoded,
            "kept_exact": {
                "keep_list": self.exact.by_keep_list,
                "beside_codes": self.exact.beside_codes,
                "too_small": self.exact.too_small,
                "not_float": self.exact.not_float,
                "quantized": self.exact.quantized,
                "not_packed": self.exact.not_packed,
                "not_smaller": self.exact.not_smaller,
                "checksummed": self.exact.checksummed,
                "views": self.exact.views,
            },
            "cancelled": self.is_cancelled,
            "bytes": self.bytes,
            "bytes_stored": self.stored,
            "bytes_shared": self.shared,
            "bytes_copied": self.copied,
            "linked": self.linked,
            "left": self.left,
            "unchanged": self.unchanged,
            "mended": self.mended,
            "removed": self.removed,
            "version": self.version,
            "listed": listed.collect::<Vec<_>>(),
            "failed": pairs(&self.failed, "error"),
            "skipped": pairs(&self.skipped, "reason"),
            "notes": pairs(&self.notes, "note"),
        })
    }

    /// Parses the output of [`to_json`](Self::to_json), which has no changed nodes.
    pub fn from_json(value: &Value) -> Option<Sum> {
        let exact = |key: &str| value.get("kept_exact")?.get(key)?.as_u64();
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
            encoded: number("encoded")?,
            exact: Kept {
                by_keep_list: exact("keep_list")?,
                beside_codes: exact("beside_codes")?,
                too_small: exact("too_small")?,
                not_float: exact("not_float")?,
                quantized: exact("quantized")?,
                not_packed: exact("not_packed")?,
                not_smaller: exact("not_smaller")?,
                checksummed: exact("checksummed")?,
                views: exact("views")?,
            },
            is_cancelled: value.get("cancelled")?.as_bool()?,
            bytes: number("bytes")?,
            stored: number("bytes_stored")?,
            shared: number("bytes_shared")?,
            copied: number("bytes_copied").unwrap_or_default(),
            linked: number("linked")?,
            left: number("left")?,
            unchanged: number("unchanged")?,
            mended: number("mended")?,
            removed: number("removed")?,
            version: number("version"),
            listed,
            failed: of_pairs(list("failed")?, "error")?,
            skipped: of_pairs(list("skipped")?, "reason")?,
            notes: of_pairs(list("notes")?, "note")?,
            changed: Vec::new(),
        })
    }
}

fn count(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
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
    use crate::model::Kept;
    use serde_json::json;

    #[test]
    fn a_sum_is_read_as_it_is_written() {
        let pair = |text: &str| vec![(format!("/{text}"), text.to_owned())];
        let listed = |action: Action| Listed { action, path: action.name().to_owned(), bytes: 7 };
        let sum = Sum {
            encoded: 5,
            exact: Kept {
                by_keep_list: 1,
                beside_codes: 9,
                too_small: 2,
                not_float: 3,
                quantized: 4,
                not_packed: 6,
                not_smaller: 7,
                checksummed: 5,
                views: 8,
            },
            is_cancelled: true,
            files: 1,
            tensors: 2,
            children: 3,
            bytes: 4,
            stored: 5,
            shared: 8,
            copied: 12,
            linked: 10,
            left: 9,
            unchanged: 6,
            mended: 11,
            removed: 7,
            version: Some(13),
            listed: Action::ALL.map(listed).to_vec(),
            failed: pair("error"),
            skipped: pair("reason"),
            notes: pair("note"),
            changed: Vec::new(),
        };
        assert_eq!(Sum::from_json(&sum.to_json("t/c")), Some(sum));
        assert_eq!(Sum::from_json(&json!({})), None);
    }
}
