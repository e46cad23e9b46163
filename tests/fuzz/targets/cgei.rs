//! Indexes of embedding batches.

use tierfs::format::files::cgeb::RECORD_ALIGNMENT;
use tierfs::format::files::cgei::Index;

pub fn check(bytes: &[u8]) {
    let Ok(index) = Index::parse(bytes) else { return };
    assert_eq!(index.write().ok().as_deref(), Some(bytes));
    assert_eq!(index.offsets.len() * 8 + 24, bytes.len());
    assert!(index.offsets.is_sorted_by(|left, right| left < right));
    assert!(index.offsets.iter().all(|offset| offset % RECORD_ALIGNMENT == 0));
    assert!(index.verify(index.data_hash).is_ok() && index.verify(!index.data_hash).is_err());
}
