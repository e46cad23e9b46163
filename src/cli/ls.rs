//! `tierfs ls`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::output::{attribute_json, human, print, print_json};
use crate::cli::common::tree::{Row, Tree};
use crate::model::Result;

/// The attributes that are shown.
const SHOWN: [&str; 4] = ["tier", "tiers", "dtype", "shape"];

/// List a directory of a store or mount, with tiers, element types, sizes and shapes.
///
/// LOGICAL is the size of a file, STORED the bytes that the store keeps for it, rounded up to 512. For a
/// directory both are the sums of the files below it.
///
/// Example: tierfs ls /srv/tensors acme/llama --tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, a remote, or a path on a mount
    path: PathBuf,
    /// A path below PATH, such as TENANT/COLLECTION/FILE
    below: Option<String>,
    /// List the tensors of a container, or of the containers in a directory
    #[arg(long)]
    tensors: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mut tree = Tree::open(&self.path, self.below.as_deref())?;
        if self.tensors {
            tree.enter_tensors()?;
        }
        let rows = tree.rows()?;
        // The row of a single file names the file itself, so there is no entry to descend into.
        let alone = !tree.is_directory()?;
        let mut lines = Vec::new();
        for mut row in rows {
            if !alone {
                tree.enter(&row.name);
            }
            let attributes = if row.is_directory {
                (row.bytes, row.stored) = sums(&mut tree)?;
                Vec::new()
            } else {
                tree.named_attributes(&SHOWN)?
            };
            if !alone {
                tree.leave();
            }
            lines.push((row, attributes));
        }
        if self.json { json(&lines) } else { table(&lines) }?;
        Ok(Outcome::Succeeded)
    }
}

/// Logical and stored bytes of all files below a directory.
fn sums(tree: &mut Tree) -> Result<(u64, u64)> {
    let (mut bytes, mut stored) = (0, 0);
    for row in tree.rows()? {
        let of_row = if row.is_directory {
            tree.enter(&row.name);
            let below = sums(tree);
            tree.leave();
            below?
        } else {
            (row.bytes, row.stored)
        };
        bytes += of_row.0;
        stored += of_row.1;
    }
    Ok((bytes, stored))
}

type Line = (Row, Vec<(&'static str, String)>);

fn value<'a>(line: &'a Line, name: &str) -> &'a str {
    line.1.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value.as_str())
}

fn table(lines: &[Line]) -> Result<()> {
    let mut text = format!("{:<6} {:<8} {:>12} {:>12}  NAME\n", "TIER", "TYPE", "LOGICAL", "STORED");
    for line in lines {
        let row = &line.0;
        let (shape, shares) = (value(line, "shape"), value(line, "tiers"));
        text.push_str(&format!(
            "{:<6} {:<8} {:>12} {:>12}  {}{}{}{}\n",
            value(line, "tier"),
            value(line, "dtype"),
            human(row.bytes),
            human(row.stored),
            row.name.display(),
            if row.is_directory { "/" } else { "" },
            if shape.is_empty() { String::new() } else { format!("  [{shape}]") },
            if shares.is_empty() || shape.is_empty() { String::new() } else { format!("  {shares}") }
        ));
    }
    print(&text)
}

fn json(lines: &[Line]) -> Result<()> {
    let rows: Vec<_> = lines
        .iter()
        .map(|line| {
            let row = &line.0;
            let mut value = serde_json::json!({
                "name": row.name.to_string_lossy(),
                "directory": row.is_directory,
                "bytes": row.bytes,
                "bytes_stored": row.stored,
            });
            for (name, text) in &line.1 {
                if let Some(object) = value.as_object_mut() {
                    object.insert((*name).to_owned(), attribute_json(name, text));
                }
            }
            value
        })
        .collect();
    print_json(&rows.into())
}
