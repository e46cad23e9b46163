//! The place of an imported file: its name and the directories above it.

use crate::model::escape_component;

/// The place of a file in its collection.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// The directories above it, outermost first.
    pub directories: Vec<Vec<u8>>,
    pub name: Vec<u8>,
}

impl Target {
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

    /// Its name as it is shown: invalid characters are escaped.
    pub(in crate::ingest) fn file_name(&self) -> Vec<u8> {
        match std::str::from_utf8(&self.name) {
            Ok(name) => escape_component(name).into_bytes(),
            Err(_) => self.name.clone(),
        }
    }
}
