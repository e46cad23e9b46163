//! The arguments of the functions that make tensors of storages.

use crate::format::files::torch::names::{Element, Global, Rebuild};
use crate::format::files::torch::pickle::{Machine, Value};
use crate::model::{DIMENSIONS_MAX, Dtype, Result, Shape};

/// A tensor as the pickle describes it, or why it is not a range of a storage.
pub(super) type Described = Result<Stored, Odd>;

/// Elements of a storage.
#[derive(Debug)]
pub(super) struct Stored {
    /// The number of the storage.
    pub storage: u32,
    pub dtype: Dtype,
    /// In elements.
    pub offset: u64,
    pub shape: Shape,
    /// In elements, outermost first; `None` if the elements follow each other in row-major order.
    pub strides: Option<Box<[u64]>>,
}

/// Why a tensor is not shown: the reason, and the number of the name that it concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Odd {
    pub why: &'static str,
    pub name: Option<u32>,
}

/// Attributes whose assignment changes the elements of a tensor.
const CHANGING: [&str; 3] = ["data", "real", "imag"];

fn odd<T>(why: &'static str) -> Result<T, Odd> {
    Err(Odd { why, name: None })
}

impl Machine<'_, '_> {
    /// The tensor that `function` makes of arguments: a new one, or one of the arguments.
    pub(super) fn rebuilt(&mut self, function: Rebuild, arguments: u32) -> Result<Value> {
        let found = self.list_items(arguments);
        let attributes = match (function, found) {
            (Rebuild::Parameter, [tensor @ Value::Tensor(_), _, _]) => return Ok(*tensor),
            (Rebuild::ParameterWithState, [tensor @ Value::Tensor(_), _, _, state]) => {
                Some((*tensor, *state))
            }
            (
                Rebuild::FromType,
                [Value::Global(Global::Rebuild(function)), class, Value::Tuple(inner), state],
            ) if *function != Rebuild::FromType => {
                let (function, class, inner, state) = (*function, *class, *inner, *state);
                if class != Value::Global(Global::TensorClass) {
                    return self.tensor(odd("it is of a class that only Python knows"));
                }
                // Not deeper than this: no other function leads here.
                Some((self.rebuilt(function, inner)?, state))
            }
            _ => None,
        };
        if let Some((tensor, state)) = attributes {
            let is_plain = self.keeps_elements(state)?;
            return if is_plain { Ok(tensor) } else { self.tensor(odd("it has attributes that change it")) };
        }
        let described = self.described(function, self.list_items(arguments));
        self.tensor(described)
    }

    /// A tensor of a storage: offset, size and strides in elements.
    fn described(&self, function: Rebuild, arguments: &[Value]) -> Described {
        let (storage, offset, size, stride, dtype, metadata) = match (function, arguments) {
            (Rebuild::Odd(why), _) => return odd(why),
            (Rebuild::Plain, [storage, offset, size, stride])
            | (Rebuild::V2, [storage, offset, size, stride, _, _]) => {
                (storage, offset, size, stride, None, None)
            }
            (Rebuild::V2, [storage, offset, size, stride, _, _, metadata]) => {
                (storage, offset, size, stride, None, Some(metadata))
            }
            (Rebuild::V3, [storage, offset, size, stride, _, _, dtype]) => {
                (storage, offset, size, stride, Some(dtype), None)
            }
            (Rebuild::V3, [storage, offset, size, stride, _, _, dtype, metadata]) => {
                (storage, offset, size, stride, Some(dtype), Some(metadata))
            }
            _ => return odd("its arguments are not those that PyTorch writes"),
        };
        let Value::Storage(storage) = *storage else { return odd("it has no storage in the file") };
        match metadata {
            None | Some(Value::Other) => {}
            Some(Value::Dict(list)) => match self.list_items(*list).first() {
                None => {}
                Some(Value::Text(text)) if self.text(*text) == "neg" => return odd("it has a negative bit"),
                Some(Value::Text(text)) if self.text(*text) == "conj" => {
                    return odd("it has a conjugate bit");
                }
                Some(_) => return odd("it has metadata that change it"),
            },
            Some(_) => return odd("it has metadata that change it"),
        }
        let dtype = match dtype {
            Some(Value::Global(Global::Dtype(dtype))) => *dtype,
            Some(Value::Global(Global::Other(name))) => {
                return Err(Odd {
                    why: "its element type is one that tierfs does not have",
                    name: Some(*name),
                });
            }
            Some(_) => return odd("it has no element type"),
            None => match self.storages.get(storage as usize).map(|storage| storage.element) {
                Some(Element::Known(dtype)) => dtype,
                Some(Element::Unknown(name)) => {
                    return Err(Odd {
                        why: "its element type is one that tierfs does not have",
                        name: Some(name),
                    });
                }
                None => return odd("it has no storage in the file"),
            },
        };
        let (Some(sizes), Some(strides)) = (self.numbers(*size), self.numbers(*stride)) else {
            return odd("its sizes or strides are not lists of at most 8 numbers");
        };
        let offset = match *offset {
            Value::Int(offset) => u64::try_from(offset).ok(),
            _ => None,
        };
        let Some(offset) = offset else { return odd("its offset is not a number") };
        if sizes.len() != strides.len() {
            return odd("it has different numbers of sizes and strides");
        }
        let Some(shape) = Shape::new(&sizes) else { return odd("it has too many elements") };
        let mut step = 1_u64;
        let mut is_contiguous = true;
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            is_contiguous &= *size == 1 || *stride == step;
            step = step.saturating_mul(*size);
        }
        let is_contiguous = is_contiguous || shape.elements() == 0;
        let strides = (!is_contiguous).then(|| strides.into_boxed_slice());
        Ok(Stored { storage, dtype, offset, shape, strides })
    }

    /// The sizes or strides of a tensor.
    fn numbers(&self, value: Value) -> Option<Vec<u64>> {
        let (Value::Tuple(list) | Value::List(list)) = value else { return None };
        let number = |value: &Value| match value {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        };
        let items = self.list_items(list);
        if items.len() > DIMENSIONS_MAX { None } else { items.iter().map(number).collect() }
    }

    /// Whether a tensor with these attributes has the same elements: they are a dictionary, or two, whose names
    /// are not those of elements.
    fn keeps_elements(&mut self, state: Value) -> Result<bool> {
        let parts = match state {
            Value::Other => return Ok(true),
            Value::Dict(_) => [state, Value::Other],
            Value::Tuple(list) => match *self.list_items(list) {
                [one, other] => [one, other],
                _ => return Ok(false),
            },
            _ => return Ok(false),
        };
        for part in parts {
            let Value::Dict(list) = part else {
                if part == Value::Other { continue } else { return Ok(false) }
            };
            self.budget.take(self.list_items(list).len() as u64)?;
            let is_changing = |key: &Value| match key {
                Value::Text(text) => CHANGING.contains(&self.text(*text)),
                _ => true,
            };
            if self.list_items(list).iter().step_by(2).any(is_changing) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
