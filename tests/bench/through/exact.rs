//! Exact and pinned files: passthrough reads, and the first read, which verifies.

use std::fs::{self, File};
use std::rc::Rc;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check, check_empty, empty};
use crate::Result;
use crate::place::{Place, Removed};
use crate::read::{self, CALL, Map, Pages, Through, speed, touch};
use crate::table::{Checked, Contest, Row, Target};

/// The rows.
pub fn rows() -> Vec<Row> {
    let same = "the same bytes as a file";
    let least = Target::RatioAtLeast(0.95);
    vec![
        Row::new(
            "mount-exact.read",
            "sequential read, 1 MiB calls: verified exact container",
            same,
            "GB/s",
            least,
            |place| verified(place, |path| speed(path, CALL, Through::Cache, Pages::Kept)),
        ),
        Row::new(
            "mount-exact.mmap",
            "mmap, touch every page: verified exact container",
            same,
            "GB/s",
            least,
            |place| verified(place, touch),
        ),
        Row::new(
            "mount-first.read",
            "first sequential read of an exact file, verifying",
            "empty daemon",
            "GB/s",
            Target::RatioAtLeast(0.9),
            |place| first(place, Through::Cache),
        ),
        Row::new(
            "mount-first.daemon",
            "first sequential read by the daemon, since the file is also open for writing",
            "empty daemon",
            "GB/s",
            Target::RatioAtLeast(0.9),
            |place| first(place, Through::Daemon),
        ),
        Row::new(
            "mount-first.twice",
            "pages held twice after a first read",
            "",
            "%",
            Target::AtMost(10.0),
            twice,
        ),
        Row::new(
            "mount-pinned.read",
            "sequential read, 1 MiB calls: pinned tensor",
            same,
            "GB/s",
            least,
            |place| pinned(place, |path| speed(path, CALL, Through::Cache, Pages::Kept)),
        ),
        Row::new(
            "mount-pinned.mmap",
            "mmap, touch every page: pinned tensor",
            same,
            "GB/s",
            least,
            |place| pinned(place, touch),
        ),
    ]
}

fn kept(place: &Place) -> Result<Rc<Kept>> {
    let source = place.source(Dtype::F32)?;
    place.shared("kept", || Kept::import(place, &source.path, Tier::Exact, &[]))
}

type Figure = fn(&std::path::Path) -> Result<f64>;

fn verified(place: &Place, figure: Figure) -> Result<Contest> {
    let kept = kept(place)?;
    let shown = place.shared("verified", || Shown::new(place, &kept, &[]))?;
    let source = place.source(Dtype::F32)?;
    let whole = read::digest(&source.path, 0, Through::Cache)?;
    // The first read verifies; the kernel serves the second one.
    let first = read::digest(&shown.file(), 0, Through::Cache)?;
    let checked = Checked::digest("the first read", first, whole)?;
    let again = Checked::digest("the second read", read::digest(&shown.file(), 0, Through::Cache)?, whole)?;
    let is_passed = is_passed_through(&shown)?;
    let checked = checked.and(again).and(Checked::holds("the kernel reads the file itself", is_passed)?);
    Contest::new(checked, move || figure(&shown.file()), move || figure(&source.path))
}

/// Whether the kernel reads the file without asking the daemon.
fn is_passed_through(shown: &Shown) -> Result<bool> {
    let bytes = || -> Result<u64> {
        let text = fs::read_to_string(shown.mounted.path(".ctl/stats.json"))?;
        let stats: serde_json::Value = serde_json::from_str(&text)?;
        Ok(stats.get("read_bytes").and_then(|bytes| bytes.as_u64()).ok_or("stats.json has no read_bytes")?)
    };
    let before = bytes()?;
    let read = read::all(&File::open(shown.file())?, 0, &mut vec![0; CALL])?;
    Ok(bytes()? - before < read / 2)
}

fn first(place: &Rc<Place>, through: Through) -> Result<Contest> {
    let kept = kept(place)?;
    let source = place.source(Dtype::F32)?;
    let whole = read::digest(&source.path, 0, Through::Cache)?;
    let empty = empty(place)?;
    // With the mount of an earlier pass this would be a second read.
    let place_of_mounts = place.clone();
    let fresh = move || Shown::new(&place_of_mounts, &kept, &[]);
    let shown = fresh()?;
    let checked = Checked::digest("the first read", read::digest(&shown.file(), 0, through)?, whole)?;
    drop(shown);
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Cache)?);
    Contest::new(
        checked,
        move || {
            let shown = fresh()?;
            shown.kept.warm()?;
            speed(&shown.file(), CALL, through, Pages::Kept)
        },
        move || speed(&empty.path("big"), CALL, Through::Cache, Pages::Cold),
    )
}

/// The share of the data file in the page cache after a program has read the file, already cached, through the daemon.
fn twice(place: &Rc<Place>) -> Result<Contest> {
    let kept = kept(place)?;
    let data = super::files(&kept.path.join("b/c/data"))?.pop().ok_or("no data file")?;
    let whole = read::digest(&place.source(Dtype::F32)?.path, 0, Through::Cache)?;
    let place_of_mounts = place.clone();
    let fresh = move || Shown::new(&place_of_mounts, &kept, &[]);
    let shown = fresh()?;
    let checked = Checked::digest("the first read", read::digest(&shown.file(), 0, Through::Cache)?, whole)?;
    drop(shown);
    Contest::alone(checked, move || {
        read::forget(&data)?;
        let before = Map::of(&data)?.resident()?;
        let shown = fresh()?;
        speed(&shown.file(), CALL, Through::Cache, Pages::Kept)?;
        Ok((Map::of(&data)?.resident()? - before).max(0.0) * 100.0)
    })
}

fn pinned(place: &Place, figure: Figure) -> Result<Contest> {
    let source = place.source(Dtype::F32)?;
    let kept = place.shared("kept", || Kept::import(place, &source.path, Tier::Q8, &[]))?;
    let shown = place.shared("shown", || {
        let shown = Shown::new(place, &kept, &[])?;
        place.run(&["pin", &shown.tensor("n0").to_string_lossy()])?;
        Ok(shown)
    })?;
    let path = shown.tensor("n0");
    let checked = check(&path, 0, &source, Tier::Q8, Through::Cache)?;
    let plain = place.shared("plain", || {
        let plain = place.new_path("plain");
        // With large writes, as in the copy: the kernel keeps large pages of both.
        fs::write(&plain, fs::read(&path)?)?;
        Ok(Removed(plain))
    })?;
    let checked = checked.and(check(&plain.0, 0, &source, Tier::Q8, Through::Cache)?);
    Contest::new(checked, move || figure(&shown.tensor("n0")), move || figure(&plain.0))
}
