//! NumPy archives: the zip archives of `numpy.savez`, with an `.npy` file for each array.
//!
//! Source: `numpy.lib.npyio`. Each entry is stored, not compressed, so that the elements of an array are a range of the
//! archive.

use crate::format::budget::Budget;
use crate::format::files::{ReadAt, TensorRange, npy, zip};
use crate::model::{CONTAINER_NAMES_MAX, Error, Result, check_tensor_name, quoted_name};

/// The arrays of an archive, in the order of their bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Archive {
    /// The arrays that are tensors, each named as its file without `.npy`.
    pub arrays: Vec<TensorRange>,
    /// The beginnings of the names of the other entries, each with the reason.
    pub others: Vec<(String, String)>,
}

/// Reads the arrays of an archive of `file_len` bytes.
///
/// # Errors
/// `Unsupported` for archives without an array that is a tensor, and for too many arrays; `Invalid` for damaged archives.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Archive> {
    let entries = zip::entries(read, file_len, budget)?;
    if entries.len() > CONTAINER_NAMES_MAX {
        return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} arrays")));
    }
    let mut archive = Archive::default();
    for entry in &entries {
        match array(read, entry, budget)? {
            Ok(array) => archive.arrays.push(array),
            Err(why) => archive.others.push((quoted_name(&entry.name).to_owned(), why)),
        }
    }
    match archive.others.first() {
        Some((name, why)) if archive.arrays.is_empty() => Err(Error::unsupported(format!(
            "none of its arrays can be shown as a tensor; the first, {name:?}: {why}"
        ))),
        _ => Ok(archive),
    }
}

/// The array of an entry, or why it is not a tensor.
fn array(
    read: &mut ReadAt<'_>,
    entry: &zip::Entry,
    budget: &mut Budget,
) -> Result<Result<TensorRange, String>> {
    let Some(name) = entry.name.strip_suffix(".npy") else {
        return Ok(Err("its name does not end in .npy, as those that numpy.savez writes do".to_owned()));
    };
    if !entry.is_stored {
        return Ok(Err("it is compressed; write it with numpy.savez, not savez_compressed".to_owned()));
    }
    if let Err(error) = check_tensor_name(name) {
        return Ok(Err(error.to_string()));
    }
    let len = entry.data.end - entry.data.start;
    let mut prefix = vec![0; len.min(npy::PREFIX_BYTES_MAX) as usize];
    read(&mut prefix, entry.data.start)?;
    budget.take_entry(name.len())?;
    Ok(match npy::parse(&prefix, len, budget) {
        Ok(header) if header.is_plain() => Ok(TensorRange {
            name: name.to_owned(),
            dtype: header.dtype,
            shape: header.shape,
            begin: entry.data.start + header.data_start,
            end: entry.data.end,
        }),
        Ok(_) => Err("it is in Fortran order or big-endian".to_owned()),
        Err(error) => Err(error.to_string()),
    })
}
