//! A source file with comments and string literals distinguished from code.

use std::fmt;

use crate::rules::CRATES;

/// One finding.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: String,
    /// Counted from 1.
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// A source file and two views of it, byte for byte as long as the text itself, so that offsets and lines agree.
pub struct Source<'a> {
    pub path: &'a str,
    pub text: &'a str,
    /// String literals blanked.
    pub without_strings: String,
    /// String literals and comments blanked.
    pub code: String,
}

impl<'a> Source<'a> {
    pub fn new(path: &'a str, text: &'a str) -> Self {
        Self { path, text, without_strings: blanked(text, false), code: blanked(text, true) }
    }

    pub fn finding(&self, offset: usize, what: impl Into<String>) -> Finding {
        let line = 1 + self.text.as_bytes().iter().take(offset).filter(|&&b| b == b'\n').count();
        Finding { path: self.path.to_owned(), line, what: what.into() }
    }

    pub fn is_product_code(&self) -> bool {
        self.path.starts_with("src/")
    }

    /// Files with nothing but tests of the module above them.
    pub fn is_unit_test_file(&self) -> bool {
        self.path.ends_with("/tests.rs") || self.path.contains("/tests/")
    }

    /// `src/store/log/replay.rs` is in layer `store`; the crate's root files are in none.
    pub fn layer(&self) -> Option<&'a str> {
        let below = self.path.strip_prefix("src/")?;
        let first = below.split('/').next()?;
        let name = first.strip_suffix(".rs").unwrap_or(first);
        (!matches!(name, "lib" | "main")).then_some(name)
    }

    /// The folder of src that is a crate of its own, if the file is in one: its paths begin there.
    pub fn own_crate(&self) -> Option<&'a str> {
        self.layer().filter(|layer| CRATES.iter().any(|(folder, _)| folder == layer))
    }

    /// How many `super` reach the crate's root from the file's top level.
    pub fn depth(&self) -> usize {
        let below = self.path.strip_prefix("src/").unwrap_or(self.path);
        below.split('/').filter(|part| *part != "mod.rs").count()
    }
}

/// The text with everything inside string literals, and inside comments if asked, replaced by spaces; newlines stay.
fn blanked(text: &str, comments_too: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = token_end(bytes, at);
        let is_comment = bytes[at..].starts_with(b"//") || bytes[at..].starts_with(b"/*");
        if end > at + 1 && (comments_too || !is_comment) {
            for byte in &mut out[at..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end;
    }
    // Only whole comments and literals were replaced, with ASCII, so this is still UTF-8.
    String::from_utf8_lossy(&out).into_owned()
}

/// The end of the comment or literal that starts here; one byte further if none does.
fn token_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let identifier_before = at > 0 && is_word(bytes[at - 1]);
    if rest.starts_with(b"//") {
        return at + rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
    }
    if rest.starts_with(b"/*") {
        return block_comment_end(bytes, at);
    }
    if rest[0] == b'"' {
        return quoted_end(bytes, at + 1, b'"');
    }
    if !identifier_before && (rest.starts_with(b"r") || rest.starts_with(b"br")) {
        let hashes_at = at + if rest[0] == b'b' { 2 } else { 1 };
        let hashes = bytes[hashes_at..].iter().take_while(|&&b| b == b'#').count();
        if bytes.get(hashes_at + hashes) == Some(&b'"') {
            let close: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
            let body = hashes_at + hashes + 1;
            let found = bytes[body..].windows(close.len()).position(|w| w == close);
            return found.map_or(bytes.len(), |i| body + i + close.len());
        }
    }
    // A character literal, not a lifetime: '"' or '\'' would otherwise open a string.
    if rest[0] == b'\'' {
        if rest.get(1) == Some(&b'\\') {
            return quoted_end(bytes, at + 1, b'\'');
        }
        if rest.get(2) == Some(&b'\'') {
            return at + 3;
        }
    }
    at + 1
}

fn quoted_end(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while at < bytes.len() && bytes[at] != quote {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(at + 1)
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Offsets of a word that is not part of a longer one.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at.checked_sub(1).and_then(|i| bytes.get(i));
        let after = bytes.get(at + word.len());
        !before.is_some_and(|&b| is_word(b)) && !after.is_some_and(|&b| is_word(b))
    })
}

/// The segment after each `root::`, with its offset: `root::{a::b, c}` gives `a` and `c`.
pub fn first_segments<'a>(code: &'a str, root: &'a str) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for at in words(code, root) {
        let after_root = skip_spaces(code, at + root.len());
        if !code[after_root..].starts_with("::") {
            continue;
        }
        let start = skip_spaces(code, after_root + 2);
        if code[start..].starts_with('{') {
            found.extend(group_heads(code, start));
        } else {
            found.push((start, word_at(code, start)));
        }
    }
    found
}

/// The first identifier of every entry of the use group that opens here, without the entries of nested groups.
fn group_heads(code: &str, open: usize) -> Vec<(usize, &str)> {
    let mut heads = Vec::new();
    let mut depth = 0;
    for (i, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && (byte == b'{' || byte == b',') {
            let start = skip_spaces(code, i + 1);
            let head = word_at(code, start);
            if !head.is_empty() {
                heads.push((start, head));
            }
        }
    }
    heads
}

pub fn skip_spaces(code: &str, at: usize) -> usize {
    at + code[at..].bytes().take_while(u8::is_ascii_whitespace).count()
}

pub fn word_at(code: &str, at: usize) -> &str {
    let length = code[at..].bytes().take_while(|&b| is_word(b)).count();
    &code[at..at + length]
}
