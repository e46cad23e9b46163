//! The map of a file that consists of pieces, also with its checksum made right, since nobody guesses one.

use tierfs::format::checksum;
use tierfs::format::snapshot::piece_map::{PieceMap, PieceState};

pub fn check(bytes: &[u8]) {
    check_parsed(bytes);
    // The bytes behind the numbers of pieces and extents become theirs, then come a checksum, states and digests.
    let (Some(pieces), Some(extents), Some(flags)) = (number(bytes, 8), number(bytes, 12), bytes.get(6))
    else {
        return;
    };
    let is_checked = flags & 1 == 1;
    let length = if is_checked { 8 } else { 0 };
    let described = 16 + pieces.saturating_mul(45).saturating_add(extents.saturating_mul(20)) + length;
    let Some(head) = bytes.get(..described) else { return };
    let mut whole = head.to_vec();
    whole.extend(checksum::of(head).to_le_bytes());
    whole.resize(whole.len() + pieces, b'H');
    if is_checked {
        whole.resize(whole.len() + pieces * 32, 7);
    }
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
    if let Some(check) = &map.check {
        assert_eq!(check.digests.len(), map.pieces.len());
        assert!(!map.states.contains(&PieceState::Own));
    }
    let written = map.to_bytes();
    assert_eq!(written.len(), bytes.len());
    let place = |piece: u32| map.places().state(piece) as usize;
    for (piece, state) in (0..).zip(&map.states) {
        assert_eq!(written[place(piece)], state.byte());
    }
    // Only states that are unknown are written as others.
    assert!(written[..place(0)] == bytes[..place(0)]);
    assert_eq!(PieceMap::parse(&written).unwrap(), map);
}
