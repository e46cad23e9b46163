//! Manifests of snapshots, which a remote serves as others wrote them: many small parts, extents that share a piece, long
//! texts, variants that share files, and lists that claim more items than they have.

use support::protobuf::varint;
use support::{Random, scale};
use tierfs::format::snapshot::manifest::Manifest;
use tierfs::format::zstandard;

use super::{FILES, count, is_bounded, name, size};

/// Bytes before the body.
const HEAD_BYTES: usize = 104;

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len());
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, number: usize) {
    out.extend((number as u32).to_le_bytes());
}

/// A number of items; now and then a wrong one.
fn said(random: &mut Random, out: &mut Vec<u8>, items: usize) {
    let wrong = random.below(60) == 0;
    number(out, if wrong { size(random) as usize } else { items });
}

fn body(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, "t");
    text(&mut out, "c");
    out.extend([0; 32]);
    text(&mut out, &name(random));
    text(&mut out, "tierfs");
    let needs = count(random) / 10;
    said(random, &mut out, needs);
    for place in 0..needs {
        text(&mut out, "t");
        text(&mut out, &place.to_string());
        out.extend(1_u64.to_le_bytes());
    }
    let pieces = 1 + count(random);
    said(random, &mut out, pieces);
    for _ in 0..pieces {
        out.extend(random.bytes(32));
        out.extend([0; 4]);
        out.extend([&9_u32.to_le_bytes()[..], &9_u32.to_le_bytes(), &[0]].concat());
    }
    // No piece is a difference.
    said(random, &mut out, 0);
    // The log, data files, and a log and tier files of each variant.
    let (data, variants) = (count(random) / 10, count(random) / 100);
    said(random, &mut out, 1 + data + 2 * variants);
    for place in 0..1 + data + 2 * variants {
        let (kind, file) = match place {
            0 => (0, 0),
            place if place <= data => (1, place as u64),
            place => ((place - data) as u8 % 2 * 2, 0),
        };
        out.push(kind);
        let extents = if kind == 1 { 1 + count(random) / 20 } else { 0 };
        let bytes = 10 * extents as u64;
        out.extend([&file.to_le_bytes()[..], &bytes.to_le_bytes(), &[0; 8]].concat());
        said(random, &mut out, extents);
        for extent in 0..extents {
            // The same bytes of the first piece, again and again.
            out.extend(varint(u64::from(extent > 0)));
            out.push(0);
            out.push(if extent > 0 { 17 } else { 0 });
            out.extend(varint(9));
        }
    }
    said(random, &mut out, variants);
    for place in 0..variants {
        text(&mut out, &format!("v{place}"));
        number(&mut out, data + 2 * place + 2);
        said(random, &mut out, 1);
        number(&mut out, data + 2 * place + 1);
        out.extend([0; 32]);
    }
    out
}

fn whole(body: &[u8], said: u64) -> Vec<u8> {
    let mut whole = b"TFSN\x01\0\0\0".to_vec();
    whole.resize(HEAD_BYTES - 8, 0);
    whole[24] = 1;
    whole.extend(said.to_le_bytes());
    whole.extend(zstandard::encode(body));
    whole.extend(blake3::hash(&whole).as_bytes().as_slice());
    whole
}

/// The things that a manifest lists.
fn things(manifest: &Manifest) -> usize {
    let extents = manifest.files.iter().map(|file| file.extents.len());
    let of_variants = manifest.variants.iter().map(|variant| 1 + variant.files.len());
    let lists = manifest.needs.len() + manifest.pieces.len() + manifest.files.len();
    lists + extents.sum::<usize>() + of_variants.sum::<usize>()
}

#[test]
fn manifests_of_hostile_structure_take_work_in_proportion_to_their_bodies() {
    let mut read = 0;
    for number in 0..FILES * scale() as usize {
        let mut random = Random(number as u64);
        let body = body(&mut random);
        let (len, bytes) = (body.len() as u64, whole(&body, body.len() as u64));
        let mut parsed = None;
        let about = format!("manifest {number}, {len} bytes");
        is_bounded(&about, len, || parsed = Manifest::parse(&bytes).ok());
        if let Some(manifest) = parsed {
            read += 1;
            assert!(things(&manifest) * 4 <= body.len(), "{about}");
        }
    }
    assert!(read > FILES / 4, "{read} were read");
}

#[test]
fn a_body_that_is_longer_than_it_says_is_not_decoded_to_its_end() {
    let zeros = vec![0; 64 << 20];
    let bytes = whole(&zeros, 1000);
    let about = format!("{} bytes of zeros", bytes.len());
    is_bounded(&about, bytes.len() as u64, || assert!(Manifest::parse(&bytes).is_err()));
}
