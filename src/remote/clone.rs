//! Clones: collections of a store that are made of snapshots, and whose files are fetched when they are read.
//!
//! [`ClonePieces`] implements `PieceSource` (`store/clones/mod.rs`) and compares each piece with its BLAKE3. A push
//! from a clone asks `Canonical::piece_in_clone` (`store/snapshot/clone_reuse.rs`) before it reads.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::format::log::catalog::SourcePlace;
use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{Manifest, Needed, Piece};
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Owner, Result, human};
use crate::remote::client::failure::Failure;
use crate::remote::client::runtime;
use crate::remote::client::window::Class;
use crate::remote::client::{Client, Deadlines};
use crate::remote::place::at::{At, number_of};
use crate::remote::place::remote::{Found, Remote};
use crate::remote::place::signatures::Trust;
use crate::remote::read::failure_reports::{FailureReports, Tell};
use crate::remote::read::far_objects::{FarObjects, FarOptions};
use crate::remote::read::mirrors::Mirrors;
use crate::remote::read::piece_buffer::PieceBuffer;
use crate::remote::read::pieces::{failed, fetched, read_log, to_io};
use crate::store::disk::FarFile;
use crate::store::{CloneSource, Cloned, PieceSource, RemoteError, Store};

/// Opens the client of a URL.
type Opener = Box<dyn Fn(&str) -> Result<Client> + Send + Sync>;

/// The source of the pieces of all clones of a store.
pub struct ClonePieces {
    opener: Opener,
    /// By URL.
    clients: Mutex<HashMap<String, Client>>,
    recent: PieceBuffer,
    far: Arc<FarObjects>,
    told: FailureReports,
}

impl ClonePieces {
    /// Pieces of the remotes that the clones name, and objects that imports left where they lie, with the credentials of
    /// the environment.
    pub fn new(tell: impl Fn(&str, &str) + Clone + Send + Sync + 'static, far: FarOptions) -> ClonePieces {
        let pieces = ClonePieces::over(Box::new(Client::reopen), Box::new(tell.clone()));
        // Such an object belongs to no collection alone.
        let far = FarObjects::new(far, Box::new(move |_, text| tell("", text)));
        ClonePieces { far, ..pieces }
    }

    /// The same, with clients of the caller.
    pub fn over(opener: Opener, tell: Tell) -> ClonePieces {
        ClonePieces {
            opener,
            clients: Mutex::default(),
            recent: PieceBuffer::default(),
            far: FarObjects::new(
                FarOptions { cache: None, deadlines: Deadlines::default() },
                Box::new(|path, text| log::warn!("{path}: {text}")),
            ),
            told: FailureReports::new(tell),
        }
    }

    fn client(&self, url: &str) -> Result<Client> {
        if let Some(client) = self.clients.lock().get(url) {
            return Ok(client.clone());
        }
        let client = (self.opener)(url)?;
        self.clients.lock().insert(url.to_owned(), client.clone());
        Ok(client)
    }

    /// The error of a piece that could not be had.
    fn failed(&self, client: &Client, source: &CloneSource, piece: &Piece, failure: &Failure) -> Error {
        if !matches!(failure, Failure::NotFound) {
            return failed(client, piece, failure);
        }
        let CloneSource { tenant, collection, number, .. } = source;
        match client.exists(&keys::snapshot(tenant, collection, *number)) {
            Ok(false) => {
                let text = format!("snapshot {number} of {tenant}/{collection} was collected as garbage");
                Error::new(ErrorKind::Gone, text)
            }
            Ok(true) => {
                let text = format!("{} has lost {:?} of snapshot {number}", client.place(), piece.name);
                Error::new(ErrorKind::Io, text)
            }
            Err(error) => error,
        }
    }
}

impl PieceSource for ClonePieces {
    fn fetch(&self, path: &str, source: &CloneSource, piece: &Piece) -> io::Result<Arc<Vec<u8>>> {
        if let Some(bytes) = self.recent.get(&piece.name) {
            return Ok(bytes);
        }
        self.recent.failed(&piece.name)?;
        // The name that a program reads is here, and no block here is corrupt.
        let unread = |error: Error| match error.kind() {
            ErrorKind::Corrupt | ErrorKind::NotFound => {
                RemoteError::of(io::ErrorKind::Other, error.to_string())
            }
            _ => to_io(error),
        };
        let away = |error: Error| {
            self.tell(path, &error.to_string());
            unread(error)
        };
        let client = self.client(&source.url).map_err(away)?;
        let found = runtime::wait(fetched(&Mirrors::of(&client), &self.recent, piece, Class::Demand));
        let found = found.map_err(away)?;
        if found.is_ok() {
            self.told.answered(client.place());
        }
        found.map(Arc::new).map_err(|failure| {
            let error = self.failed(&client, source, piece, &failure);
            self.told.failure(client.place(), path, &failure, &error.to_string());
            let error = unread(error);
            if failure.is_transient() {
                self.recent.fail(piece.name, &error);
            }
            error
        })
    }

    fn unkept(&self, piece: &Piece, bytes: &Arc<Vec<u8>>) {
        self.recent.keep(piece.name, bytes);
    }

    fn far_file(&self, place: &SourcePlace, bytes: u64) -> io::Result<Arc<dyn FarFile>> {
        Ok(self.far.open(place, bytes))
    }

    fn save(&self) {
        self.far.save();
    }

    fn tell(&self, path: &str, text: &str) {
        self.told.text(path, text);
    }
}

/// The outcome of a clone or a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// The number of the snapshot.
    pub number: u64,
    /// Whether the clone was one of it before.
    pub is_unchanged: bool,
    /// Files of payloads.
    pub files: usize,
    /// Bytes of the snapshot's pieces.
    pub bytes: u64,
}

impl Made {
    fn of(manifest: &Manifest) -> Made {
        let bytes = manifest.pieces.iter().map(|piece| u64::from(piece.raw)).sum();
        let files = manifest.files_of(None).map_or(0, |files| files.len().saturating_sub(1));
        Made { number: manifest.number, is_unchanged: false, files, bytes }
    }

    /// The outcome for programs.
    pub fn to_json(&self, CollectionName { tenant, name }: CollectionName<'_>) -> Value {
        json!({
            "collection": format!("{tenant}/{name}"),
            "snapshot": self.number,
            "unchanged": self.is_unchanged,
            "files": self.files,
            "bytes": self.bytes,
        })
    }

    /// The outcome for people.
    pub fn text(&self, CollectionName { tenant, name }: CollectionName<'_>) -> String {
        let (number, bytes) = (self.number, human(self.bytes));
        if self.is_unchanged {
            return format!("nothing new: {tenant}/{name} is snapshot {number}");
        }
        let files = if self.files == 1 { "1 file".to_owned() } else { format!("{} files", self.files) };
        format!("{tenant}/{name} is snapshot {number}: {bytes} in {files}, fetched when they are read")
    }
}

/// A snapshot to clone.
#[derive(Clone, Copy)]
pub struct ClonedFrom<'a> {
    /// The remote.
    pub remote: &'a Remote,
    /// Its URL.
    pub url: &'a str,
    /// The collection in the remote.
    pub collection: CollectionName<'a>,
    /// Its snapshot.
    pub at: &'a At,
    /// The keys one of which must have signed it, if that is wanted.
    pub trust: Option<&'a Trust>,
    /// The mark that the clone gets.
    pub mark: Option<&'a str>,
}

/// Makes a collection of a store that is a clone of a snapshot. `owner` has the tenant if it is made.
pub fn clone(store: &Store, from: ClonedFrom<'_>, to: CollectionName<'_>, owner: Owner) -> Result<Made> {
    let ClonedFrom { remote, url, collection, at, trust, mark } = from;
    let found = wanted(remote, collection, at, trust)?;
    let log = read_log(remote, &found.manifest)?;
    let source = CloneSource { mark: mark.map(str::to_owned), ..source_of(remote, url, &found) };
    let needs = needed_logs(remote, &found.manifest)?;
    let cloned = Cloned { source, manifest: &found.manifest, log: &log, needs: &needs };
    store.clone_snapshot(to, &cloned, owner)?;
    Ok(Made::of(&found.manifest))
}

/// The end of a clone's changes at a pull.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changes {
    /// It is refused.
    Refuse,
    /// They are lost.
    Discard,
}

/// Makes a clone one of a newer snapshot, or of the one that is wanted, which one of the keys must have signed.
pub fn pull(
    store: &Store,
    remote: &Remote,
    place: CollectionName<'_>,
    at: &At,
    trust: Option<&Trust>,
    changes: Changes,
) -> Result<Made> {
    let path = place.to_string();
    let source = store.clone_source(place.tenant, place.name)?;
    let source =
        source.ok_or_else(|| Error::invalid(format!("{path} is not a clone; tierfs clone makes one")))?;
    if source.remote != remote.id() {
        let text = format!("{path} is not a clone from {}", remote.place());
        return Err(Error::invalid(text));
    }
    let found = wanted(remote, CollectionName::new(&source.tenant, &source.collection), at, trust)?;
    let is_changed = store.is_clone_changed(place.tenant, place.name);
    if changes == Changes::Refuse {
        if found.manifest.number == source.number {
            return Ok(Made { is_unchanged: true, ..Made::of(&found.manifest) });
        }
        if is_changed? {
            let text = format!(
                "{path} was changed since snapshot {}; push it under another name, or discard the changes with --theirs",
                source.number
            );
            return Err(Error::new(ErrorKind::Exists, text));
        }
    } else if found.manifest.number == source.number && matches!(is_changed, Ok(false)) {
        return Ok(Made { is_unchanged: true, ..Made::of(&found.manifest) });
    }
    let log = read_log(remote, &found.manifest)?;
    let source = CloneSource { mark: source.mark, ..source_of(remote, &source.url, &found) };
    let needs = needed_logs(remote, &found.manifest)?;
    let cloned = Cloned { source, manifest: &found.manifest, log: &log, needs: &needs };
    store.replace_clone(place, &cloned)?;
    Ok(Made::of(&found.manifest))
}

/// The logs of the snapshots that a snapshot needs. One that was collected as garbage is left out.
fn needed_logs(remote: &Remote, manifest: &Manifest) -> Result<Vec<(OwnedCollectionName, Vec<u8>)>> {
    let mut logs = Vec::new();
    for Needed { tenant, collection, number } in &manifest.needs {
        if let Some(found) = remote.manifest(tenant, collection, *number)? {
            logs.push((OwnedCollectionName::new(tenant, collection), read_log(remote, &found.manifest)?));
        }
    }
    Ok(logs)
}

fn source_of(remote: &Remote, url: &str, found: &Found) -> CloneSource {
    let described = &found.manifest.collection;
    CloneSource {
        url: url.to_owned(),
        remote: remote.id(),
        tenant: described.tenant.clone(),
        collection: described.name.clone(),
        number: found.manifest.number,
        log: [0; 32],
        push: None,
        mark: None,
    }
}

/// The manifest of the snapshot that is wanted. `Forbidden` if none of the keys has signed it.
fn wanted(remote: &Remote, place: CollectionName<'_>, at: &At, trust: Option<&Trust>) -> Result<Found> {
    let number = number_of(remote, place, at)?;
    let found = remote.manifest(place.tenant, place.name, number)?;
    let lacks =
        |reason: &str| Error::new(ErrorKind::NotFound, format!("{}: {place} {reason}", remote.place()));
    let found = found.ok_or_else(|| lacks(&format!("has no snapshot {number}")))?;
    if let Some(references) = &found.manifest.references {
        let text = format!(
            "snapshot {number} of {place} refers to {0}, and a clone has pieces of its remote only; tierfs import copies {0}",
            references.source
        );
        return Err(Error::new(ErrorKind::NotSupported, text));
    }
    if found.manifest.is_removal() {
        return Err(lacks(&format!(
            "was removed by snapshot {number}; --at gets an older one while it is kept"
        )));
    }
    if matches!(at, At::Digest(digest) if *digest != found.digest) {
        return Err(lacks(&format!("has another snapshot {number} meanwhile")));
    }
    if let Some(trust) = trust {
        trust.check(place, number, &found.bytes).map_err(|error| error.at(remote.place()))?;
    }
    Ok(found)
}
