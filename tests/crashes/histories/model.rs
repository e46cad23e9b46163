//! The naive file system that histories are compared with.

use std::collections::BTreeMap;

/// The target of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Node {
    /// A file, by its place in [`Model::files`].
    File(usize),
    Link(String),
    Directory,
}

/// A file, with one name or several.
#[derive(Clone, Debug)]
pub struct Modelled {
    pub now: Vec<u8>,
    /// Contents that may be read after the end of the daemon instead: versions that were never closed, or whose request failed.
    pub others: Vec<Vec<u8>>,
    /// A request failed for lack of room, so that the next kill may leave anything.
    pub is_loose: bool,
    /// Children may need its blocks, so changes of it may be EBUSY.
    pub is_parent: bool,
}

/// Names by path, below the tenant.
#[derive(Clone, Default, Debug)]
pub struct Model {
    pub names: BTreeMap<String, Node>,
    pub files: Vec<Modelled>,
}

impl Model {
    pub fn file(&self, path: &str) -> Option<usize> {
        match self.names.get(path) {
            Some(Node::File(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn is_directory(&self, path: &str) -> bool {
        self.names.get(path) == Some(&Node::Directory)
    }

    pub fn add(&mut self, path: &str, now: Vec<u8>) -> usize {
        self.files.push(Modelled { now, others: Vec::new(), is_loose: false, is_parent: false });
        self.names.insert(path.to_owned(), Node::File(self.files.len() - 1));
        self.files.len() - 1
    }

    pub fn below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        self.names.keys().filter(|name| name.starts_with(&prefix)).cloned().collect()
    }

    pub fn has_parent_below(&self, path: &str) -> bool {
        let below = self.below(path);
        let files = below.iter().map(String::as_str).chain([path]).filter_map(|path| self.file(path));
        files.into_iter().any(|number| self.files[number].is_parent)
    }

    pub fn names_of(&self, file: usize) -> Vec<String> {
        let of_it = |(name, node): (&String, &Node)| (*node == Node::File(file)).then(|| name.clone());
        self.names.iter().filter_map(of_it).collect()
    }

    pub fn paths(&self, is_wanted: impl Fn(&str, &Node) -> bool) -> Vec<String> {
        self.names.iter().filter(|(name, node)| is_wanted(name, node)).map(|(name, _)| name.clone()).collect()
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        for name in self.below(from) {
            if let Some(node) = self.names.remove(&name) {
                self.names.insert(format!("{to}{}", &name[from.len()..]), node);
            }
        }
        if let Some(node) = self.names.remove(from) {
            self.names.insert(to.to_owned(), node);
        }
    }
}

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Where the data of a safetensors file begins, and its tensors: name, begin and end in the file. `None` for other
/// bytes.
pub fn tensors(bytes: &[u8]) -> Option<Vec<(String, usize, usize)>> {
    let parsed = safetensors::SafeTensors::deserialize(bytes).ok()?;
    let (header, _) = safetensors::SafeTensors::read_metadata(bytes).ok()?;
    let begin = 8 + header;
    let place = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let at = view.data().as_ptr().addr() - bytes.as_ptr().addr();
        (name, at.max(begin), at + view.data().len())
    };
    Some(parsed.tensors().into_iter().map(place).collect())
}
