//! The files of a collection, read through its state.

use std::collections::HashMap;

use tierfs::store::{OpenObject, Store, Verify};
use tierfs::stream::{Segment, Stream};

/// The bytes of all files and tensors of a collection by their paths.
pub fn files_of(store: &Store, tenant: &str, collection: &str) -> HashMap<String, Vec<u8>> {
    let collection = store.collection(tenant, collection).unwrap();
    let nodes: Vec<_> = {
        let state = collection.state();
        let files = state.nodes().filter(|node| node.file().is_some()).map(|node| node.entry.id);
        files.map(|id| (id, String::from_utf8(state.path(id)).unwrap())).collect()
    };
    let read = |id| {
        let objects = collection.objects_of(id).unwrap();
        let open = |object| Segment::Object(OpenObject::open(&collection, object, Verify::First).unwrap());
        let stream = Stream::new(objects.iter().map(open).collect()).unwrap();
        let mut bytes = vec![0; stream.bytes() as usize];
        stream.read(0, &mut bytes).unwrap();
        bytes
    };
    nodes.into_iter().map(|(id, path)| (path, read(id))).collect()
}
