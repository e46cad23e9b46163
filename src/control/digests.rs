//! Digests of the bytes of a file as they were imported or last written whole.

use crate::control::measure::Measure;
use crate::format::log::catalog::Digests;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Sums;
use crate::stream::sums;
use crate::vfs::{FileView, Vfs};

/// The BLAKE3 of the original bytes: the digest recorded then, otherwise computed by reading the file.
/// Fails with `Absent` after a write to a part of the file and if a block is not exact, with `Busy`
/// while the file is being written.
pub fn blake3(vfs: &Vfs, view: &FileView) -> Result<[u8; 32]> {
    refuse_unflushed(vfs, view)?;
    match recorded(view)?.blake3() {
        Some(blake3) => Ok(blake3),
        None => read(vfs, view).map(|sums| sums.blake3),
    }
}

/// The SHA-256 of the original bytes: the digest recorded then, otherwise computed by reading the file,
/// provided that the BLAKE3 of the bytes read equals the recorded one. Fails with `Absent` and `Busy` as
/// [`blake3`](blake3()) does.
pub fn sha256(vfs: &Vfs, view: &FileView) -> Result<[u8; 32]> {
    refuse_unflushed(vfs, view)?;
    let recorded = recorded(view)?;
    if let Some(sha256) = recorded.sha256() {
        return Ok(sha256);
    }
    let sums = read(vfs, view)?;
    if recorded.blake3().is_none_or(|blake3| blake3 == sums.blake3) {
        Ok(sums.sha256)
    } else {
        Err(absent(view, "its bytes differ from the original ones"))
    }
}

/// Fails with `Busy` if some writes are not in the log yet: the digests are known once they are.
fn refuse_unflushed(vfs: &Vfs, view: &FileView) -> Result<()> {
    let objects = view.collection.objects_of(view.node.entry.id)?;
    if !vfs.is_written_to(view) && !objects.iter().any(|object| object.is_dirty()) {
        return Ok(());
    }
    let text =
        format!("{}: it is being written; try again after the writer has closed or synced it", view.path());
    Err(Error::new(ErrorKind::Busy, text))
}

fn recorded(view: &FileView) -> Result<Digests> {
    let digests = view.node.file().map(|file| file.digests.clone()).unwrap_or_default();
    if digests == Digests::Outdated {
        return Err(absent(view, "a part of the file was overwritten"));
    }
    if Measure::of(view)?.is_exact() {
        Ok(digests)
    } else {
        Err(absent(view, "some of its blocks are not exact"))
    }
}

fn read(vfs: &Vfs, view: &FileView) -> Result<Sums> {
    let node = view.node.entry.id;
    let (parts, records) = view.collection.parts_of(node)?;
    sums(&view.collection, node, &parts, records.as_ref(), vfs.verify())
}

fn absent(view: &FileView, why: &str) -> Error {
    let path = view.path();
    Error::new(ErrorKind::Absent, format!("{path}: {why}, so the original bytes cannot be digested"))
}
