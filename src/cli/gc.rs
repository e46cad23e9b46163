//! `tierfs gc`.

use std::time::Duration;

use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::output::{human, print, print_json};
use crate::model::{Error, Result};
use crate::remote::client::Client;
use crate::remote::place::garbage::{Collected, Keep, collect};
use crate::remote::place::remote::Remote;

const DAY: u64 = 24 * 3600;

/// Remove old snapshots of a remote, and pieces that no snapshot needs.
///
/// Takes two runs: the first plans the removal; a second, at least the grace later, removes what no snapshot
/// needs by then. Run it once a day, with keys that may delete objects.
///
/// Example: tierfs gc s3://models/prefix --keep-last 3 --keep-days 7
#[derive(clap::Args)]
pub(super) struct Args {
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    remote: String,
    /// Keep this many of the newest snapshots of each collection; those with a tag stay too
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    keep_last: u32,
    /// Keep snapshots that are younger than this many days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    keep_days: u32,
    /// Keep pieces that are younger than this, and plans too, for example 24h or 3d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = parse_grace)]
    grace: Duration,
    /// Collect without conditional PUT, where the object storage lacks it. No other run may be there meanwhile
    #[arg(long)]
    single_writer: bool,
    /// Print what the first run would plan, and change nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_grace(text: &str) -> Result<Duration> {
    let wrong =
        || Error::invalid(format!("invalid value {text:?}; expected hours or days, such as 24h or 3d"));
    let (number, unit) = match (text.strip_suffix('h'), text.strip_suffix('d')) {
        (Some(number), _) => (number, 3600),
        (_, Some(number)) => (number, DAY),
        _ => return Err(wrong()),
    };
    let seconds = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs).ok_or_else(wrong)
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let client = Client::open(&self.remote)?;
        let remote = Remote::open(if self.single_writer { client.for_single_writer() } else { client })?;
        let keep = Keep {
            last: self.keep_last as usize,
            younger: Duration::from_secs(u64::from(self.keep_days) * DAY),
            grace: self.grace,
        };
        let collected = collect(&remote, &keep, self.dry_run)?;
        if self.json {
            print_json(&json!({
                "snapshots_removed": collected.snapshots_removed,
                "pieces_removed": collected.pieces_removed,
                "snapshots_planned": collected.snapshots_planned,
                "pieces_planned": collected.pieces_planned,
                "bytes_planned": collected.bytes_planned,
                "waits_seconds": collected.waits,
            }))?;
        } else {
            print(&text(&collected))?;
        }
        Ok(Outcome::Succeeded)
    }
}

fn text(collected: &Collected) -> String {
    let Collected { snapshots_removed, pieces_removed, snapshots_planned, pieces_planned, .. } = collected;
    let mut lines = Vec::new();
    if snapshots_removed + pieces_removed > 0 {
        lines.push(format!("removed {snapshots_removed} snapshots and {pieces_removed} pieces"));
    }
    if snapshots_planned + pieces_planned > 0 {
        let bytes = human(collected.bytes_planned);
        lines.push(format!(
            "planned {snapshots_planned} snapshots and {pieces_planned} pieces ({bytes}); a later run removes them"
        ));
    }
    if let Some(seconds) = collected.waits {
        lines.push(format!("a plan waits for {:.1} more hours", seconds as f64 / 3600.0));
    }
    if lines.is_empty() {
        lines.push("nothing to collect".to_owned());
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::parse_grace;

    #[test]
    fn a_grace_is_a_number_of_hours_or_days() {
        assert_eq!(parse_grace("24h").unwrap(), Duration::from_secs(86_400));
        assert_eq!(parse_grace("3d").unwrap(), Duration::from_secs(259_200));
        for text in ["", "24", "h", "-1h", "0d", "1w", "99999999999999999999h"] {
            assert!(parse_grace(text).is_err(), "{text}");
        }
    }
}
