//! An object as a file whose header is read.
//!
//! Headers are read one after another, at a round trip each. So the first read of a container asks for the heads of the next
//! ones too: those of a directory of many shards come many at a time.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use futures_util::future::join_all;
use parking_lot::Mutex;

use crate::model::Result;
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Wanted, runtime};
use crate::remote::index::names::Named;
use crate::remote::read::pieces::to_io;
use crate::remote::source::Source;
use crate::store::disk::{File, ReadAt};

/// A read asks for at least so many bytes: headers are read in small parts.
const READ_BYTES_MIN: u64 = 64 << 10;
/// Bytes at the beginning of a container, and at the end of an archive, that are asked for at first.
const HEAD_BYTES: u64 = 128 << 10;
/// Heads that are asked for at a time.
const AT_ONCE: usize = 64;
/// The rest of a longer header is asked for when it is read.
const HEADER_BYTES_MAX: u64 = 1 << 20;
/// Bytes of heads of a listing that are held. Those that were asked for first go first.
const HEADS_BYTES_MAX: usize = 64 << 20;
/// Bytes of an object that are held.
const HELD_MAX: usize = 256 << 20;

/// Suffixes of files with their headers, and how these lie in them.
const CONTAINERS: [(&str, Header); 9] = [
    (".safetensors", Header::AfterItsLength),
    (".gguf", Header::AtBeginning),
    (".npy", Header::AtBeginning),
    (".onnx", Header::AtBeginning),
    (".npz", Header::AtBothEnds),
    (".pt", Header::AtBothEnds),
    (".pth", Header::AtBothEnds),
    (".ckpt", Header::AtBothEnds),
    (".bin", Header::AtBothEnds),
];

/// How the header of a container lies in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Header {
    /// At the beginning, after its length in eight bytes.
    AfterItsLength,
    AtBeginning,
    /// Some at the beginning, and a list at the end.
    AtBothEnds,
}

impl Header {
    /// That of a file of this name; `None` of a file that has none.
    fn of(name: &[u8]) -> Option<Header> {
        let found = CONTAINERS.iter().find(|(suffix, _)| name.ends_with(suffix.as_bytes()));
        found.map(|(_, header)| *header)
    }
}

/// An object of one version.
pub(super) struct SourceFile {
    client: Client,
    key: String,
    pin: Pin,
    header: Option<Header>,
    /// Parts that were read, with their offsets.
    held: Mutex<Vec<(u64, Vec<u8>)>>,
    /// The files of its listing, and its place among them.
    listed: (Arc<ListedFiles>, usize),
}

/// The files of a listing.
struct ListedFiles {
    /// Heads that are asked for at a time.
    at_once: usize,
    files: OnceLock<Vec<Weak<SourceFile>>>,
    /// Held while heads are asked for: they are probably those that others wait for.
    heads: Mutex<Heads>,
}

/// The files whose heads were asked for.
#[derive(Default)]
struct Heads {
    asked: HashSet<usize>,
    /// Those that may hold some, the first ones first, with their bytes.
    held: VecDeque<(usize, usize)>,
}

impl ListedFiles {
    /// Asks for the heads of a container and of those after it, unless that was done. One that fails is asked for again when
    /// it is read.
    fn ask(&self, place: usize) -> Result<()> {
        let mut heads = self.heads.lock();
        if heads.asked.contains(&place) {
            return Ok(());
        }
        let files = self.files.get().map_or(&[][..], Vec::as_slice);
        let file = |place: usize| files.get(place).and_then(Weak::upgrade);
        let later = (place..files.len()).filter(|place| !heads.asked.contains(place));
        let later = later.filter_map(|place| Some((place, file(place)?)));
        let later = later.filter(|(_, file)| !file.heads().is_empty());
        let wanted: Vec<_> = later.take(self.at_once).collect();
        runtime::wait(join_all(wanted.iter().map(|(_, file)| file.read_heads())))?;
        let mut sum: usize = heads.held.iter().map(|(_, bytes)| bytes).sum();
        while sum > HEADS_BYTES_MAX
            && let Some((place, bytes)) = heads.held.pop_front()
        {
            sum -= bytes;
            if let Some(file) = file(place) {
                file.forget();
            }
        }
        for (place, file) in wanted {
            heads.asked.insert(place);
            heads.held.push_back((place, file.held_bytes()));
        }
        Ok(())
    }
}

impl SourceFile {
    /// The listed files of a source.
    pub fn all(source: &dyn Source, listed: &[Named]) -> Vec<Arc<SourceFile>> {
        // For the head of a file its server may have to send all of it.
        let at_once = if source.has_ranges() { AT_ONCE } else { 1 };
        let all = Arc::new(ListedFiles { at_once, files: OnceLock::new(), heads: Mutex::default() });
        let file = |(place, Named { path, object }): (usize, &Named)| {
            let (client, key, pin) = (source.client().clone(), object.at.clone(), object.pin());
            let header = path.last().and_then(|name| Header::of(name));
            let (held, listed) = (Mutex::default(), (all.clone(), place));
            Arc::new(SourceFile { client, key, pin, header, held, listed })
        };
        let files: Vec<Arc<SourceFile>> = listed.iter().enumerate().map(file).collect();
        all.files.get_or_init(|| files.iter().map(Arc::downgrade).collect());
        files
    }

    fn held_bytes(&self) -> usize {
        self.held.lock().iter().map(|(_, bytes)| bytes.len()).sum()
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
        if let Some(count) = self.read_held(buffer, offset) {
            return Ok(count);
        }
        if self.header.is_some() {
            let (listed, place) = &self.listed;
            listed.ask(*place).map_err(to_io)?;
            if let Some(count) = self.read_held(buffer, offset) {
                return Ok(count);
            }
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

    /// Reads at least one byte of what is held.
    fn read_held(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        self.held.lock().iter().find_map(|(from, bytes)| copied(buffer, offset, *from, bytes))
    }

    /// Asks for the ranges that recognition begins with.
    async fn read_heads(&self) {
        join_all(self.heads().into_iter().map(|range| self.read_head(range))).await;
        let header = self.header_bytes().unwrap_or(0).min(self.pin.bytes);
        if header > HEAD_BYTES && header <= HEADER_BYTES_MAX {
            self.read_head(HEAD_BYTES..header).await;
        }
    }

    async fn read_head(&self, range: Range<u64>) {
        let from = range.start;
        if let Ok(Some(bytes)) = self.client.got(&self.key, Wanted::range(range).of(&self.pin)).await {
            self.hold(from, bytes);
        }
    }

    /// The bytes of the header, if the format says them first, and they are here.
    fn header_bytes(&self) -> Option<u64> {
        let mut len = [0; 8];
        let is_first = self.header == Some(Header::AfterItsLength);
        let is_here = is_first && self.read_held(&mut len, 0) == Some(len.len());
        is_here.then(|| u64::from_le_bytes(len).saturating_add(len.len() as u64))
    }

    /// The ranges that recognition begins with.
    fn heads(&self) -> Vec<Range<u64>> {
        let bytes = self.pin.bytes;
        let head = 0..HEAD_BYTES.min(bytes);
        match self.header {
            None => Vec::new(),
            Some(_) if bytes == 0 => Vec::new(),
            Some(Header::AtBothEnds) if bytes > HEAD_BYTES => {
                vec![head, HEAD_BYTES.max(bytes - HEAD_BYTES)..bytes]
            }
            Some(_) => vec![head],
        }
    }
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
