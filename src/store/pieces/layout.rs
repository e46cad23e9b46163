//! The pieces of a file and where their bytes stand in it. It never changes, and knows nothing of states.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use crate::format::snapshot::manifest::{FileExtent, Manifest, ManifestFile, Piece, PieceEncoding};
use crate::format::snapshot::piece_map::{DIGEST_BYTES, Digest, FileCheck, PieceMap, PieceState};
use crate::model::hex;

/// Bytes of a digest that make a name.
const NAME_BYTES: usize = 16;

/// The pieces of a file, numbered from 0.
#[derive(Default)]
pub struct Layout {
    bytes: u64,
    pieces: Vec<Piece>,
    /// Ascending, apart.
    extents: Vec<FileExtent>,
    /// The extents of each piece, in the order of the file.
    of_piece: Vec<Vec<FileExtent>>,
    name: OnceLock<String>,
}

impl Layout {
    /// The layout of a file of a manifest. Its pieces have the order in which the file needs them first.
    pub fn of(manifest: &Manifest, file: &ManifestFile) -> Layout {
        let (mut pieces, mut extents, mut places) = (Vec::new(), Vec::new(), HashMap::new());
        for extent in file.extents.iter().filter(|extent| extent.len > 0) {
            let Some(piece) = manifest.pieces.get(extent.piece as usize) else { continue };
            let place = *places.entry(extent.piece).or_insert_with(|| {
                pieces.push(*piece);
                pieces.len() as u32 - 1
            });
            extents.push(FileExtent { piece: place, ..*extent });
        }
        Layout::new(file.bytes, pieces, extents)
    }

    /// A layout of these pieces at these places, which ascend and do not overlap.
    pub fn new(bytes: u64, pieces: Vec<Piece>, extents: Vec<FileExtent>) -> Layout {
        let mut of_piece: Vec<Vec<FileExtent>> = vec![Vec::new(); pieces.len()];
        for extent in &extents {
            if let Some(extents) = of_piece.get_mut(extent.piece as usize) {
                extents.push(*extent);
            }
        }
        Layout { bytes, pieces, extents, of_piece, name: OnceLock::new() }
    }

    /// A map with these states.
    pub fn to_map(&self, states: Vec<PieceState>, digests: Option<Vec<Digest>>) -> PieceMap {
        let check = digests.map(|digests| FileCheck { bytes: self.bytes, digests });
        PieceMap { pieces: self.pieces.clone(), extents: self.extents.clone(), states, check }
    }

    /// A map of a file that has no piece yet.
    pub fn to_empty_map(&self) -> PieceMap {
        self.to_map(vec![PieceState::Remote; self.pieces.len()], None)
    }

    /// Whether a map is that of this file. A piece may be stored under another generation.
    pub fn has_map(&self, map: &PieceMap) -> bool {
        let digests = |pieces: &[Piece]| pieces.iter().map(|piece| piece.name.digest).collect::<Vec<_>>();
        map.check.as_ref().is_some_and(|check| check.bytes == self.bytes)
            && map.extents == self.extents
            && digests(&map.pieces) == digests(&self.pieces)
    }

    /// Bytes of the file when it was described.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The name by which files of the same bytes at the same offsets are known.
    pub fn name(&self) -> &str {
        self.name.get_or_init(|| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&self.bytes.to_le_bytes());
            for extent in &self.extents {
                let Some(piece) = self.piece(extent.piece) else { continue };
                hasher.update(&extent.offset.to_le_bytes());
                hasher.update(&extent.len.to_le_bytes());
                hasher.update(&extent.piece_offset.to_le_bytes());
                hasher.update(&piece.name.digest);
                hasher.update(&[piece.encoding.byte()]);
            }
            hex(hasher.finalize().as_bytes().get(..NAME_BYTES).unwrap_or_default())
        })
    }

    /// The number of pieces.
    pub fn piece_count(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// A piece.
    pub fn piece(&self, piece: u32) -> Option<&Piece> {
        self.pieces.get(piece as usize)
    }

    /// The piece with the same stored bytes that stands for the same bytes. A remote may say anything of either.
    pub fn piece_like(&self, wanted: &Piece) -> Option<u32> {
        let key = |piece: &Piece| (piece.name.digest, piece.encoding, piece.raw);
        self.pieces.iter().position(|piece| key(piece) == key(wanted)).map(|place| place as u32)
    }

    /// The places of its bytes, in the order of the file.
    pub fn extents_of(&self, piece: u32) -> &[FileExtent] {
        self.of_piece.get(piece as usize).map_or(&[], Vec::as_slice)
    }

    /// All extents, ascending.
    pub fn extents(&self) -> &[FileExtent] {
        &self.extents
    }

    /// The extents from the first one on that ends behind `offset`.
    pub fn extents_behind(&self, offset: u64) -> &[FileExtent] {
        let first = self.extents.partition_point(|extent| extent.end() <= offset);
        self.extents.get(first..).unwrap_or_default()
    }

    /// The extents in a range of the file, ascending.
    pub fn extents_in(&self, offset: u64, len: u64) -> &[FileExtent] {
        if len == 0 {
            return &[];
        }
        let (end, behind) = (offset.saturating_add(len), self.extents_behind(offset));
        let count = behind.partition_point(|extent| extent.offset < end);
        behind.get(..count).unwrap_or_default()
    }

    /// The pieces with bytes in a range of the file, ascending.
    pub fn pieces_in(&self, offset: u64, len: u64) -> Vec<u32> {
        ascending(self.extents_in(offset, len).iter().map(|extent| extent.piece))
    }

    /// These pieces and those beside them in the file, ascending.
    pub fn with_neighbours(&self, pieces: &[u32]) -> Vec<u32> {
        let extents = pieces.iter().flat_map(|piece| self.extents_of(*piece));
        let beside = extents.flat_map(|extent| {
            let at = self.extents.partition_point(|other| other.end() <= extent.offset);
            [at.checked_sub(1), Some(at + 1)].into_iter().flatten()
        });
        let beside = beside.filter_map(|at| self.extents.get(at)).map(|extent| extent.piece);
        ascending(pieces.iter().copied().chain(beside))
    }

    /// Whether these pieces, which ascend, have all bytes of a range.
    pub fn is_of(&self, range: &Range<u64>, pieces: &[u32]) -> bool {
        let is_of_them = |extent: &FileExtent| pieces.binary_search(&extent.piece).is_ok();
        self.is_covered(range, is_of_them)
    }

    /// Whether the pieces have all bytes of a range.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.is_covered(range, |_| true)
    }

    fn is_covered(&self, range: &Range<u64>, counts: impl Fn(&FileExtent) -> bool) -> bool {
        let mut at = range.start;
        for extent in self.extents_in(range.start, range.end.saturating_sub(range.start)) {
            if extent.offset > at || !counts(extent) {
                return false;
            }
            at = extent.end();
        }
        at >= range.end
    }

    /// The first of the pieces that consist of exactly these ranges of the file.
    pub fn piece_of(&self, ranges: &[Range<u64>]) -> Option<u32> {
        let behind = self.extents_behind(ranges.first()?.start);
        let first = behind.first()?;
        let raw = self.piece(first.piece)?.raw;
        // The same piece may stand in several places.
        let (mut joined, mut bytes): (Vec<Range<u64>>, u32) = (Vec::new(), 0);
        for extent in behind {
            if extent.piece != first.piece || extent.piece_offset != bytes || bytes >= raw {
                break;
            }
            bytes = bytes.saturating_add(extent.len);
            match joined.last_mut() {
                Some(last) if last.end == extent.offset => last.end = extent.end(),
                _ => joined.push(extent.offset..extent.end()),
            }
        }
        (joined == ranges && bytes == raw).then_some(first.piece)
    }

    /// The piece and the range in it of a range of the file that lies in one extent of a piece stored as it
    /// is.
    pub fn verbatim(&self, offset: u64, len: u64) -> Option<(&Piece, Range<u64>)> {
        let extent = self.extents_behind(offset).first().filter(|extent| extent.offset <= offset)?;
        let piece = self.piece(extent.piece).filter(|piece| piece.encoding == PieceEncoding::Raw)?;
        let from = u64::from(extent.piece_offset) + (offset - extent.offset);
        (offset.checked_add(len)? <= extent.end()).then(|| (piece, from..from + len))
    }

    /// Whether the file has the stored bytes of a piece, all of them and in order.
    pub fn is_verbatim(&self, piece: u32) -> bool {
        let mut next = 0;
        let is_in_order = self.extents_of(piece).iter().all(|extent| {
            let is_next = extent.piece_offset == next;
            next = extent.piece_offset.saturating_add(extent.len);
            is_next
        });
        let described = self.piece(piece);
        described
            .is_some_and(|piece| is_in_order && next == piece.raw && piece.encoding == PieceEncoding::Raw)
    }

    /// The BLAKE3 of those bytes of a piece that the file has, in the order of the file.
    pub fn digest(&self, piece: u32, bytes: &[u8]) -> Digest {
        const { assert!(DIGEST_BYTES == blake3::OUT_LEN) };
        let mut hasher = blake3::Hasher::new();
        for extent in self.extents_of(piece) {
            let first = extent.piece_offset as usize;
            hasher.update(bytes.get(first..first + extent.len as usize).unwrap_or_default());
        }
        *hasher.finalize().as_bytes()
    }

    /// Copies those bytes of a piece that stand in a range of the file.
    pub fn copy(&self, piece: u32, bytes: &[u8], buffer: &mut [u8], offset: u64) {
        let (extents, end) = (self.extents_of(piece), offset.saturating_add(buffer.len() as u64));
        let first = extents.partition_point(|extent| extent.end() <= offset);
        for extent in extents.iter().skip(first).take_while(|extent| extent.offset < end) {
            let (from, until) = (extent.offset.max(offset), extent.end().min(end));
            let in_piece = u64::from(extent.piece_offset) + (from - extent.offset);
            let source = bytes.get(in_piece as usize..(in_piece + (until - from)) as usize);
            let target = buffer.get_mut((from - offset) as usize..(until - offset) as usize);
            if let (Some(source), Some(target)) = (source, target) {
                target.copy_from_slice(source);
            }
        }
    }
}

/// Numbers in their order, each once.
fn ascending(numbers: impl Iterator<Item = u32>) -> Vec<u32> {
    let mut found: Vec<u32> = numbers.collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::snapshot::keys::PieceName;

    /// Pieces of 100 bytes that stand in the file in parts: a gap, the piece, its offset, a length.
    fn layout(parts: &[(u64, u32, u32, u32)]) -> Layout {
        let (mut at, mut extents) = (0, Vec::new());
        for (gap, piece, piece_offset, len) in parts {
            let extent =
                FileExtent { offset: at + gap, piece: *piece, piece_offset: *piece_offset, len: *len };
            at = extent.end();
            extents.push(extent);
        }
        let count = extents.iter().map(|extent| extent.piece + 1).max().unwrap_or(0);
        let name = |number: u32| PieceName { digest: [number as u8; 32], generation: 0 };
        let raw = PieceEncoding::Raw;
        let piece = |number| Piece { name: name(number), stored: 100, raw: 100, encoding: raw };
        Layout::new(at, (0..count).map(piece).collect(), extents)
    }

    /// The byte of a piece.
    fn byte(piece: u32, at: u32) -> u8 {
        (piece * 100 + at) as u8 | 1
    }

    proptest! {
        #[test]
        fn queries_agree_with_a_list_of_all_bytes(
            parts in prop::collection::vec((0_u64..9, 0_u32..4, 0_u32..60, 1_u32..40), 1..9),
            (offset, len) in (0_u64..400, 0_u64..200),
        ) {
            let layout = layout(&parts);
            let mut bytes: Vec<Option<(u32, u32)>> = vec![None; layout.bytes() as usize];
            for extent in layout.extents() {
                for at in 0..extent.len {
                    bytes[(extent.offset + u64::from(at)) as usize] = Some((extent.piece, extent.piece_offset + at));
                }
            }
            let end = (offset + len).min(layout.bytes());
            let range = offset.min(end) as usize..end as usize;
            let wanted = ascending(bytes[range.clone()].iter().flatten().map(|(piece, _)| *piece));
            prop_assert_eq!(&layout.pieces_in(offset, len), &wanted);
            let (from, until) = (range.start as u64, range.end as u64);
            prop_assert_eq!(layout.covers(&(from..until)), bytes[range.clone()].iter().all(Option::is_some));
            prop_assert!(!layout.covers(&(from..until)) || layout.is_of(&(from..until), &wanted));
            let mut buffer = vec![0; range.len()];
            for piece in &wanted {
                let raw: Vec<u8> = (0..100).map(|at| byte(*piece, at)).collect();
                layout.copy(*piece, &raw, &mut buffer, from);
            }
            let expected = bytes[range].iter().map(|found| found.map_or(0, |(piece, at)| byte(piece, at)));
            prop_assert_eq!(buffer, expected.collect::<Vec<u8>>());
        }
    }

    #[test]
    fn no_extent_is_in_an_empty_range() {
        let layout = layout(&[(0, 0, 0, 31), (8, 0, 0, 25)]);
        assert_eq!((layout.pieces_in(1, 0), layout.pieces_in(1, 1)), (vec![], vec![0]));
    }

    #[test]
    fn a_piece_is_verbatim_only_with_all_its_bytes_in_order() {
        let layout = layout(&[(0, 0, 0, 60), (3, 1, 0, 50), (0, 0, 60, 40), (5, 1, 60, 40)]);
        assert_eq!([0, 1, 2].map(|piece| layout.is_verbatim(piece)), [true, false, false]);
        assert_eq!(layout.piece_of(&[0..60, 113..153]), None);
        assert_eq!(layout.with_neighbours(&[0]), [0, 1]);
        let bytes: Vec<u8> = (0..100).collect();
        assert_eq!(layout.digest(0, &bytes), *blake3::hash(&bytes).as_bytes());
        let verbatim = layout.verbatim(70, 20).map(|(piece, range)| (piece.name.digest[0], range));
        assert_eq!(verbatim, Some((1, 7..27)));
        assert!(layout.verbatim(50, 20).is_none());
    }

    #[test]
    fn a_piece_of_another_length_or_encoding_is_another_one() {
        let layout = layout(&[(0, 0, 0, 60), (3, 1, 0, 40)]);
        let piece = *layout.piece(1).unwrap();
        let shorter = Piece { raw: piece.raw - 1, ..piece };
        let packed = Piece { encoding: PieceEncoding::Difference, ..piece };
        assert_eq!([piece, shorter, packed].map(|piece| layout.piece_like(&piece)), [Some(1), None, None]);
    }

    #[test]
    fn a_piece_that_consists_of_these_ranges_is_found() {
        let layout = layout(&[(0, 0, 0, 60), (3, 0, 60, 40), (0, 1, 0, 100)]);
        assert_eq!(layout.piece_of(&[0..60, 63..103]), Some(0));
        let only = |range: Range<u64>| layout.piece_of(std::slice::from_ref(&range));
        assert_eq!((only(103..203), only(0..60), layout.piece_of(&[])), (Some(1), None, None));
    }
}
