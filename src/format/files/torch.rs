//! PyTorch checkpoints: the zip archives of `torch.save`, since version 1.6.
//!
//! | entry | contents |
//! |---|---|
//! | `NAME/data.pkl` | a pickle of dictionaries and lists, with the shape, strides and offset of each tensor and the key of its storage |
//! | `NAME/data/KEY` | the bytes of a storage, which several tensors may share |
//! | `NAME/byteorder` | `little` or `big`; little without it |
//!
//! A tensor that `torch.load` would change, and one that is no range of the file, is left out with a reason; the others
//! are read. `torch/pickle.rs` reads the pickle and executes nothing. `torch/names.rs` has the functions that it may
//! call, `torch/tensor.rs` their arguments, `torch/tree.rs` the names of the tensors.
//!
//! Source: `torch/serialization.py` and `torch/_utils.py` of <https://github.com/pytorch/pytorch>.

use std::collections::{BTreeMap, HashMap};

use crate::format::budget::Budget;
use crate::format::files::{ReadAt, TensorRange, zip};
use crate::model::{Error, Result, quoted_name};

mod names;
mod pickle;
mod tensor;
mod tree;

use pickle::Pickle;
use tree::Walk;

/// Longest pickle in bytes.
pub const PICKLE_BYTES_MAX: u64 = 32 << 20;

/// The tensors of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    /// Tensors that share no byte, in the order of the pickle. A name is the keys that lead to the tensor, joined
    /// by slashes; places of lists count from 0.
    pub tensors: Vec<TensorRange>,
    /// Further names of the bytes of a tensor: that name, and the number of the tensor.
    pub shared: Vec<(String, usize)>,
    /// The beginnings of the names of other tensors, each with the reason.
    pub others: Vec<(String, String)>,
}

/// Reads the tensors of a checkpoint of `file_len` bytes, which begins with [`zip::MAGIC`].
///
/// # Errors
/// `Unsupported` for what only Python could load: a pickle without tensors outside objects, tensors of which none is a
/// range of the file, compressed pickles, scripted models; `Invalid` for damaged archives and pickles.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Checkpoint> {
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
    let mut walk = Walk::new(&pickle, &storages, budget)?;
    walk.visit(pickle.top)?;
    let (found, others) = walk.end();
    let checkpoint = distinct(found, others);
    if !checkpoint.tensors.is_empty() {
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

/// Separates the first tensor of each range from further names of the range, and from tensors that overlap an earlier
/// one in part.
fn distinct(found: Vec<TensorRange>, mut others: Vec<(String, String)>) -> Checkpoint {
    let mut checkpoint = Checkpoint::default();
    // By the first byte: the end, and the number of the tensor.
    let mut taken: BTreeMap<u64, (u64, usize)> = BTreeMap::new();
    for entry in found {
        let is_empty = entry.begin == entry.end;
        let before = taken.range(..entry.end).next_back().filter(|_| !is_empty);
        let before = before.map(|(begin, (end, number))| (*begin, *end, *number));
        match before.filter(|(_, end, _)| *end > entry.begin) {
            Some((begin, end, number)) => {
                if (begin, end) == (entry.begin, entry.end) {
                    checkpoint.shared.push((entry.name, number));
                } else {
                    let first = checkpoint.tensors.get(number).map(|first| quoted_name(&first.name));
                    let first = first.unwrap_or_default();
                    let why = format!("it overlaps {first:?} in part; save clones of them");
                    others.push((quoted_name(&entry.name).to_owned(), why));
                }
            }
            None => {
                if !is_empty {
                    taken.insert(entry.begin, (entry.end, checkpoint.tensors.len()));
                }
                checkpoint.tensors.push(entry);
            }
        }
    }
    checkpoint.others = others;
    checkpoint
}
