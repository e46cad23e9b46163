//! Random sequences of requests, spliced from those of the corpus: files that are open when they are removed, handles of other
//! files, sizes and offsets of every magnitude.

use std::fs;
use std::path::Path;

use support::{Random, scale};

use crate::targets;

/// Bytes of the header before the arguments, and the place of the inode in it.
const HEADER_BYTES: usize = 40;
const NODE_AT: usize = 16;
/// Small numbers stand for files of the target.
const NODES: usize = 11;

/// The requests of the corpus, by their lengths.
fn known_requests() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus/requests");
    let mut requests = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let mut rest = &bytes[..];
        while let Some(len) = rest.first_chunk().map(|len| u32::from_ne_bytes(*len) as usize) {
            let (request, after) = rest.split_at(len.clamp(1, rest.len()));
            requests.push(request.to_vec());
            rest = after;
        }
    }
    requests.sort();
    requests
}

/// A number that is small, large, or near a power of two.
fn magnitude(random: &mut Random) -> u64 {
    let power = 1_u64 << random.below(64);
    match random.below(4) {
        0 => random.below(8) as u64,
        1 => power,
        2 => power.wrapping_sub(1),
        _ => random.next() & (power | (power - 1)),
    }
}

fn changed(mut request: Vec<u8>, random: &mut Random) -> Vec<u8> {
    if request.len() < HEADER_BYTES {
        return request;
    }
    if random.below(2) == 0 {
        let node = random.below(NODES) as u64;
        request[NODE_AT..NODE_AT + 8].copy_from_slice(&node.to_ne_bytes());
    }
    let arguments = request.len() - HEADER_BYTES;
    if arguments >= 8 && random.below(2) == 0 {
        let at = HEADER_BYTES + random.below(arguments / 8) * 8;
        let number = magnitude(random).to_ne_bytes();
        let len = if random.below(2) == 0 { 4 } else { 8 };
        request[at..at + len].copy_from_slice(&number[..len]);
    }
    request
}

#[test]
fn random_sequences_of_requests_are_each_answered_once() {
    let (known, mut random) = (known_requests(), Random(17));
    assert!(known.len() > 50);
    for _ in 0..1000 * scale() {
        let count = 1 + random.below(30);
        let sequence: Vec<u8> = (0..count)
            .flat_map(|_| {
                let request = known[random.below(known.len())].clone();
                changed(request, &mut random)
            })
            .collect();
        targets::run("requests", &sequence);
    }
}
