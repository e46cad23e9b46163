//! A sample of a mount, from its control files `stats.json`, `jobs.json` and `hottest.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::cli::common::jobs::{Job, jobs_of};
use crate::model::{Error, Result};

/// The state of a mount at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Seconds by the clock of the viewer, which begins at any moment.
    pub at: f64,
    /// Seconds since the mount began.
    pub uptime: f64,
    pub operations: BTreeMap<String, Times>,
    /// Bytes by tier, most precise first.
    pub tiers: Vec<(String, Bytes)>,
    /// Tensors with accesses, the highest score first.
    pub hottest: Vec<Tensor>,
    /// Jobs in the order in which they were queued.
    pub jobs: Vec<Job>,
    /// The numbers of `stats.json` by name.
    numbers: BTreeMap<String, f64>,
    pub problems: usize,
}

/// Requests of one kind since the mount began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Times {
    pub count: u64,
    /// The sum of their durations.
    pub seconds: f64,
    /// Upper bounds in seconds with cumulative counts.
    pub buckets: Vec<(f64, u64)>,
}

/// The bytes of a tier.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bytes {
    /// Bytes that programs see.
    pub logical: u64,
    /// Bytes that the store takes.
    pub stored: u64,
}

/// A tensor that is used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tensor {
    /// Its path in the mount.
    pub path: String,
    pub tier: String,
    /// Shares of the tiers of a mixed one, or empty.
    pub shares: String,
    /// Accesses of its hottest block.
    pub accesses: u64,
    /// Its score, 0 to 1000.
    pub score: f64,
    pub stored: u64,
}

/// A move that the policy would make if nothing were used.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct NextMove {
    pub path: String,
    /// Seconds from now.
    pub after: u64,
    pub from: String,
    pub to: String,
    /// Bytes that it frees.
    pub freed: u64,
}

impl NextMove {
    /// Reads `coldest.json` of a mount.
    pub fn read(mountpoint: &Path) -> Result<Vec<NextMove>> {
        Ok(NextMove::of(&json_of(mountpoint, "coldest.json")?))
    }

    /// Parses the text. Missing values are 0 or empty.
    pub fn of(moves: &Value) -> Vec<NextMove> {
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_default();
        let row = |row: &Value| NextMove {
            path: text(row, "path"),
            after: number(row, "after_seconds"),
            from: text(row, "from"),
            to: text(row, "to"),
            freed: number(row, "bytes").saturating_sub(number(row, "bytes_after")),
        };
        moves.as_array().map_or(Vec::new(), |rows| rows.iter().map(row).collect())
    }
}

/// A control file of a mount.
fn json_of(mountpoint: &Path, name: &str) -> Result<Value> {
    let path = mountpoint.join(".ctl").join(name);
    fs::read(&path).map_err(|error| Error::io(path.display(), error)).and_then(|text| {
        serde_json::from_slice(&text).map_err(|error| Error::invalid(format!("{}: {error}", path.display())))
    })
}

/// Names of tiers in the order in which they are shown.
const TIERS: [&str; 8] = ["exact", "packed", "q8", "q7", "q5", "q3", "q3x", "absent"];

impl Sample {
    /// Reads the control files of a mount.
    pub fn read(mountpoint: &Path, at: f64) -> Result<Sample> {
        let read = |name: &str| json_of(mountpoint, name);
        Ok(Sample::of(&read("stats.json")?, &read("jobs.json")?, &read("hottest.json")?, at))
    }

    /// Parses the texts of the control files. Missing values are 0 or empty.
    pub fn of(stats: &Value, jobs: &Value, hottest: &Value, at: f64) -> Sample {
        let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
        let unsigned = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64).unwrap_or(0);
        let text =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let top = object(stats);
        let part = |key: &str| top.get(key).map(object).unwrap_or_default();
        let mut operations: BTreeMap<String, Times> = BTreeMap::new();
        for (name, count) in part("operations") {
            operations.entry(name).or_default().count = count.as_u64().unwrap_or(0);
        }
        for (name, times) in part("operation_times") {
            let entry = operations.entry(name).or_default();
            entry.seconds = times.get("seconds").and_then(Value::as_f64).unwrap_or(0.0);
            let buckets = times.get("buckets").and_then(Value::as_array).map_or(&[][..], |rows| rows);
            let bucket = |row: &Value| Some((row.get(0)?.as_f64()?, row.get(1)?.as_u64()?));
            entry.buckets = buckets.iter().filter_map(bucket).collect();
        }
        let mut tiers: Vec<(String, Bytes)> = part("tiers")
            .iter()
            .map(|(name, tally)| {
                let (logical, stored) = (unsigned(tally, "logical_bytes"), unsigned(tally, "stored_bytes"));
                (name.clone(), Bytes { logical, stored })
            })
            .collect();
        tiers.sort_by_key(|(name, _)| TIERS.iter().position(|known| known == name).unwrap_or(TIERS.len()));
        let tensor = |row: &Value| Tensor {
            path: text(row, "path"),
            tier: text(row, "tier"),
            shares: text(row, "tiers"),
            accesses: unsigned(row, "accesses"),
            score: row.get("score").and_then(Value::as_f64).unwrap_or(0.0),
            stored: unsigned(row, "bytes_stored"),
        };
        let numbers = top.iter().filter_map(|(key, value)| Some((key.clone(), value.as_f64()?)));
        Sample {
            at,
            uptime: stats.get("uptime_seconds").and_then(Value::as_f64).unwrap_or(0.0),
            operations,
            tiers,
            hottest: hottest.as_array().map_or(Vec::new(), |rows| rows.iter().map(tensor).collect()),
            jobs: jobs_of(jobs),
            numbers: numbers.collect(),
            problems: stats.get("problems").and_then(Value::as_array).map_or(0, Vec::len),
        }
    }

    /// A number of `stats.json`; 0 if the file lacks it.
    pub fn number(&self, name: &str) -> f64 {
        self.numbers.get(name).copied().unwrap_or(0.0)
    }

    /// Like `number`, for bytes and counts.
    pub fn count(&self, name: &str) -> u64 {
        self.number(name).max(0.0) as u64
    }

    /// Requests of all kinds.
    pub fn requests(&self) -> u64 {
        self.operations.values().map(|times| times.count).sum()
    }
}

impl Times {
    /// The requests since an earlier sample.
    pub fn since(&self, before: &Times) -> Times {
        let count_before = |bound: f64| {
            before.buckets.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count)
        };
        Times {
            count: self.count.saturating_sub(before.count),
            seconds: (self.seconds - before.seconds).max(0.0),
            buckets: self
                .buckets
                .iter()
                .map(|(bound, count)| (*bound, count.saturating_sub(count_before(*bound))))
                .collect(),
        }
    }

    /// The duration that a share of the requests did not exceed, interpolated in its bucket; `None` without
    /// requests. Beyond the last bound it is that bound.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let wanted = share * self.count as f64;
        let (mut low, mut below) = (0.0, 0_u64);
        for (bound, count) in &self.buckets {
            if *count as f64 >= wanted && *count > below {
                return Some(low + (bound - low) * (wanted - below as f64) / (count - below) as f64);
            }
            (low, below) = (*bound, *count);
        }
        self.buckets.last().map(|(bound, _)| *bound)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Sample, Times};

    #[test]
    fn percentiles_are_interpolated_within_a_bucket() {
        let times = Times { count: 10, seconds: 1.0, buckets: vec![(1.0, 0), (4.0, 6), (16.0, 8)] };
        assert_eq!(times.percentile(0.3), Some(2.5));
        assert_eq!(times.percentile(0.7), Some(10.0));
        assert_eq!(times.percentile(0.99), Some(16.0));
        assert_eq!(Times::default().percentile(0.5), None);
        let before = Times { count: 6, seconds: 0.5, buckets: vec![(1.0, 0), (4.0, 6), (16.0, 6)] };
        let since = times.since(&before);
        assert_eq!((since.count, since.seconds), (4, 0.5));
        assert_eq!(since.buckets, [(1.0, 0), (4.0, 0), (16.0, 2)]);
    }

    #[test]
    fn texts_of_another_form_make_an_empty_sample() {
        for text in [Value::Null, json!([]), json!({"operations": 3, "tiers": {"q8": []}}), json!("x")] {
            let sample = Sample::of(&text, &text, &text, 0.0);
            assert_eq!((sample.requests(), sample.jobs.len(), sample.hottest.len()), (0, 0, 0), "{text}");
        }
    }
}
