//! Files of each format with hostile structure: shared and repeated parts, depth, long names, many small parts, archives
//! in archives, huge declared sizes. Chance damage makes none of these. Reading a file must take work and memory in
//! proportion to its bytes: steps and allocated bytes are counted, not seconds.

mod archives;
mod containers;
mod logs;
mod manifests;

use std::io;
use std::sync::Arc;

use support::{Random, allocated_bytes, held, scale};
use tierfs::format::budget::{Budget, STEPS_MIN, STEPS_PER_BYTE};
use tierfs::format::files::cgei::Index;
use tierfs::ingest::recognize_within;
use tierfs::store::disk::{File, ReadAt};

/// Files of each format.
const FILES: usize = 200;

/// Memory that a reader may have at once, and may allocate in all, for each byte of the file.
const HELD_PER_BYTE: u64 = 256;
const ALLOCATED_PER_BYTE: u64 = 1024;

/// The same for the shortest file: the longest prefixes that are read, and texts of errors.
const BYTES_MIN: u64 = 2 << 20;

/// A file in memory.
struct Source(Vec<u8>);

impl ReadAt for Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let found = self.0.get(offset as usize..).unwrap_or_default();
        let len = found.len().min(buffer.len());
        buffer[..len].copy_from_slice(&found[..len]);
        Ok(len)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

impl File for Source {
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The steps that a reader may take for a file of `len` bytes.
type Most = fn(len: u64) -> u64;

/// Of a reader whose budget may end: what it had left, and the step at which it saw that.
fn all_of_the_budget(len: u64) -> u64 {
    10 * (STEPS_MIN + STEPS_PER_BYTE * len)
}

/// Of a reader that cannot exceed its budget.
fn two_a_byte(len: u64) -> u64 {
    2 * len + 64
}

/// Asserts what some work on `len` bytes holds and allocates.
fn is_bounded(about: &str, len: u64, work: impl FnOnce()) {
    let mut most = 0;
    let all = allocated_bytes(|| most = held(work).2);
    let most = most as u64;
    assert!(most <= HELD_PER_BYTE * len + BYTES_MIN, "{about}: holds {most} bytes");
    assert!(all <= ALLOCATED_PER_BYTE * len + BYTES_MIN, "{about}: allocates {all} bytes");
}

/// Reads files of hostile structure as a mount does that gets them under this name.
fn run(name: &str, make: fn(&mut Random) -> Vec<u8>, most: Most) {
    for number in 0..FILES * scale() as usize {
        let bytes = make(&mut Random(number as u64));
        let len = bytes.len() as u64;
        let about = format!("{name} {number}, {len} bytes");
        let source: Arc<dyn File> = Arc::new(Source(bytes));
        let mut budget = Budget::default();
        is_bounded(&about, len, || drop(recognize_within(&source, name.as_bytes(), &mut budget)));
        // A header of unknown length is looked at again with more of the file.
        assert!(budget.read() <= 3 * len + (1 << 17), "{about}: reads {} bytes", budget.read());
        assert!(budget.spent() <= most(len), "{about}: {} steps", budget.spent());
    }
}

#[test]
fn checkpoints_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.pt", archives::checkpoint, all_of_the_budget);
}

#[test]
fn numpy_archives_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.npz", archives::arrays, all_of_the_budget);
}

#[test]
fn onnx_models_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.onnx", archives::model, all_of_the_budget);
}

#[test]
fn safetensors_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.safetensors", containers::safetensors, two_a_byte);
}

#[test]
fn gguf_files_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.gguf", containers::gguf, two_a_byte);
}

#[test]
fn npy_files_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.npy", containers::npy, two_a_byte);
}

#[test]
fn embedding_batches_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.cgeb", containers::cgeb, two_a_byte);
}

#[test]
fn indexes_of_sharded_models_of_hostile_structure_take_work_in_proportion_to_their_bytes() {
    run("x.safetensors.index.json", containers::shard_index, two_a_byte);
}

#[test]
fn indexes_of_embedding_batches_take_no_more_memory_than_they_have_bytes() {
    for number in 0..FILES * scale() as usize {
        let bytes = containers::cgei(&mut Random(number as u64));
        let mut offsets = 0;
        let all = allocated_bytes(|| offsets = Index::parse(&bytes).map_or(0, |index| index.offsets.len()));
        assert!(offsets * 8 <= bytes.len() && all <= bytes.len() as u64, "{number}: allocates {all} bytes");
    }
}

/// A count: mostly small, now and then large.
fn count(random: &mut Random) -> usize {
    match random.below(8) {
        0 => random.below(20_000),
        1 | 2 => random.below(300),
        _ => random.below(8),
    }
}

fn letters(random: &mut Random, len: usize) -> String {
    (0..len).map(|_| char::from(b"abc/."[random.below(5)])).collect()
}

fn name(random: &mut Random) -> String {
    let len = if random.below(10) == 0 { random.below(6000) } else { 1 + random.below(12) };
    letters(random, len)
}

fn size(random: &mut Random) -> u64 {
    match random.below(6) {
        0 => u64::MAX,
        1 => 1 << random.below(63),
        _ => random.below(9) as u64,
    }
}
