//! A directory of a base, as an adapter finds it: how the names of the tensors differ, and which weights are transposed.
//!
//! All files of the directory count, because the file of one shard does not show what the others have.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Result, Shape};
use crate::store::{Collection, Node, State};
use crate::vfs::form::adapters::adapter::{Adapter, Change, LowRankProduct, not_merged};
use crate::vfs::form::adapters::known_models::KnownModel;
use crate::vfs::form::adapters::layouts::{Hints, Layout, Layouts};
use crate::vfs::form::adapters::matrix_sizes::Sizes;
use crate::vfs::form::is_config;
use crate::vfs::form::pieces::bytes_of;

/// Longest configuration of a model that is read, in bytes.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
const CONFIG_NAME: &[u8] = b"config.json";

/// How the names of the adapter's tensors differ from those of the base. Libraries add or leave out the name of the inner
/// model in the same way.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Names {
    Same,
    /// The base has this component before.
    Longer(String),
    /// The base lacks this component.
    Shorter(String),
}

/// How the names of an adapter lead to a base.
struct Match {
    /// The first two ways in which some name does. The same names come before all others.
    ways: BTreeSet<Names>,
    /// The tensors of the base that some name leads to, in any way.
    changed: HashSet<Arc<str>>,
}

impl Match {
    fn of(changes: &HashMap<String, Change>, tensors: &Tensors) -> Match {
        let same = tensors.keys().filter(|name| changes.contains_key(&***name));
        let mut found = Match { ways: BTreeSet::new(), changed: same.cloned().collect() };
        if !found.changed.is_empty() {
            found.note(Names::Same);
            return found;
        }
        for name in tensors.keys() {
            if let Some((before, rest)) = name.split_once('.')
                && changes.contains_key(rest)
            {
                found.note(Names::Longer(before.to_owned()));
                found.changed.insert(name.clone());
            }
        }
        for (before, rest) in changes.keys().filter_map(|name| name.split_once('.')) {
            if let Some((name, _)) = tensors.get_key_value(rest) {
                found.note(Names::Shorter(before.to_owned()));
                found.changed.insert(name.clone());
            }
        }
        found
    }

    fn note(&mut self, way: Names) {
        self.ways.insert(way);
        if self.ways.len() > 2 {
            self.ways.pop_last();
        }
    }
}

impl Names {
    /// The name in the adapter of a tensor of the base.
    pub fn in_adapter(&self, name: &str) -> Option<String> {
        match self {
            Names::Same => Some(name.to_owned()),
            Names::Longer(before) => Some(name.strip_prefix(before)?.strip_prefix('.')?.to_owned()),
            Names::Shorter(before) => Some(format!("{before}.{name}")),
        }
    }

    /// The name in the base of a tensor of the adapter.
    fn in_base(&self, name: &str) -> String {
        match self {
            Names::Same => name.to_owned(),
            Names::Longer(before) => format!("{before}.{name}"),
            Names::Shorter(before) => {
                let rest = name.strip_prefix(before.as_str()).and_then(|rest| rest.strip_prefix('.'));
                rest.unwrap_or(name).to_owned()
            }
        }
    }
}

impl std::fmt::Display for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Names::Same => f.write_str("as they are"),
            Names::Longer(before) => write!(f, "after \"{before}.\""),
            Names::Shorter(before) => write!(f, "without \"{before}.\""),
        }
    }
}

/// A directory of a base, compared with an adapter.
#[derive(Default)]
pub(super) struct BaseModel {
    /// The files that it follows from.
    files: Vec<Arc<Node>>,
    /// How the names differ, in the first two ways.
    names: Vec<Names>,
    /// The tensors that an adapter may change.
    changed: HashSet<Arc<str>>,
    /// The name in the base of a tensor that it lacks.
    lacking: Option<String>,
    /// How square weights lie, by their names in the base. `None` where this cannot be decided.
    pub squares: HashMap<String, Option<Layout>>,
}

/// Tensors of a directory, by name.
type Tensors = HashMap<Arc<str>, Shape>;

impl BaseModel {
    /// The model in a directory.
    pub fn of(
        adapter: &Adapter,
        collection: &Arc<Collection>,
        directory: Option<EntryId>,
    ) -> Result<Arc<BaseModel>> {
        let (changes, directory) = (collection.changes(), directory.unwrap_or_default());
        let keep = |model: &Arc<BaseModel>| {
            let (collection, model) = (Arc::downgrade(collection), model.clone());
            adapter.models.keep(KnownModel { collection, directory, changes, model });
            adapter.count_memory();
        };
        let known = adapter.models.of(collection, directory);
        if let Some(known) = known.as_ref().filter(|known| known.changes == changes) {
            return Ok(known.model.clone());
        }
        let state = collection.state();
        let files = files(&state, directory);
        if let Some(KnownModel { model, .. }) = known.filter(|known| known.model.is_of(&files)) {
            keep(&model);
            return Ok(model);
        }
        let tensors = tensors(&state, &files);
        let config = state.directory(directory).and_then(|names| names.get(CONFIG_NAME));
        let config = config.and_then(|id| state.node(id)?.file());
        let config = config.map(|file| state.parts_of(file)).transpose()?.map(|(objects, _)| objects);
        drop(state);
        let config = || -> Result<Option<Vec<u8>>> {
            let config =
                config.map(|objects| bytes_of(collection, &objects, CONFIG_BYTES_MAX)).transpose()?;
            Ok(config.flatten())
        };
        let model = Arc::new(BaseModel::compared(adapter, files, &tensors, config)?);
        keep(&model);
        Ok(model)
    }

    fn compared(
        adapter: &Adapter,
        files: Vec<Arc<Node>>,
        tensors: &Tensors,
        config: impl FnOnce() -> Result<Option<Vec<u8>>>,
    ) -> Result<BaseModel> {
        let changes = &adapter.changes;
        let Match { ways, changed } = Match::of(changes, tensors);
        let mut all: Vec<Names> = ways.into_iter().collect();
        if all.is_empty() {
            all.push(Names::Same);
        }
        let (mut lacking, mut squares) = (None, HashMap::new());
        if let [names] = all.as_slice() {
            let mut layouts = biased(tensors);
            for (name, change) in changes {
                let name = names.in_base(name);
                let Some(shape) = tensors.get(name.as_str()) else {
                    lacking = lacking.filter(|known| *known < name).or(Some(name));
                    continue;
                };
                match change.product.as_ref().map_or(Fit::None, |product| Fit::of(product, shape)) {
                    Fit::One(layout) => layouts.note(&name, layout),
                    Fit::Both => drop(squares.insert(name, None)),
                    Fit::None => {}
                }
            }
            let config = if squares.is_empty() { None } else { config()? };
            for (name, layout) in &mut squares {
                let has_bias = bias_of(name).is_some_and(|bias| tensors.contains_key(bias.as_str()));
                let hints = Hints { has_bias, config: config.as_deref(), flag: adapter.is_transposed };
                *layout = layouts.of_square(name, hints);
            }
        }
        Ok(BaseModel { files, names: all, changed, lacking, squares })
    }

    /// Whether it follows from these files.
    fn is_of(&self, files: &[Arc<Node>]) -> bool {
        self.files.len() == files.len()
            && self.files.iter().zip(files).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Bytes of memory, about.
    pub fn memory(&self) -> usize {
        /// Of an entry of a map without its name.
        const ENTRY_BYTES: usize = 48;
        let changed = self.changed.iter().map(|name| ENTRY_BYTES + name.len());
        let squares = self.squares.keys().map(|name| ENTRY_BYTES + name.len());
        size_of::<BaseModel>()
            + self.files.len() * size_of::<Node>()
            + self.lacking.as_ref().map_or(0, String::len)
            + changed.chain(squares).sum::<usize>()
    }

    /// Whether the adapter may change a tensor of the base.
    pub fn is_changed(&self, name: &str) -> bool {
        self.changed.contains(name)
    }

    /// How the names differ. Fails with `NotSupported` where they do in several ways.
    pub fn names(&self) -> Result<&Names> {
        match self.names.as_slice() {
            [one, other, ..] => Err(not_merged(format!(
                "the base has tensors of the adapter {one} and {other}, so it is not known which it changes; it"
            ))),
            [one] => Ok(one),
            [] => Ok(&Names::Same),
        }
    }

    /// Fails with `NotSupported` where the base lacks a tensor of the adapter.
    pub fn check_complete(&self) -> Result<()> {
        match &self.lacking {
            Some(name) => Err(not_merged(format!("the base has no tensor {name:?}; the adapter"))),
            None => Ok(()),
        }
    }

    /// Whether a square weight has a row for each input. Fails with `NotSupported` where this cannot be decided.
    pub fn is_square_transposed(&self, weight: &str) -> Result<bool> {
        match self.squares.get(weight) {
            Some(None) => Err(not_merged(format!(
                "{weight}: a square weight, whose rows may be inputs or outputs, as neither names, shapes nor config.json tell,"
            ))),
            Some(Some(layout)) => Ok(*layout == Layout::Transposed),
            None => Ok(false),
        }
    }
}

/// How the matrices of a product fit a weight of two dimensions.
enum Fit {
    None,
    One(Layout),
    /// The weight is square.
    Both,
}

impl Fit {
    fn of(product: &LowRankProduct, shape: &Shape) -> Fit {
        let Some(b) = product.b.as_ref().filter(|_| !product.is_embedding) else { return Fit::None };
        let Some(Sizes { inner: [inner], outer, .. }) = Sizes::of(&product.a.tensor.shape, &b.tensor.shape)
        else {
            return Fit::None;
        };
        let [rows, columns] = shape.dimensions() else { return Fit::None };
        match ((rows, columns) == (&outer, inner), (rows, columns) == (inner, &outer)) {
            (true, true) => Fit::Both,
            (true, false) => Fit::One(Layout::Straight),
            (false, true) => Fit::One(Layout::Transposed),
            (false, false) => Fit::None,
        }
    }
}

/// How the weights lie that a bias of the length of one of their two dimensions belongs to.
fn biased(tensors: &Tensors) -> Layouts {
    let mut layouts = Layouts::default();
    for (name, shape) in tensors {
        let [rows, columns] = shape.dimensions() else { continue };
        let bias = bias_of(name).filter(|_| rows != columns).and_then(|bias| tensors.get(bias.as_str()));
        match bias.map(Shape::dimensions) {
            Some([outputs]) if outputs == rows => layouts.note(name, Layout::Straight),
            Some([outputs]) if outputs == columns => layouts.note(name, Layout::Transposed),
            _ => {}
        }
    }
    layouts
}

/// The name of the bias of a weight.
fn bias_of(weight: &str) -> Option<String> {
    Some(format!("{}.bias", weight.strip_suffix(".weight")?))
}

/// The tensors of files.
fn tensors(state: &State, files: &[Arc<Node>]) -> Tensors {
    let files = files.iter().filter_map(|node| node.file());
    let parts = files.flat_map(|file| state.parts(file).chain(state.views(file)));
    let tensor = |node: &Arc<Node>| {
        let TensorEntry { name, shape, .. } = node.file()?.tensor.as_ref()?;
        Some((Arc::from(&**name), shape.clone()))
    };
    parts.filter_map(tensor).collect()
}

/// The files of a directory that have tensors or describe its model.
fn files(state: &State, directory: EntryId) -> Vec<Arc<Node>> {
    let Some(names) = state.directory(directory) else { return Vec::new() };
    let nodes = names.after(EntryId(0)).filter_map(|(_, name, id)| Some((name, state.node(id)?)));
    let nodes = nodes.filter(|(name, node)| {
        node.file().is_some_and(|file| file.content.is_container()) || is_config(name)
    });
    nodes.map(|(_, node)| node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Change, Match, Names, Shape, Tensors};

    #[test]
    fn the_first_two_ways_are_kept_and_the_tensors_of_all() {
        let change = |name: &str| (name.to_owned(), Change::default());
        let changes: HashMap<String, Change> = [change("w"), change("a.b.w"), change("c.b.w")].into();
        let shape = || Shape::new(&[1]).unwrap();
        let base =
            |names: &[&str]| -> Tensors { names.iter().map(|name| ((*name).into(), shape())).collect() };
        let of = |names: &[&str]| {
            let Match { ways, changed } = Match::of(&changes, &base(names));
            let mut changed: Vec<String> = changed.iter().map(|name| name.to_string()).collect();
            changed.sort();
            (ways.iter().map(Names::to_string).collect::<Vec<_>>(), changed.join(" "))
        };
        let many: Vec<String> = (0..1000).map(|at| format!("p{at}.w")).collect();
        let mut many: Vec<&str> = many.iter().map(String::as_str).chain(["other.x"]).collect();
        let (ways, changed) = of(&many);
        assert_eq!(ways, ["after \"p0.\"", "after \"p1.\""]);
        assert_eq!(changed.split(' ').count(), 1000);
        many.push("w");
        assert_eq!(of(&many), (vec!["as they are".to_owned()], "w".to_owned()));
        // "w" leads to it too.
        let both = vec!["after \"b.\"".to_owned(), "without \"a.\"".to_owned()];
        assert_eq!(of(&["b.w", "x"]), (both, "b.w".to_owned()));
        assert_eq!(of(&["x"]), (Vec::new(), String::new()));
    }
}
