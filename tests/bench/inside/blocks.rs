//! Single blocks of a store on files: read, written, moved, looked up.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use tierfs::model::{Aim, Dtype, Encoder, Storing, Tier};
use tierfs::store::Elements;
use tierfs::store::Touched;
use tierfs::store::add_blocks;

use super::opened::Opened;
use super::{median, seconds};
use crate::Result;
use crate::place::{Place, Removed};
use crate::table::{Checked, Contest, Row, Target};
use crate::through::{Kept, large};
use crate::values::{Random, Source, rounded};

const BLOCK: usize = 16 << 10;
/// Blocks of the tensor: 64 MiB.
const BLOCKS: u32 = 4096;
/// Reads of a pass.
const READS: usize = 4000;
/// Writes and moves of a pass; each is of a block that no earlier pass had.
const CHANGES: usize = 128;
/// Places that are looked up repeatedly; a power of two.
const PLACES: usize = 1 << 16;

/// The rows.
pub fn rows() -> Vec<Row> {
    let pread = "pread of 16 KiB";
    let get = |tier: Tier, most| {
        let name = format!("block-get.{}", tier.name());
        let what = format!("get_block 16 KiB verified, warm, p50: {}", tier.name());
        Row::new(name, what, pread, "us", Target::AtMost(most), move |place| get(place, tier))
    };
    vec![
        get(Tier::Exact, 4.0),
        get(Tier::Q8, 3.0),
        get(Tier::Q3, 3.0),
        Row::new(
            "block-put.exact",
            "put_block 16 KiB without sync, p50: exact, with log append",
            "",
            "us",
            Target::AtMost(20.0),
            put_exact,
        ),
        Row::new(
            "block-put.absmax",
            "put_block 16 KiB without sync, p50: q8 absmax, with log append",
            "",
            "us",
            Target::AtMost(20.0),
            put_encoded,
        ),
        Row::new(
            "block-move.q8-q3",
            "migrate q8 to q3, 16 KiB, absmax, with log append, p50",
            "",
            "us",
            Target::AtMost(60.0),
            migrate,
        ),
        Row::new("index.resident", "index lookup, cache-resident", "", "ns", Target::AtMost(30.0), |place| {
            look_up(place, 64)
        }),
        Row::new(
            "index.random",
            "index lookup, random over 1,048,576",
            "",
            "ns",
            Target::AtMost(150.0),
            |place| look_up(place, u32::MAX),
        ),
    ]
}

struct Tensor {
    opened: Opened,
    raw: Vec<u8>,
}

impl Tensor {
    fn new(place: &Place, tier: Tier) -> Result<Tensor> {
        let path = place.new_path("blocks.safetensors");
        let source = Source::make(&path, Dtype::F32, 1, u64::from(BLOCKS) * BLOCK as u64)?;
        let _removed = Removed(path);
        let opened = Opened::import(place, &source.path, tier, "n0", &["--block-bytes", &BLOCK.to_string()])?;
        let raw = std::fs::read(&source.path)?.split_off(source.header_bytes as usize);
        Ok(Tensor { opened, raw })
    }

    fn raw(&self, index: usize) -> &[u8] {
        &self.raw[index * BLOCK..][..BLOCK]
    }

    /// Whether every block reads correctly.
    fn check(&self, tier: Tier) -> Result<Checked> {
        let mut all = vec![0; self.raw.len()];
        self.opened.open.read(0, &mut all)?;
        Checked::bytes("all blocks", &all, &rounded(tier, Dtype::F32, &self.raw))
    }
}

fn get(place: &Place, tier: Tier) -> Result<Contest> {
    let tensor = Tensor::new(place, tier)?;
    let checked = tensor.check(tier)?;
    let plain = Removed(place.new_path("plain"));
    std::fs::write(&plain.0, &tensor.raw)?;
    let file = File::open(&plain.0)?;
    let (mut ours, mut theirs) = (vec![0; BLOCK], vec![0; BLOCK]);
    let (mut random, mut also) = (Random::new(1), Random::new(1));
    Contest::new(
        checked,
        move || {
            median(READS, |_| {
                let at = random.next() % u64::from(BLOCKS) * BLOCK as u64;
                Ok(tensor.opened.open.read(at, &mut ours)?)
            })
        },
        move || {
            let _plain = &plain;
            median(READS, |_| {
                Ok(file.read_exact_at(&mut theirs, also.next() % u64::from(BLOCKS) * BLOCK as u64)?)
            })
        },
    )
}

/// The first block of each pass.
fn stretches() -> impl FnMut() -> usize {
    let mut next = 0;
    move || {
        let first = next % (BLOCKS as usize - CHANGES);
        next += CHANGES;
        first
    }
}

/// The bytes that replace block `index`: those of another block.
fn other(index: usize) -> usize {
    BLOCKS as usize - 1 - index
}

fn put_exact(place: &Rc<Place>) -> Result<Contest> {
    let tensor = Tensor::new(place, Tier::Exact)?;
    tensor.opened.put(0, tensor.raw(other(0)))?;
    let checked = Checked::bytes("a block that was put", &tensor.opened.block(0)?, tensor.raw(other(0)))?;
    let mut stretch = stretches();
    Contest::alone(checked, move || {
        let first = stretch();
        let figure = median(CHANGES, |number| {
            let index = first + number;
            tensor.opened.put(index as u32, tensor.raw(other(index)))
        })?;
        Checked::bytes(
            "a block that was put",
            &tensor.opened.block(first as u32)?,
            tensor.raw(other(first)),
        )?;
        Ok(figure)
    })
}

fn put_encoded(place: &Rc<Place>) -> Result<Contest> {
    let tensor = Tensor::new(place, Tier::Q8)?;
    let put = move |tensor: &Tensor, index: usize| -> Result<()> {
        let (collection, mut touched) = (&tensor.opened.collection, Touched::default());
        let block = tensor.raw(other(index));
        let (tier, encoder) = (Tier::Q8, Encoder::Absmax);
        let (stored, _) = collection.store_blocks(tier, encoder, Dtype::F32, block, BLOCK, &mut touched)?;
        let stored: Vec<_> = stored.into_iter().map(|stored| (index as u32, stored)).collect();
        collection.record(touched, |batch, _| {
            add_blocks(batch, &tensor.opened.object.entry, &stored);
            Ok(())
        })?;
        Ok(())
    };
    let check = |tensor: &Tensor, index: usize| {
        let right = rounded(Tier::Q8, Dtype::F32, tensor.raw(other(index)));
        Checked::bytes("a block that was put", &tensor.opened.block(index as u32)?, &right)
    };
    put(&tensor, 0)?;
    let checked = check(&tensor, 0)?;
    let mut stretch = stretches();
    Contest::alone(checked, move || {
        let first = stretch();
        let figure = median(CHANGES, |number| put(&tensor, first + number))?;
        check(&tensor, first)?;
        Ok(figure)
    })
}

fn migrate(place: &Rc<Place>) -> Result<Contest> {
    let tensor = Tensor::new(place, Tier::Q8)?;
    let go = |tensor: &Tensor, index: usize| -> Result<()> {
        let index = index as u32;
        let source = |open: &tierfs::store::OpenObject, index: u32, _: &_, out: &mut [u8]| {
            open.read(open.object().layout().start(index), out)?;
            Ok(Elements::Other)
        };
        let opened = &tensor.opened;
        let storing = Storing { aim: Aim::Tier(Tier::Q3), packs: false, encoder: Encoder::Absmax };
        let mut migration = opened.open.migrate(index..index + 1, storing, &source)?;
        let touched = std::mem::take(&mut migration.touched);
        opened.collection.record(touched, |batch, _| {
            migration.add(batch);
            Ok(())
        })?;
        Ok(())
    };
    let check = |tensor: &Tensor, index: usize| {
        // Made from the bytes that a reader saw.
        let before = rounded(Tier::Q8, Dtype::F32, tensor.raw(index));
        let right = rounded(Tier::Q3, Dtype::F32, &before);
        Checked::bytes("a block that was moved", &tensor.opened.block(index as u32)?, &right)
    };
    let last = BLOCKS as usize - 1;
    go(&tensor, last)?;
    let checked = check(&tensor, last)?;
    let mut stretch = stretches();
    Contest::alone(checked, move || {
        let first = stretch();
        let figure = median(CHANGES, |number| go(&tensor, first + number))?;
        check(&tensor, first)?;
        Ok(figure)
    })
}

fn look_up(place: &Rc<Place>, among: u32) -> Result<Contest> {
    let kept: Rc<Kept> = large(place)?;
    let opened = Opened::of(&kept, "values.npy")?;
    let cut = opened.object.layout();
    let blocks = cut.blocks().min(among);
    // The bytes lie where the index says.
    let first = opened.object.block(0, cut).ok_or("no block")?;
    let mut payload = vec![0; first.stored.len as usize];
    let tier_file = kept.path.join("b/c/tier3.dat");
    File::open(tier_file)?.read_exact_at(&mut payload, first.stored.offset)?;
    let is_right = crc32c::crc32c(&payload) == first.stored.checksum;
    let checked = Checked::holds("the index leads to a payload with the checksum it says", is_right)?;
    let mut random = Random::new(2);
    let places: Vec<u32> = (0..PLACES).map(|_| (random.next() % u64::from(blocks)) as u32).collect();
    let mut at = 0;
    Contest::alone(checked, move || {
        let call = || {
            let index = places[at];
            at = (at + 1) & (PLACES - 1);
            black_box(opened.object.block(black_box(index), cut));
            Ok(())
        };
        Ok(seconds(call)? * 1e9)
    })
}
