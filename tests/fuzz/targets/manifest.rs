//! The body of a manifest; it is compressed and sealed first, since nobody guesses a digest.

use tierfs::format::snapshot::manifest::Manifest;
use tierfs::format::zstandard;

/// Bytes before the body.
const HEAD_BYTES: usize = 104;

pub fn check(bytes: &[u8]) {
    // As it came: nothing but a digest holds it up.
    if let Ok(manifest) = Manifest::parse(bytes) {
        check_parsed(&manifest, bytes.len());
    }
    let mut whole = b"TFSN\x01\0\0\0".to_vec();
    whole.resize(HEAD_BYTES - 8, 0);
    // The number: it has no parent, and comes after the keyframes of the seed.
    whole[24] = 18;
    whole.extend((bytes.len() as u64).to_le_bytes());
    whole.extend(zstandard::encode(bytes));
    whole.extend(blake3::hash(&whole).as_bytes().as_slice());
    if let Ok(manifest) = Manifest::parse(&whole) {
        check_parsed(&manifest, bytes.len());
    }
}

fn check_parsed(manifest: &Manifest, body_bytes: usize) {
    assert!(manifest.pieces.len() * 45 <= body_bytes);
    let extents: usize = manifest.files.iter().map(|file| file.extents.len()).sum();
    assert!(extents * 4 + manifest.files.len() * 29 <= body_bytes);
    for file in &manifest.files {
        for extent in &file.extents {
            assert!(extent.end() <= file.bytes);
            assert!(extent.piece_offset + extent.len <= manifest.pieces[extent.piece as usize].raw);
        }
    }
    assert!(manifest.files_of(None).unwrap().len() <= manifest.files.len());
    let written = manifest.to_bytes().unwrap();
    assert_eq!(Manifest::parse(&written).unwrap(), *manifest);
}
