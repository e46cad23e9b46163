//! `tokenizer.json`, of which tokens and merges are read without a tree of values.

use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value;

use crate::model::{Error, Result};

/// A tokenizer.
#[derive(Default)]
pub(super) struct Tokenizer {
    /// The kind of its model: `BPE`, `WordPiece`, `Unigram`.
    pub(super) model: String,
    /// The tokens, each with its number. None of a model that lists them with scores.
    pub(super) vocabulary: Vec<(String, u64)>,
    /// Pairs of texts with a space between.
    pub(super) merges: Vec<String>,
    pub(super) ignores_merges: bool,
    pub(super) falls_back_to_bytes: Option<bool>,
    /// The token of unknown words.
    pub(super) unknown: Option<String>,
    pub(super) added: Vec<Added>,
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) post_processor: Value,
    pub(super) decoder: Value,
}

/// A token that was added to the model.
pub(super) struct Added {
    pub(super) id: u64,
    pub(super) content: String,
    pub(super) is_special: bool,
}

impl Tokenizer {
    /// Whether it has the pieces of a SentencePiece model of llama. Source: `LlamaHfVocab` of `gguf`.
    pub(super) fn is_pieces_of_llama(&self) -> bool {
        let is_sequence = self.decoder.get("type").and_then(Value::as_str) == Some("Sequence");
        let is_llama3 = self.ignores_merges && self.falls_back_to_bytes == Some(false);
        self.model == "BPE" && self.falls_back_to_bytes == Some(true) && is_sequence && !is_llama3
    }
}

/// Reads a tokenizer. Needs memory in proportion to the text.
///
/// # Errors
/// `Invalid` for JSON that does not have the form of one, or is nested deeper than 128 levels.
pub(super) fn parse(json: &[u8]) -> Result<Tokenizer> {
    let mut input = serde_json::Deserializer::from_slice(json);
    let tokenizer = Tokenizer::deserialize(&mut input).and_then(|tokenizer| input.end().map(|()| tokenizer));
    tokenizer.map_err(|error| Error::invalid(format!("tokenizer.json: {error}")))
}

/// The pairs in a file of lines.
pub(super) fn merges_of_text(text: &str) -> Vec<String> {
    let is_heading = text.lines().next().is_some_and(|line| line.trim().starts_with('#'));
    let lines = text.lines().skip(usize::from(is_heading));
    let pair = |line: &str| {
        let mut words = line.split_whitespace();
        let (left, right) = words.next().zip(words.next())?;
        words.next().is_none().then(|| format!("{left} {right}"))
    };
    lines.filter_map(pair).collect()
}

/// Reads the fields of an object, each by a function of its key.
struct Fields<'a, T>(&'a mut T, for<'b> fn(&'b mut T, &str) -> Field<'b>);

/// Where the value of a field goes.
enum Field<'a> {
    Model(&'a mut Tokenizer),
    Vocabulary(&'a mut Vec<(String, u64)>),
    Merges(&'a mut Vec<String>),
    Added(&'a mut Vec<Added>),
    Any(&'a mut Value),
    Text(&'a mut Option<String>),
    Flag(&'a mut Option<bool>),
    Ignored,
}

impl<'de> Deserialize<'de> for Tokenizer {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Tokenizer, D::Error> {
        let mut tokenizer = Tokenizer::default();
        input.deserialize_map(Fields(&mut tokenizer, field_of_tokenizer))?;
        Ok(tokenizer)
    }
}

fn field_of_tokenizer<'a>(tokenizer: &'a mut Tokenizer, key: &str) -> Field<'a> {
    match key {
        "model" => Field::Model(tokenizer),
        "added_tokens" => Field::Added(&mut tokenizer.added),
        "normalizer" => Field::Any(&mut tokenizer.normalizer),
        "pre_tokenizer" => Field::Any(&mut tokenizer.pre_tokenizer),
        "post_processor" => Field::Any(&mut tokenizer.post_processor),
        "decoder" => Field::Any(&mut tokenizer.decoder),
        _ => Field::Ignored,
    }
}

/// The fields of `model`.
#[derive(Default)]
struct Model {
    kind: Option<String>,
    vocabulary: Vec<(String, u64)>,
    merges: Vec<String>,
    ignores_merges: Option<bool>,
    falls_back_to_bytes: Option<bool>,
    unknown: Option<String>,
}

fn field_of_model<'a>(model: &'a mut Model, key: &str) -> Field<'a> {
    match key {
        "type" => Field::Text(&mut model.kind),
        "vocab" => Field::Vocabulary(&mut model.vocabulary),
        "merges" => Field::Merges(&mut model.merges),
        "ignore_merges" => Field::Flag(&mut model.ignores_merges),
        "byte_fallback" => Field::Flag(&mut model.falls_back_to_bytes),
        "unk_token" => Field::Text(&mut model.unknown),
        _ => Field::Ignored,
    }
}

impl<'de, T> Visitor<'de> for Fields<'_, T> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match (self.1)(&mut *self.0, &key) {
                Field::Model(tokenizer) => {
                    let mut model = Model::default();
                    map.next_value_seed(Object(Fields(&mut model, field_of_model)))?;
                    tokenizer.model = model.kind.unwrap_or_default();
                    tokenizer.vocabulary = model.vocabulary;
                    tokenizer.merges = model.merges;
                    tokenizer.ignores_merges = model.ignores_merges == Some(true);
                    tokenizer.falls_back_to_bytes = model.falls_back_to_bytes;
                    tokenizer.unknown = model.unknown;
                }
                Field::Vocabulary(all) => map.next_value_seed(Numbered(all))?,
                Field::Merges(all) => map.next_value_seed(Pairs(all))?,
                Field::Added(all) => map.next_value_seed(AddedList(all))?,
                Field::Any(value) => *value = map.next_value()?,
                Field::Text(text) => *text = map.next_value()?,
                Field::Flag(flag) => *flag = map.next_value()?,
                Field::Ignored => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

/// An object as the value of a field.
struct Object<V>(V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for Object<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<V::Value, D::Error> {
        input.deserialize_map(self.0)
    }
}

/// Tokens with their numbers: an object, or a list with scores, which is not kept.
struct Numbered<'a>(&'a mut Vec<(String, u64)>);

impl<'de> DeserializeSeed<'de> for Numbered<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Numbered<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("tokens with numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.0.push(entry);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Merges: texts, or lists of two texts, in which a space is written as that of byte pairs.
struct Pairs<'a>(&'a mut Vec<String>);

impl<'de> DeserializeSeed<'de> for Pairs<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Pairs<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of pairs")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(Pair(pair)) = list.next_element()? {
            self.0.push(pair);
        }
        Ok(())
    }
}

struct Pair(String);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Pair, D::Error> {
        input.deserialize_any(OnePair)
    }
}

struct OnePair;

impl<'de> Visitor<'de> for OnePair {
    type Value = Pair;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a text, or two texts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Pair, E> {
        Ok(Pair(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pair, A::Error> {
        let missing = || A::Error::custom("a merge of fewer than two texts");
        let left: String = list.next_element()?.ok_or_else(missing)?;
        let right: String = list.next_element()?.ok_or_else(missing)?;
        if list.next_element::<IgnoredAny>()?.is_some() {
            return Err(A::Error::custom("a merge of more than two texts"));
        }
        Ok(Pair([left, right].map(|part| part.replace(' ', "\u{120}")).join(" ")))
    }
}

/// The added tokens.
struct AddedList<'a>(&'a mut Vec<Added>);

impl<'de> DeserializeSeed<'de> for AddedList<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, input: D) -> Result<(), D::Error> {
        input.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for AddedList<'_> {
    type Value = ();

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(token) = list.next_element::<Value>()? {
            let content = token.get("content").and_then(Value::as_str);
            if let Some((id, content)) = token.get("id").and_then(Value::as_u64).zip(content) {
                let is_special = token.get("special").and_then(Value::as_bool) == Some(true);
                self.0.push(Added { id, content: content.to_owned(), is_special });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{merges_of_text, parse};

    #[test]
    fn tokens_and_merges_of_both_forms_are_read() {
        let json = br#"{"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "special": true}], "normalizer": null,
            "model": {"type": "BPE", "byte_fallback": true, "vocab": {"a": 0, "b": 1}, "merges": ["a b", ["a", " b"]], "x": {}}}"#;
        let tokenizer = parse(json).unwrap();
        assert_eq!(tokenizer.vocabulary, [("a".to_owned(), 0), ("b".to_owned(), 1)]);
        assert_eq!(tokenizer.merges, ["a b", "a \u{120}b"]);
        assert_eq!((tokenizer.model.as_str(), tokenizer.falls_back_to_bytes), ("BPE", Some(true)));
        assert!(tokenizer.added[0].is_special && tokenizer.added[0].id == 2);
        assert!(
            parse(br#"{"model": {"vocab": [["a", 0.5]], "merges": null}}"#).unwrap().vocabulary.is_empty()
        );
        for wrong in [
            "[]",
            "{\"model\": 1}",
            "{\"model\": {\"merges\": [[\"a\"]]}}",
            "{\"model\": {\"vocab\": {\"a\": -1}}}",
        ] {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(parse(&b"[".repeat(100_000)).is_err());
        let deep = ["{\"normalizer\": ", &"[".repeat(1000)].concat();
        assert!(parse(deep.as_bytes()).is_err());
        assert_eq!(merges_of_text("#version: 0.2\na b\n\nc\nd e f\n g h \n"), ["a b", "g h"]);
    }
}
