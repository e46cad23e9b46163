//! Plans of collections of garbage, and the two runs that a collection takes.
//!
//! A plan is a text: the line `tierfs garbage 1`, then a line for each snapshot (`snap/...`) and each piece
//! (`piece/...`) that the sweep may remove. The sweep is a later run, once the plan is older than the grace.
//!
//! Of a collection that was removed, the manifest of the removal stays, so that numbers go on after it; older snapshots
//! go, whatever their age, unless they have a tag.
//!
//! Invariants: (1) A push that began before a plan has committed, or has given up, before the sweep: it
//! lasts at most half the grace. (2) A push that began after a plan names none of its pieces: it stores
//! them again under the next generation, which no earlier plan can name. (3) The sweep removes a piece only
//! if no manifest that is left names it, and removes manifests before pieces. (4) One plan at a time, and one sweep
//! of it: a run claims it first.
//!
//! The ages of pieces and plans are those of the server's clock, which is read by writing an object and listing it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;

use crate::format::snapshot::keys::{self, PieceName};
use crate::format::snapshot::manifest::{Described, MANIFEST_BYTES_MAX, Manifest, digest};
use crate::format::snapshot::tenant_list::ListedCollection;
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::{ObjectListed, Put, Wanted, runtime};
use crate::remote::place::remote::Remote;
use crate::remote::place::tenant_lists::Rebuilding;

const FIRST_LINE: &str = "tierfs garbage 1";
/// A plan has at most this many bytes.
const PLAN_BYTES_MAX: u64 = 256 << 20;
/// The pieces that one plan names. Others wait for the next.
const CANDIDATES_MAX: usize = 2_000_000;
/// Manifests, and directories of pieces, that are asked for at a time.
const READ_AT_ONCE: usize = 64;
/// Objects removed by one request.
const REMOVED_AT_ONCE: usize = 1000;
/// An object that is written to learn the time of the server.
const CLOCK: &str = "gc/clock";
/// The end of the key of a claim, which begins with that of its plan.
const CLAIM: &str = ".sweep";
/// The directory of all tags.
const TAGS: &str = "tag/";

/// A plan.
pub struct Plan {
    generation: u32,
    /// Keys of manifests.
    doomed: HashSet<String>,
    candidates: Vec<PieceName>,
}

impl Plan {
    /// Its generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The pieces that the sweep may remove.
    pub fn candidates(&self) -> impl Iterator<Item = PieceName> + '_ {
        self.candidates.iter().copied()
    }

    /// Whether the sweep may remove the manifest with this key.
    pub fn is_doomed(&self, key: &str) -> bool {
        self.doomed.contains(key)
    }

    fn parse(generation: u32, text: &str) -> Result<Plan> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(Error::unsupported("the plan has an unknown format"));
        }
        let mut plan = Plan { generation, doomed: HashSet::new(), candidates: Vec::new() };
        for line in lines {
            if let Some(piece) = keys::parse_piece(line) {
                plan.candidates.push(piece);
            } else if keys::parse_snapshot(line).is_some() {
                plan.doomed.insert(line.to_owned());
            } else {
                return Err(Error::corrupt("a plan names something that is neither a snapshot nor a piece"));
            }
        }
        Ok(plan)
    }

    fn to_text(&self) -> String {
        let mut doomed: Vec<&String> = self.doomed.iter().collect();
        doomed.sort_unstable();
        let mut text = format!("{FIRST_LINE}\n");
        for line in doomed.into_iter().cloned().chain(self.candidates.iter().map(keys::piece)) {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// The plans of a remote.
pub fn plans(remote: &Remote) -> Result<Vec<Plan>> {
    Ok(listed_plans(remote)?.into_iter().map(|(_, plan)| plan).collect())
}

/// The plans of a remote, and how they are listed.
fn listed_plans(remote: &Remote) -> Result<Vec<(ObjectListed, Plan)>> {
    let mut plans = Vec::new();
    for listed in remote.client().list(keys::GARBAGE.trim_end_matches('/'), None)? {
        let Some(number) = listed.key.strip_prefix(keys::GARBAGE).and_then(keys::number) else { continue };
        let generation = u32::try_from(number)
            .map_err(|_| Error::corrupt(format!("{} has a wrong number", listed.key)))?;
        // It was swept since it was listed.
        let Some(bytes) = remote.client().get(&listed.key, PLAN_BYTES_MAX)? else { continue };
        let plan = Plan::parse(generation, &String::from_utf8_lossy(&bytes));
        let plan = plan.map_err(|error| error.at(&listed.key))?;
        plans.push((listed, plan));
    }
    Ok(plans)
}

/// Which snapshots stay.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// The newest ones of each collection; at least one.
    pub last: usize,
    /// Those that are younger.
    pub younger: Duration,
    /// Pieces younger than this stay, and plans are not swept before.
    pub grace: Duration,
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Collected {
    /// Snapshots that were removed.
    pub snapshots_removed: usize,
    /// Pieces that were removed.
    pub pieces_removed: usize,
    /// Snapshots that a new plan names.
    pub snapshots_planned: usize,
    /// Pieces that a new plan names.
    pub pieces_planned: usize,
    /// Their bytes.
    pub bytes_planned: u64,
    /// Seconds until a plan may be swept.
    pub waits: Option<u64>,
}

/// Collects garbage: sweeps the plans that are old enough, and writes a plan if the remote has none. With `is_dry`, it
/// changes nothing and only counts.
pub fn collect(remote: &Remote, keep: &Keep, is_dry: bool) -> Result<Collected> {
    if keep.grace < remote.grace() {
        let hours = remote.grace().as_secs().div_ceil(3600);
        let text = format!("pushes to this remote may take long: the grace must be at least {hours} h");
        return Err(Error::invalid(text));
    }
    let now = if is_dry { None } else { Some(server_time(remote)?) };
    if let Some(now) = now {
        let grace = i64::try_from(keep.grace.as_secs()).unwrap_or(i64::MAX);
        let removed = remote.client().remove_drafts(now.saturating_sub(grace))?;
        if removed > 0 {
            log::info!("{}: {removed} files of pushes that were killed were removed", remote.place());
        }
    }
    let mut collected = Collected::default();
    let plans = listed_plans(remote)?;
    for (listed, plan) in &plans {
        let grace = i64::try_from(keep.grace.as_secs()).unwrap_or(i64::MAX);
        match now.map(|now| listed.modified.saturating_add(grace).saturating_sub(now)) {
            Some(left) if left < 0 => {
                let claim = claimed(remote, listed, now.unwrap_or(0).saturating_sub(grace))?;
                if let Some(claim) = claim {
                    let swept = sweep(remote, listed, plan, &mut collected);
                    swept.and(remote.client().delete(&[claim]))?;
                }
            }
            left => collected.waits = Some(u64::try_from(left.unwrap_or(0)).unwrap_or(0)),
        }
    }
    if collected.waits.is_some() {
        return Ok(collected);
    }
    let now = now.unwrap_or_else(|| crate::store::now_nanoseconds() / 1_000_000_000);
    let generation = plans.iter().map(|(_, plan)| plan.generation).max().unwrap_or(0);
    plan(remote, keep, now, generation, is_dry, &mut collected)?;
    Ok(collected)
}

/// The time of the server, in seconds since 1970, by its own clock.
pub(in crate::remote) fn server_time(remote: &Remote) -> Result<i64> {
    remote.client().put(CLOCK, Bytes::new())?;
    let listed = remote.client().list(keys::GARBAGE.trim_end_matches('/'), None)?;
    let found = listed.iter().find(|listed| listed.key == CLOCK);
    found.map(|found| found.modified).ok_or_else(|| {
        Error::new(ErrorKind::Io, format!("{} does not list what was just written", remote.place()))
    })
}

/// The keys of all manifests, oldest first in each collection, by the directories of collections.
fn manifests(remote: &Remote) -> Result<BTreeMap<String, Vec<ObjectListed>>> {
    let mut found: BTreeMap<String, Vec<ObjectListed>> = BTreeMap::new();
    for listed in remote.client().list(keys::SNAPSHOTS.trim_end_matches('/'), None)? {
        match listed.key.rsplit_once('/').filter(|_| keys::parse_snapshot(&listed.key).is_some()) {
            Some((directory, _)) => found.entry(directory.to_owned()).or_default().push(listed),
            None => {
                let text =
                    format!("{}/{} is not a manifest; remove that object first", remote.place(), listed.key);
                return Err(Error::corrupt(text));
            }
        }
    }
    Ok(found)
}

/// The keys of the manifests with tags.
fn tagged(remote: &Remote) -> Result<HashSet<String>> {
    let mut found = HashSet::new();
    for listed in remote.client().list(TAGS.trim_end_matches('/'), None)? {
        let Some((directory, _)) = listed.key.strip_prefix(TAGS).and_then(|rest| rest.rsplit_once('/'))
        else {
            continue;
        };
        if let Some(number) = remote.number_at(&listed.key)? {
            found.insert(format!("{}{directory}/{number:016x}", keys::SNAPSHOTS));
        }
    }
    Ok(found)
}

/// The keys of the newest manifests in lists of them by directory.
fn newest(all: &BTreeMap<String, Vec<ObjectListed>>) -> HashSet<&str> {
    all.values().filter_map(|listed| Some(listed.last()?.key.as_str())).collect()
}

/// Passes manifests with their bytes to `look`. Fails if one cannot be read: its pieces would be lost.
fn read_each(remote: &Remote, keys: &[&str], look: &mut dyn FnMut(&str, &[u8], &Manifest)) -> Result<()> {
    let whole = Wanted::whole(MANIFEST_BYTES_MAX);
    for some in keys.chunks(READ_AT_ONCE) {
        let wanted: Vec<_> = some.iter().map(|key| ((*key).to_owned(), whole.clone())).collect();
        for (key, answer) in some.iter().zip(runtime::wait(remote.client().got_each(&wanted))?) {
            let Some(bytes) = answer? else {
                let text = format!("{}/{key} was removed meanwhile; run it again", remote.place());
                return Err(Error::new(ErrorKind::Busy, text));
            };
            look(key, &bytes, &Manifest::parse(&bytes).map_err(|error| error.at(key))?);
        }
    }
    Ok(())
}

/// The pieces of manifests.
fn marked(remote: &Remote, kept: &[&str]) -> Result<HashSet<PieceName>> {
    let mut marked = HashSet::new();
    read_each(remote, kept, &mut |_, _, manifest| {
        marked.extend(manifest.pieces.iter().map(|piece| piece.name))
    })?;
    Ok(marked)
}

/// The keys of the manifests of removals, which are short.
fn removals(remote: &Remote, all: &BTreeMap<String, Vec<ObjectListed>>) -> Result<HashSet<String>> {
    let is_short = |listed: &&ObjectListed| listed.len <= Manifest::removal_bytes_max(&listed.key, "");
    let short: Vec<&str> =
        all.values().flatten().filter(is_short).map(|listed| listed.key.as_str()).collect();
    let mut found = HashSet::new();
    read_each(remote, &short, &mut |key, _, manifest| {
        if manifest.is_removal() {
            found.insert(key.to_owned());
        }
    })?;
    Ok(found)
}

/// The state of the lists of all tenants.
fn rebuilding(remote: &Remote) -> Result<HashMap<String, Rebuilding>> {
    let begin = |tenant: String| Rebuilding::begin(remote, &tenant).map(|begun| (tenant, begun));
    remote.tenants()?.into_iter().map(begin).collect()
}

/// Makes the lists of collections anew, and a plan, if there is something to collect.
fn plan(
    remote: &Remote,
    keep: &Keep,
    now: i64,
    generation: u32,
    is_dry: bool,
    collected: &mut Collected,
) -> Result<()> {
    let rebuilding = if is_dry { HashMap::new() } else { rebuilding(remote)? };
    let (all, tagged) = (manifests(remote)?, tagged(remote)?);
    let is_younger = |listed: &ObjectListed, age: Duration| {
        listed.modified > now.saturating_sub(i64::try_from(age.as_secs()).unwrap_or(i64::MAX))
    };
    let removals = removals(remote, &all)?;
    let (mut doomed, mut kept) = (HashSet::new(), Vec::new());
    for listed in all.values() {
        let old = listed.len().saturating_sub(keep.last.max(1));
        let mut was_removed = false;
        for (place, manifest) in listed.iter().enumerate().rev() {
            let is_wanted = !was_removed && (place >= old || is_younger(manifest, keep.younger));
            if is_wanted || tagged.contains(&manifest.key) {
                was_removed |= removals.contains(&manifest.key);
                kept.push(manifest.key.as_str());
            } else {
                doomed.insert(manifest.key.clone());
            }
        }
    }
    let (newest, mut marked) = (newest(&all), HashSet::new());
    let mut lists: HashMap<String, BTreeMap<String, ListedCollection>> = HashMap::new();
    read_each(remote, &kept, &mut |key, bytes, manifest| {
        marked.extend(manifest.pieces.iter().map(|piece| piece.name));
        if newest.contains(key) {
            let listed =
                ListedCollection::of(manifest, digest(bytes).unwrap_or_default(), bytes.len() as u64);
            let Described { tenant, name, .. } = &manifest.collection;
            lists.entry(tenant.clone()).or_default().insert(name.clone(), listed);
        }
    })?;
    for (tenant, rebuilding) in rebuilding {
        let made = rebuilding.end(remote, &tenant, lists.remove(&tenant).unwrap_or_default());
        // Nothing but the speed of directories depends on it.
        if let Err(error) = made {
            log::warn!("{}: the list of {tenant} stays as it is: {error}", remote.place());
        }
    }
    let mut candidates = Vec::new();
    let mut generation = generation;
    let directories: Vec<String> =
        (0..=u8::MAX).map(|first| format!("{}{first:02x}", keys::PIECES)).collect();
    for some in directories.chunks(READ_AT_ONCE) {
        for listed in remote.client().list_each(some)?.into_iter().flatten() {
            let Some(name) = keys::parse_piece(&listed.key) else { continue };
            generation = generation.max(name.generation);
            let is_garbage = !marked.contains(&name) && !is_younger(&listed, keep.grace);
            if is_garbage && candidates.len() < CANDIDATES_MAX {
                candidates.push(name);
                collected.bytes_planned += listed.len;
            }
        }
    }
    (collected.snapshots_planned, collected.pieces_planned) = (doomed.len(), candidates.len());
    if is_dry || (doomed.is_empty() && candidates.is_empty()) {
        return Ok(());
    }
    let generation =
        generation.checked_add(1).ok_or_else(|| Error::corrupt("the generation is the largest number"))?;
    let plan = Plan { generation, doomed, candidates };
    let key = keys::garbage(u64::from(generation));
    match remote.client().create(&key, Bytes::from(plan.to_text()))? {
        Put::Created => Ok(()),
        Put::Exists => {
            Err(Error::new(ErrorKind::Busy, format!("{}: another tierfs gc is running", remote.place())))
        }
    }
}

/// Claims a plan, so that no second run sweeps it: that one could remove a piece which a push stores again once the
/// plan is gone. The key of the claim; `None` if the plan was swept meanwhile. A claim that was made before
/// `forgotten`, in seconds since 1970, is that of a run which has died.
fn claimed(remote: &Remote, plan: &ObjectListed, forgotten: i64) -> Result<Option<String>> {
    let (client, claim) = (remote.client(), format!("{}{CLAIM}", plan.key));
    if client.create(&claim, Bytes::new())? == Put::Exists {
        let listed = client.list(keys::GARBAGE.trim_end_matches('/'), None)?;
        let other = listed.iter().find(|listed| listed.key == claim);
        if other.is_some_and(|other| other.modified >= forgotten) {
            let place = remote.place();
            let text = format!(
                "{place}: another tierfs gc is removing objects; if it has died, remove {place}/{claim}"
            );
            return Err(Error::new(ErrorKind::Busy, text));
        }
        client.put(&claim, Bytes::new())?;
    }
    if client.exists(&plan.key)? {
        return Ok(Some(claim));
    }
    client.delete(&[claim])?;
    Ok(None)
}

/// Removes those objects of a plan that nothing needs, and the plan.
fn sweep(remote: &Remote, listed: &ObjectListed, plan: &Plan, collected: &mut Collected) -> Result<()> {
    let (all, tagged) = (manifests(remote)?, tagged(remote)?);
    let newest = newest(&all);
    let (mut doomed, mut kept) = (Vec::new(), Vec::new());
    for manifest in all.values().flatten() {
        let key = manifest.key.as_str();
        if plan.is_doomed(key) && !tagged.contains(key) && !newest.contains(key) {
            doomed.push(key.to_owned());
        } else {
            kept.push(key);
        }
    }
    let marked = marked(remote, &kept)?;
    for keys in doomed.chunks(REMOVED_AT_ONCE) {
        remote.client().delete(keys)?;
        collected.snapshots_removed += keys.len();
    }
    let garbage: Vec<String> =
        plan.candidates().filter(|name| !marked.contains(name)).map(|name| keys::piece(&name)).collect();
    for keys in garbage.chunks(REMOVED_AT_ONCE) {
        remote.client().delete(keys)?;
        collected.pieces_removed += keys.len();
    }
    remote.client().delete(std::slice::from_ref(&listed.key))
}
