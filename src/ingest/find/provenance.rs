//! The source of an imported file, as a setting of its node. A second import of the same source compares with it.
//!
//! The value is text: the modification time of the source in nanoseconds since 1970, the first 32 hexadecimal
//! digits of its BLAKE3 (`-` for a symbolic link), and places: the first 32 hexadecimal digits of the BLAKE3 of the
//! source directory, a slash, and the path below it. There is a place for each name of the file, and for the blob of
//! a hub cache, which has the empty directory.

use crate::format::log::catalog::Entry;
#[cfg(feature = "mount")]
use crate::format::log::catalog::FileEntry;
#[cfg(feature = "mount")]
use crate::ingest::find::target::Target;
use crate::model::{EntryId, hex};
#[cfg(feature = "mount")]
use crate::store::State;

/// The key of the setting.
const IMPORTED: &str = "imported";

/// Number of hexadecimal digits of a digest.
const DIGITS: usize = 32;

/// The digest of a symbolic link.
const NO_DIGEST: &str = "-";

/// The source of an imported file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::ingest) struct Provenance {
    /// The modification time of the source, in nanoseconds since 1970.
    pub mtime: i64,
    /// Digits of the BLAKE3 of its bytes.
    pub digest: String,
    pub places: Vec<String>,
}

/// Identifies a path below a source directory, independent of the path to the directory.
#[cfg(feature = "mount")]
pub(in crate::ingest) fn place(root: &[u8], path: &[u8]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(root);
    hasher.update(b"/");
    hasher.update(path);
    digits(hasher.finalize().as_bytes())
}

/// [`place`] of a file or link that was found.
#[cfg(feature = "mount")]
pub(in crate::ingest) fn place_of(root: &[u8], target: &Target) -> String {
    let mut path: Vec<u8> =
        target.directories.iter().flat_map(|name| name.iter().copied().chain([b'/'])).collect();
    path.extend_from_slice(&target.name);
    place(root, &path)
}

fn digits(bytes: &[u8; 32]) -> String {
    let mut digits = hex(bytes);
    digits.truncate(DIGITS);
    digits
}

impl Provenance {
    /// The provenance of a file, or of a symbolic link, which has no digest.
    pub fn new(mtime: i64, blake3: Option<[u8; 32]>, places: Vec<String>) -> Provenance {
        let digest = blake3.as_ref().map_or_else(|| NO_DIGEST.to_owned(), digits);
        Provenance { mtime, digest, places }
    }

    /// The entry that records it.
    pub fn entry(&self, node: EntryId) -> Entry {
        let text = format!("{} {} {}", self.mtime, self.digest, self.places.join(" "));
        Entry::Setting { node, key: IMPORTED.to_owned(), value: Some(text) }
    }
}

/// Only programs with files on disk import directories and hub caches, which use it.
#[cfg(feature = "mount")]
impl Provenance {
    /// The provenance of a node of the collection, if an import made it.
    pub fn of(state: &State, node: EntryId) -> Option<Provenance> {
        Provenance::parse(state.setting(node, IMPORTED)?)
    }

    /// All nodes that imports have made, with their provenance.
    pub fn all(state: &State) -> impl Iterator<Item = (EntryId, Provenance)> {
        let parsed = |(node, text)| Some((node, Provenance::parse(text)?));
        state.set_nodes(IMPORTED).filter_map(parsed)
    }

    /// Whether a file still has the imported bytes, in any tier.
    pub fn is_of(&self, file: &FileEntry) -> bool {
        file.digests.blake3().is_some_and(|blake3| self.digest == digits(&blake3))
    }

    fn parse(text: &str) -> Option<Provenance> {
        let mut words = text.split(' ');
        let mtime = words.next()?.parse().ok()?;
        let digest = words.next()?.to_owned();
        Some(Provenance { mtime, digest, places: words.map(str::to_owned).collect() })
    }
}

#[cfg(all(test, feature = "mount"))]
mod tests {
    use super::{Provenance, place, place_of};
    use crate::format::log::catalog::Entry;
    use crate::ingest::find::target::Target;
    use crate::model::EntryId;

    #[test]
    fn a_provenance_is_read_as_it_was_recorded() {
        let target = Target { directories: vec![b"a".to_vec(), b"b".to_vec()], name: b"c".to_vec() };
        assert_eq!(place_of(b"/src", &target), place(b"/src", b"a/b/c"));
        assert_ne!(place_of(b"/src/a", &target), place(b"/src", b"a/b/c"));
        let mut provenance = Provenance::new(-5, Some([0xab; 32]), vec![place(b"/src", b"x")]);
        provenance.places.push(place(b"/src", b"y"));
        let Entry::Setting { value: Some(text), .. } = provenance.entry(EntryId(1)) else { unreachable!() };
        assert_eq!(Provenance::parse(&text), Some(provenance));
        for wrong in ["", "x", "1", "x 1 2"] {
            assert_eq!(Provenance::parse(wrong), None, "{wrong}");
        }
    }
}
