//! The tokens of a model, as metadata of a GGUF file.
//!
//! Source: `TextModel` and the classes of models in the converter, `LlamaHfVocab` of the Python package `gguf`. Answers of
//! transformers follow from `tokenizer.json` and `tokenizer_config.json`.

mod fingerprint;
mod json;
mod pre_tokenizer;
mod sentence_pieces;
mod special;
mod test_text;
mod tokenizer_names;

use serde_json::{Map, Value};

use super::architecture::Vocabulary;
use super::config::Config;
use super::entries::{Entries, Entry};
use super::model_files::Files;
use crate::model::{Error, Result};
use json::Tokenizer;
use special::Special;

/// The most tokens. Models have a few hundred thousand.
const TOKENS_MAX: u32 = 1 << 22;

/// The types of tokens in GGUF files.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// The size of the vocabulary of CodeLlama, and its token for the end of a turn.
const CODE_LLAMA: (u32, u32) = (32016, 32010);
/// The size of the vocabulary of the small models of Granite, which want no token before the text.
const GRANITE: u32 = 49152;

/// The tokens of a model.
pub(super) struct Tokens {
    /// The metadata before the tokens.
    before: Vec<(&'static str, Entry)>,
    model: &'static str,
    pre: String,
    list: List,
    special: Special,
    /// The metadata after them.
    after: Vec<(&'static str, Entry)>,
}

/// The tokens by number.
#[derive(Default)]
struct List {
    texts: Vec<String>,
    /// Empty where tokens have no scores.
    scores: Vec<f32>,
    kinds: Vec<i32>,
}

impl List {
    fn push(&mut self, text: String, score: Option<f32>, kind: i32) {
        self.texts.push(text);
        self.scores.extend(score);
        self.kinds.push(kind);
    }

    fn replace(&mut self, at: u64, text: String, score: f32, kind: i32) {
        let Ok(at) = usize::try_from(at) else { return };
        let places = (self.texts.get_mut(at), self.scores.get_mut(at), self.kinds.get_mut(at));
        if let (Some(old_text), Some(old_score), Some(old_kind)) = places {
            (*old_text, *old_score, *old_kind) = (text, score, kind);
        }
    }
}

impl Tokens {
    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.list.texts.len()
    }

    /// Sets the metadata.
    pub(super) fn set(self, out: &mut Entries) {
        self.before.into_iter().for_each(|(key, entry)| out.set(key, entry));
        out.text("tokenizer.ggml.model", self.model);
        out.text("tokenizer.ggml.pre", &self.pre);
        out.set("tokenizer.ggml.tokens", Entry::Texts(self.list.texts));
        out.set("tokenizer.ggml.scores", Entry::F32s(self.list.scores));
        out.set("tokenizer.ggml.token_type", Entry::I32s(self.list.kinds));
        self.special.set(out);
        self.after.into_iter().for_each(|(key, entry)| out.set(key, entry));
    }
}

/// The tokens of a model.
///
/// # Errors
/// `Unsupported` for a tokenizer of another kind, and for byte pairs whose rule for words is not known; `Invalid` for files that
/// do not fit each other.
pub(super) fn vocabulary(kind: Vocabulary, files: &Files, config: &Config) -> Result<Tokens> {
    let settings = files.object("tokenizer_config.json")?;
    let has_pieces = files.get("tokenizer.model").is_some();
    let parts = Parts { files, config, settings: settings.as_ref() };
    match kind {
        Vocabulary::Llama => parts.llama(has_pieces),
        Vocabulary::Qwen if has_pieces => parts.pieces(),
        Vocabulary::Gemma if has_pieces => {
            let mut tokens = parts.pieces()?;
            tokens.after.push(("tokenizer.ggml.add_space_prefix", Entry::Bool(false)));
            Ok(tokens)
        }
        Vocabulary::Qwen | Vocabulary::Gemma => parts.byte_pairs(parts.tokenizer()?),
        Vocabulary::Bert => parts.word_pieces(),
    }
}

/// The files that tokens follow from.
struct Parts<'a> {
    files: &'a Files,
    config: &'a Config,
    settings: Option<&'a Map<String, Value>>,
}

impl Parts<'_> {
    fn tokenizer(&self) -> Result<Tokenizer> {
        let json = self.files.get("tokenizer.json");
        json::parse(json.ok_or_else(|| Error::invalid("tokenizer.json is missing, or too long"))?)
    }

    fn llama(&self, has_pieces: bool) -> Result<Tokens> {
        let mut tokens = if has_pieces {
            self.pieces()?
        } else {
            let tokenizer = self.tokenizer()?;
            if tokenizer.is_pieces_of_llama() {
                self.pieces_of_json(&tokenizer)?
            } else {
                self.byte_pairs(tokenizer)?
            }
        };
        let adds_space = self.settings.and_then(|settings| settings.get("add_prefix_space"));
        if let Some(Value::Bool(adds_space)) = adds_space {
            tokens.before.push(("tokenizer.ggml.add_space_prefix", Entry::Bool(*adds_space)));
        }
        match self.config.count(&["vocab_size"])? {
            Some(size) if size == CODE_LLAMA.0 => {
                tokens.after.push(("tokenizer.ggml.eot_token_id", Entry::U32(CODE_LLAMA.1)));
            }
            Some(GRANITE) => tokens.after.push(("tokenizer.ggml.add_bos_token", Entry::Bool(false))),
            _ => {}
        }
        Ok(tokens)
    }

    fn tokens(&self, model: &'static str, pre: &str, list: List, special: Special) -> Tokens {
        let (before, after) = (Vec::new(), Vec::new());
        Tokens { before, model, pre: pre.to_owned(), list, special, after }
    }

    /// The special tokens: without merges, and of numbers below that of tokens if it is given.
    fn special(
        &self,
        tokenizer: Option<&Tokenizer>,
        merges: Vec<String>,
        most: Option<usize>,
    ) -> Result<Special> {
        special::read(self.files, self.config, self.settings, tokenizer, merges, most)
    }

    /// The number of tokens that the configuration names.
    fn size(&self) -> Result<Option<u32>> {
        let size = self.config.count(&["vocab_size_per_layer_input", "vocab_size"])?;
        if size.is_some_and(|size| size > TOKENS_MAX) {
            return Err(Error::unsupported(format!("more than {TOKENS_MAX} tokens")));
        }
        Ok(size)
    }

    /// The pieces of `tokenizer.model`.
    fn pieces(&self) -> Result<Tokens> {
        let pieces = sentence_pieces::parse(self.files.get("tokenizer.model").unwrap_or_default())?;
        let size = match self.size()?.filter(|size| *size > 0) {
            Some(size) => size as usize,
            None => pieces.len(),
        };
        let mut list = List::default();
        (0..size).for_each(|at| list.push(format!("[PAD{at}]"), Some(-10_000.0), UNUSED));
        for (at, piece) in (0..).zip(pieces) {
            list.replace(at, piece.text, piece.score, piece.kind);
        }
        if let Some(added) = self.files.object("added_tokens.json")? {
            for (text, at) in added {
                if let Some(at) = at.as_u64() {
                    list.replace(at, text, -1000.0, USER_DEFINED);
                }
            }
        }
        let decoder = self.settings.and_then(|settings| settings.get("added_tokens_decoder")?.as_object());
        for (at, token) in decoder.into_iter().flatten() {
            let Some((at, text)) = at.parse().ok().zip(token.get("content").and_then(Value::as_str)) else {
                continue;
            };
            let is_special = token.get("special").and_then(Value::as_bool) == Some(true);
            let (text, kind) = if is_special || looks_special(text) {
                (text.to_owned(), CONTROL)
            } else {
                (text.replace('\u{2581}', " "), USER_DEFINED)
            };
            list.replace(at, text, -1000.0, kind);
        }
        let tokenizer = self.files.get("tokenizer.json").map(json::parse).transpose()?;
        let special = self.special(tokenizer.as_ref(), Vec::new(), Some(list.texts.len()))?;
        Ok(self.tokens("llama", "default", list, special))
    }

    /// Pieces in `tokenizer.json`, without scores.
    fn pieces_of_json(&self, tokenizer: &Tokenizer) -> Result<Tokens> {
        let named = special::named(self.settings);
        let mut texts: Vec<Option<&str>> = vec![None; tokenizer.vocabulary.len()];
        for (text, at) in &tokenizer.vocabulary {
            if let Some(place) = usize::try_from(*at).ok().and_then(|at| texts.get_mut(at)) {
                *place = Some(text);
            }
        }
        let mut list = List::default();
        for (at, text) in texts.iter().enumerate() {
            let text = text.ok_or_else(|| Error::invalid(format!("tokenizer.json has no token {at}")))?;
            let kind = if is_byte(text) {
                BYTE
            } else if named.contains(text) {
                CONTROL
            } else {
                NORMAL
            };
            list.push(text.to_owned(), Some(-1000.0), kind);
        }
        let mut added: Vec<_> =
            tokenizer.added.iter().filter(|added| added.id >= texts.len() as u64).collect();
        added.sort_by_key(|added| added.id);
        for added in added {
            let kind = if named.contains(&added.content) { CONTROL } else { USER_DEFINED };
            list.push(added.content.clone(), Some(-1000.0), kind);
        }
        let special = self.special(Some(tokenizer), Vec::new(), Some(list.texts.len()))?;
        Ok(self.tokens("llama", "default", list, special))
    }

    /// Byte pairs.
    fn byte_pairs(&self, mut tokenizer: Tokenizer) -> Result<Tokens> {
        if tokenizer.model != "BPE" {
            return Err(self.other_model(&tokenizer, "BPE"));
        }
        let list = self.base(&tokenizer)?;
        let pre = pre_tokenizer::of_byte_pairs(&tokenizer)?;
        let mut merges = std::mem::take(&mut tokenizer.merges);
        if merges.is_empty()
            && let Some(text) = self.files.get("merges.txt")
        {
            merges = json::merges_of_text(&String::from_utf8_lossy(text));
        }
        let special = self.special(Some(&tokenizer), merges, None)?;
        Ok(self.tokens("gpt2", pre, list, special))
    }

    /// Word pieces: llama.cpp marks begins of words where they mark the rest.
    fn word_pieces(&self) -> Result<Tokens> {
        let tokenizer = self.tokenizer()?;
        if tokenizer.model != "WordPiece" {
            return Err(self.other_model(&tokenizer, "WordPiece"));
        }
        let mut list = self.base(&tokenizer)?;
        let pre = pre_tokenizer::of_word_pieces(&tokenizer);
        for (text, _) in list.texts.iter_mut().zip(&list.kinds).filter(|(_, kind)| **kind != CONTROL) {
            *text = match text.strip_prefix("##") {
                Some(rest) => rest.to_owned(),
                None => format!("\u{2581}{text}"),
            };
        }
        let special = self.special(Some(&tokenizer), Vec::new(), Some(list.texts.len()))?;
        let mut tokens = self.tokens("bert", pre, list, special);
        let types = self.config.count(&["type_vocab_size"])?.unwrap_or(1);
        tokens.before.push(("tokenizer.ggml.token_type_count", Entry::U32(types)));
        Ok(tokens)
    }

    fn other_model(&self, tokenizer: &Tokenizer, wanted: &str) -> Error {
        let found = crate::model::quoted_name(&tokenizer.model);
        Error::unsupported(format!(
            "tokenizer.json has a tokenizer of the kind {found:?}; {wanted} is read for this architecture"
        ))
    }

    /// The tokens of `tokenizer.json` by number, with the added ones.
    fn base(&self, tokenizer: &Tokenizer) -> Result<List> {
        let size = match self.size()? {
            Some(size) => size as usize,
            None => tokenizer.vocabulary.len(),
        };
        let mut texts: Vec<Option<(&str, Option<bool>)>> = vec![None; size];
        let named = special::named(self.settings);
        let plain = tokenizer.vocabulary.iter().map(|(text, at)| (text.as_str(), *at, None));
        let added = tokenizer.added.iter().map(|added| {
            let is_special = added.is_special || named.contains(&added.content);
            (added.content.as_str(), added.id, Some(is_special))
        });
        for (text, at, is_special) in plain.chain(added) {
            let place = usize::try_from(at).ok().and_then(|at| texts.get_mut(at));
            let wrong =
                || Error::invalid(format!("tokenizer.json has a token {at}, config.json {size} tokens"));
            *place.ok_or_else(wrong)? = Some((text, is_special));
        }
        let mut list = List::default();
        for (at, token) in texts.into_iter().enumerate() {
            match token {
                None => list.push(format!("[PAD{at}]"), None, UNUSED),
                Some((text, None)) => list.push(text.to_owned(), None, NORMAL),
                Some((text, Some(is_special))) if is_special || looks_special(text) => {
                    list.push(text.to_owned(), None, CONTROL);
                }
                Some((text, Some(_))) => list.push(text.replace('\u{2581}', " "), None, USER_DEFINED),
            }
        }
        Ok(list)
    }
}

/// Whether a token that is not marked as special is one by its text.
fn looks_special(text: &str) -> bool {
    let is_between = |begin: &str, end: &str| text.starts_with(begin) && text.ends_with(end);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || is_between("<|", "|>")
        || is_between("<\u{ff5c}", "\u{ff5c}>")
        || is_between("<unused", ">")
}

/// Whether a token stands for a byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|text| text.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
