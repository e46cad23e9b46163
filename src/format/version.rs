//! A payload file of a version that is stored as its difference from files of the next version.
//!
//! | at | len | field |
//! |---|---|---|
//! | 0 | 4 | magic `TFVD` |
//! | 4 | 2 | version 1 |
//! | 6 | 2 | number of bases |
//! | 8 | 8 | number of the version that has the bases |
//! | 16 | 8 | bytes of the file |
//! | 24 | 8 | bytes of elements that differ |
//! | 32 | 4 | number of stretches |
//! | 36 | 4 | number of chunks |
//! | 40 | 4 | bytes of this head |
//! | .. | .. | bases: length u8, name in the directory of the version |
//! | .. | 21 each | stretches, which make up the file in order |
//! | .. | 4 each | chunks: bytes of the payload |
//! | .. | 4 | CRC32C of all before |
//! | .. | .. | payloads of the chunks, in order |
//!
//! A stretch: bytes u64, element type u8, base u32 (0xFFFFFFFF for none), offset in the base u64. It is cut every
//! 131,072 bytes into chunks, each with a kind and changes as in a difference of a piece
//! (`format/snapshot/difference.rs`). A stretch without a base is a difference from zeros.

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::format::values::read_dtype;
use crate::model::{Dtype, Error, Result};

const MAGIC: [u8; 4] = *b"TFVD";
const VERSION: u16 = 1;
/// Bytes of the part of a head that every file has.
pub const FIXED_BYTES: usize = 44;
/// Bytes of a stretch.
const STRETCH_BYTES: usize = 21;
/// Bytes that make up a chunk, except the last of a stretch.
pub const CHUNK_BYTES: u64 = 131_072;
/// The most bytes of a payload: those of its chunk, and what says so.
const PAYLOAD_BYTES_MAX: u64 = CHUNK_BYTES + 16;
/// Stands for no base.
const NONE: u32 = u32::MAX;

/// Consecutive bytes of a file, and the equally many bytes that they are a difference from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// Bytes; at least one.
    pub len: u64,
    /// The type of their elements.
    pub dtype: Dtype,
    /// The index of a base and the offset in it; `None` for zeros.
    pub base: Option<(u32, u64)>,
}

impl Stretch {
    /// The number of its chunks.
    pub fn chunks(&self) -> u64 {
        self.len.div_ceil(CHUNK_BYTES)
    }
}

/// The head of such a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VersionDifference {
    /// The number of the version that has the bases.
    pub next: u64,
    /// Bytes of the file that this stands for.
    pub bytes: u64,
    /// Bytes of the elements that differ from those of the bases.
    pub changed: u64,
    /// The names of the bases in the directory of their version.
    pub bases: Vec<String>,
    /// The stretches of the file.
    pub stretches: Vec<Stretch>,
    /// Bytes of the payload of each chunk.
    pub chunks: Vec<u32>,
}

impl VersionDifference {
    /// The bytes of the head.
    pub fn to_bytes(&self) -> Vec<u8> {
        let names: usize = self.bases.iter().map(|name| name.len() + 1).sum();
        let len = FIXED_BYTES + names + self.stretches.len() * STRETCH_BYTES + self.chunks.len() * 4 + 4;
        let mut head = Writer::with_capacity(len);
        head.bytes(&MAGIC).u16(VERSION).u16(self.bases.len() as u16).u64(self.next).u64(self.bytes);
        head.u64(self.changed);
        head.u32(self.stretches.len() as u32).u32(self.chunks.len() as u32).u32(len as u32);
        for name in &self.bases {
            head.u8(name.len() as u8).bytes(name.as_bytes());
        }
        for Stretch { len, dtype, base } in &self.stretches {
            let (base, offset) = base.unwrap_or((NONE, 0));
            head.u64(*len).u8(dtype.code()).u32(base).u64(offset);
        }
        self.chunks.iter().for_each(|bytes| {
            head.u32(*bytes);
        });
        let mut bytes = head.into_bytes();
        let checksum = checksum::of(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The length in bytes of the head that begins with these bytes. `Corrupt` if they begin no head of a difference.
    pub fn head_bytes(fixed: &[u8; FIXED_BYTES]) -> Result<u64> {
        let mut reader = Reader::new(fixed);
        let (magic, version) = (reader.array::<4>()?, reader.u16()?);
        if magic != MAGIC {
            return Err(Error::corrupt("it is not the difference of a version"));
        }
        if version != VERSION {
            return Err(Error::unsupported(format!("version {version} of the difference of a version")));
        }
        reader.skip(FIXED_BYTES - 10)?;
        Ok(u64::from(reader.u32()?))
    }

    /// Reads a whole head. `Corrupt` if it contradicts itself.
    pub fn parse(bytes: &[u8]) -> Result<VersionDifference> {
        let wrong = |text: &str| Error::corrupt(format!("the difference of a version: {text}"));
        let (described, checksum) =
            bytes.split_last_chunk::<4>().ok_or_else(|| wrong("it ends in its head"))?;
        if checksum::of(described) != u32::from_le_bytes(*checksum) {
            return Err(wrong("its head does not match its checksum"));
        }
        let fixed = bytes.first_chunk::<FIXED_BYTES>().ok_or_else(|| wrong("it ends in its head"))?;
        if VersionDifference::head_bytes(fixed)? != bytes.len() as u64 {
            return Err(wrong("its head has another length"));
        }
        let mut reader = Reader::new(described);
        reader.skip(6)?;
        let bases = usize::from(reader.u16()?);
        let (next, file_bytes, changed) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (stretches, chunks) = (reader.u32()? as usize, reader.u32()? as usize);
        reader.skip(4)?;
        let mut found =
            VersionDifference { next, bytes: file_bytes, changed, ..VersionDifference::default() };
        for _ in 0..bases {
            let len = usize::from(reader.u8()?);
            let name = std::str::from_utf8(reader.bytes(len)?).map_err(|_| wrong("a path is not UTF-8"))?;
            found.bases.push(name.to_owned());
        }
        // The lists are taken from bytes that are there, so that a wrong number costs no memory.
        let mut listed = Reader::new(reader.bytes(stretches.saturating_mul(STRETCH_BYTES))?);
        let mut sizes = Reader::new(reader.bytes(chunks.saturating_mul(4))?);
        let (mut sum, mut count) = (Some(0_u64), 0_u64);
        for _ in 0..stretches {
            let len = listed.u64()?;
            let dtype = read_dtype(&mut listed)?;
            let (base, offset) = (listed.u32()?, listed.u64()?);
            let base = (base != NONE).then_some((base, offset));
            if len == 0 || base.is_some_and(|(base, _)| base as usize >= bases) {
                return Err(wrong("a stretch is empty, or has a base that is not there"));
            }
            let stretch = Stretch { len, dtype, base };
            sum = sum.and_then(|sum| sum.checked_add(len));
            count = count.saturating_add(stretch.chunks());
            found.stretches.push(stretch);
        }
        for _ in 0..chunks {
            let bytes = sizes.u32()?;
            if u64::from(bytes) > PAYLOAD_BYTES_MAX {
                return Err(wrong("a chunk has more bytes than it stands for"));
            }
            found.chunks.push(bytes);
        }
        if sum != Some(file_bytes) || count != chunks as u64 || reader.remaining() > 0 {
            return Err(wrong("its stretches do not make up its file"));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> VersionDifference {
        let stretch = |len, dtype, base| Stretch { len, dtype, base };
        VersionDifference {
            next: 7,
            bytes: 300_000,
            changed: 12,
            bases: vec!["data/0000000000000001".to_owned(), "tier0.dat".to_owned()],
            stretches: vec![
                stretch(200, Dtype::U8, None),
                stretch(299_700, Dtype::Bf16, Some((0, 1 << 40))),
                stretch(100, Dtype::F32, Some((1, 0))),
            ],
            chunks: vec![1, 5, 6, 131_088, 0],
        }
    }

    #[test]
    fn a_head_is_read_as_it_was_written_and_one_that_contradicts_itself_is_refused() {
        let head = example();
        let bytes = head.to_bytes();
        let fixed = bytes.first_chunk().unwrap();
        assert_eq!(VersionDifference::head_bytes(fixed).unwrap(), bytes.len() as u64);
        assert_eq!(VersionDifference::parse(&bytes).unwrap(), head);
        let wrong: [fn(&mut VersionDifference); 6] = [
            |head| head.bytes += 1,
            |head| head.chunks.push(1),
            |head| head.chunks[0] = 131_089,
            |head| head.stretches[1].base = Some((2, 0)),
            |head| head.stretches[0].len = 0,
            |head| head.stretches[0].len = u64::MAX,
        ];
        for change in wrong {
            let mut head = example();
            change(&mut head);
            assert!(VersionDifference::parse(&head.to_bytes()).is_err(), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn damaged_heads_are_refused(at in any::<prop::sample::Index>(), byte in 1..=255_u8, cut in any::<prop::sample::Index>()) {
            let bytes = example().to_bytes();
            let mut damaged = bytes.clone();
            damaged[at.index(bytes.len())] ^= byte;
            prop_assert!(VersionDifference::parse(&damaged).is_err());
            prop_assert!(VersionDifference::parse(&bytes[..cut.index(bytes.len())]).is_err());
        }
    }
}
