//! The elements of a file: their type, their shape, and where they begin.

use crate::attributes::{self, Place};
use crate::dtype::Dtype;
use crate::error::{Error, ErrorKind, Result, Wrong};
use crate::npy;
use crate::shape::Shape;

/// Invariant: `nbytes` is the size of `shape.elements()` elements, and no more than a slice can have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub dtype: Dtype,
    pub shape: Shape,
    /// Offset of the elements in the file: 0, but behind the header of a `.npy` file.
    pub data_start: u64,
    pub nbytes: usize,
}

impl Layout {
    /// The layout of a file, by the attributes of a mount or by a header of NumPy. Fails unless the file ends with the
    /// last element.
    pub fn of(place: Place<'_>) -> Result<Layout> {
        let Some(dtype) = place.text("dtype")? else {
            return Layout::of_npy(place);
        };
        let shape = place.text("shape")?.unwrap_or_default();
        let found = Layout::of_values(&dtype, &shape, place.bytes()?);
        found.map_err(|wrong| wrong.at(place.path))
    }

    /// The layout by the values of the attributes, in a file of so many bytes.
    fn of_values(dtype: &str, shape: &str, bytes: u64) -> std::result::Result<Layout, Wrong> {
        let unknown = || {
            let text = format!("the element type {dtype:?} is not known to this version of tierfs-client");
            Wrong::new(ErrorKind::Unsupported, text)
        };
        let dtype = Dtype::from_name(dtype).ok_or_else(unknown)?;
        let invalid = || Wrong::new(ErrorKind::Invalid, format!("{shape:?} is not a shape"));
        let shape = Shape::parse(shape).ok_or_else(invalid)?;
        Layout::of_header(npy::Header { dtype, shape, data_start: 0 }, bytes)
    }

    fn of_npy(place: Place<'_>) -> Result<Layout> {
        let failed = |error| place.failed(error);
        let no_tensor = || {
            let text = "not a tensor; tierfs_client::tensors lists those of a container or directory";
            Error::new(ErrorKind::NotATensor, place.path, text)
        };
        let opened = match place.file {
            Some(_) => None,
            None => attributes::open(place.path)?,
        };
        let file = place.file.or(opened.as_ref()).ok_or_else(no_tensor)?;
        let header = npy::read(file).map_err(failed)?.ok_or_else(no_tensor)?;
        let header = header.map_err(|wrong| wrong.at(place.path))?;
        let bytes = Place { file: Some(file), ..place }.bytes()?;
        Layout::of_header(header, bytes).map_err(|wrong| wrong.at(place.path))
    }

    fn of_header(header: npy::Header, bytes: u64) -> std::result::Result<Layout, Wrong> {
        let npy::Header { dtype, shape, data_start } = header;
        let elements = shape.elements();
        let nbytes = dtype.bytes_of(elements).filter(|bytes| isize::try_from(*bytes).is_ok());
        let nbytes = nbytes.ok_or_else(|| {
            let text = format!("{elements} elements of {dtype} are not whole blocks, or too many");
            Wrong::new(ErrorKind::Invalid, text)
        })?;
        if data_start.checked_add(nbytes as u64) != Some(bytes) {
            let end = format!(
                "{dtype} of the shape {:?} has {nbytes} from byte {data_start} on",
                shape.dimensions()
            );
            return Err(Wrong::new(ErrorKind::Invalid, format!("it has {bytes} bytes, and {end}")));
        }
        Ok(Layout { dtype, shape, data_start, nbytes })
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use crate::dtype::Dtype;
    use crate::error::ErrorKind;

    #[test]
    fn a_layout_agrees_with_the_bytes_of_its_file() {
        let found = Layout::of_values("q4_k", "2x256", 288).unwrap();
        assert_eq!((found.dtype, found.nbytes, found.shape.elements()), (Dtype::Q4_K, 288, 512));
        assert_eq!(Layout::of_values("f64", "", 8).unwrap().nbytes, 8);
        assert_eq!(Layout::of_values("bf16", "0x9999999999", 0).unwrap().nbytes, 0);
    }

    #[test]
    fn hostile_attributes_are_errors() {
        let kind = |dtype, shape, bytes| Layout::of_values(dtype, shape, bytes).unwrap_err().kind;
        assert_eq!(kind("f33", "2", 8), ErrorKind::Unsupported);
        assert_eq!(kind("", "", 0), ErrorKind::Unsupported);
        for (dtype, shape, bytes) in [
            ("f32", "2x2", 15),
            ("f32", "2x2", 17),
            ("f32", "two", 16),
            ("f32", "-2x-2", 16),
            // The products wrap to 16 in 64 bits.
            ("f32", "4611686018427387908", 16),
            ("f64", "4294967296x4294967296x2", 16),
            ("f64", "2305843009213693954", 16),
            ("f64", "1152921504606846976", 0),
            ("q4_k", "255", 144),
            ("f4", "3", 2),
            ("u8", "9223372036854775808", 1 << 63),
        ] {
            assert_eq!(kind(dtype, shape, bytes), ErrorKind::Invalid, "{dtype} {shape}");
        }
    }
}
