//! One slot of a log and its record; the target seals the slot first, since random input has no right checksum.

use tierfs::format::log::record::Record;
use tierfs::format::log::slot::{RawSlot, SLOT_BYTES};

pub fn check(bytes: &[u8]) {
    let mut slot = RawSlot([0; SLOT_BYTES]);
    for (to, from) in slot.0.iter_mut().zip(bytes) {
        *to = *from;
    }
    let (generation, sequence) = (u64::from(slot.generation()), slot.sequence());
    slot.seal(generation, sequence);
    assert!(slot.is_intact());
    let bit = bytes.len() * 31 % (SLOT_BYTES * 8);
    let mut flipped = slot;
    flipped.0[bit / 8] ^= 1 << (bit % 8);
    assert!(!flipped.is_intact());
    assert_eq!(flipped.corrected(), Some(slot));

    let Ok(record) = Record::parse(&slot) else { return };
    assert!(record.payload_len() <= 8 * u64::from(u32::MAX));
    assert_eq!(record.payload_slots(), record.payload_len().div_ceil(SLOT_BYTES as u64));
    // Unused bits are not kept, so the bytes may differ; their meaning must not.
    let mut written = record.to_slot();
    written.seal(generation, sequence);
    let again = Record::parse(&written).unwrap_or_else(|error| panic!("{error}: {record:?}"));
    let mut rewritten = again.to_slot();
    rewritten.seal(generation, sequence);
    assert_eq!(written, rewritten, "{record:?} and {again:?}");
}
