//! `tierfs events`.

use std::path::PathBuf;

use serde_json::Value;

use crate::cli::Outcome;
use crate::cli::common::output::print;
use crate::cli::common::remote;
use crate::model::{Error, ErrorKind, HOLD, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Store, TrailCheck, now_seconds, read_trail};

/// Print the trail of a store: imports, moves, evictions, repairs, damage, changes of settings and removals.
///
/// Each line is a JSON object with time (seconds since 1970), kind, path, cause and text, where a user asked the user, of
/// the policy's moves from, to and bytes, and the BLAKE3 of the line before it. Without --verify the lines are printed as
/// they are. The store may be mounted.
///
/// Example: tierfs events /srv/tensors acme/llama --since 7d
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or its mount point; a path in a mount names both
    store: PathBuf,
    /// Only events of this path and of those below it: TENANT/COLLECTION/PATH [default: all]
    #[arg(value_name = "NAME")]
    below: Option<String>,
    /// Only events from this time on: seconds since 1970, or a time before now such as 90s, 30m, 12h or 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    since: Option<u64>,
    /// Check that each line follows the one before it, and print the number of lines; exit with 3 if one does not
    #[arg(long, conflicts_with_all = ["since", "below"])]
    verify: bool,
}

/// Seconds since 1970.
fn since(text: &str) -> Result<u64> {
    let seconds = HOLD.parse(text).map_err(|_| {
        Error::invalid(format!(
            "{text:?} is neither seconds since 1970 nor a time such as 90s, 30m, 12h or 7d"
        ))
    })? as u64;
    let is_age = text.ends_with(|last: char| last.is_ascii_alphabetic());
    Ok(if is_age { now_seconds().saturating_sub(seconds) } else { seconds })
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        if remote::url(&self.store).is_some() {
            let text = format!(
                "{} is a remote, which has no trail; .ctl/events of a mount has the events of that mount",
                self.store.display()
            );
            return Err(Error::unsupported(text));
        }
        let disk = FileDisk::new(&self.store);
        if !Store::is_there(&disk)? {
            let text = format!("{} is not a tierfs store; tierfs init makes one", self.store.display());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        if !self.verify {
            let print_line = &mut |line: &str| {
                if self.is_wanted(line) { print(&format!("{line}\n")) } else { Ok(()) }
            };
            return read_trail(&disk, print_line).map(|()| Outcome::Succeeded);
        }
        let mut check = TrailCheck::default();
        read_trail(&disk, &mut |line| {
            check.add(line);
            Ok(())
        })?;
        let TrailCheck { lines, broken, begins_later, .. } = check;
        let Some((line, why)) = broken else {
            let older = if begins_later { "; older ones were dropped" } else { "" };
            print(&format!("ok: each of {lines} lines follows the one before it{older}\n"))?;
            return Ok(Outcome::Succeeded);
        };
        print(&format!("line {line} of {lines}: {why}\n"))?;
        Ok(Outcome::Corrupt)
    }

    fn is_wanted(&self, line: &str) -> bool {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let time = event.get("time").and_then(Value::as_f64);
        let own = event.get("path").and_then(Value::as_str);
        let is_late = |since: u64| time.is_some_and(|time| time >= since as f64);
        let is_below = |path: &str| {
            let path = path.trim_matches('/');
            let below = own.and_then(|own| own.strip_prefix(path));
            path.is_empty() || below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.since.is_none_or(is_late) && self.below.as_deref().is_none_or(is_below)
    }
}

#[cfg(test)]
mod tests {
    use super::since;
    use crate::store::now_seconds;

    #[test]
    fn times_are_seconds_since_1970_or_before_now() {
        assert_eq!(since("1700000000").unwrap(), 1_700_000_000);
        assert!(now_seconds() - since("2h").unwrap() - 7200 <= 2);
        for wrong in ["", "yesterday", "-5", "2 h", "1.5h"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }
}
