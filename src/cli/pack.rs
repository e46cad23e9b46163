//! `tierfs pack` and `tierfs unpack`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::request::{How, Request, make_all};
use crate::model::{Aim, MoveTo, Result};

/// Pack exact tensors: the same bytes in less space.
///
/// Packed tensors stay in the tier exact and read as the bytes that they had. The daemon decodes them for each read;
/// tierfs pin keeps a copy for the kernel. Blocks that packing does not make smaller by 3 % stay as they are.
/// Of a container or directory, float tensors are packed; with --all also types of one byte. A file in place
/// is copied into the store.
///
/// Example: tierfs pack /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Pack {
    /// Pack tensors of 8-bit types too, which gain little and take longer to read
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    what: What,
}

/// Store packed tensors verbatim again.
///
/// The kernel reads their file itself again after tierfs compact. Tensors in lower tiers stay as they are.
///
/// Example: tierfs unpack /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Unpack {
    #[command(flatten)]
    what: What,
}

#[derive(clap::Args)]
struct What {
    /// Files, directories, collections, tenants or mount points; or a mounted store, and names in it
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Check the request and print what it would do, with an estimate of the size; change nothing
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    #[command(flatten)]
    how: How,
}

impl Pack {
    pub fn run(self) -> Result<Outcome> {
        let words = if self.all { "pack --all" } else { "pack" };
        self.what.request(words, MoveTo { aim: Aim::Pack, all: self.all })
    }
}

impl Unpack {
    pub fn run(self) -> Result<Outcome> {
        self.what.request("unpack", MoveTo { aim: Aim::Unpack, all: false })
    }
}

impl What {
    fn request(self, words: &str, to: MoveTo) -> Result<Outcome> {
        let value = format!("{}{}", to.aim, if to.all { ":all" } else { "" });
        let words = format!("{words}{}", if self.dry_run { " --dry-run" } else { "" });
        let name = if self.dry_run { "plan" } else { "tier" };
        make_all(&[Request { name, value: &value, words: &words }], &self.paths, &self.how)
    }
}
