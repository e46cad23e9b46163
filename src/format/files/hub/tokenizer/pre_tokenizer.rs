//! The name of the rule by which a tokenizer cuts a text into words, which llama.cpp has built in.
//!
//! The converter hashes the tokens of a text (`fingerprint.rs`). A tokenizer whose hash it does not know has the name of its rule here,
//! if the rule is one of those below; the converter refuses such a tokenizer.

use serde_json::Value;

use super::fingerprint::{self, Words};
use super::json::Tokenizer;
use super::test_text;
use crate::model::{Error, Result};

/// Rules that are a regular expression, with the name of the first tokenizer that had each.
const SPLITS: [(&str, &str, &[u8]); 5] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe",
        &test_text::LLAMA,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen2",
        &test_text::QWEN,
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "qwen35",
        &test_text::QWEN35,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "tekken",
        &test_text::TEKKEN,
    ),
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "gpt-4o",
        &test_text::GPT4O,
    ),
];

/// The name of a tokenizer of byte pairs.
///
/// # Errors
/// `Unsupported` for a rule that is not known.
pub(super) fn of_byte_pairs(tokenizer: &Tokenizer) -> Result<&'static str> {
    let found = rule(&tokenizer.pre_tokenizer);
    let unknown = || {
        let text = tokenizer.pre_tokenizer.to_string();
        let text = crate::model::beginning(&text, 300).to_owned();
        Error::unsupported(format!(
            "tokenizer.json cuts texts into words by a rule that is not known: {text}"
        ))
    };
    let (name, lengths) = found.ok_or_else(unknown)?;
    Ok(fingerprint::name(tokenizer, Words::BytePairs(lengths)).unwrap_or(name))
}

/// The name of a tokenizer of word pieces, which llama.cpp does not ask for.
pub(super) fn of_word_pieces(tokenizer: &Tokenizer) -> &'static str {
    let is_lower = tokenizer.normalizer.get("lowercase").and_then(Value::as_bool) == Some(true);
    let words = if is_lower { test_text::LOWER_WORDS } else { test_text::WORDS };
    fingerprint::name(tokenizer, Words::Pieces(words)).unwrap_or("default")
}

/// The name of a rule, and how it cuts the text of the fingerprint.
fn rule(rule: &Value) -> Option<(&'static str, &'static [u8])> {
    let one = [rule.clone()];
    let inner = rule.get("pretokenizers").and_then(Value::as_array);
    let all = inner.map_or(&one[..], Vec::as_slice);
    let kind = |rule: &Value| rule.get("type").and_then(Value::as_str).map(str::to_owned);
    let is_byte_level = |rule: &Value, uses_regex: bool| {
        let found = rule.get("use_regex").and_then(Value::as_bool).unwrap_or(true);
        kind(rule).as_deref() == Some("ByteLevel") && found == uses_regex
    };
    match all {
        [one] if is_byte_level(one, true) => Some(("gpt-2", &test_text::GPT2[..])),
        [digits, last] if is_byte_level(last, true) && kind(digits).as_deref() == Some("Digits") => {
            let is_each = digits.get("individual_digits").and_then(Value::as_bool) == Some(true);
            is_each.then_some(("smollm", &test_text::DIGITS[..]))
        }
        [split, last] if is_byte_level(last, false) && kind(split).as_deref() == Some("Split") => {
            let pattern = split.get("pattern")?.get("Regex")?.as_str()?;
            let known = SPLITS.into_iter().find(|(known, ..)| *known == pattern);
            known.map(|(_, name, lengths)| (name, lengths))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{SPLITS, rule};
    use serde_json::json;

    #[test]
    fn known_rules_have_names_and_cut_the_whole_text() {
        let bytes = |uses_regex: bool| json!({"type": "ByteLevel", "use_regex": uses_regex});
        for (pattern, name, _) in SPLITS {
            let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
            let (found, lengths) =
                rule(&json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})).unwrap();
            assert_eq!(found, name);
            let sum: usize = lengths.iter().map(|length| usize::from(*length)).sum();
            assert_eq!(sum, super::test_text::TEXT.len());
        }
        assert_eq!(rule(&bytes(true)).unwrap().0, "gpt-2");
        let digits = json!({"type": "Digits", "individual_digits": true});
        assert_eq!(rule(&json!({"pretokenizers": [digits, bytes(true)]})).unwrap().0, "smollm");
        assert!(rule(&json!(null)).is_none() && rule(&json!({"type": "Whitespace"})).is_none());
    }
}
