//! Objects that imports left where they lie, as files of a store.
//!
//! An object is read as a mount of its source reads it: by the snapshot that has it alone, whose pieces are ranges of the
//! object held to its version. So the cache of mounts keeps them, and compares them with their first arrival.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{
    Described, FileExtent, FileKind, Manifest, ManifestFile, OwnerAndMode, Piece, PieceEncoding,
};
use crate::format::snapshot::pieces::pieces;
use crate::format::snapshot::references::{References, ReferredObject, ReferredPiece};
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Deadlines};
use crate::remote::place::remote::{Remote, TOOL};
use crate::remote::read::cache::{Cache, Size};
use crate::remote::read::failure_reports::Tell;
use crate::remote::read::files::{Files, Source};
use crate::remote::read::pieces::to_io;
use crate::remote::source::open_within;
use crate::store::SnapshotFiles;
use crate::store::disk::{FarFile, ReadAt};

/// An answer about a version holds for this long: each block of a file that is evicted asks.
const CONFIRMED_FOR: Duration = Duration::from_secs(2);
/// A cache that another process puts in order is tried again after this time.
const CACHE_AGAIN: Duration = Duration::from_secs(30);
/// The only file of the snapshot of an object.
const FILE: usize = 0;

/// How objects at URLs are read.
pub struct FarOptions {
    /// The directory that keeps their bytes, if one does, and its size. It is made at the first use.
    pub cache: Option<(PathBuf, Size)>,
    /// The time that requests may take.
    pub deadlines: Deadlines,
}

/// Tells users something, as [`Tell`] does. Each reader has one.
type SharedTell = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The reader of all objects.
struct Reader {
    source: Arc<Source>,
    /// When to try to open its cache again, which another process was putting in order.
    cache_at: Option<Instant>,
}

/// The objects that the collections of a store left where they lie.
pub(in crate::remote) struct FarObjects {
    options: FarOptions,
    tell: SharedTell,
    /// Held while the first one is made. No read that holds a lock of a collection waits for it.
    reader: Mutex<Option<Reader>>,
    /// The clients that are asked for versions, by URL.
    clients: Mutex<HashMap<String, Client>>,
    /// Those that somebody has open.
    opened: Mutex<HashMap<SourcePlace, Weak<FarObject>>>,
}

impl FarObjects {
    pub fn new(options: FarOptions, tell: Tell) -> Arc<FarObjects> {
        Arc::new(FarObjects {
            options,
            tell: Arc::from(tell),
            reader: Mutex::default(),
            clients: Mutex::default(),
            opened: Mutex::default(),
        })
    }

    /// The reader of all objects. The client of the first source makes it.
    fn reader(self: &Arc<Self>, url: &str) -> Result<Arc<Source>> {
        let mut reader = self.reader.lock();
        if let Some(reader) = &mut *reader {
            if reader.cache_at.take_if(|at| *at <= Instant::now()).is_some() {
                let (objects, client) = (self.clone(), reader.source.remote().client().clone());
                let opening = std::thread::Builder::new().name("cache".to_owned());
                if let Err(error) = opening.spawn(move || objects.open_cache_again(client)) {
                    log::debug!("the cache is not opened: {error}");
                    reader.cache_at = Some(Instant::now() + CACHE_AGAIN);
                }
            }
            return Ok(reader.source.clone());
        }
        let client = open_within(url, self.options.deadlines)?.client().clone();
        let made = self.reader_with(client, |error| {
            (self.tell)("", &format!("{error}; bytes of {url} are read and not kept"));
        });
        Ok(reader.insert(made).source.clone())
    }

    /// A reader with a cache, if that can be opened.
    fn reader_with(&self, client: Client, failed: impl FnOnce(&Error)) -> Reader {
        let mut cache_at = None;
        let cache = self.options.cache.as_ref().and_then(|(directory, size)| {
            let opened = Cache::open(directory, *size).inspect_err(failed);
            if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Busy) {
                cache_at = Some(Instant::now() + CACHE_AGAIN);
            }
            opened.ok()
        });
        let told = self.tell.clone();
        let tell: Tell = Box::new(move |path, text| told(path, text));
        let source = Source::new(Remote::of_source(client, StoreId(0)), cache, tell);
        Reader { source: Arc::new(source.reading_ahead()), cache_at }
    }

    /// Opens the cache that was in use. Reads go on without one meanwhile.
    fn open_cache_again(&self, client: Client) {
        let made = self.reader_with(client, |error| log::debug!("{error}"));
        *self.reader.lock() = Some(made);
    }

    /// The client of a source.
    fn client(&self, reader: &Source, url: &str) -> Result<Client> {
        let first = reader.remote().client();
        if first.place() == url {
            return Ok(first.clone());
        }
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(url) {
            return Ok(client.clone());
        }
        let client = open_within(url, first.deadlines())?.client().clone();
        clients.insert(url.to_owned(), client.clone());
        Ok(client)
    }

    /// An object of this many bytes. Nothing is asked of its source or of the cache.
    pub fn open(self: &Arc<Self>, place: &SourcePlace, bytes: u64) -> Arc<FarObject> {
        let mut opened = self.opened.lock();
        let found = opened.get(place).and_then(Weak::upgrade).filter(|found| found.bytes == bytes);
        if let Some(found) = found {
            return found;
        }
        let (objects, place) = (self.clone(), place.clone());
        let object = FarObject {
            objects,
            place: place.clone(),
            bytes,
            reading: Mutex::default(),
            confirmed: Mutex::default(),
        };
        let object = Arc::new(object);
        opened.retain(|_, object| object.strong_count() > 0);
        opened.insert(place, Arc::downgrade(&object));
        object
    }

    /// Records what the cache keeps, for the next process.
    pub fn save(&self) {
        if let Some(cache) = self.reader.lock().as_ref().and_then(|reader| reader.source.cache()) {
            cache.save();
        }
    }
}

/// The way to the bytes of an object.
struct Reading {
    source: Arc<Source>,
    files: Files,
}

/// An object of one version.
pub(in crate::remote) struct FarObject {
    objects: Arc<FarObjects>,
    place: SourcePlace,
    bytes: u64,
    /// Made at the first read, and again when the cache could be opened. Held briefly.
    reading: Mutex<Option<Arc<Reading>>>,
    /// When its source has said last that it has this version.
    confirmed: Mutex<Option<Instant>>,
}

impl FarObject {
    fn reading(&self) -> io::Result<Arc<Reading>> {
        let source = self.objects.reader(&self.place.source).map_err(to_io)?;
        if let Some(reading) = &*self.reading.lock()
            && Arc::ptr_eq(&reading.source, &source)
        {
            return Ok(reading.clone());
        }
        let files = Files::new(&source, &Arc::new(manifest_of(&self.place, self.bytes))).map_err(to_io)?;
        let reading = Arc::new(Reading { source, files });
        *self.reading.lock() = Some(reading.clone());
        Ok(reading)
    }
}

impl ReadAt for FarObject {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let len = (buffer.len() as u64).min(self.bytes.saturating_sub(offset)) as usize;
        match buffer.get_mut(..len).filter(|part| !part.is_empty()) {
            Some(part) => self.reading()?.files.read_at(FILE, part, offset).map(|()| len),
            None => Ok(0),
        }
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let reading = self.reading.lock().clone();
        reading.map_or(Ok(0), |reading| reading.files.read_in_memory(FILE, buffer, offset))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }
}

impl FarFile for FarObject {
    fn confirm(&self) -> io::Result<()> {
        if self.confirmed.lock().is_some_and(|at| at.elapsed() < CONFIRMED_FOR) {
            return Ok(());
        }
        let SourcePlace { key, version, .. } = &self.place;
        let pin = Pin { version: version.clone(), bytes: self.bytes };
        let client = self.objects.client(&self.reading()?.source, &self.place.source).map_err(to_io)?;
        client.get_version(key, 0..self.bytes.min(1), &pin).map_err(to_io)?;
        *self.confirmed.lock() = Some(Instant::now());
        Ok(())
    }

    fn refetch(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.reading()?.files.refetch(FILE, offset, len)
    }
}

/// The snapshot that has one object.
fn manifest_of(SourcePlace { source, key, version }: &SourcePlace, bytes: u64) -> Manifest {
    let object = ReferredObject { key: key.clone(), bytes, version: version.clone() };
    let mut references = References { source: source.clone(), ..References::default() };
    let (mut all, mut extents): (Vec<Piece>, _) = (Vec::new(), Vec::new());
    let whole: Vec<Range<u64>> = std::iter::once(0..bytes).collect();
    for stretches in pieces(&[whole]) {
        let Some(range) = stretches.first() else { continue };
        let (piece, len) = (all.len() as u32, range.end - range.start);
        let name = PieceName { digest: references.name_of(&object, range.start, len), generation: 0 };
        // A piece has less than 16 MiB.
        let raw = len as u32;
        all.push(Piece { name, stored: raw, raw, encoding: PieceEncoding::Raw });
        references.pieces.push(ReferredPiece { piece, object: 0, offset: range.start });
        extents.extend(FileExtent::of_piece(piece, &stretches));
    }
    references.objects.push(object);
    let owner = OwnerAndMode { uid: 0, gid: 0, mode: 0 };
    // Messages show the tenant and the name.
    let (tenant, name) = (source.clone(), key.clone());
    Manifest {
        remote: StoreId(0),
        number: 1,
        parent: None,
        push: 0,
        created_at: 0,
        collection: Described { tenant, name, tenant_owner: owner, owner, created_at: 0 },
        message: String::new(),
        tool: TOOL.to_owned(),
        needs: Vec::new(),
        pieces: all,
        differences: Vec::new(),
        files: Vec::from([ManifestFile { kind: FileKind::Data, number: 0, bytes, mtime: 0, extents }]),
        variants: Vec::new(),
        references: Some(Box::new(references)),
    }
}
