//! Parses the JSON of a safetensors header strictly, keeping only the needed values.
//!
//! The parser builds no tree of values, which could be many times as large as a hostile header. It reads
//! and drops unknown values, nested as deeply as `serde_json` allows (128).

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::{METADATA, TENSORS_MAX};
use crate::format::files::TensorRange;
use crate::model::{DIMENSIONS_MAX, Error, Result, check_tensor_name, quoted_name};

/// Largest number of metadata entries. More of the shortest entries would need far more memory than
/// the header.
const METADATA_ENTRIES_MAX: usize = 1 << 18;

/// The fields of a header. Tensors are in the order of the JSON.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) tensors: Vec<TensorRange>,
    pub(super) metadata: Vec<(String, String)>,
}

/// The fields of one tensor as in the JSON.
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: String,
    pub(super) dimensions: Dimensions,
    pub(super) offsets: (u64, u64),
}

/// The dimensions of a tensor. Keeps only as many as a shape can have, and counts all.
#[derive(Default)]
pub(super) struct Dimensions {
    sizes: [u64; DIMENSIONS_MAX],
    count: usize,
}

impl Dimensions {
    /// The dimensions, outermost first, or `None` if there are too many.
    pub(super) fn sizes(&self) -> Option<&[u64]> {
        self.sizes.get(..self.count)
    }
}

/// Parses `text`. `entry` checks each tensor as soon as it is read.
pub(super) fn parse(text: &str, entry: impl Fn(Tensor) -> Result<TensorRange>) -> Result<Fields> {
    let mut reading = Reading { fields: Fields::default(), entry, refused: None };
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

struct Reading<F> {
    fields: Fields,
    entry: F,
    /// An error of this program, which would lose its kind in `serde_json`.
    refused: Option<Error>,
}

impl<F> Reading<F> {
    /// Fails if there are too many tensors for one more.
    fn check_count(&self) -> Result<()> {
        if self.fields.tensors.len() < TENSORS_MAX {
            Ok(())
        } else {
            Err(Error::unsupported(format!("more than {TENSORS_MAX} tensors")))
        }
    }
}

/// The outermost object.
struct Top<'a, F>(&'a mut Reading<F>);

impl<'de, F: Fn(Tensor) -> Result<TensorRange>> DeserializeSeed<'de> for Top<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de, F: Fn(Tensor) -> Result<TensorRange>> Visitor<'de> for Top<'_, F> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name != METADATA {
                // Check before reading the value.
                let checked = check_tensor_name(&name).and_then(|()| self.0.check_count());
                let entry = match checked {
                    Ok(()) => (self.0.entry)(map.next_value_seed(OneTensor(name))?),
                    Err(error) => Err(error),
                };
                match entry {
                    Ok(entry) => self.0.fields.tensors.push(entry),
                    Err(error) => {
                        self.0.refused = Some(error);
                        return Err(A::Error::custom("refused"));
                    }
                }
            } else if metadata_seen {
                return Err(A::Error::duplicate_field(METADATA));
            } else {
                metadata_seen = true;
                self.0.fields.metadata = map.next_value_seed(Metadata)?;
            }
        }
        Ok(())
    }
}

/// The object that describes the tensor with this name.
struct OneTensor(String);

impl<'de> DeserializeSeed<'de> for OneTensor {
    type Value = Tensor;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Tensor, D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneTensor {
    type Value = Tensor;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "an object that describes tensor {:?}", quoted_name(&self.0))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensor, A::Error> {
        let (mut dtype, mut dimensions, mut offsets) = (None, None, None);
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
        Ok(Tensor {
            name: self.0,
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            dimensions: dimensions.ok_or_else(|| A::Error::missing_field("shape"))?,
            offsets: offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?,
        })
    }
}

/// Sets a field. Fails if it is set already.
fn once<T, E: serde::de::Error>(field: &mut Option<T>, name: &'static str, value: T) -> Result<(), E> {
    match field.replace(value) {
        Some(_) => Err(E::duplicate_field(name)),
        None => Ok(()),
    }
}

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Dimensions, D::Error> {
        input.deserialize_seq(DimensionsVisitor)
    }
}

struct DimensionsVisitor;

impl<'de> Visitor<'de> for DimensionsVisitor {
    type Value = Dimensions;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an array of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dimensions, A::Error> {
        let mut dimensions = Dimensions::default();
        while let Some(size) = seq.next_element()? {
            if let Some(place) = dimensions.sizes.get_mut(dimensions.count) {
                *place = size;
            }
            dimensions.count += 1;
        }
        Ok(dimensions)
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
