//! Objects that are kept whole, each under a name that verifies its bytes: manifests, and pieces of logs and bases of
//! differences as they are stored, and indexes of sources.
//!
//! Invariants: (1) Bytes are given to nobody before they were compared with their name. (2) A file gets its name
//! once all bytes are written, so that a killed process leaves drafts only. Other processes may make the same file at
//! the same time, with the same bytes, or remove it.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::format::snapshot::manifest;
use crate::format::snapshot::piece_map::{DIGEST_BYTES, Digest};
use crate::model::hex;
use crate::remote::read::cache::root::{DRAFT, Root, is_draft, is_hexadecimal, unlinked};
use crate::remote::read::cache::turns::Turn;
use crate::remote::read::cache::verify::Verified;
use crate::remote::read::cache::{Cache, Idle, now};
use crate::store::disk::files::random_id;

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
        let (place, used) = (kind.place(name), now());
        let found = read(&self.root.path(&place), len, Some(used));
        if found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            self.files.lock().kept.remove(&place);
            return None;
        }
        let found = found.ok().filter(|bytes| kind.name_of(bytes).as_ref() == Some(name));
        let mut files = self.files.lock();
        if found.is_some() {
            files.kept.insert(place, Idle { stored: len, used });
        } else {
            log::warn!("{}/{place}: its bytes are wrong; it is fetched again", self.directory.display());
            files.kept.remove(&place);
            drop(fs::remove_file(self.root.path(&place)));
        }
        found
    }

    /// The same of an object of any length.
    pub fn kept_whole(&self, kind: Kind, name: &Digest) -> Option<Vec<u8>> {
        let found = fs::symlink_metadata(self.root.path(&kind.place(name))).ok()?;
        self.kept(kind, name, found.len())
    }

    /// Whether there is this object, as far as can be told without reading it.
    pub fn keeps(&self, kind: Kind, name: &Digest) -> bool {
        self.root.path(&kind.place(name)).exists()
    }

    /// Waits until no other process fetches an object, and keeps others from it. `None` if one has brought it, or is silent.
    pub(in crate::remote) async fn turn(&self, kind: Kind, name: &Digest) -> Option<Turn> {
        self.root.turn_of(name).ok()?.wait(|| self.keeps(kind, name), || ()).await
    }

    /// Keeps an object, if there is room. The caller has compared its bytes with its name.
    pub fn keep(&self, kind: Kind, name: &Digest, bytes: &[u8]) -> io::Result<()> {
        let (place, stored) = (kind.place(name), bytes.len() as u64);
        let path = self.root.path(&place);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() && found.len() == stored => return Ok(()),
            // It has another length, so it is wrong.
            _ => drop(self.files.lock().kept.remove(&place)),
        }
        let draft = path.with_extension(format!("{}.{DRAFT}", draft_number()?));
        if !self.make_room_for(&place, stored, |files| files.coming += stored) {
            return Ok(());
        }
        let mut options = unlinked();
        options.write(true).create_new(true);
        let written = options.open(&draft).and_then(|mut file| file.write_all(bytes));
        let written = written.and_then(|()| fs::rename(&draft, &path));
        let mut files = self.files.lock();
        files.coming -= stored;
        if written.is_err() {
            drop(fs::remove_file(&draft));
        } else {
            files.kept.insert(place, Idle { stored, used: now() });
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

/// The objects of a cache, by their places.
pub(super) fn found(root: &Root) -> io::Result<Vec<(String, Idle)>> {
    let mut found = Vec::new();
    for kind in Kind::ALL {
        for entry in fs::read_dir(root.path(kind.directory()))? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| is_hexadecimal(name, NAME_DIGITS)) else { continue };
            let metadata = match entry.metadata() {
                // Another process has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_file() {
                let used = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
                let used = u64::try_from(used.as_nanos()).unwrap_or(u64::MAX);
                found.push((format!("{}/{name}", kind.directory()), Idle { stored: metadata.len(), used }));
            }
        }
    }
    Ok(found)
}

/// Removes the drafts of killed processes from a cache that nobody else uses.
pub(super) fn remove_drafts(root: &Root) -> io::Result<()> {
    for kind in Kind::ALL {
        for entry in fs::read_dir(root.path(kind.directory()))? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(|name| is_draft(name, NAME_DIGITS))
                && entry.metadata()?.is_file()
            {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

/// A number that makes the names of drafts of all processes differ.
fn draft_number() -> io::Result<u128> {
    Ok(random_id()?.0)
}
