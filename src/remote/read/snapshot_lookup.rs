//! Finds the newest snapshots of collections, in few round trips.
//!
//! Requests that need no answer of another are made at the same time: for the hint, for the manifest that is
//! probably the newest, and for the one after it. Nothing that was listed is taken for the newest before the
//! remote has said that there is none after it.

use std::sync::atomic::Ordering;

use futures_util::future::join;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{MANIFEST_BYTES_MAX, SnapshotName};
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result};
use crate::remote::client::{Wanted, runtime};
use crate::remote::place::at::DIGEST_BYTES;
use crate::remote::place::listing::{LISTED_MAX, Listed};
use crate::remote::place::remote::{Found, NUMBER_BYTES_MAX, NamedManifest};
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::cache::remote_notes::ShownManifest;
use crate::remote::read::files::Source;

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
    Manifest(NamedManifest),
}

impl Source {
    /// The newest snapshot of a collection. While the remote is away, the newest that was shown before.
    pub fn search(&self, place: CollectionName<'_>, known: Known) -> Result<Newest> {
        let is_open = matches!(known, Known::Opened(_));
        let shown = |error: Option<&Error>| {
            let found = self.shown(place, None)?;
            let text = format!(
                "snapshot {} is shown as it was last seen: {}",
                found.name.number,
                error.map_or_else(|| "the remote is away".to_owned(), |error| error.to_string())
            );
            self.tell(&place.to_string(), &text);
            Some(Newest::Manifest(found))
        };
        if self.is_away()
            && !is_open
            && let Some(found) = shown(None)
        {
            return Ok(found);
        }
        match self.search_in_remote(place, known) {
            Err(error) if error.kind() == ErrorKind::Io && !is_open => shown(Some(&error)).ok_or(error),
            found => found.inspect_err(|error| self.tell_of_wrong(place, error)),
        }
    }

    /// The manifest of a snapshot that was shown before, of this number or the newest of them, if the cache has it.
    pub(in crate::remote) fn shown(
        &self,
        place: CollectionName<'_>,
        number: Option<u64>,
    ) -> Option<NamedManifest> {
        let cache = self.cache()?;
        let shown = cache.shown(&place.owned(), number)?;
        let bytes = cache.kept(Kind::Manifest, &shown.digest, shown.len)?;
        let found = self.keep(place.tenant, place.name, shown.number, bytes);
        found.inspect_err(|error| log::warn!("{place}: {error}")).ok().map(|found| found.named())
    }

    /// Tells of a manifest with wrong bytes.
    fn tell_of_wrong(&self, place: CollectionName<'_>, error: &Error) {
        if error.kind() == ErrorKind::Corrupt {
            self.remote().client().counts().failures.fetch_add(1, Ordering::Relaxed);
            self.tell(&place.to_string(), &error.to_string());
        }
    }

    fn search_in_remote(
        &self,
        CollectionName { tenant, name: collection }: CollectionName<'_>,
        known: Known,
    ) -> Result<Newest> {
        let number_of = |found: Option<Vec<u8>>| {
            found.and_then(|bytes| keys::number(String::from_utf8_lossy(&bytes).trim()))
        };
        let head = || (keys::head(tenant, collection), Wanted::whole(NUMBER_BYTES_MAX));
        let client = self.remote().client();
        let opened = if let Known::Opened(number) = known { Some(number) } else { None };
        let (mut at, mut asks_head) = match known {
            Known::JustListed(listed) => (Candidate::from(listed), false),
            Known::Listed(listed) => (Candidate::from(listed), true),
            Known::Opened(number) => (Candidate::new(number), true),
            Known::Nothing => {
                let below = keys::snapshots(tenant, collection);
                let (hint, listed) = runtime::wait(async {
                    let (key, wanted) = head();
                    let listed = client.listed(below.trim_end_matches('/'), None, LISTED_MAX);
                    join(client.got(&key, wanted), listed).await
                })?;
                let (hint, listed) = (number_of(hint?).map(Candidate::new), listed?);
                let listed = listed.iter().filter_map(|object| {
                    let (.., number) = keys::parse_snapshot(&object.key)?;
                    Some(Candidate { number, len: Some(object.len) })
                });
                match listed.chain(hint).max_by_key(|one| (one.number, one.len)) {
                    Some(newest) => (newest, false),
                    None => return Ok(Newest::None),
                }
            }
        };
        let mut was_listed = false;
        loop {
            let (number, is_open) = (at.number, opened == Some(at.number));
            let next = keys::snapshot(tenant, collection, number.saturating_add(1));
            let mut wanted = Vec::new();
            let (key, part) = (
                keys::snapshot(tenant, collection, number),
                self.part_of(CollectionName::new(tenant, collection), at),
            );
            if !is_open {
                wanted.push((key.clone(), part.clone()));
            }
            if asks_head {
                wanted.push(head());
            }
            let (has_next, answers) =
                runtime::wait(async { join(client.has(&next), client.got_each(&wanted)).await })?;
            let (has_next, mut answers) = (has_next?, answers.into_iter());
            let mut answer = || answers.next().unwrap_or(Ok(None));
            // It matters only if it is the newest.
            let found = if is_open { Ok(None) } else { answer() };
            let hint = if std::mem::take(&mut asks_head) { number_of(answer()?) } else { None };
            let newer = number.checked_add(1).filter(|_| has_next).max(hint).filter(|newer| *newer > number);
            if let Some(newer) = newer {
                at = Candidate::new(newer);
            } else if is_open {
                return Ok(Newest::Opened);
            } else if let Some(found) = found? {
                let is_whole = part.range.is_none();
                let bytes = if is_whole { Some(found) } else { self.named_by(&found, &key, at)? };
                if let Some(bytes) = bytes {
                    let found = self.keep(tenant, collection, number, bytes)?;
                    self.check_newer(CollectionName::new(tenant, collection), number)?;
                    return Ok(Newest::Manifest(found.named()));
                }
            } else if was_listed {
                return Err(self.lacks(tenant, collection, number));
            } else {
                // The hint is wrong, or the known one was collected.
                was_listed = true;
                match self.remote().numbers(tenant, collection)?.last() {
                    Some(last) => at = Candidate::new(*last),
                    None => return Ok(Newest::None),
                }
            }
        }
    }

    /// The manifest of a number, and its digest. While the remote is away, it must have been shown before.
    pub fn numbered(&self, tenant: &str, collection: &str, number: u64) -> Result<Found> {
        let place = CollectionName::new(tenant, collection);
        let shown = || {
            let cache = self.cache()?;
            let shown = cache.shown(&place.owned(), Some(number))?;
            let bytes = cache.kept(Kind::Manifest, &shown.digest, shown.len)?;
            self.keep(tenant, collection, number, bytes).ok()
        };
        if self.is_away()
            && let Some(found) = shown()
        {
            return Ok(found);
        }
        match self.numbered_in_remote(tenant, collection, number) {
            Err(error) if error.kind() == ErrorKind::Io => shown().ok_or(error),
            found => found.inspect_err(|error| self.tell_of_wrong(place, error)),
        }
    }

    /// The manifest of this name, which was shown before: from the cache, which needs no remote for it, or else from the
    /// remote. `None` if neither has it any more.
    pub fn again(&self, place: CollectionName<'_>, name: &SnapshotName) -> Result<Option<Found>> {
        let CollectionName { tenant, name: collection } = place;
        let kept = self.cache().and_then(|cache| cache.kept(Kind::Manifest, &name.digest, name.more));
        let found = match kept {
            Some(bytes) => self.keep(tenant, collection, name.number, bytes),
            None => self.numbered(tenant, collection, name.number),
        };
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                log::warn!("{place}: {error}");
                Ok(None)
            }
            found => Ok(Some(found?).filter(|found| found.digest == name.digest)),
        }
    }

    fn numbered_in_remote(&self, tenant: &str, collection: &str, number: u64) -> Result<Found> {
        let place = CollectionName::new(tenant, collection);
        let (client, key) = (self.remote().client(), keys::snapshot(tenant, collection, number));
        let mut at = Candidate::new(number);
        if self.cache().is_some_and(|cache| cache.shown(&place.owned(), Some(number)).is_some()) {
            let (below, before) = (keys::snapshots(tenant, collection), number.checked_sub(1));
            let before = before.map(|before| keys::snapshot(tenant, collection, before));
            let below = below.trim_end_matches('/');
            let listed = runtime::wait(client.listed(below, before.as_deref(), 1))??;
            at.len = listed.iter().find(|object| object.key == key).map(|object| object.len);
        }
        let part = self.part_of(place, at);
        let mut found = runtime::wait(client.got(&key, part.clone()))??;
        if part.range.is_some()
            && let Some(digest) = &found
        {
            found = self.named_by(digest, &key, at)?;
        }
        let bytes = found.ok_or_else(|| self.lacks(tenant, collection, number))?;
        self.keep(tenant, collection, number, bytes)
    }

    /// The part of a manifest to ask for: its digest, if the cache has the manifest that was shown under this number.
    fn part_of(&self, place: CollectionName<'_>, at: Candidate) -> Wanted {
        let shown = self.cache().and_then(|cache| {
            let shown = cache.shown(&place.owned(), Some(at.number))?;
            let is_same = at.len == Some(shown.len) && cache.keeps(Kind::Manifest, &shown.digest);
            is_same.then_some(shown.len)
        });
        match shown.and_then(|len| Some((len.checked_sub(DIGEST_BYTES)?, len))) {
            Some((from, len)) => Wanted::range(from..len),
            None => Wanted::whole(MANIFEST_BYTES_MAX),
        }
    }

    /// The manifest with this digest: from the cache, otherwise from the remote.
    fn named_by(&self, digest: &[u8], key: &str, at: Candidate) -> Result<Option<Vec<u8>>> {
        let kept = digest.try_into().ok().zip(at.len).zip(self.cache());
        let kept = kept.and_then(|((digest, len), cache)| cache.kept(Kind::Manifest, digest, len));
        match kept {
            Some(bytes) => Ok(Some(bytes)),
            None => self.remote().client().get(key, MANIFEST_BYTES_MAX),
        }
    }

    /// Reads a manifest and keeps it in the cache.
    fn keep(&self, tenant: &str, collection: &str, number: u64, bytes: Vec<u8>) -> Result<Found> {
        let found = self.remote().read(tenant, collection, number, bytes)?;
        if let Some(trust) = self.trust() {
            let place = CollectionName::new(tenant, collection);
            if let Err(error) = trust.check(place, number, &found.bytes) {
                self.tell(&place.to_string(), &error.to_string());
                return Err(error);
            }
        }
        if let Some(cache) = self.cache() {
            let len = found.bytes.len() as u64;
            cache
                .keep(Kind::Manifest, &found.digest, &found.bytes)
                .unwrap_or_else(|error| self.disk_failed(&error));
            let shown = ShownManifest { number, digest: found.digest, len };
            cache.note_shown(OwnedCollectionName::new(tenant, collection), shown);
        }
        Ok(found)
    }

    /// Fails, where signatures are wanted, with `Forbidden` for a newest snapshot that is older than one that this cache has seen: somebody has removed the
    /// newer ones, or put an old listing in their place.
    fn check_newer(&self, place: CollectionName<'_>, number: u64) -> Result<()> {
        let Some(cache) = self.cache().filter(|_| self.trust().is_some()) else { return Ok(()) };
        let seen = cache.seen(self.remote().id(), place, number)?;
        if seen <= number {
            return Ok(());
        }
        let text = format!(
            "snapshot {number} of {place} is older than {seen}, which was shown before; --at shows it, if it is wanted"
        );
        self.tell(&place.to_string(), &text);
        Err(Error::new(ErrorKind::Forbidden, text))
    }

    fn lacks(&self, tenant: &str, collection: &str, number: u64) -> Error {
        let text = format!("{}: {tenant}/{collection} has no snapshot {number}", self.remote().place());
        Error::new(ErrorKind::NotFound, text)
    }
}

/// A manifest that may be the newest.
#[derive(Clone, Copy)]
struct Candidate {
    number: u64,
    /// Its bytes, if they are known.
    len: Option<u64>,
}

impl Candidate {
    fn new(number: u64) -> Candidate {
        Candidate { number, len: None }
    }

    fn from(Listed { number, len }: Listed) -> Candidate {
        Candidate { number, len: Some(len) }
    }
}
