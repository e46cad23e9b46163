//! Parses the JSON of a safetensors header strictly, keeping only the needed values.
//!
//! The parser builds no tree of values, which could be many times as large as a hostile header. It reads
//! and drops unknown values, nested as deeply as `serde_json` allows (128).

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use smallvec::SmallVec;

use super::{ElementType, METADATA, TENSORS_MAX};
use crate::format::budget::Budget;
use crate::model::{DIMENSIONS_MAX, Error, Result, quoted_name};

/// Most dimensions that are read, also those that a tensor cannot have. NumPy's arrays have as many.
pub const DIMENSIONS_READ_MAX: usize = 64;

/// Longest name of an element type.
const TYPE_NAME_BYTES_MAX: usize = 32;

/// Largest number of metadata entries. More of the shortest entries would need far more memory than
/// the header.
const METADATA_ENTRIES_MAX: usize = 1 << 18;

/// The fields of a header. Tensors are in the order of the JSON.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) tensors: Vec<Tensor>,
    pub(super) metadata: Vec<(String, String)>,
}

/// The fields of one tensor as in the JSON.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) element_type: ElementType,
    /// The name of an element type that this program does not know.
    pub(super) unknown_type: Option<Box<str>>,
    pub(super) dimensions: Dimensions,
    pub(super) offsets: (u64, u64),
}

/// The dimensions of a tensor, outermost first.
pub(super) type Dimensions = SmallVec<[u64; DIMENSIONS_MAX]>;

/// Parses `text`. Takes a step for each entry, size and byte of a name or text.
pub(super) fn parse(text: &str, budget: &mut Budget) -> Result<Fields> {
    let mut reading = Reading { fields: Fields::default(), refused: None, budget };
    let mut input = serde_json::Deserializer::from_str(text);
    let outcome = Top(&mut reading).deserialize(&mut input).and_then(|()| input.end());
    match (reading.refused, outcome) {
        (Some(error), _) => Err(error),
        (None, Err(error)) => Err(Error::invalid(format!("safetensors header: {error}"))),
        (None, Ok(())) => Ok(reading.fields),
    }
}

/// A name that appears twice.
pub(super) fn duplicate<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut sorted: Vec<&str> = names.collect();
    sorted.sort_unstable();
    let mut neighbours = sorted.iter().zip(sorted.iter().skip(1));
    neighbours.find(|(left, right)| left == right).map(|(name, _)| *name)
}

struct Reading<'a> {
    fields: Fields,
    /// An error of this program, which would lose its kind in `serde_json`.
    refused: Option<Error>,
    budget: &'a mut Budget,
}

/// Keeps an error of this program apart.
fn kept<T, E: serde::de::Error>(refused: &mut Option<Error>, result: Result<T>) -> Result<T, E> {
    result.map_err(|error| {
        *refused = Some(error);
        E::custom("refused")
    })
}

/// The outermost object.
struct Top<'a, 'b>(&'a mut Reading<'b>);

impl<'de> DeserializeSeed<'de> for Top<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_, '_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Reading { fields, refused, budget } = self.0;
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            kept(refused, budget.take_entry(name.len()))?;
            if name != METADATA {
                if fields.tensors.len() == TENSORS_MAX {
                    let too_many = Error::unsupported(format!("more than {TENSORS_MAX} tensors"));
                    return kept(refused, Err(too_many));
                }
                let tensor = map.next_value_seed(OneTensor { name, refused: &mut *refused })?;
                kept(refused, budget.take(tensor.dimensions.len() as u64))?;
                fields.tensors.push(tensor);
            } else if metadata_seen {
                return Err(A::Error::duplicate_field(METADATA));
            } else {
                metadata_seen = true;
                fields.metadata = map.next_value_seed(Metadata)?;
                let mut texts = fields.metadata.iter().map(|(key, value)| key.len() + value.len());
                kept(refused, texts.try_for_each(|bytes| budget.take_entry(bytes)))?;
            }
        }
        Ok(())
    }
}

/// The object that describes the tensor with this name.
struct OneTensor<'a> {
    name: String,
    refused: &'a mut Option<Error>,
}

impl<'de> DeserializeSeed<'de> for OneTensor<'_> {
    type Value = Tensor;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Tensor, D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneTensor<'_> {
    type Value = Tensor;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "an object that describes tensor {:?}", quoted_name(&self.name))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensor, A::Error> {
        let OneTensor { name, refused } = self;
        let (mut dtype, mut dimensions, mut offsets) = (None::<String>, None::<Sizes>, None);
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "dtype" => once(&mut dtype, "dtype", map.next_value()?)?,
                "shape" => once(&mut dimensions, "shape", map.next_value()?)?,
                "data_offsets" => once(&mut offsets, "data_offsets", map.next_value()?)?,
                _ => {
                    map.next_value::<Dropped>()?;
                }
            }
        }
        let dtype = dtype.ok_or_else(|| A::Error::missing_field("dtype"))?;
        let Sizes { kept: dimensions, count } = dimensions.ok_or_else(|| A::Error::missing_field("shape"))?;
        let offsets = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        if count > DIMENSIONS_READ_MAX {
            let why = Error::unsupported(format!("more than {DIMENSIONS_READ_MAX} dimensions"));
            return kept(refused, Err(why.at(format_args!("tensor {:?}", quoted_name(&name)))));
        }
        let known = ElementType::from_name(&dtype);
        if known.is_none() && !may_be_type(&dtype) {
            let why = Error::unsupported(format!("element type {:?}", quoted_name(&dtype)));
            return kept(refused, Err(why.at(format_args!("tensor {:?}", quoted_name(&name)))));
        }
        let unknown_type = known.is_none().then(|| dtype.into_boxed_str());
        let element_type = known.unwrap_or(ElementType::Unknown);
        Ok(Tensor { name, element_type, unknown_type, dimensions, offsets })
    }
}

/// Whether a newer version of the format may call an element type so: all names of types are alike.
fn may_be_type(name: &str) -> bool {
    let is_of_names = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    name.len() <= TYPE_NAME_BYTES_MAX
        && name.starts_with(|letter: char| letter.is_ascii_uppercase())
        && name.bytes().all(is_of_names)
}

/// Sets a field. Fails if it is set already.
fn once<T, E: serde::de::Error>(field: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        Some(_) => Err(E::duplicate_field(name)),
        None => Ok(()),
    }
}

/// Sizes of which not all may be kept.
#[derive(Default)]
struct Sizes {
    kept: Dimensions,
    count: usize,
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Sizes, D::Error> {
        input.deserialize_seq(SizesVisitor)
    }
}

struct SizesVisitor;

impl<'de> Visitor<'de> for SizesVisitor {
    type Value = Sizes;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an array of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Sizes, A::Error> {
        let mut sizes = Sizes::default();
        while let Some(size) = seq.next_element()? {
            sizes.count += 1;
            if sizes.count <= DIMENSIONS_READ_MAX {
                sizes.kept.push(size);
            }
        }
        Ok(sizes)
    }
}

/// The file's own metadata: an object of texts, or null for none.
struct Metadata;

impl<'de> DeserializeSeed<'de> for Metadata {
    type Value = Vec<(String, String)>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Metadata {
    type Value = Vec<(String, String)>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of texts")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(Vec::new())
    }

    fn visit_some<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_map(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries: Vec<(String, String)> = Vec::new();
        while let Some(entry) = map.next_entry()? {
            if entries.len() == METADATA_ENTRIES_MAX {
                return Err(A::Error::custom("too many entries of metadata"));
            }
            entries.push(entry);
        }
        match duplicate(entries.iter().map(|(key, _)| key.as_str())) {
            Some(key) => Err(A::Error::custom(format_args!("metadata {:?} twice", quoted_name(key)))),
            None => Ok(entries),
        }
    }
}

/// A value that is validated and dropped. `IgnoredAny` of serde would accept invalid texts and numbers.
struct Dropped;

impl<'de> Deserialize<'de> for Dropped {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Dropped, D::Error> {
        input.deserialize_any(DroppedVisitor)
    }
}

struct DroppedVisitor;

impl<'de> Visitor<'de> for DroppedVisitor {
    type Value = Dropped;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_str<E>(self, _: &str) -> Result<Dropped, E> {
        Ok(Dropped)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dropped, A::Error> {
        while seq.next_element::<Dropped>()?.is_some() {}
        Ok(Dropped)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Dropped, A::Error> {
        while map.next_entry::<String, Dropped>()?.is_some() {}
        Ok(Dropped)
    }
}
