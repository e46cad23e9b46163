//! Open files without a name, which one daemon hands to the next: the log does not know them.

use crate::format::handover::UnnamedFile;
use crate::format::log::catalog::{Content, FileEntry, NodeEntry, NodeType};
use crate::model::{Error, ErrorKind, Owner, Result};
use crate::vfs::open::OpenFile;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::unlinked_files::UnlinkedFile;
use crate::vfs::tree::vfs::Vfs;

const PIECE_BYTES: usize = 1 << 20;

impl Vfs {
    /// The inode number of an open file.
    pub fn ino_of(&self, file: &OpenFile) -> Option<Ino> {
        Ino::of(Place::Node { collection: file.collection().state().number(), node: file.node() })
    }

    /// The attributes of an open file without a name, for another daemon.
    pub fn unnamed(&self, ino: Ino, file: &OpenFile) -> Result<UnnamedFile> {
        let unlinked = self.unlinked.files.lock();
        let entry = unlinked.get(&ino).map_or(file.entry(), |file| &file.entry);
        Ok(UnnamedFile {
            inode: ino.0,
            mode: entry.mode,
            user: entry.uid,
            group: entry.gid,
            times: [entry.atime, file.mtime().unwrap_or(entry.mtime), entry.ctime],
            created_at: entry.created_at,
        })
    }

    /// Opens a file without a name that another daemon had open. `read` copies its bytes from an offset on, and returns
    /// their number.
    pub fn take_up_unnamed(
        &self,
        file: &UnnamedFile,
        read: impl Fn(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        let ino = Ino(file.inode);
        let gone = || Error::new(ErrorKind::Gone, format!("inode {:#x} is in no collection", ino.0));
        let Place::Node { collection, node } = ino.place() else { return Err(gone()) };
        let collection = self.numbered(collection)?.ok_or_else(gone)?;
        let owner = Owner { uid: file.user, gid: file.group };
        let plain = NodeType::File(Box::new(FileEntry::new(Content::Plain, Vec::new())));
        let [atime, mtime, ctime] = file.times;
        let entry = NodeEntry {
            atime,
            ctime,
            created_at: file.created_at,
            ..NodeEntry::new(node, file.mode, owner, mtime, plain)
        };
        let open_file = self.open_files.open_nameless(&collection, entry.clone(), self.verify)?;
        open_file.note_pages();
        let (mut at, mut piece) = (0, vec![0; PIECE_BYTES]);
        loop {
            let count = read(at, &mut piece)?;
            if count == 0 {
                break;
            }
            let bytes = piece.get(..count).unwrap_or_default();
            self.with_room(|| open_file.write(at, bytes))?;
            at += count as u64;
        }
        let unlinked = UnlinkedFile { open_file, entry, unlinking: 0, forgotten: None };
        self.unlinked.files.lock().insert(ino, unlinked);
        Ok(())
    }
}
