//! `tierfs scrub`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::Outcome;
use crate::cli::shared::act::wait_for_new_job;
use crate::cli::shared::mounts::{self, Mounted};
use crate::cli::shared::output::{print, print_json};
use crate::engine::{Counted, Engine, Scrubbed};
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};

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
            Some(mounted) => mounted_scrub(&mounted)?,
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

/// Has the daemon scrub the store and waits. Returns one line per collection and the number of corrupt
/// blocks.
fn mounted_scrub(mounted: &Mounted) -> Result<(String, u64)> {
    let path = mounted.mountpoint.join(".ctl/scrub");
    let failed = |error| Error::io(path.display(), error);
    wait_for_new_job(mounted, || fs::write(&path, "start").map_err(failed))?;
    let text = fs::read_to_string(&path).map_err(failed)?;
    let corrupt = text.lines().filter_map(corrupt_of).sum();
    Ok((text, corrupt))
}

/// The number before `corrupt` in a line.
fn corrupt_of(line: &str) -> Option<u64> {
    line.split_once(" corrupt")?.0.rsplit(' ').next()?.parse().ok()
}

fn scrub(path: &Path) -> Result<(String, u64)> {
    let note = format!("process {}, which scrubs", std::process::id());
    let store = Store::open(Arc::new(FileDisk::new(path)), Access::Write, &note);
    let engine = Engine::new(Arc::new(store.map_err(|error| mounts::with_mounts(error, path))?));
    let store = engine.store.clone();
    let (mut text, mut sum) = (String::new(), Scrubbed::default());
    let mut broken = 0;
    for tenant in store.tenants()? {
        for name in store.collections(&tenant)? {
            match store.collection(&tenant, &name) {
                Ok(collection) => {
                    let found = engine.scrub(&collection, &Counted::default())?;
                    text.push_str(&format!("{tenant}/{name}: {found}\n"));
                    sum.add(found);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    broken += 1;
                    text.push_str(&format!("{tenant}/{name}: {error}\n"));
                }
            }
        }
    }
    Ok((text, sum.corrupt + broken))
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
