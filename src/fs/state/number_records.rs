//! The numbers of the collections of a mounted remote, in memory that outlives the daemon: a file without a name, of which
//! another process may have a descriptor. The layout is that of `format/handover.rs`.
//!
//! A number is written before the kernel gets an inode with it. A daemon that is killed meanwhile leaves a record that is not
//! whole, and the next daemon writes over it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use crate::format::cursor::Reader;
use crate::format::handover::{Numbered, NumbersHead};
use crate::model::{Error, Result};

/// Bytes of numbers that are read at most.
const BYTES_MAX: u64 = 1 << 30;

/// The numbers of the collections of a mount.
pub(in crate::fs) struct NumberRecords {
    file: File,
    /// The end of the whole records. Held while one is written.
    end: Mutex<u64>,
}

impl NumberRecords {
    /// A file without numbers. `said` is the text about the remote.
    pub fn new(said: String) -> io::Result<NumberRecords> {
        let file = File::from(rustix::fs::memfd_create("tierfs-numbers", MemfdFlags::CLOEXEC)?);
        let head = NumbersHead { said }.encode();
        file.write_all_at(&head, 0)?;
        Ok(NumberRecords { file, end: Mutex::new(head.len() as u64) })
    }

    /// The records of earlier daemons, and the numbers in them, oldest first.
    pub fn taken_over(file: OwnedFd) -> Result<(NumberRecords, Vec<Numbered>)> {
        let file = File::from(file);
        let bytes = bytes_of(&file)?;
        let mut from = Reader::new(&bytes);
        NumbersHead::decode(&mut from, &bytes)?;
        let (mut all, mut end) = (Vec::new(), from.position());
        while let Some(numbered) = Numbered::decode(&mut from, &bytes) {
            all.push(numbered);
            end = from.position();
        }
        Ok((NumberRecords { file, end: Mutex::new(end as u64) }, all))
    }

    /// The text about the remote that earlier daemons have left.
    pub fn said(file: impl AsFd) -> Result<String> {
        let file = file.as_fd().try_clone_to_owned().map_err(failed)?;
        let bytes = bytes_of(&File::from(file))?;
        Ok(NumbersHead::decode(&mut Reader::new(&bytes), &bytes)?.said)
    }

    /// Writes a number behind the others.
    pub fn note(&self, numbered: &Numbered) {
        let (bytes, mut end) = (numbered.encode(), self.end.lock());
        match self.file.write_all_at(&bytes, *end) {
            Ok(()) => *end += bytes.len() as u64,
            Err(error) => {
                log::warn!("open files of {} would not outlive this daemon: {error}", numbered.place)
            }
        }
    }

    /// Another descriptor of the file, for another process.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

fn bytes_of(file: &File) -> Result<Vec<u8>> {
    let len = file.metadata().map_err(failed)?.len().min(BYTES_MAX);
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(bytes)
}

fn failed(error: io::Error) -> Error {
    Error::io("reading the numbers of collections", error)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::NumberRecords;
    use crate::format::handover::{NumberOf, Numbered};
    use crate::model::OwnedCollectionName;

    #[test]
    fn numbers_are_read_by_the_next_daemon_which_writes_over_what_a_killed_one_has_begun() {
        let records = NumberRecords::new("a remote".to_owned()).unwrap();
        let numbered = |number| {
            let place = OwnedCollectionName::new("t", format!("c{number}"));
            Numbered { number, place, of: NumberOf::Gone }
        };
        (1..4).for_each(|number| records.note(&numbered(number)));
        let file = File::from(records.duplicate().unwrap());
        assert_eq!(NumberRecords::said(&file).unwrap(), "a remote");
        let end = file.metadata().unwrap().len();
        let begun = numbered(4).encode();
        file.write_all_at(&begun[..begun.len() / 2], end).unwrap();
        let (next, found) = NumberRecords::taken_over(records.duplicate().unwrap()).unwrap();
        assert_eq!(found, [1, 2, 3].map(numbered));
        next.note(&numbered(5));
        let (_, found) = NumberRecords::taken_over(records.duplicate().unwrap()).unwrap();
        assert_eq!(found, [1, 2, 3, 5].map(numbered));
    }
}
