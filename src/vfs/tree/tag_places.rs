//! Places below `/.tags`: the directory of tags, a tag, a link. `tags.rs` looks them up and lists them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::model::{EntryId, escape_component};
use crate::store::{Collection, Node};
use crate::vfs::tree::ino::{Ino, Owner, Place};

/// The directory of tags at the top of a mount. Listings hide it.
pub const TAGS_NAME: &str = ".tags";

/// The place of the directory, and of everything in it, among those of controls of tenants. Its number takes the bits of
/// the tenant.
pub(super) const TAGS_PLACE: u32 = 15;
/// The highest number of a tag or a link.
const TAG_NUMBER_MAX: u64 = (1 << 40) - 1;

/// The directory of tags, a tag, or a link in it.
#[derive(Clone)]
pub struct TagsView {
    /// Its number in this mount; 0 for the directory of tags.
    pub(super) number: u64,
    pub(super) of: TagPlace,
}

/// The kind of a place below the directory of tags.
#[derive(Clone)]
pub(super) enum TagPlace {
    /// The directory of tags itself.
    Top,
    Tag(Arc<str>),
    Link(Arc<str>, Tagged),
}

/// A file or directory that has tags.
#[derive(Clone)]
pub(super) struct Tagged {
    pub collection: Arc<Collection>,
    pub node: Arc<Node>,
}

/// The user for whom names are found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Viewer {
    /// Sees every file.
    All,
    User(u32),
}

/// The numbers of tags and links that were looked up or listed in this mount.
#[derive(Default)]
pub(super) struct TagNumbers(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    keys: HashMap<u64, TagKey>,
    numbers: HashMap<TagKey, u64>,
    /// Nodes by tag and name of their link.
    names: HashMap<(Arc<str>, String), (u32, EntryId)>,
}

/// A tag, or a link in it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct TagKey {
    pub tag: Arc<str>,
    pub link: Option<LinkKey>,
}

/// The file of a link, at a path. A file that moves has another link, because the kernel keeps targets.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct LinkKey {
    pub collection: u32,
    pub node: EntryId,
    pub name: String,
}

impl TagKey {
    /// The number that it is given while it is free: the kernel keeps targets of links by it.
    fn first_number(&self) -> u64 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.tag.len().to_le_bytes()).update(self.tag.as_bytes());
        if let Some(link) = &self.link {
            hasher.update(&link.collection.to_le_bytes()).update(&link.node.0.to_le_bytes());
            hasher.update(link.name.as_bytes());
        }
        let digest = hasher.finalize();
        let (first, _) = digest.as_bytes().split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
        1 + u64::from_le_bytes(*first) % TAG_NUMBER_MAX
    }
}

impl TagNumbers {
    /// The number of a place, which it keeps as long as the mount lasts: a hash of it, unless two meet.
    pub fn number(&self, key: &TagKey) -> u64 {
        let mut all = self.0.lock();
        if let Some(number) = all.numbers.get(key) {
            return *number;
        }
        let first = key.first_number();
        let number = (first..=TAG_NUMBER_MAX).chain(1..first).find(|number| !all.keys.contains_key(number));
        let number = number.unwrap_or(first);
        all.keys.insert(number, key.clone());
        all.numbers.insert(key.clone(), number);
        number
    }

    /// The place that has a number.
    pub fn key(&self, number: u64) -> Option<TagKey> {
        self.0.lock().keys.get(&number).cloned()
    }

    /// Remembers the file of a link, so that the name is found at once. Returns the name.
    pub fn note_link(&self, tag: &Arc<str>, file: &Tagged) -> String {
        let (name, numbers) = (file.link_name(), file.numbers());
        self.0.lock().names.insert((tag.clone(), name.clone()), numbers);
        name
    }

    /// The node that a link had when it was listed.
    pub fn named(&self, tag: &Arc<str>, name: &str) -> Option<(u32, EntryId)> {
        self.0.lock().names.get(&(tag.clone(), name.to_owned())).copied()
    }
}

impl TagsView {
    pub(super) fn top() -> TagsView {
        TagsView { number: 0, of: TagPlace::Top }
    }

    pub(super) fn place(&self) -> Place {
        Place::Control { owner: Owner::Tenant(self.number), place: TAGS_PLACE, node: EntryId(0) }
    }

    pub fn is_directory(&self) -> bool {
        !matches!(self.of, TagPlace::Link(..))
    }

    /// The target of a link, relative to the directory of its tag.
    pub fn target(&self) -> Option<Vec<u8>> {
        let TagPlace::Link(_, file) = &self.of else { return None };
        Some([b"../../", file.path().as_slice()].concat())
    }
}

impl Tagged {
    pub fn has_tag(&self, tag: &str) -> bool {
        self.collection.state().tags_of(self.node.entry.id).any(|own| own == tag)
    }

    /// Its path below the mount.
    fn path(&self) -> Vec<u8> {
        let below = self.collection.state().path(self.node.entry.id);
        let parts = [self.collection.path().into_bytes(), below];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/')
    }

    /// The name of its links: its path below the mount, with the slashes escaped.
    pub fn link_name(&self) -> String {
        escape_component(&String::from_utf8_lossy(&self.path()))
    }

    pub fn link_key(&self) -> LinkKey {
        let (collection, node) = self.numbers();
        LinkKey { collection, node, name: self.link_name() }
    }

    /// The numbers of the collection and the node.
    fn numbers(&self) -> (u32, EntryId) {
        (self.collection.state().number(), self.node.entry.id)
    }
}

/// The number of a place below the directory of tags.
pub(super) fn tag_number(ino: Ino) -> Option<u64> {
    match ino.place() {
        Place::Control { owner: Owner::Tenant(number), place: TAGS_PLACE, .. } => Some(number),
        _ => None,
    }
}
