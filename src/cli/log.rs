//! `tierfs log`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::output::{human, print, print_json};
use crate::format::snapshot::keys;
use crate::model::{CollectionName, Result, hex};
use crate::remote::client::Client;
use crate::remote::place::remote::{Found, Remote};
use crate::remote::place::tags::tags;
use crate::remote::push::request::parse_place;
use crate::store::now_nanoseconds;

/// List the snapshots of a remote, the newest of each collection first.
///
/// A line has the number, the age in hours, bytes, variants, tags, the BLAKE3 by which --at finds exactly this snapshot, and
/// the message. A snapshot that removed its collection has no bytes.
///
/// Example: tierfs log s3://models/prefix acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    remote: String,
    /// TENANT/COLLECTION [default: all collections]
    collection: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let remote = Remote::open(Client::open(&self.remote)?)?;
        let now = u64::try_from(now_nanoseconds()).unwrap_or(0);
        let (mut rows, mut text) = (Vec::new(), String::new());
        let all = self.collection.is_none();
        for (tenant, name) in self.places(&remote)? {
            let place = CollectionName::new(&tenant, &name);
            if all {
                text.push_str(&format!("{place}\n"));
            }
            let mut by_number: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for (tag, number) in tags(&remote, place)? {
                by_number.entry(number).or_default().push(tag);
            }
            for number in remote.numbers(&tenant, &name)?.into_iter().rev() {
                // It may be collected meanwhile.
                let Some(found) = remote.manifest(&tenant, &name, number)? else { continue };
                let tags = by_number.get(&number).map_or(&[][..], Vec::as_slice);
                text.push_str(&line(&found, tags, now));
                rows.push(row(&found, tags));
            }
        }
        if self.json { print_json(&rows.into()) } else { print(&text) }?;
        Ok(Outcome::Succeeded)
    }

    /// The collection that is asked for, or all, those too that were removed.
    fn places(&self, remote: &Remote) -> Result<BTreeSet<(String, String)>> {
        if let Some(text) = &self.collection {
            let place = parse_place(text.trim_matches('/'))?;
            return Ok([(place.tenant, place.name)].into());
        }
        let mut places = BTreeSet::new();
        for tenant in remote.tenants()? {
            places.extend(remote.collections(&tenant)?.into_iter().map(|name| (tenant.clone(), name)));
        }
        Ok(places)
    }
}

fn stored(found: &Found) -> u64 {
    found.manifest.pieces.iter().map(|piece| u64::from(piece.stored)).sum()
}

fn variants(found: &Found) -> Vec<&str> {
    found.manifest.variants.iter().map(|variant| variant.name.as_str()).collect()
}

fn line(found: &Found, tags: &[String], now: u64) -> String {
    let manifest = &found.manifest;
    let hours = now.saturating_sub(manifest.created_at) / 3_600_000_000_000;
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
