//! An object as a file whose header is read.

use std::io;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::model::Result;
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Wanted, runtime};
use crate::remote::read::pieces::to_io;
use crate::remote::source::SourceObject;
use crate::store::disk::{File, ReadAt};

/// A read asks for at least so many bytes: headers are read in small parts.
const READ_BYTES_MIN: u64 = 64 << 10;
/// Bytes at the beginning of a container, and at the end of an archive, that are asked for at first.
const HEAD_BYTES: u64 = 128 << 10;
/// Heads that are asked for at a time.
const AT_ONCE: usize = 64;
/// Containers of a collection whose heads are held. Further ones are asked for when they are read.
const HEADS_MAX: usize = 512;
/// Bytes of an object that are held.
const HELD_MAX: usize = 256 << 20;

/// Names of files whose headers lie at the beginning, and of those with a list at the end.
const CONTAINERS: [&str; 4] = [".safetensors", ".gguf", ".npy", ".onnx"];
const ARCHIVES: [&str; 5] = [".npz", ".pt", ".pth", ".ckpt", ".bin"];

/// An object of one version.
pub(super) struct SourceFile {
    client: Client,
    key: String,
    pin: Pin,
    /// Parts that were read, with their offsets.
    held: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl SourceFile {
    pub fn new(client: &Client, object: &SourceObject) -> SourceFile {
        let (client, key) = (client.clone(), object.at.clone());
        SourceFile { client, key, pin: object.pin(), held: Mutex::default() }
    }

    /// Forgets what was read.
    pub fn forget(&self) {
        self.held.lock().clear();
    }

    fn hold(&self, offset: u64, bytes: Vec<u8>) {
        let mut held = self.held.lock();
        if held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() > HELD_MAX {
            held.clear();
        }
        held.push((offset, bytes));
    }

    /// Reads at least one byte of a part of the object: what is held, or else all.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let held = self.held.lock().iter().find_map(|(from, bytes)| copied(buffer, offset, *from, bytes));
        if let Some(count) = held {
            return Ok(count);
        }
        let len = buffer.len() as u64;
        let end = offset.saturating_add(len.max(READ_BYTES_MIN)).min(self.pin.bytes);
        let bytes = self.client.get_version(&self.key, offset..end, &self.pin).map_err(to_io)?;
        let count = copied(buffer, offset, offset, &bytes).ok_or(io::ErrorKind::UnexpectedEof)?;
        // Larger parts are those of tensors, and of headers that are read once.
        if len <= READ_BYTES_MIN {
            self.hold(offset, bytes);
        }
        Ok(count)
    }

    /// The ranges that recognition begins with.
    fn heads(&self) -> Vec<(u64, u64)> {
        let is_of = |suffixes: &[&str]| suffixes.iter().any(|suffix| self.key.ends_with(suffix));
        let (is_archive, bytes) = (is_of(&ARCHIVES), self.pin.bytes);
        let head = (0, HEAD_BYTES.min(bytes));
        match bytes {
            0 => Vec::new(),
            _ if !is_archive && !is_of(&CONTAINERS) => Vec::new(),
            _ if is_archive && bytes > HEAD_BYTES => vec![head, (HEAD_BYTES.max(bytes - HEAD_BYTES), bytes)],
            _ => vec![head],
        }
    }
}

/// Asks for the heads of containers, many at a time. One that fails is asked for again when it is read.
pub(super) fn read_heads(files: &[Arc<SourceFile>]) -> Result<()> {
    let wanted: Vec<_> = files
        .iter()
        .filter(|file| !file.heads().is_empty())
        .take(HEADS_MAX)
        .flat_map(|file| file.heads().into_iter().map(move |range| (file, range)))
        .collect();
    for some in wanted.chunks(AT_ONCE) {
        runtime::wait(join_all(some.iter().map(|(file, (from, end))| async move {
            let wanted = Wanted::range(*from..*end).of(&file.pin);
            if let Ok(Some(bytes)) = file.client.got(&file.key, wanted).await {
                file.hold(*from, bytes);
            }
        })))?;
    }
    Ok(())
}

impl ReadAt for SourceFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = (buffer.len() as u64).min(self.pin.bytes.saturating_sub(offset)) as usize;
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..len).filter(|rest| !rest.is_empty()) {
            done += self.read_some(rest, offset + done as u64)?;
        }
        Ok(done)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.pin.bytes)
    }
}

/// Copies the bytes at an offset of the object, as far as those from `from` on have them. Returns how many, if any.
fn copied(buffer: &mut [u8], offset: u64, from: u64, bytes: &[u8]) -> Option<usize> {
    let skipped = usize::try_from(offset.checked_sub(from)?).ok()?;
    let found = bytes.get(skipped..).filter(|found| !found.is_empty())?;
    let count = found.len().min(buffer.len());
    buffer.get_mut(..count)?.copy_from_slice(found.get(..count)?);
    Some(count)
}

/// It is only read, so there is nothing to sync. The length that it is given is its own.
impl File for SourceFile {
    fn set_len(&self, len: u64) -> io::Result<()> {
        if len == self.pin.bytes { Ok(()) } else { Err(io::ErrorKind::ReadOnlyFilesystem.into()) }
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}
