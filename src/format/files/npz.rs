//! NumPy archives: the zip archives of `numpy.savez`, with an `.npy` file for each array.
//!
//! Source: `numpy.lib.npyio`. Each entry is stored, not compressed, so that the elements of an array are a range of the
//! archive.

use crate::format::files::{ReadAt, TensorRange, npy, zip};
use crate::model::{CONTAINER_NAMES_MAX, Error, ErrorKind, Result, check_tensor_name, quoted_name};

/// The arrays of an archive, in the order of their bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Archive {
    /// The arrays that are tensors, each named as its file without `.npy`.
    pub arrays: Vec<TensorRange>,
    /// The names of the other arrays, each with the reason.
    pub others: Vec<(String, String)>,
}

/// Reads the arrays of an archive of `file_len` bytes.
///
/// # Errors
/// `Unsupported` for compressed arrays, entries that are no arrays, and too many of them; `Invalid` for damaged
/// archives and headers.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64) -> Result<Archive> {
    let entries = zip::entries(read, file_len)?;
    if entries.len() > CONTAINER_NAMES_MAX {
        return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} arrays")));
    }
    let mut archive = Archive::default();
    for entry in entries {
        let place = |error: Error| error.at(format_args!("{:?}", quoted_name(&entry.name)));
        let Some(name) = entry.name.strip_suffix(".npy") else {
            return Err(place(Error::unsupported("is no .npy file, which numpy.savez writes only")));
        };
        if !entry.is_stored {
            return Err(place(Error::unsupported(
                "is compressed; write it with numpy.savez, not savez_compressed",
            )));
        }
        check_tensor_name(name)?;
        let len = entry.data.end - entry.data.start;
        let mut prefix = vec![0; len.min(npy::PREFIX_BYTES_MAX) as usize];
        read(&mut prefix, entry.data.start)?;
        match npy::parse(&prefix, len) {
            Ok(header) if header.is_plain() => archive.arrays.push(TensorRange {
                name: name.to_owned(),
                dtype: header.dtype,
                shape: header.shape,
                begin: entry.data.start + header.data_start,
                end: entry.data.end,
            }),
            Ok(_) => {
                archive.others.push((name.to_owned(), "it is in Fortran order or big-endian".to_owned()))
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                archive.others.push((name.to_owned(), error.to_string()));
            }
            Err(error) => return Err(place(error)),
        }
    }
    Ok(archive)
}
