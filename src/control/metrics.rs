//! Counters and totals as Prometheus text (exposition format 0.0.4).

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus::TextEncoder;
use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use crate::control::context::Context;
use crate::control::counters::{Counters, Operation, Times};
use crate::control::measure::Tally;
use crate::control::totals::Totals;
use crate::model::{Error, ErrorKind, Result, Tier};

/// All metrics, grouped by source.
pub(super) fn text(context: &Context) -> Result<String> {
    let mounted = context.mounted;
    let mut families = counted(&mounted.counters);
    let uptime = mounted.since.elapsed().as_secs_f64();
    families.push(gauge("tierfs_uptime_seconds", "seconds since the mount began", uptime));
    let healed = mounted.vfs.engine().healed();
    families.push(counter("tierfs_healed_total", "damaged blocks that were healed", healed));
    families.extend(gauges(&Totals::of(mounted.store())?));
    let text = TextEncoder::new().encode_to_string(&families);
    text.map_err(|error| Error::new(ErrorKind::Unsupported, format!("cannot format metrics: {error}")))
}

fn counted(counters: &Counters) -> Vec<MetricFamily> {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let times = counters.operations().map(|(operation, times)| took(operation, times)).collect();
    vec![
        family(
            "tierfs_operation_seconds",
            "time until a kernel request was answered or handed to a thread of its own",
            MetricType::HISTOGRAM,
            times,
        ),
        counter(
            "tierfs_passthrough_opens_total",
            "opens of files that the kernel reads without the daemon",
            count(&counters.passthrough_opens),
        ),
        counter("tierfs_read_bytes_total", "bytes of answered reads", count(&counters.read_bytes)),
        counter("tierfs_written_bytes_total", "bytes of answered writes", count(&counters.written_bytes)),
        counter(
            "tierfs_errors_total",
            "requests that failed with an error of the store",
            count(&counters.errors),
        ),
        counter("tierfs_corrupt_total", "requests that found corrupt stored bytes", count(&counters.corrupt)),
    ]
}

fn gauges(totals: &Totals) -> Vec<MetricFamily> {
    let of_tiers = |name: &str, help: &str, value: fn(&Tally) -> u64| {
        let metric = |(tier, tally): (&Tier, &Tally)| {
            let mut gauge = Gauge::default();
            gauge.set_value(value(tally) as f64);
            let mut metric = labelled("tier", tier.name());
            metric.set_gauge(gauge);
            metric
        };
        family(name, help, MetricType::GAUGE, totals.tiers.iter().map(metric).collect())
    };
    let links: u64 = totals.chains.iter().sum();
    let mean = if totals.chains.is_empty() { 0.0 } else { links as f64 / totals.chains.len() as f64 };
    let longest = totals.chains.iter().copied().max().unwrap_or(0);
    let mut families = vec![
        gauge("tierfs_tenants", "tenants", totals.tenants as f64),
        gauge("tierfs_collections", "collections that can be opened", totals.collections as f64),
        gauge("tierfs_files", "files", totals.files as f64),
        gauge("tierfs_problems", "problems listed in /.ctl/status", totals.problems.len() as f64),
        gauge("tierfs_chain_links_max", "largest number of deltas on a block", longest as f64),
        gauge("tierfs_chain_links_mean", "mean number of deltas on blocks that have any", mean),
    ];
    if !totals.tiers.is_empty() {
        families.extend([
            of_tiers("tierfs_blocks", "blocks by tier", |tally| tally.blocks),
            of_tiers("tierfs_logical_bytes", "logical bytes by tier", |tally| tally.logical),
            of_tiers("tierfs_stored_bytes", "bytes of payloads and deltas, by tier", |tally| tally.stored),
        ]);
    }
    families
}

fn took(operation: Operation, times: &Times) -> Metric {
    let snapshot = times.snapshot();
    let bucket = |(bound, count): (f64, u64)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(count);
        bucket
    };
    let mut histogram = Histogram::default();
    histogram.set_sample_count(snapshot.count);
    histogram.set_sample_sum(snapshot.seconds);
    // The encoder adds the bucket without a bound, as `+Inf`, which Rust would print as `inf`.
    let bounded = snapshot.buckets.into_iter().filter(|(bound, _)| bound.is_finite());
    histogram.set_bucket(bounded.map(bucket).collect());
    let mut metric = labelled("operation", operation.name());
    metric.set_histogram(histogram);
    metric
}

fn counter(name: &str, help: &str, value: u64) -> MetricFamily {
    let mut counter = Counter::default();
    counter.set_value(value as f64);
    let mut metric = Metric::default();
    metric.set_counter(counter);
    family(name, help, MetricType::COUNTER, vec![metric])
}

fn gauge(name: &str, help: &str, value: f64) -> MetricFamily {
    let mut gauge = Gauge::default();
    gauge.set_value(value);
    let mut metric = Metric::default();
    metric.set_gauge(gauge);
    family(name, help, MetricType::GAUGE, vec![metric])
}

fn labelled(name: &str, value: &str) -> Metric {
    let mut label = LabelPair::default();
    label.set_name(name.to_owned());
    label.set_value(value.to_owned());
    Metric::from_label(vec![label])
}

fn family(name: &str, help: &str, kind: MetricType, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}
