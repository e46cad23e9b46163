//! Reads the pickle of a checkpoint as a description, executing nothing.
//!
//! Numbers, texts, tuples, lists and dictionaries become values, and so do tensors and storages, which the functions in
//! `torch/names.rs` make. Every other value of a pickle becomes an object: its class or function, its arguments, its
//! state and its items. Only tensors outside of objects are shown.
//!
//! Each operation takes a bounded number of steps, or as many as it has items, which a [`Budget`] counts. Texts are
//! compared once, when they are read, and are numbers from then on.
//!
//! Source: `pickletools.py` of Python (operations), `torch/serialization.py` (storages).

use std::collections::HashMap;

use crate::format::budget::Budget;
use crate::format::cursor::Reader;
use crate::format::files::torch::names::{Element, Global, global};
use crate::format::files::torch::tensor::{Described, Odd};
use crate::model::{Error, ErrorKind, Result};

/// Most values that a pickle may make.
pub(super) const VALUES_MAX: usize = 1 << 22;

/// Longest line with a name.
const LINE_BYTES_MAX: usize = 256;

/// A value. Tuples, lists, dictionaries and objects are numbers of lists of items.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Int(i64),
    /// The number of a text. Equal texts have the same.
    Text(u32),
    Tuple(u32),
    List(u32),
    /// Keys and values alternate.
    Dict(u32),
    /// Its first item is its class, or the function that makes it.
    Object(u32),
    Global(Global),
    Storage(u32),
    Tensor(u32),
    /// A value that describes no tensor: None, a boolean, a float, bytes.
    Other,
}

impl Value {
    /// The list of its items.
    pub(super) fn list(self) -> Option<u32> {
        match self {
            Value::Tuple(list) | Value::List(list) | Value::Dict(list) | Value::Object(list) => Some(list),
            _ => None,
        }
    }
}

/// A storage.
#[derive(Debug)]
pub(super) struct Storage {
    /// The text that names its bytes.
    pub key: u32,
    pub element: Element,
    /// Bytes that the pickle says it has.
    pub bytes: u64,
}

/// A read pickle.
pub(super) struct Pickle<'a> {
    /// The value that it describes.
    pub top: Value,
    pub lists: Vec<Vec<Value>>,
    pub texts: Vec<&'a str>,
    /// Modules and names.
    pub names: Vec<(&'a str, &'a str)>,
    pub storages: Vec<Storage>,
    pub tensors: Vec<Described>,
}

/// The machine that executes a pickle's program.
pub(super) struct Machine<'a, 'b> {
    bytes: &'a [u8],
    input: Reader<'a>,
    pub(super) budget: &'b mut Budget,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: HashMap<u32, Value>,
    lists: Vec<Vec<Value>>,
    texts: Vec<&'a str>,
    by_text: HashMap<&'a str, u32>,
    names: Vec<(&'a str, &'a str)>,
    pub(super) storages: Vec<Storage>,
    /// By the number of the key's text. PyTorch loads a storage once, as the first reference describes it.
    by_key: HashMap<u32, u32>,
    tensors: Vec<Described>,
    made: usize,
}

impl<'a> Pickle<'a> {
    /// Reads a pickle. Needs memory in proportion to its bytes, and to at most [`VALUES_MAX`] values.
    pub(super) fn read(bytes: &'a [u8], budget: &mut Budget) -> Result<Pickle<'a>> {
        Pickle::read_first(bytes, budget).map(|(pickle, _)| pickle)
    }

    /// The pickle that some bytes begin with, and its length.
    pub(super) fn read_first(bytes: &'a [u8], budget: &mut Budget) -> Result<(Pickle<'a>, usize)> {
        let mut machine = Machine {
            bytes,
            input: Reader::new(bytes),
            budget,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            lists: Vec::new(),
            texts: Vec::new(),
            by_text: HashMap::new(),
            names: Vec::new(),
            storages: Vec::new(),
            by_key: HashMap::new(),
            tensors: Vec::new(),
            made: 0,
        };
        let top = machine.run().map_err(|error| match error.kind() {
            ErrorKind::Corrupt => Error::invalid(error.to_string()),
            _ => error,
        })?;
        let len = machine.input.position();
        let Machine { lists, texts, names, storages, tensors, .. } = machine;
        Ok((Pickle { top, lists, texts, names, storages, tensors }, len))
    }

    /// The items of a list.
    pub(super) fn items(&self, list: u32) -> &[Value] {
        self.lists.get(list as usize).map_or(&[], Vec::as_slice)
    }

    pub(super) fn text(&self, text: u32) -> &'a str {
        self.texts.get(text as usize).copied().unwrap_or_default()
    }

    /// The module and the name with this number.
    pub(super) fn name(&self, number: u32) -> (&'a str, &'a str) {
        self.names.get(number as usize).copied().unwrap_or_default()
    }
}

fn wrong(text: &str) -> Error {
    Error::invalid(format!("a pickle with {text}"))
}

impl<'a> Machine<'a, '_> {
    fn run(&mut self) -> Result<Value> {
        loop {
            let at = self.input.position();
            let operation = self.input.u8()?;
            self.budget.take(1)?;
            match operation {
                b'.' => return self.pop(),
                // PROTO and FRAME.
                0x80 => self.input.skip(1)?,
                0x95 => self.input.skip(8)?,
                b'(' => self.marks.push(self.stack.len()),
                b'0' if self.stack.len() == self.bottom() => self.marked().map(|_| ())?,
                b'0' => self.pop().map(|_| ())?,
                b'1' => self.marked().map(|_| ())?,
                b'2' => {
                    let top = self.top()?;
                    self.push(top)?;
                }
                // NONE, NEWTRUE, NEWFALSE.
                b'N' | 0x88 | 0x89 => self.push(Value::Other)?,
                b'G' => self.skipped(8)?,
                b'F' => {
                    self.line(usize::MAX)?;
                    self.push(Value::Other)?;
                }
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
                b'I' | b'L' => self.digits()?,
                0x8a => {
                    let len = usize::from(self.input.u8()?);
                    self.long(len)?;
                }
                0x8b => {
                    let len = self.length(4)?;
                    self.long(len)?;
                }
                // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, and the texts of Python 2.
                b'X' | b'T' => self.text_of_length(4)?,
                0x8c | b'U' => self.text_of_length(1)?,
                0x8d => self.text_of_length(8)?,
                b'V' => {
                    let line = self.line(usize::MAX)?;
                    self.plain_text(line)?;
                }
                b'S' => {
                    let line = self.line(usize::MAX)?;
                    let quoted = |quote: char| line.strip_prefix(quote)?.strip_suffix(quote);
                    self.plain_text(quoted('\'').or_else(|| quoted('"')).unwrap_or("\\"))?;
                }
                // BINBYTES, SHORT_BINBYTES, BINBYTES8, BYTEARRAY8, NEXT_BUFFER; READONLY_BUFFER changes nothing.
                b'B' => self.bytes_of_length(4)?,
                b'C' => self.bytes_of_length(1)?,
                0x8e | 0x96 => self.bytes_of_length(8)?,
                0x97 => self.push(Value::Other)?,
                0x98 => {}
                b']' => self.list(Vec::new(), Value::List)?,
                b'}' => self.list(Vec::new(), Value::Dict)?,
                b')' => self.list(Vec::new(), Value::Tuple)?,
                // EMPTY_SET, FROZENSET.
                0x8f => self.set(Vec::new())?,
                0x91 => {
                    let items = self.marked()?;
                    self.set(items)?;
                }
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
                    self.append(&[item], false)?;
                }
                // APPENDS, ADDITEMS.
                b'e' | 0x90 => {
                    let items = self.marked()?;
                    self.append(&items, false)?;
                }
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.append(&[key, value], true)?;
                }
                b'u' => {
                    let items = self.marked()?;
                    self.append(&items, true)?;
                }
                // BINPUT, LONG_BINPUT, PUT, MEMOIZE.
                b'q' => {
                    let place = self.input.u8()?;
                    self.keep(place.into())?;
                }
                b'r' => {
                    let place = self.input.u32()?;
                    self.keep(place)?;
                }
                b'p' => {
                    let place = self.place()?;
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
                b'g' => {
                    let place = self.place()?;
                    self.recall(place)?;
                }
                b'c' => {
                    let (module, name) = (self.line(LINE_BYTES_MAX)?, self.line(LINE_BYTES_MAX)?);
                    let named = self.named(module, name);
                    self.push(named)?;
                }
                0x93 => {
                    let (Value::Text(name), Value::Text(module)) = (self.pop()?, self.pop()?) else {
                        return Err(wrong("the name of a class that is not text"));
                    };
                    let named = self.named(self.text(module), self.text(name));
                    self.push(named)?;
                }
                b'R' => {
                    let (arguments, called) = (self.pop()?, self.pop()?);
                    self.call(called, arguments)?;
                }
                // NEWOBJ, NEWOBJ_EX.
                0x81 => {
                    let (arguments, class) = (self.pop()?, self.pop()?);
                    self.new_object(class, arguments)?;
                }
                0x92 => {
                    let (named, arguments, class) = (self.pop()?, self.pop()?, self.pop()?);
                    self.list(vec![class, arguments, named], Value::Object)?;
                }
                // INST, OBJ.
                b'i' => {
                    let (module, name) = (self.line(LINE_BYTES_MAX)?, self.line(LINE_BYTES_MAX)?);
                    let class = self.named(module, name);
                    let mut items = self.marked()?;
                    items.insert(0, class);
                    self.list(items, Value::Object)?;
                }
                b'o' => {
                    let items = self.marked()?;
                    self.list(items, Value::Object)?;
                }
                b'b' => self.build()?,
                b'Q' => self.storage()?,
                _ => {
                    return Err(Error::unsupported(format!(
                        "operation {operation:#04x} at byte {at}, which checkpoints do not have"
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
        self.budget.take(more as u64)
    }

    fn push(&mut self, value: Value) -> Result<()> {
        self.count(1)?;
        self.stack.push(value);
        Ok(())
    }

    fn top(&self) -> Result<Value> {
        self.stack.last().copied().ok_or_else(|| wrong("an empty stack"))
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

    /// A set, whose items have no names.
    fn set(&mut self, items: Vec<Value>) -> Result<()> {
        let class = self.named("builtins", "set");
        self.list(vec![class], Value::Object)?;
        self.append(&items, false)
    }

    /// Adds items to the list, dictionary or object on the stack.
    fn append(&mut self, items: &[Value], is_dict: bool) -> Result<()> {
        self.count(items.len())?;
        let list = match self.stack.last().filter(|_| self.stack.len() > self.bottom()) {
            Some(Value::Object(list)) => *list,
            Some(Value::Dict(list)) if is_dict && items.len().is_multiple_of(2) => *list,
            Some(Value::List(list)) if !is_dict => *list,
            _ => return Err(wrong("items of a value that is not a list or dictionary")),
        };
        self.add(list, items);
        Ok(())
    }

    fn add(&mut self, list: u32, items: &[Value]) {
        if let Some(list) = self.lists.get_mut(list as usize) {
            list.extend_from_slice(items);
        }
    }

    fn keep(&mut self, place: u32) -> Result<()> {
        self.count(1)?;
        let top = self.top()?;
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
        usize::try_from(length).map_err(|_| wrong("a text that goes past the end"))
    }

    /// A little-endian number in two's complement.
    fn long(&mut self, len: usize) -> Result<()> {
        let number = long(self.input.bytes(len)?);
        self.push(number.map_or(Value::Other, Value::Int))
    }

    /// A number in digits, or a boolean.
    fn digits(&mut self) -> Result<()> {
        let line = self.line(usize::MAX)?;
        let digits = line.strip_suffix('L').unwrap_or(line);
        let number = digits.parse().ok().filter(|_| !matches!(digits, "00" | "01"));
        self.push(number.map_or(Value::Other, Value::Int))
    }

    fn place(&mut self) -> Result<u32> {
        self.line(LINE_BYTES_MAX)?.parse().map_err(|_| wrong("an index that is not a number"))
    }

    /// A text. Surrogates, which Python permits, and bytes of Python 2 are not always valid text.
    fn text_of_length(&mut self, width: usize) -> Result<()> {
        let len = self.length(width)?;
        match std::str::from_utf8(self.input.bytes(len)?) {
            Ok(text) => self.known_text(text),
            Err(_) => self.push(Value::Other),
        }
    }

    /// A text of a line, which is not a text here if it has escapes.
    fn plain_text(&mut self, text: &'a str) -> Result<()> {
        if text.contains('\\') { self.push(Value::Other) } else { self.known_text(text) }
    }

    fn known_text(&mut self, text: &'a str) -> Result<()> {
        let next = self.texts.len() as u32;
        let number = *self.by_text.entry(text).or_insert(next);
        if number == next {
            self.texts.push(text);
        }
        self.push(Value::Text(number))
    }

    pub(super) fn text(&self, text: u32) -> &'a str {
        self.texts.get(text as usize).copied().unwrap_or_default()
    }

    fn bytes_of_length(&mut self, width: usize) -> Result<()> {
        let len = self.length(width)?;
        self.skipped(len)
    }

    fn line(&mut self, most: usize) -> Result<&'a str> {
        let start = self.input.position();
        let rest = self.bytes.get(start..).unwrap_or_default();
        let len = rest.iter().take(most).position(|byte| *byte == b'\n');
        let line = self.input.bytes(len.ok_or_else(|| wrong("a line without an end"))?)?;
        self.input.skip(1)?;
        std::str::from_utf8(line).map_err(|_| wrong("a line that is not UTF-8"))
    }

    fn named(&mut self, module: &'a str, name: &'a str) -> Value {
        let found = global(module, name, self.names.len() as u32);
        if matches!(found, Global::Other(_) | Global::Storage(Element::Unknown(_))) {
            self.names.push((module, name));
        }
        Value::Global(found)
    }

    pub(super) fn list_items(&self, list: u32) -> &[Value] {
        self.lists.get(list as usize).map_or(&[], Vec::as_slice)
    }

    /// REDUCE: a class or function with arguments.
    fn call(&mut self, called: Value, arguments: Value) -> Result<()> {
        let made = match (called, arguments) {
            (Value::Global(called), Value::Tuple(list)) => self.called(called, list)?,
            _ => None,
        };
        match made {
            Some(made) => self.push(made),
            None => self.list(vec![called, arguments], Value::Object),
        }
    }

    /// The value that a known name makes of its arguments.
    fn called(&mut self, called: Global, arguments: u32) -> Result<Option<Value>> {
        let given = self.list_items(arguments);
        let items = match (called, given.len(), given.first().copied()) {
            (Global::Rebuild(function), ..) => return self.rebuilt(function, arguments).map(Some),
            (Global::Size, 1, Some(sizes @ (Value::Tuple(_) | Value::List(_)))) => return Ok(Some(sizes)),
            (Global::Dict, 0, _) | (Global::DefaultDict, 0 | 1, _) => Vec::new(),
            (Global::Dict, 1, Some(Value::Dict(list))) => {
                self.budget.take(self.list_items(list).len() as u64)?;
                self.list_items(list).to_vec()
            }
            (Global::Dict, 1, Some(Value::List(pairs) | Value::Tuple(pairs))) => {
                self.budget.take(self.list_items(pairs).len() as u64)?;
                match self.pairs(pairs) {
                    Some(pairs) => pairs.into_flattened(),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        self.count(items.len())?;
        self.lists.push(items);
        Ok(Some(Value::Dict(self.lists.len() as u32 - 1)))
    }

    /// The keys and values in a list of pairs.
    fn pairs(&self, list: u32) -> Option<Vec<[Value; 2]>> {
        let pair = |pair: &Value| match self.list_items(pair.list()?) {
            [key, value] => Some([*key, *value]),
            _ => None,
        };
        self.list_items(list).iter().map(pair).collect()
    }

    /// NEWOBJ: an object without its state.
    fn new_object(&mut self, class: Value, arguments: Value) -> Result<()> {
        match class {
            Value::Global(Global::Dict) => self.list(Vec::new(), Value::Dict),
            Value::Global(Global::TensorClass) => {
                let why = "its storage is set after it is made";
                let made = self.tensor(Err(Odd { why, name: None }))?;
                self.push(made)
            }
            _ => self.list(vec![class, arguments], Value::Object),
        }
    }

    pub(super) fn tensor(&mut self, described: Described) -> Result<Value> {
        self.count(1)?;
        self.tensors.push(described);
        Ok(Value::Tensor(self.tensors.len() as u32 - 1))
    }

    /// BUILD: the state of an object. The attributes of a dictionary, such as the `_metadata` of a state_dict, are no
    /// items of it.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        match self.top()? {
            Value::Object(list) => {
                self.count(1)?;
                self.add(list, &[state]);
            }
            Value::Tensor(tensor) => {
                if let Some(tensor) = self.tensors.get_mut(tensor as usize) {
                    *tensor = Err(Odd { why: "it has a state that is set when it is loaded", name: None });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// BINPERSID: `('storage', class, key, device, elements)`.
    fn storage(&mut self) -> Result<()> {
        let id = self.pop()?;
        let items = id.list().map(|list| self.list_items(list)).unwrap_or_default();
        // Before archives a sixth item said which part of another storage it is; it is None.
        let items = match items {
            [items @ .., Value::Other] if items.len() == 5 => items,
            items => items,
        };
        let [
            Value::Text(kind),
            Value::Global(Global::Storage(element)),
            Value::Text(key),
            _,
            Value::Int(elements),
        ] = *items
        else {
            return Err(Error::unsupported("a reference to something that is not a storage"));
        };
        let elements = u64::try_from(elements).map_err(|_| wrong("a storage of fewer than 0 elements"))?;
        let bytes = match element {
            Element::Known(dtype) => dtype.bytes_of(elements),
            Element::Unknown(_) => Some(u64::MAX),
        };
        let bytes = bytes.ok_or_else(|| wrong("a storage of more bytes than can be counted"))?;
        if self.text(kind) != "storage" {
            return Err(Error::unsupported("a reference to something that is not a storage"));
        }
        let next = self.storages.len() as u32;
        let number = *self.by_key.entry(key).or_insert(next);
        if number == next {
            self.count(1)?;
            self.storages.push(Storage { key, element, bytes });
        }
        self.push(Value::Storage(number))
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
