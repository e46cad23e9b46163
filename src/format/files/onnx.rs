//! ONNX models: the initializers of the graph, whose bytes are ranges of the file.
//!
//! | message | field | type |
//! |---|---|---|
//! | ModelProto | 7 graph | GraphProto |
//! | GraphProto | 5 initializer | TensorProto, several |
//! | TensorProto | 1 dims | i64, several, packed or not |
//! | TensorProto | 2 data_type | i32, see `dtype_of` |
//! | TensorProto | 8 name | text |
//! | TensorProto | 9 raw_data | the elements, little-endian |
//! | TensorProto | 13 external_data | key (1) and value (2), texts; several: `location`, `offset`, `length` |
//! | TensorProto | 14 data_location | 1 if the elements are in another file |
//!
//! A location is a path relative to the directory of the model. One that leads out of that directory is refused.
//!
//! A field is a varint, number * 8 + wire type (0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes). All
//! other fields are skipped by their length, so only the heads of fields are read. Readers of protobuf copy bytes and
//! lose their offset, so this module walks the fields itself.
//!
//! Source: `onnx.proto3` of <https://github.com/onnx/onnx>, and the protobuf encoding.

use std::collections::HashSet;
use std::ops::Range;

use crate::format::files::{CUT_OFF, ReadAt};
use crate::model::{
    CONTAINER_NAMES_MAX, DIMENSIONS_MAX, Dtype, Error, Result, Shape, check_tensor_name, quoted_name,
};

/// The end of an error for bytes that are no ONNX model.
const DAMAGED: &str =
    "it is damaged or no ONNX model; download or copy it again, or give it a name without the suffix .onnx";

/// Largest number of fields to visit.
pub const FIELDS_MAX: u64 = 1 << 22;

/// Bytes read at a time.
const WINDOW_BYTES: u64 = 16 << 10;

/// Longest text that is read.
const TEXT_BYTES_MAX: u64 = 4096;

/// An initializer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Shape,
    /// Location of its elements.
    pub place: Place,
}

/// Location of the elements of an initializer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this range of the file.
    Here(Range<u64>),
    /// In another file.
    Beside {
        /// Its path below the directory of the model: names joined by slashes, none of them `.` or `..`.
        location: String,
        /// The range of that file. It may be shorter.
        range: Range<u64>,
    },
}

/// The initializers of a model.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Model {
    /// The initializers that are tensors, in the order of the file.
    pub tensors: Vec<Entry>,
    /// The names of the others, each with the reason.
    pub others: Vec<(String, String)>,
}

/// Reads the initializers of a model of `file_len` bytes. Needs memory in proportion to their number.  #
/// Errors `Unsupported` for more initializers or dimensions than are supported, and more than [`FIELDS_MAX`]
/// fields; `Invalid` for a file that is not a model.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64) -> Result<Model> {
    let mut walk = Walk { read, file_len, window: Vec::new(), start: 0, fields: 0 };
    walk.model().map_err(|error| error.at("onnx model"))
}

struct Walk<'a, 'r> {
    read: &'a mut ReadAt<'r>,
    file_len: u64,
    /// Bytes of the file, from `start` on.
    window: Vec<u8>,
    start: u64,
    fields: u64,
}

enum Value {
    Varint(u64),
    Bytes(Range<u64>),
    /// Four or eight bytes, which no field here has.
    Fixed,
}

/// A TensorProto as it is read.
#[derive(Default)]
struct Tensor {
    sizes: Vec<u64>,
    data_type: u64,
    name: Option<String>,
    raw: Option<Range<u64>>,
    is_beside: bool,
    location: Option<String>,
    offset: u64,
    length: Option<u64>,
}

impl Walk<'_, '_> {
    fn model(&mut self) -> Result<Model> {
        let mut at = 0..self.file_len;
        let mut graph = None;
        while let Some((number, value)) = self.field(&mut at)? {
            if let (7, Value::Bytes(range)) = (number, value)
                && graph.replace(range).is_some()
            {
                return Err(Error::invalid("two graphs"));
            }
        }
        let mut at = graph.ok_or_else(|| Error::invalid(format!("it has no graph: {DAMAGED}")))?;
        let mut model = Model::default();
        let mut names = HashSet::new();
        while let Some((number, value)) = self.field(&mut at)? {
            let (5, Value::Bytes(range)) = (number, value) else { continue };
            if names.len() == CONTAINER_NAMES_MAX {
                return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} initializers")));
            }
            let tensor = self.tensor(range)?;
            let name = tensor.name.clone().ok_or_else(|| Error::invalid("an initializer without a name"))?;
            check_tensor_name(&name)?;
            let place = |error: Error| error.at(format_args!("initializer {:?}", quoted_name(&name)));
            if !names.insert(name.clone()) {
                return Err(place(Error::invalid("appears twice")));
            }
            match entry(name.clone(), tensor).map_err(place)? {
                Ok(entry) => model.tensors.push(entry),
                Err(why) => model.others.push((name, why)),
            }
        }
        Ok(model)
    }

    fn tensor(&mut self, mut at: Range<u64>) -> Result<Tensor> {
        let mut tensor = Tensor::default();
        while let Some((number, value)) = self.field(&mut at)? {
            match (number, value) {
                (1, Value::Varint(size)) => push_size(&mut tensor.sizes, size)?,
                (1, Value::Bytes(mut packed)) => {
                    while packed.start < packed.end {
                        let size = self.varint(&mut packed)?;
                        push_size(&mut tensor.sizes, size)?;
                    }
                }
                (2, Value::Varint(data_type)) => tensor.data_type = data_type,
                (8, Value::Bytes(range)) => {
                    let name = self.text(range)?;
                    once(&mut tensor.name, name)?;
                }
                (9, Value::Bytes(range)) => once(&mut tensor.raw, range)?,
                (13, Value::Bytes(range)) => self.external(range, &mut tensor)?,
                (14, Value::Varint(location)) => tensor.is_beside = location == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }

    fn external(&mut self, mut at: Range<u64>, tensor: &mut Tensor) -> Result<()> {
        let (mut key, mut text) = (String::new(), String::new());
        while let Some((number, value)) = self.field(&mut at)? {
            match (number, value) {
                (1, Value::Bytes(range)) => key = self.text(range)?,
                (2, Value::Bytes(range)) => text = self.text(range)?,
                _ => {}
            }
        }
        let number = || text.parse().map_err(|_| Error::invalid("a place in another file that is no number"));
        match key.as_str() {
            "location" => once(&mut tensor.location, text)?,
            "offset" => tensor.offset = number()?,
            "length" => tensor.length = Some(number()?),
            _ => {}
        }
        Ok(())
    }

    /// The next field of a message, and its value; `None` at its end.
    fn field(&mut self, at: &mut Range<u64>) -> Result<Option<(u64, Value)>> {
        if at.start >= at.end {
            return Ok(None);
        }
        self.fields += 1;
        if self.fields > FIELDS_MAX {
            return Err(Error::unsupported(format!("more than {FIELDS_MAX} fields")));
        }
        let tag = self.varint(at)?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 || number > (1 << 29) - 1 {
            return Err(no_model(format_args!("field number {number}"), at.start));
        }
        let length = match wire {
            0 => return Ok(Some((number, Value::Varint(self.varint(at)?)))),
            1 => 8,
            2 => self.varint(at)?,
            5 => 4,
            _ => return Err(no_model(format_args!("wire type {wire}"), at.start)),
        };
        let end = at.start.checked_add(length).filter(|end| *end <= at.end);
        let end =
            end.ok_or_else(|| self.past(format_args!("{length} bytes at byte {} go", at.start), at.end))?;
        let value = if wire == 2 { Value::Bytes(at.start..end) } else { Value::Fixed };
        at.start = end;
        Ok(Some((number, value)))
    }

    fn varint(&mut self, at: &mut Range<u64>) -> Result<u64> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.byte(at)?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::invalid("a number of more than ten bytes"))
    }

    /// The error for a part of a message that goes past the message's end.
    fn past(&self, goes: std::fmt::Arguments, end: u64) -> Error {
        let advice = if end == self.file_len { CUT_OFF } else { DAMAGED };
        Error::invalid(format!("{goes} past byte {end}: {advice}"))
    }

    fn byte(&mut self, at: &mut Range<u64>) -> Result<u8> {
        if at.start >= at.end {
            return Err(self.past(format_args!("a number goes"), at.end));
        }
        let found = |walk: &Self| {
            let place = at.start.checked_sub(walk.start)?;
            walk.window.get(usize::try_from(place).ok()?).copied()
        };
        let byte = match found(self) {
            Some(byte) => byte,
            None => {
                self.window.resize(WINDOW_BYTES.min(self.file_len - at.start) as usize, 0);
                self.start = at.start;
                (self.read)(&mut self.window, at.start)?;
                found(self).ok_or_else(|| Error::invalid("it ends early"))?
            }
        };
        at.start += 1;
        Ok(byte)
    }

    fn text(&mut self, range: Range<u64>) -> Result<String> {
        let len = range.end - range.start;
        if len > TEXT_BYTES_MAX {
            return Err(Error::unsupported(format!(
                "a name of {len} bytes; at most {TEXT_BYTES_MAX} are read"
            )));
        }
        let mut bytes = vec![0; len as usize];
        (self.read)(&mut bytes, range.start)?;
        String::from_utf8(bytes).map_err(|_| Error::invalid("a name that is not UTF-8"))
    }
}

/// The error for bytes that no program for ONNX writes.
fn no_model(found: std::fmt::Arguments, at: u64) -> Error {
    Error::invalid(format!("{found} before byte {at}: {DAMAGED}"))
}

fn once<T>(field: &mut Option<T>, value: T) -> Result<()> {
    match field.replace(value) {
        Some(_) => Err(Error::invalid("a field of an initializer appears twice")),
        None => Ok(()),
    }
}

fn push_size(sizes: &mut Vec<u64>, size: u64) -> Result<()> {
    if sizes.len() == DIMENSIONS_MAX {
        return Err(Error::unsupported(format!("more than {DIMENSIONS_MAX} dimensions")));
    }
    sizes.push(size);
    Ok(())
}

/// The initializer of a message, or why it is not a tensor.
fn entry(name: String, tensor: Tensor) -> Result<Result<Entry, String>> {
    let Some(dtype) = dtype_of(tensor.data_type) else {
        return Ok(Err(format!("its data type is {}", tensor.data_type)));
    };
    let shape =
        Shape::new(&tensor.sizes).ok_or_else(|| Error::invalid("more elements than can be counted"))?;
    let Some(bytes) = dtype.bytes_of(shape.elements()) else {
        return Ok(Err(format!("{} elements of {dtype} are no whole bytes", shape.elements())));
    };
    let place = match (tensor.is_beside, tensor.raw, tensor.location) {
        (false, Some(raw), _) if raw.end - raw.start == bytes => Place::Here(raw),
        (false, Some(raw), _) => {
            let found = raw.end - raw.start;
            return Err(Error::invalid(format!("raw_data of {found} bytes for shape ({shape}) of {dtype}")));
        }
        (true, None, Some(text)) if tensor.length.is_none_or(|length| length == bytes) => {
            let end = tensor.offset.checked_add(bytes);
            let end = end.ok_or_else(|| Error::invalid("a place past the end of every file"))?;
            let Some(location) = below(&text) else {
                return Ok(Err(format!("{:?} is no path below the model", quoted_name(&text))));
            };
            Place::Beside { location, range: tensor.offset..end }
        }
        (true, ..) => return Err(Error::invalid("its place in another file does not fit its shape")),
        (false, None, _) => return Ok(Err("it has no raw_data".to_owned())),
    };
    Ok(Ok(Entry { name, dtype, shape, place }))
}

/// A location as names joined by slashes. `None` if it leads out of the directory of the model, or to no file.
fn below(location: &str) -> Option<String> {
    let names: Vec<&str> = location.split('/').filter(|name| *name != ".").collect();
    let is_name = |name: &&str| !name.is_empty() && *name != ".." && !name.contains(char::is_control);
    (!names.is_empty() && names.iter().all(is_name)).then(|| names.join("/"))
}

/// The element type with a number in `TensorProto.DataType`.
fn dtype_of(data_type: u64) -> Option<Dtype> {
    Some(match data_type {
        1 => Dtype::F32,
        2 => Dtype::U8,
        3 => Dtype::I8,
        4 => Dtype::U16,
        5 => Dtype::I16,
        6 => Dtype::I32,
        7 => Dtype::I64,
        9 => Dtype::Bool,
        10 => Dtype::F16,
        11 => Dtype::F64,
        12 => Dtype::U32,
        13 => Dtype::U64,
        16 => Dtype::Bf16,
        17 => Dtype::F8E4M3,
        19 => Dtype::F8E5M2,
        23 => Dtype::F4,
        24 => Dtype::F8E8M0,
        _ => return None,
    })
}
