//! `tierfs scrub`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::shared::maintenance::{open_engine, run_by_daemon};
use crate::cli::shared::mounts;
use crate::cli::shared::output::{print, print_json};
use crate::engine::Counted;
use crate::model::Result;

/// Verify every stored checksum and repair damaged blocks that can be reconstructed.
///
/// The daemon scrubs a mounted store. Exits with 3 if corruption was found, healed or not.
///
/// Example: tierfs scrub /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, or the mount point of one
    path: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (text, corrupt) = match mounts::mount_for(&self.path)? {
            Some(mounted) => {
                let text = run_by_daemon(&mounted, "scrub")?;
                let corrupt = text.lines().filter_map(corrupt_of).sum();
                (text, corrupt)
            }
            None => scrub(&self.path)?,
        };
        if self.json {
            print_json(&serde_json::json!({ "corrupt": corrupt, "text": text }))?;
        } else {
            print(&text)?;
        }
        Ok(if corrupt > 0 { Outcome::Corrupt } else { Outcome::Succeeded })
    }
}

/// The number before `corrupt` in a line.
fn corrupt_of(line: &str) -> Option<u64> {
    line.split_once(" corrupt")?.0.rsplit(' ').next()?.parse().ok()
}

fn scrub(path: &Path) -> Result<(String, u64)> {
    let engine = open_engine(path, "scrubs")?;
    let (mut text, mut corrupt) = (String::new(), 0);
    for (path, collection) in engine.store.all_collections()? {
        match collection {
            Ok(collection) => {
                let found = engine.scrub(&collection, &Counted::default())?;
                text.push_str(&format!("{path}: {found}\n"));
                corrupt += found.corrupt;
            }
            Err(error) => {
                text.push_str(&format!("{path}: {error}\n"));
                corrupt += 1;
            }
        }
    }
    Ok((text, corrupt))
}

#[cfg(test)]
mod tests {
    use super::corrupt_of;

    #[test]
    fn the_number_of_corrupt_blocks_is_found_in_a_line() {
        assert_eq!(corrupt_of("t/c: at 7: 100 blocks checked, 12 corrupt, 3 healed"), Some(12));
        assert_eq!(corrupt_of("t/c: not since it was opened"), None);
    }
}
