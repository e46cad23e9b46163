//! The index of a sharded model: `model.safetensors.index.json`, `pytorch_model.bin.index.json`. It names the file of each
//! tensor, as a path relative to its directory:
//!
//! ```json
//! {"metadata": {"total_size": 16}, "weight_map": {"w": "model-00002-of-00002.safetensors"}}
//! ```
//!
//! Source: `transformers.utils.hub.get_checkpoint_shard_files`. If a name appears twice, the last counts, as in Python.
//!
//! [`to_lines`] writes it as text: the name of a file, then its tensors, each after a tab.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::format::budget::Budget;
use crate::model::{Error, Result};

/// Longest index that is read, in bytes. That of a model of 91,000 tensors has 9 MB.
pub const BYTES_MAX: u64 = 32 << 20;

/// The suffixes of the files that an index is for, before that of the index.
const OF: [&str; 2] = [".safetensors", ".bin"];

/// Whether a file of this name is an index: `.index.json` after the suffix of a container, perhaps with the word of a
/// variant (`.index.fp16.json`).
pub fn is_name(name: &[u8]) -> bool {
    let text = String::from_utf8_lossy(name);
    let Some((before, after)) = text.strip_suffix(".json").and_then(|stem| stem.rsplit_once(".index")) else {
        return false;
    };
    let is_variant = after.strip_prefix('.').is_some_and(|word| !word.is_empty() && !word.contains('.'));
    let is_of = |suffix: &str| before.ends_with(suffix) && before.len() > suffix.len();
    (after.is_empty() || is_variant) && OF.into_iter().any(is_of)
}

/// The file that an index of PyTorch checkpoints is in, as the index of the same tensors in safetensors files:
/// `model.safetensors.index.json` for `pytorch_model.bin.index.json`. `None` for another name.
pub fn safetensors_name(name: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(name).ok().filter(|_| is_name(name))?;
    let (before, after) = text.rsplit_once(".bin.index")?;
    Some(format!("{}.safetensors.index{after}", without_prefix(before)))
}

/// The name in safetensors of a checkpoint with this name, without suffixes: `model` for `pytorch_model`.
pub fn without_prefix(stem: &str) -> &str {
    stem.strip_prefix("pytorch_").filter(|rest| rest.starts_with("model")).unwrap_or(stem)
}

/// The JSON of an index.
pub fn write(files: &BTreeMap<String, Vec<String>>, total_size: Option<u64>) -> Result<Vec<u8>> {
    let tensors: BTreeMap<&str, &str> = files
        .iter()
        .flat_map(|(file, tensors)| tensors.iter().map(move |tensor| (&**tensor, &**file)))
        .collect();
    let metadata: BTreeMap<&str, u64> = total_size.map(|size| ("total_size", size)).into_iter().collect();
    let json = serde_json::json!({ "metadata": metadata, "weight_map": tensors });
    let mut text = serde_json::to_vec_pretty(&json)
        .map_err(|error| Error::invalid(format!("index of shards: {error}")))?;
    text.push(b'\n');
    Ok(text)
}

/// The containers of a sharded model, each with the names of its tensors.
pub type Shards = BTreeMap<String, Vec<String>>;

/// The tensors of each file, in the order of names. Needs memory in proportion to the JSON. Each name of it is copied at most
/// twice, so the budget suffices.
///
/// # Errors
/// `Invalid` for JSON that does not have the form of an index.
pub fn parse(json: &[u8], budget: &mut Budget) -> Result<Shards> {
    parse_with_size(json, budget).map(|(files, _)| files)
}

/// As [`parse`], with `metadata.total_size`.
///
/// # Errors
/// As those of [`parse`].
pub fn parse_with_size(json: &[u8], budget: &mut Budget) -> Result<(Shards, Option<u64>)> {
    budget.add_read(json.len() as u64);
    let mut input = serde_json::Deserializer::from_slice(json);
    let whole = Whole::deserialize(&mut input).and_then(|whole| input.end().map(|()| whole));
    let whole = whole.map_err(|error| Error::invalid(format!("index of shards: {error}")))?;
    let Whole { files, total_size } = whole;
    let mut tensors = Shards::new();
    for (tensor, file) in files {
        budget.take_entry(2 * (tensor.len() + file.len()))?;
        tensors.entry(file).or_default().push(tensor);
    }
    tensors.values_mut().for_each(|tensors| tensors.sort_unstable());
    Ok((tensors, total_size))
}

/// An index of other names.
pub struct Renamed(serde_json::Map<String, serde_json::Value>);

/// An index with the names that `rename` returns, without those for which it returns none. `None` for JSON that is not an index.
pub fn renamed(json: &[u8], mut rename: impl FnMut(&str) -> Option<String>) -> Option<Renamed> {
    let mut all: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json).ok()?;
    let map = all.get_mut("weight_map")?.as_object_mut()?;
    *map = std::mem::take(map).into_iter().filter_map(|(name, file)| Some((rename(&name)?, file))).collect();
    Some(Renamed(all))
}

impl Renamed {
    /// The JSON, with the bytes of all tensors.
    pub fn with_total(mut self, bytes: u64) -> Vec<u8> {
        if let Some(metadata) = self.0.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.insert("total_size".to_owned(), bytes.into());
        }
        let mut text = serde_json::to_vec_pretty(&self.0).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// The text of an index, without names that have control characters.
pub fn to_lines(files: &BTreeMap<String, Vec<String>>) -> String {
    let is_plain = |name: &&String| !name.is_empty() && !name.chars().any(char::is_control);
    let mut lines = String::new();
    for (file, tensors) in files.iter().filter(|(file, _)| is_plain(file)) {
        lines.push_str(file);
        lines.push('\n');
        for tensor in tensors.iter().filter(is_plain) {
            lines.push('\t');
            lines.push_str(tensor);
            lines.push('\n');
        }
    }
    lines
}

/// The files of a text, each with the range of its tensors' lines.
pub fn files(lines: &str) -> Vec<(&str, Range<usize>)> {
    let mut found: Vec<(&str, Range<usize>)> = Vec::new();
    let mut at = 0;
    for line in lines.split_inclusive('\n') {
        at += line.len();
        match found.last_mut().filter(|_| line.starts_with('\t')) {
            Some((_, range)) => range.end = at,
            None => found.push((line.trim_end_matches('\n'), at..at)),
        }
    }
    found
}

/// The tensors of a file, from its lines.
pub fn tensors(lines: &str) -> impl Iterator<Item = &str> {
    lines.lines().filter_map(|line| line.strip_prefix('\t'))
}

/// The outermost object.
struct Whole {
    /// The file of each tensor.
    files: HashMap<String, String>,
    total_size: Option<u64>,
}

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Whole, D::Error> {
        input.deserialize_map(WholeVisitor)
    }
}

struct WholeVisitor;

impl<'de> Visitor<'de> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Whole, A::Error> {
        let (mut files, mut total_size) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "weight_map" => files = Some(map.next_value_seed(WeightMap)?),
                "metadata" => total_size = map.next_value::<TotalSize>()?.0,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let files = files.ok_or_else(|| A::Error::missing_field("weight_map"))?;
        Ok(Whole { files, total_size })
    }
}

/// The number `total_size` of an object, or the number itself. Other values have none.
struct TotalSize(Option<u64>);

impl<'de> Deserialize<'de> for TotalSize {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<TotalSize, D::Error> {
        input.deserialize_any(TotalSizeVisitor)
    }
}

struct TotalSizeVisitor;

impl<'de> Visitor<'de> for TotalSizeVisitor {
    type Value = TotalSize;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<TotalSize, E> {
        Ok(TotalSize(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<TotalSize, E> {
        Ok(TotalSize(None))
    }

    fn visit_i64<E>(self, _: i64) -> Result<TotalSize, E> {
        Ok(TotalSize(None))
    }

    fn visit_u64<E>(self, size: u64) -> Result<TotalSize, E> {
        Ok(TotalSize(Some(size)))
    }

    fn visit_f64<E>(self, _: f64) -> Result<TotalSize, E> {
        Ok(TotalSize(None))
    }

    fn visit_str<E>(self, _: &str) -> Result<TotalSize, E> {
        Ok(TotalSize(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<TotalSize, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(TotalSize(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TotalSize, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == "total_size" {
                found = map.next_value::<TotalSize>()?.0;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(TotalSize(found))
    }
}

struct WeightMap;

impl<'de> DeserializeSeed<'de> for WeightMap {
    type Value = HashMap<String, String>;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<Self::Value, D::Error> {
        input.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap {
    type Value = HashMap<String, String>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object of names of files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut files = HashMap::new();
        while let Some((tensor, file)) = map.next_entry()? {
            files.insert(tensor, file);
        }
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::{files, is_name, parse, tensors, to_lines};
    use crate::format::budget::Budget;
    use crate::model::ErrorKind;

    #[test]
    fn an_index_is_told_by_its_name() {
        for name in [
            "model.safetensors.index.json",
            "pytorch_model.bin.index.json",
            "diffusion_pytorch_model.fp16.safetensors.index.json",
            "model.safetensors.index.fp16.json",
        ] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for name in [
            "index.json",
            "model.index.json",
            ".safetensors.index.json",
            "model.safetensors.index.json.tmp",
            "model.safetensors.json",
            "model.safetensors.index.a.b.json",
            "model.safetensors.index..json",
            "model.safetensors.indexes.json",
        ] {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_files_of_an_index_come_back_from_its_text() {
        let json = br#"{"metadata":{"a":[1,{}]},"weight_map":{"b":"2","a":"1","c":"2","x\ny":"2","a":"2","d":"\t"}}"#;
        let lines = to_lines(&parse(json, &mut Budget::default()).unwrap());
        assert_eq!(lines, "2\n\ta\n\tb\n\tc\n");
        let found = files(&lines);
        let (name, range) = found.first().unwrap();
        assert_eq!((found.len(), *name), (1, "2"));
        assert_eq!(tensors(&lines[range.clone()]).collect::<Vec<_>>(), ["a", "b", "c"]);
        let two = "a\nb\n\tx\n\ty\nc";
        assert_eq!(files(two), [("a", 2..2), ("b", 4..10), ("c", 11..11)]);
        assert_eq!(files("\tx\n").len(), 1);
        let none = parse(br#"{"weight_map":{}}"#, &mut Budget::default()).unwrap();
        assert_eq!(none.len(), 0);
    }

    #[test]
    fn json_that_is_not_an_index_is_invalid() {
        let deep = [b"{\"a\":".repeat(100_000), b"1".to_vec()].concat();
        for json in [
            &b""[..],
            b"[]",
            b"{}",
            b"{\"weight_map\":[]}",
            b"{\"weight_map\":{\"a\":1}}",
            b"{\"weight_map\":{\"a\":\"b\"}} x",
            b"{\"weight_map\":{\"\xff\":\"b\"}}",
            &deep,
        ] {
            assert_eq!(parse(json, &mut Budget::default()).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
