//! Pieces that cached files have: the bases of differences, and pieces that two snapshots share.
//!
//! A base is looked for in all cached files, so a machine that has read the snapshot that differences are from fetches
//! the differences alone. Otherwise it is fetched, and kept under its name ([`Kind::Base`]).

use std::collections::HashMap;
use std::sync::Arc;

use crate::format::snapshot::manifest::Piece;
use crate::format::snapshot::piece_map::{Digest, PieceMap, PieceState};
use crate::remote::client::failure::Failure;
use crate::remote::read::cache::blob::Blob;
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::cache::root::Root;
use crate::remote::read::cache::{Cache, now};
use crate::remote::read::pieces::unpacked;
use crate::store::disk::{Disk, Open};
use crate::store::pieces::file::PieceFile;
use crate::store::pieces::{map_of, read_map};

/// By digest, the names of cached files that have had a piece. They were read once, so some may lack it by now.
pub(super) type Index = HashMap<Digest, String>;

impl Cache {
    /// The bytes that a piece stands for, if an open file has them.
    pub(in crate::remote) fn copy_of(&self, piece: &Piece) -> Option<Vec<u8>> {
        let open: Vec<Arc<Blob>> = self.files.lock().open.values().cloned().collect();
        open.iter().find_map(|blob| {
            let bytes = blob.pieces().read_like(piece)?;
            blob.touch(now());
            Some(bytes)
        })
    }

    /// The bytes that the base of a difference stands for, if they are here.
    pub(in crate::remote) fn base(&self, piece: &Piece) -> Option<Vec<u8>> {
        self.copy_of(piece).or_else(|| self.idle_copy_of(piece)).or_else(|| {
            let stored = self.kept(Kind::Base, &piece.name.digest, u64::from(piece.stored))?;
            unpacked(piece, stored).ok()
        })
    }

    /// The bytes of a piece from a file of the cache that nobody has open, if one has them.
    fn idle_copy_of(&self, piece: &Piece) -> Option<Vec<u8>> {
        let name = {
            let mut index = self.index.lock();
            let index = index.get_or_insert_with(|| {
                let names: Vec<String> = self.files.lock().idle.keys().cloned().collect();
                names.iter().flat_map(|name| pieces_of(&self.root, name)).collect()
            });
            index.get(&piece.name.digest)?.clone()
        };
        let bytes = opened(&self.root, &name)?.read_like(piece)?;
        if let Some(idle) = self.files.lock().idle.get_mut(&name) {
            idle.used = now();
        }
        Some(bytes)
    }

    /// Notes that a file is idle from now on.
    pub(super) fn note_idle(&self, blob: &Blob) {
        if let Some(index) = self.index.lock().as_mut() {
            index.extend(named(blob.pieces().to_map(), blob.layout().name()));
        }
    }
}

fn opened(root: &Root, name: &str) -> Option<PieceFile<Failure>> {
    let disk = root.blobs();
    let map = read_map(&*disk.open(&map_of(name), Open::Read).ok()?).ok()?;
    let data = disk.open(name, Open::Read).ok()?;
    Some(PieceFile::of(map, Some(data), None))
}

fn pieces_of(root: &Root, name: &str) -> Vec<(Digest, String)> {
    let map = root.blobs().open(&map_of(name), Open::Read).ok().and_then(|file| read_map(&*file).ok());
    map.into_iter().flat_map(|map| named(map, name)).collect()
}

/// The pieces that are in the file of this map.
fn named(map: PieceMap, name: &str) -> impl Iterator<Item = (Digest, String)> {
    let here = map.pieces.into_iter().zip(map.states).filter(|(_, state)| *state == PieceState::Here);
    here.map(move |(piece, _)| (piece.name.digest, name.to_owned()))
}
