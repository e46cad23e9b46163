//! The side file `damaged` of a collection: objects in which corrupt blocks were found. An import of their sources reads
//! their blocks again. Nothing else depends on the file.

use std::collections::BTreeSet;
use std::io;

use parking_lot::Mutex;

use crate::model::ObjectId;
use crate::store::disk::{Open, write_new};
use crate::store::space::files::Files;

const NAME: &str = "damaged";
/// Most objects that the file names.
const OBJECTS_MAX: usize = 1 << 14;
/// Bytes of the line of an object.
const LINE_BYTES: usize = 33;

/// The side file of a collection.
#[derive(Default)]
pub(in crate::store) struct DamageFile {
    /// Not taken with the second, which is held across I/O.
    suspects: Mutex<BTreeSet<ObjectId>>,
    /// The objects that the file names.
    written: Mutex<BTreeSet<ObjectId>>,
}

impl DamageFile {
    /// Reads the file. One that is missing or cannot be read counts as empty.
    pub fn restore(&self, files: &Files) {
        let path = format!("{}/{NAME}", files.path());
        let read = || -> io::Result<Vec<u8>> {
            let file = files.disk().open(&path, Open::Read)?;
            let mut bytes = vec![0; file.len()?.min((OBJECTS_MAX * LINE_BYTES) as u64) as usize];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        let bytes = match read() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return log::warn!("{path} is not used: {error}"),
        };
        let suspects: BTreeSet<ObjectId> =
            String::from_utf8_lossy(&bytes).lines().filter_map(ObjectId::parse).collect();
        self.written.lock().clone_from(&suspects);
        *self.suspects.lock() = suspects;
    }

    /// Whether corrupt blocks were found in an object before the collection was opened, and it was not checked since.
    pub fn suspects(&self, object: ObjectId) -> bool {
        self.suspects.lock().contains(&object)
    }

    /// Notes that all blocks of an object were checked since.
    pub fn note_checked(&self, object: ObjectId) {
        self.suspects.lock().remove(&object);
    }

    /// Forgets suspects that are gone.
    pub fn retain(&self, is_there: impl Fn(ObjectId) -> bool) {
        let suspects = self.suspects.lock().clone();
        let gone: Vec<ObjectId> = suspects.into_iter().filter(|object| !is_there(*object)).collect();
        let mut suspects = self.suspects.lock();
        suspects.retain(|object| !gone.contains(object));
    }

    /// Writes the file if it does not name these objects and the suspects. A failure is only logged.
    pub fn save(&self, files: &Files, damaged: impl Iterator<Item = ObjectId>) {
        let suspects = self.suspects.lock().clone();
        let all: BTreeSet<ObjectId> = damaged.chain(suspects).collect();
        let named: BTreeSet<ObjectId> = all.into_iter().take(OBJECTS_MAX).collect();
        let mut written = self.written.lock();
        if *written == named {
            return;
        }
        let path = format!("{}/{NAME}", files.path());
        let draft = format!("{path}.new");
        let text: String = named.iter().map(|object| format!("{object}\n")).collect();
        let write = || -> io::Result<()> {
            write_new(&**files.disk(), &draft, text.as_bytes())?;
            files.disk().rename(&draft, &path)
        };
        match write() {
            Ok(()) => *written = named,
            Err(error) => log::warn!("writing {path}: {error}"),
        }
    }
}
