//! Delta records: the kind, the element type, the block's elements as a u16, the record. Applies a delta to a block
//! and compares with a loop; an exact difference is only parsed and written.

use std::collections::BTreeMap;

use tierfs::format::payload::delta::{Changes, Delta, DeltaKind};
use tierfs::model::Dtype;

pub fn check(bytes: &[u8]) {
    let [kind, dtype, low, high, record @ ..] = bytes else { return };
    let Some(kind) = DeltaKind::from_byte(kind % 3) else { return };
    let dtype = Dtype::ALL[usize::from(*dtype) % Dtype::ALL.len()];
    let elements = usize::from(u16::from_le_bytes([*low, *high]));
    let width = dtype.bytes() as usize;
    let Ok(delta) = Delta::parse(record, kind, dtype, elements as u64) else { return };
    assert_eq!(delta.write(dtype).ok().as_deref(), Some(record));

    if kind == DeltaKind::Exact {
        return;
    }
    let before: Vec<u8> = (0..elements * width).map(|place| (place * 7) as u8).collect();
    let mut block = before.clone();
    delta.apply(dtype, &mut block).unwrap_or_else(|error| panic!("it was read for such a block: {error}"));
    let changed = changed(&delta.changes, width);
    for (place, (new, old)) in block.chunks(width).zip(before.chunks(width)).enumerate() {
        match changed.get(&place) {
            None => assert_eq!(new, old, "element {place} is none of those that change"),
            Some(Some(wanted)) => assert_eq!(new, *wanted, "element {place}"),
            Some(None) => {}
        }
    }
    // A block that ends before the last change stays unchanged.
    if let Some((last, _)) = changed.last_key_value() {
        let mut short = before[..last * width].to_vec();
        assert!(delta.apply(dtype, &mut short).is_err());
        assert_eq!(short, before[..last * width]);
    }
}

/// The elements that change, with their new bytes if the delta has these.
fn changed(changes: &Changes, width: usize) -> BTreeMap<usize, Option<&[u8]>> {
    match changes {
        Changes::Scaled { pairs, .. } => pairs.iter().map(|(index, _)| (usize::from(*index), None)).collect(),
        Changes::Patch { indices, elements } => {
            let places = indices.iter().map(|index| usize::from(*index));
            places.zip(elements.chunks(width).map(Some)).collect()
        }
        Changes::Exact(_) => BTreeMap::new(),
    }
}
