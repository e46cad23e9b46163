//! The listing of a small remote: the newest manifest of each collection, in one request.

use std::collections::HashMap;
use std::time::Instant;

use crate::format::snapshot::keys::{self, KeyName};
use crate::format::snapshot::manifest::Manifest;
use crate::model::{OwnedCollectionName, Result};
use crate::remote::client::{Client, Wanted};

/// A server answers a listing this many keys at a time. The names of a remote with more are listed one directory at
/// a time.
pub(in crate::remote) const LISTED_MAX: usize = 1000;

/// The newest manifest of a collection in a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its number.
    pub number: u64,
    /// Its bytes.
    pub len: u64,
}

/// All collections of a small remote.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Their newest manifests, by tenant and name.
    pub newest: HashMap<OwnedCollectionName, Listed>,
    /// The manifests of removals, likewise.
    pub removed: HashMap<OwnedCollectionName, Listed>,
    /// When it was made.
    pub when: Instant,
}

impl Listing {
    /// The listing of a remote that is away, with these manifests.
    pub fn of_known(newest: impl Iterator<Item = (OwnedCollectionName, Listed)>) -> Listing {
        Listing { newest: newest.collect(), removed: HashMap::new(), when: Instant::now() }
    }
}

/// Lists all manifests. `None` if one answer does not have them, or if a name stands in manifests only.
pub(in crate::remote) async fn listing(client: &Client) -> Result<Option<Listing>> {
    let (below, when) = (keys::SNAPSHOTS.trim_end_matches('/'), Instant::now());
    let found = client.listed(below, None, LISTED_MAX).await?;
    if found.len() >= LISTED_MAX {
        return Ok(None);
    }
    let mut newest = HashMap::new();
    for object in found {
        match keys::parse_snapshot(&object.key) {
            Some((KeyName::Whole(tenant), KeyName::Whole(collection), number)) => {
                let new = Listed { number, len: object.len };
                let listed: &mut Listed =
                    newest.entry(OwnedCollectionName { tenant, name: collection }).or_insert(new);
                if listed.number < number {
                    *listed = new;
                }
            }
            Some(_) => return Ok(None),
            None => log::warn!("{}: {} was not made by tierfs", client.place(), object.key),
        }
    }
    let removed = take_removed(client, &mut newest).await?;
    Ok(Some(Listing { newest, removed, when }))
}

/// Takes out collections that were removed. Only manifests that are as short as that of a removal are read.
async fn take_removed(
    client: &Client,
    newest: &mut HashMap<OwnedCollectionName, Listed>,
) -> Result<HashMap<OwnedCollectionName, Listed>> {
    let mut removed = HashMap::new();
    let is_short = |name: &OwnedCollectionName, listed: &Listed| {
        listed.len <= Manifest::removal_bytes_max(&name.tenant, &name.name)
    };
    let short = newest.iter().filter(|(name, listed)| is_short(name, listed));
    let short: Vec<_> = short.map(|(name, listed)| (name.clone(), *listed)).collect();
    let wanted = |(name, listed): &(OwnedCollectionName, Listed)| {
        let key = keys::snapshot(&name.tenant, &name.name, listed.number);
        (key, Wanted::whole(listed.len))
    };
    let wanted: Vec<_> = short.iter().map(wanted).collect();
    for ((name, _), answer) in short.iter().zip(client.got_each(&wanted).await) {
        // Others are read, and refused, when they are opened.
        let manifest = answer?.map(|bytes| Manifest::parse(&bytes));
        if manifest.is_some_and(|parsed| parsed.is_ok_and(|manifest| manifest.is_removal())) {
            removed.extend(newest.remove_entry(name));
        }
    }
    Ok(removed)
}
