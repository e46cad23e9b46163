//! `tierfs pin` and `tierfs unpin`.

use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::common::output::{complain, human};
use crate::cli::common::request::{How, Request, make_all, targets};
use crate::control::PREFIX;
use crate::model::Result;
use crate::store::disk::files::visit_files;

/// Keep files contiguous, with the bytes that they have now, and in their tier.
///
/// tierfs stores a contiguous copy of each file, which the kernel reads without the daemon. A container
/// is copied once, and its tensors keep their tier; pinning a directory pins every file below it.
///
/// Example: tierfs pin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Pin {
    #[command(flatten)]
    what: What,
}

/// Unpin files and remove their copies.
///
/// Example: tierfs unpin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Unpin {
    #[command(flatten)]
    what: What,
}

#[derive(clap::Args)]
struct What {
    /// Files, directories, collections, tenants or mount points; or a mounted store, and names in it
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

impl Pin {
    pub fn run(self) -> Result<Outcome> {
        if !self.what.how.json {
            for path in &self.what.paths {
                // A path that cannot be pinned is refused below.
                let places = if is_read_only(path) { Vec::new() } else { targets(path).unwrap_or_default() };
                let found: Vec<_> = places.iter().map(|(_, path)| bytes_to_copy(path)).collect();
                let bytes = found.iter().map(|(bytes, _)| bytes).sum();
                let at_least = if found.iter().all(|(_, is_all)| *is_all) { "" } else { "at least " };
                if bytes > 0 {
                    complain(&format!("{}: copying {at_least}{}", path.display(), human(bytes)));
                }
            }
        }
        self.what.request("pin", "1")
    }
}

impl Unpin {
    pub fn run(self) -> Result<Outcome> {
        self.what.request("unpin", "0")
    }
}

impl What {
    fn request(self, words: &str, value: &str) -> Result<Outcome> {
        make_all(&[Request { name: "pin", value, words }], &self.paths, &self.how)
    }
}

fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Bytes of the files that are not pinned, and whether all directories could be listed.
fn bytes_to_copy(path: &Path) -> (u64, bool) {
    let mut bytes = 0;
    let listed = visit_files(path, &mut |path, metadata| {
        let mut value = [0; 8];
        let pinned = rustix::fs::getxattr(path, format!("{PREFIX}pin"), &mut value[..]);
        let is_pinned = pinned.is_ok_and(|len| value.get(..len) == Some(b"1"));
        if metadata.is_file() && !is_pinned {
            bytes += metadata.len();
        }
    });
    let listed = listed.inspect_err(|error| log::debug!("{error}"));
    (bytes, listed.is_ok())
}
