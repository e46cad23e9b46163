//! Embedding batches and their indexes.

use std::sync::Arc;

use tierfs::format::files::cgeb::{
    AuxEncoding, BatchWriter, CgebError, ContentHash, Header, Layout, NewRecord, Record, Run, Runs, Sizes,
    leading_hash,
};
use tierfs::format::files::cgei::Index;
use tierfs::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType};
use tierfs::model::{EntryId, Error, ErrorKind, ObjectId, Owner};

use crate::{cases, damaged, file, floats, golden};

const OWN_HASH: u64 = 0x0123_4567_89AB_CDEF;

fn small(layout: Layout, own_hash: Option<u64>) -> Vec<u8> {
    let record = NewRecord {
        layout,
        vector: &[1.5, -2.0, 3.25],
        weights: &[0.5],
        selected: &[0, 7],
        aux: b"aux",
        aux_encoding: AuxEncoding::Raw,
        pipeline_latency_us: 9,
        own_hash,
    };
    record.write().unwrap()
}

#[test]
fn the_golden_batch_is_read_and_written() {
    let case = &cases("cgeb")[0];
    let (data, vectors) = (file(case, "data"), floats(&file(case, "vectors")));
    let weights = floats(&file(case, "weights"));
    let index = Index::parse(&file(case, "index")).unwrap();
    let mut hasher = blake3::Hasher::new();
    index.verify(leading_hash(hasher.update(&data))).unwrap();
    assert_eq!(index.write().unwrap(), file(case, "index"));

    let expected = [
        (Layout::TwoLittle, [1, 5], 120, 0, None),
        (Layout::TwoLittle, [0, 7], 95, 5000, None),
        (Layout::One, [2, 3], 7, 0, Some(OWN_HASH)),
    ];
    let (mut at, mut rebuilt) = (0, Vec::new());
    for (number, (layout, selected, latency, aux, own_hash)) in expected.into_iter().enumerate() {
        assert_eq!(index.offsets[number], at as u64);
        let record = Record::borrow(&data[at..]).unwrap();
        assert_eq!((record.header.layout, record.selected), (layout, &selected[..]));
        assert_eq!(record.header.pipeline_latency_us, latency);
        assert_eq!(record.header.weights_range(), 6208..6240);
        assert_eq!(record.header.record_bytes(), 6242 + aux);
        assert_eq!(record.aux.len() as u64, aux);
        let vector: Vec<f32> = record.vector.iter().collect();
        assert_eq!(vector, vectors[number * 1536..][..1536]);
        assert!(record.weights.into_iter().eq(weights[number * 8..][..8].iter().copied()));
        match own_hash {
            Some(hash) => assert_eq!(record.header.content_hash, ContentHash::Own(hash)),
            None => record.verify().unwrap(),
        }
        let written = NewRecord {
            layout,
            vector: &vector,
            weights: &weights[number * 8..][..8],
            selected: &selected,
            aux: record.aux,
            aux_encoding: AuxEncoding::Raw,
            pipeline_latency_us: latency,
            own_hash,
        };
        rebuilt.extend(written.write().unwrap());
        at += usize::try_from(record.header.stride().unwrap()).unwrap();
        rebuilt.resize(at, 0);
    }
    assert!(rebuilt == data);
}

#[test]
fn a_record_is_borrowed_at_any_alignment_and_in_any_byte_order() {
    for layout in [Layout::One, Layout::TwoBig, Layout::TwoLittle] {
        let bytes = small(layout, Some(5));
        for shift in 0..8 {
            let shifted = [&vec![0xff; shift][..], &bytes, &[0xff; 9]].concat();
            let record = Record::borrow(&shifted[shift..]).unwrap();
            assert!(record.vector.iter().eq([1.5, -2.0, 3.25]));
            assert_eq!((record.vector.get(1), record.vector.get(3)), (Some(-2.0), None));
            assert_eq!((record.weights.len(), record.weights.get(0)), (1, Some(0.5)));
            assert_eq!((record.selected, record.aux), (&[0, 7][..], &b"aux"[..]));
            assert_eq!(record.vector.as_bytes().as_ptr(), shifted[shift + 64..].as_ptr());
        }
    }
}

#[test]
fn a_header_is_written_back_unchanged() {
    for (layout, own_hash) in
        [(Layout::One, Some(OWN_HASH)), (Layout::TwoBig, None), (Layout::TwoLittle, Some(1))]
    {
        let bytes = small(layout, own_hash);
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.write(), bytes[..64]);
    }
    for (flags, encoding) in [(0x4, AuxEncoding::Lz4), (0x8, AuxEncoding::Zstandard)] {
        let mut bytes = small(Layout::TwoBig, Some(1));
        bytes[7] = flags;
        let header = Header::parse(&bytes).unwrap();
        assert_eq!(header.aux_encoding, encoding);
        assert_eq!(header.write(), bytes[..64]);
    }
}

/// The batch `small` with `value` at offset `at`, borrowed.
fn changed(at: usize, value: &[u8]) -> CgebError {
    let mut bytes = small(Layout::TwoLittle, None);
    bytes[at..at + value.len()].copy_from_slice(value);
    let record = Record::borrow(&bytes);
    record.and_then(|record| record.verify()).unwrap_err()
}

#[test]
fn each_defect_of_a_record_is_its_own_error() {
    assert_eq!(changed(0, b"CGEX"), CgebError::WrongMagic { found: *b"CGEX" });
    for version in [0, 3, 0xffff_u16] {
        let error = changed(4, &version.to_be_bytes());
        assert_eq!(error, CgebError::UnsupportedVersion { version });
        assert_eq!(Error::from(error).kind(), ErrorKind::Unsupported);
    }
    for flags in [0xc, 0x10, 0x8000_u16] {
        let error = changed(6, &flags.to_be_bytes());
        assert_eq!(error, CgebError::UnsupportedFlags { version: 2, flags });
    }
    let version_one_with_flags = changed(4, &[0, 1]);
    assert!(matches!(version_one_with_flags, CgebError::UnsupportedFlags { version: 1, .. }));
    assert_eq!(changed(15, &[1]), CgebError::ReservedNotZero { at: 15 });
    assert_eq!(changed(50, &[1]), CgebError::ReservedNotZero { at: 50 });
    assert!(matches!(changed(64, &[9]), CgebError::HashMismatch { .. }));
    assert!(matches!(changed(84, &[9]), CgebError::HashMismatch { .. }));

    let fixed = 82_u64;
    let huge = changed(8, &u32::MAX.to_be_bytes());
    assert!(matches!(huge, CgebError::AuxOverlaps { .. }), "{huge:?}");
    for offset in [0, 1, fixed - 1] {
        let error = changed(32, &offset.to_be_bytes());
        assert_eq!(error, CgebError::AuxOverlaps { offset, fixed });
    }
    for (offset, length) in [(fixed, 4), (fixed + 1, 3), (u64::MAX, 0_u64), (u64::MAX, 1)] {
        let aux = [offset.to_be_bytes(), length.to_be_bytes()].concat();
        let error = changed(32, &aux);
        assert!(matches!(error, CgebError::AuxOutside { .. }), "{error:?}");
    }
    assert_eq!(Error::from(changed(64, &[9])).kind(), ErrorKind::Corrupt);
}

#[test]
fn a_dimension_beyond_the_bytes_is_a_truncation() {
    let mut bytes = small(Layout::One, Some(0));
    bytes[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    bytes[32..48].fill(0);
    let needed = 64 + 4 * u64::from(u32::MAX) + 4 + 2;
    let present = bytes.len() as u64;
    assert_eq!(Record::borrow(&bytes).unwrap_err(), CgebError::Truncated { needed, present });
    assert_eq!(Header::parse(&bytes).unwrap().record_bytes(), needed);
}

#[test]
fn a_truncation_or_a_flipped_bit_is_detected_unless_no_hash_covers_it() {
    let bytes = small(Layout::TwoLittle, None);
    for damaged in damaged(&bytes, bytes.len()) {
        let outcome = Record::borrow(&damaged).and_then(|record| record.verify());
        let differs = bytes.iter().zip(&damaged).position(|(left, right)| left != right);
        // Without its flag the hash is not checked, and it covers neither the latency nor the encoding of aux.
        let uncovered = matches!(differs, Some(7 | 24..32));
        assert!(uncovered || outcome.is_err(), "{differs:?} of {}", damaged.len());
    }
}

#[test]
fn values_that_version_1_or_the_header_cannot_hold_are_refused() {
    let record = NewRecord {
        layout: Layout::One,
        vector: &[],
        weights: &[],
        selected: &[],
        aux: &[],
        aux_encoding: AuxEncoding::Raw,
        pipeline_latency_us: 0,
        own_hash: Some(0),
    };
    assert_eq!(record.write().unwrap().len(), 64);
    let hashed = NewRecord { own_hash: None, ..record };
    assert!(matches!(hashed.write(), Err(CgebError::UnsupportedFlags { .. })));
    let packed = NewRecord { aux_encoding: AuxEncoding::Lz4, ..record };
    assert!(matches!(packed.write(), Err(CgebError::UnsupportedFlags { .. })));
    let crowded = NewRecord { weights: &[0.0; 256], ..record };
    assert_eq!(crowded.write(), Err(CgebError::TooMany { count: 256, most: 255 }));
}

#[test]
fn each_defect_of_an_index_is_its_own_error() {
    let bytes = golden("batch.cgei");
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        Index::parse(&bytes).unwrap_err()
    };
    assert!(matches!(changed(3, b"B"), CgebError::WrongMagic { .. }));
    assert_eq!(changed(5, &[2]), CgebError::UnsupportedVersion { version: 2 });
    assert_eq!(changed(7, &[1]), CgebError::ReservedNotZero { at: 7 });
    for count in [4, u64::MAX, u64::MAX / 8, 1 << 61] {
        let error = changed(8, &count.to_be_bytes());
        assert!(matches!(error, CgebError::Truncated { present: 48, .. }), "{error:?}");
    }
    assert!(matches!(changed(15, &[2]), CgebError::TrailingBytes { end: 40, present: 48 }));
    assert!(matches!(changed(39, &[1]), CgebError::WrongOffset { number: 1, .. }));
    assert!(matches!(changed(38, &[0]), CgebError::WrongOffset { number: 1, offset: 0 }));
    for damaged in damaged(&bytes, 0) {
        assert!(matches!(Index::parse(&damaged), Err(CgebError::Truncated { .. })));
    }
    let index = Index::parse(&bytes).unwrap();
    assert!(matches!(index.verify(0), Err(CgebError::HashMismatch { .. })));
}

/// The contents of aux.zst and aux.lz4, which the command-line tools of both projects made.
fn aux_text() -> Vec<u8> {
    (0..200).flat_map(|row| format!("tensor {} of the batch, row {row}\n", row % 7).into_bytes()).collect()
}

#[test]
fn each_kind_of_auxiliary_data_from_other_programs_is_decoded() {
    let text = aux_text();
    for (encoding, name) in [(AuxEncoding::Lz4, "aux.lz4"), (AuxEncoding::Zstandard, "aux.zst")] {
        let stored = golden(name);
        assert_eq!(encoding.decode(&stored, text.len()).unwrap(), text, "{name}");
        let most = text.len() as u64 - 1;
        assert_eq!(encoding.decode(&stored, text.len() - 1), Err(CgebError::AuxTooLong { most }), "{name}");
        for end in 1..stored.len() {
            assert!(encoding.decode(&stored[..end], 1 << 20).is_err(), "{name} cut at {end}");
        }
        // Flipped bytes are detected, or give other bytes of bounded length.
        for place in 0..stored.len() {
            let mut stored = stored.clone();
            stored[place] ^= 0x41;
            if let Ok(decoded) = encoding.decode(&stored, 1 << 16) {
                assert!(decoded.len() <= 1 << 16);
            }
        }
        assert_eq!(encoding.decode(&encoding.encode(&text).unwrap(), text.len()).unwrap(), text);
        assert!(encoding.decode(&encoding.encode(&[]).unwrap(), 0).unwrap().is_empty());
    }
    let raw = AuxEncoding::Raw;
    assert_eq!(raw.decode(&text, text.len()).unwrap(), raw.encode(&text).unwrap());
    assert_eq!(raw.decode(b"abc", 2), Err(CgebError::AuxTooLong { most: 2 }));
    // False lengths cause no allocation.
    let hostile = [&u32::MAX.to_le_bytes()[..], b"\0"].concat();
    let damaged = AuxEncoding::Lz4.decode(&hostile, usize::MAX);
    assert!(matches!(damaged, Err(CgebError::AuxDamaged { .. })), "{damaged:?}");
    let frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xFF, 0x01, 0x00, 0x00];
    assert!(matches!(AuxEncoding::Zstandard.decode(&frame, 9), Err(CgebError::AuxDamaged { .. })));
}

#[test]
fn a_batch_writer_makes_the_golden_batch() {
    let case = &cases("cgeb")[0];
    let data = file(case, "data");
    let index = Index::parse(&file(case, "index")).unwrap();
    let mut writer = BatchWriter::new(Vec::new());
    for offset in &index.offsets {
        let record = Record::borrow(&data[*offset as usize..]).unwrap();
        let owned = record.decode(1 << 20).unwrap();
        let own_hash = match owned.header.content_hash {
            ContentHash::Own(hash) => Some(hash),
            ContentHash::OfPayload(_) => None,
        };
        let new = NewRecord {
            layout: owned.header.layout,
            vector: &owned.vector,
            weights: &owned.weights,
            selected: &owned.selected,
            aux: &owned.aux,
            aux_encoding: AuxEncoding::Raw,
            pipeline_latency_us: owned.header.pipeline_latency_us,
            own_hash,
        };
        assert_eq!(writer.push(&new).unwrap(), *offset);
        let needed = new.bytes().unwrap();
        let present = needed - 1;
        let mut small = vec![0; present as usize];
        assert_eq!(new.write_into(&mut small), Err(CgebError::NoRoom { needed, present }));
    }
    let (written, found) = writer.finish().unwrap();
    assert!(written == data);
    assert_eq!(found, index);
}

#[test]
fn the_log_tells_whether_a_file_ends_with_the_padding_of_its_last_record() {
    let sizes = Sizes { dimension: 1536, experts: 8, top_k: 2 };
    let run = |count, aux_length| Run {
        count,
        layout: Layout::One,
        is_hashed: false,
        aux_offset: if aux_length > 0 { 6242 } else { 0 },
        aux_length,
    };
    let entry = |runs: Option<Runs>| {
        let mut file = FileEntry::new(Content::Cgeb, [ObjectId(5)]);
        file.records = runs.map(Arc::new);
        let owner = Owner { uid: 1, gid: 2 };
        Entry::Node(Box::new(NodeEntry::new(EntryId(9), 0o644, owner, 3, NodeType::File(Box::new(file)))))
    };
    let read = |bytes: &[u8]| Entry::parse(3, 6, bytes);
    let two = Runs::new(sizes, [run(3, 9), run(4, 0)]).unwrap();
    let short = two.clone().without_last_padding().unwrap();
    let [padded, ended] = [two, short].map(|runs| entry(Some(runs)));
    assert_eq!((padded.version(), ended.version()), (6, 6));
    let (old, new) = (padded.to_bytes(), ended.to_bytes());
    assert_eq!((read(&old).unwrap(), read(&new).unwrap()), (padded, ended));
    // One bit of the kind of the last run.
    let kind = new.len() - 17;
    assert_eq!((old[kind], new[kind]), (0, 8));
    assert_eq!([&new[..kind], &[0], &new[kind + 1..]].concat(), old);
    let changed = |at: usize, bits: u8| {
        let mut bytes = new.clone();
        bytes[at] |= bits;
        read(&bytes).unwrap_err().kind()
    };
    assert_eq!(changed(kind - 25, 8), ErrorKind::Corrupt, "a run that is not the last");
    assert_eq!(changed(kind, 16), ErrorKind::Unsupported);
    // A record that fills its pages has no padding to omit.
    let mut full = entry(Runs::new(sizes, [run(1, 8192 - 6242)])).to_bytes();
    let kind = full.len() - 17;
    full[kind] |= 8;
    assert_eq!(read(&full).unwrap_err().kind(), ErrorKind::Corrupt);
}
