//! `tierfs report`: a page about a store.

mod feed;
mod measure;
mod page;
mod treemap;

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::cli::Outcome;
use crate::cli::common::folder::Folder;
use crate::cli::common::output::{complain, files_text, human, print};
use crate::cli::common::tree::Tree;
use crate::cli::report::feed::Feed;
use crate::model::{Error, Result};

/// Write a page about a store: its bytes by tier and collection, its tensors, possible savings, its health.
///
/// The page is one file that loads nothing and has no script. Samples of the bytes of each tensor are read
/// and moved in memory; on a mount these reads count as accesses. Files that you may not read are left out and named.
///
/// Example: tierfs report /srv/tensors -o report.html
#[derive(clap::Args)]
pub(super) struct Args {
    /// A store, or a mount point
    store: PathBuf,
    /// The file to write; an existing one is replaced
    #[arg(short = 'o', long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// Read no bytes of tensors; the page then lacks entropy, savings and cosines
    #[arg(long)]
    no_samples: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mut tree = Tree::open(&self.store, None)?;
        let place = std::fs::canonicalize(&self.store).unwrap_or_else(|_| self.store.clone());
        let feed = Feed::of(&mut tree, place.display().to_string(), !self.no_samples)?;
        if !feed.unreadable.is_empty() {
            complain(&format!("tierfs: left out, because you may not read them: {}", feed.left_out()));
        }
        let page = page::page(&feed);
        write(&self.output, page.as_bytes())?;
        let tensors: usize = feed.models.iter().map(|model| model.tensors.len()).sum();
        let files: usize = feed.models.iter().map(|model| model.files).sum();
        let (shown, bytes) = (self.output.display(), human(page.len() as u64));
        let tensors = if tensors == 1 { "1 tensor".to_owned() } else { format!("{tensors} tensors") };
        print(&format!("{shown}: {tensors} of {}, {bytes}\n", files_text(files as u64)))?;
        Ok(Outcome::Succeeded)
    }
}

/// Writes a file under a temporary name, then gives it its own.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::invalid(format!("{} is not the name of a file", path.display())))?;
    let folder = path.parent().filter(|folder| *folder != OsStr::new("")).unwrap_or(Path::new("."));
    let folder = Folder::open(folder)?;
    let (draft, mut file) = folder.draft_file()?;
    file.write_all(bytes).map_err(|error| Error::io(draft.path().display(), error))?;
    draft.name(name)
}
