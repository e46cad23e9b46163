//! Entries of the catalog: the kind, the version, the payload.

use tierfs::format::log::catalog::{BLOCK_BYTES_MAX, Content, Entry, NodeType};
use tierfs::model::NAME_BYTES_MAX;

pub fn check(bytes: &[u8]) {
    let [kind, version, payload @ ..] = bytes else { return };
    let Ok(entry) = Entry::parse(*kind, *version, payload) else { return };
    assert_eq!((entry.kind(), entry.version()), (*kind, *version));
    assert_eq!(entry.to_bytes(), payload, "{entry:?}");
    match &entry {
        Entry::Name { name, .. } | Entry::NameRemoved { name, .. } => {
            assert!((1..=NAME_BYTES_MAX).contains(&name.len()));
            assert!(!name.contains(&b'/') && !name.contains(&0) && !matches!(&**name, b"." | b".."));
        }
        Entry::Object(object) => {
            assert!((1..=BLOCK_BYTES_MAX).contains(&object.block_bytes));
            let extent = object.extent.map_or(0, |extent| extent.offset);
            assert!(extent.checked_add(object.bytes).is_some_and(|end| end <= i64::MAX as u64));
        }
        Entry::Node(node) => {
            if let NodeType::File(file) = &node.node_type {
                assert!(file.objects.len() * 16 <= payload.len());
                assert_eq!(file.records.is_some(), file.content == Content::Cgeb);
            }
        }
        _ => {}
    }
}
