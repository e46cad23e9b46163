//! Tags, and extended attributes that programs set: their names begin with `user.`, but not with `user.tierfs.`.
//!
//! Each attribute is a setting of its node with the attribute's name as the key. Names and values are bytes, keys and values of
//! settings are text: a byte is the character with its number. So an attribute goes wherever settings go: into
//! checkpoints, snapshots and clones, and away with its node. A setting that no program could have made is not shown.

use crate::format::log::catalog::Entry;
use crate::model::{EntryId, check_tag};
use crate::store::state::State;
use crate::store::state::settings_table::TAGS;

/// Most attributes of a node.
pub const ATTRIBUTES_MAX: usize = 64;
/// Most bytes of the names and values of a node's attributes.
pub const ATTRIBUTES_BYTES_MAX: usize = 64 << 10;

const PREFIX: &[u8] = b"user.";
const OWN_PREFIX: &[u8] = b"user.tierfs.";
/// The longest name that the kernel passes on.
const NAME_MAX: usize = 255;

/// The entry that gives a node tags in place of those that it has.
pub fn tags_entry(node: EntryId, tags: &[&str]) -> Entry {
    let value = (!tags.is_empty()).then(|| tags.join(","));
    Entry::Setting { node, key: TAGS.to_owned(), value }
}

/// Whether attributes with this name belong to programs.
pub fn is_program_attribute(name: &[u8]) -> bool {
    let has_end = name.len() > PREFIX.len() && name.len() <= NAME_MAX && !name.contains(&0);
    has_end && name.starts_with(PREFIX) && !name.starts_with(OWN_PREFIX)
}

/// The entry that sets an attribute, or removes it.
pub fn program_attribute(node: EntryId, name: &[u8], value: Option<&[u8]>) -> Entry {
    Entry::Setting { node, key: text_of(name), value: value.map(text_of) }
}

impl State {
    /// The value of an attribute of a node.
    pub fn program_attribute(&self, node: EntryId, name: &[u8]) -> Option<Vec<u8>> {
        if !is_program_attribute(name) {
            return None;
        }
        bytes_of(self.setting(node, &text_of(name))?).filter(|value| value.len() <= ATTRIBUTES_BYTES_MAX)
    }

    /// The names of a node's attributes, each with the bytes of its value.
    pub fn program_attributes(&self, node: EntryId) -> impl Iterator<Item = (Vec<u8>, usize)> {
        let names = self.settings_of(node).filter(|(key, _)| key.as_bytes().starts_with(PREFIX));
        names
            .filter_map(|(key, value)| {
                let name = bytes_of(key).filter(|name| is_program_attribute(name))?;
                Some((name, bytes_of(value)?.len()))
            })
            .filter(|(_, bytes)| *bytes <= ATTRIBUTES_BYTES_MAX)
            .take(ATTRIBUTES_MAX)
    }

    /// The tags of a node; nodes below it do not inherit them. Texts that are not tags, as a forged log may have, are left out.
    pub fn tags_of(&self, node: EntryId) -> impl Iterator<Item = &str> {
        let tags = self.setting(node, TAGS).into_iter().flat_map(|tags| tags.split(','));
        tags.filter(|tag| check_tag(tag).is_ok())
    }

    /// The nodes that have tags.
    pub fn tagged(&self) -> Vec<EntryId> {
        self.set_nodes(TAGS).map(|(node, _)| node).collect()
    }

    /// The settings that a file keeps when an import replaces it: its tags, and the attributes of programs.
    pub fn settings_of_user(&self, node: EntryId) -> Vec<(String, String)> {
        let all =
            self.settings_of(node).filter(|(key, _)| *key == TAGS || key.as_bytes().starts_with(PREFIX));
        all.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// `None` if a character of the text is above 255.
fn bytes_of(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_and_value_comes_back_and_hostile_settings_are_not_shown() {
        let node = EntryId(1);
        let mut state = State::default();
        let value: Vec<u8> = (0..=255).collect();
        let mut put = |key: &str, value: &str| state.set(node, key.to_owned(), Some(value.to_owned()));
        let Entry::Setting { key, value: text, .. } = program_attribute(node, b"user.\xff \n", Some(&value))
        else {
            unreachable!()
        };
        put(&key, &text.unwrap());
        let long = format!("user.{}", "n".repeat(251));
        for key in ["user.", "user.tierfs.tier", "user.a\0user.b", "user.\u{100}", "users.x", "tags", &long] {
            put(key, "value");
        }
        put("user.wide", "\u{2014}");
        put("user.large", &"x".repeat(ATTRIBUTES_BYTES_MAX + 1));
        let names: Vec<_> = state.program_attributes(node).collect();
        assert_eq!(names, [(b"user.\xff \n".to_vec(), 256)]);
        assert_eq!(state.program_attribute(node, b"user.\xff \n"), Some(value));
        for name in
            [&b"user."[..], b"user.tierfs.tier", b"user.a\0user.b", b"user.wide", b"user.large", b"tags"]
        {
            assert_eq!(state.program_attribute(node, name), None, "{name:?}");
        }
        for number in 0..100 {
            state.set(node, format!("user.{number}"), Some(String::new()));
        }
        assert_eq!(state.program_attributes(node).count(), ATTRIBUTES_MAX);
    }
}
