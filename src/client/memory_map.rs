//! Mappings of files: the calls of mmap.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) use memmap2::Mmap;
use memmap2::MmapOptions;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::attributes::Place;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::Layout;

/// A read-only mapping of a tensor. Only the pages that are used are read and decoded.
///
/// The mapping stays that of the file which was opened, also when another file takes its name.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    layout: Layout,
    /// None for a tensor without elements: no range of 0 bytes can be mapped.
    map: Option<Mmap>,
}

impl Mapping {
    /// Maps the elements of an open file.
    ///
    /// # Safety
    /// As of [`Tensor::map`](crate::Tensor::map).
    pub(crate) unsafe fn new(path: &Path, file: &File, layout: Layout) -> Result<Mapping> {
        let map = match layout.nbytes {
            0 => None,
            // SAFETY: the caller answers for the bytes, see above.
            len => Some(unsafe { map(path, file, layout.data_start, len) }?),
        };
        Ok(Mapping { path: path.to_owned(), layout, map })
    }

    /// The element type.
    pub fn dtype(&self) -> Dtype {
        self.layout.dtype
    }

    /// The number of elements along each dimension.
    pub fn shape(&self) -> &[usize] {
        self.layout.shape.dimensions()
    }

    /// The bytes of all elements: little-endian, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.map.as_deref().unwrap_or_default()
    }

    /// All elements.
    ///
    /// # Errors
    /// [`ErrorKind::WrongType`] if they have another type; [`ErrorKind::Unaligned`] if they do not begin at a multiple
    /// of the alignment of `T`, as behind an odd header of NumPy. A tensor of a mount begins at a page.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.typed(self.bytes())
    }

    /// The elements of an index of the first dimension.
    ///
    /// # Errors
    /// Those of [`Mapping::as_slice`]; [`ErrorKind::Invalid`] for an index that the tensor lacks, and for rows that are
    /// not whole blocks.
    pub fn row<T: Element>(&self, index: usize) -> Result<&[T]> {
        let row = self.shape().split_first().filter(|(rows, _)| index < **rows).and_then(|(_, row)| {
            let bytes = self.dtype().bytes_of(row.iter().product())?;
            let start = index.checked_mul(bytes)?;
            self.bytes().get(start..start.checked_add(bytes)?)
        });
        self.typed(row.ok_or_else(|| {
            let text = format!("there is no row {index} of whole blocks in the shape {:?}", self.shape());
            Error::new(ErrorKind::Invalid, &self.path, text)
        })?)
    }

    /// All elements: borrowed, or copied if the mapping is not aligned for `T`.
    ///
    /// # Errors
    /// [`ErrorKind::WrongType`] if they have another type; [`ErrorKind::OutOfMemory`].
    pub fn elements<T: Element>(&self) -> Result<Cow<'_, [T]>> {
        match self.as_slice::<T>() {
            Ok(elements) => Ok(Cow::Borrowed(elements)),
            Err(error) if error.kind() == ErrorKind::Unaligned => {
                let mut copy = zeros::<T>(&self.path, self.layout.nbytes / size_of::<T>())?;
                // The lengths agree: the elements have the type T.
                copy.as_mut_bytes().copy_from_slice(self.bytes());
                Ok(Cow::Owned(copy))
            }
            Err(error) => Err(error),
        }
    }

    fn typed<'a, T: Element>(&self, bytes: &'a [u8]) -> Result<&'a [T]> {
        check_type::<T>(&self.path, self.dtype())?;
        // No byte has an address that matters then.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        <[T]>::ref_from_bytes(bytes).map_err(|_| {
            let text = format!(
                "its elements begin at byte {}, which is not aligned for them",
                self.layout.data_start
            );
            Error::new(ErrorKind::Unaligned, &self.path, text)
        })
    }
}

/// Maps a range of an open file, to read it.
///
/// # Safety
/// As of [`Tensor::map`](crate::Tensor::map).
pub(crate) unsafe fn map(path: &Path, file: &File, start: u64, len: usize) -> Result<Mmap> {
    let mut options = MmapOptions::new();
    options.offset(start).len(len);
    // SAFETY: nothing is read here; the caller answers for the bytes as long as the mapping exists.
    let shared = unsafe { options.map(file) };
    let map = match shared {
        // A file that the kernel does not cache has private mappings only, before Linux 6.6 or without a daemon that
        // allows others.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {
            // SAFETY: as above.
            unsafe { options.map_copy_read_only(file) }
        }
        other => other,
    };
    map.map_err(|error| Place { path, file: Some(file) }.failed(error))
}

/// Fails unless elements of this type are values of `T`.
pub(crate) fn check_type<T: Element>(path: &Path, dtype: Dtype) -> Result<()> {
    if T::is_type_of(dtype) {
        return Ok(());
    }
    let text = format!("its elements are {dtype}, not {}", std::any::type_name::<T>());
    Err(Error::new(ErrorKind::WrongType, path, text))
}

/// A vector of so many zeros. Pages of the kernel are zero already, so none is touched before it is used.
pub(crate) fn zeros<T: Element>(path: &Path, count: usize) -> Result<Vec<T>> {
    T::new_vec_zeroed(count).map_err(|_| {
        let text = format!("no memory for {count} elements of {} bytes", size_of::<T>());
        Error::new(ErrorKind::OutOfMemory, path, text)
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::zeros;
    use crate::error::ErrorKind;

    /// Bytes of this process that are in memory.
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() << 10
    }

    #[test]
    fn zeros_that_are_not_used_take_no_memory() {
        let before = resident();
        let values = zeros::<f64>(Path::new("w"), 32 << 20).unwrap();
        assert!(resident() < before + (128 << 20));
        assert_eq!((values.len(), values[20 << 20]), (32 << 20, 0.0));
        assert!(zeros::<f64>(Path::new("w"), 0).unwrap().is_empty());
        for count in [usize::MAX, isize::MAX as usize / 8] {
            assert_eq!(zeros::<f64>(Path::new("w"), count).unwrap_err().kind(), ErrorKind::OutOfMemory);
        }
    }
}
