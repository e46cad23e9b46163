//! The states in the map on disk: those that other processes have written are read, and those in memory are saved.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::PieceFile;
use crate::format::snapshot::piece_map::{ARRIVED, DIGEST_BYTES, PieceState, SUSPECT};
use crate::store::disk::File;

impl<E> PieceFile<E> {
    /// The map, if other processes may read and write the same file.
    pub(super) fn shared_map(&self) -> Option<&dyn File> {
        self.map.as_deref().filter(|_| self.is_shared)
    }

    /// Looks in the map whether other processes have brought some of these pieces. Returns those that are here since the
    /// last look.
    pub fn look(&self, pieces: Range<u32>) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        let Some(map) = self.shared_map().filter(|_| !pieces.is_empty()) else { return Ok(found) };
        let _changing = self.changing.lock();
        let mut states = vec![0; pieces.len()];
        map.read_exact_at(&mut states, self.places.state(pieces.start))?;
        for (piece, state) in pieces.zip(states) {
            // The map lacks that the bytes of the latter are wrong.
            if self.has(piece) || self.table.lock().unsaved.contains(&piece) {
                continue;
            }
            let is_durable = state == PieceState::Here.byte();
            if !is_durable && state != ARRIVED {
                if state == SUSPECT {
                    self.table.lock().suspects.insert(piece);
                }
                continue;
            }
            let mut digest = [0; DIGEST_BYTES];
            map.read_exact_at(&mut digest, self.places.digest(piece))?;
            self.table.lock().arrive(piece, Some(digest), is_durable);
            found.push(piece);
        }
        Ok(found)
    }

    /// Whether the map says of any piece that its bytes were wrong.
    pub fn has_suspects(&self) -> io::Result<bool> {
        let Some(map) = self.shared_map() else { return Ok(false) };
        let mut states = vec![0; self.layout.piece_count() as usize];
        map.read_exact_at(&mut states, self.places.state(0))?;
        Ok(states.contains(&SUSPECT))
    }

    /// Forgets those of these pieces that are here, because their bytes are wrong: they are fetched again. Returns
    /// the pieces that were forgotten.
    pub fn forget(&self, pieces: &[u32]) -> Vec<u32> {
        let _changing = self.changing.lock();
        let is_here = |piece: &u32| self.state(*piece) == PieceState::Here;
        let here: Vec<u32> = pieces.iter().copied().filter(is_here).collect();
        for piece in &here {
            let told = self.shared_map().map(|map| map.write_at(&[SUSPECT], self.places.state(*piece)));
            let mut table = self.table.lock();
            table.set(*piece, PieceState::Remote);
            table.suspects.insert(*piece);
            table.unsaved.remove(piece);
            if !matches!(told, Some(Ok(()))) {
                table.unsaved.insert(*piece);
            }
        }
        here
    }

    /// The number of pieces whose state the map lacks.
    pub fn unsaved(&self) -> usize {
        self.table.lock().unsaved.len()
    }

    /// Makes the states of these pieces in the map durable, and then those in memory.
    pub fn record(&self, pieces: &[u32], state: PieceState) -> io::Result<()> {
        let _changing = self.changing.lock();
        if let Some(map) = &self.map {
            for piece in pieces {
                map.write_at(&[state.byte()], self.places.state(*piece))?;
            }
            map.sync_data()?;
        }
        let mut table = self.table.lock();
        for piece in pieces {
            table.set(*piece, state);
            table.unsaved.remove(piece);
        }
        Ok(())
    }

    /// Makes the bytes that have arrived durable, and says so in the map. If they may be lost, their pieces are
    /// fetched again.
    pub fn save(&self) -> io::Result<()> {
        let Some(data) = self.data.as_ref().filter(|_| !self.is_removed()) else { return Ok(()) };
        let unsaved = std::mem::take(&mut self.table.lock().unsaved);
        if unsaved.is_empty() {
            return Ok(());
        }
        if let Err(error) = data.sync_data() {
            // The kernel tells of lost pages once and takes them for written afterwards.
            self.has_lost.store(true, Ordering::Release);
            self.forget(&Vec::from_iter(unsaved));
            return Err(error);
        }
        let saved = self.write_states(&unsaved);
        if saved.is_err() {
            self.table.lock().unsaved.extend(unsaved);
        }
        saved
    }

    /// Writes the states of these pieces, whose bytes are durable, into the map.
    fn write_states(&self, saved: &BTreeSet<u32>) -> io::Result<()> {
        let _changing = self.changing.lock();
        // Another file may have the name by now.
        let Some(map) = self.map.as_ref().filter(|_| !self.is_removed()) else { return Ok(()) };
        for piece in saved {
            let (state, digest) = {
                let table = self.table.lock();
                // It has other bytes by now, which are not durable.
                if table.unsaved.contains(piece) {
                    continue;
                }
                let digests = table.digests.as_ref();
                (table.state(*piece), digests.and_then(|all| all.get(*piece as usize)).copied())
            };
            if self.is_shared && self.is_suspect(&**map, *piece)? {
                continue;
            }
            if let Some(digest) = digest.filter(|_| state == Some(PieceState::Here)) {
                map.write_at(&digest, self.places.digest(*piece))?;
            }
            if let Some(state) = state.filter(|state| *state != PieceState::Own) {
                map.write_at(&[state.byte()], self.places.state(*piece))?;
            }
        }
        Ok(())
    }

    /// Whether the map says that a piece has wrong bytes: another process may have found that.
    fn is_suspect(&self, map: &dyn File, piece: u32) -> io::Result<bool> {
        let mut state = [0];
        map.read_exact_at(&mut state, self.places.state(piece))?;
        Ok(state == [SUSPECT])
    }

    /// Whether a sync has failed. Pieces that were on their way then may be lost too.
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Acquire)
    }
}
