//! The names of the tensors in a pickle: the keys of dictionaries and places in lists that lead to them.
//!
//! Lists and dictionaries may be shared, and may contain themselves. Their items are looked at once; what then remains
//! are those with tensors below. A walk over these makes the names, each of which takes its length from the budget.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::format::budget::Budget;
use crate::format::files::torch::names::Global;
use crate::format::files::torch::pickle::{Pickle, Value};
use crate::format::files::torch::tensor::{Odd, Stored};
use crate::format::files::{View, zip};
use crate::model::{
    CONTAINER_NAMES_MAX, Dtype, Error, Result, Shape, TENSOR_NAME_BYTES_MAX, check_tensor_name, quoted_name,
};

/// Deepest nesting of dictionaries and lists.
const DEPTH_MAX: usize = 60;

/// The name of a tensor outside dictionaries and lists.
const ONLY_NAME: &str = "tensor";

/// Steps for a tensor beside the bytes of its name: about the bytes that describe it in memory.
const TENSOR_STEPS: u64 = 128;

/// A key of a dictionary, or a place in a list.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Key {
    Text(u32),
    Number(i64),
    /// A key that is neither text nor number.
    Odd,
}

/// A list or dictionary: the items that lead to tensors.
type Branch = Vec<(Key, Value)>;

/// The names of tensors that are left out, each with the reason.
type Others = Vec<(String, String)>;

/// A tensor, by its place in the file.
pub(super) struct Found {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Shape,
    /// The bytes from its first element to the end of the last one.
    pub range: Range<u64>,
    /// `None` if the elements follow each other.
    pub view: Option<View>,
}

/// Finds the tensors below the top of a pickle.
pub(super) struct Walk<'a, 'b> {
    pickle: &'a Pickle<'a>,
    /// The bytes of each storage.
    storages: &'a [Option<&'a zip::Entry>],
    budget: &'b mut Budget,
    /// By list, of those with tensors below.
    branches: HashMap<u32, Branch>,
    /// The lists that lead to the present value.
    above: Vec<u32>,
    /// The keys that lead to it.
    name: String,
    names: HashSet<String>,
    found: Vec<Found>,
    others: Others,
}

impl<'a, 'b> Walk<'a, 'b> {
    pub(super) fn new(
        pickle: &'a Pickle<'a>,
        storages: &'a [Option<&'a zip::Entry>],
        budget: &'b mut Budget,
    ) -> Result<Walk<'a, 'b>> {
        let branches = branches(pickle, budget)?;
        Ok(Walk {
            pickle,
            storages,
            budget,
            branches,
            above: Vec::new(),
            name: String::new(),
            names: HashSet::new(),
            found: Vec::new(),
            others: Vec::new(),
        })
    }

    /// The tensors that were found, and those that are left out.
    pub(super) fn end(self) -> (Vec<Found>, Others) {
        (self.found, self.others)
    }

    /// Visits a value, to which `above` and `name` lead.
    pub(super) fn visit(&mut self, value: Value) -> Result<()> {
        self.budget.take(1)?;
        let list = match value {
            Value::Tensor(number) => return self.tensor(number),
            Value::Object(list) if self.has_tensors(list) => {
                let why = match self.pickle.items(list).first() {
                    Some(Value::Global(Global::Other(number))) => {
                        format!("it is in an object of {}, which only Python can load", self.named(*number))
                    }
                    _ => "it is in an object that only Python can load".to_owned(),
                };
                return self.leave_out(why);
            }
            Value::List(list) | Value::Tuple(list) | Value::Dict(list) if self.has_tensors(list) => list,
            _ => return Ok(()),
        };
        if self.above.contains(&list) {
            return self.leave_out("it is a list or dictionary that contains itself".to_owned());
        }
        if self.above.len() >= DEPTH_MAX {
            return self.leave_out(format!("it is in more than {DEPTH_MAX} dictionaries or lists"));
        }
        self.above.push(list);
        let len = self.name.len();
        // Lent for the visit, so that it can use the rest.
        let branch = self.branches.remove(&list).unwrap_or_default();
        for (key, value) in &branch {
            match self.add_to_name(*key)? {
                Ok(()) => self.visit(*value)?,
                Err(why) => self.leave_out(why.to_owned())?,
            }
            self.name.truncate(len);
        }
        self.branches.insert(list, branch);
        self.above.pop();
        Ok(())
    }

    fn has_tensors(&self, list: u32) -> bool {
        self.branches.contains_key(&list) || self.above.contains(&list)
    }

    /// Adds a key to the name, or says why the name cannot have it.
    fn add_to_name(&mut self, key: Key) -> Result<Result<(), &'static str>> {
        let number;
        let text = match key {
            Key::Text(text) => self.pickle.text(text),
            Key::Number(place) => {
                number = place.to_string();
                number.as_str()
            }
            Key::Odd => return Ok(Err("it is a value of a key that is neither text nor number")),
        };
        if self.name.len() + text.len() >= TENSOR_NAME_BYTES_MAX {
            return Ok(Err("it has a name of more than 4096 bytes"));
        }
        self.budget.take(text.len() as u64)?;
        if self.above.len() > 1 {
            self.name.push('/');
        }
        self.name.push_str(text);
        Ok(Ok(()))
    }

    /// Leaves out what the present name leads to.
    fn leave_out(&mut self, why: String) -> Result<()> {
        let name = quoted_name(if self.above.is_empty() { ONLY_NAME } else { &self.name });
        self.budget.take(TENSOR_STEPS + (name.len() + why.len()) as u64)?;
        self.others.push((name.to_owned(), why));
        Ok(())
    }

    /// The module and the name with this number.
    fn named(&self, number: u32) -> String {
        let (module, name) = self.pickle.name(number);
        format!("{}.{}", quoted_name(module), quoted_name(name))
    }

    fn tensor(&mut self, number: u32) -> Result<()> {
        let found = self.pickle.tensors.get(number as usize);
        let found = found.ok_or_else(|| Error::invalid("a tensor without a description"))?;
        let name = if self.above.is_empty() { ONLY_NAME } else { self.name.as_str() };
        self.budget.take(TENSOR_STEPS + 2 * name.len() as u64)?;
        let Stored { storage, dtype, offset, shape, strides } = match found {
            Ok(stored) => stored,
            Err(Odd { why, name: None }) => return self.leave_out((*why).to_owned()),
            Err(Odd { why, name: Some(number) }) => {
                let why = format!("{why}: {}", self.named(*number));
                return self.leave_out(why);
            }
        };
        let place = |error: Error| error.at(format_args!("tensor {:?}", quoted_name(name)));
        let said = self.pickle.storages.get(*storage as usize).map_or(0, |storage| storage.bytes);
        let found = self.storages.get(*storage as usize).copied().flatten();
        let found = found.ok_or_else(|| place(Error::invalid("its storage is missing")))?;
        if !found.is_stored {
            return self.leave_out("it has a compressed storage".to_owned());
        }
        let there = said.min(found.data.end - found.data.start);
        let view = |begin: u64| match strides {
            Some(strides) => View { begin, strides: strides.clone() },
            None => View::contiguous(begin, shape),
        };
        let range = offset.checked_mul(dtype.bytes()).and_then(|begin| view(begin).range(*dtype, shape));
        let range = match range {
            // A tensor without elements may begin anywhere.
            _ if shape.elements() == 0 => 0..0,
            Some(range) if range.end <= there => range,
            _ => return Err(place(Error::invalid("goes past the end of its storage"))),
        };
        let range = found.data.start + range.start..found.data.start + range.end;
        if dtype.bytes_of(shape.elements()).is_none_or(|bytes| bytes > i64::MAX as u64) {
            return self.leave_out("it has more bytes than a file can have".to_owned());
        }
        if check_tensor_name(name).is_err() {
            return self.leave_out("it has a name of too many parts".to_owned());
        }
        let name = name.to_owned();
        if !self.names.insert(name.clone()) {
            return self.leave_out("another tensor has the same name".to_owned());
        }
        if self.found.len() == CONTAINER_NAMES_MAX {
            return Err(Error::unsupported(format!("more than {CONTAINER_NAMES_MAX} tensors")));
        }
        let view = strides.as_ref().map(|_| view(range.start));
        self.found.push(Found { name, dtype: *dtype, shape: shape.clone(), range, view });
        Ok(())
    }
}

/// The lists with tensors below, each with the items that lead to them. Those of an object are not told apart.
fn branches(pickle: &Pickle<'_>, budget: &mut Budget) -> Result<HashMap<u32, Branch>> {
    let holds = holding(pickle, budget)?;
    let leads = |value: Value| match value {
        Value::Tensor(_) => true,
        value => value.list().is_some_and(|list| holds.get(list as usize).is_some_and(|holds| *holds)),
    };
    let mut branches = HashMap::new();
    for value in pickle.lists.iter().flatten().chain([&pickle.top]).filter(|value| leads(**value)) {
        let Some(list) = value.list().filter(|list| !branches.contains_key(list)) else { continue };
        let items = pickle.items(list);
        let entries = match value {
            Value::Dict(_) => last_of_each_key(items),
            _ => items.iter().enumerate().map(|(place, value)| (Key::Number(place as i64), *value)).collect(),
        };
        branches.insert(list, entries.into_iter().filter(|(_, value)| leads(*value)).collect());
    }
    Ok(branches)
}

/// The entries of a dictionary. Of those with one key the last counts.
fn last_of_each_key(items: &[Value]) -> Branch {
    let mut entries = Branch::with_capacity(items.len() / 2);
    let mut places: HashMap<Key, usize> = HashMap::with_capacity(items.len() / 2);
    for [key, value] in items.as_chunks::<2>().0 {
        let key = match key {
            Value::Text(text) => Key::Text(*text),
            Value::Int(number) => Key::Number(*number),
            _ => Key::Odd,
        };
        let known = places.get(&key).filter(|_| key != Key::Odd).and_then(|place| entries.get_mut(*place));
        match known {
            Some(entry) => entry.1 = *value,
            None => {
                places.insert(key, entries.len());
                entries.push((key, *value));
            }
        }
    }
    entries
}

/// For each list, whether there is a tensor below it.
fn holding(pickle: &Pickle<'_>, budget: &mut Budget) -> Result<Vec<bool>> {
    let mut holds = vec![false; pickle.lists.len()];
    let (mut found, mut containers) = (Vec::new(), Vec::new());
    for (list, items) in pickle.lists.iter().enumerate() {
        budget.take(1 + items.len() as u64)?;
        let list = list as u32;
        containers.extend(items.iter().filter_map(|item| Some((item.list()?, list))));
        if items.iter().any(|item| matches!(item, Value::Tensor(_))) {
            found.push(list);
        }
    }
    containers.sort_unstable();
    while let Some(list) = found.pop() {
        let Some(is_known) = holds.get_mut(list as usize) else { continue };
        if std::mem::replace(is_known, true) {
            continue;
        }
        let first = containers.partition_point(|(item, _)| *item < list);
        let above = containers.get(first..).unwrap_or_default().iter().take_while(|(item, _)| *item == list);
        found.extend(above.map(|(_, container)| *container));
    }
    Ok(holds)
}
