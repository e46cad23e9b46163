//! The layouts of GGUF files of models. A few are remembered, because each lookup asks for the size and a tokenizer takes
//! a tenth of a second.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::format::budget::Budget;
use crate::format::files::hub::{
    CONFIG_NAME, ElementType, FILES, Files, Layout, POOLING_BYTES_MAX, Source, SourceTensor, TensorLayout,
    check_architecture, lay_out, pooling_directory,
};
use crate::format::files::safetensors::{Role, Weight};
use crate::model::{Dtype, EntryId, Error, ErrorKind, Result};
use crate::store::{Collection, Node, Object, State};
use crate::stream::is_castable;
use crate::vfs::form::gguf_model::directory::{
    Inputs, Member, NamedParts, directory_of, find, have_codes, members, name,
};
use crate::vfs::form::gguf_model::memory::Planned;
use crate::vfs::form::gguf_model::recent::Recent;
use crate::vfs::form::gguf_model::tensor::{Elements, ModelTensor};
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::pieces::stored as stored_source;
use crate::vfs::form::recipe::{Part, Recipe, ShownWeight, Source as Stored};
use crate::vfs::form::weights::{Checkpoint, Model, NamedContainer, Seen};

/// The most layouts that are remembered.
const LAYOUTS_MAX: usize = 32;
/// The most bytes of layouts that are remembered, one excepted.
const BYTES_MAX: usize = 64 << 20;

/// A layout, with the source of each tensor.
pub(super) struct Header {
    pub(super) layout: Layout,
    /// The tensors that the layout numbers.
    pub(super) sources: Vec<Made>,
    /// The bytes of the file.
    bytes: u64,
}

/// A tensor of a model.
pub(super) enum Made {
    /// One that is stored, of this type.
    Tensor(EntryId, Dtype),
    /// One whose codes are stored, with the tensors that it consists of.
    Weight(Arc<Weight>, Vec<(String, EntryId)>),
}

impl Made {
    /// As the layout says.
    fn shown(&self, state: &State, layout: &TensorLayout) -> Result<ModelTensor> {
        let (elements, from) = match self {
            Made::Tensor(id, dtype) => (Elements::Stored(stored(state, *id)?), *dtype),
            Made::Weight(weight, parts) => {
                let part =
                    |(name, id): &(String, EntryId)| stored(state, *id).map(|source| (name.clone(), source));
                let sources = parts.iter().map(part).collect::<Result<_>>()?;
                (
                    Elements::Weight(ShownWeight { weight: weight.clone(), sources, to: Dtype::F32 }),
                    Dtype::F32,
                )
            }
        };
        Ok(ModelTensor { elements, from, layout: layout.clone() })
    }
}

impl Header {
    /// The bytes of memory that it has.
    fn memory(&self) -> usize {
        let literal = |source: &Source| match source {
            Source::Literal(bytes) => bytes.capacity(),
            Source::Tensor(_) => 0,
        };
        let tensors = self.layout.tensors.iter().map(|tensor| literal(&tensor.source));
        let of_weight = |weight: &Weight, parts: &[(String, EntryId)]| {
            let names = weight.parts.iter().chain(parts.iter().map(|(name, _)| name));
            // Its own names are three or four of those of its parts.
            size_of::<Weight>() + names.map(|name| 2 * (name.capacity() + size_of::<String>())).sum::<usize>()
        };
        let sources = self.sources.iter().map(|made| match made {
            Made::Tensor(..) => 0,
            Made::Weight(weight, parts) => of_weight(weight, parts),
        });
        self.layout.header.capacity()
            + size_of_val(self.layout.tensors.as_slice())
            + size_of_val(self.sources.as_slice())
            + tensors.chain(sources).sum::<usize>()
    }
}

/// The state of the files that a layout follows from.
#[derive(Clone)]
struct Stamp {
    name: String,
    files: Vec<Seen>,
    /// The small tensors that decide about roles.
    deciding: Vec<Seen>,
}

impl Stamp {
    fn of(inputs: &Inputs) -> Stamp {
        Stamp { name: inputs.name.clone(), files: inputs.seen(), deciding: inputs.deciding() }
    }

    fn is_same(&self, other: &Stamp) -> bool {
        let are_same = |one: &[Seen], other: &[Seen]| {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_same(other))
        };
        self.name == other.name
            && are_same(&self.files, &other.files)
            && are_same(&self.deciding, &other.deciding)
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        self.files.iter().chain(&self.deciding).map(|seen| seen.node.clone()).collect()
    }
}

/// The model and the type that an outcome is remembered for.
struct Key {
    collection: Weak<Collection>,
    directory: EntryId,
    element_type: ElementType,
}

/// A remembered outcome.
#[derive(Clone)]
struct Remembered {
    pooling: Option<String>,
    stamp: Stamp,
    outcome: Outcome,
}

impl Remembered {
    fn named(&self) -> NamedParts {
        let deciding = self.stamp.deciding.iter().map(|seen| seen.node.entry.id).collect();
        NamedParts { pooling: self.pooling.clone(), deciding }
    }

    fn memory(&self) -> usize {
        let outcome = match &self.outcome {
            Outcome::Made(header) => header.memory(),
            Outcome::Refused(_, text) => text.capacity(),
        };
        let seen = self.stamp.files.len() + self.stamp.deciding.len();
        outcome + seen * size_of::<Seen>() + size_of::<(Key, Remembered)>()
    }
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
}

static REMEMBERED: Mutex<Recent<Key, Remembered>> = Mutex::new(Recent::new(LAYOUTS_MAX, BYTES_MAX));

/// The header of the model in a directory, and the files that it follows from, with the directory of its pooling.
pub(super) fn header(
    collection: &Arc<Collection>,
    directory: EntryId,
    element_type: ElementType,
) -> Result<(Arc<Header>, Vec<Arc<Node>>)> {
    let found = |known: Remembered| known.outcome.result().map(|header| (header, known.stamp.nodes()));
    let current = || {
        let (named, old) = remembered(collection, directory, element_type);
        let inputs = Inputs::gather(collection, directory, &named);
        let stamp = Stamp::of(&inputs);
        let old = old.filter(|old| old.stamp.is_same(&stamp));
        (named, inputs, old)
    };
    let (_, inputs, old) = current();
    if let Some(old) = old {
        return found(old);
    }
    // Another thread may have made it meanwhile.
    let _planned =
        Planned::wait(inputs.small_bytes().saturating_add(inputs.header_bytes(collection).unwrap_or(0)));
    let (named, mut inputs, old) = current();
    if let Some(old) = old {
        return found(old);
    }
    let modules = inputs.modules().map(|small| small.read(collection, POOLING_BYTES_MAX)).transpose()?;
    let pooling = modules.flatten().as_deref().and_then(pooling_directory);
    if pooling != named.pooling {
        let named = NamedParts { pooling: pooling.clone(), ..NamedParts::default() };
        inputs = Inputs::gather(collection, directory, &named);
    }
    let mut stamp = Stamp { deciding: Vec::new(), ..Stamp::of(&inputs) };
    let outcome = match made(collection, directory, &inputs, element_type, &mut stamp.deciding) {
        Ok(header) => Outcome::Made(Arc::new(header)),
        Err(error) if is_lasting(error.kind()) => Outcome::Refused(error.kind(), error.to_string()),
        Err(error) => return Err(error),
    };
    let new = Remembered { pooling, stamp, outcome };
    remember(Key { collection: Arc::downgrade(collection), directory, element_type }, new.clone());
    found(new)
}

/// Whether an error follows from the files, and not from the moment.
fn is_lasting(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unsupported | ErrorKind::Invalid | ErrorKind::Unreadable)
}

/// The memory of a model: the parts that its files name, and the outcome.
fn remembered(
    collection: &Arc<Collection>,
    directory: EntryId,
    element_type: ElementType,
) -> (NamedParts, Option<Remembered>) {
    let mut all = REMEMBERED.lock();
    let is_of_model = |key: &Key| {
        key.directory == directory && std::ptr::eq(key.collection.as_ptr(), Arc::as_ptr(collection))
    };
    let own = all.find(|key| is_of_model(key) && key.element_type == element_type).cloned();
    let named = own.as_ref().or_else(|| all.find(is_of_model)).map(Remembered::named);
    (named.unwrap_or_default(), own)
}

fn remember(key: Key, new: Remembered) {
    let mut all = REMEMBERED.lock();
    all.retain(|known| {
        let is_same = known.directory == key.directory
            && known.element_type == key.element_type
            && Weak::ptr_eq(&known.collection, &key.collection);
        !is_same && known.collection.strong_count() > 0
    });
    let memory = new.memory();
    all.add(key, new, memory);
}

/// Reads the small files and lays the file out. Looks at the configuration first, which most directories fail by. Adds the
/// small tensors that decide about roles to `deciding`.
fn made(
    collection: &Arc<Collection>,
    directory: EntryId,
    inputs: &Inputs,
    element_type: ElementType,
    deciding: &mut Vec<Seen>,
) -> Result<Header> {
    let mut files = Files::default();
    if let Some(config) = inputs.file(collection, CONFIG_NAME)? {
        check_architecture(&config)?;
        files.named.insert(CONFIG_NAME, config);
    }
    let mut budget = Budget::default();
    budget.add_read(inputs.header_bytes(collection)?);
    let containers = inputs.indexed(collection)?;
    let has_codes = have_codes(collection, &containers);
    let checkpoint =
        has_codes.then(|| Checkpoint::new(collection, directory, &containers, inputs.index.is_some()));
    let found = sources(collection, &containers, checkpoint.as_ref(), &mut budget);
    deciding.extend(checkpoint.map(Checkpoint::deciding).unwrap_or_default());
    let (tensors, sources) = found?;
    for (name, _) in FILES.iter().filter(|(name, _)| *name != CONFIG_NAME) {
        if let Some(bytes) = inputs.file(collection, name)? {
            files.named.insert(name, bytes);
        }
    }
    files.pooling =
        inputs.pooling.as_ref().map(|small| small.read(collection, POOLING_BYTES_MAX)).transpose()?.flatten();
    let layout = lay_out(&files, &tensors, &inputs.name, element_type)?;
    check_floats(&layout, &sources)?;
    let tensors = layout.tensors.iter().map(|tensor| tensor.bytes.saturating_add(tensor.padding));
    let bytes = tensors.fold(layout.header.len() as u64, u64::saturating_add);
    if bytes > i64::MAX as u64 {
        return Err(Error::invalid("a file of more than 2^63 - 1 bytes"));
    }
    Ok(Header { layout, sources, bytes })
}

/// The tensors of a model as floats: those that are stored, and those whose codes are.
fn sources(
    collection: &Arc<Collection>,
    containers: &[NamedContainer],
    checkpoint: Option<&Checkpoint>,
    budget: &mut Budget,
) -> Result<(Vec<SourceTensor>, Vec<Made>)> {
    let (mut tensors, mut sources) = (Vec::new(), Vec::new());
    for container in containers {
        let model = checkpoint.map(|checkpoint| checkpoint.model(container));
        for member in members(collection, &container.node) {
            budget.take_entry(member.name.len())?;
            if let Some((tensor, source)) = source_of(member, model.as_ref(), budget)? {
                tensors.push(tensor);
                sources.push(source);
            }
        }
    }
    Ok((tensors, sources))
}

/// A tensor of a model as floats. `None` for one that is a part of another.
fn source_of(
    member: Member,
    model: Option<&Model>,
    budget: &mut Budget,
) -> Result<Option<(SourceTensor, Made)>> {
    Ok(match model.map_or(Role::Plain, |model| model.role(&member.name)) {
        Role::Hidden => None,
        Role::Weight(weight) => {
            let parts = model.map(|model| model.parts(&weight)).unwrap_or_default();
            parts.iter().try_for_each(|(name, _)| budget.take_entry(name.len()))?;
            let parts = parts.into_iter().map(|(name, known)| (name, known.node.entry.id)).collect();
            let (name, shape) = (weight.name.clone(), weight.shape.clone());
            Some((SourceTensor { name, dtype: Dtype::F32, shape }, Made::Weight(Arc::new(*weight), parts)))
        }
        Role::Plain if !member.is_part_of_weight => {
            let Member { node, name, dtype, shape, .. } = member;
            Some((SourceTensor { name: name.into_string(), dtype, shape }, Made::Tensor(node, dtype)))
        }
        Role::Plain | Role::Stored => {
            let name = crate::model::quoted_name(&member.name);
            let text = format!("tensor {name:?} has codes, or scales of codes, that are not decoded");
            return Err(Error::unsupported(text));
        }
    })
}

/// Checks that the tensors that a file needs are floats.
fn check_floats(layout: &Layout, sources: &[Made]) -> Result<()> {
    for tensor in &layout.tensors {
        if let Source::Tensor(place) = tensor.source
            && let Some(Made::Tensor(_, dtype)) = sources.get(place)
            && (!is_castable(*dtype) || dtype.is_ggml())
        {
            return Err(Error::unsupported(format!("a tensor of {dtype}")));
        }
    }
    Ok(())
}

/// The size of the file of the model whose anchor a node is, and the files that it follows from. `None` for a file of another
/// form.
pub fn size(
    collection: &Arc<Collection>,
    form: Form,
    node: EntryId,
) -> Option<Result<(u64, Vec<Arc<Node>>)>> {
    let Shows::Model(element_type) = form.shows() else { return None };
    let directory = directory_of(&collection.state(), node);
    let directory = directory.ok_or_else(|| Error::new(ErrorKind::NotFound, "no model"));
    let header = directory.and_then(|directory| header(collection, directory, element_type));
    Some(header.map(|(header, inputs)| (header.bytes, inputs)))
}

/// The recipe of the file that shows the model whose anchor a node is. Another file that lies in the directory of one model
/// counts as its anchor.
///
/// # Errors
/// `NotFound` for a node that lies in no directory of a model, or in several, the errors of [`header`], `Gone` for a tensor that is no longer there.
pub fn recipe(collection: &Arc<Collection>, node: &Node, element_type: ElementType) -> Result<Recipe> {
    let directory = directory_of(&collection.state(), node.entry.id);
    let directory = directory.ok_or_else(|| Error::new(ErrorKind::NotFound, "no model"))?;
    let (header, inputs) = header(collection, directory, element_type)?;
    let mut parts = Vec::with_capacity(2 * header.layout.tensors.len() + 1);
    parts.push(Part::Literal(header.layout.header.clone()));
    for tensor in &header.layout.tensors {
        parts.push(match &tensor.source {
            Source::Literal(bytes) => Part::Literal(bytes.clone()),
            Source::Tensor(place) => {
                let made = header.sources.get(*place);
                let made = made.ok_or_else(|| Error::invalid("a tensor without its source"))?;
                Part::ModelTensor(made.shown(&collection.state(), tensor)?)
            }
        });
        parts.push(Part::Zeros(tensor.padding));
    }
    Ok(Recipe { collection: collection.clone(), created_at: node.entry.created_at, parts, inputs })
}

/// A tensor as it is stored.
fn stored(state: &State, id: EntryId) -> Result<Stored> {
    let gone = || Error::new(ErrorKind::Gone, "a tensor of the model is gone");
    stored_source(state, state.node(id).ok_or_else(gone)?)
}

/// Whether the form shows the model whose anchor a node is. A model whose files cannot be read now is shown.
pub fn is_shown(collection: &Arc<Collection>, form: Form, node: EntryId) -> bool {
    let Shows::Model(element_type) = form.shows() else { return true };
    let directory = directory_of(&collection.state(), node);
    let Some(directory) = directory else { return false };
    let made = header(collection, directory, element_type);
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
    let made = header(collection, directory, element_type);
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
    let (named, _) = remembered(collection, directory, element_type);
    let inputs = Inputs::gather(collection, directory, &named);
    let nodes = inputs.nodes().map(|node| node.entry.id).collect();
    let mut objects: Vec<Arc<Object>> = inputs.objects().cloned().collect();
    let state = collection.state();
    let files = inputs.containers.values().filter_map(|node| node.file());
    let parts = files.flat_map(|file| file.objects.iter()).filter_map(|id| state.object(*id).cloned());
    objects.extend(parts);
    (nodes, objects)
}
