//! Runs the corpus through the fuzz targets, so that no target stops working and no fixed failure returns, and files of
//! hostile structure through the readers.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::Path;

use support::CountingAllocator;

mod sequences;
mod structures;
mod targets;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn every_file_of_the_corpus_passes_its_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus");
    for (name, _) in targets::TARGETS {
        let check = |bytes: &[u8]| targets::run(name, bytes);
        let mut count = 0;
        for entry in fs::read_dir(corpus.join(name)).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            let bytes = fs::read(&path).unwrap();
            check(&bytes);
            // A little damage makes other inputs of it, the same ones in each run.
            for place in 0..bytes.len().min(64) {
                let mut damaged = bytes.clone();
                let at = place * bytes.len() / 64.min(bytes.len());
                damaged[at] ^= 1 << (place % 8);
                check(&damaged);
                check(&bytes[..at]);
            }
            count += 1;
        }
        assert!(count > 0, "{name} has no corpus");
    }
}

#[test]
fn every_target_has_a_program_and_every_program_a_target() {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/programs");
    let mut found: Vec<String> = fs::read_dir(programs)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    assert!(found.iter().eq(targets::TARGETS.iter().map(|(name, _)| name)), "{found:?}");
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/Cargo.toml")).unwrap();
    for name in &found {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in tests/fuzz/Cargo.toml");
    }
}
