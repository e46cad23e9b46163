//! The place of an imported file: its name and the directories above it.

#[cfg(feature = "mount")]
use crate::model::{escape_component, is_reserved};

/// The place of a file in its collection. Its names are those that it gets there.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The directories above it, outermost first.
    pub directories: Vec<Vec<u8>>,
    pub name: Vec<u8>,
}

impl Target {
    /// A file below directories of the source. Names that stand for trees of the mount are escaped.
    #[cfg(feature = "mount")]
    pub(in crate::ingest) fn new(directories: &[Vec<u8>], name: &[u8]) -> Target {
        let directories = directories.iter().map(|directory| shown(directory)).collect();
        Target { directories, name: shown(name) }
    }

    /// The path below the collection, as text.
    pub fn path(&self) -> String {
        let mut parts: Vec<&[u8]> = self.directories.iter().map(Vec::as_slice).collect();
        parts.push(&self.name);
        String::from_utf8_lossy(&parts.join(&b'/')).into_owned()
    }

    /// The path of its directory below the collection, as text.
    pub(in crate::ingest) fn directory_path(&self) -> String {
        let parts: Vec<&[u8]> = self.directories.iter().map(Vec::as_slice).collect();
        String::from_utf8_lossy(&parts.join(&b'/')).into_owned()
    }
}

#[cfg(feature = "mount")]
fn shown(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(name) if is_reserved(name) => escape_component(name).into_bytes(),
        _ => name.to_vec(),
    }
}
