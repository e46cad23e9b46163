//! The content of a report: totals from control files, tensors from attributes, and samples of their bytes.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use rayon::prelude::*;
use serde_json::Value;

use crate::cli::common::tree::{Row, Tree};
use crate::cli::report::measure::Measured;
use crate::control::Cost;
use crate::model::{Dtype, Error, ErrorKind, Result, Tier};
use crate::store::TENSORS_NAME;

/// Bytes of a piece of a sample: elements of a block of the largest kind.
const PIECE_BYTES: u64 = 64 << 10;
/// Pieces of a tensor, in the middle of equal parts: the first and last rows of embeddings often differ from the
/// others.
const PIECES: u64 = 4;
/// Tensors that are measured together.
const TOGETHER: usize = 64;

/// The content of a report.
pub(super) struct Feed {
    /// The store, or the mount point.
    pub place: String,
    pub store: String,
    pub tiers: Vec<(String, Bytes)>,
    pub files: u64,
    /// Bytes of copies of pinned files.
    pub pinned: u64,
    pub logs: u64,
    pub collections: Vec<Collection>,
    pub problems: Vec<String>,
    /// The last scrub, a line a collection, as `/.ctl/scrub` has it; empty if it may not be read.
    pub scrub: String,
    pub models: Vec<Model>,
    /// Files, directories and collections that this user may not read. Nothing else of the page has them.
    pub unreadable: Vec<String>,
}

/// Bytes of a tier.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Bytes {
    pub logical: u64,
    pub stored: u64,
}

pub(super) struct Collection {
    pub path: String,
    pub files: u64,
    pub shared: u64,
    pub tiers: Vec<(String, Bytes)>,
}

/// A container, the shards of a model, or a file that is a tensor.
pub(super) struct Model {
    /// Of shards with `*` for their numbers.
    pub path: String,
    pub files: usize,
    pub tensors: Vec<Tensor>,
}

#[derive(Default)]
pub(super) struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: String,
    pub tier: String,
    /// Shares of the tiers of a mixed one, or empty.
    pub shares: String,
    pub bits: f64,
    pub bytes: u64,
    pub stored: u64,
    /// The RMS error against the source, in units of the values.
    pub error: f64,
    pub accesses: u64,
    pub score: f64,
    pub why: String,
    /// `None` if it was not sampled.
    pub measured: Option<Measured>,
    /// Why its bytes could not be read.
    pub unread: Option<String>,
}

impl Tensor {
    /// Whether exact elements are stored in fewer bytes.
    pub fn is_packed(&self) -> bool {
        self.tier == "exact" && (1..self.bytes).contains(&self.stored)
    }

    /// The tier whose colour the tensor has: packed ones, which are exact, differ from the others.
    pub fn colour(&self) -> &str {
        if self.is_packed() { "packed" } else { &self.tier }
    }

    /// The RMS error relative to the RMS of the values, if both are known.
    pub fn relative_error(&self) -> Option<f64> {
        if self.error == 0.0 {
            return Some(0.0);
        }
        let rms = self.measured.as_ref().map(Measured::rms).filter(|rms| *rms > 0.0)?;
        Some(self.error / rms)
    }

    /// The cosine to the source, from the relative error: decoded values and differences of the best encoder
    /// are nearly orthogonal.
    pub fn cosine(&self) -> Option<f64> {
        self.relative_error().map(|error| 1.0 / (1.0 + error * error).sqrt())
    }
}

impl Feed {
    /// The first of the paths that the user may not read, and the number of the others.
    pub fn left_out(&self) -> String {
        let more = self.unreadable.len().saturating_sub(1);
        let first = self.unreadable.first().map(String::as_str).unwrap_or_default();
        if more == 0 { first.to_owned() } else { format!("{first}, and {more} more") }
    }

    /// The content for a store or a mount at `place`. `samples` says whether bytes of tensors are read.
    pub fn of(tree: &mut Tree, place: String, samples: bool) -> Result<Feed> {
        let stats: Value = serde_json::from_str(&tree.control(".ctl/stats.json")?)
            .map_err(|error| Error::invalid(format!("stats.json: {error}")))?;
        let unsigned = |key: &str| stats.get(key).and_then(Value::as_u64).unwrap_or(0);
        let (mut collections, mut unreadable) = (Vec::new(), Vec::new());
        for share in stats.get("shares").and_then(Value::as_array).into_iter().flatten() {
            let path = share.get("path").and_then(Value::as_str).unwrap_or_default().to_owned();
            let Some(status) =
                if_allowed(tree.control(&format!("{path}/.ctl/status")), &path, &mut unreadable)?
            else {
                continue;
            };
            let shared = status.lines().find_map(|line| line.strip_prefix("shared bytes "));
            collections.push(Collection {
                files: share.get("files").and_then(Value::as_u64).unwrap_or(0),
                shared: shared.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
                tiers: tiers(share),
                path,
            });
        }
        let mut models = Vec::new();
        for collection in &collections {
            let names: Vec<&str> = collection.path.split('/').collect();
            names.iter().for_each(|name| tree.enter(OsStr::new(name)));
            models_below(tree, &collection.path, samples, &mut models, &mut unreadable)?;
            names.iter().for_each(|_| tree.leave());
        }
        let problems = stats.get("problems").and_then(Value::as_array).into_iter().flatten();
        Ok(Feed {
            place,
            store: stats.get("store").and_then(Value::as_str).unwrap_or_default().to_owned(),
            tiers: tiers(&stats),
            files: unsigned("files"),
            pinned: unsigned("pinned_bytes"),
            logs: unsigned("log_bytes"),
            collections,
            problems: problems.filter_map(Value::as_str).map(str::to_owned).collect(),
            scrub: tree.control(".ctl/scrub").unwrap_or_default(),
            models,
            unreadable,
        })
    }
}

/// The result of a read; `None`, and `path` among those that the user may not read, if the read is forbidden.
fn if_allowed<T>(read: Result<T>, path: &str, unreadable: &mut Vec<String>) -> Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::Forbidden => {
            unreadable.push(path.to_owned());
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// The bytes by tier of an object, most precise first.
fn tiers(value: &Value) -> Vec<(String, Bytes)> {
    let unsigned = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
    let rows = value.get("tiers").and_then(Value::as_object).into_iter().flatten();
    let mut found: Vec<_> = rows
        .map(|(name, tally)| {
            let (logical, stored) = (unsigned(tally, "logical_bytes"), unsigned(tally, "stored_bytes"));
            (name.clone(), Bytes { logical, stored })
        })
        .collect();
    found.sort_by_key(|(name, _)| rank(name));
    found
}

/// The place of a tier among the others, from the most precise one.
pub(super) fn rank(tier: &str) -> usize {
    let names = ["exact", "packed", "mixed"].into_iter().chain(Tier::ENCODED.map(Tier::name));
    names.chain(["absent"]).position(|name| name == tier).unwrap_or(usize::MAX)
}

/// Calls `visit` for each file below the directory of the tree, with its path below `path` and the tree at the
/// file's directory. `rows` are the entries of that first directory. Directories that the user may not list are left
/// out and become `unreadable`. Iterates instead of recursing because a user
/// may have created a very deep tree.
fn visit_files(
    tree: &mut Tree,
    path: &str,
    rows: Vec<Row>,
    unreadable: &mut Vec<String>,
    mut visit: impl FnMut(&mut Tree, String, &OsStr, &mut Vec<String>) -> Result<()>,
) -> Result<()> {
    let mut open = vec![(path.to_owned(), rows.into_iter())];
    while let Some((path, rows)) = open.last_mut() {
        let Some(row) = rows.next() else {
            open.pop();
            if !open.is_empty() {
                tree.leave();
            }
            continue;
        };
        let name = row.name.to_string_lossy();
        let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
        if row.is_directory {
            tree.enter(&row.name);
            let rows = if_allowed(tree.rows(), &path, unreadable)?.unwrap_or_default();
            open.push((path, rows.into_iter()));
        } else {
            visit(tree, path, &row.name, unreadable)?;
        }
    }
    Ok(())
}

/// Adds the files with tensors in the directory of the tree and below.
fn models_below(
    tree: &mut Tree,
    path: &str,
    samples: bool,
    models: &mut Vec<Model>,
    unreadable: &mut Vec<String>,
) -> Result<()> {
    let rows = if_allowed(tree.rows(), path, unreadable)?.unwrap_or_default();
    visit_files(tree, path, rows, unreadable, |tree, path, name, unreadable| {
        tree.enter(OsStr::new(TENSORS_NAME));
        tree.enter(name);
        match tree.rows() {
            Ok(rows) => {
                let mut closed = Vec::new();
                let mut tensors = tensors_below(tree, rows, &mut closed)?;
                // Tensors have the mode of their container.
                if !closed.is_empty() {
                    unreadable.push(path.clone());
                }
                if samples {
                    sample(tree, &mut tensors);
                }
                if !tensors.is_empty() {
                    let path = path_of_shards(&path).unwrap_or(path);
                    // Names are sorted, so shards follow each other.
                    match models.last_mut().filter(|model| model.path == path) {
                        Some(model) => {
                            model.files += 1;
                            model.tensors.append(&mut tensors);
                        }
                        None => models.push(Model { path, files: 1, tensors }),
                    }
                }
            }
            // A file without tensors.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {}
            Err(error) => {
                if_allowed(Err::<(), _>(error), &path, unreadable)?;
            }
        }
        tree.leave();
        tree.leave();
        Ok(())
    })
}

/// The path of all shards of a model, from that of one: `model-*-of-00005.safetensors`.
fn path_of_shards(path: &str) -> Option<String> {
    let (before, after) = path.rsplit_once("-of-")?;
    let is_digit = |letter: char| letter.is_ascii_digit();
    let beginning = before.trim_end_matches(is_digit);
    let digits = after.len() - after.trim_start_matches(is_digit).len();
    let is_shard = digits > 1 && before.len() - beginning.len() == digits && beginning.ends_with('-');
    is_shard.then(|| format!("{beginning}*-of-{after}"))
}

/// The tensors below the directory of the tree, whose entries are `rows`, with their attributes. Those that the user
/// may not read become `closed`.
fn tensors_below(tree: &mut Tree, rows: Vec<Row>, closed: &mut Vec<String>) -> Result<Vec<Tensor>> {
    let mut tensors = Vec::new();
    visit_files(tree, "", rows, closed, |tree, path, name, closed| {
        tree.enter(name);
        let attributes = if_allowed(tree.attributes(Cost::Small), &path, closed)?;
        tree.leave();
        if let Some(attributes) = attributes {
            tensors.push(tensor(path, &attributes.into_iter().collect()));
        }
        Ok(())
    })?;
    Ok(tensors)
}

fn tensor(name: String, attributes: &BTreeMap<&str, String>) -> Tensor {
    let text = |key: &str| attributes.get(key).cloned().unwrap_or_default();
    let unsigned = |key: &str| text(key).parse().unwrap_or(0);
    let float = |text: &str| text.parse::<f64>().ok().filter(|value| value.is_finite()).unwrap_or(0.0);
    Tensor {
        name,
        dtype: text("dtype"),
        shape: text("shape"),
        tier: text("tier"),
        shares: text("tiers"),
        bits: float(&text("bits")),
        bytes: unsigned("bytes"),
        stored: unsigned("bytes_stored"),
        error: text("error").split_once("rms=").map_or(0.0, |(_, rms)| float(rms)),
        accesses: text("access").split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0),
        score: float(&text("score")),
        why: text("why"),
        measured: None,
        unread: None,
    }
}

/// Reads pieces of the tensors below the directory of the tree, and measures them.
fn sample(tree: &mut Tree, tensors: &mut [Tensor]) {
    for some in tensors.chunks_mut(TOGETHER) {
        let mut pieces: Vec<Result<Vec<Vec<u8>>>> = Vec::with_capacity(some.len());
        for tensor in some.iter() {
            tensor.name.split('/').for_each(|name| tree.enter(OsStr::new(name)));
            pieces.push(pieces_of(tree, tensor));
            tensor.name.split('/').for_each(|_| tree.leave());
        }
        some.par_iter_mut().zip(pieces).for_each(|(tensor, pieces)| {
            match (pieces, Dtype::from_name(&tensor.dtype)) {
                (Ok(pieces), Some(dtype)) => {
                    let mut sum = Measured::default();
                    pieces.iter().for_each(|piece| sum.add(Measured::of(dtype, piece)));
                    tensor.measured = (sum.bytes > 0).then_some(sum);
                }
                (Ok(_), None) => {}
                (Err(error), _) => tensor.unread = Some(error.to_string()),
            }
        });
    }
}

/// Evenly spaced pieces of the tensor at the place of the tree; all of it if it is short.
fn pieces_of(tree: &Tree, tensor: &Tensor) -> Result<Vec<Vec<u8>>> {
    let starts: Vec<u64> = if tensor.bytes <= PIECES * PIECE_BYTES {
        (0..tensor.bytes.div_ceil(PIECE_BYTES)).map(|piece| piece * PIECE_BYTES).collect()
    } else {
        // Multiples of the length of a piece cut neither elements nor groups.
        let places = tensor.bytes / PIECE_BYTES;
        (0..PIECES).map(|piece| places * (2 * piece + 1) / (2 * PIECES) * PIECE_BYTES).collect()
    };
    let mut pieces = Vec::with_capacity(starts.len());
    for start in starts {
        let len = (tensor.bytes - start).min(PIECE_BYTES);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = tree.read(start, &mut bytes)?;
        bytes.truncate(read);
        pieces.push(bytes);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::path_of_shards;

    #[test]
    fn shards_of_a_model_have_one_path() {
        let path = path_of_shards("a/m/model-00002-of-00030.safetensors");
        assert_eq!(path.as_deref(), Some("a/m/model-*-of-00030.safetensors"));
        for other in ["a/m/model.safetensors", "a/m/2-of-3.npy", "a/out-of-date/x.npy", "a/x-12-of-00030.npy"]
        {
            assert_eq!(path_of_shards(other), None, "{other}");
        }
    }
}
