//! Versions of objects that anybody may replace. A read names the version that it wants, and gets no other bytes.

use object_store::{GetOptions, ObjectMeta};

pub use crate::format::snapshot::references::Version;

/// An object that a read is held to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pin {
    /// Its version.
    pub version: Version,
    /// Its bytes.
    pub bytes: u64,
}

/// The version of an object that a listing or an answer describes.
pub(in crate::remote) fn of(meta: &ObjectMeta) -> Version {
    match &meta.e_tag {
        Some(e_tag) => Version::ETag(e_tag.clone()),
        None => Version::Modified(meta.last_modified.timestamp()),
    }
}

impl Pin {
    /// Has the server refuse another version. Not all servers do, so the answer is compared too.
    pub(super) fn ask(&self, options: &mut GetOptions) {
        match &self.version {
            // A weak ETag matches none in a condition.
            Version::ETag(e_tag) if !e_tag.starts_with("W/") => {
                options.if_match = Some(format!("\"{}\"", opaque(e_tag)));
            }
            Version::Id(id) => options.version = Some(id.clone()),
            Version::ETag(_) | Version::Modified(_) | Version::Fixed | Version::Sha256(_) => {}
        }
    }

    /// Whether an answer is of this version.
    pub(super) fn is_of(&self, meta: &ObjectMeta) -> bool {
        let is_same = match &self.version {
            Version::ETag(wanted) => {
                meta.e_tag.as_deref().is_some_and(|found| opaque(found) == opaque(wanted))
            }
            Version::Id(wanted) => meta.version.as_ref().is_none_or(|found| found == wanted),
            Version::Modified(wanted) => meta.last_modified.timestamp() == *wanted,
            Version::Fixed | Version::Sha256(_) => true,
        };
        is_same && meta.size == self.bytes
    }
}

/// An ETag without its quotation marks, which some servers leave out in listings.
pub(super) fn unquoted(e_tag: &str) -> &str {
    e_tag.trim_matches('"')
}

/// The same without the mark of a weak one.
fn opaque(e_tag: &str) -> &str {
    unquoted(e_tag.trim_start_matches("W/"))
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;
    use object_store::{GetOptions, ObjectMeta};

    use super::{Pin, Version};

    fn meta(e_tag: Option<&str>, version: Option<&str>) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("key"),
            last_modified: chrono::DateTime::UNIX_EPOCH,
            size: 3,
            e_tag: e_tag.map(str::to_owned),
            version: version.map(str::to_owned),
        }
    }

    #[test]
    fn an_answer_is_of_a_version_only_if_its_tag_and_its_length_are_the_same() {
        let pin = |version| Pin { version, bytes: 3 };
        let tag = |tag: &str| pin(Version::ETag(tag.to_owned()));
        assert!(tag("\"a\"").is_of(&meta(Some("\"a\""), None)));
        assert!(tag("a").is_of(&meta(Some("\"a\""), None)));
        assert!(!tag("\"a\"").is_of(&meta(Some("\"b\""), None)));
        assert!(!tag("\"a\"").is_of(&meta(None, None)));
        assert!(!Pin { bytes: 4, ..tag("\"a\"") }.is_of(&meta(Some("\"a\""), None)));
        assert!(!pin(Version::Id("1".to_owned())).is_of(&meta(None, Some("2"))));
        assert!(pin(Version::Modified(0)).is_of(&meta(None, None)));
        assert!(!pin(Version::Modified(1)).is_of(&meta(None, None)));
    }

    #[test]
    fn a_weak_tag_is_no_condition() {
        for (tag, wanted) in [("\"a\"", Some("\"a\"")), ("a", Some("\"a\"")), ("W/\"a\"", None)] {
            let mut options = GetOptions::default();
            Pin { version: Version::ETag(tag.to_owned()), bytes: 1 }.ask(&mut options);
            assert_eq!(options.if_match.as_deref(), wanted);
        }
    }
}
