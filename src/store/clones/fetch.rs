//! Fetches the pieces of a clone.

use std::io;
use std::sync::{Arc, OnceLock};

use parking_lot::RwLock;

use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::manifest::Piece;
use crate::store::clones::clone_description::CloneSource;
use crate::store::disk::FarFile;

/// Fetches the pieces of clones, and the objects that imports left where they lie. The layer with the network implements it.
pub trait PieceSource: Send + Sync {
    /// The bytes that a piece stands for, compared with its name. `path` is the collection that needs them.
    fn fetch(&self, path: &str, source: &CloneSource, piece: &Piece) -> io::Result<Arc<Vec<u8>>>;
    /// A file did not take the bytes of a piece: they are fetched again at its next read, unless this keeps them.
    fn unkept(&self, _piece: &Piece, _bytes: &Arc<Vec<u8>>) {}
    /// An object of this many bytes that an import left where it lies. Nothing is asked of its source yet.
    fn far_file(&self, place: &SourcePlace, _bytes: u64) -> io::Result<Arc<dyn FarFile>> {
        Err(no_remotes(&place.source))
    }
    /// Records what a cache keeps, for the next process.
    fn save(&self) {}
    /// Tells users of something that went wrong in a collection.
    fn tell(&self, path: &str, text: &str);
}

/// The error of a program that has no remotes.
pub(super) fn no_remotes(url: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, format!("it lies in {url}, and this program has no remotes"))
}

/// The remote of a clone.
pub(super) struct Fetcher {
    /// The path of the collection, `tenant/name`.
    path: String,
    source: RwLock<Arc<CloneSource>>,
    pieces: Arc<OnceLock<Arc<dyn PieceSource>>>,
}

impl Fetcher {
    pub fn new(path: &str, source: CloneSource, pieces: &Arc<OnceLock<Arc<dyn PieceSource>>>) -> Fetcher {
        Fetcher { path: path.to_owned(), source: RwLock::new(Arc::new(source)), pieces: pieces.clone() }
    }

    /// The snapshot that the collection is a clone of.
    pub fn source(&self) -> Arc<CloneSource> {
        self.source.read().clone()
    }

    /// Changes that.
    pub fn set_source(&self, source: &CloneSource) {
        *self.source.write() = Arc::new(source.clone());
    }

    /// The bytes that a piece stands for.
    pub fn fetch(&self, piece: &Piece) -> io::Result<Arc<Vec<u8>>> {
        let source = self.source();
        match self.pieces.get() {
            Some(pieces) => pieces.fetch(&self.path, &source, piece),
            None => Err(no_remotes(&source.url)),
        }
    }

    /// A file did not take the bytes of a piece.
    pub fn unkept(&self, piece: &Piece, bytes: &Arc<Vec<u8>>) {
        if let Some(pieces) = self.pieces.get() {
            pieces.unkept(piece, bytes);
        }
    }

    /// Tells users of something that went wrong in the collection.
    pub fn tell(&self, text: &str) {
        match self.pieces.get() {
            Some(pieces) => pieces.tell(&self.path, text),
            None => log::warn!("{}: {text}", self.path),
        }
    }
}
