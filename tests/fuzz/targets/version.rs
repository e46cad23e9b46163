//! The head of a difference of a version, also with its length and checksum made right, and the description of a version.

use tierfs::format::checksum;
use tierfs::format::version::{CHUNK_BYTES, FIXED_BYTES, VersionDifference};
use tierfs::format::version_description::Description;

pub fn check(bytes: &[u8]) {
    check_head(bytes);
    if let Some(head) = bytes.get(..bytes.len().saturating_sub(4)).filter(|head| head.len() >= FIXED_BYTES) {
        let mut whole = head.to_vec();
        whole[FIXED_BYTES - 4..FIXED_BYTES].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        whole.extend(checksum::of(&whole).to_le_bytes());
        check_head(&whole);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(description) = Description::parse(text) {
        assert_eq!(Description::parse(&description.to_text()).unwrap(), description);
    }
}

fn check_head(bytes: &[u8]) {
    let Ok(head) = VersionDifference::parse(bytes) else { return };
    assert!(head.stretches.len() * 21 + head.chunks.len() * 4 + head.bases.len() <= bytes.len());
    let (mut end, mut chunks) = (0_u64, 0);
    for stretch in &head.stretches {
        assert!(stretch.len > 0 && stretch.base.is_none_or(|(base, _)| (base as usize) < head.bases.len()));
        end += stretch.len;
        chunks += stretch.len.div_ceil(CHUNK_BYTES);
    }
    assert_eq!((end, chunks), (head.bytes, head.chunks.len() as u64));
    // Of a stretch without a base the offset is written as 0.
    let written = head.to_bytes();
    assert_eq!(written.len(), bytes.len());
    assert_eq!(VersionDifference::parse(&written).unwrap(), head);
}
