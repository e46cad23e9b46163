//! Quantized tensors: every read decodes.

use std::rc::Rc;

use tierfs::model::{Dtype, Tier};

use super::{Kept, Shown, check, check_empty, empty};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::Place;
use crate::read::{CALL, Pages, Through, latencies, percentile, speed};
use crate::table::{Contest, Row, Target};

/// Reads of one pass of 4 KiB reads.
const SMALL_READS: usize = 8000;

/// The tiers that are measured, with the types.
pub const ALL: [(Tier, Dtype); 8] = [
    (Tier::Q8, Dtype::F32),
    (Tier::Q7, Dtype::F32),
    (Tier::Q5, Dtype::F32),
    (Tier::Q3, Dtype::F32),
    (Tier::Q8, Dtype::Bf16),
    (Tier::Q7, Dtype::Bf16),
    (Tier::Q5, Dtype::Bf16),
    (Tier::Q3, Dtype::Bf16),
];

/// The rows.
pub fn rows() -> Vec<Row> {
    ALL.into_iter().flat_map(|(tier, dtype)| of(tier, dtype)).collect()
}

fn of(tier: Tier, dtype: Dtype) -> Vec<Row> {
    let (tier_name, dtype_name) = (tier.name(), if dtype == Dtype::Bf16 { "bf16" } else { "f32" });
    let name = |row: &str| format!("mount-{tier_name}-{dtype_name}.{row}");
    let what = |text: &str| format!("{text}, {tier_name} to {dtype_name}");
    let daemon = "empty daemon";
    let mut rows = vec![Row::new(
        name("read"),
        what("sequential read"),
        daemon,
        "GB/s",
        Target::RatioAtLeast(0.9),
        move |place| sequential(place, tier, dtype, CALL, Through::Cache),
    )];
    for (call, least) in [(1, 0.7), (8, 0.75)] {
        rows.push(Row::new(
            name(&format!("direct-{call}m")),
            what(&format!("sequential read, O_DIRECT, {call} MiB")),
            format!("{daemon}, O_DIRECT"),
            "GB/s",
            Target::RatioAtLeast(least),
            move |place| sequential(place, tier, dtype, call << 20, Through::Nothing),
        ));
    }
    if dtype == Dtype::F32 && matches!(tier, Tier::Q8 | Tier::Q3) {
        for (percent, most) in [(50, 1.3), (99, 1.5)] {
            rows.push(Row::new(
                name(&format!("random-p{percent}")),
                what(&format!("random 4 KiB reads, O_DIRECT, p{percent}")),
                daemon,
                "us",
                Target::RatioAtMost(most),
                move |place| random(place, tier, dtype, percent),
            ));
        }
    }
    rows
}

struct Both {
    shown: Rc<Shown>,
    empty: Rc<Mounted>,
}

fn both(place: &Place, tier: Tier, dtype: Dtype) -> Result<Both> {
    let source = place.source(dtype)?;
    let shown = place.shared("shown", || {
        let kept = Rc::new(Kept::import(place, &source.path, tier, &[])?);
        Shown::new(place, &kept, &[])
    })?;
    Ok(Both { shown, empty: empty(place)? })
}

fn sequential(place: &Place, tier: Tier, dtype: Dtype, call: usize, through: Through) -> Result<Contest> {
    let Both { shown, empty } = both(place, tier, dtype)?;
    let checked = check(&shown.tensor("n0"), 0, &*place.source(dtype)?, tier, through)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), through)?);
    Contest::new(
        checked,
        move || {
            shown.kept.warm()?;
            speed(&shown.tensor("n0"), call, through, Pages::Cold)
        },
        move || speed(&empty.path("big"), call, through, Pages::Cold),
    )
}

fn random(place: &Place, tier: Tier, dtype: Dtype, percent: usize) -> Result<Contest> {
    let Both { shown, empty } = both(place, tier, dtype)?;
    let checked = check(&shown.tensor("n0"), 0, &*place.source(dtype)?, tier, Through::Nothing)?;
    let checked = checked.and(check_empty(&empty.path("big"), place.bytes(), Through::Nothing)?);
    let reads = place.scaled(SMALL_READS as u64) as usize;
    let mut seed = 0;
    Contest::new(
        checked,
        move || {
            seed += 1;
            Ok(percentile(&latencies(&shown.tensor("n0"), reads, seed)?, percent))
        },
        move || Ok(percentile(&latencies(&empty.path("big"), reads, 1)?, percent)),
    )
}
