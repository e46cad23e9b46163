//! The map of a file of a clone, also with its checksum made right, since nobody guesses one.

use tierfs::format::checksum;
use tierfs::format::snapshot::piece_map::PieceMap;

pub fn check(bytes: &[u8]) {
    check_parsed(bytes);
    // The bytes behind the numbers of pieces and extents become theirs, then come a checksum and the states.
    let (Some(pieces), Some(extents)) = (number(bytes, 8), number(bytes, 12)) else { return };
    let described = 16 + pieces.saturating_mul(45).saturating_add(extents.saturating_mul(20));
    let Some(head) = bytes.get(..described) else { return };
    let mut whole = head.to_vec();
    whole.extend(checksum::of(head).to_le_bytes());
    whole.resize(whole.len() + pieces, b'H');
    check_parsed(&whole);
}

fn number(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().unwrap()) as usize)
}

fn check_parsed(bytes: &[u8]) {
    let Ok(map) = PieceMap::parse(bytes) else { return };
    assert!(map.pieces.len() * 46 + map.extents.len() * 20 <= bytes.len());
    assert_eq!(map.pieces.len(), map.states.len());
    let mut end = 0;
    for extent in &map.extents {
        assert!(extent.offset >= end && extent.len > 0);
        end = extent.end();
        assert!(extent.piece_offset + extent.len <= map.pieces[extent.piece as usize].raw);
    }
    // A state that is unknown is written as that of bytes of one's own.
    assert_eq!(PieceMap::parse(&map.to_bytes()).unwrap(), map);
}
