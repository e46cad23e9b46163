//! Special tokens: their numbers, which of them are added to a text, the template of chats.
//!
//! Source: `SpecialVocab` of the Python package `gguf`, which reads `tokenizer.json`, `tokenizer_config.json` and
//! `config.json` in this order.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::json::Tokenizer;
use crate::format::files::hub::Files;
use crate::format::files::hub::config::Config;
use crate::format::files::hub::entries::{Entries, Entry};
use crate::model::{Error, Result};

/// The special tokens that are looked for.
const KINDS: [&str; 7] = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"];

/// The keys of their numbers in GGUF files. The number of `cls` has none.
const ID_KEYS: [(&str, &str); 8] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
    ("eom", "tokenizer.ggml.eom_token_id"),
];

/// The keys that say whether they are added.
const ADD_KEYS: [(&str, &str); 3] = [
    ("bos", "tokenizer.ggml.add_bos_token"),
    ("eos", "tokenizer.ggml.add_eos_token"),
    ("sep", "tokenizer.ggml.add_sep_token"),
];

/// The levels of normalizers in normalizers that are looked at.
const DEPTH_MAX: u32 = 16;

/// The special tokens of a model, in the order in which they were found.
#[derive(Default)]
pub(super) struct Special {
    merges: Vec<String>,
    ids: Vec<(&'static str, u32)>,
    added: Vec<(&'static str, bool)>,
    templates: Vec<(String, String)>,
    lowercase: Option<bool>,
    strips_accents: Option<bool>,
    /// The number that ids are below, if it is known.
    most: Option<usize>,
    kinds: Vec<&'static str>,
}

/// The texts that a configuration names as special.
pub(super) fn named(settings: Option<&Map<String, Value>>) -> HashSet<String> {
    let mut found = HashSet::new();
    let Some(settings) = settings else { return found };
    let class = settings.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
    // The tokens that the class assumes where its configuration names none.
    let assumed: &[(&str, &str)] =
        if class.starts_with("Llama") { &[("unk", "<unk>"), ("bos", "<s>"), ("eos", "</s>")] } else { &[] };
    for kind in KINDS {
        let value = settings.get(&format!("{kind}_token"));
        let assumed = assumed.iter().find(|(known, _)| *known == kind && value.is_none());
        found.extend(value.and_then(content).or(assumed.map(|(_, text)| *text)).map(str::to_owned));
    }
    for key in ["additional_special_tokens", "extra_special_tokens"] {
        let more = settings.get(key).and_then(Value::as_array).into_iter().flatten();
        found.extend(more.filter_map(content).map(str::to_owned));
    }
    found
}

/// The text of a token: a text, or an object with one.
fn content(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

/// Whether Python takes a value for true.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
    }
}

/// The special tokens of a model. `merges` are those of byte pairs.
///
/// # Errors
/// `Invalid` for files that are no JSON.
pub(super) fn read(
    files: &Files,
    config: &Config,
    settings: Option<&Map<String, Value>>,
    tokenizer: Option<&Tokenizer>,
    merges: Vec<String>,
    most: Option<usize>,
) -> Result<Special> {
    let mut special = Special { merges, most, kinds: KINDS.to_vec(), ..Special::default() };
    let mut settings = settings.cloned().unwrap_or_default();
    if let Some(tokenizer) = tokenizer {
        special.normalizer(&tokenizer.normalizer, 0);
        special.processors(&tokenizer.post_processor, &mut settings);
    }
    if !settings.is_empty() {
        special.template(files, &settings)?;
        special.settings(&settings, tokenizer);
    }
    let inner = config.raw.get("text_config");
    for kind in special.kinds.clone() {
        let key = format!("{kind}_token_id");
        let id = config.raw.get(&key).filter(|id| !id.is_null());
        let id = id.or_else(|| inner.and_then(|inner| inner.get(&key)));
        special.set_id(kind, id.and_then(Value::as_u64));
    }
    Ok(special)
}

impl Special {
    /// Sets the metadata.
    pub(super) fn set(self, out: &mut Entries) {
        out.set("tokenizer.ggml.merges", Entry::Texts(self.merges));
        for (kind, id) in &self.ids {
            if let Some((_, key)) = ID_KEYS.iter().find(|(known, _)| known == kind) {
                out.set(*key, Entry::U32(*id));
            }
        }
        for (kind, is_added) in &self.added {
            if let Some((_, key)) = ADD_KEYS.iter().find(|(known, _)| known == kind) {
                out.set(*key, Entry::Bool(*is_added));
            }
        }
        let (default, named): (Vec<_>, Vec<_>) =
            self.templates.into_iter().partition(|(name, _)| name == "default");
        for (name, template) in &named {
            out.text(&format!("tokenizer.chat_template.{name}"), template);
        }
        let names = named.into_iter().map(|(name, _)| name).collect();
        out.set("tokenizer.chat_templates", Entry::Texts(names));
        for (_, template) in default {
            out.text("tokenizer.chat_template", &template);
        }
        if let Some(is) = self.lowercase {
            out.set("tokenizer.ggml.normalizer.lowercase", Entry::Bool(is));
        }
        if let Some(is) = self.strips_accents {
            out.set("tokenizer.ggml.normalizer.strip_accents", Entry::Bool(is));
        }
    }

    fn set_id(&mut self, kind: &'static str, id: Option<u64>) {
        let fits = |id: &u64| self.most.is_none_or(|most| *id < most as u64);
        let id = id.filter(fits).and_then(|id| u32::try_from(id).ok());
        if let Some(id) = id.filter(|_| !self.ids.iter().any(|(known, _)| *known == kind)) {
            self.ids.push((kind, id));
        }
    }

    fn is_added(&mut self, kind: &'static str) -> Option<&mut bool> {
        self.added.iter_mut().find(|(known, _)| *known == kind).map(|(_, is)| is)
    }

    fn set_added(&mut self, kind: &'static str, is_added: bool) {
        match self.is_added(kind) {
            Some(known) => *known = is_added,
            None => self.added.push((kind, is_added)),
        }
    }

    fn normalizer(&mut self, normalizer: &Value, depth: u32) {
        let flag = |key: &str| normalizer.get(key).map(|value| value.as_bool());
        match normalizer.get("type").and_then(Value::as_str) {
            Some("Lowercase") => self.lowercase = Some(true),
            Some("StripAccents") => self.strips_accents = Some(true),
            Some("BertNormalizer") => {
                self.lowercase = flag("lowercase").unwrap_or(self.lowercase);
                self.strips_accents = flag("strip_accents").unwrap_or(self.strips_accents);
            }
            Some("Sequence") if depth < DEPTH_MAX => {
                let inner = normalizer.get("normalizers").and_then(Value::as_array);
                inner.into_iter().flatten().for_each(|inner| self.normalizer(inner, depth + 1));
            }
            _ => {}
        }
    }

    /// Notes the tokens that the processors of a tokenizer add to a text. Completes the settings.
    fn processors(&mut self, processor: &Value, settings: &mut Map<String, Value>) {
        let token = |settings: &Map<String, Value>, kind: &str| {
            settings.get(&format!("{kind}_token")).cloned().unwrap_or_default()
        };
        let mut begin = token(settings, "bos");
        let mut class = token(settings, "cls");
        let mut end = token(settings, "eos");
        let mut separator = token(settings, "sep");
        let has_settings = !settings.is_empty();
        if !is_true(&begin) && is_true(&class) && has_settings {
            settings.insert("bos_token".to_owned(), class.clone());
            begin = class.clone();
        }
        if !is_true(&end) && is_true(&separator) && has_settings {
            settings.insert("eos_token".to_owned(), separator.clone());
            end = separator.clone();
        }
        if !is_true(processor) {
            return;
        }
        let one = [processor.clone()];
        let all = processor.get("processors").and_then(Value::as_array).map_or(&one[..], Vec::as_slice);
        for processor in all {
            match processor.get("type").and_then(Value::as_str) {
                Some("ByteLevel") => {
                    for kind in ["bos", "eos"] {
                        if self.is_added(kind).is_none() {
                            self.set_added(kind, false);
                        }
                    }
                }
                Some("RobertaProcessing") => {
                    ["bos", "eos", "sep"].into_iter().for_each(|kind| self.set_added(kind, true));
                    let first = |key: &str, other: &Value| {
                        let pair = processor.get(key).and_then(Value::as_array);
                        pair.and_then(|pair| pair.first()).unwrap_or(other).clone()
                    };
                    if !is_true(&class) && has_settings {
                        class = first("cls", &begin);
                        settings.insert("cls_token".to_owned(), class.clone());
                    }
                    if !is_true(&separator) && has_settings {
                        separator = first("sep", &end);
                        settings.insert("sep_token".to_owned(), separator.clone());
                    }
                }
                Some("TemplateProcessing") => {
                    let known = &mut Known {
                        begin: &mut begin,
                        class: &mut class,
                        end: &mut end,
                        separator: &separator,
                    };
                    self.template_processing(processor, settings, known);
                }
                _ => {}
            }
        }
    }

    fn template_processing(
        &mut self,
        processor: &Value,
        settings: &mut Map<String, Value>,
        Known { begin, class, end, separator }: &mut Known<'_>,
    ) {
        let list = |key: &str| {
            let list = processor.get(key).and_then(Value::as_array);
            list.map(Vec::as_slice).unwrap_or_default()
        };
        let special = |item: &Value| item.get("SpecialToken").and_then(|token| token.get("id")).cloned();
        let sequence = |item: &Value| {
            item.get("Sequence").and_then(|sequence| sequence.get("id")?.as_str()).map(str::to_owned)
        };
        let has_settings = !settings.is_empty();
        let single = list("single");
        let (mut first, mut last) = (None, None);
        if let [head, .., tail] = single {
            first = special(head).filter(is_true);
            last = special(tail).filter(is_true);
            if let Some(first) = &first {
                if !has_settings {
                    **begin = first.clone();
                } else if first != *begin && first != *class {
                    if !is_true(begin) {
                        settings.insert("bos_token".to_owned(), first.clone());
                        **begin = first.clone();
                    }
                    if !is_true(class) {
                        settings.insert("cls_token".to_owned(), first.clone());
                        **class = first.clone();
                    }
                }
                self.set_added("bos", first == *begin || first == *class);
            }
            if let Some(last) = &last {
                if !has_settings {
                    **end = last.clone();
                } else if last != *end {
                    let other = ["eot", "eom"].into_iter().find(|kind| !self.kinds.contains(kind));
                    if let Some(kind) = other {
                        self.kinds.push(kind);
                        settings.insert(format!("{kind}_token"), end.clone());
                    }
                    settings.insert("eos_token".to_owned(), last.clone());
                    **end = last.clone();
                }
                self.set_added("eos", last == *end);
            }
        }
        // Between the texts of a pair: A [separator] [end] B.
        let mut pair = list("pair");
        if pair.is_empty() {
            return;
        }
        if let (Some(first), [head, rest @ ..]) = (&first, pair)
            && special(head).as_ref() == Some(first)
        {
            pair = rest;
        }
        if let (Some(last), [rest @ .., tail]) = (&last, pair)
            && special(tail).as_ref() == Some(last)
        {
            pair = rest;
        }
        let [head, between @ .., tail] = pair else { return };
        if sequence(head).as_deref() != Some("A") || sequence(tail).as_deref() != Some("B") {
            return;
        }
        let Some(middle) = between.first() else { return };
        let is_end = |item: &Value| special(item).is_some_and(|id| id == **separator || id == **end);
        let mut adds = is_end(middle) && last.is_none();
        if let [_, second] = between {
            adds |= is_end(second);
        }
        self.set_added("sep", adds);
        if adds && !is_true(separator) && has_settings {
            settings.insert("sep_token".to_owned(), end.clone());
        }
    }

    fn template(&mut self, files: &Files, settings: &Map<String, Value>) -> Result<()> {
        let text = |name: &str| files.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let other = match text("chat_template.jinja") {
            Some(text) => Some(Value::from(text)),
            None => files.object("chat_template.json")?.and_then(|mut all| all.remove("chat_template")),
        };
        match settings.get("chat_template").or(other.as_ref()) {
            Some(Value::String(text)) => self.templates.push(("default".to_owned(), text.clone())),
            Some(Value::Array(all)) => {
                for choice in all {
                    let name = choice.get("name").and_then(Value::as_str).unwrap_or_default();
                    let is_plain = |letter: char| letter.is_ascii_alphanumeric();
                    let name: String =
                        name.chars().map(|letter| if is_plain(letter) { letter } else { '_' }).collect();
                    let template = choice.get("template").and_then(Value::as_str);
                    if let Some(template) = template.filter(|_| !name.is_empty()) {
                        self.templates.push((name, template.to_owned()));
                    }
                }
            }
            _ => {}
        }
        if self.templates.len() > 64 {
            return Err(Error::unsupported("more than 64 templates of chats"));
        }
        Ok(())
    }

    fn settings(&mut self, settings: &Map<String, Value>, tokenizer: Option<&Tokenizer>) {
        for kind in self.kinds.clone() {
            let is_added = settings.get(&format!("add_{kind}_token")).and_then(Value::as_bool);
            if let Some(is_added) = is_added.filter(|_| self.is_added(kind).is_none()) {
                self.set_added(kind, is_added);
            }
            let Some(text) = settings.get(&format!("{kind}_token")).and_then(content) else { continue };
            let added =
                tokenizer.and_then(|tokenizer| tokenizer.added.iter().find(|added| added.content == text));
            self.set_id(kind, added.map(|added| added.id));
        }
    }
}

/// The special tokens that are known while the processors are read.
struct Known<'a> {
    begin: &'a mut Value,
    class: &'a mut Value,
    end: &'a mut Value,
    separator: &'a Value,
}
