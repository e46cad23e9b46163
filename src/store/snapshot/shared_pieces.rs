//! The data files of a variant. It shares a piece with the collection only if it needs nearly all of it; what it
//! needs of the others lies in pieces of its own. All bytes keep their offsets in the file.

use std::ops::Range;

use crate::format::snapshot::pieces::{Stretches, bytes_of, pieces};
use crate::store::snapshot::payloads::CanonicalFile;

/// A piece is shared if the variant needs at least this part of it, in eighths.
const SHARED_MIN: u64 = 7;

/// The pieces from which a variant has the bytes that it needs of a data file.
pub struct Narrowed {
    /// The stretches of the pieces that it shares with the collection, ascending.
    pub shared: Stretches,
    /// The stretches of each piece of its own.
    pub own: Vec<Stretches>,
}

impl CanonicalFile {
    /// The pieces of a variant that needs these stretches, which ascend. `None` if it shares all.
    pub(super) fn narrowed(&self, used: &[Range<u64>]) -> Option<Narrowed> {
        let (mut shared, mut rest, mut is_whole) = (Stretches::new(), Stretches::new(), true);
        for piece in self.pieces() {
            let needed = common(&piece, used);
            if bytes_of(&needed) * 8 >= bytes_of(&piece) * SHARED_MIN {
                shared.extend(piece);
            } else {
                is_whole = false;
                rest.extend(needed);
            }
        }
        let of_objects =
            || -> Vec<Stretches> { self.objects.iter().map(|stretches| common(stretches, &rest)).collect() };
        (!is_whole).then(|| Narrowed { shared, own: pieces(&of_objects()) })
    }
}

/// The parts of stretches that others have too; both ascend.
fn common(stretches: &[Range<u64>], others: &[Range<u64>]) -> Stretches {
    let mut found = Stretches::new();
    for stretch in stretches {
        let first = others.partition_point(|other| other.end <= stretch.start);
        let touching = others.iter().skip(first).take_while(|other| other.start < stretch.end);
        for other in touching {
            let (start, end) = (other.start.max(stretch.start), other.end.min(stretch.end));
            match found.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => found.push(start..end),
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::common;
    use crate::format::snapshot::manifest::FileKind;
    use crate::format::snapshot::pieces::{Stretches, bytes_of};
    use crate::store::snapshot::payloads::CanonicalFile;

    const MIB: u64 = 1 << 20;

    /// A data file of objects of these lengths, and of gaps between them.
    fn file(objects: &[(u64, u64)]) -> CanonicalFile {
        let mut file = CanonicalFile::new(FileKind::Data, 1);
        for (gap, len) in objects {
            let start = file.bytes + gap;
            file.bytes = start + len;
            if *len > 0 {
                let object = start..file.bytes;
                file.objects.push(Vec::from([object]));
            }
        }
        file
    }

    #[test]
    fn small_tensors_between_large_ones_lie_in_one_piece_and_whole_pieces_are_shared() {
        let small = 4096;
        let of = [(0, 500), (0, 20 * MIB), (0, small), (0, 20 * MIB), (0, small), (0, 16 * MIB)];
        let file = file(&of);
        let (first, second) = (500 + 20 * MIB, 500 + 40 * MIB + small);
        let exact = second + small..second + small + 16 * MIB;
        let used = [0..500, first..first + small, second..exact.end];
        let narrowed = file.narrowed(&used).unwrap();
        let own: Vec<Stretches> = vec![vec![first..first + small, second..second + small]];
        assert_eq!((bytes_of(&narrowed.shared), narrowed.own), (500 + 16 * MIB, own));
        let all = 0..file.bytes;
        assert!(file.narrowed(std::slice::from_ref(&all)).is_none());
        let none = file.narrowed(&[]).unwrap();
        assert!(none.shared.is_empty() && none.own.is_empty());
    }

    proptest! {
        #[test]
        fn a_variant_has_all_bytes_that_it_needs_once_and_few_others(
            objects in prop::collection::vec((0..3_u64, prop_oneof![0..20 * MIB, 0..5000_u64]), 0..20),
            used in prop::collection::vec((0..3 * MIB, 1..9 * MIB), 0..20),
        ) {
            let file = file(&objects);
            let mut at = 0;
            let used: Stretches = used.iter().map(|(gap, len)| {
                let start = at + gap;
                at = start + len;
                start..at
            }).collect();
            let all: Stretches = file.objects.concat();
            let needed = common(&all, &used);
            let Some(narrowed) = file.narrowed(&used) else {
                prop_assert!(bytes_of(&needed) * 8 >= bytes_of(&all) * super::SHARED_MIN);
                return Ok(());
            };
            let own: Stretches = narrowed.own.concat();
            prop_assert_eq!(bytes_of(&common(&narrowed.shared, &own)), 0);
            prop_assert_eq!(bytes_of(&common(&needed, &own)), bytes_of(&own));
            let found = bytes_of(&common(&needed, &narrowed.shared)) + bytes_of(&own);
            prop_assert_eq!(found, bytes_of(&needed));
            prop_assert!((bytes_of(&narrowed.shared) + bytes_of(&own)) * super::SHARED_MIN <= bytes_of(&needed) * 8);
        }
    }
}
