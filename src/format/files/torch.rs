//! PyTorch checkpoints: the zip archives of `torch.save`, since version 1.6.
//!
//! | entry | contents |
//! |---|---|
//! | `NAME/data.pkl` | a pickle of dictionaries and lists, with the shape, strides and offset of each tensor and the key of its storage |
//! | `NAME/data/KEY` | the bytes of a storage, which several tensors may share |
//! | `NAME/byteorder` | `little` or `big`; little without it |
//!
//! Source: `torch/serialization.py` and `torch/_utils.py` of <https://github.com/pytorch/pytorch>. `torch/pickle.rs`
//! reads the pickle and executes nothing.

use std::collections::{HashMap, HashSet};

use crate::format::files::{ReadAt, TensorRange, zip};
use crate::model::{CONTAINER_NAMES_MAX, Error, Result, check_tensor_name, quoted_name};

mod pickle;

use pickle::{Pickle, Stored, Value};

/// Longest pickle in bytes.
pub const PICKLE_BYTES_MAX: u64 = 32 << 20;

/// Deepest nesting of dictionaries and lists.
const DEPTH_MAX: usize = 60;

/// The name of a tensor outside dictionaries and lists.
const ONLY_NAME: &str = "tensor";

/// The tensors of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Checkpoint {
    /// Tensors that share no byte, in the order of the pickle. A name is the keys that lead to the tensor, joined
    /// by slashes; places of lists count from 0.
    pub tensors: Vec<TensorRange>,
    /// Further names of the bytes of a tensor: that name, and the tensor's.
    pub shared: Vec<(String, String)>,
}

/// Reads the tensors of a checkpoint of `file_len` bytes, which begins with [`zip::MAGIC`].
///
/// # Errors
/// `Unsupported` for what only Python could load: objects of other classes, tensors that are not contiguous or
/// overlap in part, other storages, compressed entries, scripted models; `Invalid` for damaged archives and pickles.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64) -> Result<Checkpoint> {
    let entries = zip::entries(read, file_len)?;
    let mut pickles = entries.iter().filter(|entry| entry.name.ends_with("/data.pkl"));
    let (Some(pickle), None) = (pickles.next(), pickles.next()) else {
        return Err(Error::unsupported(
            "a zip archive that torch.save did not write: it has not one data.pkl",
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
        && contents(read, order, 6)? != b"little"
    {
        return Err(Error::unsupported("big-endian storages; save it again on a little-endian machine"));
    }
    let bytes = contents(read, pickle, PICKLE_BYTES_MAX)?;
    let pickle = Pickle::read(&bytes).map_err(|error| error.at("data.pkl"))?;
    let mut walk =
        Walk { pickle: &pickle, storages: &by_name, names: HashSet::new(), steps: 0, found: Vec::new() };
    walk.visit(pickle.top, &mut Vec::new())?;
    distinct(walk.found)
}

/// The bytes of a stored entry.
fn contents(read: &mut ReadAt<'_>, entry: &zip::Entry, most: u64) -> Result<Vec<u8>> {
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
    Ok(bytes)
}

/// Finds the tensors below the top of a pickle.
struct Walk<'a> {
    pickle: &'a Pickle<'a>,
    storages: &'a HashMap<&'a str, &'a zip::Entry>,
    names: HashSet<String>,
    /// Number of values visited. Lists that contain a list twice can expand to far more values than the
    /// pickle has.
    steps: usize,
    found: Vec<TensorRange>,
}

impl Walk<'_> {
    fn visit(&mut self, value: Value, path: &mut Vec<String>) -> Result<()> {
        self.steps += 1;
        if self.steps > pickle::VALUES_MAX {
            return Err(Error::unsupported(format!("more than {} values", pickle::VALUES_MAX)));
        }
        let keyed: Vec<(Option<String>, Value)> = match value {
            Value::Tensor(number) => return self.tensor(number, path),
            Value::Dict(_) => {
                let pairs = self.pickle.items(value).as_chunks::<2>().0.iter();
                pairs.map(|[key, value]| (self.pickle.key(*key), *value)).collect()
            }
            Value::List(_) | Value::Tuple(_) => {
                let items = self.pickle.items(value).iter().enumerate();
                items.map(|(place, value)| (Some(place.to_string()), *value)).collect()
            }
            _ => return Ok(()),
        };
        if path.len() >= DEPTH_MAX && !keyed.is_empty() {
            return Err(Error::unsupported(format!("dictionaries more than {DEPTH_MAX} deep")));
        }
        for (key, value) in keyed.into_iter().filter(|(_, value)| value.may_hold_tensors()) {
            let key =
                key.ok_or_else(|| Error::unsupported("a dictionary of tensors with keys that are no text"))?;
            path.push(key);
            self.visit(value, path)?;
            path.pop();
        }
        Ok(())
    }

    fn tensor(&mut self, number: usize, path: &[String]) -> Result<()> {
        let name = if path.is_empty() { ONLY_NAME.to_owned() } else { path.join("/") };
        check_tensor_name(&name)?;
        let place = |error: Error| error.at(format_args!("tensor {:?}", quoted_name(&name)));
        if self.found.len() == CONTAINER_NAMES_MAX {
            return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} tensors")));
        }
        if !self.names.insert(name.clone()) {
            return Err(place(Error::unsupported("appears twice")));
        }
        let Some(Stored { key, dtype, offset, shape, is_contiguous }) = self.pickle.tensors.get(number)
        else {
            return Err(Error::invalid("a tensor without a description"));
        };
        if !is_contiguous {
            return Err(place(Error::unsupported("is not contiguous; save it with tensor.contiguous()")));
        }
        let storage = self.storages.get(&*format!("data/{}", self.pickle.text(*key)));
        let storage = storage.ok_or_else(|| place(Error::invalid("its storage is missing")))?;
        if !storage.is_stored {
            return Err(place(Error::unsupported("its storage is compressed")));
        }
        let begin =
            offset.checked_mul(dtype.bytes()).and_then(|offset| storage.data.start.checked_add(offset));
        let end =
            begin.zip(dtype.bytes_of(shape.elements())).and_then(|(begin, bytes)| begin.checked_add(bytes));
        let (Some(begin), Some(end)) = (begin, end.filter(|end| *end <= storage.data.end)) else {
            return Err(place(Error::invalid("goes past the end of its storage")));
        };
        self.found.push(TensorRange { dtype: *dtype, shape: shape.clone(), begin, end, name });
        Ok(())
    }
}

/// Separates the first tensor of each range from further names of the range.
fn distinct(found: Vec<TensorRange>) -> Result<Checkpoint> {
    let mut checkpoint = Checkpoint::default();
    let mut by_range: HashMap<(u64, u64), String> = HashMap::new();
    for entry in found {
        let range = (entry.begin, entry.end);
        match by_range.get(&range).filter(|_| entry.begin < entry.end) {
            Some(first) => checkpoint.shared.push((entry.name, first.clone())),
            None => {
                by_range.insert(range, entry.name.clone());
                checkpoint.tensors.push(entry);
            }
        }
    }
    let mut sorted: Vec<&TensorRange> =
        checkpoint.tensors.iter().filter(|entry| entry.begin < entry.end).collect();
    sorted.sort_by_key(|entry| entry.begin);
    let pairs = sorted.iter().zip(sorted.iter().skip(1));
    if let Some((one, other)) = pairs.into_iter().find(|(one, other)| other.begin < one.end) {
        return Err(Error::unsupported(format!(
            "tensors {:?} and {:?} overlap in part; save clones of them",
            quoted_name(&one.name),
            quoted_name(&other.name)
        )));
    }
    Ok(checkpoint)
}
