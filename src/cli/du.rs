//! `tierfs du`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::output::{human, print, print_json};
use crate::cli::common::tree::Tree;
use crate::model::{OwnedCollectionName, Result};

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
    /// For a collection of a remote, print the collection itself and each of its variants: all its bytes, bytes that it
    /// shares with the others, and bytes of its own
    #[cfg(feature = "remote")]
    #[arg(long, requires = "below")]
    variants: bool,
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
        #[cfg(feature = "remote")]
        if self.variants {
            return self.sum_variants();
        }
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
                let word = if *files == 1 { "file " } else { "files" };
                format!("{:>12} {files:>8} {word}  {path}\n", human(*stored))
            };
            print(&sums.lines.iter().map(line).collect::<String>())?;
        }
        Ok(Outcome::Succeeded)
    }
}

#[cfg(feature = "remote")]
impl Args {
    fn sum_variants(&self) -> Result<Outcome> {
        use crate::cli::common::remote::url;
        use crate::model::{Error, ErrorKind};
        use crate::remote::client::Client;
        use crate::remote::place::remote::Remote;
        use crate::remote::place::stored_bytes::stored_bytes;
        use crate::remote::push::request::parse_place;

        let wrong = || Error::invalid("--variants sums up a collection of a remote: URL TENANT/COLLECTION");
        let (url, below) = url(&self.path).zip(self.below.as_deref()).ok_or_else(wrong)?;
        let OwnedCollectionName { tenant, name } = parse_place(below.trim_matches('/'))?;
        let remote = Remote::open(Client::open(url)?)?;
        let (found, _) = remote.newest_manifest(&tenant, &name)?;
        let lacks = || Error::new(ErrorKind::NotFound, format!("{url} has no snapshot of {tenant}/{name}"));
        let forms = stored_bytes(&found.ok_or_else(lacks)?.manifest);
        let exact = "exact".to_owned();
        if self.json {
            let row = |form: &crate::remote::place::stored_bytes::StoredBytes| {
                serde_json::json!({
                    "variant": form.variant.as_ref().unwrap_or(&exact),
                    "bytes_stored": form.stored,
                    "bytes_shared": form.shared,
                    "bytes_unique": form.unique(),
                })
            };
            print_json(&forms.iter().map(row).collect::<Vec<_>>().into())?;
        } else {
            let mut text = format!("{:<10} {:>12} {:>12} {:>12}\n", "VARIANT", "STORED", "SHARED", "UNIQUE");
            for form in &forms {
                let sizes = [form.stored, form.shared, form.unique()].map(human);
                let variant = form.variant.as_ref().unwrap_or(&exact);
                text.push_str(&format!("{variant:<10} {:>12} {:>12} {:>12}\n", sizes[0], sizes[1], sizes[2]));
            }
            print(&text)?;
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
