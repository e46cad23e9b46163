//! `tierfs unpin`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::shared::request::{How, Request, make_all};
use crate::model::Result;

/// Unpin files and remove their copies.
///
/// Example: tierfs unpin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files, directories, collections, tenants or mount points
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        make_all(&[Request { name: "pin", value: "0", words: "unpin" }], &self.paths, &self.how)
    }
}
