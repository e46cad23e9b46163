//! `tierfs evict`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::request::{How, Request, make_all};
use crate::model::Result;

/// Remove the stored bytes of tensors, or drop the page cache of files.
///
/// Without an option, evicts only tensors that can be reconstructed (see the setting reconstruct). A
/// container or directory is left unchanged if any of its tensors is pinned, is needed by another
/// tensor, or cannot be reconstructed.
///
/// Example: tierfs evict --cache /mnt/acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files, directories, collections, tenants or mount points; or a mounted store, and names in it
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Drop only the kernel's page cache; stored bytes stay
    #[arg(long, conflicts_with_all = ["discard", "lossy"])]
    cache: bool,
    /// Remove the stored bytes permanently; requires lossy=allow or --lossy
    #[arg(long)]
    discard: bool,
    /// Allow the loss of the last exact copy, for this request only
    #[arg(long)]
    lossy: bool,
    #[command(flatten)]
    how: How,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (value, words) = match (self.cache, self.discard) {
            (true, _) => ("cache", "evict --cache"),
            (_, true) => ("discard", "evict --discard"),
            _ => ("1", "evict"),
        };
        let value = format!("{value}{}", if self.lossy { ":lossy" } else { "" });
        make_all(&[Request { name: "evict", value: &value, words }], &self.paths, &self.how)
    }
}
