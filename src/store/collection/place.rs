//! The place of an object's bytes, in words for users.

use std::sync::Arc;

use crate::store::collection::Collection;
use crate::store::object::Object;
use crate::store::state::node::Node;

/// Where the bytes of an object lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlaceOfObject {
    /// The file, below the mount; the collection, if no name leads to a file with these bytes.
    pub path: String,
    /// The tensor of the container `path` whose bytes they are.
    pub tensor: Option<String>,
    /// The offset of the object in the file.
    pub offset: u64,
}

impl Collection {
    /// Where the bytes of an object lie: in the container, if they are those of a tensor of one.
    pub fn place_of(&self, object: &Object) -> PlaceOfObject {
        let state = self.state();
        let id = object.entry.id;
        let has = |node: &&Arc<Node>| node.file().is_some_and(|file| file.objects.contains(&id));
        let part_node = state.part_of(id).and_then(|part| state.node(part));
        let part = part_node.and_then(|node| node.file());
        let container = part.and_then(|part| part.container).and_then(|container| state.node(container));
        let Some(node) = container.filter(has).or_else(|| state.nodes().find(has)) else {
            return PlaceOfObject { path: self.path(), tensor: None, offset: 0 };
        };
        let part_node = part_node.filter(|_| part.is_some_and(|part| part.container.is_some()));
        let before = node.file().into_iter().flat_map(|file| &file.objects).take_while(|other| **other != id);
        let offset = before.filter_map(|before| state.object(*before)).map(|before| before.bytes()).sum();
        let below = state.path(node.entry.id);
        PlaceOfObject {
            path: format!("{}/{}", self.path(), String::from_utf8_lossy(&below)),
            tensor: part_node.and_then(|node| state.tensor_name(node)).map(String::from),
            offset,
        }
    }
}
