//! The parts of a model's name: `org/Base-Name-7B-Instruct-v0.2`.
//!
//! Source: `Metadata.get_model_id_components` and `id_to_title` of the Python package `gguf`.

use std::collections::HashSet;

/// The parts of a name. Missing parts are `None`.
#[derive(Default, Clone, PartialEq, Eq, Debug)]
pub(super) struct ModelName {
    /// The name without its organization.
    pub(super) full: Option<String>,
    pub(super) organization: Option<String>,
    pub(super) basename: Option<String>,
    pub(super) finetune: Option<String>,
    pub(super) version: Option<String>,
    pub(super) size_label: Option<String>,
}

/// A word of a name, and the parts of it that the word may be.
#[derive(Default)]
struct Word {
    text: String,
    is_basename: bool,
    is_size: bool,
    is_finetune: bool,
    is_version: bool,
    is_type: bool,
}

impl Word {
    fn has_no_part(&self) -> bool {
        self.parts() == 0
    }

    fn parts(&self) -> usize {
        [self.is_basename, self.is_size, self.is_finetune, self.is_version, self.is_type]
            .into_iter()
            .filter(|is| *is)
            .count()
    }
}

/// Takes a name apart. A size in it counts only if a model of so many parameters may be meant.
pub(super) fn parse(name: &str, parameters: u64) -> ModelName {
    if name.contains(' ') {
        return ModelName { full: Some(name.to_owned()), ..ModelName::default() };
    }
    let (organization, full) = match name.split_once('/') {
        Some((organization, full)) => (Some(organization).filter(|text| !text.starts_with('.')), full),
        None => (None, name),
    };
    let mut words: Vec<Word> = full
        .split('-')
        .filter(|text| !text.is_empty())
        .enumerate()
        .map(|(at, text)| word(text, at == 0, parameters))
        .collect();
    let has_number =
        words.iter().any(|word| word.is_size && word.text.chars().any(|letter| letter.is_ascii_digit()));
    if has_number {
        for word in words.iter_mut().filter(|word| word.text.chars().all(char::is_alphabetic)) {
            word.is_size = false;
        }
    }
    let mut is_start = true;
    for word in &mut words {
        let begins = word.text.chars().next().is_some_and(char::is_alphabetic);
        if is_start && (word.has_no_part() && begins || word.is_version) {
            word.is_basename = true;
            continue;
        }
        is_start = false;
        if word.has_no_part() {
            word.is_finetune = true;
        }
    }
    for word in words.iter_mut().rev() {
        if !word.is_basename || word.parts() < 2 {
            break;
        }
        word.is_basename = false;
    }
    let joined = |is_part: &dyn Fn(&Word) -> bool| {
        let texts: Vec<&str> = words.iter().filter(|word| is_part(word)).map(|word| &*word.text).collect();
        (!texts.is_empty()).then(|| texts.join("-"))
    };
    let mut known: HashSet<&str> = HashSet::new();
    let sizes = words.iter().filter(|word| word.is_size).map(|word| &*word.text);
    let sizes: Vec<&str> = sizes.filter(|size| known.insert(size)).collect();
    let size_label = (!sizes.is_empty()).then(|| sizes.join("-"));
    let finetune = joined(&|word| word.is_finetune);
    let version = joined(&|word| word.is_version && !word.is_basename);
    let is_clear = size_label.is_some() || finetune.is_some() || version.is_some();
    ModelName {
        full: Some(full.to_owned()),
        organization: organization.map(str::to_owned),
        basename: joined(&|word| word.is_basename).filter(|text| is_clear && !text.is_empty()),
        finetune,
        version,
        size_label,
    }
}

fn word(text: &str, is_first: bool, parameters: u64) -> Word {
    let lower = text.to_ascii_lowercase();
    let mut word = Word { text: text.to_owned(), ..Word::default() };
    if is_version(&lower) {
        word.is_version = true;
    } else if is_type(&lower) {
        word.is_type = true;
        word.text = text.to_uppercase();
    } else if !is_first && is_size(&lower) {
        let (label, is_size) = size(text, parameters);
        (word.is_size, word.is_finetune, word.text) = (is_size, !is_size, label);
    } else if !is_first && matches!(&*lower, "chat" | "instruct" | "vision" | "lora") {
        word.is_finetune = true;
    }
    word
}

/// The rest of a text after digits, if it begins with some.
fn after_digits(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|letter: char| letter.is_ascii_digit());
    (rest.len() < text.len()).then_some(rest)
}

/// `(v|iter)?\d+([.]\d+)*`
fn is_version(text: &str) -> bool {
    let text = text.strip_prefix("iter").or_else(|| text.strip_prefix('v')).unwrap_or(text);
    text.split('.').all(|part| after_digits(part) == Some(""))
}

/// `i?q\d(_\w)*|b?fp?(16|32)`
fn is_type(text: &str) -> bool {
    let quantized = text.strip_prefix('i').unwrap_or(text).strip_prefix('q').is_some_and(|rest| {
        let mut letters = rest.chars();
        let is_digit = letters.next().is_some_and(|letter| letter.is_ascii_digit());
        let rest: Vec<char> = letters.collect();
        let is_pair =
            |pair: &[char]| matches!(pair, ['_', letter] if letter.is_alphanumeric() || *letter == '_');
        is_digit && rest.chunks(2).all(is_pair)
    });
    let float = text.strip_prefix('b').unwrap_or(text).strip_prefix('f');
    let float = float.map(|rest| rest.strip_prefix('p').unwrap_or(rest));
    quantized || matches!(float, Some("16" | "32"))
}

/// `([A]|\d+[x])?\d+([._]\d+)?[KMBT][\d]?|small|mini|medium|large|x?xl`, in lower case.
fn is_size(text: &str) -> bool {
    if matches!(text, "small" | "mini" | "medium" | "large" | "xl" | "xxl") {
        return true;
    }
    let is_number = |text: &str| {
        let Some(rest) = after_digits(text) else { return false };
        let fraction = rest.strip_prefix(['.', '_']).and_then(after_digits);
        [Some(rest), fraction].into_iter().flatten().any(|rest| {
            let unit = rest.strip_prefix(['k', 'm', 'b', 't']);
            unit.is_some_and(|rest| rest.is_empty() || rest.len() == 1 && after_digits(rest).is_some())
        })
    };
    let times = after_digits(text).and_then(|rest| rest.strip_prefix('x'));
    is_number(text) || text.strip_prefix('a').is_some_and(is_number) || times.is_some_and(is_number)
}

/// The label of a size, and whether it is one: otherwise it is the length of a context.
fn size(text: &str, parameters: u64) -> (String, bool) {
    let mut letters: Vec<char> = text.replace('_', ".").chars().collect();
    // 7b1 is 7.1b.
    if let [.., unit, digit] = letters.as_mut_slice()
        && digit.is_ascii_digit()
    {
        (*unit, *digit) = (*digit, *unit);
        let place = letters.len().saturating_sub(2);
        letters.insert(place, '.');
    }
    if let [.., digit, unit] = letters.as_mut_slice()
        && digit.is_ascii_digit()
        && matches!(unit, 'k' | 'm' | 'b' | 't')
    {
        *unit = unit.to_ascii_uppercase();
    }
    let Some((unit, number)) = letters.split_last() else { return (String::new(), true) };
    let number: String = number.iter().collect();
    let power = match unit {
        ' ' => 1.0,
        'K' => 1e3,
        'M' => 1e6,
        'B' => 1e9,
        'T' => 1e12,
        _ => 1e-3,
    };
    let whole = |unit: char| format!("{number}{unit}");
    match number.parse::<f64>() {
        Ok(count) if parameters > 0 => {
            let distance = (count * power - parameters as f64).abs();
            let most = (u128::from(parameters) * 7 / 8) as f64;
            if distance > most { (whole(unit.to_ascii_lowercase()), false) } else { (whole(*unit), true) }
        }
        _ => (whole(*unit), true),
    }
}

/// A name as a title: words of lower-case letters begin with a capital, except for versions and numbers.
pub(super) fn title(name: &str) -> String {
    let name = name.replace('-', " ");
    let words = name.split_whitespace().map(|word| {
        let has_lower = word.chars().any(char::is_lowercase);
        let is_lower = has_lower && !word.chars().any(char::is_uppercase);
        let begins_with_digit = word.starts_with(|letter: char| letter.is_ascii_digit());
        let is_version = word.strip_prefix('v').is_some_and(is_version);
        if is_lower && !begins_with_digit && !is_version { capitalized(word) } else { word.to_owned() }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Each run of letters with a capital at its begin, as `str.title` of Python.
fn capitalized(word: &str) -> String {
    let mut is_inside = false;
    let mut out = String::with_capacity(word.len());
    for letter in word.chars() {
        match is_inside {
            true => out.push(letter),
            false => out.extend(letter.to_uppercase()),
        }
        is_inside = letter.is_alphabetic();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{parse, title};

    /// The cases are some of `tests/test_metadata.py` of the Python package `gguf`.
    #[test]
    fn names_are_taken_apart_as_gguf_does() {
        let parts = |name: &str, parameters: u64| {
            let parsed = parse(name, parameters);
            let part = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
            [
                parsed.full,
                parsed.organization,
                parsed.basename,
                parsed.finetune,
                parsed.version,
                parsed.size_label,
            ]
            .map(part)
        };
        let cases = [
            (
                "Mistral/Mixtral-8x7B-Instruct-v0.1",
                0,
                ["Mixtral-8x7B-Instruct-v0.1", "Mistral", "Mixtral", "Instruct", "v0.1", "8x7B"],
            ),
            ("Mixtral", 0, ["Mixtral", "-", "-", "-", "-", "-"]),
            (
                "Hermes-2-Theta-Llama-3-8B",
                0,
                ["Hermes-2-Theta-Llama-3-8B", "-", "Hermes-2-Theta-Llama-3", "-", "-", "8B"],
            ),
            (
                "Phi-3-mini-4k-instruct",
                4 * 1_000_000_000,
                ["Phi-3-mini-4k-instruct", "-", "Phi-3", "4k-instruct", "-", "mini"],
            ),
            (
                "bigscience/bloom-7b1-petals",
                7_100_000_000,
                ["bloom-7b1-petals", "bigscience", "bloom", "petals", "-", "7.1B"],
            ),
            ("./Model-3B", 0, ["Model-3B", "-", "Model", "-", "-", "3B"]),
            (
                "Qwen1.5-MoE-A2.7B-Chat",
                14_300_000_000,
                ["Qwen1.5-MoE-A2.7B-Chat", "-", "Qwen1.5-MoE", "Chat", "-", "A2.7B"],
            ),
            ("a b", 0, ["a b", "-", "-", "-", "-", "-"]),
        ];
        for (name, parameters, expected) in cases {
            assert_eq!(parts(name, parameters), expected.map(str::to_owned), "{name}");
        }
    }

    #[test]
    fn a_name_of_many_sizes_takes_time_in_proportion() {
        let sizes: Vec<String> = (1..200_000).map(|size| format!("{size}B")).collect();
        let begin = std::time::Instant::now();
        let label = parse(&format!("A-{0}-{0}", sizes.join("-")), 0).size_label.unwrap();
        assert_eq!(label, sizes.join("-"));
        assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
    }

    #[test]
    fn titles_have_capitals_where_words_are_in_lower_case() {
        assert_eq!(title("Mixtral-8x7B-Instruct-v0.1"), "Mixtral 8x7B Instruct v0.1");
        assert_eq!(title("tiny-llama_hf-3b"), "Tiny Llama_Hf 3b");
    }
}
