//! Alternatives: compressed file systems, and programs that load models.

use std::cell::RefCell;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed, missing, run};
use crate::python::Python;
use crate::read::{self, CALL, Pages, Through, speed};
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Source;

const LOADER: &str = "tests/bench/load.py";
const LOADED_TENSORS: u32 = 16;

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for tier in [Tier::Packed, Tier::Q8, Tier::Q7, Tier::Q5, Tier::Q3] {
        let what = format!("sequential read of bf16 weights, {}", tier.name());
        let peers: [(&str, &str, f64, Peer); 2] =
            [("squashfuse", "squashfuse, zstd", 5.0, squashfuse), ("btrfs", "btrfs, zstd:1", 2.0, btrfs)];
        for (name, reference, least, peer) in peers {
            let name = format!("mount-peers.{}-{name}", tier.name());
            let least = Target::RatioAtLeast(least);
            rows.push(Row::new(name, &*what, reference, "GB/s", least, move |place| {
                weights(place, tier, peer)
            }));
        }
    }
    for (kind, least) in [(Visit::Verified, 0.9), (Visit::First, 0.5)] {
        for (verb, text) in [("load", "safetensors load_file"), ("walk", "mapped walk of all tensors")] {
            let when = if kind == Visit::First { "first" } else { "verified" };
            rows.push(Row::new(
                format!("mount-load.{verb}-{when}"),
                format!("{text}, {when}"),
                "from the store's file system",
                "GB/s",
                Target::RatioAtLeast(least),
                move |place| loaded(place, verb, kind),
            ));
        }
    }
    rows
}

/// Another file system with the file in it.
struct Other {
    mounted: Mounted,
    /// Allocated bytes.
    bytes: u64,
    _image: Removed,
}

type Peer = fn(&Place, &Source) -> Result<Other>;

fn weights(place: &Place, tier: Tier, peer: Peer) -> Result<Contest> {
    // They take several times as long as a tierfs mount.
    let source = place.shared("source", || {
        let path = place.new_path("weights.safetensors");
        Source::make(&path, Dtype::Bf16, 1, place.bytes() / 4)
    })?;
    let other = place.shared(&format!("other-{:x}", peer as usize), || peer(place, &source))?;
    let shown = place.shared(tier.name(), || {
        let kept = Rc::new(Kept::import(place, &source.path, tier, &[])?);
        Shown::new(place, &kept, &[])
    })?;
    let name = source.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let theirs = other.mounted.path(&name);
    let checked = check(&shown.tensor("n0"), 0, &source, tier, Through::Cache)?.and(check(
        &theirs,
        source.header_bytes,
        &source,
        Tier::Exact,
        Through::Cache,
    )?);
    let checked = match tier {
        Tier::Packed => {
            let ours = super::bytes_on_disk(&shown.kept.path)?;
            checked.and(Checked::holds("a packed store is the smaller one", ours < other.bytes)?)
        }
        _ => checked,
    };
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            speed(&shown.tensor("n0"), CALL, Through::Cache, Pages::Cold)
        },
        move || {
            let _mounted = &other;
            speed(&theirs, CALL, Through::Cache, Pages::Cold)
        },
    )
}

fn squashfuse(place: &Place, source: &Source) -> Result<Other> {
    let image = place.new_path("squashfs");
    let mut make = Command::new("mksquashfs");
    make.arg(&source.path).arg(&image).args([
        "-comp",
        "zstd",
        "-Xcompression-level",
        "3",
        "-no-progress",
        "-quiet",
    ]);
    run(&mut make)?;
    let bytes = fs::metadata(&image)?.len();
    let mountpoint = place.new_directory("mnt")?;
    let mut command = Command::new("squashfuse");
    command.arg("-f").arg(&image).arg(&mountpoint);
    Ok(Other { mounted: Mounted::begin(command, mountpoint)?, bytes, _image: Removed(image) })
}

fn btrfs(place: &Place, source: &Source) -> Result<Other> {
    let image = place.new_path("btrfs");
    let file = fs::File::create(&image)?;
    let removed = Removed(image.clone());
    file.set_len((source.bytes() * 2).max(256 << 20))?;
    drop(file);
    run(Command::new("mkfs.btrfs").arg("-q").arg(&image))?;
    let mountpoint = place.new_directory("mnt")?;
    let mut command = Command::new("mount");
    // Forced, so that btrfs compresses all of it and does not choose.
    command.args(["-t", "btrfs", "-o", "loop,compress-force=zstd:1"]).arg(&image).arg(&mountpoint);
    let mounted = Mounted::by_command(command, mountpoint);
    let mounted =
        mounted.map_err(|error| missing(&format!("btrfs cannot be mounted (it needs root): {error}")))?;
    let copy = mounted.path(&source.path.file_name().unwrap_or_default().to_string_lossy());
    fs::copy(&source.path, &copy)?;
    run(Command::new("sync").arg("-f").arg(&copy))?;
    // Allocated bytes, including its own tables.
    let output = Command::new("df").args(["--output=used", "-B1"]).arg(mounted.path("")).output()?;
    let used = String::from_utf8_lossy(&output.stdout);
    let used = used.lines().last().and_then(|line| line.trim().parse().ok()).ok_or("df says nothing")?;
    Ok(Other { mounted, bytes: used, _image: removed })
}

/// Whether the mount has verified the file before the measurement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    First,
    Verified,
}

fn loaded(place: &Rc<Place>, verb: &'static str, visit: Visit) -> Result<Contest> {
    let source = place.shared("source", || {
        let path = place.new_path("model.safetensors");
        Source::make(&path, Dtype::F32, LOADED_TENSORS, place.bytes() / u64::from(LOADED_TENSORS))
    })?;
    let kept = place.shared("kept", || Kept::import(place, &source.path, Tier::Exact, &[]))?;
    let loader = place.shared("loader", || Ok(RefCell::new(Python::start(LOADER, &[])?)))?;
    let verified = Shown::new(place, &kept, &[])?;
    let expected = loader.borrow_mut().ask("digest", &source.path)?;
    // The first read verifies the file; the kernel serves the second one.
    for _ in 0..2 {
        let ours = loader.borrow_mut().ask("digest", &verified.file())?;
        Checked::bytes("what safetensors loads", ours.as_bytes(), expected.as_bytes())?;
    }
    let whole = read::digest(&source.path, 0, Through::Cache)?;
    let checked =
        Checked::digest("the container", read::digest(&verified.file(), 0, Through::Cache)?, whole)?;
    // A store has at most one mount at a time.
    let verified = (visit == Visit::Verified).then_some(verified);
    let bytes = source.bytes() as f64;
    let speed = move |loader: &RefCell<Python>, path: &PathBuf| -> Result<f64> {
        Ok(bytes / loader.borrow_mut().seconds(verb, path)? / 1e9)
    };
    let (place, also) = (place.clone(), loader.clone());
    Contest::new(
        checked,
        move || match &verified {
            Some(verified) => speed(&loader, &verified.file()),
            None => {
                kept.warm()?;
                speed(&loader, &Shown::new(&place, &kept, &[])?.file())
            }
        },
        move || speed(&also, &source.path),
    )
}
