//! PyTorch checkpoints as safetensors files, under the names that loaders ask for: `model.safetensors` for
//! `pytorch_model.bin`. The form `safetensors` of a collection with checkpoints has them, their indexes, and all other
//! files but pickles, so that loaders open its directories and execute nothing. A symbolic link to one of these files, as
//! caches of the Hugging Face Hub have them, leads to the name that the form shows.

use std::sync::Arc;

use crate::format::files::shard_index;
use crate::format::log::catalog::{Content, NodeType};
use crate::model::{EntryId, NameIn};
use crate::store::{Node, State};
use crate::vfs::form::symbolic_links::{file, target};

/// The suffixes of pickles. A file of such a name that is not a checkpoint is not shown.
const PICKLES: [&str; 6] = [".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"];

/// The suffix of the files that show checkpoints.
const SUFFIX: &str = ".safetensors";

/// How the form `safetensors` shows a file that is not a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A checkpoint, as a safetensors file.
    Checkpoint,
    /// The index of checkpoints, as the index of these safetensors files.
    Index,
    /// Another file, unchanged.
    Other,
    /// A file that may be a pickle, or a file of a collection without checkpoints: not at all.
    Hidden,
}

impl Role {
    pub(super) fn of(state: &State, node: &Node) -> Role {
        if !state.has_checkpoints() {
            return Role::Hidden;
        }
        if node.file().is_some_and(|file| file.content == Content::Torch) {
            return Role::Checkpoint;
        }
        let links = state.links(node.entry.id);
        let names = || links.iter().map(|(_, name)| &**name);
        // A blob of a hub cache has the name of its digest.
        let names_checkpoints =
            || state.first_shard(node.entry.id).is_some_and(|shard| is_pickle(shard.as_bytes()));
        if names().any(|name| shard_index::safetensors_name(name).is_some()) || names_checkpoints() {
            Role::Index
        } else if names().any(is_pickle) {
            Role::Hidden
        } else {
            Role::Other
        }
    }
}

/// Whether a name is one of pickles.
pub(super) fn is_pickle(name: &[u8]) -> bool {
    PICKLES.into_iter().any(|suffix| name.ends_with(suffix.as_bytes()))
}

/// The name by which loaders ask for a checkpoint, in safetensors. `None` for a name without the suffix of one.
pub(super) fn safetensors_name(name: &str) -> Option<String> {
    let stem =
        PICKLES.into_iter().find_map(|suffix| name.strip_suffix(suffix)).filter(|stem| !stem.is_empty())?;
    Some(format!("{}{SUFFIX}", shard_index::without_prefix(stem)))
}

/// The path that a symbolic link of the form has: to the name that the form shows of its target.
pub(super) fn link_target(state: &State, node: &Node) -> Option<Vec<u8>> {
    let NodeType::Symlink(path) = &node.entry.node_type else { return None };
    let found = target(state, state.links(node.entry.id).first()?.0, path)?;
    let shown = match &found.node.entry.node_type {
        NodeType::Directory => None,
        _ => name_of(state, found.at, found.node),
    };
    let before = path.strip_suffix(found.at.name)?;
    Some([before, &shown?].concat())
}

/// The entry that the form shows under a name in a directory: an entry of that name, the checkpoint or the index that
/// loaders ask for by it, or the checkpoint whose name comes before the suffix.
pub(super) fn find(state: &State, directory: EntryId, name: &[u8]) -> Option<EntryId> {
    let entries = state.directory(directory)?;
    let has_role = |id: &EntryId, role: Role| {
        let file = state.node(*id).and_then(|node| file(state, directory, node));
        file.is_some_and(|file| Role::of(state, file) == role)
    };
    // A blob that is an index keeps its name.
    let keeps_name = |id: &EntryId| {
        let is_index = || shard_index::safetensors_name(name).is_none() && has_role(id, Role::Index);
        !is_pickle(name) && (has_role(id, Role::Other) || is_index())
    };
    if let Some(found) = entries.get(name).filter(keeps_name) {
        return Some(found);
    }
    let text = std::str::from_utf8(name).ok()?;
    let prefixed = |stem: &str| [format!("pytorch_{stem}"), stem.to_owned()];
    if let Some((before, after)) = text.rsplit_once(".safetensors.index") {
        let names = prefixed(before).map(|stem| format!("{stem}.bin.index{after}"));
        let of = |index: &String| shard_index::safetensors_name(index.as_bytes()).as_deref() == Some(text);
        let indexes =
            names.iter().filter(|index| of(index)).filter_map(|index| entries.get(index.as_bytes()));
        return indexes.into_iter().find(|id| has_role(id, Role::Index));
    }
    let stem = text.strip_suffix(SUFFIX)?;
    let stems = prefixed(stem);
    let names = stems.iter().flat_map(|stem| PICKLES.map(|suffix| format!("{stem}{suffix}")));
    let named = names.filter(|checkpoint| safetensors_name(checkpoint).as_deref() == Some(text));
    named
        .chain([stem.to_owned()])
        .filter_map(|checkpoint| entries.get(checkpoint.as_bytes()))
        .find(|id| has_role(id, Role::Checkpoint))
}

/// The name in the form of an entry of a directory that is a file without being a tensor, or a symbolic link. `None` if it is
/// not shown.
pub(super) fn name_of(state: &State, at: NameIn<'_>, node: &Arc<Node>) -> Option<Vec<u8>> {
    let NameIn { directory, name } = at;
    let leads_here = |shown: &Vec<u8>| find(state, directory, shown) == Some(node.entry.id);
    let role = match file(state, directory, node) {
        Some(file) => Role::of(state, file),
        // A link to a directory, or to nothing.
        None => Role::Other,
    };
    match role {
        Role::Hidden => None,
        Role::Other => Some(name.to_vec()).filter(|name| !is_pickle(name)),
        Role::Index => {
            let shown = shard_index::safetensors_name(name).map_or_else(|| name.to_vec(), String::into_bytes);
            Some(shown).filter(leads_here)
        }
        Role::Checkpoint => {
            let text = std::str::from_utf8(name).ok();
            let asked = text.and_then(safetensors_name).map(String::into_bytes).filter(leads_here);
            asked.or_else(|| Some([name, SUFFIX.as_bytes()].concat()).filter(leads_here))
        }
    }
}

/// Whether a directory has a checkpoint.
pub(super) fn is_in(state: &State, directory: EntryId) -> bool {
    let names = state.directory(directory).filter(|_| state.has_checkpoints());
    let is_checkpoint = |id: EntryId| {
        let file = state.node(id).and_then(|node| file(state, directory, node)?.file());
        file.is_some_and(|file| file.content == Content::Torch)
    };
    names.is_some_and(|names| names.after(EntryId(0)).any(|(_, _, id)| is_checkpoint(id)))
}

#[cfg(test)]
mod tests {
    use super::safetensors_name;
    use crate::format::files::shard_index;

    #[test]
    fn checkpoints_have_the_names_that_loaders_ask_for() {
        for (name, shown) in [
            ("pytorch_model.bin", Some("model.safetensors")),
            ("pytorch_model.fp16.bin", Some("model.fp16.safetensors")),
            ("pytorch_model-00001-of-00002.bin", Some("model-00001-of-00002.safetensors")),
            ("diffusion_pytorch_model.bin", Some("diffusion_pytorch_model.safetensors")),
            ("adapter_model.bin", Some("adapter_model.safetensors")),
            ("consolidated.00.pth", Some("consolidated.00.safetensors")),
            ("pytorch_lora_weights.bin", Some("pytorch_lora_weights.safetensors")),
            (".bin", None),
            ("model.safetensors", None),
        ] {
            assert_eq!(safetensors_name(name).as_deref(), shown, "{name}");
        }
        for (name, shown) in [
            ("pytorch_model.bin.index.json", Some("model.safetensors.index.json")),
            ("pytorch_model.bin.index.fp16.json", Some("model.safetensors.index.fp16.json")),
            (
                "diffusion_pytorch_model.bin.index.json",
                Some("diffusion_pytorch_model.safetensors.index.json"),
            ),
            ("model.safetensors.index.json", None),
            ("config.json", None),
        ] {
            assert_eq!(shard_index::safetensors_name(name.as_bytes()).as_deref(), shown, "{name}");
        }
    }
}
