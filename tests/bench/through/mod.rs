//! Rows that go through a mount.

mod cached;
mod changes;
mod cost;
mod decoded;
mod exact;
mod fleet;
mod forms;
mod kv;
mod others;
mod packed;
mod readers;
mod remote;
mod small;
mod steps;
mod transport;

pub use cost::{BLOCK_BYTES, large, of_process};

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tierfs::model::Tier;

use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed};
use crate::read::{self, Through};
use crate::table::{Checked, Row};
use crate::values::Source;

/// All rows of this module.
pub fn rows() -> Vec<Row> {
    let mut rows = exact::rows();
    rows.extend(decoded::rows());
    rows.extend(forms::rows());
    rows.extend(cached::rows());
    rows.extend(packed::rows());
    rows.extend(readers::rows());
    rows.extend(small::rows());
    rows.extend(transport::rows());
    rows.extend(changes::rows());
    rows.extend(kv::rows());
    rows.extend(others::rows());
    rows.extend(cost::rows());
    rows.extend(remote::rows());
    rows.extend(steps::rows());
    rows
}

/// A store with one file in it.
pub struct Kept {
    /// The store.
    pub path: PathBuf,
    name: String,
    _removed: Removed,
}

impl Kept {
    /// Imports a file into a new store, with `absmax` where it is encoded, or packed.
    pub fn import(place: &Place, source: &Path, tier: Tier, options: &[&str]) -> Result<Kept> {
        let path = place.new_path("store");
        let removed = Removed(path.clone());
        let (store, from) = (path.to_string_lossy(), source.to_string_lossy());
        let mut arguments = vec!["import", &store, "b/c", &from, "--encoder", "absmax"];
        let encoded = format!("{}:all", tier.name());
        match tier {
            Tier::Exact => {}
            Tier::Packed => arguments.push("--pack"),
            _ => arguments.extend(["--tier", &encoded]),
        }
        arguments.extend(options);
        place.run(&arguments)?;
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Kept { path, name, _removed: removed })
    }

    /// Reads the files into the page cache, so that the row does not measure the disk.
    pub fn warm(&self) -> Result<()> {
        let mut buffer = vec![0; read::CALL];
        for path in files(&self.path)? {
            read::all(&File::open(path)?, 0, &mut buffer)?;
        }
        Ok(())
    }
}

/// Files below a directory.
pub fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => found.extend(files(&entry.path())?),
            false => found.push(entry.path()),
        }
    }
    Ok(found)
}

/// Allocated bytes of the files below a directory.
pub fn bytes_on_disk(path: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for file in files(path)? {
        sum += fs::metadata(file)?.blocks() * 512;
    }
    Ok(sum)
}

/// A store that is mounted.
pub struct Shown {
    /// The mount, which is dropped before the store.
    pub mounted: Mounted,
    /// The store.
    pub kept: Rc<Kept>,
}

impl Shown {
    /// Mounts it.
    pub fn new(place: &Place, kept: &Rc<Kept>, options: &[&str]) -> Result<Shown> {
        Ok(Shown { mounted: Mounted::tierfs(place, &kept.path, options)?, kept: kept.clone() })
    }

    /// The imported file.
    pub fn file(&self) -> PathBuf {
        self.path(&self.kept.name)
    }

    /// A file or directory of its collection.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.path("b/c").join(name)
    }

    /// A tensor of it.
    pub fn tensor(&self, name: &str) -> PathBuf {
        self.mounted.path("b/c/.tensors").join(name)
    }
}

/// The empty daemon; its large file has the length of the others.
pub fn empty(place: &Place) -> Result<Rc<Mounted>> {
    place.shared("empty", || Mounted::empty(place, place.bytes(), small::FILES))
}

/// Whether the large file of the empty daemon has the expected bytes.
pub fn check_empty(path: &Path, bytes: u64, through: Through) -> Result<Checked> {
    let hot = crate::empty::hot();
    let mut hasher = blake3::Hasher::new();
    for _ in 0..bytes / crate::empty::PERIOD as u64 {
        hasher.update(&hot[..crate::empty::PERIOD]);
    }
    Checked::digest("the empty daemon", read::digest(path, 0, through)?, hasher.finalize())
}

/// Whether a tensor, or all tensors of a container, read correctly.
pub fn check(path: &Path, from: u64, source: &Source, tier: Tier, through: Through) -> Result<Checked> {
    let what = format!("{} in {}", path.display(), tier.name());
    Checked::digest(&what, read::digest(path, from, through)?, source.expected(tier)?)
}
