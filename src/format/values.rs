//! The building blocks of catalog entries and manifests: texts, lists, optional values.

use crate::format::cursor::{Reader, Writer};
use crate::model::{Dtype, Error, Result};

pub(in crate::format) fn write_text(out: &mut Writer, text: &[u8]) {
    out.u32(text.len() as u32).bytes(text);
}

pub(in crate::format) fn read_text<'a>(bytes: &mut Reader<'a>, longest: usize) -> Result<&'a [u8]> {
    let len = bytes.u32()? as usize;
    if len > longest {
        return Err(Error::corrupt(format!("a text of {len} bytes; at most {longest} are allowed")));
    }
    bytes.bytes(len)
}

pub(in crate::format) fn read_string(bytes: &mut Reader<'_>) -> Result<String> {
    let longest = bytes.remaining();
    let text = read_text(bytes, longest)?;
    String::from_utf8(text.to_vec()).map_err(|_| Error::corrupt("a text is not UTF-8"))
}

pub(in crate::format) fn read_dtype(bytes: &mut Reader<'_>) -> Result<Dtype> {
    let code = bytes.u8()?;
    Dtype::from_code(code)
        .ok_or_else(|| Error::unsupported(format!("element type {code}, which this program does not know")))
}

pub(in crate::format) fn write_option<T>(
    out: &mut Writer,
    value: Option<&T>,
    write: impl FnOnce(&mut Writer, &T),
) {
    out.u8(u8::from(value.is_some()));
    if let Some(value) = value {
        write(out, value);
    }
}

pub(in crate::format) fn read_option<'a, T>(
    bytes: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<Option<T>> {
    match bytes.u8()? {
        0 => Ok(None),
        1 => read(bytes).map(Some),
        byte => Err(Error::corrupt(format!("presence byte {byte}; expected 0 or 1"))),
    }
}

pub(in crate::format) fn read_list<'a, T>(
    bytes: &mut Reader<'a>,
    longest: usize,
    item_bytes: usize,
    read: impl Fn(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = read_count(bytes, longest, item_bytes)?;
    let mut list = Vec::with_capacity(count);
    for _ in 0..count {
        list.push(read(bytes)?);
    }
    Ok(list)
}

/// Reads the number of items of a list. Refuses a number whose items exceed the remaining bytes, which
/// bounds the memory that a length can request.
pub(in crate::format) fn read_count(
    bytes: &mut Reader<'_>,
    longest: usize,
    item_bytes: usize,
) -> Result<usize> {
    let count = bytes.u32()? as usize;
    if count > longest || count.saturating_mul(item_bytes) > bytes.remaining() {
        return Err(Error::corrupt(format!("a list of {count} items")));
    }
    Ok(count)
}
