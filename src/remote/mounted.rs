//! The snapshots of a remote as a mount shows them.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::Manifest;
use crate::model::{Error, ErrorKind, Result, StoreId};
use crate::remote::files::{Files, Source};
use crate::remote::names::Names;
use crate::remote::pieces::to_io;
use crate::store::{Snapshot, Snapshots};

/// The snapshot of a collection that a user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum At {
    /// The newest.
    Newest,
    /// This number.
    Number(u64),
    /// The one with this tag.
    Tag(String),
}

/// The snapshots of a remote.
pub struct Published {
    source: Arc<Source>,
    /// By tenant and collection; the newest of others.
    wanted: HashMap<(String, String), At>,
    /// The variant to show of each collection that has it.
    tier: Option<String>,
    /// Listed names by tenant; those of tenants by an empty text.
    names: Names,
    /// The snapshot that was opened last, by tenant and collection.
    opened: Mutex<HashMap<(String, String), Snapshot>>,
}

impl Published {
    /// The snapshots of a remote.
    pub fn new(source: Source, wanted: HashMap<(String, String), At>) -> Published {
        Published {
            source: Arc::new(source),
            wanted,
            tier: None,
            names: Names::default(),
            opened: Mutex::default(),
        }
    }

    /// The same, which shows this variant of each collection that has it. Others are shown exactly, and an
    /// event says so.
    pub fn in_tier(self, tier: Option<String>) -> Published {
        Published { tier, ..self }
    }

    /// The remote and the cache.
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// The number of the snapshot that is wanted of a collection. `known` exists.
    fn number(&self, tenant: &str, collection: &str, known: Option<u64>) -> Result<Option<u64>> {
        let remote = self.source.remote();
        match self.wanted.get(&(tenant.to_owned(), collection.to_owned())) {
            None | Some(At::Newest) => remote.newest_from(tenant, collection, known),
            Some(At::Number(number)) => Ok(Some(*number)),
            Some(At::Tag(tag)) => match remote.number_at(&keys::tag(tenant, collection, tag))? {
                Some(number) => Ok(Some(number)),
                None => {
                    let text = format!("{tenant}/{collection} has no tag {tag:?}");
                    Err(Error::new(ErrorKind::NotFound, text))
                }
            },
        }
    }

    fn snapshot(&self, tenant: &str, collection: &str) -> Result<Option<Snapshot>> {
        let key = (tenant.to_owned(), collection.to_owned());
        let opened = self.opened.lock().get(&key).cloned();
        let known = opened.as_ref().map(|opened| opened.manifest.number);
        let Some(number) = self.number(tenant, collection, known)? else { return Ok(None) };
        if opened.is_some() && known == Some(number) {
            return Ok(opened);
        }
        let Some(found) = self.source.remote().manifest(tenant, collection, number)? else {
            let text =
                format!("{}: {tenant}/{collection} has no snapshot {number}", self.source.remote().place());
            return Err(Error::new(ErrorKind::NotFound, text));
        };
        let files = Arc::new(Files::new(&self.source, &found.manifest));
        let variant = self.variant(&found.manifest)?;
        let snapshot = Snapshot { manifest: found.manifest, variant, files };
        self.opened.lock().insert(key, snapshot.clone());
        Ok(Some(snapshot))
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
        let source = self.source.clone();
        self.names.get("", move || source.remote().tenants()).map_err(to_io)
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        let (source, of) = (self.source.clone(), tenant.to_owned());
        self.names.get(tenant, move || source.remote().collections(&of)).map_err(to_io)
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        self.snapshot(tenant, collection).map_err(to_io)
    }
}
