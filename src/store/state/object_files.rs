//! The objects that several files have: a file that was joined of others, and these.
//!
//! A joined file lists the objects of its sources, and its setting `JOINED` has the numbers of the nodes that these were
//! then. A replay compares the lists of all files with those of the joined ones, because a source may be gone. While two
//! files have an object, no batch changes its bytes or deletes it (`store/log/validate.rs`): writes and moves are refused,
//! and a name that goes leaves the object to the others. `State::own_objects` says which objects a file takes with it.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::format::log::catalog::FileEntry;
use crate::model::{Cause, EntryId, Error, ObjectId, Refusal, Result};
use crate::store::state::State;
use crate::store::state::by_id::ByObject;
use crate::store::state::settings_table::JOINED;

impl State {
    /// Whether any object has or had several files.
    pub fn has_shared_objects(&self) -> bool {
        !self.settings.shared.is_empty()
    }

    /// Fails with `Busy` if another file than `own` has an object too. Without `own`, if several files have it.
    pub fn check_unshared(&self, object: ObjectId, own: Option<EntryId>) -> Result<()> {
        let Some(other) = self.settings.shared.other(object, own) else { return Ok(()) };
        let path = String::from_utf8_lossy(&self.path(other)).into_owned();
        Err(Error::refused(vec![Refusal { path: String::new(), cause: Cause::Shared(path) }]))
    }

    /// The objects of a file that no other file has.
    pub fn own_objects<'a>(
        &'a self,
        node: EntryId,
        file: &'a FileEntry,
    ) -> impl Iterator<Item = ObjectId> + 'a {
        let shared = &self.settings.shared;
        file.objects.iter().copied().filter(move |object| shared.other(*object, Some(node)).is_none())
    }

    /// Notes the files of the objects of a joined file: of each source that still has those that it had then.
    pub(super) fn note_joined(&mut self, joined: EntryId, sources: &str) {
        let objects = |id| Some(self.node(id)?.file()?.objects.clone());
        let Some(own) = objects(joined) else { return };
        let (mut begin, mut shared) = (0_usize, Vec::new());
        for text in sources.split(',') {
            let numbers =
                text.split_once(':').and_then(|(id, count)| Some((id.parse().ok()?, count.parse().ok()?)));
            let Some((id, count)) = numbers.map(|(id, count): (u64, usize)| (EntryId(id), count)) else {
                break;
            };
            let Some(here) = own.get(begin..begin.saturating_add(count)) else { break };
            begin += count;
            let source = self.node(id).filter(|_| id != joined).and_then(|node| node.file());
            if source.is_some_and(|file| *file.objects == *here) {
                shared.extend(here.iter().map(|object| (*object, id)));
            }
        }
        for (object, source) in shared {
            self.settings.shared.add(object, &[source, joined]);
        }
    }

    /// Notes the files of the objects of all joined files, at the end of a replay. The lists of the files decide: a
    /// source may be gone that several joined files have, or that was a joined file itself.
    pub(super) fn note_all_joined(&mut self) {
        let joined = self.set_nodes(JOINED).filter_map(|(node, _)| self.node(node)?.file());
        let mut files: ByObject<SmallVec<[EntryId; 2]>> =
            joined.flat_map(|file| file.objects.iter()).map(|object| (*object, SmallVec::new())).collect();
        if files.is_empty() {
            return;
        }
        for node in self.nodes() {
            // The tensors of a container have its objects.
            for object in
                node.file().filter(|file| file.container.is_none()).into_iter().flat_map(|file| &file.objects)
            {
                if let Some(files) = files.get_mut(object) {
                    files.push(node.entry.id);
                }
            }
        }
        for (object, mut files) in files.into_iter().filter(|(_, files)| files.len() > 1) {
            files.sort_unstable();
            self.settings.shared.add(object, &files);
        }
    }

    /// Marks the joined files of a repaired log, which may have lost their settings.
    pub(in crate::store) fn mark_joined(&mut self) {
        let lists = self.nodes().filter_map(|node| {
            let file = node.file().filter(|file| file.container.is_none())?;
            Some((node.entry.id, file.objects.clone()))
        });
        let mut lists: Vec<_> = lists.collect();
        lists.sort_unstable_by_key(|(node, _)| *node);
        let marked: HashSet<EntryId> = self.set_nodes(JOINED).map(|(node, _)| node).collect();
        let mut seen = HashSet::new();
        for (node, objects) in lists {
            let is_joined = objects.iter().filter(|object| !seen.insert(**object)).count() > 0;
            if is_joined && !marked.contains(&node) {
                self.set(node, JOINED.to_owned(), Some(String::new()));
            }
        }
        self.note_all_joined();
    }

    /// Notes the objects that a file no longer has.
    pub(super) fn leave_objects(
        &mut self,
        node: EntryId,
        before: Option<&FileEntry>,
        now: Option<&FileEntry>,
    ) {
        let Some(before) = before.filter(|_| self.has_shared_objects()) else { return };
        if now.is_some_and(|now| now.objects == before.objects) {
            return;
        }
        let kept: HashSet<ObjectId> = now.into_iter().flat_map(|now| now.objects.iter().copied()).collect();
        for object in before.objects.iter().filter(|object| !kept.contains(object)) {
            self.settings.shared.remove(*object, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::format::log::catalog::{Content, Entry, FileEntry, NodeEntry, NodeType, ObjectEntry};
    use crate::model::{Dtype, EntryId, ObjectId, Owner, SeedId, TensorId};
    use crate::store::state::State;
    use crate::store::state::settings_table::JOINED;

    fn object(number: u128) -> Entry {
        Entry::Object(ObjectEntry {
            id: ObjectId(number),
            tensor: TensorId(0),
            seed: SeedId(0),
            creation: number as u64,
            dtype: Dtype::U8,
            bytes: 10,
            block_bytes: 4096,
            extent: None,
            parent: None,
        })
    }

    fn file(node: u64, objects: &[u128]) -> Entry {
        let objects: Vec<ObjectId> = objects.iter().map(|number| ObjectId(*number)).collect();
        let file = NodeType::File(Box::new(FileEntry::new(Content::Plain, objects)));
        Entry::Node(Box::new(NodeEntry::new(EntryId(node), 0o644, Owner { uid: 0, gid: 0 }, 0, file)))
    }

    fn joined(node: u64, sources: &str) -> Entry {
        Entry::Setting { node: EntryId(node), key: JOINED.to_owned(), value: Some(sources.to_owned()) }
    }

    /// A state with the files 2 of the objects 1 and 2, 3 of the object 3, and 4 of all three.
    fn state(mut state: State, sources: &str) -> State {
        let entries = (1..=3).map(object);
        let files = [file(2, &[1, 2]), file(3, &[3]), file(4, &[1, 2, 3]), joined(4, sources)];
        entries.chain(files).for_each(|entry| state.apply_entry(entry).unwrap());
        state
    }

    fn shared(state: &State) -> Vec<bool> {
        (1..=3).map(|number| state.check_unshared(ObjectId(number), None).is_err()).collect()
    }

    #[test]
    fn objects_are_shared_while_the_joined_file_and_its_source_list_them() {
        for is_replayed in [false, true] {
            let begun = if is_replayed { State::replayed() } else { State::default() };
            let mut state = state(begun, "2:2,3:1");
            if is_replayed {
                assert_eq!(shared(&state), [false; 3]);
                state.end_replay().unwrap();
            }
            assert_eq!(shared(&state), [true; 3]);
            let of = |state: &State, node: u64| -> Vec<ObjectId> {
                let found = state.node(EntryId(node)).unwrap().clone();
                state.own_objects(EntryId(node), found.file().unwrap()).collect()
            };
            assert_eq!([of(&state, 2), of(&state, 4)], [vec![], vec![]]);
            state.apply_entry(Entry::NodeRemoved(EntryId(2))).unwrap();
            assert_eq!(shared(&state), [false, false, true]);
            assert_eq!(of(&state, 4), [ObjectId(1), ObjectId(2)]);
            state.apply_entry(file(3, &[])).unwrap();
            assert_eq!((shared(&state), of(&state, 4).len()), (vec![false; 3], 3));
            state.apply_entry(Entry::NodeRemoved(EntryId(4))).unwrap();
            assert!(!state.has_shared_objects());
        }
    }

    #[test]
    fn joined_files_share_objects_after_a_replay_though_their_source_is_gone() {
        for is_replayed in [false, true] {
            let begun = if is_replayed { State::replayed() } else { State::default() };
            let mut state = state(begun, "2:2,3:1");
            for entry in [
                file(5, &[3, 1, 2]),
                joined(5, "3:1,2:2"),
                file(6, &[1, 2, 3]),
                joined(6, "4:3"),
                Entry::NodeRemoved(EntryId(2)),
                Entry::NodeRemoved(EntryId(4)),
            ] {
                state.apply_entry(entry).unwrap();
            }
            if is_replayed {
                state.end_replay().unwrap();
            }
            assert_eq!(shared(&state), [true; 3]);
            state.apply_entry(Entry::NodeRemoved(EntryId(5))).unwrap();
            assert_eq!(shared(&state), [false, false, true]);
        }
    }

    #[test]
    fn a_repair_finds_the_joined_files_without_their_settings() {
        let mut damaged = State::default();
        let entries = (1..=3).map(object).chain([file(2, &[1, 2]), file(3, &[3]), file(4, &[2, 1])]);
        entries.for_each(|entry| damaged.apply_entry(entry).unwrap());
        assert_eq!(shared(&damaged), [false; 3]);
        damaged.mark_joined();
        assert_eq!(shared(&damaged), [true, true, false]);
        assert_eq!(damaged.set_nodes(JOINED).collect::<Vec<_>>(), [(EntryId(4), "")]);
    }

    #[test]
    fn sources_that_no_program_wrote_share_nothing() {
        for (sources, wanted) in [
            ("", [false; 3]),
            ("2", [false; 3]),
            ("2:3", [false; 3]),
            ("4:3", [false; 3]),
            ("9:2,3:1", [false, false, true]),
            ("2:2,3:18446744073709551615", [true, true, false]),
            ("2:2,2:2,x", [true, true, false]),
            (",2:2", [false; 3]),
        ] {
            assert_eq!(shared(&state(State::default(), sources)), wanted, "{sources}");
        }
    }
}
