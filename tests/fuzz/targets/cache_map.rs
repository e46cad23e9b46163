//! The map of a cached file, also with its checksum made right, since nobody guesses one.

use tierfs::format::checksum;
use tierfs::format::snapshot::cache_map::{Bits, Map};

pub fn check(bytes: &[u8]) {
    check_parsed(bytes);
    let Some(described) = bytes.len().checked_sub(4) else { return };
    let mut whole = bytes[..described].to_vec();
    whole.extend(checksum::of(&whole).to_le_bytes());
    check_parsed(&whole);
}

fn check_parsed(bytes: &[u8]) {
    let Ok(map) = Map::parse(bytes) else { return };
    assert!(map.digests.len() * 32 + map.stretches.len() * 16 <= bytes.len());
    assert_eq!(map.bits.count() as usize, map.digests.len());
    // A file is whole only if each piece is there.
    let there = (0..map.bits.count()).filter(|piece| map.bits.has(*piece));
    assert_eq!(map.bits.is_full(), there.count() == map.digests.len());
    assert!(!map.bits.has(map.bits.count()));
    let mut bits = Bits::none(map.bits.count());
    (0..map.bits.count()).for_each(|piece| bits.set(piece, map.bits.has(piece)));
    assert_eq!(bits, map.bits);
    assert_eq!(map.to_bytes(), bytes);
}
