//! The fingerprint of a tokenizer: the SHA-256 of the numbers of the tokens of a text, by which the converter knows it.

use std::collections::HashMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::json::Tokenizer;
use super::test_text::TEXT;
use super::tokenizer_names::NAMES;

/// Longest word that is split into pieces, in letters. Source: the library `tokenizers`.
const WORD_LETTERS_MAX: usize = 100;

/// The words of the text.
pub(super) enum Words {
    /// Their lengths in bytes. Byte pairs are joined in each.
    BytePairs(&'static [u8]),
    /// The words, with spaces between. Each is cut into the longest pieces that are tokens.
    Pieces(&'static str),
}

/// The name of a tokenizer. `None` for one that the converter does not know.
pub(super) fn name(tokenizer: &Tokenizer, words: Words) -> Option<&'static str> {
    if tokenizer.added.iter().any(|added| !added.content.is_empty() && TEXT.contains(&added.content)) {
        return None;
    }
    let ids: HashMap<&str, u64> =
        tokenizer.vocabulary.iter().map(|(text, id)| (text.as_str(), *id)).collect();
    let (before, after) = around(&tokenizer.post_processor);
    let mut found = before;
    match words {
        Words::BytePairs(lengths) => {
            let ranks: HashMap<&str, usize> =
                tokenizer.merges.iter().enumerate().map(|(rank, pair)| (pair.as_str(), rank)).collect();
            let mut rest = TEXT;
            for length in lengths {
                let (word, next) = rest.split_at_checked(usize::from(*length))?;
                rest = next;
                pair_up(word, &ids, &ranks, tokenizer.ignores_merges, &mut found)?;
            }
        }
        Words::Pieces(words) => {
            let unknown = ids.get(tokenizer.unknown.as_deref().unwrap_or("[UNK]")).copied()?;
            for word in words.split(' ') {
                match pieces(word, &ids) {
                    Some(pieces) => found.extend(pieces),
                    None => found.push(unknown),
                }
            }
        }
    }
    found.extend(after);
    let text = found.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
    let digest = Sha256::digest(format!("[{text}]"));
    let begin = digest.first_chunk().map(|begin| u64::from_be_bytes(*begin))?;
    NAMES.iter().find(|(known, _)| *known == begin).map(|(_, name)| *name)
}

/// The tokens before and after a text.
fn around(processor: &Value) -> (Vec<u64>, Vec<u64>) {
    let one = [processor.clone()];
    let all = processor.get("processors").and_then(Value::as_array).map_or(&one[..], Vec::as_slice);
    let template = all.iter().find(|inner| inner.get("single").is_some());
    let Some(template) = template else { return (Vec::new(), Vec::new()) };
    let items = template.get("single").and_then(Value::as_array).into_iter().flatten();
    let (mut before, mut after, mut is_after) = (Vec::new(), Vec::new(), false);
    for item in items {
        let Some(token) = item.get("SpecialToken").and_then(|token| token.get("id")?.as_str()) else {
            is_after = true;
            continue;
        };
        let ids = template.get("special_tokens").and_then(|tokens| tokens.get(token)?.get("ids")?.as_array());
        let ids = ids.into_iter().flatten().filter_map(Value::as_u64);
        if is_after { after.extend(ids) } else { before.extend(ids) }
    }
    (before, after)
}

/// Joins pairs of a word, those of the lowest rank first. `None` if a byte has no token.
fn pair_up(
    word: &str,
    ids: &HashMap<&str, u64>,
    ranks: &HashMap<&str, usize>,
    ignores_merges: bool,
    found: &mut Vec<u64>,
) -> Option<()> {
    let word: String = word.bytes().map(letter).collect();
    if let Some(id) = ids.get(word.as_str()).filter(|_| ignores_merges) {
        found.push(*id);
        return Some(());
    }
    let mut parts: Vec<String> = word.chars().map(String::from).collect();
    loop {
        let pairs = parts.iter().zip(parts.iter().skip(1)).enumerate();
        let ranked = pairs
            .filter_map(|(at, (left, right))| Some((*ranks.get(format!("{left} {right}").as_str())?, at)));
        let Some((_, at)) = ranked.min() else { break };
        let right = parts.remove(at + 1);
        parts.get_mut(at)?.push_str(&right);
    }
    for part in &parts {
        found.push(*ids.get(part.as_str())?);
    }
    Some(())
}

/// The letter that stands for a byte: itself if it is a printable one of Latin-1, otherwise one from U+0100 on.
fn letter(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !is_printable(*other)).count();
    u32::try_from(before).ok().and_then(|before| char::from_u32(0x100 + before)).unwrap_or('\u{100}')
}

/// The longest pieces of a word that are tokens. `None` for a word that has others.
fn pieces(word: &str, ids: &HashMap<&str, u64>) -> Option<Vec<u64>> {
    if word.chars().count() > WORD_LETTERS_MAX {
        return None;
    }
    let (mut found, mut rest) = (Vec::new(), word);
    while !rest.is_empty() {
        let ends = rest.char_indices().map(|(at, letter)| at + letter.len_utf8());
        let ends: Vec<usize> = ends.collect();
        let (end, id) = ends.into_iter().rev().find_map(|end| {
            let piece = rest.get(..end)?;
            let id = match found.is_empty() {
                true => ids.get(piece),
                false => ids.get(format!("##{piece}").as_str()),
            };
            Some((end, *id?))
        })?;
        found.push(id);
        rest = rest.get(end..)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{letter, pair_up, pieces};

    #[test]
    fn bytes_have_the_letters_of_gpt_2() {
        assert_eq!(
            [b' ', b'\n', b'a', 0x7f, 0xad].map(letter),
            ['\u{120}', '\u{10a}', 'a', '\u{121}', '\u{143}']
        );
    }

    #[test]
    fn pairs_are_joined_by_rank_and_words_cut_into_the_longest_pieces() {
        let ids: HashMap<&str, u64> =
            [("a", 0), ("b", 1), ("c", 2), ("bc", 3), ("ab", 4), ("##c", 5), ("abc", 6)].into();
        let ranks = [("b c", 0), ("a b", 1)].into();
        let mut found = Vec::new();
        pair_up("abc", &ids, &ranks, false, &mut found).unwrap();
        assert_eq!(found, [0, 3]);
        pair_up("abc", &ids, &ranks, true, &mut found).unwrap();
        assert_eq!(found, [0, 3, 6]);
        assert!(pair_up("z", &ids, &ranks, false, &mut found).is_none());
        assert_eq!(pieces("abcc", &ids), Some(vec![6, 5]));
        assert_eq!(pieces("abz", &ids), None);
    }
}
