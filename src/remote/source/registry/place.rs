//! Names: the URL of an artifact, and the keys of its files for the client.

use std::fmt;
use std::ops::Range;

use crate::model::hex;
use crate::remote::client::version::Version;

/// The longest name of a repository, and the longest tag, by the definition.
const NAME_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;
const TAG: &str = "latest";
/// The host of docker's own registry.
pub(super) const DOCKER_HOST: &str = "registry-1.docker.io";

/// A SHA-256.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Digest(pub [u8; 32]);

impl Digest {
    pub fn parse(text: &str) -> Option<Digest> {
        match Version::of_sha256(text.strip_prefix("sha256:")?)? {
            Version::Sha256(digest) => Some(Digest(digest)),
            _ => None,
        }
    }

    pub fn hex(&self) -> String {
        hex(&self.0)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "sha256:{}", self.hex())
    }
}

/// The place of a file: a blob, or a part of one: `sha256:DIGEST` or `sha256:DIGEST@BEGIN-END`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub digest: Digest,
    pub part: Option<Range<u64>>,
}

impl At {
    pub fn parse(text: &str) -> Option<At> {
        let Some((digest, part)) = text.split_once('@') else {
            return Some(At { digest: Digest::parse(text)?, part: None });
        };
        let (begin, end) = part.split_once('-')?;
        let part = begin.parse().ok()?..end.parse().ok()?;
        (part.start <= part.end).then_some(At { digest: Digest::parse(digest)?, part: Some(part) })
    }
}

impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            None => write!(out, "{}", self.digest),
            Some(part) => write!(out, "{}@{}-{}", self.digest, part.start, part.end),
        }
    }
}

/// An artifact: `HOST/NAME[:TAG][@DIGEST]`. A digest counts before a tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reference {
    pub host: String,
    pub name: String,
    pub tag: String,
    pub digest: Option<Digest>,
}

impl Reference {
    pub fn parse(text: &str) -> Option<Reference> {
        let (text, digest) = match text.split_once('@') {
            Some((text, digest)) => (text, Some(Digest::parse(digest)?)),
            None => (text, None),
        };
        let (host, rest) = text.split_once('/')?;
        let (name, tag) = rest.rsplit_once(':').unwrap_or((rest, TAG));
        let is_docker = host == "docker.io";
        let host = if is_docker { DOCKER_HOST } else { host };
        let name = if is_docker && !name.contains('/') { format!("library/{name}") } else { name.to_owned() };
        let is_host =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']');
        let is_valid = !host.is_empty()
            && host.bytes().all(is_host)
            && name.len() <= NAME_BYTES_MAX
            && name.split('/').all(is_part)
            && is_tag(tag);
        is_valid.then(|| Reference { host: host.to_owned(), name, tag: tag.to_owned(), digest })
    }

    /// The tag or the digest that the registry is asked for.
    pub fn wanted(&self) -> String {
        self.digest.as_ref().map_or_else(|| self.tag.clone(), Digest::to_string)
    }
}

/// Whether a word can be a part of the name of a repository.
fn is_part(part: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [part.bytes().next(), part.bytes().last()];
    ends.iter().all(|end| end.is_some_and(is_letter))
        && part.bytes().all(|byte| is_letter(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=TAG_BYTES_MAX).contains(&tag.len())
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::{At, Digest, Reference};

    #[test]
    fn a_reference_has_a_host_a_name_and_a_tag_or_a_digest() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        let of = |text: &str| {
            let found = Reference::parse(text)?;
            Some(format!("{} {} {}", found.host, found.name, found.wanted()))
        };
        for (text, wanted) in [
            ("ghcr.io/org/model:v1", Some("ghcr.io org/model v1".to_owned())),
            ("ghcr.io/org/model", Some("ghcr.io org/model latest".to_owned())),
            ("localhost:5000/m:1", Some("localhost:5000 m 1".to_owned())),
            ("docker.io/m", Some("registry-1.docker.io library/m latest".to_owned())),
            ("docker.io/ai/m", Some("registry-1.docker.io ai/m latest".to_owned())),
            (&format!("ghcr.io/o/m:v1@{digest}"), Some(format!("ghcr.io o/m {digest}"))),
            ("ghcr.io", None),
            ("ghcr.io/", None),
            ("/org/model", None),
            ("ghcr.io/Org/model", None),
            ("ghcr.io/org/../model", None),
            ("ghcr.io/org/model:", None),
            ("ghcr.io/org/model:-x", None),
            ("ghcr.io/org/model@sha512:ab", None),
            ("user@ghcr.io/org/model", None),
        ] {
            assert_eq!(of(text), wanted, "{text}");
        }
    }

    #[test]
    fn the_key_of_a_file_is_read_as_it_was_written() {
        let digest = Digest([7; 32]);
        for part in [None, Some(0..0), Some(512..u64::MAX)] {
            let at = At { digest: digest.clone(), part };
            assert_eq!(At::parse(&at.to_string()), Some(at));
        }
        for wrong in
            ["", "sha256:", "sha256:ab@1-2", &format!("{digest}@2-1"), &format!("{digest}@1"), "md5:x"]
        {
            assert_eq!(At::parse(wrong), None, "{wrong}");
        }
    }
}
