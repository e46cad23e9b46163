//! The digests of the bytes that a file came in with.

use crate::control::measure::Measure;
use crate::format::log::catalog::Digests;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Sums;
use crate::stream::sums;
use crate::vfs::{FileView, Vfs};

/// The BLAKE3 of the bytes that came in whole: that which was taken then, otherwise of all bytes
/// as they are read now. `Absent` where they are not there any more: after a write to a part of
/// them, and where a block is not exact. `Busy` while the file is being written to.
pub fn blake3(vfs: &Vfs, view: &FileView) -> Result<[u8; 32]> {
    refuse_unflushed(vfs, view)?;
    match taken(view)?.blake3() {
        Some(taken) => Ok(taken),
        None => read(vfs, view).map(|sums| sums.blake3),
    }
}

/// Their SHA-256: that which was taken then, otherwise of all bytes as they are read now, which are
/// those that came in where their BLAKE3 is that which was taken. `Absent` as for
/// [`blake3`](blake3()), `Busy` too.
pub fn sha256(vfs: &Vfs, view: &FileView) -> Result<[u8; 32]> {
    refuse_unflushed(vfs, view)?;
    let taken = taken(view)?;
    if let Some(sha256) = taken.sha256() {
        return Ok(sha256);
    }
    let sums = read(vfs, view)?;
    match taken.blake3().is_none_or(|blake3| blake3 == sums.blake3) {
        true => Ok(sums.sha256),
        false => Err(absent(view, "it reads as something else than what came in")),
    }
}

/// `Busy` where something was written that the log does not say yet: which bytes came in is known
/// when it does.
fn refuse_unflushed(vfs: &Vfs, view: &FileView) -> Result<()> {
    let objects = view.collection.objects_of(view.node.entry.id)?;
    if !vfs.is_written_to(view) && !objects.iter().any(|object| object.is_dirty()) {
        return Ok(());
    }
    let text = format!("{}: it is being written to; ask again when that is closed or synced", view.path());
    Err(Error::new(ErrorKind::Busy, text))
}

fn taken(view: &FileView) -> Result<Digests> {
    let digests = view.node.file().map(|file| file.digests.clone()).unwrap_or_default();
    if digests == Digests::Outdated {
        return Err(absent(view, "a part of it was written to"));
    }
    match Measure::of(view)?.is_exact() {
        true => Ok(digests),
        false => Err(absent(view, "not all of it is exact")),
    }
}

fn read(vfs: &Vfs, view: &FileView) -> Result<Sums> {
    let node = view.node.entry.id;
    let (parts, records) = view.collection.parts_of(node)?;
    sums(&view.collection, node, (&parts, records.as_ref()), vfs.verify())
}

fn absent(view: &FileView, why: &str) -> Error {
    let path = view.path();
    Error::new(ErrorKind::Absent, format!("{path}: {why}, so the bytes that came in are not there to digest"))
}
