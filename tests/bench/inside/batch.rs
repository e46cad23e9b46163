//! Records of embedding batches.

use std::hint::black_box;

use tierfs::format::files::cgeb::{AuxEncoding, Layout, NewRecord, Record};

use super::seconds;
use crate::Result;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

const DIMENSION: usize = 1536;

/// The rows.
pub fn rows() -> Vec<Row> {
    let what = "embedding record of 1536 values, 8 weights, 2 selected";
    let row = |name: &str, verb: &str, most, contest: fn() -> Result<Contest>| {
        Row::new(name, format!("{what}: {verb}"), "", "us", Target::AtMost(most), move |_| contest())
    };
    vec![
        row("batch-record.coded", "encode and decode, hash included", 10.0, coded),
        row("batch-record.borrowed", "borrow", 0.2, borrowed),
    ]
}

/// A record's bytes, and the vector in it.
fn made() -> Result<(Vec<u8>, Vec<f32>)> {
    let raw = Random::new(5).elements(tierfs::model::Dtype::F32, DIMENSION);
    let vector: Vec<f32> = raw.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect();
    let mut bytes = vec![0; 1 << 16];
    let len = record(&vector).write_into(&mut bytes).map_err(|error| error.to_string())?;
    bytes.truncate(len);
    Ok((bytes, vector))
}

fn record(vector: &[f32]) -> NewRecord<'_> {
    NewRecord {
        layout: Layout::TwoLittle,
        vector,
        weights: &[0.125; 8],
        selected: &[3, 5],
        aux: &[],
        aux_encoding: AuxEncoding::Raw,
        pipeline_latency_us: 7,
        own_hash: None,
    }
}

fn coded() -> Result<Contest> {
    let (bytes, vector) = made()?;
    let found =
        Record::borrow(&bytes).and_then(|record| record.decode(0)).map_err(|error| error.to_string())?;
    let right = found.vector == vector && found.selected == [3, 5];
    let checked = Checked::holds("the record that was decoded", right)?;
    let mut out = vec![0; bytes.len()];
    Contest::alone(checked, move || {
        let call = || {
            let written = record(black_box(&vector)).write_into(&mut out);
            written.map_err(|error| error.to_string())?;
            let record = Record::borrow(black_box(&out)).map_err(|error| error.to_string())?;
            // It compares the hash.
            black_box(record.decode(0).map_err(|error| error.to_string())?);
            Ok(())
        };
        Ok(seconds(call)? * 1e6)
    })
}

fn borrowed() -> Result<Contest> {
    let (bytes, vector) = made()?;
    let record = Record::borrow(&bytes).map_err(|error| error.to_string())?;
    let checked = Checked::holds("the record that was borrowed", record.vector.iter().eq(vector))?;
    Contest::alone(checked, move || {
        let call = || {
            black_box(Record::borrow(black_box(&bytes)).map_err(|error| error.to_string())?);
            Ok(())
        };
        Ok(seconds(call)? * 1e6)
    })
}
