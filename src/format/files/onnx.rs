//! ONNX models: the initializers of the graph, whose bytes are ranges of the file.
//!
//! | message | field | type |
//! |---|---|---|
//! | ModelProto | 7 graph | GraphProto |
//! | GraphProto | 1 node | NodeProto, several |
//! | GraphProto | 5 initializer | TensorProto, several |
//! | GraphProto | 15 sparse_initializer | SparseTensorProto, several |
//! | TensorProto | 1 dims | i64, several, packed or not |
//! | TensorProto | 2 data_type | i32, see `dtype_of` |
//! | TensorProto | 8 name | text |
//! | TensorProto | 9 raw_data | the elements, little-endian |
//! | TensorProto | 13 external_data | key (1) and value (2), texts; several: `location`, `offset`, `length` |
//! | TensorProto | 14 data_location | 1 if the elements are in another file |
//! | SparseTensorProto | 1 values | TensorProto, whose name is that of the sparse tensor |
//! | NodeProto | 2 output, 4 op_type | texts |
//! | NodeProto | 5 attribute | AttributeProto, several |
//! | AttributeProto | 5 t, 22 sparse_tensor | the value of a `Constant` node |
//! | AttributeProto | 6 g, 11 graphs | GraphProto, a subgraph |
//!
//! A location is a path relative to the directory of the model. One that leads out of that directory is refused.
//!
//! A field is a varint, number * 8 + wire type (0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes). All
//! other fields are skipped by their length, so only the heads of fields are read. Readers of protobuf copy bytes and
//! lose their offset, so this module walks the fields itself.
//!
//! Things that a model gives twice count as ONNX Runtime takes them: the last field of a message, the last initializer of a name,
//! and a `Constant` node before an initializer.
//!
//! Source: `onnx.proto3` of <https://github.com/onnx/onnx>, and the protobuf encoding.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::files::ReadAt;
use crate::model::{
    CONTAINER_NAMES_MAX, DIMENSIONS_MAX, Dtype, Error, ErrorKind, Result, Shape, check_tensor_name,
    quoted_name,
};

mod protobuf;

use protobuf::{Fields, Value};

/// The end of an error for bytes that are not an ONNX model.
const DAMAGED: &str = "it is damaged, or not an ONNX model; download or copy it again, or give it a name without the suffix .onnx";

/// The error for bytes that no program for ONNX writes.
fn damaged(text: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Unreadable, format!("{text}: {DAMAGED}"))
}

/// Largest number of fields to visit.
pub const FIELDS_MAX: u64 = 1 << 22;

/// Of these, fields of nodes, which only tell what is not shown.
const NODE_FIELDS_MAX: u64 = FIELDS_MAX / 2;

/// Deepest nesting of subgraphs.
const DEPTH_MAX: u32 = 32;

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
    /// The beginnings of the names of the others, each with the reason.
    pub others: Vec<(String, String)>,
}

/// The initializers in other files, by the paths of these.
pub type DataFiles = HashMap<String, Vec<Entry>>;

impl Model {
    /// The initializers that lie in other files.
    pub fn into_data_files(self) -> DataFiles {
        let mut files = DataFiles::new();
        for entry in self.tensors {
            if let Place::Beside { location, .. } = &entry.place {
                match files.get_mut(location) {
                    Some(entries) => entries.push(entry),
                    None => drop(files.insert(location.clone(), vec![entry])),
                }
            }
        }
        files
    }
}

/// Reads the initializers of a model of `file_len` bytes. Needs memory in proportion to their number.
///
/// # Errors
/// `Unsupported` for more initializers than are supported, for two graphs, and for more than [`FIELDS_MAX`] fields;
/// `Invalid` for a file that is not a model.
pub fn parse(read: &mut ReadAt<'_>, file_len: u64, budget: &mut Budget) -> Result<Model> {
    let walk =
        Walk { fields: Fields::new(read, file_len, budget), others: Vec::new(), given: HashSet::new() };
    walk.model(file_len).map_err(|error| error.at("onnx model"))
}

struct Walk<'a, 'r> {
    fields: Fields<'a, 'r>,
    others: Vec<(String, String)>,
    /// Names that have a value which is not an initializer with elements.
    given: HashSet<String>,
}

/// A TensorProto as it is read.
#[derive(Default)]
struct Tensor {
    /// One more than a tensor can have, if there are too many.
    sizes: Vec<u64>,
    data_type: u64,
    /// `None` without a name that can be read.
    name: Option<String>,
    raw: Option<Range<u64>>,
    is_beside: bool,
    location: Option<String>,
    /// `None` if the text is not a number.
    offset: Option<u64>,
    length: Option<Option<u64>>,
}

impl Walk<'_, '_> {
    fn model(mut self, file_len: u64) -> Result<Model> {
        let mut at = 0..file_len;
        let mut graph = None;
        while let Some((number, value)) = self.fields.next(&mut at)? {
            if let (7, Value::Bytes(range)) = (number, value)
                && graph.replace(range).is_some()
            {
                return Err(Error::unsupported("two graphs"));
            }
        }
        let mut at = graph.ok_or_else(|| damaged("it has no graph"))?;
        let mut found: Vec<(String, Result<Entry, String>)> = Vec::new();
        let mut places = HashMap::new();
        while let Some((number, value)) = self.fields.next(&mut at)? {
            let range = match (number, value) {
                (5, Value::Bytes(range)) => range,
                (_, Value::Bytes(range)) => {
                    self.part_of_graph(number, range, 0)?;
                    continue;
                }
                _ => continue,
            };
            let tensor = self.tensor(range)?;
            let Some(name) = self.checked_name(tensor.name.clone()) else { continue };
            let entry = entry(name.clone(), tensor);
            let place = *places.entry(name.clone()).or_insert(found.len());
            match found.get_mut(place) {
                Some(before) => {
                    before.1 = entry;
                    self.leave_out(&name, "the file has it more than once, and the last one counts");
                    continue;
                }
                None => found.push((name, entry)),
            }
            if found.len() > CONTAINER_NAMES_MAX {
                return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} initializers")));
            }
        }
        let mut tensors = Vec::new();
        for (name, entry) in found {
            match entry {
                // `others` has the reason already.
                _ if self.given.contains(&name) => {}
                Ok(entry) => tensors.push(entry),
                Err(why) => self.leave_out(&name, &why),
            }
        }
        Ok(Model { tensors, others: self.others })
    }

    fn leave_out(&mut self, name: &str, why: &str) {
        self.others.push((quoted_name(name).to_owned(), why.to_owned()));
    }

    /// The name of an initializer, if a tensor can have it.
    fn checked_name(&mut self, name: Option<String>) -> Option<String> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            self.leave_out("an initializer", "its name is missing, too long or not UTF-8");
            return None;
        };
        match check_tensor_name(&name) {
            Ok(()) => Some(name),
            Err(error) => {
                self.leave_out(&name, &error.to_string());
                None
            }
        }
    }

    /// Notes what a graph has beside its initializers; of a subgraph, these too.
    fn part_of_graph(&mut self, number: u64, range: Range<u64>, depth: u32) -> Result<()> {
        match number {
            1 => self.node(range, depth),
            5 => {
                let name = self.tensor(range)?.name.unwrap_or_default();
                self.leave_out(&name, "it is an initializer of a subgraph");
                Ok(())
            }
            15 => {
                let name = self.name_of_sparse(range)?;
                self.leave_out(&name, "it is sparse");
                if depth == 0 {
                    self.given.insert(name);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn name_of_sparse(&mut self, mut at: Range<u64>) -> Result<String> {
        let mut name = None;
        while let Some((number, value)) = self.fields.next(&mut at)? {
            if let (1, Value::Bytes(values)) = (number, value) {
                name = self.tensor(values)?.name;
            }
        }
        Ok(name.unwrap_or_default())
    }

    fn node(&mut self, mut at: Range<u64>, depth: u32) -> Result<()> {
        let (mut output, mut is_constant, mut has_tensor) = (None, false, false);
        while self.fields.count() < NODE_FIELDS_MAX
            && let Some((number, value)) = self.fields.next(&mut at)?
        {
            match (number, value) {
                (2, Value::Bytes(range)) if output.is_none() => output = self.fields.text(range)?,
                (4, Value::Bytes(range)) => {
                    is_constant = self.fields.text(range)?.as_deref() == Some("Constant")
                }
                (5, Value::Bytes(range)) => has_tensor |= self.attribute(range, depth)?,
                _ => {}
            }
        }
        if let Some(name) = output.filter(|_| is_constant && has_tensor) {
            self.leave_out(&name, "it is the value of a Constant node");
            if depth == 0 {
                self.given.insert(name);
            }
        }
        Ok(())
    }

    /// Whether an attribute of a node is a tensor. Notes what subgraphs have.
    fn attribute(&mut self, mut at: Range<u64>, depth: u32) -> Result<bool> {
        let mut is_tensor = false;
        while let Some((number, value)) = self.fields.next(&mut at)? {
            match (number, value) {
                (5 | 22, Value::Bytes(_)) => is_tensor = true,
                (6 | 11, Value::Bytes(mut graph)) if depth < DEPTH_MAX => {
                    while let Some((number, value)) = self.fields.next(&mut graph)? {
                        if let Value::Bytes(range) = value {
                            self.part_of_graph(number, range, depth + 1)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(is_tensor)
    }

    fn tensor(&mut self, mut at: Range<u64>) -> Result<Tensor> {
        let mut tensor = Tensor { offset: Some(0), ..Tensor::default() };
        let add_size = |size: u64, sizes: &mut Vec<u64>| {
            if sizes.len() <= DIMENSIONS_MAX {
                sizes.push(size);
            }
        };
        while let Some((number, value)) = self.fields.next(&mut at)? {
            match (number, value) {
                (1, Value::Varint(size)) => add_size(size, &mut tensor.sizes),
                (1, Value::Bytes(mut packed)) => {
                    while packed.start < packed.end {
                        let size = self.fields.varint(&mut packed)?;
                        add_size(size, &mut tensor.sizes);
                    }
                }
                (2, Value::Varint(data_type)) => tensor.data_type = data_type,
                (8, Value::Bytes(range)) => tensor.name = self.fields.text(range)?,
                (9, Value::Bytes(range)) => tensor.raw = Some(range),
                (13, Value::Bytes(range)) => self.external(range, &mut tensor)?,
                (14, Value::Varint(location)) => tensor.is_beside = location == 1,
                _ => {}
            }
        }
        Ok(tensor)
    }

    fn external(&mut self, mut at: Range<u64>, tensor: &mut Tensor) -> Result<()> {
        let (mut key, mut text) = (None, None);
        while let Some((number, value)) = self.fields.next(&mut at)? {
            match (number, value) {
                (1, Value::Bytes(range)) => key = self.fields.text(range)?,
                (2, Value::Bytes(range)) => text = self.fields.text(range)?,
                _ => {}
            }
        }
        let number = text.as_deref().and_then(|text| text.parse().ok());
        match key.as_deref() {
            Some("location") => tensor.location = text,
            Some("offset") => tensor.offset = number,
            Some("length") => tensor.length = Some(number),
            _ => {}
        }
        Ok(())
    }
}

/// The initializer of a message, or why it is not a tensor.
fn entry(name: String, tensor: Tensor) -> Result<Entry, String> {
    let dtype = dtype_of(tensor.data_type).ok_or_else(|| format!("its data type is {}", tensor.data_type))?;
    if tensor.sizes.len() > DIMENSIONS_MAX {
        return Err(format!("it has more than {DIMENSIONS_MAX} dimensions"));
    }
    let shape = Shape::new(&tensor.sizes).ok_or("it has more elements than can be counted")?;
    let bytes = dtype.bytes_of(shape.elements());
    let bytes =
        bytes.ok_or_else(|| format!("{} elements of {dtype} do not fill whole bytes", shape.elements()))?;
    let place = match (tensor.is_beside, tensor.raw, tensor.location) {
        (false, Some(raw), _) if raw.end - raw.start == bytes => Place::Here(raw),
        (false, Some(raw), _) => {
            return Err(format!("it has {} bytes for shape ({shape}) of {dtype}", raw.end - raw.start));
        }
        (true, None, Some(text)) if tensor.length.is_none_or(|length| length == Some(bytes)) => {
            let end = tensor.offset.and_then(|offset| Some((offset, offset.checked_add(bytes)?)));
            let (begin, end) =
                end.ok_or("its place in another file is not a number, or it lies past every file")?;
            let location = below(&text);
            let location = location.ok_or_else(|| {
                format!(
                    "its external data is in {:?}, which is not a path below the directory of the model",
                    quoted_name(&text)
                )
            })?;
            Place::Beside { location, range: begin..end }
        }
        (true, ..) => return Err("its place in another file does not fit its shape".to_owned()),
        (false, None, _) => return Err("it has no raw_data".to_owned()),
    };
    Ok(Entry { name, dtype, shape, place })
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
