//! Claims: one caller at a time fetches, evicts or takes over a piece.

use std::io;
use std::sync::Arc;

use super::{Claimed, EXTENTS_MAX, Got, PieceFile};
use crate::format::snapshot::manifest::Piece;
use crate::format::snapshot::piece_map::{ARRIVED, Digest};
use crate::store::pieces::arrival::Arrival;

/// A piece that its holder works on. Those who wait are woken however it ends.
pub struct Claim<E> {
    pub(super) file: Arc<PieceFile<E>>,
    pub(super) piece: u32,
    pub(super) claimed: Arc<Claimed<E>>,
    pub(super) ended: Option<Result<Got, Arc<E>>>,
}

impl<E> Claim<E> {
    /// The file.
    pub fn file(&self) -> &Arc<PieceFile<E>> {
        &self.file
    }

    /// The place of the piece in its file.
    pub fn place(&self) -> u32 {
        self.piece
    }

    /// The piece.
    pub fn piece(&self) -> Option<&Piece> {
        self.file.layout.piece(self.piece)
    }

    /// Writes the bytes that the piece stands for, which were compared with its name, and calls it here.
    pub fn keep(&self, bytes: &[u8]) -> io::Result<()> {
        let Some(data) = &self.file.data else { return Err(io::ErrorKind::ReadOnlyFilesystem.into()) };
        self.file.put(&**data, self.piece, bytes)?;
        let is_checked = self.file.table.lock().digests.is_some();
        self.arrived(is_checked.then(|| self.file.layout.digest(self.piece, bytes)))
    }

    /// Writes over a piece that is here, and whose state stays.
    pub fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        self.file.data.as_ref().map_or(Ok(()), |data| self.file.put(&**data, self.piece, bytes))
    }

    /// Whether the bytes may be written while they arrive, before they were compared: the file has all of them as
    /// they are stored, and nobody can have the bytes open that they replace.
    pub fn may_arrive(&self) -> bool {
        let (file, piece) = (&self.file, self.piece);
        let extents = file.layout.extents_of(piece).len();
        extents <= EXTENTS_MAX
            && file.layout.is_verbatim(piece)
            && !file.table.lock().suspects.contains(&piece)
    }

    /// Takes the bytes of the piece while they arrive. `None` of a file that keeps nothing.
    pub fn arrival<C: AsRef<[u8]>>(&self) -> Option<Arrival<'_, C>> {
        let data = self.file.data.as_deref()?;
        Some(Arrival::new(data, &self.file.turn, self.file.layout.extents_of(self.piece)))
    }

    /// Calls the piece here, all bytes of which were written and compared. The digest is that of its bytes in the
    /// order of the file. Fails if other processes cannot be told: they may give back its space.
    pub fn arrived(&self, digest: Option<Digest>) -> io::Result<()> {
        let (file, piece) = (&self.file, self.piece);
        let _changing = file.changing.lock();
        if let (Some(map), Some(digest)) = (file.shared_map(), digest) {
            map.write_at(&digest, file.places.digest(piece))?;
            map.write_at(&[ARRIVED], file.places.state(piece))?;
        }
        file.table.lock().arrive(piece, digest, false);
        Ok(())
    }

    /// Ends the claim. Those who wait get the same.
    pub fn end(mut self, got: Result<Got, Arc<E>>) -> Result<Got, Arc<E>> {
        self.ended = Some(got.clone());
        got
    }
}

impl<E> Drop for Claim<E> {
    fn drop(&mut self) {
        let mut table = self.file.table.lock();
        table.claims.remove(&self.piece);
        // Only the claim itself sets it.
        drop(self.claimed.set(self.ended.take()));
        drop(table);
        self.file.released.notify_all();
    }
}
