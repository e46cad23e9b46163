//! The names that a pickle of tensors uses, and the element types of PyTorch.
//!
//! A name that is not here describes an object that only Python can make. It is kept as one, and its tensors are not
//! shown.
//!
//! Source: `torch/_weights_only_unpickler.py`, `torch/_utils.py`, `torch/_tensor.py`.

use crate::model::Dtype;

/// A name that a pickle uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Global {
    /// A class of dictionaries. It is called without arguments, or with pairs.
    Dict,
    /// `defaultdict`, called with what makes its values.
    DefaultDict,
    Size,
    /// A function that makes a tensor.
    Rebuild(Rebuild),
    /// A class of tensors that adds nothing to their elements.
    TensorClass,
    /// The class of a storage.
    Storage(Element),
    Dtype(Dtype),
    /// Any other name: its number in the pickle.
    Other(u32),
}

/// The elements of a storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Element {
    Known(Dtype),
    /// Of a type that tensors do not have: the number of the name of the storage's class.
    Unknown(u32),
}

/// The functions that make tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rebuild {
    /// `_rebuild_tensor(storage, offset, size, stride)`.
    Plain,
    /// `_rebuild_tensor_v2`, with `requires_grad, backward_hooks, metadata` after these.
    V2,
    /// `_rebuild_tensor_v3`, with `requires_grad, backward_hooks, dtype, metadata` after these.
    V3,
    /// `_rebuild_parameter(tensor, requires_grad, backward_hooks)`.
    Parameter,
    /// `_rebuild_parameter_with_state`, with the attributes after these.
    ParameterWithState,
    /// `_rebuild_from_type_v2(function, class, arguments, attributes)`.
    FromType,
    /// Another one. Its tensors are not a range of the file: the reason.
    Odd(&'static str),
}

/// The function or class of a name. `number` is its number in the pickle.
pub(super) fn global(module: &str, name: &str, number: u32) -> Global {
    match (module, name) {
        ("collections", "OrderedDict") | ("builtins" | "__builtin__", "dict") => Global::Dict,
        ("collections", "defaultdict") => Global::DefaultDict,
        ("torch", "Size") => Global::Size,
        ("torch" | "torch._tensor", "Tensor")
        | ("torch.nn.parameter" | "torch.nn", "Parameter" | "Buffer") => Global::TensorClass,
        ("torch.storage", "UntypedStorage") => Global::Storage(Element::Known(Dtype::U8)),
        ("torch._utils" | "torch._tensor", name) => {
            rebuild(name).map_or(Global::Other(number), Global::Rebuild)
        }
        ("torch", name) => match name.strip_suffix("Storage") {
            Some("Untyped") => Global::Storage(Element::Known(Dtype::U8)),
            Some(kind) => Global::Storage(of_storage(kind).map_or(Element::Unknown(number), Element::Known)),
            None => of_torch(name).map_or(Global::Other(number), Global::Dtype),
        },
        _ => Global::Other(number),
    }
}

fn rebuild(name: &str) -> Option<Rebuild> {
    Some(match name {
        "_rebuild_tensor" => Rebuild::Plain,
        "_rebuild_tensor_v2" => Rebuild::V2,
        "_rebuild_tensor_v3" => Rebuild::V3,
        "_rebuild_parameter" => Rebuild::Parameter,
        "_rebuild_parameter_with_state" => Rebuild::ParameterWithState,
        "_rebuild_from_type_v2" => Rebuild::FromType,
        "_rebuild_qtensor" => Rebuild::Odd("it is quantized by PyTorch"),
        "_rebuild_nested_tensor" => Rebuild::Odd("it is nested"),
        "_rebuild_meta_tensor_no_storage" => Rebuild::Odd("it is on the device meta, so it has no bytes"),
        "_rebuild_wrapper_subclass" => Rebuild::Odd("it is of a class that only Python knows"),
        name if name.starts_with("_rebuild_sparse") => Rebuild::Odd("it is sparse"),
        name if name.starts_with("_rebuild_device") || name == "_rebuild_xla_tensor" => {
            Rebuild::Odd("it was copied from another device when it was saved")
        }
        name if name.starts_with("_rebuild") => {
            Rebuild::Odd("its constructor is one that tierfs does not read")
        }
        _ => return None,
    })
}

/// The bytes of an element of a storage of PyTorch with elements that tensors do not have.
pub(super) fn bytes_of_unknown(class: &str) -> Option<u64> {
    Some(match class {
        "QInt8Storage" | "QUInt8Storage" => 1,
        "QInt32Storage" => 4,
        "ComplexDoubleStorage" => 16,
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
        "ComplexFloat" => Dtype::C64,
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
        "complex64" | "cfloat" => Dtype::C64,
        "float8_e4m3fn" => Dtype::F8E4M3,
        "float8_e5m2" => Dtype::F8E5M2,
        "float8_e8m0fnu" => Dtype::F8E8M0,
        _ => return None,
    })
}
