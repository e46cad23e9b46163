//! The log and its state in memory; chains of deltas.

use std::fs;
use std::rc::Rc;
use std::time::Instant;

use tierfs::format::payload::delta::{Changes, Delta, DeltaKind};
use tierfs::model::{Dtype, ObjectId, Tier};
use tierfs::store::Settings;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::replay;

use super::opened::Opened;
use super::seconds;
use crate::Result;
use crate::place::Place;
use crate::table::{Checked, Contest, Row, Target};
use crate::through::{BLOCK_BYTES, Kept, large};
use crate::values::Random;

/// Elements under a chain, and its length.
const ELEMENTS: usize = 512;
const LINKS: usize = 8;
/// Elements that a delta changes: at most a tenth, as writes keep them.
const CHANGED: usize = 51;

/// The rows.
pub fn rows() -> Vec<Row> {
    vec![
        Row::new("log.replay", "replay of 1,048,576 records", "", "ms", Target::AtMost(120.0), replayed),
        Row::new(
            "log.memory",
            "index memory, encoded blocks",
            "",
            "bytes a block",
            Target::AtMost(64.0),
            |place| memory(&large(place)?, "values.npy"),
        ),
        Row::new(
            "log.memory-runs",
            "index memory, runs of exact blocks",
            "",
            "bytes a block",
            Target::AtMost(8.0),
            |place| {
                let source = place.source(Dtype::F32)?;
                let options = ["--block-bytes", BLOCK_BYTES];
                let kept = Kept::import(place, &source.path, Tier::Exact, &options)?;
                memory(&Rc::new(kept), "f32.safetensors")
            },
        ),
        Row::new(
            "delta.scaled",
            "chain of 8 scaled deltas on 512 elements",
            "",
            "us",
            Target::AtMost(5.0),
            |_| chain(DeltaKind::Scaled),
        ),
        Row::new(
            "delta.patch",
            "chain of 8 exact patches on 512 elements",
            "",
            "us",
            Target::AtMost(5.0),
            |_| chain(DeltaKind::Patch),
        ),
    ]
}

fn replayed(place: &Rc<Place>) -> Result<Contest> {
    let kept = large(place)?;
    let settings = Settings::parse(&fs::read_to_string(kept.path.join("tierfs.toml"))?)?;
    let disk = FileDisk::new(&kept.path);
    let open = move || -> Result<_> { Ok(disk.open("b/c/meta.log", Open::Read)?) };
    let replayed = replay(&open()?, settings.store)?;
    let described: usize = replayed
        .state
        .objects()
        .map(|object| {
            let cut = object.layout();
            (0..cut.blocks()).filter(|index| object.block(*index, cut).is_some()).count()
        })
        .sum();
    let blocks = place.scaled(1 << 20);
    let is_whole = replayed.damage.is_none() && described as u64 >= blocks;
    let checked = Checked::holds("every block is described", is_whole)?;
    drop(replayed);
    Contest::alone(checked, move || {
        let file = open()?;
        let begun = Instant::now();
        let replayed = replay(&file, settings.store)?;
        let seconds = begun.elapsed().as_secs_f64();
        drop(replayed);
        Ok(seconds * 1e3)
    })
}

/// Bytes that this process has allocated.
fn allocated() -> u64 {
    // SAFETY: it takes no argument and reads the allocator's own counters.
    let counts = unsafe { libc::mallinfo2() };
    (counts.uordblks + counts.hblkhd) as u64
}

fn memory(kept: &Rc<Kept>, name: &'static str) -> Result<Contest> {
    let kept = kept.clone();
    let blocks = {
        let opened = Opened::of(&kept, name)?;
        opened.object.layout().blocks()
    };
    let checked = Checked::holds("there are blocks", blocks > 1000)?;
    Contest::alone(checked, move || {
        let before = allocated();
        let opened = Opened::of(&kept, name)?;
        let taken = allocated().saturating_sub(before);
        drop(opened);
        Ok(taken as f64 / f64::from(blocks))
    })
}

/// The records of a chain, and their result on zeros by a plain loop.
fn records(kind: DeltaKind) -> Result<(Vec<Vec<u8>>, Vec<u8>)> {
    let mut random = Random::new(4);
    let mut values = vec![0.0_f32; ELEMENTS];
    let mut records = Vec::new();
    for _ in 0..LINKS {
        let mut indices: Vec<u16> = (0..ELEMENTS as u16).collect();
        for place in 0..CHANGED {
            indices.swap(place, place + random.next() as usize % (ELEMENTS - place));
        }
        indices.truncate(CHANGED);
        indices.sort_unstable();
        let changes = match kind {
            DeltaKind::Scaled => {
                let scale = 0.001;
                let pairs: Vec<_> = indices.iter().map(|index| (*index, random.next() as i16)).collect();
                for (index, value) in &pairs {
                    values[usize::from(*index)] += f32::from(*value) * scale;
                }
                Changes::Scaled { scale, pairs }
            }
            DeltaKind::Patch | DeltaKind::Exact => {
                let elements = random.elements(Dtype::F32, CHANGED);
                for (index, raw) in indices.iter().zip(elements.as_chunks().0) {
                    values[usize::from(*index)] = f32::from_le_bytes(*raw);
                }
                Changes::Patch { indices, elements }
            }
        };
        let delta = Delta { object: ObjectId(1), block: 0, base_epoch: 1, result: 0, changes };
        records.push(delta.write(Dtype::F32)?);
    }
    Ok((records, values.iter().flat_map(|value| value.to_le_bytes()).collect()))
}

fn chain(kind: DeltaKind) -> Result<Contest> {
    let (records, right) = records(kind)?;
    let mut block = vec![0; ELEMENTS * 4];
    let apply = move |block: &mut [u8]| -> Result<()> {
        for record in &records {
            Delta::parse(record, kind, Dtype::F32, ELEMENTS as u64)?.apply(Dtype::F32, block)?;
        }
        Ok(())
    };
    apply(&mut block)?;
    let checked = Checked::bytes("what the chain makes", &block, &right)?;
    Contest::alone(checked, move || Ok(seconds(|| apply(&mut block))? * 1e6))
}
