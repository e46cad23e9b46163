//! The tensors of the containers in one directory, by name. The log has no names of tensors: they
//! follow from the containers and their names.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::model::{EntryId, is_variant};

/// A tensor of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedTensor {
    /// Its node.
    pub part: EntryId,
    /// Its path below the directory of the container.
    pub path: Arc<[u8]>,
    /// Whether the index of a sharded model says that it is in this container.
    pub is_in_index: bool,
}

/// The tensors of a container, by number.
pub(super) type NamedTensors = Arc<[NamedTensor]>;

/// A name of a container, and whether an index says that a tensor is not in it. Of several tensors of a path, the first
/// in this order has it.
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Rank {
    is_not_in_index: bool,
    is_variant: bool,
    name: Arc<[u8]>,
}

/// The containers whose tensors are considered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Scope {
    /// All containers, in the directory itself: tensors have the names that no entry has.
    Beside,
    /// All containers, below `.tensors`.
    All,
    /// The container of this name, below `.tensors/<name>`.
    Container(Arc<[u8]>),
}

impl Scope {
    fn has(&self, container: &Arc<[u8]>) -> bool {
        match self {
            Scope::Beside | Scope::All => true,
            Scope::Container(name) => container == name,
        }
    }
}

/// The target of a path of tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leads {
    /// To a tensor.
    Tensor(EntryId),
    /// To a directory that paths of tensors lead through.
    Directory,
}

/// Up to so many tensors below a path are listed by their paths.
const FEW: usize = 1024;

/// A name in a directory of tensors: its place, the name, and its target.
pub(super) type Listed = (u64, Arc<[u8]>, Leads);

/// The tensors of one path, in their order.
type Candidates = SmallVec<[(Arc<Rank>, EntryId); 1]>;

/// The tensors of the containers in one directory.
#[derive(Debug, Default)]
pub(super) struct DirectoryTensors {
    /// The tensors that have a path, in their order.
    by_path: BTreeMap<Arc<[u8]>, Candidates>,
    /// The containers in the order of their tensors' numbers: by the first, and by name.
    containers: BTreeMap<(EntryId, Arc<[u8]>), NamedTensors>,
    /// The first tensor of each container, by the container's name.
    by_name: BTreeMap<Arc<[u8]>, EntryId>,
}

impl DirectoryTensors {
    /// Adds the tensors of a container with this name. The container has at least one tensor.
    pub fn insert(&mut self, name: &Arc<[u8]>, tensors: NamedTensors) {
        let Some(first) = tensors.first() else { return };
        let rank = |is_not_in_index| {
            Arc::new(Rank { is_not_in_index, is_variant: is_variant(name), name: name.clone() })
        };
        let (in_index, not_in_index) = (rank(false), rank(true));
        for tensor in tensors.iter() {
            let rank = if tensor.is_in_index { &in_index } else { &not_in_index };
            let known = self.by_path.entry(tensor.path.clone()).or_default();
            let place = known.partition_point(|(other, _)| other <= rank);
            known.insert(place, (rank.clone(), tensor.part));
        }
        self.by_name.insert(name.clone(), first.part);
        self.containers.insert((first.part, name.clone()), tensors);
    }

    /// Removes the tensors of the container with this name.
    pub fn remove(&mut self, name: &Arc<[u8]>) {
        let Some(first) = self.by_name.remove(name) else { return };
        let Some(gone) = self.containers.remove(&(first, name.clone())) else { return };
        for tensor in gone.iter() {
            if let Some(known) = self.by_path.get_mut(&tensor.path) {
                known.retain(|(rank, _)| rank.name != *name);
                if known.is_empty() {
                    self.by_path.remove(&tensor.path);
                }
            }
        }
    }

    /// Whether no container is left.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The name of a container, as the directory has it.
    pub fn container(&self, name: &[u8]) -> Option<&Arc<[u8]>> {
        self.by_name.get_key_value(name).map(|(name, _)| name)
    }

    /// The tensors of the container with this name.
    pub fn tensors_of(&self, name: &Arc<[u8]>) -> &[NamedTensor] {
        let first = self.by_name.get(name);
        let found = first.and_then(|first| self.containers.get(&(*first, name.clone())));
        found.map_or(&[], |tensors| tensors.as_ref())
    }

    /// The target of a path. If several containers have a tensor of this path, or the path of one leads
    /// through that of another, the first in the order has it. Names of containers come before
    /// names of tensors.
    pub fn find(&self, scope: &Scope, path: &[u8]) -> Option<Leads> {
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let mut above = slashes.filter_map(|at| path.get(..at));
        let leads_on = above.all(|above| self.find_last(scope, above) == Some(Leads::Directory));
        if leads_on { self.find_last(scope, path) } else { None }
    }

    /// The same for a path that continues.
    fn find_last(&self, scope: &Scope, path: &[u8]) -> Option<Leads> {
        let first = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        if !matches!(scope, Scope::Container(_)) && self.by_name.contains_key(first) {
            return None;
        }
        let own =
            self.by_path.get(path).and_then(|known| known.iter().find(|(rank, _)| scope.has(&rank.name)));
        let through = [path, b"/"].concat();
        let mut below = self.below(scope, &through);
        match (own, below.next()) {
            (Some((_, part)), None) => Some(Leads::Tensor(*part)),
            (None, Some(_)) => Some(Leads::Directory),
            (None, None) => None,
            (Some((rank, part)), Some((other, _))) => {
                let first = below.fold(other, |first, (rank, _)| first.min(rank));
                Some(if rank <= first { Leads::Tensor(*part) } else { Leads::Directory })
            }
        }
    }

    /// Whether the path of any tensor has this prefix.
    pub fn has_below(&self, scope: &Scope, prefix: &[u8]) -> bool {
        self.below(scope, prefix).next().is_some()
    }

    /// The tensors whose paths have this prefix.
    fn below<'a>(
        &'a self,
        scope: &'a Scope,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = (&'a Arc<Rank>, EntryId)> + 'a {
        let from = self.by_path.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        let known = from.take_while(move |(path, _)| path.starts_with(prefix)).flat_map(|(_, known)| known);
        known.filter(|(rank, _)| scope.has(&rank.name)).map(|(rank, part)| (rank, *part))
    }

    /// The names below a path that is empty or ends with a slash, in the order of their places, which are numbers of
    /// tensors, after `after`; at most `most`.
    pub fn list(&self, scope: &Scope, prefix: &[u8], after: u64, most: usize) -> Vec<Listed> {
        if let Some(found) = self.list_few(scope, prefix, after, most) {
            return found;
        }
        let mut found: Vec<Listed> = Vec::new();
        // A tensor appears once for each name of its container.
        let (mut tensors, mut directories) = (HashSet::new(), HashSet::new());
        let mut start = self.containers.range(..=(EntryId(after), Arc::from(&b""[..])));
        let start = start.next_back().map_or(EntryId(0), |((first, _), _)| *first);
        for ((_, container), all) in self.containers.range((start, Arc::from(&b""[..]))..) {
            let later = all.partition_point(|tensor| tensor.part.0 <= after);
            for tensor in all.iter().skip(later).filter(|_| scope.has(container)) {
                let Some(rest) = tensor.path.strip_prefix(prefix) else { continue };
                let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
                let Some((name, through)) = rest.split_at_checked(end) else { continue };
                if through.is_empty() {
                    let leads = self.find_last(scope, &tensor.path);
                    if leads == Some(Leads::Tensor(tensor.part)) && tensors.insert(name) {
                        found.push((tensor.part.0, name.into(), Leads::Tensor(tensor.part)));
                    }
                } else if directories.insert(name) {
                    let path = [prefix, name].concat();
                    let leads = self.find_last(scope, &path);
                    let through = [&path, &b"/"[..]].concat();
                    let place = self.below(scope, &through).map(|(_, part)| part.0).min().unwrap_or(0);
                    if leads == Some(Leads::Directory) && place > after {
                        found.push((place, name.into(), Leads::Directory));
                    }
                }
                if found.len() >= most {
                    break;
                }
            }
            if found.len() >= most {
                break;
            }
        }
        found.sort_by_key(|(place, ..)| *place);
        found
    }

    /// The same by the paths, without a look at all tensors of the containers. `None` if too many have the prefix.
    fn list_few(&self, scope: &Scope, prefix: &[u8], after: u64, most: usize) -> Option<Vec<Listed>> {
        let from = self.by_path.range::<[u8], _>((Bound::Included(prefix), Bound::Unbounded));
        let mut paths = from.map(|(path, _)| path).take_while(|path| path.starts_with(prefix));
        let few: Vec<&Arc<[u8]>> = paths.by_ref().take(FEW).collect();
        if paths.next().is_some() {
            return None;
        }
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        for rest in few.iter().filter_map(|path| path.strip_prefix(prefix)) {
            let name = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
            if !seen.insert(name) {
                continue;
            }
            let path = [prefix, name].concat();
            let Some(leads) = self.find_last(scope, &path) else { continue };
            let place = match leads {
                Leads::Tensor(part) => part.0,
                Leads::Directory => {
                    let through = [&path, &b"/"[..]].concat();
                    self.below(scope, &through).map(|(_, part)| part.0).min().unwrap_or(0)
                }
            };
            if place > after {
                found.push((place, name.into(), leads));
            }
        }
        found.sort_by_key(|(place, ..)| *place);
        found.truncate(most);
        Some(found)
    }

    /// The containers with a tensor whose path leads elsewhere: the number of the first tensor, and
    /// the container's name.
    pub fn containers_with_taken_names(&self) -> impl Iterator<Item = (EntryId, &Arc<[u8]>)> {
        let has_taken = |(_, name): &(EntryId, &Arc<[u8]>)| self.taken(name).next().is_some();
        self.containers.keys().map(|(first, name)| (*first, name)).filter(has_taken)
    }

    /// The tensors of the container with this name whose paths lead elsewhere.
    pub fn taken<'a>(&'a self, name: &Arc<[u8]>) -> impl Iterator<Item = &'a NamedTensor> + 'a {
        let of_others =
            |tensor: &&NamedTensor| self.find(&Scope::All, &tensor.path) != Some(Leads::Tensor(tensor.part));
        self.tensors_of(name).iter().filter(of_others)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use super::{DirectoryTensors, Leads, NamedTensor, NamedTensors, Scope};
    use crate::model::{EntryId, is_variant};

    const CONTAINERS: [&str; 4] = ["m.safetensors", "m.fp16.safetensors", "a", "z.gguf"];

    /// The definition, without regard to speed: the tensors of an index before others, then in the order of their
    /// containers, each tensor if its path is free, leads through no tensor, and is not a directory.
    fn placed(containers: &BTreeMap<&'static str, NamedTensors>) -> BTreeMap<String, EntryId> {
        let of_one = |(name, tensors): (&&'static str, &NamedTensors)| {
            let order = |tensor: &NamedTensor| (!tensor.is_in_index, is_variant(name.as_bytes()), *name);
            tensors.iter().map(|tensor| (order(tensor), tensor.clone())).collect::<Vec<_>>()
        };
        let mut order: Vec<_> = containers.iter().flat_map(of_one).collect();
        order.sort_by_key(|(order, tensor)| (*order, tensor.part));
        let mut placed: BTreeMap<String, EntryId> = BTreeMap::new();
        let below =
            |one: &str, other: &str| one.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
        for (_, tensor) in order {
            let path = String::from_utf8(tensor.path.to_vec()).unwrap();
            let is_named = containers.keys().any(|name| path == **name || below(&path, name));
            let meets = |known: &String| *known == path || below(known, &path) || below(&path, known);
            if !is_named && !placed.keys().any(meets) {
                placed.insert(path, tensor.part);
            }
        }
        placed
    }

    /// The tensors below a path, listed a few at a time.
    fn listed(
        tensors: &DirectoryTensors,
        scope: &Scope,
        prefix: &str,
        found: &mut BTreeMap<String, EntryId>,
    ) {
        let (mut after, mut seen) = (0, BTreeSet::new());
        loop {
            let some = tensors.list(scope, prefix.as_bytes(), after, 2);
            let Some((last, ..)) = some.last() else { break };
            assert!(*last > after);
            after = *last;
            for (_, name, leads) in some {
                assert!(seen.insert(name.clone()), "twice");
                let path = format!("{prefix}{}", std::str::from_utf8(&name).unwrap());
                match leads {
                    Leads::Tensor(part) => {
                        found.insert(path, part);
                    }
                    Leads::Directory => listed(tensors, scope, &format!("{path}/"), found),
                }
            }
        }
    }

    #[test]
    fn containers_that_come_and_go_have_the_names_that_their_order_gives_them() {
        let mut seed = 1_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let (mut tensors, mut containers) = (DirectoryTensors::default(), BTreeMap::new());
        let mut part = 0;
        for round in 0..3000 {
            let name = CONTAINERS[random(4) as usize];
            if containers.remove(name).is_some() {
                tensors.remove(&Arc::from(name.as_bytes()));
            } else {
                let mut paths: BTreeSet<String> = BTreeSet::new();
                for _ in 0..=random(5) {
                    let parts: Vec<&str> =
                        (0..=random(3)).map(|_| ["a", "b", "c"][random(3) as usize]).collect();
                    let path = parts.join("/");
                    let meets = |known: &String| format!("{known}/").starts_with(&format!("{path}/"));
                    let leads = |known: &String| format!("{path}/").starts_with(&format!("{known}/"));
                    if !paths.iter().any(|known| meets(known) || leads(known)) {
                        paths.insert(path);
                    }
                }
                let named: NamedTensors = paths
                    .into_iter()
                    .map(|path| {
                        part += 1;
                        let is_in_index = random(3) == 0;
                        NamedTensor { part: EntryId(part), path: path.into_bytes().into(), is_in_index }
                    })
                    .collect();
                tensors.insert(&Arc::from(name.as_bytes()), named.clone());
                containers.insert(name, named);
            }
            let wanted = placed(&containers);
            let mut found = BTreeMap::new();
            listed(&tensors, &Scope::All, "", &mut found);
            assert_eq!(found, wanted, "round {round}");
            for tensor in containers.values().flat_map(|tensors| tensors.iter()) {
                let path = std::str::from_utf8(&tensor.path).unwrap();
                let leads = match wanted.get(path) {
                    Some(part) => Some(Leads::Tensor(*part)),
                    None if wanted.keys().any(|known| known.starts_with(&format!("{path}/"))) => {
                        Some(Leads::Directory)
                    }
                    None => None,
                };
                assert_eq!(tensors.find(&Scope::All, path.as_bytes()), leads, "round {round}: {path}");
            }
            for (name, of_one) in &containers {
                let mut found = BTreeMap::new();
                let name = Arc::from(name.as_bytes());
                listed(&tensors, &Scope::Container(name), "", &mut found);
                let all = of_one.iter().map(|it| (String::from_utf8(it.path.to_vec()).unwrap(), it.part));
                assert_eq!(found, all.collect(), "round {round}");
            }
            assert_eq!(tensors.is_empty(), containers.is_empty());
        }
    }
}
