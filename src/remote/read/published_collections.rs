//! The snapshots of a remote as a mount shows them.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{Manifest, SnapshotName};
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, StoreId};
use crate::remote::place::at::At;
use crate::remote::place::listing::Listing;
use crate::remote::place::remote::NamedManifest;
use crate::remote::read::collection_lookup::CollectionLookup;
use crate::remote::read::files::{Files, Source};
use crate::remote::read::pieces::to_io;
use crate::store::{Directories, Snapshot, Snapshots, Traffic};

/// Collections that are opened together with the first of a tenant that is looked at: the next that is read is
/// probably one of them, and waits for no manifest then. With two requests each they fill the window of a new client.
const BESIDE_MAX: usize = 3;
/// Those with longer manifests are not.
const BESIDE_BYTES_MAX: u64 = 256 << 10;

/// The most snapshots or collections that a message names.
const NAMED_MAX: usize = 10;

/// The object that names the last push has 32 hexadecimal digits.
const LAST_PUSH_BYTES_MAX: u64 = 64;

/// Once one collection of a tenant was opened, the others are awaited for this long.
const BESIDE_PATIENCE: Duration = Duration::from_secs(1);
/// Without an answer for this long, further collections of the tenant are opened.
const NEXT_PATIENCE: Duration = Duration::from_secs(2);
/// Collections of a tenant that are opened at a time where the first ones do not open.
const OPENED_AT_ONCE: usize = 64;

/// The end of an attempt to open a collection, with its name.
type Opened = (String, io::Result<Option<Snapshot>>);

/// The snapshots of a remote. Clones share them.
#[derive(Clone)]
pub struct Published {
    source: Arc<Source>,
    lookup: Arc<CollectionLookup>,
    /// The variant to show of each collection that has it.
    tier: Option<String>,
    /// The snapshot that was opened last, by tenant and collection.
    opened: Arc<Mutex<HashMap<OwnedCollectionName, Snapshot>>>,
}

impl Published {
    /// The snapshots of a remote: of these collections the wanted ones, of others the newest.
    pub fn new(source: Source, wanted: HashMap<OwnedCollectionName, At>) -> Published {
        let source = Arc::new(source);
        let lookup = Arc::new(CollectionLookup::new(&source, wanted));
        Published { source, lookup, tier: None, opened: Arc::default() }
    }

    /// The same, which shows this variant of each collection that has it. Others are shown exactly, and an
    /// event says so.
    pub fn in_tier(self, tier: Option<String>) -> Published {
        Published { tier, ..self }
    }

    /// The same, of whose collections this listing was just made.
    pub fn with_listing(self, listing: Option<Listing>) -> Published {
        self.lookup.note_listing(listing);
        self
    }

    /// Finds the snapshots that the user wants. `NotFound` if one does not exist.
    pub fn check_wanted(&self) -> Result<()> {
        for name in self.lookup.wanted() {
            match self.snapshot(&name.tenant, &name.name) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let text = format!("{}: {name} has no snapshot", self.source.remote().place());
                    return Err(Error::new(ErrorKind::NotFound, format!("{text}; {}", self.there(name))));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(Error::new(ErrorKind::NotFound, format!("{error}; {}", self.there(name))));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The snapshots of a collection, or, if it has none, the collections of its tenant or the tenants: the newest or
    /// first ones. The command that lists them all, if they cannot be listed here.
    fn there(&self, name: &OwnedCollectionName) -> String {
        let remote = self.source.remote();
        let numbers = remote.numbers(&name.tenant, &name.name).unwrap_or_default();
        let names = if numbers.is_empty() {
            match remote.collections(&name.tenant).unwrap_or_default() {
                none if none.is_empty() => remote.tenants().unwrap_or_default(),
                found => found.iter().map(|other| format!("{}/{other}", name.tenant)).collect(),
            }
        } else {
            numbers.iter().rev().map(u64::to_string).collect()
        };
        match names.len() {
            0 => format!("tierfs log {} lists what is there", remote.place()),
            count if count <= NAMED_MAX => format!("there is {}", names.join(", ")),
            count => {
                let (some, more) = (names.iter().take(NAMED_MAX).map(String::as_str), count - NAMED_MAX);
                format!("there is {} and {more} more", some.collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// The remote and the cache.
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    fn snapshot(&self, tenant: &str, collection: &str) -> Result<Option<Snapshot>> {
        let key = OwnedCollectionName::new(tenant, collection);
        let opened = self.opened.lock().get(&key).cloned();
        let known = opened
            .as_ref()
            .map(|opened| NamedManifest { manifest: opened.manifest.clone(), name: opened.name });
        let found = self.lookup.manifest(&key, known)?.filter(|found| !found.manifest.is_removal());
        let Some(found) = found else {
            self.opened.lock().remove(&key);
            return Ok(None);
        };
        if opened.as_ref().is_some_and(|opened| opened.name == found.name) {
            return Ok(opened);
        }
        let snapshot = self.of_manifest(&key, found)?;
        self.source.shows(&snapshot.manifest);
        self.opened.lock().insert(key, snapshot.clone());
        Ok(Some(snapshot))
    }

    /// Opens a collection on a thread of its own: if its manifest does not come, others go on without it.
    fn open_alone(&self, tenant: &str, name: &str, sender: &mpsc::Sender<Opened>) -> io::Result<()> {
        let (sender, published) = (sender.clone(), self.clone());
        let (tenant, name) = (tenant.to_owned(), name.to_owned());
        let open = move || {
            let found = published.open(&tenant, &name);
            // Nobody may wait any more.
            drop(sender.send((name, found)));
        };
        self.lookup.threads().start("collection", open)
    }

    fn of_manifest(&self, key: &OwnedCollectionName, found: NamedManifest) -> Result<Snapshot> {
        let NamedManifest { manifest, name } = found;
        let files = Files::new(&self.source, &manifest)?;
        let files = Arc::new(if self.lookup.is_by_digest(key) { files.in_whole_pieces() } else { files });
        let variant = self.variant(&manifest)?;
        Ok(Snapshot { manifest, variant, files, name })
    }

    /// The variant of a snapshot to show.
    fn variant(&self, manifest: &Manifest) -> Result<Option<String>> {
        let Some(tier) = &self.tier else { return Ok(None) };
        if manifest.variants.iter().any(|variant| variant.name == *tier) {
            return Ok(Some(tier.clone()));
        }
        let (tenant, name) = (&manifest.collection.tenant, &manifest.collection.name);
        // Its parents would be shown in the tier, and have no exact bytes.
        if let Some(need) = manifest.needs.first() {
            let text = format!(
                "{tenant}/{name} has no variant {tier}, and its blocks are differences from {}/{}, which this mount shows in {tier}; mount it without --tier",
                need.tenant, need.collection
            );
            return Err(Error::new(ErrorKind::NotSupported, text));
        }
        let text = format!("snapshot {} has no variant {tier}; it is shown exactly", manifest.number);
        self.source.tell(&format!("{tenant}/{name}"), &text);
        Ok(None)
    }
}

impl Snapshots for Published {
    fn place(&self) -> String {
        self.source.remote().place().to_owned()
    }

    fn id(&self) -> StoreId {
        self.source.remote().id()
    }

    fn tenants(&self) -> io::Result<Vec<String>> {
        self.lookup.tenant_names().map_err(to_io)
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        self.lookup.collection_names(tenant).map_err(to_io)
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        self.snapshot(tenant, collection).map_err(to_io)
    }

    fn entries(&self, tenant: &str) -> io::Result<Option<Arc<Directories>>> {
        self.lookup.entries(tenant).map(Some).map_err(to_io)
    }

    fn known_entries(&self, tenant: &str) -> Option<Arc<Directories>> {
        self.lookup.known_entries(tenant)
    }

    fn numbers(&self, tenant: &str) -> io::Result<HashMap<String, u64>> {
        self.lookup.numbers(tenant).map_err(to_io)
    }

    fn list_again(&self) {
        self.lookup.make_old();
    }

    fn numbered(&self, tenant: &str, collection: &str, number: u64) -> io::Result<Option<Snapshot>> {
        let found = match self.source.numbered(tenant, collection, number) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.map_err(to_io)?,
        };
        if found.manifest.is_removal() {
            return Ok(None);
        }
        let files = Arc::new(Files::new(&self.source, &found.manifest).map_err(to_io)?);
        let variant = self.variant(&found.manifest).map_err(to_io)?;
        let NamedManifest { manifest, name } = found.named();
        Ok(Some(Snapshot { manifest, variant, files, name }))
    }

    fn again(&self, tenant: &str, collection: &str, name: &SnapshotName) -> io::Result<Option<Snapshot>> {
        let place = CollectionName::new(tenant, collection);
        let Some(found) = self.source.again(place, name).map_err(to_io)? else { return Ok(None) };
        let key = place.owned();
        let snapshot = self.of_manifest(&key, found.named()).map_err(to_io)?;
        self.opened.lock().entry(key).or_insert_with(|| snapshot.clone());
        Ok(Some(snapshot))
    }

    fn said(&self) -> String {
        self.source.remote().said()
    }

    fn last_push(&self) -> Option<Vec<u8>> {
        let found = self.source.remote().client().get(keys::PUSHED, LAST_PUSH_BYTES_MAX);
        // It is a hint, which readers may be unable to see.
        found.inspect_err(|error| log::debug!("{error}")).ok().flatten()
    }

    fn traffic(&self) -> Traffic {
        self.source.traffic()
    }

    fn drop_buffers(&self) {
        self.source.drop_buffers();
    }

    fn save_cache(&self) {
        if let Some(cache) = self.source.cache() {
            cache.save();
        }
    }

    fn open_tenant(&self, tenant: &str) -> io::Result<Vec<(String, Snapshot)>> {
        let mut names = self.collections(tenant)?;
        names.sort_unstable();
        let is_small = |name: &&String| {
            let listed = self.lookup.listed(&OwnedCollectionName::new(tenant, (*name).clone()));
            listed.is_some_and(|listed| listed.len <= BESIDE_BYTES_MAX)
        };
        let beside = names.iter().skip(1).filter(is_small).take(BESIDE_MAX);
        let first: Vec<String> = names.iter().take(1).chain(beside).cloned().collect();
        let others: Vec<String> = names.iter().filter(|name| !first.contains(name)).cloned().collect();
        let mut batches = std::iter::once(first.as_slice())
            .chain(others.chunks(OPENED_AT_ONCE))
            .filter(|batch| !batch.is_empty());
        let end = Instant::now() + self.source.remote().client().deadlines().total;
        let (sender, answers) = mpsc::channel();
        let (mut opened, mut failed, mut waiting) = (Vec::new(), None, 0);
        let (mut until, mut may_start) = (Instant::now(), true);
        loop {
            match answers.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((name, found)) => {
                    waiting -= 1;
                    match found {
                        Ok(Some(snapshot)) => {
                            if opened.is_empty() {
                                until = Instant::now() + BESIDE_PATIENCE;
                            }
                            opened.push((name, snapshot));
                        }
                        // It was removed.
                        Ok(None) => {}
                        Err(error) => drop(failed.get_or_insert(error)),
                    }
                    if waiting > 0 {
                        continue;
                    }
                }
                Err(_) if Instant::now() >= end => break,
                Err(_) => {}
            }
            if !opened.is_empty() {
                break;
            }
            let batch = if may_start && waiting < OPENED_AT_ONCE { batches.next() } else { None };
            match batch {
                Some(batch) => {
                    for name in batch {
                        if let Err(error) = self.open_alone(tenant, name, &sender) {
                            failed.get_or_insert(error);
                            may_start = false;
                            break;
                        }
                        waiting += 1;
                    }
                    until = Instant::now();
                    if waiting > 0 {
                        until = end.min(until + NEXT_PATIENCE);
                    }
                }
                None if waiting == 0 => break,
                None => until = end,
            }
        }
        // The first by name says who owns the tenant.
        opened.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        match failed {
            Some(error) if opened.is_empty() => Err(error),
            None if opened.is_empty() && waiting > 0 => {
                let text = format!("no collection of {tenant} was answered in time");
                Err(io::Error::new(io::ErrorKind::TimedOut, text))
            }
            _ => Ok(opened),
        }
    }
}
