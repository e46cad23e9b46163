//! `tierfs log`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::mounts::mount_for;
use crate::cli::common::output::{human, print, print_json};
use crate::cli::common::remote::url;
use crate::ingest::parse_collection;
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, check_label};
use crate::store::disk::Disk;
use crate::store::disk::files::FileDisk;
use crate::store::{Store, Version, now_nanoseconds, versions_on};

/// Nanoseconds of an hour.
const HOUR: u64 = 3_600_000_000_000;

/// List the versions of the collections of a store, or the snapshots of a remote, the newest of each collection first.
///
/// A line of a version has the number, the age in hours, the bytes of its files, the bytes that it takes beside the present
/// state and the later versions, the bytes that differ from the version before, with the tensors that this lacks, and the
/// numbers of the snapshots that this store has pushed of it.
///
/// A line of a snapshot has the number, the age in hours, bytes, variants, tags, the BLAKE3 by which --at finds exactly this
/// snapshot, and the message. A snapshot that removed its collection has no bytes.
///
/// Example: tierfs log /srv/tensors run/policy
///
/// Example: tierfs log s3://models/prefix acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, its mount point, or a remote
    store: PathBuf,
    /// TENANT/COLLECTION [default: all collections]
    #[arg(value_parser = |text: &str| parse_collection(text.trim_matches('/')))]
    collection: Option<OwnedCollectionName>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        #[cfg(feature = "remote")]
        if let Some(remote) = url(&self.store) {
            return snapshots::list(remote, self.collection.as_ref(), self.json);
        }
        #[cfg(not(feature = "remote"))]
        if url(&self.store).is_some() {
            return Err(Error::unsupported("this program was built without remotes"));
        }
        let now = u64::try_from(now_nanoseconds()).unwrap_or(0);
        let (mut rows, mut text) = (Vec::new(), String::new());
        // The files of versions say all, so a daemon that has the store does not matter.
        let store = mount_for(&self.store)?.map_or(self.store.clone(), |mounted| mounted.store);
        let disk = FileDisk::new(&store);
        if !Store::is_there(&disk)? {
            let text = format!("{} is not a tierfs store; tierfs init makes one", store.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let all = self.collection.is_none();
        for place in places(&disk, self.collection, &store)? {
            let versions = versions_on(&disk, place.borrowed())?;
            if all && !versions.is_empty() {
                text.push_str(&format!("{place}\n"));
            }
            for version in versions.iter().rev() {
                text.push_str(&line(version, now));
                rows.push(row(place.borrowed(), version));
            }
        }
        if self.json { print_json(&rows.into()) } else { print(&text) }?;
        Ok(Outcome::Succeeded)
    }
}

/// The collection that is asked for, or all.
fn places(
    disk: &dyn Disk,
    asked: Option<OwnedCollectionName>,
    store: &Path,
) -> Result<Vec<OwnedCollectionName>> {
    let directories = |path: &str| -> Result<Vec<String>> {
        let listed =
            disk.list(path).map_err(|error| Error::io(store.join(path).display(), error))?.into_iter();
        let labels = listed.filter(|entry| entry.is_directory && check_label(&entry.name).is_ok());
        let mut names: Vec<String> = labels.map(|entry| entry.name).collect();
        names.sort_unstable();
        Ok(names)
    };
    if let Some(place) = asked {
        let is_there =
            directories("")?.contains(&place.tenant) && directories(&place.tenant)?.contains(&place.name);
        if !is_there {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no collection {place}")));
        }
        return Ok(vec![place]);
    }
    let mut places = Vec::new();
    for tenant in directories("")? {
        places.extend(directories(&tenant)?.into_iter().map(|name| OwnedCollectionName::new(&tenant, name)));
    }
    Ok(places)
}

fn line(version: &Version, now: u64) -> String {
    let hours = now.saturating_sub(version.created_at) / HOUR;
    let changed = version.changed.map_or("-".to_owned(), human);
    let (bytes, stored) = (human(version.bytes), human(version.stored));
    let pushed: Vec<String> = version.pushed.iter().map(|pushed| pushed.snapshot.to_string()).collect();
    let pushed = if pushed.is_empty() { String::new() } else { format!("  pushed as {}", pushed.join(", ")) };
    let number = version.number;
    format!("{number:>6} {hours:>6} h {bytes:>12} {stored:>12} stored {changed:>12} changed{pushed}\n")
}

fn row(place: CollectionName<'_>, version: &Version) -> Value {
    let pushed = version.pushed.iter().map(|pushed| {
        json!({ "remote": pushed.remote, "collection": pushed.collection, "snapshot": pushed.snapshot })
    });
    json!({
        "collection": place.to_string(),
        "version": version.number,
        "created": version.created_at / 1_000_000_000,
        "bytes": version.bytes,
        "bytes_stored": version.stored,
        "changed": version.changed,
        "pushed": pushed.collect::<Vec<_>>(),
    })
}

#[cfg(feature = "remote")]
mod snapshots {
    use std::collections::{BTreeMap, BTreeSet};

    use serde_json::{Value, json};

    use super::HOUR;
    use crate::cli::Outcome;
    use crate::cli::common::output::{human, print, print_json};
    use crate::cli::common::remote::no_snapshot;
    use crate::format::snapshot::keys;
    use crate::model::{CollectionName, OwnedCollectionName, Result, hex};
    use crate::remote::client::Client;
    use crate::remote::place::remote::{Found, Remote};
    use crate::remote::place::tags::tags;
    use crate::store::now_nanoseconds;

    /// Lists the snapshots of a remote.
    pub fn list(remote: &str, collection: Option<&OwnedCollectionName>, json: bool) -> Result<Outcome> {
        let remote = Remote::open(Client::open(remote)?)?;
        let now = u64::try_from(now_nanoseconds()).unwrap_or(0);
        let (mut rows, mut text) = (Vec::new(), String::new());
        for (tenant, name) in places(&remote, collection)? {
            let place = CollectionName::new(&tenant, &name);
            if collection.is_none() {
                text.push_str(&format!("{place}\n"));
            }
            let mut by_number: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for (tag, number) in tags(&remote, place)? {
                by_number.entry(number).or_default().push(tag);
            }
            let numbers = remote.numbers(&tenant, &name)?;
            if numbers.is_empty() && collection.is_some() {
                return Err(no_snapshot(&remote, &place.to_string())?);
            }
            for number in numbers.into_iter().rev() {
                // It may be collected meanwhile.
                let Some(found) = remote.manifest(&tenant, &name, number)? else { continue };
                let tags = by_number.get(&number).map_or(&[][..], Vec::as_slice);
                text.push_str(&line(&found, tags, now));
                rows.push(row(&found, tags));
            }
        }
        if json { print_json(&rows.into()) } else { print(&text) }?;
        Ok(Outcome::Succeeded)
    }

    /// The collection that is asked for, or all, those too that were removed.
    fn places(remote: &Remote, asked: Option<&OwnedCollectionName>) -> Result<BTreeSet<(String, String)>> {
        if let Some(place) = asked {
            return Ok([(place.tenant.clone(), place.name.clone())].into());
        }
        let mut places = BTreeSet::new();
        for tenant in remote.tenants()? {
            places.extend(remote.collections(&tenant)?.into_iter().map(|name| (tenant.clone(), name)));
        }
        Ok(places)
    }

    fn stored(found: &Found) -> u64 {
        found.manifest.pieces.iter().map(|piece| u64::from(piece.stored)).sum()
    }

    fn variants(found: &Found) -> Vec<&str> {
        found.manifest.variants.iter().map(|variant| variant.name.as_str()).collect()
    }

    fn line(found: &Found, tags: &[String], now: u64) -> String {
        let manifest = &found.manifest;
        let hours = now.saturating_sub(manifest.created_at) / HOUR;
        let size = if manifest.is_removal() { "removed".to_owned() } else { human(stored(found)) };
        let message = manifest.message.replace(char::is_control, " ");
        format!(
            "{:>6} {hours:>6} h {size:>12}  {:<8} {:<12} {}  {message}\n",
            manifest.number,
            variants(found).join(","),
            tags.join(","),
            hex(&found.digest),
        )
    }

    fn row(found: &Found, tags: &[String]) -> Value {
        let manifest = &found.manifest;
        json!({
            "collection": format!("{}/{}", manifest.collection.tenant, manifest.collection.name),
            "snapshot": manifest.number,
            "key": keys::snapshot(&manifest.collection.tenant, &manifest.collection.name, manifest.number),
            "blake3": hex(&found.digest),
            "created": manifest.created_at / 1_000_000_000,
            "removed": manifest.is_removal(),
            "bytes": stored(found),
            "variants": variants(found),
            "tags": tags,
            "message": manifest.message,
        })
    }
}
