//! Writes that a mount could not make durable before it ended. Its daemon leaves a note in the file of the store's
//! lock, where `tierfs umount` and the next mount find it.

use crate::model::{Error, ErrorKind};
use crate::store::disk::files::FileDisk;

/// How such a note begins.
const BEGINNING: &str = "writes to these files, which had no room:";

/// Leaves the note. Returns the error that the daemon ends with.
pub(in crate::cli) fn leave_note(disk: &FileDisk, lost: &[(String, String)]) -> Error {
    let mut note = BEGINNING.to_owned();
    lost.iter().for_each(|(path, _)| note.push_str(&format!("\n  {path}")));
    if let Err(error) = disk.leave_note(&note) {
        log::error!("the list of lost files cannot be written: {error}");
    }
    let why = lost.first().map_or("", |(_, why)| why);
    Error::new(ErrorKind::Full, format!("the mount ended without the last {note}\n{why}"))
}

/// The text of the note, if there is one.
pub(in crate::cli) fn of_note(disk: &FileDisk) -> Option<String> {
    let note = disk.note().ok()?;
    note.starts_with(BEGINNING).then_some(note)
}
