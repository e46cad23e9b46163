//! The snapshots of a remote as a mount shows them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::Manifest;
use crate::model::{Error, ErrorKind, OwnedCollectionName, Result, StoreId};
use crate::remote::client::runtime;
use crate::remote::place::at::{At, number_of};
use crate::remote::place::listing::{Listed, Listing, listing};
use crate::remote::read::files::{Files, Source};
use crate::remote::read::names::{Answer, KEPT, Names};
use crate::remote::read::pieces::to_io;
use crate::remote::read::snapshot_lookup::{Known, Newest};
use crate::store::{Snapshot, Snapshots, Traffic};

/// Collections that are opened together with the first of a tenant that is looked at: the next that is read is
/// probably one of them, and waits for no manifest then. With two requests each they fill the window of a new client.
const BESIDE_MAX: usize = 3;
/// Those with longer manifests are not.
const BESIDE_BYTES_MAX: u64 = 256 << 10;

/// The object that names the last push has 32 hexadecimal digits.
const LAST_PUSH_BYTES_MAX: u64 = 64;

/// The snapshots of a remote.
pub struct Published {
    source: Arc<Source>,
    /// By tenant and collection; the newest of others.
    wanted: HashMap<OwnedCollectionName, At>,
    /// The variant to show of each collection that has it.
    tier: Option<String>,
    /// Listed names by tenant; those of tenants by an empty text.
    names: Names,
    /// The newest manifests that were listed; `None` for a remote with many.
    listed: Arc<Mutex<Option<Listing>>>,
    /// The snapshot that was opened last, by tenant and collection.
    opened: Mutex<HashMap<OwnedCollectionName, Snapshot>>,
}

impl Published {
    /// The snapshots of a remote.
    pub fn new(source: Source, wanted: HashMap<OwnedCollectionName, At>) -> Published {
        Published {
            source: Arc::new(source),
            wanted,
            tier: None,
            names: Names::default(),
            listed: Arc::default(),
            opened: Mutex::default(),
        }
    }

    /// The same, which shows this variant of each collection that has it. Others are shown exactly, and an
    /// event says so.
    pub fn in_tier(self, tier: Option<String>) -> Published {
        Published { tier, ..self }
    }

    /// The same, of whose collections this listing was just made.
    pub fn with_listing(self, listing: Option<Listing>) -> Published {
        let listing = listing.map(|listing| seen_by(&self.source, listing));
        if let Some(listing) = &listing {
            self.names.know(names_in(listing));
        }
        *self.listed.lock() = listing;
        self
    }

    /// Finds the snapshots that the user wants. `NotFound` if one does not exist.
    pub fn check_wanted(&self) -> Result<()> {
        for name in self.wanted.keys() {
            let place = self.source.remote().place();
            let advice = format!("tierfs log {place} {name} lists the snapshots");
            match self.snapshot(&name.tenant, &name.name) {
                Ok(Some(_)) => {}
                Ok(None) => {
                    let text = format!("{place}: {name} has no snapshot");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(Error::new(ErrorKind::NotFound, format!("{error}; {advice}")));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The remote and the cache.
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    fn snapshot(&self, tenant: &str, collection: &str) -> Result<Option<Snapshot>> {
        let key = OwnedCollectionName::new(tenant, collection);
        let opened = self.opened.lock().get(&key).cloned();
        let Some(manifest) = self.manifest(&key, opened.as_ref())?.filter(|found| !found.is_removal()) else {
            self.opened.lock().remove(&key);
            return Ok(None);
        };
        if opened.as_ref().is_some_and(|opened| Arc::ptr_eq(&opened.manifest, &manifest)) {
            return Ok(opened);
        }
        let files = Arc::new(Files::new(&self.source, &manifest)?);
        let variant = self.variant(&manifest)?;
        let snapshot = Snapshot { manifest, variant, files };
        self.opened.lock().insert(key, snapshot.clone());
        Ok(Some(snapshot))
    }

    /// The manifest of the snapshot that is wanted of a collection.
    fn manifest(
        &self,
        key: &OwnedCollectionName,
        opened: Option<&Snapshot>,
    ) -> Result<Option<Arc<Manifest>>> {
        let at = match self.wanted.get(key) {
            None | Some(At::Newest) => {
                let known = match opened {
                    Some(opened) => Known::Opened(opened.manifest.number),
                    None => self.listed(key),
                };
                return Ok(match self.source.search(key.borrowed(), known)? {
                    Newest::None => None,
                    Newest::Opened => opened.map(|opened| opened.manifest.clone()),
                    Newest::Manifest(manifest) => Some(manifest),
                });
            }
            Some(at) => at,
        };
        // A digest never names another snapshot.
        if let (Some(opened), At::Digest(_)) = (opened, at) {
            return Ok(Some(opened.manifest.clone()));
        }
        let number = number_of(self.source.remote(), key.borrowed(), at)?;
        if let Some(opened) = opened.filter(|opened| opened.manifest.number == number) {
            return Ok(Some(opened.manifest.clone()));
        }
        let found = self.source.numbered(&key.tenant, &key.name, number)?;
        if matches!(at, At::Digest(digest) if *digest != found.digest) {
            let text = format!("{}: snapshot {number} of {key} was replaced", self.source.remote().place());
            return Err(Error::corrupt(text));
        }
        Ok(Some(found.manifest))
    }

    /// The listed manifest of a collection.
    fn listed(&self, key: &OwnedCollectionName) -> Known {
        let listed = self.listed.lock();
        let Some(listing) = &*listed else { return Known::Nothing };
        match listing.newest.get(key) {
            Some(found) if listing.when.elapsed() < KEPT => Known::JustListed(*found),
            Some(found) => Known::Listed(*found),
            None => Known::Nothing,
        }
    }

    /// Lists names: all of a small remote, those of `key` of another.
    fn names(&self, key: &str) -> Result<Vec<String>> {
        let (source, of, listed) = (self.source.clone(), key.to_owned(), self.listed.clone());
        self.names.get(key, move || {
            let remote = source.remote();
            if listed.lock().is_some() {
                let found = runtime::wait(listing(remote.client()))??;
                let found = found.map(|found| seen_by(&source, found));
                listed.lock().clone_from(&found);
                if let Some(found) = found {
                    return Ok(Answer::All(names_in(&found)));
                }
            }
            let names = if of.is_empty() { remote.tenants() } else { remote.collections(&of) };
            names.map(Answer::Of)
        })
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
        self.names("").map_err(to_io)
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        self.names(tenant).map_err(to_io)
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        self.snapshot(tenant, collection).map_err(to_io)
    }

    fn last_push(&self) -> Option<Vec<u8>> {
        let found = self.source.remote().client().get(keys::PUSHED, LAST_PUSH_BYTES_MAX);
        // It is a hint, which readers may be unable to see.
        found.inspect_err(|error| log::debug!("{error}")).ok().flatten()
    }

    fn traffic(&self) -> Traffic {
        self.source.traffic()
    }

    fn save_cache(&self) {
        if let Some(cache) = self.source.cache() {
            cache.save();
        }
    }

    fn open_tenant(&self, tenant: &str) -> io::Result<Vec<(String, Snapshot)>> {
        let mut names = self.collections(tenant)?;
        names.sort_unstable();
        let lens: Vec<Option<Listed>> = {
            let listed = self.listed.lock();
            let of = |name: &String| {
                listed.as_ref()?.newest.get(&OwnedCollectionName::new(tenant, name.clone())).copied()
            };
            names.iter().map(of).collect()
        };
        let is_small = |listed: &Option<Listed>| listed.is_some_and(|listed| listed.len <= BESIDE_BYTES_MAX);
        let mut wanted = names.iter().zip(&lens);
        let first = wanted.next();
        let others = wanted.filter(|(_, listed)| is_small(listed)).take(BESIDE_MAX);
        let wanted: Vec<&String> = first.into_iter().chain(others).map(|(name, _)| name).collect();
        let open = |name: &String| match self.open(tenant, name) {
            Ok(snapshot) => snapshot.map(|snapshot| Ok((name.clone(), snapshot))),
            Err(error) => Some(Err(error)),
        };
        let opened: Vec<_> = std::thread::scope(|scope| {
            let opening: Vec<_> = wanted.iter().map(|name| scope.spawn(move || open(name))).collect();
            let done = opening.into_iter().map(|opened| opened.join().ok().flatten());
            done.flatten().collect()
        });
        let (mut opened, failed): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
        // All of them may have been removed.
        if opened.is_empty() && failed.is_empty() {
            opened.extend(names.iter().find_map(open));
        }
        // Each of them says what the owner of the tenant is.
        match failed.into_iter().next() {
            Some(error) if opened.is_empty() => error.map(|_| Vec::new()),
            _ => opened.into_iter().collect(),
        }
    }
}

/// A listing as a mount sees it: where signatures are wanted, a removal counts only once its signature was compared.
fn seen_by(source: &Source, mut listing: Listing) -> Listing {
    if source.trust().is_some() {
        listing.newest.extend(std::mem::take(&mut listing.removed));
    }
    listing
}

/// The names in a listing, as [`Published::names`] has them.
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
