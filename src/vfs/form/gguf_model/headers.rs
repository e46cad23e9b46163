//! The layouts of GGUF files of models. A few are remembered, because each lookup asks for the size and a tokenizer takes
//! a tenth of a second.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::format::files::hub::{
    CONFIG_NAME, ElementType, FILES, Files, Layout, POOLING_BYTES_MAX, Source, SourceTensor, lay_out,
    pooling_directory,
};
use crate::format::files::safetensors::{Role, Weight};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Node, Object};
use crate::stream::is_castable;
use crate::vfs::form::gguf_model::directory::{Inputs, directory_of, find, members, name};
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::weights::Model;

/// The most layouts that are remembered.
const LAYOUTS_MAX: usize = 32;
/// The most bytes of headers that are remembered, one excepted.
const BYTES_MAX: usize = 64 << 20;

/// A layout, with the source of each tensor.
pub(super) struct Header {
    pub(super) layout: Layout,
    /// The tensors that the layout numbers.
    pub(super) sources: Vec<Made>,
}

/// A tensor of a model.
pub(super) enum Made {
    /// One that is stored, of this type.
    Tensor(EntryId, Dtype),
    /// One whose codes are stored.
    Weight(Box<Weight>),
}

/// The state of the files that a layout follows from.
#[derive(Clone)]
struct Stamp {
    name: String,
    nodes: Vec<Arc<Node>>,
    changes: u64,
}

impl Stamp {
    fn of(inputs: &Inputs) -> Stamp {
        Stamp {
            name: inputs.name.clone(),
            nodes: inputs.nodes().cloned().collect(),
            changes: inputs.changes(),
        }
    }

    fn is_same(&self, other: &Stamp) -> bool {
        let pairs = || self.nodes.iter().zip(&other.nodes);
        self.name == other.name
            && self.changes == other.changes
            && self.nodes.len() == other.nodes.len()
            && pairs().all(|(one, other)| Arc::ptr_eq(one, other))
    }
}

/// A remembered outcome.
struct Remembered {
    collection: Weak<Collection>,
    directory: EntryId,
    element_type: ElementType,
    pooling: Option<String>,
    stamp: Stamp,
    outcome: Outcome,
}

/// The header of a model, or the error for a model that has none.
#[derive(Clone)]
enum Outcome {
    Made(Arc<Header>),
    Refused(ErrorKind, String),
}

impl Outcome {
    fn result(self) -> Result<Arc<Header>> {
        match self {
            Outcome::Made(header) => Ok(header),
            Outcome::Refused(kind, text) => Err(Error::new(kind, text)),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Outcome::Made(header) => header.layout.header.len(),
            Outcome::Refused(_, text) => text.len(),
        }
    }
}

/// The newest last.
static REMEMBERED: Mutex<VecDeque<Remembered>> = Mutex::new(VecDeque::new());

/// The header of the model in a directory, and the files that it follows from.
pub(super) fn header(
    collection: &Arc<Collection>,
    directory: EntryId,
    element_type: ElementType,
) -> Result<(Arc<Header>, Vec<Arc<Node>>)> {
    let (pooling, old) = remembered(collection, directory, element_type);
    let mut inputs = Inputs::gather(collection, directory, pooling.as_deref());
    let mut stamp = Stamp::of(&inputs);
    if let Some((_, outcome)) = old.filter(|(old, _)| old.is_same(&stamp)) {
        return outcome.result().map(|header| (header, stamp.nodes));
    }
    let modules = inputs.modules().map(|small| small.read(collection, POOLING_BYTES_MAX)).transpose()?;
    let named = modules.flatten().as_deref().and_then(pooling_directory);
    if named != pooling {
        inputs = Inputs::gather(collection, directory, named.as_deref());
        stamp = Stamp::of(&inputs);
    }
    let outcome = match made(collection, directory, &inputs, element_type) {
        Ok(header) => Outcome::Made(Arc::new(header)),
        Err(error) if is_lasting(error.kind()) => Outcome::Refused(error.kind(), error.to_string()),
        Err(error) => return Err(error),
    };
    remember(Remembered {
        collection: Arc::downgrade(collection),
        directory,
        element_type,
        pooling: named,
        stamp: stamp.clone(),
        outcome: outcome.clone(),
    });
    outcome.result().map(|header| (header, stamp.nodes))
}

/// Whether an error follows from the files, and not from the moment.
fn is_lasting(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unsupported | ErrorKind::Invalid | ErrorKind::Unreadable)
}

/// The memory of a model: the directory of its pooling, the stamp and the outcome.
fn remembered(
    collection: &Arc<Collection>,
    directory: EntryId,
    element_type: ElementType,
) -> (Option<String>, Option<(Stamp, Outcome)>) {
    let all = REMEMBERED.lock();
    let of = |known: &&Remembered| {
        known.directory == directory && std::ptr::eq(known.collection.as_ptr(), Arc::as_ptr(collection))
    };
    let pooling = all.iter().rev().find(of).and_then(|known| known.pooling.clone());
    let found = all.iter().rev().filter(of).find(|known| known.element_type == element_type);
    (pooling, found.map(|known| (known.stamp.clone(), known.outcome.clone())))
}

fn remember(new: Remembered) {
    let mut all = REMEMBERED.lock();
    all.retain(|known| {
        let is_same = known.directory == new.directory
            && known.element_type == new.element_type
            && Weak::ptr_eq(&known.collection, &new.collection);
        !is_same && known.collection.strong_count() > 0
    });
    all.push_back(new);
    let bytes = |all: &VecDeque<Remembered>| all.iter().map(|known| known.outcome.bytes()).sum::<usize>();
    while all.len() > LAYOUTS_MAX || all.len() > 1 && bytes(&all) > BYTES_MAX {
        all.pop_front();
    }
}

/// Reads the small files and lays the file out.
fn made(
    collection: &Arc<Collection>,
    directory: EntryId,
    inputs: &Inputs,
    element_type: ElementType,
) -> Result<Header> {
    let containers = inputs.indexed(collection)?;
    let (tensors, sources) = sources(collection, directory, &containers)?;
    let mut files = Files::default();
    for (name, small) in &inputs.files {
        let most = FILES.iter().find(|(known, _)| known == name).map_or(0, |(_, most)| *most);
        if let Some(bytes) = small.read(collection, most)? {
            files.named.insert(*name, bytes);
        }
    }
    files.pooling =
        inputs.pooling.as_ref().map(|small| small.read(collection, POOLING_BYTES_MAX)).transpose()?.flatten();
    let layout = lay_out(&files, &tensors, &inputs.name, element_type)?;
    Ok(Header { layout, sources })
}

/// The tensors of a model as floats: those that are stored, and those whose codes are.
fn sources(
    collection: &Arc<Collection>,
    directory: EntryId,
    containers: &[Arc<Node>],
) -> Result<(Vec<SourceTensor>, Vec<Made>)> {
    let members = members(collection, containers);
    let has_codes = members.iter().any(|member| member.is_part_of_weight);
    let model = has_codes.then(|| Model::in_directory(collection, directory));
    let (mut tensors, mut made) = (Vec::new(), Vec::new());
    for member in members {
        let role = model.as_ref().map_or(Role::Plain, |model| model.role(&member.name));
        let (tensor, source) = match role {
            Role::Hidden => continue,
            Role::Weight(weight) => {
                let (name, shape) = (weight.name.to_string(), weight.shape.clone());
                (SourceTensor { name, dtype: Dtype::F32, shape }, Made::Weight(weight))
            }
            Role::Plain if !member.is_part_of_weight => {
                let (name, dtype) = (member.name.into_string(), member.dtype);
                (SourceTensor { name, dtype, shape: member.shape }, Made::Tensor(member.node, dtype))
            }
            Role::Plain | Role::Stored => {
                let name = crate::model::quoted_name(&member.name);
                let text = format!("tensor {name:?} has codes, or scales of codes, that are not decoded");
                return Err(Error::unsupported(text));
            }
        };
        tensors.push(tensor);
        made.push(source);
    }
    Ok((tensors, made))
}

/// Checks that the tensors that a file needs are floats.
pub(super) fn check_floats(header: &Header) -> Result<()> {
    for tensor in &header.layout.tensors {
        if let Source::Tensor(place) = tensor.source
            && let Some(Made::Tensor(_, dtype)) = header.sources.get(place)
            && (!is_castable(*dtype) || dtype.is_ggml())
        {
            return Err(Error::unsupported(format!("a tensor of {dtype}")));
        }
    }
    Ok(())
}

/// Whether the form shows the model whose anchor a node is. A model whose files cannot be read now is shown.
pub fn is_shown(collection: &Arc<Collection>, form: Form, node: EntryId) -> bool {
    let Shows::Model(element_type) = form.shows() else { return true };
    let directory = directory_of(&collection.state(), node);
    let Some(directory) = directory else { return false };
    let made = header(collection, directory, element_type).and_then(|(made, _)| check_floats(&made));
    made.err().is_none_or(|error| !is_lasting(error.kind()))
}

/// Why the form shows no model in a directory that has the configuration of one. `None` if it shows one.
pub fn why_none(collection: &Arc<Collection>, form: Form, directory: EntryId) -> Option<String> {
    let Shows::Model(element_type) = form.shows() else { return None };
    {
        let state = collection.state();
        state.directory(directory)?.get(CONFIG_NAME.as_bytes())?;
        if find(&state, directory, &name()).is_none() {
            let text = "no model.gguf: the directory has no model*.safetensors, or all of its files are in other directories of models too";
            return Some(text.to_owned());
        }
    }
    let made = header(collection, directory, element_type).and_then(|(made, _)| check_floats(&made));
    made.err().map(|error| format!("no model.gguf: {error}"))
}

/// Why the directory of a configuration has no GGUF file, though it has a model's containers.
pub fn why_of_config(collection: &Arc<Collection>, node: EntryId) -> Option<String> {
    let directory = {
        let state = collection.state();
        let mut named = state.links(node).iter().filter(|(_, name)| **name == *CONFIG_NAME.as_bytes());
        let directory = named.next().map(|(directory, _)| *directory)?;
        find(&state, directory, &name()).map(|_| directory)?
    };
    why_none(collection, Form::Gguf, directory)
}

/// The files that the file of a form follows from beside its node, and their objects. Of another form, none.
pub fn inputs(collection: &Arc<Collection>, form: Form, node: EntryId) -> (Vec<EntryId>, Vec<Arc<Object>>) {
    let Shows::Model(element_type) = form.shows() else { return (Vec::new(), Vec::new()) };
    let directory = directory_of(&collection.state(), node);
    let Some(directory) = directory else { return (Vec::new(), Vec::new()) };
    let (pooling, _) = remembered(collection, directory, element_type);
    let inputs = Inputs::gather(collection, directory, pooling.as_deref());
    let nodes = inputs.nodes().map(|node| node.entry.id).collect();
    let mut objects: Vec<Arc<Object>> = inputs.objects().cloned().collect();
    let state = collection.state();
    let files = inputs.containers.values().filter_map(|node| node.file());
    let parts = files.flat_map(|file| file.objects.iter()).filter_map(|id| state.object(*id).cloned());
    objects.extend(parts);
    (nodes, objects)
}
