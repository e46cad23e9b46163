//! Headers of NumPy files: the beginning of a file, as long as it says itself.

use tierfs::format::budget::Budget;
use tierfs::format::files::npy::{self, Header, write_header};
use tierfs::model::{DIMENSIONS_MAX, Result};

/// The header, read in steps that its bytes allow.
fn parse(bytes: &[u8], file_len: u64) -> Result<Header> {
    let mut budget = Budget::default();
    let header = npy::parse(bytes, file_len, &mut budget);
    assert!(budget.spent() <= bytes.len() as u64, "{} steps", budget.spent());
    header
}

pub fn check(bytes: &[u8]) {
    let read = |file_len| parse(bytes, file_len).ok();
    // The error for a wrong length is the only way to learn the right one.
    let said = parse(bytes, u64::MAX).err().and_then(|error| {
        let text = error.to_string();
        text.split("ends at byte ").nth(1)?.split(' ').next()?.parse().ok()
    });
    for file_len in [Some(bytes.len() as u64), said].into_iter().flatten() {
        let Some(header) = read(file_len) else { continue };
        let Header { dtype, shape, data_start, .. } = header;
        assert!(shape.dimensions().len() <= DIMENSIONS_MAX);
        assert!(data_start <= bytes.len() as u64, "the header goes past what was read");
        assert_eq!(dtype.bytes_of(shape.elements()).map(|data| data + data_start), Some(file_len));
        for alignment in [1, 64, 4096] {
            let written = write_header(dtype, &shape, alignment).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(written.len() % alignment, 0);
            let Some(whole) = (file_len - data_start).checked_add(written.len() as u64) else { continue };
            let again = parse(&written, whole).unwrap_or_else(|error| panic!("{error}"));
            let said = (again.dtype, &again.shape, again.data_start);
            assert_eq!(said, (dtype, &shape, written.len() as u64));
            assert!(again.is_plain(), "written row-major and little-endian");
        }
    }
    if let Some(file_len) = said {
        assert!(file_len == u64::MAX || read(file_len + 1).is_none(), "a byte too many is taken");
    }
}
