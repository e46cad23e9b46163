//! `tierfs scrub`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::common::jobs::run_by_daemon;
use crate::cli::common::mounts;
use crate::cli::common::open_store::open_engine;
use crate::cli::common::output::{print, print_json};
use crate::engine::Counted;
use crate::model::Result;

/// Verify every stored checksum and repair damaged blocks that can be reconstructed.
///
/// Prints the corrupt byte ranges of each file, and which files to import again. The daemon scrubs a mounted store. Exits with 3 if
/// corruption was found, healed or not.
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
            let ranges: Vec<_> = text.lines().filter_map(range_of).collect();
            print_json(&serde_json::json!({ "corrupt": corrupt, "ranges": ranges, "text": text }))?;
        } else {
            print(&text)?;
        }
        Ok(if corrupt > 0 { Outcome::Corrupt } else { Outcome::Succeeded })
    }
}

/// The number of corrupt blocks in the line of a collection.
fn corrupt_of(line: &str) -> Option<u64> {
    line.split_once(" corrupt, ")?.0.rsplit_once(" blocks checked, ")?.1.parse().ok()
}

/// A line of a corrupt range, as a JSON object.
fn range_of(line: &str) -> Option<serde_json::Value> {
    let (path, range) = line.rsplit_once(": bytes ")?;
    let (bytes, what) = range.split_once(": corrupt")?;
    let (first, last) = bytes.split_once(" to ")?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    let tensor = what.split_once(" (tensor ").and_then(|(_, tensor)| tensor.strip_suffix(')'));
    Some(serde_json::json!({
        "path": path, "first": first, "last": last, "healed": what.starts_with(", healed"), "tensor": tensor,
    }))
}

fn scrub(path: &Path) -> Result<(String, u64)> {
    let engine = open_engine(path, "scrubs")?;
    let (mut text, mut corrupt) = (String::new(), 0);
    for (path, collection) in engine.store.all_collections()? {
        match collection {
            Ok(collection) => {
                let found = engine.scrub(&collection, &Counted::default())?;
                text.push_str(&format!("{path}: {}\n", found.report()));
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
    use super::{corrupt_of, range_of};
    use crate::engine::CorruptRange;

    #[test]
    fn a_line_of_a_scrub_gives_the_number_of_corrupt_blocks() {
        assert_eq!(corrupt_of("t/c: at 7: 100 blocks checked, 12 corrupt, 3 healed"), Some(12));
        assert_eq!(corrupt_of("t/c: not since it was opened"), None);
        assert_eq!(corrupt_of("t/c/a 5 corrupt, x: bytes 0 to 5: corrupt, healed"), None);
    }

    #[test]
    fn a_line_of_a_corrupt_range_is_taken_apart() {
        for (path, tensor, is_healed) in
            [("t/c/a.bin", None, false), ("t/c/x: bytes 1 to 2: y", Some("w (a)".to_owned()), true)]
        {
            let range =
                CorruptRange { path: path.to_owned(), tensor: tensor.clone(), bytes: 16..48, is_healed };
            let found = range_of(&range.to_string()).unwrap();
            let wanted = serde_json::json!({
                "path": path, "first": 16, "last": 47, "healed": is_healed, "tensor": tensor,
            });
            assert_eq!(found, wanted);
        }
        assert_eq!(range_of("t/c: at 7: 100 blocks checked, 12 corrupt, 3 healed"), None);
    }
}
