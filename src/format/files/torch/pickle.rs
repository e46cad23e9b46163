//! Reads the pickle of a checkpoint as a description, executing nothing.
//!
//! Numbers, texts, tuples, lists and dictionaries become values. Of the names that a pickle can call, only those in
//! [`global`] are known, and each only describes a tensor, a storage or a dictionary. Every other name, and every
//! operation that is not listed, is refused.
//!
//! Source: `pickletools.py` of Python (operations), `torch/_utils.py` (arguments).

use std::collections::HashMap;

use crate::format::cursor::Reader;
use crate::model::{Dtype, Error, ErrorKind, Result, Shape, quoted_name};

/// Most values that a pickle may make.
pub(super) const VALUES_MAX: usize = 1 << 22;

/// A range of the pickle that holds a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    start: u32,
    len: u32,
}

/// A value. Tuples, lists and dictionaries are numbers of lists of items.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Int(i64),
    Text(Text),
    Tuple(u32),
    List(u32),
    /// Keys and values alternate.
    Dict(u32),
    Global(Global),
    Storage(u32),
    Tensor(usize),
    /// A value that describes no tensor: None, a boolean, a float, bytes.
    Other,
}

impl Value {
    pub(super) fn may_hold_tensors(self) -> bool {
        matches!(self, Value::Tensor(_) | Value::Tuple(_) | Value::List(_) | Value::Dict(_))
    }
}

/// A name that a pickle may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Global {
    OrderedDict,
    Size,
    /// `_rebuild_tensor_v2`.
    Tensor,
    /// `_rebuild_tensor_v3`, which names the element type.
    TypedTensor,
    Parameter,
    /// The class of a storage; without an element type, one of bytes.
    Storage(Option<Dtype>),
    Dtype(Dtype),
}

/// A tensor as the pickle describes it.
#[derive(Debug)]
pub(super) struct Stored {
    pub key: Text,
    pub dtype: Dtype,
    /// In elements.
    pub offset: u64,
    pub shape: Shape,
    pub is_contiguous: bool,
}

/// A read pickle.
pub(super) struct Pickle<'a> {
    bytes: &'a [u8],
    /// The value that it describes.
    pub top: Value,
    lists: Vec<Vec<Value>>,
    pub tensors: Vec<Stored>,
}

/// The machine that executes a pickle's program.
struct Machine<'a> {
    bytes: &'a [u8],
    input: Reader<'a>,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    lists: Vec<Vec<Value>>,
    storages: Vec<(Text, Option<Dtype>)>,
    tensors: Vec<Stored>,
    made: usize,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle. Needs memory in proportion to its bytes, and to at most [`VALUES_MAX`] values.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Pickle<'a>> {
        let mut machine = Machine {
            bytes,
            input: Reader::new(bytes),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            lists: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            made: 0,
        };
        let top = machine.run().map_err(|error| match error.kind() {
            ErrorKind::Corrupt => Error::invalid(error.to_string()),
            _ => error,
        })?;
        Ok(Pickle { bytes, top, lists: machine.lists, tensors: machine.tensors })
    }

    pub(super) fn items(&self, value: Value) -> &[Value] {
        match value {
            Value::Tuple(list) | Value::List(list) | Value::Dict(list) => {
                self.lists.get(list as usize).map_or(&[], Vec::as_slice)
            }
            _ => &[],
        }
    }

    pub(super) fn text(&self, text: Text) -> &'a str {
        text_of(self.bytes, text)
    }

    /// The text of a key, if it is a text or a number.
    pub(super) fn key(&self, key: Value) -> Option<String> {
        match key {
            Value::Text(text) => Some(self.text(text).to_owned()),
            Value::Int(number) => Some(number.to_string()),
            _ => None,
        }
    }
}

/// Texts were checked when they were read.
fn text_of(bytes: &[u8], text: Text) -> &str {
    let (start, len) = (text.start as usize, text.len as usize);
    bytes.get(start..start + len).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

/// A known name; `None` for all others.
fn global(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("collections", "OrderedDict") => Global::OrderedDict,
        ("torch", "Size") => Global::Size,
        ("torch._utils", "_rebuild_tensor_v2") => Global::Tensor,
        ("torch._utils", "_rebuild_tensor_v3") => Global::TypedTensor,
        ("torch._utils", "_rebuild_parameter") => Global::Parameter,
        ("torch.storage", "UntypedStorage") => Global::Storage(None),
        ("torch", name) => match name.strip_suffix("Storage") {
            Some(kind) => Global::Storage(Some(of_storage(kind)?)),
            None => Global::Dtype(of_torch(name)?),
        },
        _ => return None,
    })
}

fn of_storage(kind: &str) -> Option<Dtype> {
    Some(match kind {
        "Float" => Dtype::F32,
        "Double" => Dtype::F64,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::Bf16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::Bool,
        _ => return None,
    })
}

fn of_torch(name: &str) -> Option<Dtype> {
    Some(match name {
        "float32" => Dtype::F32,
        "float64" => Dtype::F64,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::Bf16,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint8" => Dtype::U8,
        "uint16" => Dtype::U16,
        "uint32" => Dtype::U32,
        "uint64" => Dtype::U64,
        "bool" => Dtype::Bool,
        "float8_e4m3fn" => Dtype::F8E4M3,
        "float8_e5m2" => Dtype::F8E5M2,
        "float8_e8m0fnu" => Dtype::F8E8M0,
        _ => return None,
    })
}

fn wrong(text: &str) -> Error {
    Error::invalid(format!("a pickle with {text}"))
}

impl<'a> Machine<'a> {
    fn run(&mut self) -> Result<Value> {
        loop {
            let at = self.input.position();
            let operation = self.input.u8()?;
            match operation {
                b'.' => return self.pop(),
                // PROTO and FRAME.
                0x80 => self.input.skip(1)?,
                0x95 => self.input.skip(8)?,
                b'(' => self.marks.push(self.stack.len()),
                b'0' => self.pop().map(|_| ())?,
                b'1' => self.marked().map(|_| ())?,
                b'2' => {
                    let top = self.stack.last().copied().ok_or_else(|| wrong("an empty stack"))?;
                    self.push(top)?;
                }
                // NONE, NEWTRUE, NEWFALSE.
                b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
                b'G' => self.skipped(8)?,
                b'K' => {
                    let number = self.input.u8()?;
                    self.push(Value::Int(number.into()))?;
                }
                b'M' => {
                    let number = self.input.u16()?;
                    self.push(Value::Int(number.into()))?;
                }
                b'J' => {
                    let number = self.input.u32()? as i32;
                    self.push(Value::Int(number.into()))?;
                }
                0x8a => {
                    let len = self.input.u8()?;
                    let number = long(self.input.bytes(usize::from(len))?);
                    self.push(number.map_or(Value::Other, Value::Int))?;
                }
                // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8.
                b'X' => self.text_of_length(4)?,
                0x8c => self.text_of_length(1)?,
                0x8d => self.text_of_length(8)?,
                // BINBYTES, SHORT_BINBYTES, BINBYTES8.
                b'B' => self.bytes_of_length(4)?,
                b'C' => self.bytes_of_length(1)?,
                0x8e => self.bytes_of_length(8)?,
                b']' => self.list(Vec::new(), Value::List)?,
                b'}' => self.list(Vec::new(), Value::Dict)?,
                b')' => self.list(Vec::new(), Value::Tuple)?,
                b'l' => self.list_of_marked(Value::List)?,
                b'd' => self.list_of_marked(Value::Dict)?,
                b't' => self.list_of_marked(Value::Tuple)?,
                0x85..=0x87 => {
                    let first = self.stack.len().checked_sub(usize::from(operation - 0x84));
                    let first = first.filter(|first| *first >= self.bottom());
                    let items = self.stack.split_off(first.ok_or_else(|| wrong("an empty stack"))?);
                    self.list(items, Value::Tuple)?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item], false)?;
                }
                b'e' => {
                    let items = self.marked()?;
                    self.append(items, false)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.append(vec![key, value], true)?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.append(items, true)?;
                }
                // BINPUT, LONG_BINPUT, MEMOIZE.
                b'q' => {
                    let place = self.input.u8()?;
                    self.keep(place.into())?;
                }
                b'r' => {
                    let place = self.input.u32()?;
                    self.keep(place)?;
                }
                0x94 => self.keep(self.memo.len() as u32)?,
                b'h' => {
                    let place = self.input.u8()?;
                    self.recall(place.into())?;
                }
                b'j' => {
                    let place = self.input.u32()?;
                    self.recall(place)?;
                }
                b'c' => {
                    let (module, name) = (self.line()?, self.line()?);
                    self.named(module, name)?;
                }
                0x93 => {
                    let (Value::Text(name), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                        return Err(wrong("a name that is no text"));
                    };
                    self.named(text_of(self.bytes, module), text_of(self.bytes, name))?;
                }
                b'R' => self.call()?,
                b'b' => self.build()?,
                b'Q' => self.storage()?,
                _ => {
                    return Err(Error::unsupported(format!(
                        "operation {operation:#04x} at byte {at}, which dictionaries of tensors do not need"
                    )));
                }
            }
        }
    }

    /// Where the values since the last mark begin. Nothing below is removed without that mark.
    fn bottom(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn count(&mut self, more: usize) -> Result<()> {
        self.made = self.made.saturating_add(more);
        if self.made > VALUES_MAX {
            return Err(Error::unsupported(format!("more than {VALUES_MAX} values")));
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.count(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        if self.stack.len() > self.bottom() {
            self.stack.pop().ok_or_else(|| wrong("an empty stack"))
        } else {
            Err(wrong("an empty stack"))
        }
    }

    fn marked(&mut self) -> Result<Vec<Value>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.ok_or_else(|| wrong("a missing mark"))?))
    }

    fn list(&mut self, items: Vec<Value>, of: fn(u32) -> Value) -> Result<()> {
        self.count(1)?;
        let number = self.lists.len() as u32;
        self.lists.push(items);
        self.push(of(number))
    }

    fn list_of_marked(&mut self, of: fn(u32) -> Value) -> Result<()> {
        let items = self.marked()?;
        if matches!(of(0), Value::Dict(_)) && !items.len().is_multiple_of(2) {
            return Err(wrong("a key without a value"));
        }
        self.list(items, of)
    }

    /// Adds items to the list or dictionary on the stack.
    fn append(&mut self, items: Vec<Value>, is_dict: bool) -> Result<()> {
        self.count(items.len())?;
        let list = match self.stack.last().filter(|_| self.stack.len() > self.bottom()) {
            Some(Value::Dict(list)) if is_dict && items.len().is_multiple_of(2) => *list,
            Some(Value::List(list)) if !is_dict => *list,
            _ => return Err(wrong("items of a value that is not a list or dictionary")),
        };
        if let Some(list) = self.lists.get_mut(list as usize) {
            list.extend(items);
        }
        Ok(())
    }

    fn keep(&mut self, place: u32) -> Result<()> {
        self.count(1)?;
        let top = self.stack.last().copied().ok_or_else(|| wrong("an empty stack"))?;
        self.memo.insert(place, top);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<()> {
        let value = self.memo.get(&place).copied().ok_or_else(|| wrong("a value that was not kept"))?;
        self.push(value)
    }

    fn skipped(&mut self, count: usize) -> Result<()> {
        self.input.skip(count)?;
        self.push(Value::Other)
    }

    fn length(&mut self, width: usize) -> Result<usize> {
        let length = match width {
            1 => self.input.u8()?.into(),
            4 => self.input.u32()?.into(),
            _ => self.input.u64()?,
        };
        usize::try_from(length).map_err(|_| wrong("a text past its end"))
    }

    fn text_of_length(&mut self, width: usize) -> Result<()> {
        let len = self.length(width)?;
        let start = self.input.position();
        let text = self.input.bytes(len)?;
        // Surrogates, which Python permits, are not valid text.
        if std::str::from_utf8(text).is_err() {
            return Err(Error::unsupported("a text that is not UTF-8"));
        }
        self.push(Value::Text(Text { start: start as u32, len: len as u32 }))
    }

    fn bytes_of_length(&mut self, width: usize) -> Result<()> {
        let len = self.length(width)?;
        self.skipped(len)
    }

    fn line(&mut self) -> Result<&'a str> {
        let start = self.input.position();
        let rest = self.bytes.get(start..).unwrap_or_default();
        let len =
            rest.iter().take(256).position(|byte| *byte == b'\n').ok_or_else(|| wrong("a long name"))?;
        let line = self.input.bytes(len)?;
        self.input.skip(1)?;
        std::str::from_utf8(line).map_err(|_| wrong("a name that is no text"))
    }

    fn named(&mut self, module: &str, name: &str) -> Result<()> {
        let found = global(module, name).ok_or_else(|| {
            let (module, name) = (quoted_name(module), quoted_name(name));
            Error::unsupported(format!(
                "it uses {module}.{name}, and only dictionaries and lists of tensors are read"
            ))
        })?;
        self.push(Value::Global(found))
    }

    fn items(&self, value: Value) -> Option<&[Value]> {
        match value {
            Value::Tuple(list) | Value::List(list) => self.lists.get(list as usize).map(Vec::as_slice),
            _ => None,
        }
    }

    /// REDUCE: a known name with arguments.
    fn call(&mut self) -> Result<()> {
        let (arguments, called) = (self.pop()?, self.pop()?);
        let (Value::Global(called), Value::Tuple(_)) = (called, arguments) else {
            return Err(Error::unsupported("a call of an unknown name"));
        };
        let arguments = self.items(arguments).unwrap_or_default().to_vec();
        let tensor = |dtype| (arguments.as_slice(), dtype);
        match (called, arguments.as_slice()) {
            (Global::OrderedDict, []) => self.list(Vec::new(), Value::Dict),
            (Global::Size, [sizes @ (Value::Tuple(_) | Value::List(_))]) => self.push(*sizes),
            (Global::Parameter, [parameter @ Value::Tensor(_), ..]) => self.push(*parameter),
            (Global::Tensor, _) => self.tensor(tensor(None)),
            (Global::TypedTensor, [.., Value::Global(Global::Dtype(dtype))])
            | (Global::TypedTensor, [.., Value::Global(Global::Dtype(dtype)), _]) => {
                self.tensor(tensor(Some(*dtype)))
            }
            _ => Err(Error::unsupported(format!("a call of {called:?} with other arguments"))),
        }
    }

    /// A tensor of a storage: offset, size and strides in elements.
    fn tensor(&mut self, (arguments, typed): (&[Value], Option<Dtype>)) -> Result<()> {
        let [Value::Storage(storage), Value::Int(offset), size, stride, ..] = arguments else {
            return Err(Error::unsupported("a tensor with other arguments"));
        };
        let &(key, of_storage) = self.storages.get(*storage as usize).ok_or_else(|| wrong("no storage"))?;
        let dtype =
            typed.or(of_storage).ok_or_else(|| Error::unsupported("a tensor without an element type"))?;
        let numbers = |value: Value| -> Option<Vec<u64>> {
            let number = |value: &Value| match value {
                Value::Int(number) => u64::try_from(*number).ok(),
                _ => None,
            };
            self.items(value)?.iter().map(number).collect()
        };
        let (Some(sizes), Some(strides), Ok(offset)) =
            (numbers(*size), numbers(*stride), u64::try_from(*offset))
        else {
            return Err(wrong("sizes that are no numbers"));
        };
        if sizes.len() != strides.len() {
            return Err(wrong("a tensor of more sizes than strides"));
        }
        let shape = Shape::new(&sizes);
        let shape =
            shape.ok_or_else(|| Error::unsupported("more than 8 dimensions, or too many elements"))?;
        let mut step = 1_u64;
        let mut is_contiguous = true;
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            is_contiguous &= *size == 1 || *stride == step;
            step = step.saturating_mul(*size);
        }
        is_contiguous |= shape.elements() == 0;
        self.count(1)?;
        self.tensors.push(Stored { key, dtype, offset, shape, is_contiguous });
        self.push(Value::Tensor(self.tensors.len() - 1))
    }

    /// BUILD: the attributes of a dictionary, such as the `_metadata` of a state_dict.
    fn build(&mut self) -> Result<()> {
        self.pop()?;
        match self.stack.last() {
            Some(Value::Dict(_)) => Ok(()),
            _ => Err(Error::unsupported("the state of an object")),
        }
    }

    /// BINPERSID: `('storage', class, key, device, elements)`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let Some(
            [Value::Text(kind), Value::Global(Global::Storage(dtype)), Value::Text(key), _, Value::Int(_)],
        ) = self.items(id)
        else {
            return Err(Error::unsupported("a reference to something that is not a storage"));
        };
        if text_of(self.bytes, *kind) != "storage" {
            return Err(Error::unsupported("a reference to something that is not a storage"));
        }
        let stored = (*key, *dtype);
        self.count(1)?;
        self.storages.push(stored);
        self.push(Value::Storage(self.storages.len() as u32 - 1))
    }
}

/// A little-endian number of up to 8 bytes in two's complement.
fn long(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 8 {
        return None;
    }
    let fill = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
    let mut whole = [fill; 8];
    whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    Some(i64::from_le_bytes(whole))
}
