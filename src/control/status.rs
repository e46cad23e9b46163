//! What a store, a tenant and a collection hold, for people and as counters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::files::Context;
use crate::control::measure::{Tally, tally};
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::namespace::Scope;
use crate::store::{Access, Collection, Store};

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
            held.add_tenant(store, &tenant)?;
        }
        Ok(held)
    }

    fn add_tenant(&mut self, store: &Store, tenant: &str) -> Result<()> {
        self.tenants += 1;
        for name in store.collections(tenant)? {
            match store.collection(tenant, &name) {
                Ok(collection) => self.add(&collection),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => self.problems.push(error.to_string()),
            }
        }
        Ok(())
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

/// What the store holds.
pub(super) fn of_mount(context: &Context) -> Result<String> {
    let (mounted, store) = (context.mounted, context.mounted.store());
    let held = Held::of(store)?;
    let access = match store.access() {
        Access::Read => "read-only",
        Access::Write => "exclusive",
    };
    Ok(format!(
        "store        {}\nuuid         {}\nmounted at   {}\naccess       {access}\nuptime       {} s\n\
         tenants      {}\ncollections  {}\nfiles        {}\n\n{}{}",
        store.place(),
        store.id(),
        mounted.mountpoint,
        mounted.since.elapsed().as_secs(),
        held.tenants,
        held.collections,
        held.files,
        held.table(),
        held.problems()
    ))
}

/// What a tenant holds.
pub(super) fn of_tenant(context: &Context) -> Result<String> {
    let (tenant, held) = held_by_tenant(context)?;
    Ok(format!(
        "tenant       {tenant}\ncollections  {}\nfiles        {}\n\n{}{}",
        held.collections,
        held.files,
        held.table(),
        held.problems()
    ))
}

/// What a tenant uses.
pub(super) fn quota_of_tenant(context: &Context) -> Result<String> {
    let (_, held) = held_by_tenant(context)?;
    let (logical, stored) =
        held.tiers.values().fold((0, 0), |sum, tally| (sum.0 + tally.logical, sum.1 + tally.stored));
    Ok(format!("files          {}\nlogical bytes  {logical}\nstored bytes   {stored}\n", held.files))
}

fn held_by_tenant<'a>(context: &'a Context) -> Result<(&'a str, Held)> {
    let Scope::Tenant(tenant) = &context.view.scope else {
        return Err(Error::new(ErrorKind::NotFound, "there is no such control file"));
    };
    let mut held = Held::default();
    held.add_tenant(context.mounted.store(), tenant)?;
    Ok((tenant, held))
}

/// What a collection holds.
pub(super) fn of_collection(context: &Context) -> Result<String> {
    let collection = context.collection()?;
    let mut held = Held::default();
    held.add(collection);
    let (path, files, log_bytes) = (collection.path(), held.files, held.log_bytes);
    let (table, problems) = (held.table(), held.problems());
    Ok(format!("collection   {path}\nfiles        {files}\nlog bytes    {log_bytes}\n\n{table}{problems}"))
}

/// What the store holds and what was done, as JSON.
pub(super) fn stats(context: &Context) -> Result<String> {
    let mounted = context.mounted;
    let held = Held::of(mounted.store())?;
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
        "store": mounted.store().id().to_string(),
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
