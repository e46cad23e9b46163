//! The files in `.ctl` directories.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::control::measure::{Tally, tally};
use crate::model::{ErrorKind, Result, Tier};
use crate::store::{Access, Collection, Store};

/// A control file.
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// What reading it shows.
    pub help: &'static str,
    render: fn(&Mounted, Option<&Arc<Collection>>) -> Result<String>,
}

/// The files of the mount's `.ctl`.
pub const MOUNT_FILES: &[File] = &[
    File { name: "status", help: "what the store holds, for people", render: mount_status },
    File { name: "stats.json", help: "counters, as JSON", render: stats },
];

/// The files of a collection's `.ctl`.
pub const COLLECTION_FILES: &[File] =
    &[File { name: "status", help: "what the collection holds, for people", render: collection_status }];

/// Operations since the mount began.
#[derive(Default)]
pub struct Counters {
    /// Files opened.
    pub opens: AtomicU64,
    /// Files opened whose reads the kernel answers itself.
    pub passthrough_opens: AtomicU64,
    /// Reads answered.
    pub reads: AtomicU64,
    /// Bytes of these reads.
    pub read_bytes: AtomicU64,
    /// Requests that ended with an error of the store.
    pub errors: AtomicU64,
    /// Reads of blocks whose stored bytes were wrong.
    pub corrupt: AtomicU64,
}

/// What is mounted, for those who show it.
pub struct Mounted {
    /// The store.
    pub store: Arc<Store>,
    /// Where.
    pub mountpoint: String,
    /// Since when.
    pub since: Instant,
    /// What was done.
    pub counters: Counters,
}

/// The text of a control file; `place` counts from 1. `NotFound` where there is none.
pub fn render(mounted: &Mounted, collection: Option<&Arc<Collection>>, place: u32) -> Result<String> {
    let files = if collection.is_some() { COLLECTION_FILES } else { MOUNT_FILES };
    let file = (place as usize).checked_sub(1).and_then(|place| files.get(place));
    let file =
        file.ok_or_else(|| crate::model::Error::new(ErrorKind::NotFound, "there is no such control file"))?;
    (file.render)(mounted, collection)
}

/// What a store holds.
#[derive(Default)]
struct Held {
    tenants: u64,
    collections: u64,
    files: u64,
    log_bytes: u64,
    tiers: BTreeMap<Tier, Tally>,
    problems: Vec<String>,
}

impl Held {
    fn of(store: &Store) -> Result<Held> {
        let mut held = Held::default();
        for tenant in store.tenants()? {
            held.tenants += 1;
            for name in store.collections(&tenant)? {
                match store.collection(&tenant, &name) {
                    Ok(collection) => held.add(&collection),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => held.problems.push(error.to_string()),
                }
            }
        }
        Ok(held)
    }

    fn add(&mut self, collection: &Collection) {
        let state = collection.state();
        self.collections += 1;
        self.files += state.nodes().filter(|node| node.file().is_some()).count() as u64;
        self.log_bytes += collection.log_bytes();
        for (tier, found) in tally(state.objects()) {
            self.tiers.entry(tier).or_default().add(found);
        }
        if let Some(damage) = collection.damage() {
            self.problems.push(format!("{} is damaged and read-only: {}", collection.path(), damage.reason));
        }
        self.problems
            .extend(collection.events().iter().map(|event| format!("{}: {event}", collection.path())));
    }

    fn table(&self) -> String {
        let mut text =
            format!("{:<8}{:>12}{:>20}{:>20}\n", "tier", "blocks", "logical bytes", "stored bytes");
        for (tier, tally) in &self.tiers {
            let Tally { blocks, logical, stored } = tally;
            text.push_str(&format!("{:<8}{blocks:>12}{logical:>20}{stored:>20}\n", tier.name()));
        }
        text
    }

    fn problems(&self) -> String {
        self.problems.iter().map(|problem| format!("! {problem}\n")).collect()
    }
}

fn mount_status(mounted: &Mounted, _: Option<&Arc<Collection>>) -> Result<String> {
    let held = Held::of(&mounted.store)?;
    let access = match mounted.store.access() {
        Access::Read => "read-only",
        Access::Write => "exclusive",
    };
    Ok(format!(
        "store        {}\nuuid         {}\nmounted at   {}\naccess       {access}\nuptime       {} s\n\
         tenants      {}\ncollections  {}\nfiles        {}\n\n{}{}",
        mounted.store.place(),
        mounted.store.id(),
        mounted.mountpoint,
        mounted.since.elapsed().as_secs(),
        held.tenants,
        held.collections,
        held.files,
        held.table(),
        held.problems()
    ))
}

fn collection_status(_: &Mounted, collection: Option<&Arc<Collection>>) -> Result<String> {
    let mut held = Held::default();
    let mut path = String::new();
    if let Some(collection) = collection {
        held.add(collection);
        path = collection.path();
    }
    let (files, log_bytes) = (held.files, held.log_bytes);
    let (table, problems) = (held.table(), held.problems());
    Ok(format!("collection   {path}\nfiles        {files}\nlog bytes    {log_bytes}\n\n{table}{problems}"))
}

fn stats(mounted: &Mounted, _: Option<&Arc<Collection>>) -> Result<String> {
    let held = Held::of(&mounted.store)?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &mounted.counters;
    let tiers: serde_json::Map<String, serde_json::Value> = held
        .tiers
        .iter()
        .map(|(tier, tally)| {
            let Tally { blocks, logical, stored } = tally;
            let value =
                serde_json::json!({ "blocks": blocks, "logical_bytes": logical, "stored_bytes": stored });
            (tier.name().to_owned(), value)
        })
        .collect();
    let value = serde_json::json!({
        "store": mounted.store.id().to_string(),
        "uptime_seconds": mounted.since.elapsed().as_secs(),
        "tenants": held.tenants,
        "collections": held.collections,
        "files": held.files,
        "log_bytes": held.log_bytes,
        "tiers": tiers,
        "opens": count(&counters.opens),
        "passthrough_opens": count(&counters.passthrough_opens),
        "reads": count(&counters.reads),
        "read_bytes": count(&counters.read_bytes),
        "errors": count(&counters.errors),
        "corrupt": count(&counters.corrupt),
        "problems": held.problems,
    });
    Ok(format!("{value:#}\n"))
}
