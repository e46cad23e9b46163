//! Rows in this process, on one core.

mod batch;
mod blocks;
pub mod codec;
mod forms;
mod ladder;
mod log;
pub mod opened;
mod peers;

use std::time::{Duration, Instant};

use crate::Result;
use crate::table::Row;

/// The duration of one pass.
const PASS: Duration = Duration::from_millis(20);
/// Calls between two readings of the clock.
const CALLS: u32 = 16;

/// All rows of this module.
pub fn rows() -> Vec<Row> {
    let mut rows = codec::rows();
    rows.extend(ladder::rows());
    rows.extend(forms::rows());
    rows.extend(peers::rows());
    rows.extend(blocks::rows());
    rows.extend(batch::rows());
    rows.extend(log::rows());
    rows
}

/// Seconds of one call, over many.
pub fn seconds(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    let mut calls = 0;
    while begun.elapsed() < PASS {
        for _ in 0..CALLS {
            call()?;
        }
        calls += CALLS;
    }
    Ok(begun.elapsed().as_secs_f64() / f64::from(calls))
}

/// The median of single calls, in microseconds.
pub fn median(calls: usize, mut call: impl FnMut(usize) -> Result<()>) -> Result<f64> {
    let mut found = Vec::with_capacity(calls);
    for number in 0..calls {
        let begun = Instant::now();
        call(number)?;
        found.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    found.sort_by(f64::total_cmp);
    Ok(crate::read::percentile(&found, 50))
}
