//! `tierfs prefetch`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs::new_bar;
use crate::cli::common::output::{complain, files_text, human, print, print_json};
use crate::cli::common::places::{files_below, in_mount};
use crate::model::{Error, Result};

/// Files that are read at the same time.
const THREADS: usize = 4;
/// Bytes of a read.
const CHUNK_BYTES: usize = 1 << 20;

/// Read files of a mount in advance: into memory and, of a remote, into its cache.
///
/// Example: tierfs prefetch /mnt/acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files and directories of a mount; or a mounted store, and names in it
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let interrupt = Interrupt::listen()?;
        let (mut files, mut bytes, mut unlisted) = (Vec::new(), 0, Vec::new());
        for path in &in_mount(&self.paths)? {
            let found = files_below(path).unwrap_or_else(|error| {
                unlisted.push(error);
                Vec::new()
            });
            for (path, metadata) in found.into_iter().filter(|(_, found)| found.is_file()) {
                bytes += metadata.len();
                files.push(path);
            }
        }
        if files.is_empty() && !unlisted.is_empty() {
            return Err(unlisted.swap_remove(0));
        }
        let bar = new_bar();
        bar.set_length(bytes);
        let (next, read, failed) = (AtomicUsize::new(0), AtomicU64::new(0), Mutex::new(unlisted));
        let work = || {
            while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                match read_whole(path, &interrupt, &bar) {
                    Ok(count) => {
                        read.fetch_add(count, Ordering::Relaxed);
                    }
                    Err(error) => failed.lock().push(error),
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(work);
            }
        });
        bar.finish_and_clear();
        let failed = failed.into_inner();
        for error in &failed {
            complain(&format!("tierfs: {error}"));
        }
        let read = read.load(Ordering::Relaxed);
        if self.json {
            print_json(&json!({ "files": files.len(), "bytes": read, "failed": failed.len() }))?;
        } else {
            print(&format!("{}, {} read\n", files_text(files.len() as u64), human(read)))?;
        }
        let is_whole = failed.is_empty() && !interrupt.is_pressed();
        Ok(if is_whole { Outcome::Succeeded } else { Outcome::Failed })
    }
}

/// Reads a file to its end. Returns the number of bytes.
fn read_whole(path: &Path, interrupt: &Interrupt, bar: &ProgressBar) -> Result<u64> {
    let failed = |error| Error::io(path.display(), error);
    let mut file = fs::File::open(path).map_err(failed)?;
    let (mut chunk, mut sum) = (vec![0; CHUNK_BYTES], 0);
    while !interrupt.is_pressed() {
        match std::io::Read::read(&mut file, &mut chunk).map_err(failed)? as u64 {
            0 => break,
            count => {
                bar.inc(count);
                sum += count;
            }
        }
    }
    Ok(sum)
}
