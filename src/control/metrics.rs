//! Counters and totals as OpenMetrics text, version 1.0.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::control::context::{Context, Mounted};
use crate::control::counters::{Counters, Snapshot};
use crate::control::measure::Tally;
use crate::control::process::Usage;
use crate::control::totals::{Share, Totals};
use crate::model::{Error, ErrorKind, Result, Tier};
use crate::store::{CollectionTraffic, Limits, Traffic, Use};

/// Collections with series of their own, those with the most bytes. All others together are one more: monitoring stores
/// each series, and a remote decides how many collections it has.
const NAMED_MAX: usize = 100;
/// The label of all other collections. The name of a collection has a slash.
const OTHERS: &str = "others";

/// The media type of the text.
#[cfg(feature = "mount")]
pub(super) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of [`classic`] text.
#[cfg(feature = "mount")]
pub(super) const CLASSIC_MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, for a read of the control file.
pub(super) fn shown(context: &Context) -> Result<String> {
    text(context.mounted, context.user)
}

/// All metrics, those of collections only for collections that the user may see.
pub(super) fn text(mounted: &Mounted, user: u32) -> Result<String> {
    let totals = Totals::of(mounted.store())?;
    let mut families = Families::default();
    families.of_requests(&mounted.counters);
    families.gauge(
        "tierfs_uptime_seconds",
        "seconds since the mount began",
        mounted.since.elapsed().as_secs_f64(),
    );
    let healed = mounted.vfs.engine().healed();
    families.counter("tierfs_healed", "damaged blocks that were healed", healed);
    families.of_store(&totals);
    let shares: Vec<&Share> = totals.visible_shares(mounted, user).collect();
    families.of_collections(&shares);
    families.of_quotas(mounted, user)?;
    if let Some(traffic) = mounted.store().traffic() {
        families.of_remote(&traffic);
        let visible: HashSet<&str> = shares.iter().map(|share| share.path.as_str()).collect();
        families.of_remote_collections(&traffic.collections, |path| {
            mounted.is_run_by(user) || visible.contains(path)
        });
    }
    families.of_jobs(mounted.jobs.states());
    families.of_process(Usage::now());
    let labels = [(Cow::from("store"), Cow::from(mounted.store().place()))];
    let mut registry = Registry::with_labels(labels.into_iter());
    registry.register_collector(Box::new(families));
    let mut out = String::new();
    text::encode(&mut out, &registry)
        .map_err(|error| Error::new(ErrorKind::Unsupported, format!("cannot format metrics: {error}")))?;
    Ok(out)
}

/// OpenMetrics text in the format before it, Prometheus text 0.0.4: there the family of a counter has the
/// name of its samples, and nothing marks the end.
#[cfg(feature = "mount")]
pub(super) fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let of_counter = |line: &str| line.starts_with("# TYPE ") && line.ends_with(" counter");
        let describes = line.starts_with("# HELP ") && lines.peek().is_some_and(|next| of_counter(next));
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some(mark), Some(keyword), Some(name), Some(rest)) if describes || of_counter(line) => {
                out.push_str(&format!("{mark} {keyword} {name}_total {rest}\n"));
            }
            (Some("#"), Some("EOF"), ..) => {}
            _ => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
    out
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Counter(u64),
    /// A counter of parts.
    Total(f64),
    Gauge(f64),
    Seconds(Snapshot),
}

/// Samples of one name.
#[derive(Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, Value)>,
}

#[derive(Debug, Default)]
struct Families(Vec<Family>);

impl Families {
    /// Adds a family, unless it has no samples.
    fn add(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: MetricType,
        samples: Vec<(Labels, Value)>,
    ) {
        if !samples.is_empty() {
            self.0.push(Family { name, help, kind, samples });
        }
    }

    /// `name` is without the suffix `_total`, which the samples have.
    fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.add(name, help, MetricType::Counter, vec![(Labels::new(), Value::Counter(value))]);
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.add(name, help, MetricType::Gauge, vec![(Labels::new(), Value::Gauge(value))]);
    }

    fn of_requests(&mut self, counters: &Counters) {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let times = counters.operations().map(|(operation, times)| {
            (vec![("operation", operation.name().to_owned())], Value::Seconds(times.snapshot()))
        });
        self.add(
            "tierfs_operation_seconds",
            "time until a kernel request was answered or handed to a thread of its own",
            MetricType::Histogram,
            times.collect(),
        );
        self.counter(
            "tierfs_passthrough_opens",
            "opens of files that the kernel reads where they are stored, without the daemon",
            count(&counters.passthrough_opens),
        );
        self.counter(
            "tierfs_decoded_hits",
            "opens of files that the kernel reads from a decoded copy",
            count(&counters.decoded_hits),
        );
        self.counter(
            "tierfs_decoded_misses",
            "opens of files that could have a decoded copy and had none",
            count(&counters.decoded_misses),
        );
        self.gauge(
            "tierfs_decoded_bytes",
            "memory that decoded copies take",
            count(&counters.decoded_bytes) as f64,
        );
        self.gauge(
            "tierfs_decoded_budget_bytes",
            "the most memory that decoded copies may take",
            count(&counters.decoded_budget_bytes) as f64,
        );
        self.counter("tierfs_read_bytes", "bytes of answered reads", count(&counters.read_bytes));
        self.counter("tierfs_written_bytes", "bytes of answered writes", count(&counters.written_bytes));
        self.counter(
            "tierfs_errors",
            "requests that failed with an error of the store",
            count(&counters.errors),
        );
        self.counter("tierfs_corrupt", "requests that found corrupt stored bytes", count(&counters.corrupt));
    }

    fn of_store(&mut self, totals: &Totals) {
        let links: u64 = totals.chains.iter().sum();
        let mean = if totals.chains.is_empty() { 0.0 } else { links as f64 / totals.chains.len() as f64 };
        let longest = totals.chains.iter().copied().max().unwrap_or(0);
        self.gauge("tierfs_tenants", "tenants", totals.tenants as f64);
        self.gauge("tierfs_collections", "collections that can be opened", totals.collections as f64);
        self.gauge(
            "tierfs_unopened_collections",
            "collections of a remote that are not open, and that other totals leave out",
            totals.unopened as f64,
        );
        self.gauge("tierfs_files", "files", totals.files as f64);
        self.gauge("tierfs_problems", "problems listed in /.ctl/status", totals.problems.len() as f64);
        self.gauge(
            "tierfs_log_bytes",
            "bytes of the logs when the collections were opened",
            totals.log_bytes as f64,
        );
        self.gauge("tierfs_pinned_bytes", "bytes of the copies of pinned files", totals.pinned as f64);
        self.gauge("tierfs_chain_links_max", "largest number of deltas on a block", longest as f64);
        self.gauge("tierfs_chain_links_mean", "mean number of deltas on blocks that have any", mean);
        let of_tiers = |value: fn(&Tally) -> u64| tier_samples(&Labels::new(), &totals.tiers, value);
        self.add("tierfs_blocks", "blocks by tier", MetricType::Gauge, of_tiers(|tally| tally.blocks));
        self.add(
            "tierfs_logical_bytes",
            "logical bytes by tier",
            MetricType::Gauge,
            of_tiers(|tally| tally.logical),
        );
        self.add(
            "tierfs_stored_bytes",
            "bytes of payloads and deltas, by tier",
            MetricType::Gauge,
            of_tiers(|tally| tally.stored),
        );
    }

    fn of_collections(&mut self, shares: &[&Share]) {
        let mut by_bytes = shares.to_vec();
        by_bytes.sort_by(|one, other| (other.logical(), &one.path).cmp(&(one.logical(), &other.path)));
        let (named, others) = by_bytes.split_at(by_bytes.len().min(NAMED_MAX));
        let labels = |name: &str| vec![("collection", name.to_owned())];
        let counts = |value: fn(&Share) -> u64| {
            let sample = |name: &str, count: u64| (labels(name), Value::Gauge(count as f64));
            let sum = || sample(OTHERS, others.iter().map(|share| value(share)).sum());
            let each = named.iter().map(|share| sample(&share.path, value(share)));
            each.chain((!others.is_empty()).then(sum)).collect()
        };
        let mut tiers_of_others: BTreeMap<Tier, Tally> = BTreeMap::new();
        for (tier, tally) in others.iter().flat_map(|share| &share.tiers) {
            tiers_of_others.entry(*tier).or_default().add(*tally);
        }
        let of_tiers = |value: fn(&Tally) -> u64| {
            let each = named.iter().flat_map(|share| tier_samples(&labels(&share.path), &share.tiers, value));
            each.chain(tier_samples(&labels(OTHERS), &tiers_of_others, value)).collect()
        };
        self.add(
            "tierfs_collection_files",
            "files of a collection",
            MetricType::Gauge,
            counts(|share| share.files),
        );
        self.add(
            "tierfs_collection_problems",
            "problems of a collection, listed in its status",
            MetricType::Gauge,
            counts(|share| share.problems),
        );
        self.add(
            "tierfs_collection_logical_bytes",
            "logical bytes of a collection, by tier",
            MetricType::Gauge,
            of_tiers(|tally| tally.logical),
        );
        self.add(
            "tierfs_collection_stored_bytes",
            "bytes of payloads and deltas of a collection, by tier",
            MetricType::Gauge,
            of_tiers(|tally| tally.stored),
        );
    }

    /// Quotas of tenants and of open collections, for their owner and that of the mount.
    fn of_quotas(&mut self, mounted: &Mounted, user: u32) -> Result<()> {
        let store = mounted.store();
        let is_shown = |tenant: &str| mounted.is_run_by(user) || mounted.vfs.tenant_owner(tenant).uid == user;
        let mut samples = Vec::new();
        let mut add = |of: &str, used: Use, limits: Limits| {
            let numbers = [
                ("bytes", used.logical, limits.bytes),
                ("stored", used.stored, limits.stored),
                ("files", used.files, limits.files),
            ];
            for (limit, used, most) in numbers {
                if let Some(most) = most {
                    let labels = vec![("of", of.to_owned()), ("limit", limit.to_owned())];
                    samples.push((labels, Value::Gauge(used as f64 / most.max(1) as f64)));
                }
            }
        };
        for tenant in store.tenants()?.into_iter().filter(|tenant| is_shown(tenant)) {
            add(&tenant, store.tenant_use(&tenant)?, store.tenant(&tenant).entry().limits);
        }
        let open = store.open_collections().into_iter();
        for collection in open.filter(|collection| is_shown(collection.tenant())) {
            let meter = collection.meter();
            add(&collection.path().to_string(), meter.used(), meter.limits());
        }
        self.add(
            "tierfs_quota_used_ratio",
            "used part of a limit of a tenant or an open collection",
            MetricType::Gauge,
            samples,
        );
        Ok(())
    }

    fn of_remote(&mut self, traffic: &Traffic) {
        let mut gauge = |name, help, value: u64| self.gauge(name, help, value as f64);
        gauge("tierfs_remote_cached_bytes", "bytes in the cache of a remote", traffic.cached_bytes);
        gauge("tierfs_remote_in_flight", "requests to a remote that are not answered yet", traffic.in_flight);
        gauge("tierfs_remote_in_flight_bytes", "bytes that these asked for", traffic.in_flight_bytes);
        gauge(
            "tierfs_remote_bytes_per_second",
            "bytes received from a remote a second, in the last seconds",
            traffic.bytes_per_second,
        );
        let mut counter = |name, help, value| self.counter(name, help, value);
        counter(
            "tierfs_remote_cache_hits",
            "reads that found their bytes in the cache of a remote",
            traffic.cache_hits,
        );
        counter("tierfs_remote_cache_misses", "reads that waited for a remote", traffic.cache_misses);
        counter("tierfs_remote_received_bytes", "bytes received from a remote", traffic.received_bytes);
        counter("tierfs_remote_requests", "requests to a remote", traffic.requests);
        counter("tierfs_remote_retries", "repetitions of failed requests", traffic.retries);
        counter("tierfs_remote_hedges", "second requests beside slow ones", traffic.hedges);
        counter("tierfs_remote_failures", "requests that were given up", traffic.failures);
    }

    /// The traffic of the collections that `is_shown` names, and of all that have no counts of their own.
    fn of_remote_collections(&mut self, traffic: &[CollectionTraffic], is_shown: impl Fn(&str) -> bool) {
        let mut rows = Vec::new();
        for row in traffic {
            match &row.collection {
                None => rows.push((OTHERS.to_owned(), row)),
                Some(collection) => {
                    let path = collection.to_string();
                    if is_shown(&path) {
                        rows.push((path, row));
                    }
                }
            }
        }
        let label = |path: &String| vec![("collection", path.clone())];
        let mut counter = |name, help, value: fn(&CollectionTraffic) -> u64| {
            let samples = rows.iter().map(|(path, row)| (label(path), Value::Counter(value(row))));
            self.add(name, help, MetricType::Counter, samples.collect());
        };
        counter(
            "tierfs_collection_remote_cache_hits",
            "reads of a collection that found their bytes in the cache of a remote",
            |row| row.cache_hits,
        );
        counter(
            "tierfs_collection_remote_cache_misses",
            "reads of a collection that waited for a remote",
            |row| row.cache_misses,
        );
        counter(
            "tierfs_collection_remote_received_bytes",
            "bytes of a collection's pieces received from a remote",
            |row| row.received_bytes,
        );
        counter(
            "tierfs_collection_remote_requests",
            "requests for a collection's pieces and parts of them, without repetitions",
            |row| row.requests,
        );
        counter("tierfs_collection_remote_failures", "such requests that were given up", |row| row.failures);
        let shown = rows.iter().filter(|(_, row)| row.snapshot > 0);
        let (numbers, times) = shown
            .map(|(path, row)| {
                let number = (label(path), Value::Gauge(row.snapshot as f64));
                (number, (label(path), Value::Gauge(row.created_at as f64 / 1e9)))
            })
            .unzip();
        let mut gauge = |name, help, samples| self.add(name, help, MetricType::Gauge, samples);
        gauge("tierfs_collection_snapshot", "number of the snapshot that is shown of a collection", numbers);
        gauge(
            "tierfs_collection_snapshot_created_seconds",
            "time at which that snapshot was pushed, in seconds since 1970",
            times,
        );
    }

    fn of_jobs(&mut self, [waiting, running]: [u64; 2]) {
        let sample =
            |state: &str, count: u64| (vec![("state", state.to_owned())], Value::Gauge(count as f64));
        let samples = vec![sample("waiting", waiting), sample("running", running)];
        self.add("tierfs_jobs", "jobs that have not ended", MetricType::Gauge, samples);
    }

    fn of_process(&mut self, usage: Usage) {
        self.gauge(
            "process_resident_memory_bytes",
            "memory of the daemon that is present",
            usage.resident_bytes as f64,
        );
        self.gauge("process_open_fds", "open descriptors of the daemon", usage.descriptors as f64);
        self.add(
            "process_cpu_seconds",
            "processor time of the daemon",
            MetricType::Counter,
            vec![(Labels::new(), Value::Total(usage.cpu_seconds))],
        );
    }
}

fn tier_samples(
    labels: &Labels,
    tiers: &BTreeMap<Tier, Tally>,
    value: fn(&Tally) -> u64,
) -> Vec<(Labels, Value)> {
    let sample = |(tier, tally): (&Tier, &Tally)| {
        let mut labels = labels.clone();
        labels.push(("tier", tier.name().to_owned()));
        (labels, Value::Gauge(value(tally) as f64))
    };
    tiers.iter().map(sample).collect()
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::result::Result<(), fmt::Error> {
        for Family { name, help, kind, samples } in &self.0 {
            let mut encoder = encoder.encode_descriptor(name, help, None, *kind)?;
            for (labels, value) in samples {
                if labels.is_empty() {
                    encode(&mut encoder, value)?;
                } else {
                    encode(&mut encoder.encode_family(labels)?, value)?;
                }
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder, value: &Value) -> std::result::Result<(), fmt::Error> {
    match value {
        Value::Counter(count) => encoder.encode_counter::<NoLabelSet, u64, u64>(count, None),
        Value::Total(value) => encoder.encode_counter::<NoLabelSet, f64, u64>(value, None),
        Value::Gauge(value) => encoder.encode_gauge(value),
        Value::Seconds(snapshot) => {
            // The encoder adds the counts up.
            let mut before = 0;
            let single = |(bound, count): &(f64, u64)| {
                let own = count - before;
                before = *count;
                (*bound, own)
            };
            let buckets: Vec<(f64, u64)> = snapshot.buckets.iter().map(single).collect();
            encoder.encode_histogram::<NoLabelSet>(snapshot.seconds, snapshot.count, &buckets, None)
        }
    }
}

#[cfg(all(test, feature = "mount"))]
mod tests {
    use super::classic;

    #[test]
    fn classic_text_names_counters_as_their_samples() {
        let text = "# HELP a some help\n# TYPE a counter\na_total 1\n# HELP b counter\n# TYPE b gauge\n\
                    b{x=\"# TYPE y counter\"} 2.0\n# EOF\n";
        let wanted = "# HELP a_total some help\n# TYPE a_total counter\na_total 1\n# HELP b counter\n\
                      # TYPE b gauge\nb{x=\"# TYPE y counter\"} 2.0\n";
        assert_eq!(classic(text), wanted);
    }
}
