//! `tierfs compact`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use indicatif::ProgressBar;

use crate::cli::Outcome;
use crate::cli::common::jobs::run_by_daemon;
use crate::cli::common::mounts;
use crate::cli::common::open_store::open_engine;
use crate::cli::common::output::{print, print_json};
use crate::engine::Counted;
use crate::model::{Progress, Result};

/// Compact a store.
///
/// Moves overwritten blocks back to their data files, so that the kernel can read those files without
/// the daemon again, and shortens tier files and logs. The daemon compacts a mounted store, which
/// stays usable meanwhile.
///
/// Example: tierfs compact /srv/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, or the mount point of one
    path: PathBuf,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let text = match mounts::mount_for(&self.path)? {
            Some(mounted) => run_by_daemon(&mounted, "compact")?,
            None => compact(&self.path)?,
        };
        if self.json {
            let rows = text.lines().filter_map(|line| line.split_once(": "));
            let rows = rows.map(|(path, text)| serde_json::json!({ "collection": path, "text": text }));
            print_json(&rows.collect::<Vec<_>>().into())?;
        } else {
            print(&text)?;
        }
        Ok(Outcome::Succeeded)
    }
}

/// Compacts an unmounted store. Returns one line per collection or, once all collections were tried,
/// the first error.
fn compact(path: &Path) -> Result<String> {
    let engine = open_engine(path, "compacts")?;
    let mut first = Ok(());
    let is_shown = std::io::stderr().is_terminal();
    let bar = if is_shown {
        let opened = engine.store.all_collections()?.filter_map(|(_, collection)| collection.ok());
        ProgressBar::new(opened.map(|collection| engine.compact_bytes(&collection)).sum())
    } else {
        ProgressBar::hidden()
    };
    let bar = Bar { bar, counted: Counted::default() };
    let mut text = String::new();
    for (_, collection) in engine.store.all_collections()? {
        let compacted = collection.and_then(|collection| {
            let done = engine.compact(&collection, &bar)?;
            Ok((collection, done))
        });
        match compacted {
            Ok((collection, done)) => {
                let log = collection.last_checkpoint();
                let log = log.map_or(String::new(), |log| {
                    format!("log at {} from {} to {} bytes; ", log.at, log.before, log.after)
                });
                text.push_str(&format!("{}: {log}{done}\n", collection.path()));
            }
            Err(error) => first = first.and(Err(error)),
        }
    }
    bar.bar.finish_and_clear();
    first.map(|()| text)
}

struct Bar {
    bar: ProgressBar,
    counted: Counted,
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.counted.advance(bytes);
        self.bar.set_position(self.counted.done.load(Ordering::Relaxed));
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}
