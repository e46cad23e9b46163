//! Packed bf16 weights.

use std::fs;
use std::process::Command;
use std::rc::Rc;
use std::time::Instant;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check, check_empty, empty};
use crate::Result;
use crate::place::{Place, Removed, run};
use crate::read::{CALL, Pages, Through, latencies, percentile, speed};
use crate::table::{Checked, Contest, Row, Target};

/// Reads of one pass of 4 KiB reads.
const SMALL_READS: usize = 8000;

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        Row::new(
            "mount-packed.read",
            "sequential read of packed bf16 weights",
            "empty daemon",
            "GB/s",
            Target::RatioAtLeast(0.75),
            sequential,
        ),
        Row::new(
            "mount-packed.random-p50",
            "random 4 KiB reads of packed bf16 weights, O_DIRECT, p50",
            "empty daemon",
            "us",
            Target::RatioAtMost(1.7),
            random,
        ),
        Row::new(
            "mount-packed.import",
            "`tierfs import --pack` of a bf16 file",
            "`zstd -1 -T2` of it",
            "GB/s",
            Target::RatioAtLeast(3.0),
            imported,
        ),
    ]
}

fn shown(place: &Place) -> Result<Rc<Shown>> {
    let source = place.source(Dtype::Bf16)?;
    place.shared("packed", || {
        let kept = Rc::new(Kept::import(place, &source.path, Tier::Packed, &[])?);
        Shown::new(place, &kept, &[])
    })
}

fn sequential(place: &Rc<Place>) -> Result<Contest> {
    let (shown, empty) = (shown(place)?, empty(place)?);
    let checked = check(&shown.tensor("n0"), 0, &*place.source(Dtype::Bf16)?, Tier::Packed, Through::Cache)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Cache)?);
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            speed(&shown.tensor("n0"), CALL, Through::Cache, Pages::Cold)
        },
        move || speed(&empty.path("big"), CALL, Through::Cache, Pages::Cold),
    )
}

fn random(place: &Rc<Place>) -> Result<Contest> {
    let (shown, empty) = (shown(place)?, empty(place)?);
    let checked =
        check(&shown.tensor("n0"), 0, &*place.source(Dtype::Bf16)?, Tier::Packed, Through::Nothing)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Nothing)?);
    let reads = place.scaled(SMALL_READS as u64) as usize;
    let mut seed = 0;
    Contest::new(
        checked,
        move || {
            seed += 1;
            Ok(percentile(&latencies(&shown.tensor("n0"), reads, seed)?, 50))
        },
        move || Ok(percentile(&latencies(&empty.path("big"), reads, 1)?, 50)),
    )
}

fn imported(place: &Rc<Place>) -> Result<Contest> {
    let source = place.source(Dtype::Bf16)?;
    let kept = Rc::new(Kept::import(place, &source.path, Tier::Packed, &[])?);
    let stored = super::bytes_on_disk(&kept.path)?;
    let shown = Shown::new(place, &kept, &[])?;
    let checked = check(&shown.tensor("n0"), 0, &source, Tier::Packed, Through::Cache)?;
    drop((shown, kept));
    let compressed = Removed(place.new_path("zst"));
    let zstd = {
        let (from, to) = (source.path.clone(), compressed.0.clone());
        move || {
            let mut command = Command::new("zstd");
            run(command.args(["-1", "-T2", "-q", "-f"]).arg(&from).arg("-o").arg(&to))?;
            run(Command::new("sync").arg(&to))
        }
    };
    zstd()?;
    let theirs = fs::metadata(&compressed.0)?.len();
    let checked =
        checked.and(Checked::holds("a packed store is smaller than what zstd makes", stored < theirs)?);
    let bytes = source.bytes() as f64;
    let place = place.clone();
    Contest::new(
        checked,
        move || {
            let begun = Instant::now();
            let kept = Kept::import(&place, &source.path, Tier::Packed, &[])?;
            let seconds = begun.elapsed().as_secs_f64();
            drop(kept);
            Ok(bytes / seconds / 1e9)
        },
        move || {
            let _compressed = &compressed;
            let begun = Instant::now();
            zstd()?;
            Ok(bytes / begun.elapsed().as_secs_f64() / 1e9)
        },
    )
}
