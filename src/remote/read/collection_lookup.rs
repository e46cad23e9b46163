//! Finds the collections of a remote and their snapshots, without opening them.
//!
//! A remote with at most a thousand manifests is listed whole. Of another, the names of a tenant are those of `head/`, and
//! are listed beside the list of its collections (`place/tenant_lists.rs`). An entry of that list counts if the listing of
//! manifests has its number and length, or that of `head/` its ETag. Manifests of other collections are read, many at a
//! time, once a directory is listed with attributes. Whoever opens a collection asks the remote for its newest snapshot,
//! whatever an entry says.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::tenant_list::{ListedCollection, TenantList};
use crate::model::{Error, ErrorKind, OwnedCollectionName, Result};
use crate::remote::client::runtime;
use crate::remote::place::at::{At, number_of};
use crate::remote::place::listing::{Listed, Listing, listing};
use crate::remote::place::remote::NamedManifest;
use crate::remote::place::tenant_lists::{self, is_of_head, whole_name};
use crate::remote::read::files::Source;
use crate::remote::read::listings::{Answer, KEPT, Listings};
use crate::remote::read::snapshot_lookup::{Known, Newest};
use crate::remote::read::waiting_threads::WaitingThreads;
use crate::store::Directories;

/// Manifests that are read at a time for a listing.
const READ_AT_ONCE: usize = 64;

/// Manifests that are on their way are left out of a listing if none has come for this long.
const READ_PATIENCE: Duration = Duration::from_secs(2);

/// A tenant as it was listed.
#[derive(Default)]
pub(in crate::remote) struct Tenant {
    names: Vec<String>,
    /// The ETags of the hints of its collections; `None` where all manifests were listed.
    heads: Option<HashMap<String, String>>,
    list: TenantList,
}

/// The collections of a remote, and the snapshots of them that a mount shows.
pub(in crate::remote) struct CollectionLookup {
    source: Arc<Source>,
    /// By tenant and collection; the newest of others.
    wanted: HashMap<OwnedCollectionName, At>,
    /// Names by tenant; those of tenants by an empty text.
    names: Listings<Vec<String>>,
    tenants: Listings<Arc<Tenant>>,
    entries: Listings<Arc<Directories>>,
    /// The newest manifests that were listed; `None` for a remote with many.
    listed: Mutex<Option<Listing>>,
    /// Entries that were made of manifests.
    read: Mutex<HashMap<OwnedCollectionName, ListedCollection>>,
    /// Collections whose manifests are being read for a listing, and since when.
    reading: Mutex<HashMap<OwnedCollectionName, Instant>>,
    threads: Arc<WaitingThreads>,
}

/// The entry of a collection by its manifest; `None` if it was removed.
type ReadEntry = (OwnedCollectionName, Result<Option<ListedCollection>>);

/// A manifest that is read for a listing, until this is dropped.
struct Reading<'a> {
    lookup: &'a CollectionLookup,
    key: OwnedCollectionName,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.lookup.reading.lock().remove(&self.key);
    }
}

impl CollectionLookup {
    pub fn new(source: &Arc<Source>, wanted: HashMap<OwnedCollectionName, At>) -> CollectionLookup {
        CollectionLookup {
            source: source.clone(),
            wanted,
            names: Listings::default(),
            tenants: Listings::default(),
            entries: Listings::default(),
            listed: Mutex::default(),
            read: Mutex::default(),
            reading: Mutex::default(),
            threads: Arc::default(),
        }
    }

    /// The threads that wait for the remote.
    pub(super) fn threads(&self) -> &Arc<WaitingThreads> {
        &self.threads
    }

    /// The collections whose snapshots the user names.
    pub fn wanted(&self) -> impl Iterator<Item = &OwnedCollectionName> {
        self.wanted.keys()
    }

    /// Whether the user names the snapshot of a collection by its digest.
    pub fn is_by_digest(&self, key: &OwnedCollectionName) -> bool {
        matches!(self.wanted.get(key), Some(At::Digest(_)))
    }

    /// Notes the listing that was just made.
    pub fn note_listing(&self, listing: Option<Listing>) {
        let listing = listing.map(|listing| seen_by(&self.source, listing));
        if let Some(listing) = &listing {
            self.names.know(names_in(listing));
        }
        *self.listed.lock() = listing;
    }

    /// Asks for all listings again at their next use.
    pub fn make_old(&self) {
        self.names.make_old();
        self.tenants.make_old();
        self.entries.make_old();
    }

    /// The manifest of the snapshot that is wanted of a collection. `opened` is the one that is shown.
    pub fn manifest(
        &self,
        key: &OwnedCollectionName,
        opened: Option<NamedManifest>,
    ) -> Result<Option<NamedManifest>> {
        let at = match self.wanted.get(key) {
            None | Some(At::Newest) => {
                let known = match &opened {
                    Some(opened) => Known::Opened(opened.name.number),
                    None => self.known(key),
                };
                return Ok(match self.source.search(key.borrowed(), known)? {
                    Newest::None => None,
                    Newest::Opened => opened,
                    Newest::Manifest(manifest) => Some(manifest),
                });
            }
            Some(at) => at,
        };
        // A digest never names another snapshot.
        if let (Some(opened), At::Digest(_)) = (&opened, at) {
            return Ok(Some(opened.clone()));
        }
        let number = number_of(self.source.remote(), key.borrowed(), at)?;
        if let Some(opened) = opened.filter(|opened| opened.name.number == number) {
            return Ok(Some(opened));
        }
        let found = self.source.numbered(&key.tenant, &key.name, number)?;
        if matches!(at, At::Digest(digest) if *digest != found.digest) {
            let text = format!("{}: snapshot {number} of {key} was replaced", self.source.remote().place());
            return Err(Error::corrupt(text));
        }
        Ok(Some(found.named()))
    }

    /// The manifest of a collection that was listed.
    pub fn listed(&self, key: &OwnedCollectionName) -> Option<Listed> {
        self.listed.lock().as_ref()?.newest.get(key).copied()
    }

    fn known(&self, key: &OwnedCollectionName) -> Known {
        let listed = self.listed.lock();
        let Some(listing) = &*listed else { return self.entered(key) };
        match listing.newest.get(key) {
            Some(found) if listing.when.elapsed() < KEPT => Known::JustListed(*found),
            Some(found) => Known::Listed(*found),
            None => Known::Nothing,
        }
    }

    /// The snapshot that the list of a tenant has, if it was read.
    fn entered(&self, key: &OwnedCollectionName) -> Known {
        let new = self.tenants.known_now(&key.tenant);
        let is_new = new.as_ref().is_some_and(|tenant| tenant.heads.is_some());
        let Some(tenant) = new.or_else(|| self.tenants.known(&key.tenant)) else { return Known::Nothing };
        let Some(entry) = tenant.list.0.get(&key.name) else { return Known::Nothing };
        let listed = Listed { number: entry.number, len: entry.len };
        // Its hint was listed with the ETag that the entry has: it need not be read.
        if is_new && self.is_present(key, &tenant, entry) {
            Known::JustListed(listed)
        } else {
            Known::Listed(listed)
        }
    }

    /// The names of tenants.
    pub fn tenant_names(self: &Arc<Self>) -> Result<Vec<String>> {
        self.names("")
    }

    /// The names of a tenant's collections.
    pub fn collection_names(self: &Arc<Self>, tenant: &str) -> Result<Vec<String>> {
        self.names(tenant)
    }

    /// Lists names: all of a small remote, those of `key` of another.
    fn names(self: &Arc<Self>, key: &str) -> Result<Vec<String>> {
        let (lookup, of) = (self.clone(), key.to_owned());
        self.names.get(key, move || {
            if lookup.list_again()? {
                let listed = lookup.listed.lock();
                return Ok(Answer::All(listed.as_ref().map(names_in).unwrap_or_default()));
            }
            match of.is_empty() {
                true => lookup.source.remote().tenants().map(Answer::Of),
                false => lookup.tenant(&of).map(|tenant| Answer::Of(tenant.names.clone())),
            }
        })
    }

    /// Lists a small remote again. Returns whether it is small.
    fn list_again(&self) -> Result<bool> {
        if self.listed.lock().is_none() {
            return Ok(false);
        }
        let found = runtime::wait(listing(self.source.remote().client()))?;
        let found = found.inspect_err(|error| self.source.tell("", &error.to_string()))?;
        self.source.answered();
        let mut listed = self.listed.lock();
        *listed = found.map(|found| seen_by(&self.source, found));
        Ok(listed.is_some())
    }

    /// A tenant with the list of its collections.
    fn tenant(self: &Arc<Self>, tenant: &str) -> Result<Arc<Tenant>> {
        let (lookup, of) = (self.clone(), tenant.to_owned());
        self.tenants.get(tenant, move || lookup.list_tenant(&of).map(|tenant| Answer::Of(Arc::new(tenant))))
    }

    fn list_tenant(&self, tenant: &str) -> Result<Tenant> {
        let remote = self.source.remote();
        let small: Option<Vec<String>> = self.listed.lock().as_ref().map(|listing| {
            let of_tenant = listing.newest.keys().filter(|key| key.tenant == tenant);
            of_tenant.map(|key| key.name.clone()).collect()
        });
        // A list has no signature.
        let is_asked = self.source.trust().is_none() && !self.source.is_away();
        let read_list =
            || if is_asked { tenant_lists::listed(remote, tenant) } else { Ok(TenantList::default()) };
        let (heads, list) = match small {
            Some(_) => (None, read_list()?),
            None => std::thread::scope(|scope| {
                let list = scope.spawn(read_list);
                let heads = tenant_lists::heads(remote, tenant)?;
                let bug = |_| Err(Error::io("reading a list", std::io::Error::other("a bug in tierfs")));
                Ok::<_, Error>((Some(heads), list.join().unwrap_or_else(bug)?))
            })?,
        };
        let names = match (small, &heads) {
            (Some(names), _) => names,
            (None, heads) => {
                let parts = heads.iter().flatten();
                let of_list: HashMap<String, &String> =
                    list.0.keys().map(|name| (keys::escape(name), name)).collect();
                let named = parts.filter_map(|(part, e_tag)| {
                    let listed = of_list.get(part).copied();
                    let is_removed =
                        |name| list.0.get(name).is_some_and(|it| it.is_removed && is_of_head(it, e_tag));
                    let name = whole_name(part).or_else(|| listed.cloned())?;
                    (!is_removed(&name)).then_some(name)
                });
                let mut names: Vec<String> = named.collect();
                let shortened = heads
                    .iter()
                    .flatten()
                    .any(|(part, _)| whole_name(part).is_none() && !of_list.contains_key(part));
                // Only their manifests have such names.
                if shortened {
                    names.extend(remote.collections(tenant)?);
                }
                names.sort_unstable();
                names.dedup();
                names
            }
        };
        Ok(Tenant { names, heads, list })
    }

    /// The collections of a tenant that can be shown without being opened.
    pub fn entries(self: &Arc<Self>, tenant: &str) -> Result<Arc<Directories>> {
        let (lookup, of) = (self.clone(), tenant.to_owned());
        self.entries.get(tenant, move || lookup.list_entries(&of).map(|found| Answer::Of(Arc::new(found))))
    }

    /// The numbers of newest snapshots that the list of a tenant has now.
    pub fn numbers(&self, tenant: &str) -> Result<HashMap<String, u64>> {
        if self.source.trust().is_some() {
            return Ok(HashMap::new());
        }
        let list = tenant_lists::listed(self.source.remote(), tenant)?;
        Ok(list.0.into_iter().map(|(name, listed)| (name, listed.number)).collect())
    }

    /// Those that were listed last.
    pub fn known_entries(&self, tenant: &str) -> Option<Arc<Directories>> {
        self.entries.known(tenant)
    }

    fn list_entries(self: &Arc<Self>, of: &str) -> Result<Directories> {
        let (names, tenant) = (self.collection_names(of)?, self.tenant(of)?);
        let (mut entries, mut missing) = (BTreeMap::new(), Vec::new());
        let mut left_out = BTreeSet::new();
        for name in names {
            let key = OwnedCollectionName::new(of, name.clone());
            let read = self.read.lock().get(&key).cloned();
            let listed = tenant.list.0.get(&name).cloned();
            let is_present = |listed: &ListedCollection| self.is_present(&key, &tenant, listed);
            match listed.into_iter().chain(read).find(is_present) {
                Some(listed) => drop(entries.insert(name, listed)),
                None => {
                    left_out.insert(name);
                    missing.push(key);
                }
            }
        }
        let (mut failed, mut failures, mut is_silent) = (None, 0, !missing.is_empty());
        self.read_each(&tenant, missing, entries.is_empty(), |(key, found)| {
            is_silent = false;
            match found {
                Ok(Some(listed)) => {
                    left_out.remove(&key.name);
                    entries.insert(key.name, listed);
                }
                Ok(None) => {}
                Err(error) => {
                    log::warn!("{key} is left out of the listing: {error}");
                    if error.kind() == ErrorKind::Io {
                        failures += 1;
                        failed = Some(error);
                    }
                }
            }
            // The remote is away.
            !(entries.is_empty() && failures >= READ_AT_ONCE)
        });
        match failed {
            Some(error) if entries.is_empty() => Err(error),
            None if entries.is_empty() && is_silent => {
                let text = format!("{}: no manifest of {of} came in time", self.source.remote().place());
                Err(Error::new(ErrorKind::Io, text))
            }
            _ => Ok(Directories { entries, left_out }),
        }
    }

    /// Whether an entry is of the snapshot that was listed last.
    fn is_present(&self, key: &OwnedCollectionName, tenant: &Tenant, entry: &ListedCollection) -> bool {
        // Whether one was removed, its manifest says.
        if self.wanted.contains_key(key) || entry.is_removed {
            return false;
        }
        match &tenant.heads {
            Some(heads) => heads.get(&keys::escape(&key.name)).is_some_and(|head| is_of_head(entry, head)),
            None => self
                .listed(key)
                .is_some_and(|listed| (listed.number, listed.len) == (entry.number, entry.len)),
        }
    }

    /// The manifest of a collection as one that is read; `None` if an earlier listing has waited for it in vain.
    fn begin_reading(&self, key: &OwnedCollectionName) -> Option<Reading<'_>> {
        let since = *self.reading.lock().entry(key.clone()).or_insert_with(Instant::now);
        (since.elapsed() < READ_PATIENCE).then(|| Reading { lookup: self, key: key.clone() })
    }

    /// Reads the manifests of collections, 64 at a time, and passes their entries to `take` until it returns `false`. Those
    /// that do not come within 2 s after the last are left out, once no other waits for its turn; if `waits` says so, the
    /// first is awaited as long as a request may take, which is also the longest that all may take.
    fn read_each(
        self: &Arc<Self>,
        tenant: &Arc<Tenant>,
        keys: Vec<OwnedCollectionName>,
        mut waits: bool,
        mut take: impl FnMut(ReadEntry) -> bool,
    ) {
        let client = self.source.remote().client();
        // The errors of the last ones come a little later.
        let end = Instant::now() + client.deadlines().total + READ_PATIENCE;
        let (left, (sender, answers)) = (Arc::new(Mutex::new(keys)), mpsc::channel());
        for _ in 0..READ_AT_ONCE.min(left.lock().len()) {
            let (lookup, tenant, left, sender) = (self.clone(), tenant.clone(), left.clone(), sender.clone());
            let read = move || {
                while let Some(key) = { left.lock().pop() } {
                    let Some(reading) = lookup.begin_reading(&key) else { continue };
                    let mut found = lookup.read_one(&key);
                    if let Ok(Some(listed)) = &mut found {
                        let head =
                            tenant.heads.as_ref().and_then(|heads| heads.get(&keys::escape(&key.name)));
                        listed.head = head.cloned().unwrap_or_default();
                        lookup.read.lock().insert(key.clone(), listed.clone());
                    }
                    drop(reading);
                    // Nobody may wait any more.
                    drop(sender.send((key, found)));
                }
            };
            if let Err(error) = self.threads.start("manifest", read) {
                log::warn!("{}: {error}", client.place());
                break;
            }
        }
        drop(sender);
        let mut goes_on = true;
        while goes_on {
            let rest = end.saturating_duration_since(Instant::now());
            let patience = if waits { rest } else { rest.min(READ_PATIENCE) };
            match answers.recv_timeout(patience) {
                Ok(answer) => {
                    waits &= answer.1.is_err();
                    goes_on = take(answer);
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => goes_on = false,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    // The reads that are on their way have waited at least so long, so others have places.
                    let is_queued = !left.lock().is_empty() || client.window().has_waited(READ_PATIENCE);
                    goes_on = is_queued && Instant::now() < end;
                }
            }
        }
        left.lock().clear();
    }

    fn read_one(&self, key: &OwnedCollectionName) -> Result<Option<ListedCollection>> {
        let found = match self.source.is_away() {
            true => self.source.shown(key.borrowed(), None),
            false => self.manifest(key, None)?,
        };
        let found = found.filter(|found| !found.manifest.is_removal());
        let len = self.listed(key).map_or(0, |listed| listed.len);
        Ok(found.map(|found| ListedCollection::of(&found.manifest, [0; 32], len)))
    }
}

/// A listing as a mount sees it: where signatures are wanted, a removal counts only once its signature was compared.
fn seen_by(source: &Source, mut listing: Listing) -> Listing {
    if source.trust().is_some() {
        listing.newest.extend(std::mem::take(&mut listing.removed));
    }
    listing
}

/// The names in a listing, as [`CollectionLookup::names`] has them.
fn names_in(listing: &Listing) -> HashMap<String, Vec<String>> {
    let mut names: HashMap<String, Vec<String>> = HashMap::new();
    names.entry(String::new()).or_default();
    let mut listed: Vec<&OwnedCollectionName> = listing.newest.keys().collect();
    listed.sort_unstable();
    for OwnedCollectionName { tenant, name } in listed {
        let of_tenant = names.entry(tenant.clone()).or_default();
        of_tenant.push(name.clone());
        if of_tenant.len() == 1 {
            names.entry(String::new()).or_default().push(tenant.clone());
        }
    }
    names
}
