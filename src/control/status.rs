//! The control files `status`, `stats.json` and `tiers`: totals of a store, tenant or collection.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use crate::control::context::Context;
use crate::control::counters::{Counters, Operation, Snapshot};
use crate::control::measure::{Tally, tally};
use crate::control::process::Usage;
use crate::control::totals::Totals;
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::{Access, Store, Traffic};
use crate::vfs::Scope;

/// The totals of the store.
pub(super) fn of_mount(context: &Context) -> Result<String> {
    let (mounted, store) = (context.mounted, context.mounted.store());
    let totals = Totals::of(store)?;
    let access = match store.access() {
        Access::Read => "read-only",
        Access::Write => "exclusive",
    };
    Ok(format!(
        "store        {}\nuuid         {}\nmounted at   {}\ntransport    {}\naccess       {access}\nuptime       {} s\n\
         tenants      {}\ncollections  {}\nfiles        {}\npinned bytes {}\nshared bytes {}\ndecoded      {}\n{}\n{}{}{}",
        store.place(),
        store.id(),
        mounted.mountpoint,
        mounted.transport.get().unwrap_or(&""),
        mounted.since.elapsed().as_secs(),
        totals.tenants,
        totals.collections,
        totals.files,
        totals.pinned,
        shared(store, &totals),
        decoded(&mounted.counters),
        store.traffic().map_or_else(String::new, |traffic| shown(&traffic)),
        totals.table(),
        left_out(&totals),
        totals.problems(context)
    ))
}

/// The collections that the table leaves out.
fn left_out(totals: &Totals) -> String {
    match totals.unopened {
        0 => String::new(),
        count => format!("{count} more collections are not open, and not in these numbers\n"),
    }
}

/// The decoded copies of files.
fn decoded(counters: &Counters) -> String {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (bytes, budget) = (count(&counters.decoded_bytes), count(&counters.decoded_budget_bytes));
    let (hits, misses) = (count(&counters.decoded_hits), count(&counters.decoded_misses));
    match budget {
        0 => "off".to_owned(),
        _ => format!("{bytes} of {budget} bytes, {hits} hits, {misses} misses"),
    }
}

/// The traffic with a remote.
fn shown(traffic: &Traffic) -> String {
    let Traffic { cached_bytes, cache_hits, cache_misses, in_flight, in_flight_bytes, .. } = traffic;
    let Traffic { received_bytes, bytes_per_second, requests, retries, hedges, failures, .. } = traffic;
    format!(
        "cached       {cached_bytes} bytes, {cache_hits} hits, {cache_misses} misses\n\
         in flight    {in_flight} requests of {in_flight_bytes} bytes\n\
         received     {received_bytes} bytes, {bytes_per_second} bytes a second\n\
         requests     {requests}, {retries} retries, {hedges} second ones, {failures} failures\n"
    )
}

/// The bytes that shared data files save. Computed only on request, because it looks at every data file.
fn shared(store: &Store, totals: &Totals) -> u64 {
    let paths = totals.shares.iter().filter_map(|share| share.path.split_once('/'));
    paths.map(|(tenant, name)| store.shared_bytes(tenant, name).saved).sum()
}

/// The totals of a tenant.
pub(super) fn of_tenant(context: &Context) -> Result<String> {
    let (tenant, totals) = totals_of_tenant(context)?;
    Ok(format!(
        "tenant       {tenant}\ncollections  {}\nfiles        {}\npinned bytes {}\nshared bytes {}\n\n{}{}{}",
        totals.collections,
        totals.files,
        totals.pinned,
        shared(context.mounted.store(), &totals),
        totals.table(),
        left_out(&totals),
        totals.problems(context)
    ))
}

fn totals_of_tenant<'a>(context: &'a Context) -> Result<(&'a str, Totals)> {
    let Scope::Tenant(tenant) = &context.view.scope else {
        return Err(Error::new(ErrorKind::NotFound, "there is no such control file"));
    };
    let mut totals = Totals::default();
    totals.add_tenant(context.mounted.store(), tenant)?;
    Ok((tenant, totals))
}

/// The totals of a collection.
pub(super) fn of_collection(context: &Context) -> Result<String> {
    let collection = context.collection()?;
    let mut totals = Totals::default();
    totals.add(collection);
    let (path, files, log_bytes) = (collection.path(), totals.files, totals.log_bytes);
    let (table, problems) = (totals.table(), totals.problems(context));
    let (pinned, shared) = (totals.pinned, collection.shared_bytes().saved);
    Ok(format!(
        "collection   {path}\nfiles        {files}\npinned bytes {pinned}\nshared bytes {shared}\nlog bytes    {log_bytes}\n\n{table}{problems}"
    ))
}

/// The totals of the store and the counters of the mount, as JSON.
pub(super) fn stats(context: &Context) -> Result<String> {
    let mounted = context.mounted;
    let totals = Totals::of(mounted.store())?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &mounted.counters;
    let shares: Vec<Value> = totals
        .visible_shares(mounted, context.user)
        .map(|share| {
            let (path, files, problems) = (&share.path, share.files, share.problems);
            json!({ "path": path, "files": files, "problems": problems, "tiers": by_tier(&share.tiers) })
        })
        .collect();
    let mut operations = Map::new();
    let mut times = Map::new();
    for (operation, taken) in counters.operations() {
        let Snapshot { buckets, count, seconds } = taken.snapshot();
        operations.insert(operation.name().to_owned(), count.into());
        if count > 0 {
            // The last bucket has no bound, and its count is that of all.
            let buckets: Vec<_> = buckets.into_iter().filter(|(bound, _)| bound.is_finite()).collect();
            times.insert(operation.name().to_owned(), json!({ "seconds": seconds, "buckets": buckets }));
        }
    }
    let usage = Usage::now();
    let value = json!({
        "store": mounted.store().id().to_string(),
        "transport": mounted.transport.get().unwrap_or(&""),
        "uptime_seconds": mounted.since.elapsed().as_secs(),
        "tenants": totals.tenants,
        "collections": totals.collections,
        "unopened_collections": totals.unopened,
        "files": totals.files,
        "log_bytes": totals.log_bytes,
        "pinned_bytes": totals.pinned,
        "tiers": by_tier(&totals.tiers),
        "shares": shares,
        "operations": operations,
        "operation_times": times,
        "opens": counters.count(&[Operation::Open, Operation::Create]),
        "passthrough_opens": count(&counters.passthrough_opens),
        "decoded_hits": count(&counters.decoded_hits),
        "decoded_misses": count(&counters.decoded_misses),
        "decoded_bytes": count(&counters.decoded_bytes),
        "decoded_budget_bytes": count(&counters.decoded_budget_bytes),
        "reads": counters.count(&[Operation::Read]),
        "read_bytes": count(&counters.read_bytes),
        "written_bytes": count(&counters.written_bytes),
        "errors": count(&counters.errors),
        "corrupt": count(&counters.corrupt),
        "healed": mounted.vfs.engine().healed(),
        "resident_bytes": usage.resident_bytes,
        "cpu_seconds": usage.cpu_seconds,
        "descriptors": usage.descriptors,
        "open_collections": mounted.store().open_collections().len(),
        "problems": totals.visible_problems(context),
        "remote": mounted.store().traffic().map(|traffic| numbers(&traffic)),
    });
    Ok(format!("{value:#}\n"))
}

fn numbers(traffic: &Traffic) -> Value {
    json!({
        "cached_bytes": traffic.cached_bytes,
        "cache_hits": traffic.cache_hits,
        "cache_misses": traffic.cache_misses,
        "in_flight": traffic.in_flight,
        "in_flight_bytes": traffic.in_flight_bytes,
        "received_bytes": traffic.received_bytes,
        "bytes_per_second": traffic.bytes_per_second,
        "requests": traffic.requests,
        "retries": traffic.retries,
        "hedges": traffic.hedges,
        "failures": traffic.failures,
    })
}

fn by_tier(tiers: &BTreeMap<Tier, Tally>) -> Map<String, Value> {
    let row = |(tier, tally): (&Tier, &Tally)| {
        let Tally { blocks, logical, stored } = tally;
        let value = json!({ "blocks": blocks, "logical_bytes": logical, "stored_bytes": stored });
        (tier.name().to_owned(), value)
    };
    tiers.iter().map(row).collect()
}

/// One line per tier: the tensors that have blocks in it, and the blocks and bytes of the whole
/// collection.
pub(super) fn tiers(context: &Context) -> Result<String> {
    let state = context.collection()?.state();
    let mut tensors: BTreeMap<Tier, u64> = BTreeMap::new();
    for node in state.nodes() {
        let Some(file) = node.file().filter(|file| file.tensor.is_some()) else { continue };
        let objects = file.objects.iter().filter_map(|id| state.object(*id));
        let tiers: HashSet<Tier> =
            objects.flat_map(|object| tally([object].into_iter()).into_keys()).collect();
        for tier in tiers {
            *tensors.entry(tier).or_default() += 1;
        }
    }
    let mut text = format!(
        "{:<8}{:>10}{:>12}{:>20}{:>20}\n",
        "tier", "tensors", "blocks", "logical bytes", "stored bytes"
    );
    for (tier, Tally { blocks, logical, stored }) in tally(state.objects()) {
        let tensors = tensors.get(&tier).copied().unwrap_or(0);
        text.push_str(&format!("{:<8}{tensors:>10}{blocks:>12}{logical:>20}{stored:>20}\n", tier.name()));
    }
    Ok(text)
}
