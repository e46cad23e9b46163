//! Checkpoints in the format of `torch.save` before version 1.6, which it still writes where a program asks for it.
//!
//! | part | contents |
//! |---|---|
//! | pickle | the number that marks the format |
//! | pickle | the version of the format, 1001 |
//! | pickle | a dictionary with the key `little_endian` |
//! | pickle | the object, as in `data.pkl` of an archive |
//! | pickle | the keys of the storages, in their order in the file |
//! | storages | of each the number of its elements, i64, and their bytes |
//!
//! Source: `_legacy_save` and `_legacy_load` of `torch/serialization.py`.

use std::collections::HashMap;

use crate::format::budget::Budget;
use crate::format::files::torch::names::{Element, bytes_of_unknown};
use crate::format::files::torch::pickle::{Pickle, Value};
use crate::format::files::torch::{Checkpoint, PICKLE_BYTES_MAX, shown};
use crate::format::files::{ReadAt, zip};
use crate::model::{Error, Result};

/// The first pickle of a file.
const MARK: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
/// The beginning of that pickle, which no other file has.
pub const LEGACY_MAGIC: [u8; 8] = *b"\x80\x02\x8a\x0al\xfc\x9cF";
/// The version of the format.
const VERSION: i64 = 1001;
/// Bytes that are read first. Longer pickles take more reads.
const FIRST_BYTES: u64 = 1 << 16;

/// The pickles of a file.
struct Pickles<'a> {
    object: Pickle<'a>,
    keys: Pickle<'a>,
    /// The bytes of all pickles.
    len: u64,
}

pub(super) fn parse(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Checkpoint> {
    let most = file_len.min(PICKLE_BYTES_MAX);
    let mut bytes = Vec::new();
    let mut len = FIRST_BYTES.min(most);
    loop {
        let known = bytes.len();
        bytes.resize(len as usize, 0);
        read(bytes.get_mut(known..).unwrap_or_default(), known as u64)?;
        budget.add_read(len - known as u64);
        match Pickles::read(&bytes, budget) {
            // A pickle may be cut off.
            Err(_) if len < most => len = (2 * len).min(most),
            pickles => return pickles?.checkpoint(read, file_len, budget),
        }
    }
}

/// The next pickle, with its bytes.
fn next<'a>(bytes: &mut &'a [u8], budget: &mut Budget) -> Result<(Pickle<'a>, &'a [u8])> {
    let (pickle, len) = Pickle::read_first(bytes, budget)?;
    let (own, rest) = bytes.split_at(len);
    *bytes = rest;
    Ok((pickle, own))
}

impl<'a> Pickles<'a> {
    fn read(bytes: &'a [u8], budget: &mut Budget) -> Result<Pickles<'a>> {
        let mut rest =
            bytes.strip_prefix(MARK).ok_or_else(|| Error::unsupported("not written by torch.save"))?;
        let (version, _) = next(&mut rest, budget)?;
        if version.top != Value::Int(VERSION) {
            return Err(Error::unsupported("another version of the format than 1001"));
        }
        let (_, system) = next(&mut rest, budget)?;
        if !is_little_endian(system) {
            return Err(Error::unsupported("big-endian storages; save it again on a little-endian machine"));
        }
        let (object, _) = next(&mut rest, budget)?;
        let (keys, _) = next(&mut rest, budget)?;
        Ok(Pickles { object, keys, len: (bytes.len() - rest.len()) as u64 })
    }

    fn checkpoint(&self, read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Checkpoint> {
        let Pickles { object, keys, len } = self;
        let Value::List(list) = keys.top else {
            return Err(Error::invalid("the keys of its storages are not a list"));
        };
        let numbers = object.storages.iter().map(|storage| object.text(storage.key)).zip(0..);
        let numbers: HashMap<&str, usize> = numbers.collect();
        let mut places: Vec<Option<zip::Entry>> = object.storages.iter().map(|_| None).collect();
        let mut at = *len;
        for key in keys.items(list) {
            budget.take(1)?;
            let Value::Text(key) = *key else {
                return Err(Error::invalid("the key of a storage is not text"));
            };
            let key = keys.text(key);
            let number = numbers.get(key).copied();
            let storage = number.and_then(|number| object.storages.get(number));
            let (Some(storage), Some(place)) = (storage, number.and_then(|number| places.get_mut(number)))
            else {
                return Err(Error::unsupported("a storage of which no tensor says how long it is"));
            };
            let begin = at.saturating_add(8);
            let cut_off = || Error::invalid("it is cut off within a storage");
            if begin > file_len {
                return Err(cut_off());
            }
            let mut count = [0; 8];
            read(&mut count, at)?;
            budget.add_read(8);
            let count = u64::from_le_bytes(count);
            let bytes = match storage.element {
                Element::Known(dtype) if dtype.bytes_of(count) != Some(storage.bytes) => {
                    return Err(Error::invalid(
                        "a storage with another number of elements than the pickle says",
                    ));
                }
                Element::Known(_) => storage.bytes,
                // Its tensors are not shown, those behind it are.
                Element::Unknown(name) => {
                    let bytes =
                        bytes_of_unknown(object.name(name).1).and_then(|bytes| bytes.checked_mul(count));
                    bytes.ok_or_else(|| {
                        Error::unsupported("a storage of an element type that tierfs does not have")
                    })?
                }
            };
            let end = begin.saturating_add(bytes);
            if end > file_len {
                return Err(cut_off());
            }
            *place = Some(zip::Entry { name: key.to_owned(), data: begin..end, is_stored: true });
            at = end;
        }
        let places: Vec<Option<&zip::Entry>> = places.iter().map(Option::as_ref).collect();
        shown(object, &places, budget)
    }
}

/// Whether the pickle of a dictionary says that the machine is little-endian. The reader of checkpoints does not keep booleans, so
/// this looks at the bytes.
fn is_little_endian(pickle: &[u8]) -> bool {
    const KEY: &[u8] = b"little_endian";
    const TRUE: u8 = 0x88;
    let found = pickle.windows(KEY.len()).position(|part| part == KEY);
    let after = found.and_then(|at| pickle.get(at + KEY.len()..)).unwrap_or_default();
    // Perhaps kept for later, by BINPUT.
    matches!(after, [TRUE, ..] | [b'q', _, TRUE, ..])
}
