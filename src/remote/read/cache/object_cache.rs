//! Objects that are kept whole, each under a name that verifies its bytes: manifests, and pieces of logs and bases of
//! differences as they are stored, and indexes of sources.
//!
//! Invariants: (1) Bytes are given to nobody before they were compared with their name. (2) A file gets its name
//! once all bytes are written, so that a killed process leaves drafts only.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use crate::format::snapshot::manifest;
use crate::format::snapshot::piece_map::{DIGEST_BYTES, Digest};
use crate::model::hex;
use crate::remote::read::cache::root::{DRAFT, Root, is_draft, is_hexadecimal, unlinked};
use crate::remote::read::cache::verify::Verified;
use crate::remote::read::cache::{Cache, Idle, now};

/// A kind of such objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Manifests, by their digests.
    Manifest,
    /// Pieces of logs, by the BLAKE3 of their stored bytes.
    Log,
    /// Pieces that differences are taken from, by the same.
    Base,
    /// Indexes of sources, by digests of their listings.
    Index,
}

/// Hexadecimal digits of the name of such an object.
const NAME_DIGITS: usize = 2 * DIGEST_BYTES;

/// Makes names of drafts differ.
static DRAFTS: AtomicU64 = AtomicU64::new(0);

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Manifest, Kind::Log, Kind::Base, Kind::Index];

    /// The directory of these objects in a cache.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Kind::Manifest => "manifest",
            Kind::Log => "log",
            Kind::Base => "base",
            Kind::Index => "index",
        }
    }

    /// The path of an object below the cache.
    fn place(self, name: &Digest) -> String {
        format!("{}/{}", self.directory(), hex(name))
    }

    /// The kind of the object at a place.
    fn at(place: &str) -> Option<Kind> {
        let (directory, _) = place.split_once('/')?;
        Kind::ALL.into_iter().find(|kind| kind.directory() == directory)
    }

    /// The name that verifies these bytes.
    fn name_of(self, bytes: &[u8]) -> Option<Digest> {
        match self {
            Kind::Manifest => {
                let name = manifest::digest(bytes)?;
                let (hashed, _) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
                (*blake3::hash(hashed).as_bytes() == name).then_some(name)
            }
            Kind::Log | Kind::Base => Some(*blake3::hash(bytes).as_bytes()),
            // The digest before the name covers both.
            Kind::Index => {
                let (rest, name) = bytes.split_last_chunk::<DIGEST_BYTES>()?;
                let (content, digest) = rest.split_last_chunk::<DIGEST_BYTES>()?;
                let mut hasher = blake3::Hasher::new();
                hasher.update(name).update(content);
                (hasher.finalize().as_bytes() == digest).then_some(*name)
            }
        }
    }
}

impl Cache {
    /// The bytes of an object, if they are here and right. It has `len` bytes.
    pub fn kept(&self, kind: Kind, name: &Digest, len: u64) -> Option<Vec<u8>> {
        let place = kind.place(name);
        if !self.files.lock().kept.contains_key(&place) {
            return None;
        }
        let used = now();
        let found = read(&self.root.path(&place), len, Some(used));
        // Another thread is writing it.
        if found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        let found = found.ok().filter(|bytes| kind.name_of(bytes).as_ref() == Some(name));
        let mut files = self.files.lock();
        if found.is_some() {
            files.kept.entry(place).and_modify(|kept| kept.used = used);
        } else if files.kept.remove(&place).is_some() {
            log::warn!("{}/{place}: its bytes are wrong; it is fetched again", self.directory.display());
            drop(fs::remove_file(self.root.path(&place)));
        }
        found
    }

    /// The same of an object of any length.
    pub fn kept_whole(&self, kind: Kind, name: &Digest) -> Option<Vec<u8>> {
        let stored = self.files.lock().kept.get(&kind.place(name)).map(|kept| kept.stored)?;
        self.kept(kind, name, stored)
    }

    /// Whether there is this object, as far as can be told without reading it.
    pub fn keeps(&self, kind: Kind, name: &Digest) -> bool {
        self.files.lock().kept.contains_key(&kind.place(name))
    }

    /// Keeps an object, if there is room. The caller has compared its bytes with its name.
    pub fn keep(&self, kind: Kind, name: &Digest, bytes: &[u8]) -> io::Result<()> {
        let (place, stored) = (kind.place(name), bytes.len() as u64);
        {
            let mut files = self.files.lock();
            match files.kept.get(&place) {
                Some(kept) if kept.stored == stored && self.root.path(&place).exists() => return Ok(()),
                // The file has another length, so it is wrong, or somebody has removed it.
                Some(_) => drop(files.kept.remove(&place)),
                None => {}
            }
        }
        let has_room = self.make_room_for(&place, stored, |files| {
            files.kept.insert(place.clone(), Idle { stored, used: now() });
        });
        if !has_room {
            return Ok(());
        }
        let path = self.root.path(&place);
        let draft = path.with_extension(format!("{}.{DRAFT}", DRAFTS.fetch_add(1, Ordering::Relaxed)));
        let mut options = unlinked();
        options.write(true).create_new(true);
        let written = options.open(&draft).and_then(|mut file| file.write_all(bytes)).and_then(|()| {
            // It may have been evicted meanwhile.
            let files = self.files.lock();
            if files.kept.contains_key(&place) { fs::rename(&draft, &path) } else { fs::remove_file(&draft) }
        });
        if written.is_err() {
            self.files.lock().kept.remove(&place);
            drop(fs::remove_file(&draft));
        }
        written
    }
}

/// The bytes of a file of this length. `used` becomes the time of its last use.
fn read(path: &Path, len: u64, used: Option<u64>) -> io::Result<Vec<u8>> {
    let file = unlinked().read(true).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != len {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    (&file).take(len).read_to_end(&mut bytes)?;
    // Only the order of evictions depends on it.
    if let Some(used) = used
        && let Err(error) = file.set_modified(UNIX_EPOCH + Duration::from_nanos(used))
    {
        log::debug!("{}: its last use was not noted: {error}", path.display());
    }
    Ok(bytes)
}

/// Compares the object at a place below a cache with its name, and removes it if it differs.
pub(super) fn verify(root: &Root, place: &str, len: u64) -> io::Result<Verified> {
    let path = root.path(place);
    let name = place.rsplit('/').next().unwrap_or_default();
    let bytes = read(&path, len, None).ok();
    let found = bytes.zip(Kind::at(place)).and_then(|(bytes, kind)| kind.name_of(&bytes));
    let is_right = found.is_some_and(|found| hex(&found) == name);
    let removed = if is_right {
        None
    } else {
        fs::remove_file(&path)?;
        Some("its bytes do not match the digest in its name".to_owned())
    };
    Ok(Verified { name: place.to_owned(), bytes: len, right: u64::from(is_right), dropped: 0, removed })
}

/// The objects of a cache that was just opened, by their places. Drafts are from a killed process and go.
pub(super) fn found(root: &Root) -> io::Result<Vec<(String, Idle)>> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        for entry in fs::read_dir(root.path(kind.directory()))? {
            let entry = entry?;
            let (metadata, name) = (entry.metadata()?, entry.file_name());
            let Some(name) = name.to_str().filter(|_| metadata.is_file()) else { continue };
            if is_draft(name, NAME_DIGITS) {
                fs::remove_file(entry.path())?;
            }
            if !is_hexadecimal(name, NAME_DIGITS) {
                continue;
            }
            let used = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
            let used = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
            let place = format!("{}/{name}", kind.directory());
            found.push((place, Idle { stored: metadata.len(), used }));
        }
    }
    Ok(found)
}
