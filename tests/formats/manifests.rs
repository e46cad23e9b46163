//! Manifests: against golden files, there and back, and made up by somebody.

use proptest::prelude::*;
use tierfs::format::snapshot::difference::{BaseStretch, DifferenceHead};
use tierfs::format::snapshot::keys::PieceName;
use tierfs::format::snapshot::manifest::{
    Described, FileExtent, FileKind, Manifest, ManifestFile, Needed, OwnerAndMode, ParentSnapshot, Piece,
    PieceDifference, PieceEncoding, Variant, digest,
};
use tierfs::format::snapshot::references::{References, ReferredObject, ReferredPiece, Version};
use tierfs::format::snapshot::signature::{Signature, sign, signed};
use tierfs::format::zstandard;
use tierfs::model::{Dtype, ErrorKind, StoreId};
use tierfs::store::pieces::difference::Difference;

use crate::golden;

const HEAD_BYTES: usize = 104;

fn piece(name: u8, generation: u32, stored: u32, raw: u32, encoding: PieceEncoding) -> Piece {
    Piece { name: PieceName { digest: [name; 32], generation }, stored, raw, encoding }
}

fn file(
    kind: FileKind,
    number: u64,
    bytes: u64,
    mtime: i64,
    extents: &[(u64, u32, u32, u32)],
) -> ManifestFile {
    let extent = |&(offset, piece, piece_offset, len): &_| FileExtent { offset, piece, piece_offset, len };
    ManifestFile { kind, number, bytes, mtime, extents: extents.iter().map(extent).collect() }
}

/// The manifest that `tests/golden/snapshots.py` writes.
fn described() -> Manifest {
    let (log, data, tier) = (FileKind::Log, FileKind::Data, FileKind::Tier);
    Manifest {
        remote: StoreId(u128::from_le_bytes(std::array::from_fn(|place| place as u8))),
        number: 18,
        parent: Some(ParentSnapshot { number: 17, digest: [0xab; 32] }),
        push: u128::from_le_bytes(std::array::from_fn(|place| place as u8 + 100)),
        created_at: 1_700_000_000_000_000_001,
        collection: Described {
            tenant: "acme".to_owned(),
            name: "llama 3".to_owned(),
            tenant_owner: OwnerAndMode { uid: 1000, gid: 100, mode: 0o750 },
            owner: OwnerAndMode { uid: 1001, gid: 101, mode: 0o2775 },
            created_at: 1_700_000_000,
        },
        message: "first é".to_owned(),
        tool: "tierfs 0.1.0".to_owned(),
        needs: vec![Needed { tenant: "acme".to_owned(), collection: "base".to_owned(), number: 3 }],
        pieces: vec![
            piece(0x10, 7, 300, 900, PieceEncoding::Zstandard),
            piece(0x20, 0, 8 << 20, 8 << 20, PieceEncoding::Raw),
            piece(0x30, u32::MAX, 70_000, 70_000, PieceEncoding::Raw),
            piece(0x40, 8, 512, 1024, PieceEncoding::Zstandard),
            piece(0x50, 0, 200, 40_000, PieceEncoding::Difference),
        ],
        differences: vec![PieceDifference {
            piece: 4,
            digest: [0x51; 32],
            since: 16,
            stretches: vec![
                BaseStretch { len: 30_000, dtype: Dtype::Bf16, base: Some((1, 64)) },
                BaseStretch { len: 10_000, dtype: Dtype::U8, base: None },
            ],
        }],
        files: vec![
            file(log, 0, 900, 0, &[(0, 0, 0, 900)]),
            file(
                data,
                1,
                (8 << 20) + 600,
                1_700_000_000_123_456_789,
                &[(0, 2, 0, 500), (600, 1, 0, 8 << 20)],
            ),
            file(data, 0x1f_0000_0000, 1 << 40, -1, &[(8, 4, 0, 40_000)]),
            file(tier, 2, 64_000, 0, &[(0, 2, 500, 63_000), (63_488, 2, 63_500, 64)]),
            file(FileKind::Delta, 0, 64, 0, &[(0, 2, 69_000, 64)]),
            file(FileKind::Factor, 0, 20, 0, &[(10, 2, 0, 10)]),
            file(log, 0, 1024, 0, &[(0, 3, 0, 1024)]),
            file(tier, 2, 4096, 0, &[(4000, 2, 69_900, 96)]),
            file(data, 1, (8 << 20) + 600, 1_700_000_000_123_456_789, &[(0, 2, 0, 500)]),
        ],
        variants: vec![Variant {
            name: "q5".to_owned(),
            log: 6,
            files: vec![7, 8],
            recipe: std::array::from_fn(|place| place as u8),
        }],
        references: None,
    }
}

/// The body of a manifest, decompressed.
fn body_of(bytes: &[u8]) -> Vec<u8> {
    zstandard::decode(&bytes[HEAD_BYTES..bytes.len() - 32], 1 << 20).unwrap()
}

/// A manifest with this head and body, of which the length and the digest are right.
fn sealed(head: &[u8], body: &[u8]) -> Vec<u8> {
    let mut bytes = head[..HEAD_BYTES].to_vec();
    bytes[96..104].copy_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend(zstandard::encode(body));
    let digest = blake3::hash(&bytes);
    bytes.extend(digest.as_bytes());
    bytes
}

#[test]
fn the_golden_manifest_is_read_and_written() {
    let (golden, body) = (golden("manifest.tfsn"), golden("manifest.body"));
    let manifest = Manifest::parse(&golden).unwrap();
    assert_eq!(manifest, described());
    let written = manifest.to_bytes().unwrap();
    assert_eq!(written[..HEAD_BYTES], golden[..HEAD_BYTES]);
    assert_eq!(body_of(&written), body);
    assert_eq!(digest(&written).unwrap(), *blake3::hash(&written[..written.len() - 32]).as_bytes());
    assert_eq!(Manifest::parse(&written).unwrap(), manifest);
}

#[test]
fn the_golden_difference_is_applied_to_its_base() {
    let [base, piece, raw] = ["base", "piece", "raw"].map(|end| golden(&format!("difference.{end}")));
    let difference = Difference::parse(&piece, raw.len() as u32).unwrap();
    let [described] = difference.bases() else { panic!("{:?}", difference.bases()) };
    let name = PieceName { digest: *blake3::hash(&base).as_bytes(), generation: 7 };
    let len = base.len() as u32;
    assert_eq!(*described, Piece { name, stored: len, raw: len, encoding: PieceEncoding::Raw });
    assert_eq!(difference.apply(&[&base]).unwrap(), raw);
    let mut other = base.clone();
    other[20] ^= 1;
    assert_eq!(difference.apply(&[&other]).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_difference_from_more_bytes_than_a_reader_has_room_for_is_refused() {
    let base = |name| piece(name, 0, 15 << 20, 15 << 20, PieceEncoding::Raw);
    let stretches = vec![BaseStretch { len: 100, dtype: Dtype::U8, base: Some((0, 0)) }];
    for (count, is_read) in [(4, true), (5, false)] {
        let bases = (0..count).map(base).collect();
        let head = DifferenceHead { digest: [1; 32], bases, stretches: stretches.clone() };
        let mut bytes = Vec::new();
        head.write(&mut bytes);
        assert_eq!(DifferenceHead::parse(&bytes, 100).is_ok(), is_read, "{count} bases");
    }
}

#[test]
fn a_variant_has_its_own_log_and_tier_files_and_shares_all_others_or_some_of_their_pieces() {
    let manifest = described();
    let numbers = |variant| -> Vec<_> {
        let files = manifest.files_of(variant).unwrap();
        files.iter().map(|(_, file)| (file.kind, file.number, file.bytes)).collect()
    };
    let shared = [
        (FileKind::Data, 1, (8 << 20) + 600),
        (FileKind::Data, 0x1f_0000_0000, 1 << 40),
        (FileKind::Delta, 0, 64),
        (FileKind::Factor, 0, 20),
    ];
    let mut own = vec![(FileKind::Log, 0, 900), (FileKind::Tier, 2, 64_000)];
    own.splice(1..1, shared[..2].iter().copied());
    own.extend(&shared[2..]);
    assert_eq!(numbers(None), own);
    let of_variant = [(FileKind::Log, 0, 1024), (FileKind::Tier, 2, 4096), shared[0]];
    assert_eq!(numbers(Some("q5")), [&of_variant[..], &shared[1..]].concat());
    assert!(manifest.files_of(Some("q8")).is_none());
    // Of the first data file it has one of two pieces.
    let whole = &manifest.files[1];
    assert_eq!(whole.extents_in(&[0..2, 20..30]), manifest.files[8].extents);
    assert_eq!(whole.extents_in(&[0..500, 600..601]), whole.extents);
    assert_eq!(whole.extents_in(&[1..600, 601..700]), []);
}

#[test]
fn no_flipped_bit_of_a_manifest_is_overlooked() {
    let golden = golden("manifest.tfsn");
    for bit in 0..golden.len() * 8 {
        let mut damaged = golden.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::parse(&damaged).is_err(), "bit {bit}");
    }
    for len in 0..golden.len() {
        assert!(Manifest::parse(&golden[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn manifests_of_newer_programs_are_told_from_damaged_ones() {
    let (golden, body) = (golden("manifest.tfsn"), golden("manifest.body"));
    let kind = |head: &[u8], body: &[u8]| Manifest::parse(&sealed(head, body)).unwrap_err().kind();
    let with = |place: usize, byte: u8| {
        let mut head = golden.clone();
        head[place] = byte;
        head
    };
    assert_eq!(kind(&with(4, 2), &body), ErrorKind::Unsupported);
    assert_eq!(kind(&with(6, 4), &body), ErrorKind::Unsupported);
    assert_eq!(kind(&with(0, b'X'), &body), ErrorKind::Corrupt);
    // The encoding of the first piece, 44 bytes after the piece's name begins.
    let name = body.windows(32).position(|bytes| bytes == [0x10; 32]).unwrap();
    let mut other = body.clone();
    other[name + 44] = 16;
    assert_eq!(kind(&golden, &other), ErrorKind::Unsupported);
    let mut longer = body.clone();
    longer.push(0);
    assert_eq!(kind(&golden, &longer), ErrorKind::Corrupt);
    assert_eq!(kind(&golden, &body[..body.len() - 1]), ErrorKind::Corrupt);
}

#[test]
fn a_signature_stands_before_the_digest_and_covers_all_before_it() {
    let plain = described().to_bytes().unwrap();
    for key in [Some([7; 32]), None] {
        let made = Signature { key, bytes: std::array::from_fn(|at| at as u8) };
        let message = std::cell::RefCell::new(Vec::new());
        let bytes = sign(&plain, &|given| {
            message.borrow_mut().extend_from_slice(given);
            Ok(made)
        });
        let bytes = bytes.unwrap();
        assert_eq!(bytes.len(), plain.len() + 96);
        assert_eq!(Manifest::parse(&bytes).unwrap(), described());
        let mut content = plain[..plain.len() - 32].to_vec();
        content[6] = 1;
        let text = format!("tierfs snapshot {}\n", blake3::hash(&content).to_hex());
        assert_eq!(message.into_inner(), text.as_bytes());
        assert_eq!(signed(&bytes).unwrap(), (text.into_bytes(), made));
        let end = bytes.len() - 32;
        assert_eq!(bytes[end - 96..end - 64], key.unwrap_or_default());
        assert_eq!(digest(&bytes).unwrap(), *blake3::hash(&bytes[..end]).as_bytes());
        assert!(sign(&bytes, &|_| Ok(made)).is_err(), "it is signed already");
        // The flag without a signature: the frame is cut.
        let mut cut = content;
        let digest = *blake3::hash(&cut).as_bytes();
        cut.extend(digest);
        assert_eq!(Manifest::parse(&cut).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    assert_eq!(signed(&plain), None);
}

/// A manifest with a log and a file of 100 bytes in an object of another bucket.
fn referring() -> Manifest {
    let object =
        ReferredObject { key: "a/b".to_owned(), bytes: 120, version: Version::ETag("\"1\"".to_owned()) };
    let versions = [Version::Id("v".to_owned()), Version::Modified(-3), Version::Fixed];
    let others = versions.into_iter().map(|version| ReferredObject { version, ..object.clone() });
    let references = References {
        source: "s3://bucket/models".to_owned(),
        objects: std::iter::once(object.clone()).chain(others).collect(),
        pieces: vec![ReferredPiece { piece: 1, object: 0, offset: 20 }],
        are_read: false,
    };
    let digest = references.name_of(&object, 20, 100);
    let name = PieceName { digest, generation: 0 };
    let referred = Piece { name, stored: 100, raw: 100, encoding: PieceEncoding::Raw };
    Manifest {
        pieces: vec![piece(0x10, 0, 300, 900, PieceEncoding::Zstandard), referred],
        differences: Vec::new(),
        files: vec![
            file(FileKind::Log, 0, 900, 0, &[(0, 0, 0, 900)]),
            file(FileKind::Data, 1, 100, 0, &[(0, 1, 0, 100)]),
        ],
        variants: Vec::new(),
        references: Some(Box::new(references)),
        ..described()
    }
}

#[test]
fn references_are_read_as_they_were_written_and_wrong_ones_are_refused() {
    let manifest = referring();
    let bytes = manifest.to_bytes().unwrap();
    assert_eq!(bytes[6], 2);
    assert_eq!(Manifest::parse(&bytes).unwrap(), manifest);
    let signed = sign(&bytes, &|_| Ok(Signature { key: None, bytes: [9; 64] })).unwrap();
    assert_eq!((signed[6], Manifest::parse(&signed).unwrap()), (3, manifest.clone()));
    type Change = fn(&mut References);
    let changes: [(&str, Change); 7] = [
        ("another place", |references| references.pieces[0].offset = 19),
        ("another version", |references| references.objects[0].version = Version::Fixed),
        ("another source", |references| references.source.push('x')),
        ("a place past the end", |references| references.objects[0].bytes = 119),
        ("a piece of the log", |references| references.pieces[0].piece = 0),
        ("a piece twice", |references| references.pieces.push(references.pieces[0])),
        ("no such object", |references| references.pieces[0].object = 4),
    ];
    for (what, change) in changes {
        let mut changed = referring();
        change(changed.references.as_mut().unwrap());
        assert_eq!(changed.to_bytes().unwrap_err().kind(), ErrorKind::Invalid, "{what}");
    }
    let mut read = referring();
    read.pieces[1].name.digest = [7; 32];
    assert!(read.to_bytes().is_err(), "a name of other bytes");
    read.references.as_mut().unwrap().are_read = true;
    assert_eq!(Manifest::parse(&read.to_bytes().unwrap()).unwrap(), read);
    let body = body_of(&bytes);
    for cut in 0..body.len() {
        assert!(Manifest::parse(&sealed(&bytes, &body[..cut])).is_err(), "{cut}");
    }
}

#[test]
fn a_manifest_without_files_is_a_removal_and_short() {
    let named = |tenant: &str, name: &str| {
        let collection =
            Described { tenant: tenant.to_owned(), name: name.to_owned(), ..described().collection };
        let tool = "tierfs 100.200.300".to_owned();
        let (needs, differences) = (Vec::new(), Vec::new());
        let empty =
            Manifest { message: String::new(), needs, pieces: Vec::new(), differences, tool, ..described() };
        Manifest { collection, files: Vec::new(), variants: Vec::new(), ..empty }
    };
    let long: String = (0..255).map(|at| char::from(b'a' + (at * at % 26) as u8)).collect();
    for (tenant, name) in [("a", "b"), ("acme", "llama"), (&long, &long)] {
        let removal = named(tenant, name);
        let bytes = removal.to_bytes().unwrap();
        let bytes = sign(&bytes, &|_| Ok(Signature { key: None, bytes: [9; 64] })).unwrap();
        assert!(bytes.len() as u64 <= Manifest::removal_bytes_max(tenant, name), "{} bytes", bytes.len());
        let read = Manifest::parse(&bytes).unwrap();
        assert!(read.is_removal() && read == removal);
    }
    assert!(!described().is_removal());
    let with_piece = Manifest { pieces: described().pieces, ..named("a", "b") };
    assert_eq!(with_piece.to_bytes().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn manifests_that_contradict_themselves_are_neither_written_nor_read() {
    type Change = fn(&mut Manifest);
    let changes: [(&str, Change); 35] = [
        ("number 0", |manifest| manifest.number = 0),
        ("a parent after it", |manifest| manifest.number = 17),
        ("a tenant with a slash", |manifest| manifest.collection.tenant = "a/b".to_owned()),
        ("a hidden collection", |manifest| manifest.collection.name = ".x".to_owned()),
        ("a need without a name", |manifest| manifest.needs[0].collection.clear()),
        ("a raw piece of another length", |manifest| manifest.pieces[1].stored -= 1),
        ("a piece that grows", |manifest| manifest.pieces[0].stored = 900),
        ("a difference that nothing describes", |manifest| manifest.differences.clear()),
        ("a difference of another piece", |manifest| manifest.differences[0].piece = 3),
        ("a difference described twice", |manifest| {
            let twice = manifest.differences[0].clone();
            manifest.differences.push(twice);
        }),
        ("a difference from itself", |manifest| manifest.differences[0].stretches[0].base = Some((4, 0))),
        ("a difference from no piece", |manifest| manifest.differences[0].stretches[0].base = None),
        ("a difference past its base", |manifest| {
            manifest.differences[0].stretches[0].base = Some((1, (8 << 20) - 29_999));
        }),
        ("a difference from a missing piece", |manifest| {
            manifest.differences[0].stretches[0].base = Some((9, 0));
        }),
        ("a difference of other bytes", |manifest| manifest.differences[0].stretches[1].len = 9_999),
        ("a difference since the future", |manifest| manifest.differences[0].since = 18),
        ("a difference in a log", |manifest| {
            manifest.pieces[0].encoding = PieceEncoding::Difference;
            let stretches = vec![BaseStretch { len: 900, dtype: Dtype::U8, base: Some((1, 0)) }];
            manifest
                .differences
                .insert(0, PieceDifference { piece: 0, digest: [0; 32], since: 1, stretches });
        }),
        ("an empty piece", |manifest| (manifest.pieces[2].stored, manifest.pieces[2].raw) = (0, 0)),
        ("a piece of 16 MiB", |manifest| manifest.pieces[0].raw = 16 << 20),
        ("no files", |manifest| manifest.files.clear()),
        ("no log first", |manifest| manifest.files.swap(0, 1)),
        ("a log with a hole", |manifest| manifest.files[0].extents[0].offset = 1),
        ("a log without an end", |manifest| manifest.files[0].bytes += 1),
        ("a data file 0", |manifest| manifest.files[1].number = 0),
        ("a tier file 4", |manifest| manifest.files[3].number = 4),
        ("an extent past the end", |manifest| manifest.files[1].bytes -= 1),
        ("overlapping extents", |manifest| manifest.files[1].extents[1].offset = 499),
        ("an empty extent", |manifest| manifest.files[1].extents[0].len = 0),
        ("an unknown piece", |manifest| manifest.files[1].extents[0].piece = 5),
        ("an extent past its piece", |manifest| manifest.files[0].extents[0].piece_offset = 1),
        ("a file of 2^63 bytes", |manifest| manifest.files[2].bytes = 1 << 63),
        ("a file twice", |manifest| manifest.files[2].number = 1),
        ("a variant without a log", |manifest| manifest.variants[0].log = 3),
        ("a variant with a delta file", |manifest| manifest.variants[0].files[0] = 4),
        ("a log without a variant", |manifest| manifest.variants.clear()),
    ];
    for (what, change) in changes {
        let mut manifest = described();
        change(&mut manifest);
        assert_eq!(manifest.to_bytes().unwrap_err().kind(), ErrorKind::Invalid, "{what}");
    }
    let golden = golden("manifest.tfsn");
    let mut body = body_of(&golden);
    let name = body.windows(4).position(|bytes| bytes == b"acme").unwrap();
    body[name] = b'/';
    assert_eq!(Manifest::parse(&sealed(&golden, &body)).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn a_manifest_that_claims_much_makes_no_large_allocation() {
    let (golden, body) = (golden("manifest.tfsn"), golden("manifest.body"));
    // The numbers of needs' bytes, pieces, files and extents of the first file; none is followed by as much.
    let pieces = body.windows(32).position(|bytes| bytes == [0x10; 32]).unwrap() - 4;
    let differences = pieces + 4 + 5 * 45;
    let files = differences + 4 + 48 + 2 * 13;
    for place in [0, pieces, differences, differences + 48, files, files + 4 + 25] {
        for claimed in [u32::MAX, 1 << 24, 1 << 20] {
            let mut claims = body.clone();
            claims[place..place + 4].copy_from_slice(&u32::to_le_bytes(claimed));
            let error = Manifest::parse(&sealed(&golden, &claims)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{claimed} at {place}: {error}");
        }
    }
    let mut head = golden.clone();
    head.truncate(HEAD_BYTES);
    let mut bomb = head.clone();
    // 300 MiB of zeros in a frame of few bytes, and a head that admits it.
    bomb[96..104].copy_from_slice(&(300_u64 << 20).to_le_bytes());
    bomb.extend(zstandard::encode(&vec![0; 1 << 20]));
    let digest = blake3::hash(&bomb);
    bomb.extend(digest.as_bytes());
    assert!(Manifest::parse(&bomb).unwrap_err().to_string().contains("a body of 314572800 bytes"));
    // A body longer than the head says is not decoded to its end.
    let mut long = head;
    long[96..104].copy_from_slice(&10_u64.to_le_bytes());
    long.extend(zstandard::encode(&vec![0; 1 << 20]));
    let digest = blake3::hash(&long);
    long.extend(digest.as_bytes());
    assert!(Manifest::parse(&long).unwrap_err().to_string().contains("longer than it says"));
}

fn manifests() -> impl Strategy<Value = Manifest> {
    let pieces =
        proptest::collection::vec((any::<[u8; 32]>(), any::<u32>(), 1..16_u32 << 20, any::<bool>()), 1..20);
    let lens = proptest::collection::vec((0..1_u64 << 40, 0..20_u32, any::<u32>(), any::<u32>()), 0..30);
    let files = proptest::collection::vec((0..4_usize, any::<u64>(), any::<i64>(), lens), 0..6);
    (pieces, files, any::<u64>(), any::<u128>(), "\\PC{0,20}", any::<[u32; 6]>()).prop_map(
        |(pieces, files, number, push, message, owners)| {
            let mut manifest = described();
            manifest.variants.clear();
            manifest.files.truncate(1);
            manifest.pieces.truncate(1);
            manifest.differences.clear();
            (manifest.number, manifest.push, manifest.message) = (number.max(18), push, message);
            let [uid, gid, mode, tenant_uid, tenant_gid, tenant_mode] = owners;
            manifest.collection.owner = OwnerAndMode { uid, gid, mode };
            manifest.collection.tenant_owner =
                OwnerAndMode { uid: tenant_uid, gid: tenant_gid, mode: tenant_mode };
            let bases: Vec<u32> = pieces.iter().map(|(_, _, raw, _)| *raw).collect();
            manifest.pieces.extend(pieces.into_iter().map(|(digest, generation, raw, is_raw)| {
                let name = PieceName { digest, generation };
                let raw = if is_raw { raw } else { raw.max(2) };
                let encoding = if is_raw { PieceEncoding::Raw } else { PieceEncoding::Zstandard };
                Piece { name, stored: if is_raw { raw } else { raw - 1 }, raw, encoding }
            }));
            for (base, raw) in (1..).zip(bases).filter(|(_, raw)| raw.is_multiple_of(3)) {
                let name = PieceName { digest: [base as u8; 32], generation: 1 };
                let piece = Piece { name, stored: 1, raw, encoding: PieceEncoding::Difference };
                let stretches = vec![
                    BaseStretch { len: raw - raw / 3, dtype: Dtype::F16, base: Some((base, raw / 3)) },
                    BaseStretch { len: raw / 3, dtype: Dtype::C64, base: None },
                ];
                let piece_index = manifest.pieces.len() as u32;
                manifest.pieces.push(piece);
                let since = manifest.number - 1;
                let digest = [raw as u8; 32];
                manifest.differences.push(PieceDifference { piece: piece_index, digest, since, stretches });
            }
            for (kind, number, mtime, places) in files {
                let kind = [FileKind::Data, FileKind::Tier, FileKind::Delta, FileKind::Factor][kind];
                let number = match kind {
                    FileKind::Data => number.clamp(1, u64::MAX - 1),
                    FileKind::Tier => number % 4,
                    _ => 0,
                };
                if manifest.files.iter().any(|file| (file.kind, file.number) == (kind, number)) {
                    continue;
                }
                let (mut at, mut extents) = (0, Vec::new());
                for (gap, piece, offset, len) in places {
                    let piece = piece % manifest.pieces.len() as u32;
                    let raw = manifest.pieces[piece as usize].raw;
                    let piece_offset = offset % raw;
                    let extent = FileExtent {
                        offset: at + gap % (1 << 30),
                        piece,
                        piece_offset,
                        len: 1 + len % (raw - piece_offset),
                    };
                    at = extent.end();
                    extents.push(extent);
                }
                manifest.files.push(ManifestFile { kind, number, bytes: at + number % 7, mtime, extents });
            }
            manifest
        },
    )
}

proptest! {
    #[test]
    fn a_manifest_is_read_as_it_was_written(manifest in manifests()) {
        let bytes = manifest.to_bytes().unwrap();
        prop_assert_eq!(Manifest::parse(&bytes).unwrap(), manifest);
    }
}
