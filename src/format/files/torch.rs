//! PyTorch checkpoints: the zip archives of `torch.save`, since version 1.6. `torch/legacy.rs` has the format before.
//!
//! | entry | contents |
//! |---|---|
//! | `NAME/data.pkl` | a pickle of dictionaries and lists, with the shape, strides and offset of each tensor and the key of its storage |
//! | `NAME/data/KEY` | the bytes of a storage, which several tensors may share |
//! | `NAME/byteorder` | `little` or `big`; little without it |
//!
//! A tensor that `torch.load` would change, and one whose elements are not in the file, is left out with a reason; the
//! others are read. One with other strides than row-major ones is a view, and so is each further tensor of the same bytes. `torch/pickle.rs` reads the pickle and executes nothing. `torch/names.rs` has the functions that it may
//! call, `torch/tensor.rs` their arguments, `torch/tree.rs` the names of the tensors.
//!
//! Source: `torch/serialization.py` and `torch/_utils.py` of <https://github.com/pytorch/pytorch>.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::files::{ReadAt, TensorRange, View, zip};
use crate::model::{Dtype, Error, Result, Shape, quoted_name};

mod legacy;
mod names;
mod pickle;
mod tensor;
mod tree;

pub use legacy::LEGACY_MAGIC;
use pickle::Pickle;
use tree::{Found, Walk};

/// Longest pickle in bytes.
pub const PICKLE_BYTES_MAX: u64 = 32 << 20;

/// Ranges that all views of a checkpoint may lie in together, beside four for each tensor. It bounds the work of a
/// reader that looks at all of them.
const VIEWED_MIN: usize = 1 << 16;

/// The tensors of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    /// Tensors that share no byte, in the order of the pickle. A name is the keys that lead to the tensor, joined
    /// by slashes; places of lists count from 0.
    pub tensors: Vec<TensorRange>,
    /// Tensors that have bytes of an earlier one, and those with other strides than row-major ones, in the same order.
    pub views: Vec<TensorView>,
    /// The beginnings of the names of other tensors, each with the reason.
    pub others: Vec<(String, String)>,
}

/// A tensor whose elements may lie apart, or belong to others too.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorView {
    /// Its name, as that of a range.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// The place of its elements.
    pub view: View,
}

/// Reads the tensors of a checkpoint of `file_len` bytes, which begins with [`zip::MAGIC`] or [`LEGACY_MAGIC`].
///
/// # Errors
/// `Unsupported` for what only Python could load: a pickle without tensors outside objects, tensors of which none is a
/// range of the file, compressed pickles, scripted models; `Invalid` for damaged archives and pickles.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Checkpoint> {
    let mut magic = [0; LEGACY_MAGIC.len()];
    if file_len >= magic.len() as u64 {
        read(&mut magic, 0)?;
        if magic == LEGACY_MAGIC {
            return legacy::parse(read, file_len, budget);
        }
    }
    let entries = zip::entries(read, file_len, budget)?;
    let mut pickles = entries.iter().filter(|entry| entry.name.ends_with("/data.pkl"));
    let (Some(pickle), None) = (pickles.next(), pickles.next()) else {
        return Err(Error::unsupported(
            "a zip archive that torch.save did not write: it does not have exactly one data.pkl",
        ));
    };
    let top = pickle.name.strip_suffix("data.pkl").unwrap_or_default();
    let by_name: HashMap<&str, &zip::Entry> =
        entries.iter().filter_map(|entry| Some((entry.name.strip_prefix(top)?, entry))).collect();
    if by_name.contains_key("constants.pkl") {
        return Err(Error::unsupported(
            "a scripted model (torch.jit.save); save its state_dict with torch.save",
        ));
    }
    if let Some(order) = by_name.get("byteorder")
        && contents(read, order, 6, budget)? != b"little"
    {
        return Err(Error::unsupported("big-endian storages; save it again on a little-endian machine"));
    }
    let bytes = contents(read, pickle, PICKLE_BYTES_MAX, budget)?;
    let pickle = Pickle::read(&bytes, budget).map_err(|error| error.at("data.pkl"))?;
    let storages = pickle.storages.iter().map(|storage| {
        let name = format!("data/{}", pickle.text(storage.key));
        by_name.get(name.as_str()).copied()
    });
    let storages: Vec<Option<&zip::Entry>> = storages.collect();
    shown(&pickle, &storages, budget)
}

/// The checkpoint that a pickle describes, with the places of its storages.
fn shown(pickle: &Pickle<'_>, storages: &[Option<&zip::Entry>], budget: &mut Budget) -> Result<Checkpoint> {
    let mut walk = Walk::new(pickle, storages, budget)?;
    walk.visit(pickle.top)?;
    let (found, others) = walk.end();
    let checkpoint = distinct(found, others);
    if !checkpoint.tensors.is_empty() || !checkpoint.views.is_empty() {
        return Ok(checkpoint);
    }
    if let Some((name, why)) = checkpoint.others.first() {
        let more = match checkpoint.others.len() {
            1 => String::new(),
            count => format!("; and {} more", count - 1),
        };
        return Err(Error::unsupported(format!(
            "none of its tensors can be shown; the first, {name:?}: {why}{more}"
        )));
    }
    match pickle.names.first() {
        Some((module, name)) => {
            let (module, name) = (quoted_name(module), quoted_name(name));
            Err(Error::unsupported(format!(
                "it has no tensors outside of objects such as {module}.{name}, which only Python can load"
            )))
        }
        None => Ok(checkpoint),
    }
}

/// The bytes of a stored entry.
fn contents(read: &mut ReadAt<'_>, entry: &zip::Entry, most: u64, budget: &mut Budget) -> Result<Vec<u8>> {
    let place = |error: Error| error.at(format_args!("{:?}", quoted_name(&entry.name)));
    let len = entry.data.end - entry.data.start;
    if !entry.is_stored {
        return Err(place(Error::unsupported("is compressed")));
    }
    if len > most {
        return Err(place(Error::unsupported(format!("has {len} bytes; at most {most} are read"))));
    }
    let mut bytes = vec![0; len as usize];
    read(&mut bytes, entry.data.start)?;
    budget.add_read(len);
    Ok(bytes)
}

/// Separates the tensors that are ranges of their own from those that share bytes with an earlier one, or whose
/// elements do not follow each other.
fn distinct(found: Vec<Found>, others: Vec<(String, String)>) -> Checkpoint {
    let mut checkpoint = Checkpoint { others, ..Checkpoint::default() };
    let mut views = Vec::new();
    // By the first byte: the end.
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    for Found { name, dtype, shape, range, view } in found {
        let is_empty = range.is_empty();
        let before = taken.range(..range.end).next_back().filter(|_| !is_empty);
        let is_taken = before.is_some_and(|(_, end)| *end > range.start);
        if view.is_none() && !is_taken {
            if !is_empty {
                taken.insert(range.start, range.end);
            }
            let Range { start: begin, end } = range;
            checkpoint.tensors.push(TensorRange { name, dtype, shape, begin, end });
        } else {
            let view = view.unwrap_or_else(|| View::contiguous(range.start, &shape));
            views.push((TensorView { name, dtype, shape, view }, range));
        }
    }
    let taken: Vec<(u64, u64)> = taken.into_iter().collect();
    let mut left = VIEWED_MIN + 4 * (taken.len() + views.len());
    for (view, range) in views {
        let first = taken.partition_point(|(_, end)| *end <= range.start);
        let last = taken.partition_point(|(begin, _)| *begin < range.end);
        match left.checked_sub(last.saturating_sub(first)) {
            Some(rest) => {
                left = rest;
                checkpoint.views.push(view);
            }
            None => {
                let why = "it has bytes of too many others; save a clone of it".to_owned();
                checkpoint.others.push((quoted_name(&view.name).to_owned(), why));
            }
        }
    }
    checkpoint
}
