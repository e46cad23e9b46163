//! Cuts the stored bytes of a file of a snapshot into pieces, the objects of a bucket.
//!
//! The cuts depend on the lengths of the file's objects alone, and on nothing before an object of 4 MiB
//! or more, so that files that differ in one place share all other pieces. The first object of a file, if
//! it is smaller, does not count: models that differ in the length of their header are cut alike.

use std::ops::Range;

/// Longer objects are cut at multiples of this.
const FULL: u64 = 8 << 20;
/// Smaller objects are gathered until they have this many bytes. A piece with fewer joins the one before, if
/// that stays within [`JOINED_MAX`].
const SMALL: u64 = 4 << 20;
/// Pieces have at most this many counted bytes.
const JOINED_MAX: u64 = FULL + SMALL;
/// Pieces have fewer bytes than this, those that do not count included.
pub const PIECE_BYTES_MAX: u64 = JOINED_MAX + SMALL;

/// The stretches of a file that a piece consists of, in order.
pub type Stretches = Vec<Range<u64>>;

/// A piece that is being gathered.
#[derive(Default)]
struct Piece {
    stretches: Stretches,
    /// Bytes, without those of the file's first object if it does not count.
    counted: u64,
}

/// The pieces of a file, in order. `objects` are the stretches of the file that store each object's
/// bytes, in the order of the file; other bytes of the file are in no piece.
pub fn pieces(objects: &[Stretches]) -> Vec<Stretches> {
    let mut done: Vec<Piece> = Vec::new();
    let mut open = Piece::default();
    for (place, object) in objects.iter().enumerate() {
        let len = bytes_of(object);
        if len >= SMALL {
            end(&mut done, std::mem::take(&mut open), Joining::Before);
            for from in (0..len).step_by(FULL as usize) {
                let mut piece = Piece::default();
                piece.add(&cut(object, from..len.min(from + FULL)), Counting::All);
                // The object begins a piece, independent of those before.
                end(&mut done, piece, if from == 0 { Joining::Never } else { Joining::Before });
            }
            continue;
        }
        open.add(object, if place == 0 { Counting::None } else { Counting::All });
        if open.counted >= SMALL {
            end(&mut done, std::mem::take(&mut open), Joining::Before);
        }
    }
    end(&mut done, open, Joining::Before);
    done.into_iter().map(|piece| piece.stretches).collect()
}

/// Whether bytes count for the length of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    All,
    None,
}

/// Whether a small piece joins the piece before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Joining {
    Before,
    Never,
}

impl Piece {
    fn add(&mut self, stretches: &[Range<u64>], counting: Counting) {
        if counting == Counting::All {
            self.counted += bytes_of(stretches);
        }
        for stretch in stretches.iter().filter(|stretch| !stretch.is_empty()) {
            match self.stretches.last_mut() {
                Some(last) if last.end == stretch.start => last.end = stretch.end,
                _ => self.stretches.push(stretch.clone()),
            }
        }
    }
}

/// Ends a piece.
fn end(done: &mut Vec<Piece>, piece: Piece, joining: Joining) {
    if piece.stretches.is_empty() {
        return;
    }
    match done.last_mut() {
        Some(before)
            if joining == Joining::Before
                && piece.counted < SMALL
                && before.counted + piece.counted <= JOINED_MAX =>
        {
            before.add(&piece.stretches, Counting::All);
        }
        _ => done.push(piece),
    }
}

/// The bytes of stretches together.
pub fn bytes_of(stretches: &[Range<u64>]) -> u64 {
    stretches.iter().map(|stretch| stretch.end.saturating_sub(stretch.start)).sum()
}

/// The stretches of the bytes `wanted`, counted over all of `stretches`.
fn cut(stretches: &[Range<u64>], wanted: Range<u64>) -> Stretches {
    let mut at = 0;
    let mut found = Vec::new();
    for stretch in stretches {
        let len = stretch.end.saturating_sub(stretch.start);
        let from = wanted.start.clamp(at, at + len) - at;
        let until = wanted.end.clamp(at, at + len) - at;
        if from < until {
            found.push(stretch.start + from..stretch.start + until);
        }
        at += len;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use proptest::prelude::*;

    use super::{FULL, JOINED_MAX, PIECE_BYTES_MAX, SMALL, Stretches, bytes_of, pieces};

    const MIB: u64 = 1 << 20;

    /// Objects of these lengths without gaps.
    fn packed(lens: &[u64]) -> Vec<Stretches> {
        let mut at = 0;
        lens.iter()
            .map(|len| {
                let stretch = at..at + len;
                at += len;
                vec![stretch]
            })
            .collect()
    }

    fn lens(pieces: &[Stretches]) -> Vec<u64> {
        pieces.iter().map(|piece| bytes_of(piece)).collect()
    }

    /// Joins adjacent stretches.
    fn joined(stretches: impl Iterator<Item = Range<u64>>) -> Stretches {
        let mut out: Stretches = Vec::new();
        for stretch in stretches.filter(|stretch| !stretch.is_empty()) {
            match out.last_mut() {
                Some(last) if last.end == stretch.start => last.end = stretch.end,
                _ => out.push(stretch),
            }
        }
        out
    }

    #[test]
    fn files_are_cut_at_the_places_of_the_rule() {
        let cuts = |lens_of: &[u64]| lens(&pieces(&packed(lens_of)));
        assert_eq!(cuts(&[]), [0; 0]);
        assert_eq!(cuts(&[0]), [0; 0]);
        assert_eq!(cuts(&[100]), [100]);
        // A plain file: a rest of less than 4 MiB joins the piece before.
        assert_eq!(cuts(&[8 * MIB]), [8 * MIB]);
        assert_eq!(cuts(&[19 * MIB]), [8 * MIB, 11 * MIB]);
        assert_eq!(cuts(&[20 * MIB]), [8 * MIB, 8 * MIB, 4 * MIB]);
        // A header, two large tensors with a small one between them.
        assert_eq!(cuts(&[500, 17 * MIB, 8192, 16 * MIB]), [500, 8 * MIB, 9 * MIB + 8192, 8 * MIB, 8 * MIB]);
        // Small neighbours are gathered; the header does not count.
        assert_eq!(cuts(&[3 * MIB, 3 * MIB, 2 * MIB, 3 * MIB, 3 * MIB]), [8 * MIB, 6 * MIB]);
        // An object of 4 MiB has a piece of its own; small ones behind it that are too few join it.
        assert_eq!(cuts(&[1, 7 * MIB, 6 * MIB, 4 * MIB]), [1, 7 * MIB, 6 * MIB, 4 * MIB]);
        assert_eq!(cuts(&[1, 2 * MIB, 4 * MIB, 9, 9, 5 * MIB]), [2 * MIB + 1, 4 * MIB + 18, 5 * MIB]);
    }

    /// Lengths near the limits, and any others up to 40 MiB.
    fn object_len() -> impl Strategy<Value = u64> {
        let limits = prop::sample::select(vec![0, 1, SMALL, FULL, JOINED_MAX, 2 * FULL]);
        prop_oneof![
            (limits, 0_u64..3).prop_map(|(at, more)| (at + more).saturating_sub(1)),
            0..40 * MIB,
            0..MIB
        ]
    }

    proptest! {
        #[test]
        fn pieces_have_all_stored_bytes_once_in_order_and_none_of_the_holes(
            objects in prop::collection::vec(prop::collection::vec((0..9 * MIB, 0_u64..100), 0..4), 0..12),
        ) {
            let mut at = 0;
            let objects: Vec<Stretches> = objects.iter().map(|object| object.iter().map(|(len, hole)| {
                let stretch = at + hole..at + hole + len;
                at = stretch.end;
                stretch
            }).collect()).collect();
            let cut = pieces(&objects);
            let all = joined(objects.iter().flatten().cloned());
            prop_assert_eq!(joined(cut.iter().flatten().cloned()), all);
            prop_assert!(cut.iter().all(|piece| !piece.is_empty() && bytes_of(piece) < PIECE_BYTES_MAX));
            prop_assert!(cut.iter().skip(1).all(|piece| bytes_of(piece) <= JOINED_MAX));
        }

        #[test]
        fn small_pieces_stand_only_where_the_piece_before_is_full(lens_of in prop::collection::vec(object_len(), 0..20)) {
            let cut = lens(&pieces(&packed(&lens_of)));
            for pair in cut.windows(2) {
                prop_assert!(pair[1] >= SMALL || pair[0] + pair[1] > JOINED_MAX, "{cut:?}");
            }
        }

        #[test]
        fn files_with_headers_of_other_lengths_are_cut_alike(
            headers in (0..SMALL, 0..SMALL),
            tensors in prop::collection::vec(object_len(), 1..20),
        ) {
            let ends = |header: u64| -> Vec<u64> {
                let objects = packed(&[&[header], tensors.as_slice()].concat());
                let ends = pieces(&objects).into_iter().filter_map(|piece| piece.last().map(|last| last.end));
                // The piece with only a header causes no cut among the tensors.
                ends.map(|end| end - header).filter(|end| *end > 0).collect()
            };
            prop_assert_eq!(ends(headers.0), ends(headers.1));
        }

        #[test]
        fn bytes_before_a_long_object_do_not_move_its_cuts(
            before in prop::collection::vec(object_len(), 1..6),
            len in SMALL..60 * MIB,
            after in prop::collection::vec(object_len(), 0..6),
        ) {
            let start: u64 = before.iter().sum();
            let objects = packed(&[&before, &[len][..], &after].concat());
            let starts: Vec<u64> =
                pieces(&objects).iter().filter_map(|piece| piece.first()).map(|first| first.start).collect();
            let alone = pieces(&packed(&[&[len][..], &after].concat()));
            let wanted = alone.iter().filter_map(|piece| piece.first()).map(|first| first.start + start);
            let found: Vec<u64> = starts.into_iter().filter(|at| *at >= start).collect();
            prop_assert_eq!(found, wanted.collect::<Vec<u64>>());
        }
    }
}
