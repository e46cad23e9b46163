//! A remote: its identity, and the manifests in it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join;

use crate::format::snapshot::keys::{self, KeyName};
use crate::format::snapshot::manifest::{MANIFEST_BYTES_MAX, Manifest, SnapshotName};
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::remote::client::{Client, Deadlines, ObjectListed, Put, Wanted, runtime};
use crate::remote::place::listing::{Listing, listing};

/// The program that makes manifests.
pub(in crate::remote) const TOOL: &str = concat!("tierfs ", env!("CARGO_PKG_VERSION"));

const FORMAT: i64 = 1;
/// The file that makes a prefix a remote has at most this many bytes.
const REMOTE_BYTES_MAX: u64 = 1 << 16;
/// Hints and tags are 16 hexadecimal digits.
pub(in crate::remote) const NUMBER_BYTES_MAX: u64 = 64;
/// Pieces younger than this are never garbage, and a push lasts at most half of it.
const GRACE: Duration = Duration::from_secs(24 * 3600);
/// A commit may take minutes, which must be short beside half the grace.
const GRACE_MIN: Duration = Duration::from_secs(3600);

/// The finding where a server ignores or refuses the ETag of a request.
pub(in crate::remote) const NO_IF_MATCH: &str =
    "the server does not compare ETags (If-Match); pushes and mounts do not need that";

/// A remote.
#[derive(Clone)]
pub struct Remote {
    client: Client,
    id: StoreId,
    grace: Duration,
    /// The file that says so, as it was read.
    said: Bytes,
}

impl Remote {
    /// Opens a remote. `NotFound` if the prefix has none.
    pub fn open(client: Client) -> Result<Remote> {
        let found = client.get(keys::REMOTE, REMOTE_BYTES_MAX)?;
        Remote::of(client, found)
    }

    /// Opens a remote, and lists its collections in the same moment; `None` if they are many.
    pub fn open_and_list(client: Client) -> Result<(Remote, Option<Listing>)> {
        let wanted = Wanted::whole(REMOTE_BYTES_MAX);
        let (found, listed) =
            runtime::wait(async { join(client.got(keys::REMOTE, wanted), listing(&client)).await })?;
        let remote = Remote::of(client, found?)?;
        // Names are asked for again when they are needed, and who needs them gets the error.
        let listed = listed.unwrap_or_else(|error| {
            log::debug!("{error}");
            None
        });
        Ok((remote, listed))
    }

    /// A remote that no request is sent to. `said` is the text that its file `tierfs.remote` had before.
    pub fn known(client: Client, said: &str) -> Result<Remote> {
        Remote::of(client, Some(said.as_bytes().to_vec()))
    }

    /// This remote, with other deadlines for its requests.
    pub fn within(self, deadlines: Deadlines) -> Remote {
        Remote { client: self.client.within(deadlines), ..self }
    }

    /// The text of its file.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&self.said).into_owned()
    }

    /// A place that has no snapshots of its own, and this id.
    pub(in crate::remote) fn of_source(client: Client, id: StoreId) -> Remote {
        Remote { client, id, grace: GRACE, said: Bytes::new() }
    }

    /// The remote whose file has these bytes.
    fn of(client: Client, found: Option<Vec<u8>>) -> Result<Remote> {
        let place = client.place().to_owned();
        let found = found.ok_or_else(|| {
            let text = format!("{place} is not a remote of tierfs; tierfs push with --create makes one");
            Error::new(ErrorKind::NotFound, text)
        })?;
        let wrong = |what: &str| Error::corrupt(format!("{place}/{}: {what}", keys::REMOTE));
        let text = String::from_utf8_lossy(&found);
        let table: toml::Table = text.parse().map_err(|_| wrong("it is not TOML"))?;
        let format = table.get("format").and_then(toml::Value::as_integer);
        if format != Some(FORMAT) {
            return Err(Error::unsupported(format!(
                "{place} has format {}; this program knows {FORMAT}",
                format.unwrap_or(0)
            )));
        }
        let uuid = table.get("uuid").and_then(toml::Value::as_str);
        let id = uuid.filter(|text| text.len() == 32).and_then(|text| u128::from_str_radix(text, 16).ok());
        let grace = table.get("grace_seconds").and_then(toml::Value::as_integer);
        let grace = grace.and_then(|seconds| u64::try_from(seconds).ok()).map_or(GRACE, Duration::from_secs);
        let grace = grace.max(GRACE_MIN);
        let id = StoreId(id.ok_or_else(|| wrong("it has no uuid of 32 hexadecimal digits"))?);
        Ok(Remote { client, id, grace, said: Bytes::from(found) })
    }

    /// Opens a remote, and creates it if it does not exist. `id` must be random.
    pub fn open_or_create(client: Client, id: StoreId, created: i64) -> Result<Remote> {
        match Remote::open(client.clone()) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
        let grace = GRACE.as_secs();
        let text =
            format!("format = {FORMAT}\nuuid = \"{id}\"\ncreated = {created}\ngrace_seconds = {grace}\n");
        // Another may have made it meanwhile: then that one counts.
        let lacks = |error| lacks_conditions(client.place(), error);
        let made = client.create(keys::REMOTE, Bytes::from(text)).map_err(lacks)?;
        let remote = Remote::open(client)?;
        let tried = remote.check_ranges().and_then(|()| remote.check_conditions());
        if let Err(error) = tried {
            if made == Put::Created
                && let Err(left) = remote.client.delete(&[keys::REMOTE.to_owned()])
            {
                log::warn!("{left}; remove that object by hand");
            }
            return Err(error);
        }
        if let Ok(Some(false)) = remote.compares_e_tags() {
            log::warn!("{}: {NO_IF_MATCH}", remote.place());
        }
        Ok(remote)
    }

    /// Fails with `NotSupported` if the object storage replaces objects that it was told to create: two pushes could then
    /// destroy each other's snapshot. A single writer needs no conditions.
    pub fn check_conditions(&self) -> Result<()> {
        match self.client.create(keys::REMOTE, self.said.clone()) {
            Ok(Put::Exists) => Ok(()),
            Ok(Put::Created) => {
                let text = "it replaces an object that it was told to create";
                Err(lacks_conditions(self.place(), Error::new(ErrorKind::NotSupported, text)))
            }
            Err(error) => Err(lacks_conditions(self.place(), error)),
        }
    }

    /// Fails if the object storage does not answer ranges: nothing could be read from a mount.
    pub fn check_ranges(&self) -> Result<()> {
        let part = self.client.get_range(keys::REMOTE, 1..3)?;
        if part.as_deref() == self.said.get(1..3) {
            return Ok(());
        }
        let text = format!("{} answers a range with other bytes", self.place());
        Err(Error::new(ErrorKind::NotSupported, text))
    }

    /// Whether the object storage compares ETags (`If-Match`). `None` if its objects have none.
    pub fn compares_e_tags(&self) -> Result<Option<bool>> {
        self.client.compares_e_tags(keys::REMOTE)
    }

    /// Its URL, for messages.
    pub fn place(&self) -> &str {
        self.client.place()
    }

    /// Its uuid.
    pub fn id(&self) -> StoreId {
        self.id
    }

    /// The client that reaches it.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How long pieces that no manifest names are kept.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// The number of the newest snapshot of a collection.
    pub fn newest(&self, tenant: &str, collection: &str) -> Result<Option<u64>> {
        let hint = self.number_at(&keys::head(tenant, collection))?;
        let hint = match hint {
            Some(number) if self.has(tenant, collection, number)? => Some(number),
            _ => None,
        };
        Ok(self.numbers_after(tenant, collection, hint)?.last().copied().or(hint))
    }

    /// The newest snapshot of a collection, and the number that the hint has: three requests in two round trips, if
    /// the hint is right. It may be older, by a push that took long, and its successor may have been collected.
    pub fn newest_manifest(&self, tenant: &str, collection: &str) -> Result<(Option<Found>, Option<u64>)> {
        let hint = self.number_at(&keys::head(tenant, collection))?;
        let mut known = match hint {
            Some(number) => Some(number),
            None => self.numbers_after(tenant, collection, None)?.last().copied(),
        };
        let mut was_listed = hint.is_none();
        while let Some(number) = known {
            let key = keys::snapshot(tenant, collection, number);
            let whole = Wanted::whole(MANIFEST_BYTES_MAX);
            let directory = keys::snapshots(tenant, collection);
            let later = self.client.listed(directory.trim_end_matches('/'), Some(&key), usize::MAX);
            let (later, found) = runtime::wait(join(later, self.client.got(&key, whole)))?;
            match (snapshots(&later?).last(), found?) {
                (Some(later), _) => known = Some(*later),
                (None, Some(bytes)) => {
                    return Ok((Some(self.read(tenant, collection, number, bytes)?), hint));
                }
                (None, None) if was_listed => break,
                (None, None) => {
                    // The hint is wrong.
                    known = self.numbers_after(tenant, collection, None)?.last().copied();
                    was_listed = true;
                }
            }
        }
        Ok((None, hint))
    }

    /// The numbers of all snapshots of a collection, ascending.
    pub fn numbers(&self, tenant: &str, collection: &str) -> Result<Vec<u64>> {
        self.numbers_after(tenant, collection, None)
    }

    /// Those after this one.
    fn numbers_after(&self, tenant: &str, collection: &str, after: Option<u64>) -> Result<Vec<u64>> {
        let directory = keys::snapshots(tenant, collection);
        let after = after.map(|number| keys::snapshot(tenant, collection, number));
        Ok(snapshots(&self.client.list(directory.trim_end_matches('/'), after.as_deref())?))
    }

    /// The number that the object of a hint or a tag holds; `None` if the object does not exist or holds no number.
    pub fn number_at(&self, key: &str) -> Result<Option<u64>> {
        let found = self.client.get(key, NUMBER_BYTES_MAX)?;
        Ok(found.and_then(|bytes| keys::number(String::from_utf8_lossy(&bytes).trim())))
    }

    /// Whether there is a snapshot of this number.
    pub fn has(&self, tenant: &str, collection: &str, number: u64) -> Result<bool> {
        self.client.exists(&keys::snapshot(tenant, collection, number))
    }

    /// The manifest of a snapshot, with the digest that names it; `None` if the snapshot does not exist.
    pub fn manifest(&self, tenant: &str, collection: &str, number: u64) -> Result<Option<Found>> {
        let key = keys::snapshot(tenant, collection, number);
        let Some(bytes) = self.client.get(&key, MANIFEST_BYTES_MAX)? else { return Ok(None) };
        self.read(tenant, collection, number, bytes).map(Some)
    }

    /// The manifest that these bytes are.
    pub(in crate::remote) fn read(
        &self,
        tenant: &str,
        collection: &str,
        number: u64,
        bytes: Vec<u8>,
    ) -> Result<Found> {
        let key = keys::snapshot(tenant, collection, number);
        let at = |error: Error| error.at(format!("{}/{key}", self.place()));
        let manifest = Manifest::parse(&bytes).map_err(at)?;
        let is_its = (manifest.remote, manifest.number) == (self.id, number)
            && manifest.collection.tenant == tenant
            && manifest.collection.name == collection;
        if !is_its {
            return Err(at(Error::corrupt("it is the manifest of another snapshot")));
        }
        let digest = crate::format::snapshot::manifest::digest(&bytes).unwrap_or_default();
        Ok(Found { manifest: Arc::new(manifest), digest, bytes })
    }

    /// The names of the tenants.
    pub fn tenants(&self) -> Result<Vec<String>> {
        let listed = self.client.directories(keys::SNAPSHOTS.trim_end_matches('/'))?;
        self.names(
            &listed,
            |first| format!("{}{first}", keys::SNAPSHOTS),
            |manifest| manifest.collection.tenant.clone(),
        )
    }

    /// The names of a tenant's collections.
    pub fn collections(&self, tenant: &str) -> Result<Vec<String>> {
        let above = keys::snapshots_of_tenant(tenant);
        let listed = self.client.directories(above.trim_end_matches('/'))?;
        self.names(&listed, |first| format!("{above}{first}"), |manifest| manifest.collection.name.clone())
    }

    /// The names behind parts of keys. A shortened one stands in each manifest below it.
    fn names(
        &self,
        parts: &[String],
        below: impl Fn(&str) -> String,
        name: impl Fn(&Manifest) -> String,
    ) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for part in parts {
            match keys::unescape(part) {
                Some(KeyName::Whole(whole)) => names.push(whole),
                Some(short) => {
                    let Some(first) = self.client.list(&below(part), None)?.into_iter().next() else {
                        continue;
                    };
                    let Some(bytes) = self.client.get(&first.key, MANIFEST_BYTES_MAX)? else { continue };
                    let whole = name(&Manifest::parse(&bytes).map_err(|error| error.at(&first.key))?);
                    if short.is_of(&whole) {
                        names.push(whole);
                    }
                }
                None => log::warn!("{}: {} was not made by tierfs", self.place(), below(part)),
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// The error of a creation where the server does not know the condition.
fn lacks_conditions(place: &str, error: Error) -> Error {
    if error.kind() != ErrorKind::NotSupported {
        return error;
    }
    let text = format!(
        "{place} does not support conditional PUT (If-None-Match): {error}; if nobody else pushes, use --single-writer"
    );
    Error::new(ErrorKind::NotSupported, text)
}

/// The numbers of the snapshots among listed objects.
fn snapshots(listed: &[ObjectListed]) -> Vec<u64> {
    listed.iter().filter_map(|object| Some(keys::parse_snapshot(&object.key)?.2)).collect()
}

/// A manifest as it was read.
pub struct Found {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// Names it in those made from it.
    pub digest: [u8; 32],
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A manifest, and the name of its snapshot.
#[derive(Clone)]
pub struct NamedManifest {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The name.
    pub name: SnapshotName,
}

impl Found {
    /// The manifest without its bytes.
    pub fn named(&self) -> NamedManifest {
        let Found { manifest, digest, bytes } = self;
        let name = SnapshotName { number: manifest.number, digest: *digest, more: bytes.len() as u64 };
        NamedManifest { manifest: manifest.clone(), name }
    }
}
