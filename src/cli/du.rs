//! `tierfs du`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::shared::output::{human, print, print_json};
use crate::cli::shared::tree::Tree;
use crate::model::Result;

/// Sum up the number of files and their stored bytes for each directory.
///
/// Every byte counts once: bytes of a tensor count for its container.
///
/// Example: tierfs du /srv/tensors acme
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, a remote, or a path on a mount
    path: PathBuf,
    /// A path below PATH, such as TENANT/COLLECTION
    below: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Default)]
struct Sums {
    lines: Vec<(String, u64, u64)>,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mut tree = Tree::open(&self.path, self.below.as_deref())?;
        let mut sums = Sums::default();
        add(&mut tree, &mut sums)?;
        if self.json {
            let rows: Vec<_> = sums
                .lines
                .iter()
                .map(|(path, files, stored)| {
                    serde_json::json!({ "path": path, "files": files, "bytes_stored": stored })
                })
                .collect();
            print_json(&rows.into())?;
        } else {
            let line = |(path, files, stored): &(String, u64, u64)| {
                format!("{:>12} {files:>8} files  {path}\n", human(*stored))
            };
            print(&sums.lines.iter().map(line).collect::<String>())?;
        }
        Ok(Outcome::Succeeded)
    }
}

/// Adds the lines of a directory and returns its number of files and stored bytes. A directory comes
/// after its subdirectories, as in du(1).
fn add(tree: &mut Tree, sums: &mut Sums) -> Result<(u64, u64)> {
    let (mut files, mut stored) = (0, 0);
    for row in tree.rows()? {
        if row.is_directory {
            tree.enter(&row.name);
            let (more_files, more_stored) = add(tree, sums)?;
            tree.leave();
            files += more_files;
            stored += more_stored;
        } else {
            files += 1;
            stored += row.stored;
        }
    }
    sums.lines.push((tree.place(), files, stored));
    Ok((files, stored))
}
