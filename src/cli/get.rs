//! `tierfs get`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::output::{attribute_json, print, print_json};
use crate::cli::common::tree::Tree;
use crate::model::{Error, ErrorKind, Result};

/// Print the settings of a file or directory, as tierfs set takes them.
///
/// Example: tierfs get /mnt/acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// A path on a mount, or a store
    path: PathBuf,
    /// A path below PATH, such as TENANT/COLLECTION/FILE
    below: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let tree = Tree::open(&self.path, self.below.as_deref())?;
        let settings = tree.settings()?;
        if settings.is_empty() {
            let text =
                format!("{}: only collections and their files and directories have settings", tree.place());
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        if self.json {
            let pairs =
                settings.iter().map(|(name, value)| ((*name).to_owned(), attribute_json(name, value)));
            print_json(&serde_json::Value::Object(pairs.collect()))?;
        } else {
            print(&settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect::<String>())?;
        }
        Ok(Outcome::Succeeded)
    }
}
