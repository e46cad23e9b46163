//! The outcome of a push.

use serde_json::{Value, json};

use crate::format::snapshot::manifest::Manifest;
use crate::model::{CollectionName, human};

/// The outcome of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pushed {
    /// The number of the snapshot.
    pub number: u64,
    /// Whether there was nothing to publish: the newest snapshot has this state.
    pub is_unchanged: bool,
    /// Pieces of the snapshot.
    pub pieces: usize,
    /// How many of them are differences from others of them.
    pub differences: usize,
    /// Bytes of the snapshot's pieces, as stored.
    pub bytes: u64,
    /// Pieces that were sent.
    pub pieces_sent: usize,
    /// Bytes that were sent.
    pub bytes_sent: u64,
}

impl Pushed {
    /// The outcome of a push that sent nothing.
    pub(super) fn of(manifest: &Manifest) -> Pushed {
        Pushed {
            number: manifest.number,
            pieces: manifest.pieces.len(),
            differences: manifest.differences.len(),
            bytes: manifest.pieces.iter().map(|piece| u64::from(piece.stored)).sum(),
            ..Pushed::default()
        }
    }

    /// The outcome for programs. `named` is its name in the remote.
    pub fn to_json(&self, named: CollectionName<'_>) -> Value {
        json!({
            "collection": named.to_string(),
            "snapshot": self.number,
            "unchanged": self.is_unchanged,
            "pieces": self.pieces,
            "differences": self.differences,
            "bytes": self.bytes,
            "pieces_sent": self.pieces_sent,
            "bytes_sent": self.bytes_sent,
        })
    }

    /// The outcome for people.
    pub fn text(&self, named: CollectionName<'_>) -> String {
        let what = if self.is_unchanged { "nothing new, still" } else { "pushed" };
        format!(
            "{what} snapshot {} of {named}: {} in {} pieces, {} sent in {}",
            self.number,
            human(self.bytes),
            self.pieces,
            human(self.bytes_sent),
            self.pieces_sent,
        )
    }
}
