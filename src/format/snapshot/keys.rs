//! The names of the objects of a remote, below its prefix.
//!
//! | key | object |
//! |---|---|
//! | `tierfs.remote` | the remote's identity |
//! | `snap/<tenant>/<collection>/<16 hex>` | manifest of this number |
//! | `head/<tenant>/<collection>` | number of the newest manifest, a hint |
//! | `list/<tenant>` | newest snapshots of a tenant's collections (`tenant_list.rs`), a hint |
//! | `tag/<tenant>/<collection>/<name>` | number of a manifest that is kept |
//! | `piece/<2 hex>/<62 hex>.<8 hex>` | a piece: BLAKE3 of its stored bytes, generation |
//! | `gc/<16 hex>` | plan of a collection of garbage |
//! | `gc/<16 hex>.sweep` | empty; a run removes what that plan names |
//! | `gc/clock` | nothing; its time is that of the server |
//!
//! A name is written with `%XX` for each byte outside `A-Z a-z 0-9 . _ -`. A name that has more than 200
//! bytes then is shortened to the first 150, without a part of an escape, `%~`, and 32 hexadecimal digits
//! of the BLAKE3 of the name. Hexadecimal digits of numbers are small, those of escapes capital.

use std::fmt;
use std::fmt::Write;

use crate::model::hex;

/// Escaped names with more bytes than this are shortened.
const ESCAPED_BYTES_MAX: usize = 200;
/// Bytes that a shortened name keeps.
const KEPT_BYTES_MAX: usize = 150;
/// Ends the part of a shortened name that is kept.
const SHORTENED: &str = "%~";
/// Hexadecimal digits in a shortened name.
const DIGEST_DIGITS: usize = 32;

/// Differs after each push: a hint, by which a mount learns that there may be newer snapshots.
pub const PUSHED: &str = "tierfs.pushed";
/// The file that makes a prefix a remote.
pub const REMOTE: &str = "tierfs.remote";
/// The directory of the manifests.
pub const SNAPSHOTS: &str = "snap/";
/// The directory of the hints.
pub const HEADS: &str = "head/";
/// The directory of the pieces.
pub const PIECES: &str = "piece/";
/// The directory of the plans of collections of garbage.
pub const GARBAGE: &str = "gc/";

/// The stored name of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PieceName {
    /// BLAKE3 of the stored bytes.
    pub digest: [u8; 32],
    /// Generation of the collection of garbage in which the piece was stored.
    pub generation: u32,
}

impl fmt::Debug for PieceName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&piece(self))
    }
}

/// A name as a key has it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeyName {
    /// The name.
    Whole(String),
    /// The escaped form of a name that is too long. The manifest has the name.
    Shortened(String),
}

impl KeyName {
    /// Whether a name has this form in keys.
    pub fn is_of(&self, name: &str) -> bool {
        match self {
            KeyName::Whole(whole) => whole == name,
            KeyName::Shortened(short) => escape(name) == *short,
        }
    }
}

/// A name as it stands in keys.
pub fn escape(name: &str) -> String {
    let mut kept = 0;
    let mut escaped = escaped(name, |len| kept = if len <= KEPT_BYTES_MAX { len } else { kept });
    if escaped.len() > ESCAPED_BYTES_MAX {
        escaped.truncate(kept);
        escaped.push_str(SHORTENED);
        escaped.extend(hex(blake3::hash(name.as_bytes()).as_bytes()).chars().take(DIGEST_DIGITS));
    }
    escaped
}

/// A name with `%XX` as in keys, however long.
pub fn escape_whole(name: &str) -> String {
    escaped(name, |_| ())
}

/// The name that [`escape_whole`] makes this text of.
pub fn unescape_whole(escaped: &str) -> Option<String> {
    let name = String::from_utf8(decoded(escaped)?).ok()?;
    (escape_whole(&name) == escaped).then_some(name)
}

/// A name with escapes. `grown` is told the length after each byte of the name.
fn escaped(name: &str, mut grown: impl FnMut(usize)) -> String {
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-') {
            escaped.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            write!(escaped, "%{byte:02X}").unwrap_or_default();
        }
        grown(escaped.len());
    }
    escaped
}

/// The name that stands in a key. `None` if [`escape`] makes no such text.
pub fn unescape(escaped: &str) -> Option<KeyName> {
    if let Some((kept, digest)) = escaped.split_once(SHORTENED) {
        let is_kept = kept.len() <= KEPT_BYTES_MAX && kept.len() + 3 > KEPT_BYTES_MAX;
        let is_digest = digest.len() == DIGEST_DIGITS && digest.bytes().all(is_digit);
        let is_short = is_kept && is_digest && decoded(kept).is_some();
        return is_short.then(|| KeyName::Shortened(escaped.to_owned()));
    }
    let name = String::from_utf8(decoded(escaped)?).ok()?;
    (!name.is_empty() && escape(&name) == escaped).then_some(KeyName::Whole(name))
}

/// The bytes that a text with escapes stands for.
fn decoded(escaped: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_first_chunk::<2>()?;
        let text = std::str::from_utf8(digits).ok()?;
        // A sign is not a digit.
        bytes.push(u8::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))?);
        rest = after;
    }
    Some(bytes)
}

fn is_digit(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// The directory of the manifests of a tenant's collections.
pub fn snapshots_of_tenant(tenant: &str) -> String {
    format!("{SNAPSHOTS}{}/", escape(tenant))
}

/// The directory of the manifests of a collection.
pub fn snapshots(tenant: &str, collection: &str) -> String {
    format!("{}{}/", snapshots_of_tenant(tenant), escape(collection))
}

/// The manifest of this number.
pub fn snapshot(tenant: &str, collection: &str, number: u64) -> String {
    format!("{}{number:016x}", snapshots(tenant, collection))
}

/// The hint of the newest manifest's number.
pub fn head(tenant: &str, collection: &str) -> String {
    format!("{}{}", heads_of_tenant(tenant), escape(collection))
}

/// The directory of the hints of a tenant's collections.
pub fn heads_of_tenant(tenant: &str) -> String {
    format!("{HEADS}{}/", escape(tenant))
}

/// The list of a tenant's collections.
pub fn tenant_list(tenant: &str) -> String {
    format!("list/{}", escape(tenant))
}

/// The directory of a collection's tags.
pub fn tags(tenant: &str, collection: &str) -> String {
    format!("tag/{}/{}/", escape(tenant), escape(collection))
}

/// A tag of a collection.
pub fn tag(tenant: &str, collection: &str, name: &str) -> String {
    format!("{}{}", tags(tenant, collection), escape(name))
}

/// A piece.
pub fn piece(name: &PieceName) -> String {
    let digest = hex(&name.digest);
    let (first, rest) = digest.split_at(2);
    format!("{PIECES}{first}/{rest}.{:08x}", name.generation)
}

/// A plan of a collection of garbage.
pub fn garbage(generation: u64) -> String {
    format!("{GARBAGE}{generation:016x}")
}

/// The number that the last part of a key is: of a manifest or a plan, or the content of a hint or a tag.
pub fn number(digits: &str) -> Option<u64> {
    let is_number = digits.len() == 16 && digits.bytes().all(is_digit);
    is_number.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// The tenant, the collection and the number of a manifest's key.
pub fn parse_snapshot(key: &str) -> Option<(KeyName, KeyName, u64)> {
    let mut parts = key.strip_prefix(SNAPSHOTS)?.split('/');
    let (tenant, collection, digits) = (parts.next()?, parts.next()?, parts.next()?);
    let found = (unescape(tenant)?, unescape(collection)?, number(digits)?);
    parts.next().is_none().then_some(found)
}

/// The name in a piece's key.
pub fn parse_piece(key: &str) -> Option<PieceName> {
    let (first, rest) = key.strip_prefix(PIECES)?.split_once('/')?;
    let (rest, generation) = rest.split_once('.')?;
    let is_whole = (first.len(), generation.len()) == (2, 8);
    if !is_whole || !generation.bytes().all(is_digit) {
        return None;
    }
    let digest = digest(&format!("{first}{rest}"))?;
    Some(PieceName { digest, generation: u32::from_str_radix(generation, 16).ok()? })
}

/// The digest that 64 hexadecimal digits stand for.
pub fn digest(digits: &str) -> Option<[u8; 32]> {
    if digits.len() != 64 || !digits.bytes().all(is_digit) {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        KeyName, PieceName, escape, garbage, head, number, parse_piece, parse_snapshot, piece, snapshot, tag,
        unescape,
    };

    #[test]
    fn names_are_escaped_and_long_ones_shortened() {
        assert_eq!(escape("llama-3.1_8B"), "llama-3.1_8B");
        assert_eq!(escape("a b/é%~"), "a%20b%2F%C3%A9%25%7E");
        let long = "x".repeat(200);
        assert_eq!(escape(&long), long);
        let digest = blake3::hash("é".repeat(50).as_bytes()).to_hex();
        // 150 is a multiple of 6, the length of one escaped letter.
        assert_eq!(escape(&"é".repeat(50)), format!("{}%~{}", "%C3%A9".repeat(25), &digest[..32]));
        let name = format!("x{}", "é".repeat(50));
        let short = escape(&name);
        assert!(short.starts_with(&format!("x{}%C3%~", "%C3%A9".repeat(24))), "{short}");
        assert_eq!(unescape(&short), Some(KeyName::Shortened(short)));
    }

    #[test]
    fn keys_have_the_form_of_the_table() {
        assert_eq!(snapshot("acme", "a b", 18), "snap/acme/a%20b/0000000000000012");
        assert_eq!(head("acme", "llama"), "head/acme/llama");
        assert_eq!(tag("acme", "llama", "v1/x"), "tag/acme/llama/v1%2Fx");
        assert_eq!(garbage(255), "gc/00000000000000ff");
        let name = PieceName { digest: std::array::from_fn(|place| place as u8 + 0xa0), generation: 0x1f };
        assert_eq!(
            piece(&name),
            "piece/a0/a1a2a3a4a5a6a7a8a9aaabacadaeafb0b1b2b3b4b5b6b7b8b9babbbcbdbebf.0000001f"
        );
    }

    #[test]
    fn keys_that_nobody_writes_are_refused() {
        for escaped in ["", "%2f", "a b", "%41", "%", "%4", "%+1", "%ff", "%~", "a/b", "%FF", "x%~00"] {
            assert_eq!(unescape(escaped), None, "{escaped}");
        }
        for digits in ["", "1", "000000000000000G", "00000000000000FF", "+000000000000001"] {
            assert_eq!(number(digits), None, "{digits}");
        }
        let whole = piece(&PieceName { digest: [0xab; 32], generation: 7 });
        assert!(parse_piece(&whole).is_some());
        for key in
            [whole.to_uppercase(), whole.replace('.', ""), whole.replace("ab/", "a/b"), format!("{whole}0")]
        {
            assert_eq!(parse_piece(&key), None, "{key}");
        }
        assert_eq!(parse_snapshot("snap/a/b/0000000000000001/x"), None);
    }

    proptest! {
        #[test]
        fn a_name_is_read_from_its_escaped_form(name in "\\PC{0,12}|[a-z/% ~]{190,255}|.{60,80}") {
            let escaped = escape(&name);
            prop_assert!(escaped.len() <= 200);
            prop_assert!(escaped.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/'));
            match unescape(&escaped) {
                None => prop_assert!(name.is_empty()),
                Some(KeyName::Whole(read)) => prop_assert_eq!(read, name),
                Some(short) => {
                    let longer = format!("{name}x");
                    prop_assert!(short.is_of(&name) && !short.is_of(&longer));
                }
            }
        }

        #[test]
        fn keys_are_read_as_they_were_written(
            tenant in "[^/]{1,100}", collection in "\\PC{1,255}", number in any::<u64>(),
            digest in any::<[u8; 32]>(), generation in any::<u32>(),
        ) {
            let (read_tenant, read_collection, read) =
                parse_snapshot(&snapshot(&tenant, &collection, number)).unwrap();
            prop_assert!(read_tenant.is_of(&tenant) && read_collection.is_of(&collection));
            prop_assert_eq!(read, number);
            let name = PieceName { digest, generation };
            prop_assert_eq!(parse_piece(&piece(&name)), Some(name));
        }

        #[test]
        fn any_text_is_read_as_a_key_or_refused(text in "(snap|piece)/[%~0-9a-f./A-F]{0,90}") {
            if let Some(name) = parse_piece(&text) {
                prop_assert_eq!(piece(&name), text.clone());
            }
            if let Some((KeyName::Whole(tenant), KeyName::Whole(collection), number)) = parse_snapshot(&text) {
                prop_assert_eq!(snapshot(&tenant, &collection, number), text);
            }
        }
    }
}
