//! Pieces that are stored as differences from other pieces: made of bytes, and bytes made of them. The layout of what
//! is stored is in `format/snapshot/difference.rs`.

use crate::codec::difference::{add_difference, encode_difference};
use crate::codec::ladder::{ELEMENTS_MAX, Scratch};
use crate::codec::sparse::{add_sparse, encode_sparse};
use crate::format::cursor::Reader;
use crate::format::snapshot::difference::{BaseStretch, DifferenceHead};
use crate::format::snapshot::manifest::Piece;
use crate::format::snapshot::pieces::PIECE_BYTES_MAX;
use crate::format::zstandard;
use crate::model::{Dtype, Error, Result};

/// Elements that are compared together.
const CHUNK_ELEMENTS: usize = ELEMENTS_MAX;
const EQUAL: u8 = 0;
const SPARSE: u8 = 1;
const LADDER: u8 = 2;
const VERBATIM: u8 = 3;
/// Bytes of a head and of changes that are decoded at most.
const UNPACKED_BYTES_MAX: usize = 2 * PIECE_BYTES_MAX as usize;

/// A difference that was read.
pub struct Difference {
    bytes: Vec<u8>,
    head: DifferenceHead,
    changes: usize,
}

/// The stored bytes of a piece with the bytes `raw` and their BLAKE3, as a difference: its stretches have indexes into
/// `bases`, each a piece and its bytes. `None` if they would be more than `bytes_max`.
pub fn encode(
    raw: &[u8],
    digest: [u8; 32],
    stretches: &[BaseStretch],
    bases: &[(Piece, &[u8])],
    bytes_max: usize,
) -> Result<Option<Vec<u8>>> {
    let head = DifferenceHead {
        digest,
        bases: bases.iter().map(|(piece, _)| *piece).collect(),
        stretches: stretches.to_vec(),
    };
    let mut out = Vec::new();
    head.write(&mut out);
    // Compression seldom shortens the rest to less than half.
    let limit = bytes_max.saturating_mul(2).saturating_add(out.len());
    let (mut at, mut scratch) = (0_usize, Scratch::default());
    for stretch in stretches {
        let len = stretch.len as usize;
        let part = raw.get(at..at.saturating_add(len)).ok_or_else(outside)?;
        at += len;
        match stretch.base {
            None => out.extend_from_slice(part),
            Some((base, offset)) => {
                let (_, base) = bases.get(base as usize).ok_or_else(outside)?;
                let base =
                    base.get(offset as usize..).and_then(|rest| rest.get(..len)).ok_or_else(outside)?;
                let step = chunk_bytes(stretch.dtype);
                for (old, new) in base.chunks(step).zip(part.chunks(step)) {
                    encode_chunk(stretch.dtype, old, new, &mut out, &mut scratch)?;
                    if out.len() > limit {
                        return Ok(None);
                    }
                }
            }
        }
        if out.len() > limit {
            return Ok(None);
        }
    }
    let stored = zstandard::encode(&out);
    Ok((stored.len() <= bytes_max).then_some(stored))
}

/// The bytes that the changes of elements take, before they are compressed together. There are at most 65,536.
pub fn changed_bytes(dtype: Dtype, base: &[u8], new: &[u8]) -> Result<usize> {
    let mut out = Vec::new();
    encode_chunk(dtype, base, new, &mut out, &mut Scratch::default())?;
    Ok(out.len())
}

impl Difference {
    /// Reads the stored bytes of a piece that stands for `raw` bytes. `Corrupt` if they are no difference.
    pub fn parse(stored: &[u8], raw: u32) -> Result<Difference> {
        let bytes = zstandard::decode(stored, UNPACKED_BYTES_MAX)
            .map_err(|_| Error::corrupt("a difference that is not a Zstandard frame"))?;
        let (head, changes) = DifferenceHead::parse(&bytes, raw)?;
        let changes = bytes.len() - changes.len();
        Ok(Difference { head, changes, bytes })
    }

    /// The pieces that it is a difference from.
    pub fn bases(&self) -> &[Piece] {
        &self.head.bases
    }

    /// The bytes that the piece stands for, of those that its bases stand for. `Corrupt` if the result is not that of
    /// the piece.
    pub fn apply<B: AsRef<[u8]>>(&self, bases: &[B]) -> Result<Vec<u8>> {
        let mut changes = Reader::new(self.bytes.get(self.changes..).unwrap_or_default());
        let bytes = self.head.stretches.iter().map(|stretch| stretch.len as usize).sum();
        let (mut out, mut scratch) = (Vec::with_capacity(bytes), Scratch::default());
        for stretch in &self.head.stretches {
            let len = stretch.len as usize;
            let Some((base, offset)) = stretch.base else {
                out.extend_from_slice(changes.bytes(len)?);
                continue;
            };
            let base = bases.get(base as usize).map(AsRef::as_ref);
            let base = base.and_then(|base| base.get(offset as usize..)?.get(..len)).ok_or_else(outside)?;
            let begin = out.len();
            out.extend_from_slice(base);
            for chunk in out.get_mut(begin..).unwrap_or_default().chunks_mut(chunk_bytes(stretch.dtype)) {
                apply_chunk(stretch.dtype, &mut changes, chunk, &mut scratch)?;
            }
        }
        if changes.remaining() > 0 || *blake3::hash(&out).as_bytes() != self.head.digest {
            return Err(Error::corrupt("a difference that does not give the bytes that it names"));
        }
        Ok(out)
    }
}

/// Bytes of an element, of those that are compared as numbers.
pub(in crate::store) fn width(dtype: Dtype) -> usize {
    match dtype.bytes() {
        width @ (2 | 4 | 8) if dtype != Dtype::C64 => width as usize,
        8 => 4,
        _ => 1,
    }
}

fn chunk_bytes(dtype: Dtype) -> usize {
    CHUNK_ELEMENTS * width(dtype)
}

/// Appends the shortest form of a chunk.
pub(in crate::store) fn encode_chunk(
    dtype: Dtype,
    base: &[u8],
    new: &[u8],
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<()> {
    if base == new {
        out.push(EQUAL);
        return Ok(());
    }
    let width = if new.len().is_multiple_of(width(dtype)) { width(dtype) } else { 1 };
    let mut sparse = Vec::new();
    let is_sparse = encode_sparse(width, base, new, new.len() / 2, &mut sparse);
    let mut ladder = Vec::new();
    // A sparse difference of few elements is shorter than any ladder.
    let may_be_ladder = !is_sparse || sparse.len() > new.len() / 32;
    let is_ladder = may_be_ladder
        && width == dtype.bytes() as usize
        && encode_difference(dtype, base, new, &mut ladder, scratch)?
        && (!is_sparse || ladder.len() < sparse.len());
    let (kind, payload) = match (is_ladder, is_sparse) {
        (true, _) if ladder.len() < new.len() => (LADDER, ladder),
        (_, true) => (SPARSE, sparse),
        _ => {
            out.push(VERBATIM);
            out.extend_from_slice(new);
            return Ok(());
        }
    };
    out.push(kind);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend(payload);
    Ok(())
}

/// Turns the bytes of a base into those of the piece.
pub(in crate::store) fn apply_chunk(
    dtype: Dtype,
    changes: &mut Reader<'_>,
    chunk: &mut [u8],
    scratch: &mut Scratch,
) -> Result<()> {
    match changes.u8()? {
        EQUAL => Ok(()),
        SPARSE => {
            let len = changes.u32()? as usize;
            let width = if chunk.len().is_multiple_of(width(dtype)) { width(dtype) } else { 1 };
            add_sparse(width, changes.bytes(len)?, chunk)
        }
        LADDER => {
            let len = changes.u32()? as usize;
            add_difference(dtype, changes.bytes(len)?, chunk, scratch)
        }
        VERBATIM => {
            chunk.copy_from_slice(changes.bytes(chunk.len())?);
            Ok(())
        }
        kind => Err(Error::corrupt(format!("a chunk of kind {kind} in a difference"))),
    }
}

fn outside() -> Error {
    Error::corrupt("a stretch of a difference goes past its piece")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::format::snapshot::keys::PieceName;
    use crate::format::snapshot::manifest::PieceEncoding;

    const DTYPES: [Dtype; 8] =
        [Dtype::Bf16, Dtype::F16, Dtype::F32, Dtype::I64, Dtype::U8, Dtype::C64, Dtype::F4, Dtype::I16];

    fn piece(bytes: &[u8]) -> Piece {
        let name = PieceName { digest: *blake3::hash(bytes).as_bytes(), generation: 0 };
        Piece { name, stored: bytes.len() as u32, raw: bytes.len() as u32, encoding: PieceEncoding::Raw }
    }

    /// Stretches of two bases, and the bytes of a piece in which about one of so many bytes differs.
    fn example(
        parts: &[(usize, usize, usize, usize)],
        seed: u64,
    ) -> (Vec<Vec<u8>>, Vec<BaseStretch>, Vec<u8>) {
        let mut state = seed | 1;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state >> 33
        };
        let bases: Vec<Vec<u8>> = (0..2).map(|_| (0..400_000).map(|_| random() as u8).collect()).collect();
        let (mut stretches, mut raw) = (Vec::new(), Vec::new());
        for (len, dtype, offset, one_of) in parts {
            let (base, offset) = (offset % 3, offset % 100_000);
            let mut bytes: Vec<u8> = match bases.get(base) {
                Some(base) => base[offset..offset + len].to_vec(),
                None => (0..*len).map(|_| random() as u8).collect(),
            };
            bytes
                .iter_mut()
                .filter(|_| random().is_multiple_of(*one_of as u64))
                .for_each(|byte| *byte = byte.wrapping_add(1));
            raw.extend(bytes);
            let place = (base < 2).then_some((base as u32, offset as u32));
            stretches.push(BaseStretch {
                len: *len as u32,
                dtype: DTYPES[dtype % DTYPES.len()],
                base: place,
            });
        }
        (bases, stretches, raw)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_piece_is_made_again_and_damaged_differences_are_refused(
            parts in prop::collection::vec((1..300_000_usize, 0..8_usize, any::<usize>(), 1..2000_usize), 1..5),
            seed in any::<u64>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let (bases, stretches, raw) = example(&parts, seed);
            let pieces: Vec<(Piece, &[u8])> = bases.iter().map(|base| (piece(base), base.as_slice())).collect();
            let digest = *blake3::hash(&raw).as_bytes();
            let stored = encode(&raw, digest, &stretches, &pieces, usize::MAX >> 3).unwrap().unwrap();
            let difference = Difference::parse(&stored, raw.len() as u32).unwrap();
            prop_assert_eq!(difference.bases().len(), 2);
            prop_assert!(difference.apply(&bases).unwrap() == raw);
            prop_assert!(Difference::parse(&stored, raw.len() as u32 + 1).is_err());
            prop_assert!(encode(&raw, digest, &stretches, &pieces, stored.len() - 1).unwrap().is_none());
            let other = [bases[0].iter().map(|byte| byte ^ 1).collect(), bases[1].clone()];
            let uses_first = stretches.iter().any(|stretch| stretch.base.is_some_and(|(base, _)| base == 0));
            match difference.apply(&other) {
                // All that differs may stand there as it is.
                Ok(found) => prop_assert!(found == raw),
                Err(_) => prop_assert!(uses_first),
            }
            // Bytes that were made up inside of the frame.
            let mut bytes = difference.bytes.clone();
            damage.iter().for_each(|(at, byte)| {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            });
            if let Ok(parsed) = Difference::parse(&zstandard::encode(&bytes), raw.len() as u32)
                && let Ok(found) = parsed.apply(&bases)
            {
                prop_assert!(found == raw);
            }
        }
    }
}
