//! Printing of text and JSON. Names and texts of other programs reach a terminal only through here, with their
//! control characters escaped.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::model::{Error, Result, THRESHOLDS};
pub(in crate::cli) use crate::model::{human, human_part};

/// Attributes whose values are numbers.
const NUMBERS: [&str; 12] = [
    "head_dim",
    "block_bytes",
    "tail",
    "pin",
    "shards",
    "blocks",
    "bits",
    "bytes",
    "bytes_stored",
    "score",
    "chain",
    "snapshot",
];

/// A number as JSON, which has no infinity and no NaN: these are texts, `"inf"` and `"NaN"`.
pub(in crate::cli) fn number_json(number: f64) -> serde_json::Value {
    if number.is_finite() { number.into() } else { number.to_string().into() }
}

/// The value of an attribute as JSON: numbers as numbers, a shape as an array, an error as an object.
pub(in crate::cli) fn attribute_json(name: &str, value: &str) -> serde_json::Value {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_or_else(|_| text.parse::<f64>().ok().map(number_json), |number| Some(number.into()))
    };
    let found: Option<serde_json::Value> = match name {
        "shape" if value.is_empty() => Some(Vec::<u64>::new().into()),
        "shape" => {
            value.split('x').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>().map(Into::into)
        }
        "error" => {
            let part = |part: &str| number(part.split_once('=')?.1);
            let mut parts = value.split(' ');
            match (parts.next().and_then(part), parts.next().and_then(part)) {
                (Some(max), Some(rms)) => Some(serde_json::json!({ "max": max, "rms": rms })),
                _ => None,
            }
        }
        "access" => value.split_once(' ').and_then(|(count, last)| {
            Some(serde_json::json!({ "count": number(count)?, "last": number(last)? }))
        }),
        name if NUMBERS.contains(&name) || THRESHOLDS.iter().any(|known| known.name == name) => number(value),
        _ => None,
    };
    found.unwrap_or_else(|| value.into())
}

/// A text with its control characters as `\x1b`, except newlines and tabs. They could move the cursor of a terminal,
/// set its title, or make it answer as if the user typed.
pub(in crate::cli) fn printable(text: &str) -> Cow<'_, str> {
    let is_kept = |character: char| !character.is_control() || matches!(character, '\n' | '\t');
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_kept(character) {
            shown.push(character);
        } else {
            shown.push_str(&format!("\\x{:02x}", u32::from(character)));
        }
    }
    Cow::Owned(shown)
}

/// A number of files in words.
pub(in crate::cli) fn files_text(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// Prints to standard output, with control characters escaped. A closed pipe, for example by `head`, is not an error.
pub(in crate::cli) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(printable(text).as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Error::io("writing to standard output", error)),
    }
}

/// Prints a line to standard error, with control characters escaped. A failure is ignored: nobody could be told.
pub(in crate::cli) fn complain(line: &str) {
    let line = format!("{}\n", printable(line.trim_end_matches('\n')));
    io::stderr().lock().write_all(line.as_bytes()).unwrap_or_default();
}

/// Prints a value as JSON.
pub(in crate::cli) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{}\n", json_text(&format!("{value:#}"))))
}

/// JSON with the control characters escaped that JSON permits in texts.
pub(in crate::cli) fn json_text(json: &str) -> Cow<'_, str> {
    let is_kept = |character: char| !character.is_control() || character == '\n';
    if json.chars().all(is_kept) {
        return Cow::Borrowed(json);
    }
    let escaped = |character: char| {
        if is_kept(character) { character.to_string() } else { format!("\\u{:04x}", u32::from(character)) }
    };
    Cow::Owned(json.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::{json_text, printable};

    #[test]
    fn control_characters_are_escaped_and_other_text_is_not() {
        assert_eq!(printable("a\tb\nü 模型 \\x"), "a\tb\nü 模型 \\x");
        assert_eq!(printable("\u{1b}]0;x\u{7}\r\0\u{7f}\u{9b}"), "\\x1b]0;x\\x07\\x0d\\x00\\x7f\\x9b");
    }

    #[test]
    fn json_keeps_its_meaning() {
        let value = serde_json::json!({ "a\u{9b}": "\u{7f}\u{1b}\n" });
        let text = format!("{value:#}");
        let shown = json_text(&text);
        assert!(shown.chars().all(|character| character == '\n' || !character.is_control()), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
