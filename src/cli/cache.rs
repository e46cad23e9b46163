//! `tierfs cache`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::output::{files_text, human, print, print_json};
use crate::cli::common::remote::cache_size;
use crate::model::{Error, ErrorKind, Result};
use crate::remote::read::cache::verify::Verified;
use crate::remote::read::cache::{Cache, Size};

/// Show, check or trim the cache of remotes, which mounts share.
///
/// --verify fails while a mount uses the cache. It exits with 3 if bytes were wrong; they are dropped, so that the next mount
/// fetches them again.
///
/// Example: tierfs cache ~/.cache/tierfs --trim 50G
#[derive(clap::Args)]
pub(super) struct Args {
    /// The directory of the cache
    directory: PathBuf,
    /// List its files: bytes, hours since the last use, name
    #[arg(long)]
    list: bool,
    /// Compare all cached bytes with their BLAKE3, and drop those that differ
    #[arg(long)]
    verify: bool,
    /// Remove the files that were used longest ago until at most this is left, for example 50G or 0
    #[arg(long, value_name = "SIZE")]
    trim: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let shown = self.directory.display();
        if !Cache::exists(&self.directory) {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "{shown} is not the cache of a remote; name the directory that `tierfs mount URL --cache` used"
                ),
            ));
        }
        let left = match self.trim.as_deref() {
            Some("0") => Some(0),
            Some(text) => match cache_size(text)? {
                Size::Bytes(bytes) => Some(bytes),
                Size::Percent(_) => return Err(Error::invalid("--trim takes bytes, such as 50G")),
            },
            None => None,
        };
        let cache = Cache::open(&self.directory, Size::default())?;
        let verified = if self.verify { Some(cache.verify()?) } else { None };
        if let Some(bytes) = left {
            cache.trim(bytes);
        }
        let is_damaged = verified.iter().flatten().any(Verified::is_damaged);
        let done = if is_damaged { Outcome::Corrupt } else { Outcome::Succeeded };
        let files = cache.list();
        if self.json {
            let rows = files.iter().map(
                |file| json!({ "name": file.name, "bytes": file.stored, "used": file.used / 1_000_000_000 }),
            );
            let mut shown = json!({ "bytes": cache.stored(), "files": rows.collect::<Vec<_>>() });
            if let (Some(verified), Some(shown)) = (&verified, shown.as_object_mut()) {
                let rows = verified.iter().map(|file| {
                    json!({
                        "name": file.name, "bytes": file.bytes, "right": file.right, "dropped": file.dropped,
                        "removed": file.removed,
                    })
                });
                shown.insert("verified".to_owned(), rows.collect());
            }
            print_json(&shown)?;
            return Ok(done);
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut text = verified.map_or_else(String::new, |verified| told(&verified));
        for file in files.iter().filter(|_| self.list) {
            let hours = now.saturating_sub(Duration::from_nanos(file.used)).as_secs() / 3600;
            text.push_str(&format!("{:>12} {hours:>6} h  {}\n", human(file.stored), file.name));
        }
        text.push_str(&format!("{}, {}\n", files_text(files.len() as u64), human(cache.stored())));
        print(&text)?;
        Ok(done)
    }
}

/// The lines for a comparison.
fn told(verified: &[Verified]) -> String {
    let mut text = String::new();
    for file in verified.iter().filter(|file| file.is_damaged()) {
        match &file.removed {
            Some(why) => text.push_str(&format!("{}: removed: {why}\n", file.name)),
            None => {
                text.push_str(&format!("{}: {} pieces differed and were dropped\n", file.name, file.dropped))
            }
        }
    }
    let right: u64 = verified.iter().map(|file| file.right).sum();
    let bytes = verified.iter().map(|file| file.bytes).sum();
    text.push_str(&format!("compared {}: {right} pieces are right\n", human(bytes)));
    text
}
