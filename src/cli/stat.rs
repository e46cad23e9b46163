//! `tierfs stat`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::output::{attribute_json, print, print_json};
use crate::cli::common::tree::Tree;
use crate::control::Cost;
use crate::model::{Error, ErrorKind, Result};

/// Print every attribute of a file or directory.
///
/// Example: tierfs stat /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, a remote, or a path on a mount
    path: PathBuf,
    /// A path below PATH, such as TENANT/COLLECTION/FILE
    below: Option<String>,
    /// Also print digests; this may read the whole file
    #[arg(long)]
    digests: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let tree = Tree::open(&self.path, self.below.as_deref())?;
        let most = if self.digests { Cost::WholeFile } else { Cost::Small };
        let attributes = tree.attributes(most)?;
        if attributes.is_empty() {
            let text = format!(
                "{} has no attributes; only files and directories of a collection have them",
                tree.place()
            );
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        if self.json {
            let pairs =
                attributes.iter().map(|(name, value)| ((*name).to_owned(), attribute_json(name, value)));
            print_json(&serde_json::Value::Object(pairs.collect()))?;
        } else {
            let lines = attributes.iter().map(|(name, value)| format!("{name:<13} {value}\n"));
            print(&lines.collect::<String>())?;
        }
        Ok(Outcome::Succeeded)
    }
}
