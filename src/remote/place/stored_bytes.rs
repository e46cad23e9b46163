//! The bytes that a collection and its variants store in a remote.

use std::collections::{HashMap, HashSet};

use crate::format::snapshot::manifest::Manifest;

/// The stored bytes of a form of a snapshot: of the collection itself, or of a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredBytes {
    /// The name of the variant; `None` for the collection itself.
    pub variant: Option<String>,
    /// Bytes of all pieces that it names, each piece once.
    pub stored: u64,
    /// Bytes of those pieces that another form of the snapshot names too.
    pub shared: u64,
}

impl StoredBytes {
    /// Bytes of the pieces that no other form of the snapshot names.
    pub fn unique(&self) -> u64 {
        self.stored.saturating_sub(self.shared)
    }
}

/// The stored bytes of the collection itself, then of its variants.
pub fn stored_bytes(manifest: &Manifest) -> Vec<StoredBytes> {
    let names = manifest.variants.iter().map(|variant| Some(variant.name.clone()));
    let forms: Vec<(Option<String>, HashSet<u32>)> = std::iter::once(None)
        .chain(names)
        .map(|name| {
            let files = manifest.files_of(name.as_deref()).unwrap_or_default();
            let extents = files.into_iter().flat_map(|(_, file)| &file.extents);
            (name, extents.map(|extent| extent.piece).collect())
        })
        .collect();
    let mut named: HashMap<u32, u32> = HashMap::new();
    for piece in forms.iter().flat_map(|(_, pieces)| pieces) {
        *named.entry(*piece).or_default() += 1;
    }
    let stored = |piece: &u32| manifest.pieces.get(*piece as usize).map_or(0, |it| u64::from(it.stored));
    let is_shared = |piece: &&u32| named.get(*piece).is_some_and(|forms| *forms > 1);
    let of_form = |(variant, pieces): (Option<String>, HashSet<u32>)| StoredBytes {
        variant,
        stored: pieces.iter().map(stored).sum(),
        shared: pieces.iter().filter(is_shared).map(stored).sum(),
    };
    forms.into_iter().map(of_form).collect()
}
