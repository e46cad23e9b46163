//! Finds the newest snapshots of collections, in few round trips.
//!
//! Requests that need no answer of another are made at the same time: for the hint, for the manifest that is
//! probably the newest, and for the one after it. Nothing that was listed is taken for the newest before the
//! remote has said that there is none after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join;

use crate::format::snapshot::keys::{self, KeyName};
use crate::format::snapshot::manifest::{MANIFEST_BYTES_MAX, Manifest};
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::{Client, Wanted, runtime};
use crate::remote::place::{NUMBER_BYTES_MAX, Remote};

/// A server answers a listing this many keys at a time. The names of a remote with more are listed one directory at
/// a time.
const LISTED_MAX: usize = 1000;

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
    pub newest: HashMap<(String, String), Listed>,
    /// When it was made.
    pub when: Instant,
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
                let listed: &mut Listed = newest.entry((tenant, collection)).or_insert(new);
                if listed.number < number {
                    *listed = new;
                }
            }
            Some(_) => return Ok(None),
            None => log::warn!("{}: no tierfs made {}", client.place(), object.key),
        }
    }
    Ok(Some(Listing { newest, when }))
}

/// Knowledge of the snapshots of a collection before a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// This manifest was just listed: what came after it cannot be collected yet.
    JustListed(Listed),
    /// This manifest was listed, perhaps long ago.
    Listed(Listed),
    /// The snapshot of this number is open.
    Opened(u64),
}

/// The outcome of a search.
pub enum Newest {
    /// There is no snapshot.
    None,
    /// It is the one that is open.
    Opened,
    /// It has this manifest.
    Manifest(Arc<Manifest>),
}

impl Remote {
    /// The newest snapshot of a collection.
    pub fn search(&self, (tenant, collection): (&str, &str), known: Known) -> Result<Newest> {
        let number_of = |found: Option<Vec<u8>>| {
            found.and_then(|bytes| keys::number(String::from_utf8_lossy(&bytes).trim()))
        };
        let head = || (keys::head(tenant, collection), whole(NUMBER_BYTES_MAX));
        let opened = if let Known::Opened(number) = known { Some(number) } else { None };
        let (mut number, mut asks_head) = match known {
            Known::JustListed(Listed { number, .. }) => (number, false),
            Known::Opened(number) | Known::Listed(Listed { number, .. }) => (number, true),
            Known::Nothing => {
                let below = keys::snapshots(tenant, collection);
                let (hint, listed) = runtime::wait(async {
                    let (key, wanted) = head();
                    let listed = self.client().listed(below.trim_end_matches('/'), None, LISTED_MAX);
                    join(self.client().got(&key, wanted), listed).await
                })?;
                let (hint, listed) = (number_of(hint?), listed?);
                let last = listed.iter().filter_map(|object| keys::parse_snapshot(&object.key));
                match hint.max(last.map(|(.., number)| number).max()) {
                    Some(number) => (number, false),
                    None => return Ok(Newest::None),
                }
            }
        };
        let mut was_listed = false;
        loop {
            let next = keys::snapshot(tenant, collection, number.saturating_add(1));
            let mut wanted = vec![(next, Wanted { range: Some(0..1), len_max: MANIFEST_BYTES_MAX })];
            if opened != Some(number) {
                wanted.push((keys::snapshot(tenant, collection, number), whole(MANIFEST_BYTES_MAX)));
            }
            if asks_head {
                wanted.push(head());
            }
            let mut answers = self.client().get_each(&wanted)?.into_iter();
            let mut answer = || answers.next().unwrap_or(Ok(None));
            let has_next = answer()?.is_some();
            // It matters only if it is the newest.
            let manifest = if opened == Some(number) { Ok(None) } else { answer() };
            let hint = if std::mem::take(&mut asks_head) { number_of(answer()?) } else { None };
            let newer = number.checked_add(1).filter(|_| has_next).max(hint).filter(|newer| *newer > number);
            if let Some(newer) = newer {
                number = newer;
            } else if opened == Some(number) {
                return Ok(Newest::Opened);
            } else if let Some(bytes) = manifest? {
                return Ok(Newest::Manifest(self.read(tenant, collection, number, bytes)?.manifest));
            } else if was_listed {
                let text = format!("{}: {tenant}/{collection} has no snapshot {number}", self.place());
                return Err(Error::new(ErrorKind::NotFound, text));
            } else {
                // The hint is wrong, or what was known was collected.
                was_listed = true;
                match self.numbers(tenant, collection)?.last() {
                    Some(last) => number = *last,
                    None => return Ok(Newest::None),
                }
            }
        }
    }
}

fn whole(len_max: u64) -> Wanted {
    Wanted { range: None, len_max }
}
