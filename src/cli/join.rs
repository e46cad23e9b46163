//! `tierfs join`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::mounts::{Mounted, mount_of, resolved};
use crate::cli::common::output::{complain, files_text, human, print, print_json};
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::cli::import::{parse_dtype, parse_shape};
use crate::control::PREFIX;
use crate::ingest::shards_in_order;
use crate::model::{Error, Result};

/// Make a file of the bytes of files that are in the same collection, in their order, without a copy.
///
/// The files stay. As long as two files have the same bytes, neither can be written or moved to another tier; remove
/// the pieces, or the joined file. Pieces of a model file are a container with its tensors again. Files whose names all
/// end with a 128-bit number (32 hex digits) are joined in the order of these.
///
/// Example: tierfs join /mnt/acme/llama/w.bin p0 p1 p2
#[derive(clap::Args)]
pub(super) struct Args {
    /// The new file, on a mount
    file: PathBuf,
    /// The files to join: paths, or names beside the new file
    #[arg(required = true)]
    sources: Vec<PathBuf>,
    /// The element type, unless the name and the bytes of the file make it a container
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype)]
    dtype: Option<String>,
    /// The shape, as in 4096x11008
    #[arg(long, value_name = "SIZES", value_parser = parse_shape, requires = "dtype")]
    shape: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A path on a mount.
struct Place {
    /// TENANT/COLLECTION.
    collection: String,
    /// The path in the collection.
    below: String,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let none = || {
            let text =
                format!("{} is not on a tierfs mount; tierfs status lists the mounts", self.file.display());
            Error::invalid(text)
        };
        let mounted = mount_of(&self.file)?.ok_or_else(none)?;
        let target = place(&mounted, &self.file)?;
        let mut sources = Vec::with_capacity(self.sources.len());
        for source in shards_in_order(&self.sources)? {
            // A name in the working directory may be of another file, outside the mount.
            let own = if source.exists() { place(&mounted, &source).ok() } else { None };
            let beside = self.file.parent().map_or_else(|| source.clone(), |above| above.join(&source));
            let found = own.map_or_else(|| place(&mounted, &beside), Ok)?;
            if found.collection != target.collection {
                let (shown, collection) = (source.display(), &target.collection);
                return Err(Error::invalid(format!("{shown} is not in {collection}; copy it there first")));
            }
            sources.push(found.below);
        }
        let mut request = json!({ "name": target.below, "sources": sources });
        if let Some(map) = request.as_object_mut() {
            let optional = [("dtype", &self.dtype), ("shape", &self.shape)];
            let set = optional.into_iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
            map.extend(set.map(|(key, value)| (key.to_owned(), value.as_str().into())));
        }
        let control = mounted.mountpoint.join(&target.collection).join(".ctl/join");
        let before = refusal::last_number(&control);
        if let Err(error) = fs::write(&control, request.to_string()) {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            let typed = Typed { words: "join", path: &control };
            return Refusal::of(&mounted, &typed, before, errno).report(&self.file, self.json);
        }
        let shown = self.file.display();
        let bytes = fs::metadata(&self.file).map_err(|error| Error::io(&shown, error))?.len();
        let why = attribute(&self.file, "why");
        if self.json {
            let file = shown.to_string();
            print_json(&json!({ "file": file, "sources": sources.len(), "bytes": bytes, "why": why }))?;
        } else {
            let files = files_text(sources.len() as u64);
            print(&format!("{shown}: {files} joined, {}\n", human(bytes)))?;
            if let Some(why) = why {
                complain(&format!("tierfs: {shown}: {why}"));
            }
        }
        Ok(Outcome::Succeeded)
    }
}

/// The collection of a path on a mount, and the path in it.
fn place(mounted: &Mounted, path: &Path) -> Result<Place> {
    let real = resolved(path)?;
    let outside = || {
        let (shown, root) = (path.display(), mounted.mountpoint.display());
        Error::invalid(format!("{shown} is not a file of a collection on the mount {root}"))
    };
    let below = real.strip_prefix(&mounted.mountpoint).ok().and_then(Path::to_str).ok_or_else(outside)?;
    let mut parts = below.splitn(3, '/');
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let (tenant, name) = (next().ok_or_else(outside)?, next().ok_or_else(outside)?);
    let below = next().ok_or_else(outside)?.to_owned();
    Ok(Place { collection: format!("{tenant}/{name}"), below })
}

/// An attribute of a file that has a short text.
fn attribute(path: &Path, name: &str) -> Option<String> {
    let mut text = vec![0; 4096];
    let len = rustix::fs::getxattr(path, format!("{PREFIX}{name}"), &mut text[..]).ok()?;
    Some(String::from_utf8_lossy(text.get(..len)?).into_owned())
}
