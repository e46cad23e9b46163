//! The front matter of a model card, `README.md`: YAML between lines of `---`.
//!
//! Reads what model cards have at their top: keys with texts, lists of texts, and lists of such maps. Other values, and
//! keys that are nested deeper, are left out.

use std::collections::BTreeMap;

/// A value of a model card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Value {
    Text(String),
    List(Vec<Value>),
    Map(BTreeMap<String, String>),
}

/// The keys of a model card with their values. A card without front matter has no keys. Takes time in proportion to the text.
pub(super) fn parse(text: &str) -> BTreeMap<String, Value> {
    let mut lines = text.lines();
    let mut found = BTreeMap::new();
    if lines.next() != Some("---") {
        return found;
    }
    let lines: Vec<String> =
        lines.take_while(|line| *line != "---").map(|line| line.replace('\t', "  ")).collect();
    let mut rest = lines.as_slice();
    while let Some((line, after)) = rest.split_first() {
        let inner = after.iter().take_while(|line| is_inner(line)).count();
        let (inner, next) = after.split_at_checked(inner).unwrap_or((after, &[]));
        rest = next;
        if let Some((key, value)) = pair(line)
            && let Some(value) = value_of(value, inner)
        {
            found.insert(key, value);
        }
    }
    found
}

/// Whether a line belongs to the key before it.
fn is_inner(line: &str) -> bool {
    line.is_empty() || line.starts_with([' ', '#']) || line == "-" || line.starts_with("- ")
}

/// The key and the text after it.
fn pair(line: &str) -> Option<(String, &str)> {
    let (key, value) = match line.split_once(": ") {
        Some(pair) => pair,
        None => (line.strip_suffix(':')?, ""),
    };
    let key = scalar(key)?;
    (!key.is_empty()).then(|| (key, value.trim()))
}

fn value_of(value: &str, inner: &[String]) -> Option<Value> {
    let lines = || inner.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
    let value = if value.starts_with('#') { "" } else { value };
    match value.strip_prefix(['|', '>']) {
        Some(chomp) => {
            let is_literal = value.starts_with('|');
            let text = lines().collect::<Vec<_>>().join(if is_literal { "\n" } else { " " });
            let end = if chomp.starts_with('-') { "" } else { "\n" };
            Some(Value::Text(format!("{text}{end}")))
        }
        None if value.starts_with('[') => {
            let whole = [value].into_iter().chain(lines()).collect::<Vec<_>>().join(" ");
            let items = whole.trim().strip_prefix('[')?.strip_suffix(']')?.split(',');
            Some(Value::List(items.filter_map(|item| text(item.trim())).map(Value::Text).collect()))
        }
        None if value.is_empty() => list(inner),
        None => {
            let whole = [value].into_iter().chain(lines()).collect::<Vec<_>>().join(" ");
            text(&whole).map(Value::Text)
        }
    }
}

/// A list of texts or of maps, an item a line that begins with `- `.
fn list(inner: &[String]) -> Option<Value> {
    let mut items: Vec<Vec<&str>> = Vec::new();
    let first = inner.iter().find(|line| !line.trim().is_empty())?;
    let depth = first.len() - first.trim_start().len();
    for line in inner.iter().filter(|line| !line.trim().is_empty()) {
        let is_here = line.len() - line.trim_start().len() == depth;
        match line.trim().strip_prefix('-').filter(|item| item.is_empty() || item.starts_with(' ')) {
            Some(item) if is_here => items.push(vec![item.trim()]),
            _ => items.last_mut()?.push(line.trim()),
        }
    }
    let item = |lines: Vec<&str>| {
        let pairs: Vec<(String, String)> = lines
            .iter()
            .filter_map(|line| pair(line))
            .filter_map(|(key, value)| Some((key, text(value)?)))
            .collect();
        let is_text = pairs.is_empty() || lines.first().is_some_and(|line| line.starts_with(['"', '\'']));
        match is_text {
            true => text(&lines.join(" ")).map(Value::Text),
            false => Some(Value::Map(pairs.into_iter().collect())),
        }
    };
    Some(Value::List(items.into_iter().filter_map(item).collect()))
}

/// A scalar that is a text. `no` stays one, because it is a language.
fn text(value: &str) -> Option<String> {
    let is_quoted = value.starts_with(['"', '\'']);
    let found = scalar(value)?;
    let lower = found.to_ascii_lowercase();
    let is_other = matches!(&*lower, "" | "~" | "null" | "true" | "false" | "yes" | "on" | "off")
        || found.replace('_', "").parse::<f64>().is_ok();
    (is_quoted || !is_other).then_some(found)
}

/// The text of a scalar without quotes and comments.
fn scalar(value: &str) -> Option<String> {
    let value = value.trim();
    if let Some(inner) = value.strip_prefix('\'') {
        return Some(inner.strip_suffix('\'')?.replace("''", "'"));
    }
    if value.starts_with('"') {
        return serde_json::from_str(value).ok();
    }
    let plain = value.split(" #").next().unwrap_or(value).trim();
    let is_plain = !plain.starts_with(['{', '[', '&', '*', '!', '|', '>', '%', '@', '`']);
    is_plain.then(|| plain.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Value, parse};

    #[test]
    fn the_keys_of_a_model_card_are_read() {
        let card = "---\nlicense: mit # free\nlanguage:\n- en\n- no\ntags: [a, \"b c\"]\nmodel-index:\n- name: x\n  results:\n  - task: y\n\
            base_model:\n  - org/A\n  - org/B\ntitle: 'it''s'\nversion: 1.5\nempty:\nlink: >-\n  https://a\ndatasets:\n- name: n\n  url: u\n---\n# text: no\n";
        let found = parse(card);
        let texts =
            |texts: &[&str]| Value::List(texts.iter().map(|text| Value::Text((*text).into())).collect());
        assert_eq!(found["license"], Value::Text("mit".into()));
        assert_eq!(found["language"], texts(&["en", "no"]));
        assert_eq!(found["tags"], texts(&["a", "b c"]));
        assert_eq!(found["base_model"], texts(&["org/A", "org/B"]));
        assert_eq!(found["title"], Value::Text("it's".into()));
        assert_eq!(found["link"], Value::Text("https://a".into()));
        let Value::List(datasets) = &found["datasets"] else { panic!() };
        let Value::Map(dataset) = &datasets[0] else { panic!() };
        assert_eq!((dataset["name"].as_str(), dataset["url"].as_str()), ("n", "u"));
        assert!(!found.contains_key("version") && !found.contains_key("# text"));
        assert!(parse("# no front matter\n---\na: b\n---\n").is_empty());
        assert!(parse("---\n- a\n: b\n\"c: d\n---").is_empty());
    }
}
