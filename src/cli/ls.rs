//! `tierfs ls`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::shared::output::{human, print, print_json};
use crate::cli::shared::tree::{Row, Tree};
use crate::control::Cost;
use crate::model::Result;

/// List a directory of a store or mount, with tiers, element types, sizes and shapes.
///
/// Example: tierfs ls /srv/tensors acme/llama --tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, or a path on a mount
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
        for row in rows {
            if !alone {
                tree.enter(&row.name);
            }
            let attributes = if row.is_directory { Vec::new() } else { tree.attributes(Cost::Small)? };
            if !alone {
                tree.leave();
            }
            lines.push((row, attributes));
        }
        if self.json { json(&lines) } else { table(&lines) }?;
        Ok(Outcome::Succeeded)
    }
}

type Line = (Row, Vec<(&'static str, String)>);

fn value<'a>(line: &'a Line, name: &str) -> &'a str {
    line.1.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value.as_str())
}

fn table(lines: &[Line]) -> Result<()> {
    let mut text = String::new();
    for line in lines {
        let row = &line.0;
        if row.is_directory {
            let name = row.name.display();
            text.push_str(&format!("{:<6} {:<8} {:>12} {:>12}  {name}/\n", "", "", "", ""));
            continue;
        }
        let shape = value(line, "shape");
        text.push_str(&format!(
            "{:<6} {:<8} {:>12} {:>12}  {}{}\n",
            value(line, "tier"),
            value(line, "dtype"),
            human(row.bytes),
            human(row.stored),
            row.name.display(),
            if shape.is_empty() { String::new() } else { format!("  [{shape}]") }
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
            for (name, text) in line.1.iter().filter(|(name, _)| matches!(*name, "tier" | "dtype" | "shape"))
            {
                if let Some(object) = value.as_object_mut() {
                    object.insert((*name).to_owned(), text.clone().into());
                }
            }
            value
        })
        .collect();
    print_json(&rows.into())
}
