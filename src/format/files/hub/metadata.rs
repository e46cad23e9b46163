//! `general.*`: the sampling of `generation_config.json`, and the names of a model, of its model card, its configuration and
//! its directory, in this order.
//!
//! Source: `Metadata` of the Python package `gguf`.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::config::Config;
use super::entries::{Entries, Entry};
use super::model_card::{self, Value};
use super::model_files::Files;
use super::model_name::{self, ModelName, title};
use crate::model::Result;

/// Sampling parameters: the key in GGUF files, the keys of `generation_config.json`, and whether it is a float.
const SAMPLING: [(&str, &[&str], bool); 11] = [
    ("top_k", &["top_k"], false),
    ("top_p", &["top_p"], true),
    ("min_p", &["min_p"], true),
    ("xtc_probability", &["xtc_probability"], true),
    ("xtc_threshold", &["xtc_threshold"], true),
    ("temp", &["temperature"], true),
    ("penalty_last_n", &["penalty_last_n"], false),
    ("penalty_repeat", &["penalty_repeat", "repetition_penalty"], true),
    ("mirostat", &["mirostat"], false),
    ("mirostat_tau", &["mirostat_tau"], true),
    ("mirostat_eta", &["mirostat_eta"], true),
];

/// Keys of a model card that name a thing, each with the field that it fills.
const CARD: [(&str, &[&str]); 12] = [
    ("name", &["name", "model_name"]),
    ("author", &["author", "model_author", "model_creator"]),
    ("version", &["version", "model_version"]),
    ("organization", &["organization", "model_organization"]),
    ("description", &["description", "model_description"]),
    ("finetune", &["finetune", "model_finetune"]),
    ("basename", &["basename", "model_basename", "model_type"]),
    ("size_label", &["size_label", "model_size_label"]),
    ("source.url", &["url", "model_url"]),
    ("source.doi", &["doi", "model_doi"]),
    ("source.uuid", &["uuid", "model_uuid"]),
    ("source.repo_url", &["repo_url", "model_repo_url"]),
];

/// The order of the texts in a file.
const ORDER: [&str; 15] = [
    "name",
    "author",
    "version",
    "organization",
    "finetune",
    "basename",
    "description",
    "size_label",
    "license",
    "license.name",
    "license.link",
    "source.url",
    "source.doi",
    "source.uuid",
    "source.repo_url",
];

/// The fields of a model that another follows from, in the order of a file.
const PARENT: [&str; 9] =
    ["name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url"];

/// Sets `general.*` of a model with so many parameters.
///
/// # Errors
/// `Invalid` for a sampling parameter of another type.
pub(super) fn set(
    out: &mut Entries,
    files: &Files,
    config: &Config,
    directory: &str,
    parameters: u64,
) -> Result<()> {
    sampling(out, files);
    let card = files.get("README.md").map(|bytes| model_card::parse(&String::from_utf8_lossy(bytes)));
    let card = card.unwrap_or_default();
    let mut texts = card_texts(&card);
    let path = config.raw.get("_name_or_path").and_then(Json::as_str);
    for name in path.filter(|path| path.matches('/').count() <= 1).into_iter().chain([directory]) {
        fill(&mut texts, model_name::parse(name, parameters));
    }
    texts.entry("name").or_insert_with(|| directory.to_owned());
    if parameters > 0 {
        texts.entry("size_label").or_insert_with(|| size_label(parameters));
    }
    for key in ORDER {
        if let Some(text) = texts.get(key) {
            out.text(&format!("general.{key}"), text);
        }
    }
    parents(out, &card, "base_model", &["base_model", "base_models", "base_model_sources"], parameters);
    parents(out, &card, "dataset", &["datasets", "dataset", "dataset_sources"], parameters);
    for (key, sources) in [("tags", ["tags", "pipeline_tag"]), ("languages", ["languages", "language"])] {
        let all = sources.iter().filter_map(|source| card.get(*source)).flat_map(texts_of).collect();
        out.set(format!("general.{key}"), Entry::Texts(all));
    }
    Ok(())
}

fn sampling(out: &mut Entries, files: &Files) {
    let Some(Ok(Json::Object(all))) = files.get("generation_config.json").map(serde_json::from_slice) else {
        return;
    };
    if let Some(sequence) = all.get("sequence").and_then(Json::as_str) {
        out.text("general.sampling.sequence", sequence);
    }
    for (key, sources, is_float) in SAMPLING {
        let Some(value) = sources.iter().find_map(|source| all.get(*source)) else { continue };
        let entry = match is_float {
            true => value.as_f64().map(|value| Entry::F32(value as f32)),
            false => value.as_i64().and_then(|value| i32::try_from(value).ok()).map(Entry::I32),
        };
        if let Some(entry) = entry {
            out.set(format!("general.sampling.{key}"), entry);
        }
    }
}

/// The texts that a model card gives.
fn card_texts(card: &BTreeMap<String, Value>) -> BTreeMap<&'static str, String> {
    let text = |key: &str| match card.get(key) {
        Some(Value::Text(text)) => Some(text.clone()),
        Some(list @ Value::List(_)) if key == "license" => Some(texts_of(list).join(",")),
        _ => None,
    };
    let mut texts: BTreeMap<&'static str, String> = CARD
        .into_iter()
        .filter_map(|(key, sources)| Some((key, sources.iter().find_map(|source| text(source))?)))
        .collect();
    let licenses =
        [("license", "license"), ("license.name", "license_name"), ("license.link", "license_link")];
    texts.extend(licenses.into_iter().filter_map(|(key, source)| Some((key, text(source)?))));
    texts
}

/// Fills texts that are missing from the parts of a name.
fn fill(texts: &mut BTreeMap<&'static str, String>, name: ModelName) {
    let parts = [
        ("name", name.full.map(|full| title(&full))),
        ("organization", name.organization.map(|organization| title(&organization))),
        ("basename", name.basename),
        ("finetune", name.finetune),
        ("version", name.version),
        ("size_label", name.size_label),
    ];
    for (key, part) in parts {
        if let Some(part) = part {
            texts.entry(key).or_insert(part);
        }
    }
}

/// The texts in a value.
fn texts_of(value: &Value) -> Vec<String> {
    match value {
        Value::Text(text) => vec![text.clone()],
        Value::List(items) => items.iter().flat_map(texts_of).collect(),
        Value::Map(_) => Vec::new(),
    }
}

/// Sets the models, or the data sets, that a model follows from.
fn parents(out: &mut Entries, card: &BTreeMap<String, Value>, kind: &str, keys: &[&str], parameters: u64) {
    let Some(value) = keys.iter().find_map(|key| card.get(*key)) else { return };
    let items = match value {
        Value::List(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    out.set(format!("general.{kind}.count"), Entry::U32(u32::try_from(items.len()).unwrap_or(u32::MAX)));
    for (at, item) in items.iter().enumerate() {
        let parent = match item {
            Value::Text(name) => parent(name, parameters),
            Value::Map(map) => map.clone(),
            Value::List(_) => BTreeMap::new(),
        };
        for key in PARENT {
            if let Some(text) = parent.get(key) {
                out.text(&format!("general.{kind}.{at}.{key}"), text);
            }
        }
    }
}

/// The fields that follow from the name or the address of a model.
fn parent(name: &str, parameters: u64) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let is_address = ["http://", "https://", "ssh://"].iter().any(|scheme| name.starts_with(scheme));
    let id = if is_address {
        found.insert("repo_url".to_owned(), name.to_owned());
        let path = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://"));
        let id = path.and_then(|path| path.strip_prefix("huggingface.co/"));
        id.filter(|id| {
            id.split('/').filter(|part| !part.is_empty()).count() == 2 && id.matches('/').count() == 1
        })
    } else {
        Some(name)
    };
    let Some(id) = id else { return found };
    let parts = model_name::parse(id, parameters);
    if !is_address && let Some((organization, full)) = parts.organization.as_ref().zip(parts.full.as_ref()) {
        found.insert("repo_url".to_owned(), format!("https://huggingface.co/{organization}/{full}"));
    }
    let texts = [
        ("name", parts.full.map(|full| title(&full))),
        ("organization", parts.organization.map(|organization| title(&organization))),
        ("version", parts.version),
    ];
    found.extend(texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), text?))));
    found
}

/// A number of parameters in at least two digits.
fn size_label(parameters: u64) -> String {
    let count = parameters as f64;
    let (scaled, suffix) = match count {
        _ if count > 1e12 => (count * 1e-12, "T"),
        _ if count > 1e9 => (count * 1e-9, "B"),
        _ if count > 1e6 => (count * 1e-6, "M"),
        _ => (count * 1e-3, "K"),
    };
    let rounded = format!("{:.0}", scaled.round_ties_even());
    let digits = 2_usize.saturating_sub(rounded.trim_start_matches('0').len());
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::size_label;

    /// The values are those of `model_weight_count_rounded_notation` of `gguf`.
    #[test]
    fn sizes_have_two_digits() {
        let cases = [
            (102_920, "103K"),
            (1_540_000_000, "1.5B"),
            (999, "1.0K"),
            (22_713_216, "23M"),
            (70_553_706_496, "71B"),
            (400, "0.40K"),
        ];
        for (count, label) in cases {
            assert_eq!(size_label(count), label, "{count}");
        }
    }
}
