//! Files of versions.

use tierfs::format::version::{FIXED_BYTES, Stretch, VersionDifference};
use tierfs::format::version_description::Description;
use tierfs::model::Dtype;

use crate::{damaged, golden};

#[test]
fn the_golden_difference_of_a_version_is_read_and_written() {
    let bytes = golden("version.difference");
    let end = VersionDifference::head_bytes(bytes.first_chunk::<FIXED_BYTES>().unwrap()).unwrap() as usize;
    let head = VersionDifference::parse(&bytes[..end]).unwrap();
    let stretch = |len, dtype, base| Stretch { len, dtype, base };
    let wanted = VersionDifference {
        next: 4,
        bytes: golden("version.raw").len() as u64,
        changed: 22,
        bases: ["0000000000000009", "tier0.dat"].map(str::to_owned).to_vec(),
        stretches: vec![
            stretch(400, Dtype::Bf16, Some((0, 8))),
            stretch(5, Dtype::U8, None),
            stretch(30, Dtype::U8, Some((0, 100))),
            stretch(131_082, Dtype::U8, None),
            stretch(16, Dtype::I64, Some((1, 64))),
        ],
        chunks: head.chunks.clone(),
    };
    assert_eq!(head, wanted);
    let payloads: u32 = head.chunks.iter().sum();
    assert_eq!(end + payloads as usize, bytes.len());
    assert!(head.to_bytes() == bytes[..end]);
    for damaged in damaged(&bytes[..end], end) {
        assert!(VersionDifference::parse(&damaged).is_err());
    }
}

#[test]
fn the_golden_description_of_a_version_is_read_and_written() {
    let text = String::from_utf8(golden("version.toml")).unwrap();
    let wanted = Description {
        created_at: 1 << 60,
        bytes: 5,
        state: [0xab; 32],
        changed: Some(22),
        keyframes: ["tier0.dat", "0000000000000009"].map(str::to_owned).to_vec(),
    };
    assert_eq!(Description::parse(&text).unwrap(), wanted);
    assert_eq!(wanted.to_text(), text);
}
