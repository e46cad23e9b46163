//! Names of a snapshot of a collection: its number, a tag, or the digest of its manifest.

use crate::format::snapshot::keys;
use crate::model::{CollectionName, Error, ErrorKind, Result};
use crate::remote::client::{Wanted, runtime};
use crate::remote::place::remote::Remote;

/// A manifest ends with a digest of this length, which names it.
pub(in crate::remote) const DIGEST_BYTES: u64 = 32;
/// Digests that are asked for at a time.
const AT_ONCE: usize = 64;

/// The snapshot of a collection that a user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// The newest.
    Newest,
    /// This number.
    Number(u64),
    /// The one with this tag, whichever that is.
    Tag(String),
    /// The one whose manifest has this BLAKE3: never another, whoever writes to the remote.
    Digest([u8; 32]),
}

impl At {
    /// The snapshot that a text names.
    pub fn parse(text: &str) -> At {
        match (digest(text), text.parse()) {
            (Some(digest), _) => At::Digest(digest),
            (_, Ok(number)) => At::Number(number),
            _ => At::Tag(text.to_owned()),
        }
    }
}

/// The digest that 64 hexadecimal digits are.
pub(in crate::remote) fn digest(text: &str) -> Option<[u8; 32]> {
    blake3::Hash::from_hex(text).ok().map(|digest| *digest.as_bytes())
}

/// The number of a snapshot. `NotFound` if the remote has none like that.
pub fn number_of(remote: &Remote, place: CollectionName<'_>, at: &At) -> Result<u64> {
    let CollectionName { tenant, name } = place;
    let lacks = |thing: String| {
        Error::new(ErrorKind::NotFound, format!("{}: {place} has no {thing}", remote.place()))
    };
    match at {
        At::Number(number) => Ok(*number),
        At::Newest => remote.newest(tenant, name)?.ok_or_else(|| lacks("snapshot".to_owned())),
        At::Tag(tag) => {
            let found = remote.number_at(&keys::tag(tenant, name, tag))?;
            found.ok_or_else(|| lacks(format!("tag {tag:?}")))
        }
        At::Digest(digest) => {
            let found = with_digest(remote, place, digest)?;
            found.ok_or_else(|| lacks(format!("snapshot {}", crate::model::hex(digest))))
        }
    }
}

/// The number of the snapshot whose manifest ends with a digest. Newer ones are looked at first.
fn with_digest(remote: &Remote, place: CollectionName<'_>, digest: &[u8; 32]) -> Result<Option<u64>> {
    let below = keys::snapshots(place.tenant, place.name);
    let mut listed = remote.client().list(below.trim_end_matches('/'), None)?;
    listed.reverse();
    for some in listed.chunks(AT_ONCE) {
        let end = |len: u64| Wanted::range(len.saturating_sub(DIGEST_BYTES)..len);
        let wanted: Vec<_> = some.iter().map(|object| (object.key.clone(), end(object.len))).collect();
        let answers = runtime::wait(remote.client().got_each(&wanted))?;
        for (object, answer) in some.iter().zip(answers) {
            if answer?.as_deref() == Some(digest) {
                return Ok(keys::parse_snapshot(&object.key).map(|(.., number)| number));
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::At;

    #[test]
    fn a_text_is_a_number_a_digest_or_a_tag() {
        let digest = "ab".repeat(32);
        assert_eq!(At::parse("12"), At::Number(12));
        assert_eq!(At::parse(&digest), At::Digest([0xab; 32]));
        assert_eq!(At::parse(&"0".repeat(64)), At::Digest([0; 32]));
        for tag in ["v1", &digest[1..], "latest"] {
            assert_eq!(At::parse(tag), At::Tag(tag.to_owned()));
        }
    }
}
