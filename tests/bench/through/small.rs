//! Many small tensors: opened, read, closed; listed.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, empty};
use crate::Result;
use crate::place::{Place, Removed};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Source;

/// Files of a directory.
pub const FILES: u32 = 10_000;
/// Files that are read.
const READ: u32 = 4000;
const BYTES: u64 = 4096;
/// The directory that lists the tensors.
pub const TENSORS: &str = ".tensors";

/// The rows.
pub fn rows() -> Vec<Row> {
    let what = |text: &str| format!("4,000 tensors of 4 KiB: open, read, close{text}");
    let row =
        |name: &str, what: String, reference: &str, least, prepare: fn(&Rc<Place>) -> Result<Contest>| {
            let name = format!("mount-small.{name}");
            Row::new(name, what, reference, "thousand/s", Target::RatioAtLeast(least), prepare)
        };
    let list = |name: &str, what: &str, most, prepare: fn(&Rc<Place>) -> Result<Contest>| {
        let what = format!("`ls -l` of 10,000 tensors, {what}");
        Row::new(
            format!("mount-small.{name}"),
            what,
            "the store's file system",
            "ms",
            Target::RatioAtMost(most),
            prepare,
        )
    };
    vec![
        row("empty-first", what(", first"), "empty daemon, first", 0.9, against_empty),
        row("files-first", what(", first"), "the store's file system", 0.06, |place| {
            against_files(place, Mount::Fresh)
        }),
        row("files-again", what(", again"), "the store's file system", 0.09, |place| {
            against_files(place, Mount::Same)
        }),
        row("files-kernel", what(", again, opens=kernel"), "the store's file system", 0.7, |place| {
            against_files(place, Mount::KernelOpens)
        }),
        list("list-first", "first", 2.0, |place| listed(place, Mount::Fresh)),
        list("list-again", "again", 1.0, |place| listed(place, Mount::Same)),
    ]
}

/// Whether each pass has a mount of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mount {
    Fresh,
    Same,
    /// One mount for all passes, on which the kernel opens files without a request.
    KernelOpens,
}

/// The store, and the same tensors as plain files.
pub struct Small {
    /// The store.
    pub kept: Rc<Kept>,
    /// The directory of the plain files.
    pub plain: Removed,
}

pub fn small(place: &Place) -> Result<Rc<Small>> {
    place.shared("small", || {
        let path = place.new_path("small.safetensors");
        let source = Source::make(&path, Dtype::F32, FILES, BYTES)?;
        let _removed = Removed(path);
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Exact, &[])?);
        let bytes = fs::read(&source.path)?;
        let plain = Removed(place.new_directory("plain")?);
        let tensors = bytes[source.header_bytes as usize..].chunks(BYTES as usize);
        for (number, tensor) in tensors.enumerate() {
            fs::write(plain.0.join(format!("n{number}")), tensor)?;
        }
        Ok(Small { kept, plain })
    })
}

fn shown(place: &Place, small: &Small) -> Result<Shown> {
    Shown::new(place, &small.kept, &[])
}

fn paths(directory: &Path) -> Vec<PathBuf> {
    (0..READ).map(|number| directory.join(format!("n{number}"))).collect()
}

/// Files of a directory in a second, in thousands.
pub fn read_all(directory: &Path) -> Result<f64> {
    let paths = paths(directory);
    let mut buffer = [0; BYTES as usize];
    let begun = Instant::now();
    for path in &paths {
        File::open(path)?.read_exact(&mut buffer)?;
    }
    Ok(f64::from(READ) / 1000.0 / begun.elapsed().as_secs_f64())
}

/// Whether the tensors have the bytes of the plain files.
pub fn checked(directory: &Path, plain: &Path) -> Result<Checked> {
    let digest = |directory: &Path| -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        for path in paths(directory) {
            hasher.update(&fs::read(path)?);
        }
        Ok(hasher.finalize())
    };
    Checked::digest("small tensors", digest(directory)?, digest(plain)?)
}

fn against_empty(place: &Rc<Place>) -> Result<Contest> {
    let small = small(place)?;
    let empty = empty(place)?;
    let one = fs::read(empty.path("n3999"))?;
    let right = Checked::bytes("the empty daemon", &one, &crate::empty::hot()[..BYTES as usize])?;
    drop(empty);
    let right = right.and(checked(&shown(place, &small)?.tensor(""), &small.plain.0)?);
    let (place, also) = (place.clone(), place.clone());
    Contest::new(
        right,
        move || read_all(&shown(&place, &small)?.tensor("")),
        move || read_all(&crate::daemon::Mounted::empty(&also, BYTES, FILES)?.path("")),
    )
}

fn against_files(place: &Rc<Place>, mount: Mount) -> Result<Contest> {
    let small = small(place)?;
    let options: &[&str] = if mount == Mount::KernelOpens { &["-o", "ro,opens=kernel"] } else { &[] };
    let same = Shown::new(place, &small.kept, options)?;
    let right = checked(&same.tensor(""), &small.plain.0)?;
    // A store has at most one mount at a time.
    let same = (mount != Mount::Fresh).then_some(same);
    let (place, plain) = (place.clone(), small.clone());
    Contest::new(
        right,
        move || match &same {
            None => read_all(&shown(&place, &small)?.tensor("")),
            Some(same) => read_all(&same.tensor("")),
        },
        move || read_all(&plain.plain.0),
    )
}

/// Milliseconds of `ls -l`.
pub fn list(directory: &Path) -> Result<f64> {
    let begun = Instant::now();
    let status = Command::new("ls").arg("-l").arg(directory).stdout(Stdio::null()).status()?;
    let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
    if status.success() { Ok(milliseconds) } else { Err(format!("ls: {status}").into()) }
}

fn listed(place: &Rc<Place>, mount: Mount) -> Result<Contest> {
    let small = small(place)?;
    let same = shown(place, &small)?;
    let names = |directory: &Path| -> Result<Vec<(String, u64)>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            names.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()));
        }
        names.sort();
        Ok(names)
    };
    let right = Checked::holds("names and sizes", names(&same.tensor(""))? == names(&small.plain.0)?)?;
    let same = (mount == Mount::Same).then_some(same);
    let (place, plain) = (place.clone(), small.clone());
    Contest::new(
        right,
        move || match &same {
            None => list(&shown(&place, &small)?.tensor("")),
            Some(same) => list(&same.tensor("")),
        },
        move || list(&plain.plain.0),
    )
}
