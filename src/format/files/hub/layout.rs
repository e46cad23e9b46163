//! The GGUF file of a model: its header, and how the bytes of each tensor follow from one of the model.

use std::collections::{HashMap, HashSet};

use super::architecture::{self, Architecture, Change, Extra, Row, Size};
use super::config::Config;
use super::entries::{self, Entries, Entry, Listed};
use super::hyperparameters::{self, HEADS, HIDDEN, INNER, KEY_HEADS, LAYERS, POSITIONS, labels};
use super::model_files::{CONFIG_NAME, Files};
use super::{metadata, rotary, tokenizer};
use crate::format::files::gguf;
use crate::model::{Dtype, Error, Result, Shape, quoted_name};

/// Parts of names of tensors that no text model has.
const OTHER_PARTS: [&str; 17] = [
    "visual.",
    "vision.",
    "audio.",
    "talker.",
    "vision_",
    "audio_",
    "token2wav.",
    "code2wav.",
    "projector.",
    "pre_mm_projector_norm",
    "image_newline",
    "view_seperator",
    "patch_embed",
    "patch_embedding",
    "patch_merger.",
    "patch_merge_mlp.",
    "model.connector.",
];

/// Ends of names of tensors that follow from the configuration.
const COMPUTED_ENDS: [&str; 3] = [".attention.masked_bias", ".attention.bias", ".rotary_emb.inv_freq"];

/// The version of the quantized types of ggml.
const QUANTIZATION_VERSION: u32 = 2;

/// The type of most tensors of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ElementType {
    /// bf16 or f16: that of the first matrix of the model that has one of them, otherwise f16.
    Automatic,
    /// Blocks of 32 codes of 8 bits.
    Q8_0,
    /// Blocks of 32 codes of 4 bits.
    Q4_0,
}

/// A tensor of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceTensor {
    /// Any text.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first.
    pub shape: Shape,
}

/// The source of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub enum Source {
    /// The tensor of a model with this place in the list.
    Tensor(usize),
    /// Little-endian elements.
    Literal(Vec<u8>),
}

/// A tensor of the file.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorLayout {
    /// The source of its values.
    pub source: Source,
    /// The type of its elements in the file.
    pub dtype: Dtype,
    /// Its shape in the file. It may have fewer rows than its source.
    pub shape: Shape,
    /// Where the halves of heads are interleaved, the number of heads.
    pub heads: Option<u64>,
    /// Whether one is added to each value, in the type of the source if that is f16, otherwise in f32.
    pub is_incremented: bool,
    /// Its bytes in the file.
    pub bytes: u64,
    /// The zeros after it.
    pub padding: u64,
}

/// A GGUF file.
#[derive(Clone, PartialEq, Debug)]
pub struct Layout {
    /// The header, with the zeros up to the first tensor.
    pub header: Vec<u8>,
    /// The tensors, in the order of the header.
    pub tensors: Vec<TensorLayout>,
}

/// The GGUF file of a model in a directory of this name. `tensors` are those of its containers, in the order of names of
/// containers, then of tensors. Needs time and memory in proportion to the files and the tensors.
///
/// # Errors
/// `Unsupported` for a model that no table covers, `Invalid` for a configuration, a tokenizer or tensors that do not fit each
/// other.
pub fn lay_out(
    files: &Files,
    tensors: &[SourceTensor],
    directory: &str,
    element_type: ElementType,
) -> Result<Layout> {
    let json = files.get(CONFIG_NAME).ok_or_else(|| Error::invalid("config.json is missing, or too long"))?;
    let mut config = Config::parse(json)?;
    let class = config.architecture().unwrap_or_default().to_owned();
    let architecture = architecture_of(&class)?;
    prepare(&mut config, architecture)?;
    let has_labels = architecture.extras.contains(&Extra::Labels) && labels(&config).is_some();
    let named = named(architecture, &class, tensors, has_labels);
    let to = target(&named, tensors, element_type);
    let tokens = tokenizer::vocabulary(architecture.vocabulary, files, &config)?;
    let sizes = Sizes::of(&config, tokens.len() as u64)?;
    let mut made = Vec::with_capacity(named.len() + 1);
    if architecture.extras.contains(&Extra::RotaryFactors)
        && let Some(factors) = rotary::factors(&config)?
    {
        made.push(literal("rope_freqs.weight", &factors)?);
    }
    for (name, place) in &named {
        let Some(source) = tensors.get(*place) else { continue };
        made.push(tensor(architecture, &sizes, name, source, *place, to)?);
    }
    check_complete(architecture, &sizes, &made)?;
    let mut out = Entries::default();
    out.text("general.architecture", architecture.name);
    out.text("general.type", "model");
    let parameters: u64 =
        made.iter().map(|(_, made)| made.shape.elements()).fold(0, |sum, more| sum.saturating_add(more));
    metadata::set(&mut out, files, &config, directory, parameters)?;
    hyperparameters::set(&mut out, architecture, &config, files, file_type(to))?;
    out.set("general.quantization_version", Entry::U32(QUANTIZATION_VERSION));
    tokens.set(&mut out);
    let listed: Vec<Listed<'_>> =
        made.iter().map(|(name, made)| Listed { name, dtype: made.dtype, shape: &made.shape }).collect();
    let header = entries::write(&out, &listed)?;
    Ok(Layout { header, tensors: made.into_iter().map(|(_, made)| made).collect() })
}

/// Checks by its configuration alone that a table covers a model.
///
/// # Errors
/// `Unsupported` for a model that no table covers, `Invalid` for a configuration that lacks what the table needs.
pub fn check_architecture(config: &[u8]) -> Result<()> {
    let mut config = Config::parse(config)?;
    let architecture = architecture_of(config.architecture().unwrap_or_default())?;
    prepare(&mut config, architecture)
}

/// The table of a class of transformers.
fn architecture_of(class: &str) -> Result<&'static Architecture> {
    architecture::find(class).ok_or_else(|| {
        Error::unsupported(format!(
            "config.json names the architecture {:?}; GGUF files are made of {}",
            quoted_name(class),
            architecture::class_names()
        ))
    })
}

/// Completes a configuration by the table of its architecture.
fn prepare(config: &mut Config, architecture: &Architecture) -> Result<()> {
    config.assume(architecture.assumed);
    if architecture.implies_head {
        let (hidden, heads) = (config.needed(HIDDEN)?, config.needed(HEADS)?);
        if let Some(head) = hidden.checked_div(heads) {
            config.imply("head_dim", head);
        }
        config.imply("num_key_value_heads", heads);
    }
    if architecture.name == "nomic-bert" {
        // Source: `NomicBertModel` of the converter. The models are trained for shorter texts than they name.
        let (named, trained) =
            (config.needed(&["n_positions"])?, config.count(&["max_trained_positions"])?.unwrap_or(2048));
        match (named, trained) {
            (8192, 2048) => config.replace("n_positions", 2048),
            (2048, 2048) => config.replace("n_positions", 512),
            _ => return Err(Error::unsupported(format!("nomic-bert with n_positions {named}"))),
        }
        let is =
            |key: &str, wanted: bool| config.value(key).is_none_or(|value| value.as_bool() == Some(wanted));
        let falses =
            ["causal", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "rotary_emb_interleaved"];
        let activation = config.value("activation_function").and_then(serde_json::Value::as_str);
        if !falses.into_iter().all(|key| is(key, false)) || activation.is_none_or(|name| name != "swiglu") {
            return Err(Error::unsupported("a nomic-bert of another kind than nomic-embed-text"));
        }
    }
    Ok(())
}

/// The tensors that the file may need: the name by which the table knows each, and its place.
fn named(
    architecture: &Architecture,
    class: &str,
    tensors: &[SourceTensor],
    has_labels: bool,
) -> Vec<(String, usize)> {
    let is_inner = class.ends_with("Model") && architecture.prefixes.is_empty();
    let mut found: Vec<(String, usize)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, tensor) in tensors.iter().enumerate() {
        let Some(name) = name_in_table(architecture, &tensor.name, is_inner) else { continue };
        let name = match name.as_str() {
            "classifier.weight" if has_labels => "classifier.out_proj.weight".to_owned(),
            "classifier.bias" if has_labels => "classifier.out_proj.bias".to_owned(),
            _ => name,
        };
        // Of two tensors of one name the last counts, at the place of the first, as in Python.
        match places.get(&name).and_then(|at| found.get_mut(*at)) {
            Some((_, known)) => *known = place,
            None => {
                places.insert(name.clone(), found.len());
                found.push((name, place));
            }
        }
    }
    found
}

/// The name of a tensor as the table has it. `None` for one that llama.cpp does not need.
fn name_in_table(architecture: &Architecture, name: &str, is_inner: bool) -> Option<String> {
    let mut name = name;
    for prefix in architecture.prefixes {
        name = name.strip_prefix(prefix).unwrap_or(name);
    }
    let is_dropped = architecture.drops.iter().any(|drop| name.starts_with(drop));
    if is_dropped
        || name.starts_with("mlp")
        || OTHER_PARTS.into_iter().any(|part| name.contains(part))
        || COMPUTED_ENDS.into_iter().any(|end| name.ends_with(end))
    {
        return None;
    }
    let mut name = name.replace("language_model.", "");
    if !architecture.prefixes.is_empty() {
        for (old, new) in [(".gamma", ".weight"), (".beta", ".bias")] {
            if let Some(stem) = name.strip_suffix(old) {
                name = format!("{stem}{new}");
            }
        }
    }
    let is_short = ["layers.", "embed_tokens.", "norm."].iter().any(|part| name.starts_with(part));
    Some(if is_inner || (architecture.prefixes.is_empty() && is_short) {
        format!("model.{name}")
    } else {
        name
    })
}

/// The type of matrices in the file.
fn target(named: &[(String, usize)], tensors: &[SourceTensor], element_type: ElementType) -> Dtype {
    match element_type {
        ElementType::Q8_0 => Dtype::Q8_0,
        ElementType::Q4_0 => Dtype::Q4_0,
        ElementType::Automatic => {
            let sources = named.iter().filter_map(|(_, place)| tensors.get(*place));
            let mut matrices = sources.filter(|source| source.shape.dimensions().len() >= 2);
            let first = matrices.find(|source| matches!(source.dtype, Dtype::Bf16 | Dtype::F16));
            first.map_or(Dtype::F16, |source| source.dtype)
        }
    }
}

/// The value of `general.file_type`. Source: `llama_ftype` of llama.cpp.
fn file_type(to: Dtype) -> u32 {
    match to {
        Dtype::Bf16 => 32,
        Dtype::Q8_0 => 7,
        Dtype::Q4_0 => 2,
        _ => 1,
    }
}

/// The sizes that shapes of a table stand for.
struct Sizes {
    tokens: u64,
    hidden: u64,
    inner: Option<u64>,
    heads: u64,
    key_heads: u64,
    head: u64,
    positions: Option<u64>,
    types: Option<u64>,
    layers: u64,
}

impl Sizes {
    fn of(config: &Config, tokens: u64) -> Result<Sizes> {
        let optional = |keys: &[&str]| config.count(keys).map(|count| count.map(u64::from));
        let (hidden, heads) = (u64::from(config.needed(HIDDEN)?), u64::from(config.needed(HEADS)?));
        let head = optional(&["head_dim"])?.or(hidden.checked_div(heads));
        let head = head.ok_or_else(|| Error::invalid("config.json: no attention heads"))?;
        Ok(Sizes {
            tokens,
            hidden,
            inner: optional(INNER)?,
            heads,
            key_heads: optional(KEY_HEADS)?.unwrap_or(heads),
            head,
            positions: optional(POSITIONS)?,
            types: optional(&["type_vocab_size"])?,
            layers: u64::from(config.needed(LAYERS)?),
        })
    }

    /// The number that a size stands for; `None` for one that is not known.
    fn value(&self, size: Size) -> Option<u64> {
        match size {
            Size::Vocabulary => Some(self.tokens),
            Size::Hidden => Some(self.hidden),
            Size::Inner => self.inner,
            Size::Queries => self.heads.checked_mul(self.head),
            Size::Keys => self.key_heads.checked_mul(self.head),
            Size::Joint => self.hidden.checked_mul(3),
            Size::Head => Some(self.head),
            Size::Positions => self.positions,
            Size::Types => self.types,
            Size::Any => None,
        }
    }
}

/// The tensor of the file that a tensor of the model becomes, with its name.
fn tensor(
    architecture: &Architecture,
    sizes: &Sizes,
    name: &str,
    source: &SourceTensor,
    place: usize,
    to: Dtype,
) -> Result<(String, TensorLayout)> {
    let quoted = || quoted_name(&source.name);
    let (pattern, layer) = without_layer(name);
    let row = architecture.tensors.iter().find(|row| row.source == pattern);
    let row = row.filter(|_| layer.is_none_or(|layer| layer < sizes.layers)).ok_or_else(|| {
        Error::unsupported(format!("tensor {:?} has no place in {}", quoted(), architecture.name))
    })?;
    let (shape, heads) = shape_of(sizes, row, source)?;
    let name = match layer {
        Some(layer) => row.name.replace("{}", &layer.to_string()),
        None => row.name.to_owned(),
    };
    let dtype = type_in_file(&name, &shape, to);
    let is_incremented = row.change == Change::Increment;
    laid_out(Source::Tensor(place), dtype, shape, heads, is_incremented).map(|made| (name, made))
}

/// A name with `{}` for the first part that is a number, and this number.
fn without_layer(name: &str) -> (String, Option<u64>) {
    let mut layer = None;
    let parts: Vec<&str> = name
        .split('.')
        .map(|part| match part.parse::<u64>() {
            Ok(number) if layer.is_none() && number.to_string() == part => {
                layer = Some(number);
                "{}"
            }
            _ => part,
        })
        .collect();
    (parts.join("."), layer)
}

/// The shape of a tensor in the file, and the number of heads that are interleaved.
fn shape_of(sizes: &Sizes, row: &Row, source: &SourceTensor) -> Result<(Shape, Option<u64>)> {
    let found = source.shape.dimensions();
    let wanted: Vec<Option<u64>> = row.shape.iter().map(|size| sizes.value(*size)).collect();
    let fits = |(at, (found, wanted)): (usize, (&u64, &Option<u64>))| {
        let is_cut = row.change == Change::Tokens && at == 0;
        wanted.is_none_or(|wanted| *found == wanted || is_cut && *found > wanted)
    };
    if found.len() != wanted.len() || !found.iter().zip(&wanted).enumerate().all(fits) {
        let text = wanted.iter().map(|size| size.map_or("?".to_owned(), |size| size.to_string()));
        return Err(Error::invalid(format!(
            "tensor {:?} has the shape {}; config.json and the tokenizer imply {}",
            quoted_name(&source.name),
            found.iter().map(u64::to_string).collect::<Vec<_>>().join("x"),
            text.collect::<Vec<_>>().join("x")
        )));
    }
    let shape = match (row.change, wanted.first()) {
        (Change::Tokens, Some(Some(tokens))) => {
            let cut: Vec<u64> = [*tokens].into_iter().chain(found.iter().skip(1).copied()).collect();
            Shape::new(&cut).unwrap_or_else(|| source.shape.clone())
        }
        _ => source.shape.clone(),
    };
    let heads = match row.change {
        Change::QueryHeads => Some(sizes.heads),
        Change::KeyHeads => Some(sizes.key_heads),
        _ => None,
    };
    let rows = found.first().copied().unwrap_or_default();
    if heads.is_some_and(|heads| heads == 0 || !rows.is_multiple_of(2 * heads)) {
        let name = quoted_name(&source.name);
        return Err(Error::invalid(format!("tensor {name:?} has no even number of rows a head")));
    }
    Ok((shape, heads))
}

/// The type of a tensor in the file: F32 for those that llama.cpp needs so, f16 for rows that are not whole blocks.
fn type_in_file(name: &str, shape: &Shape, to: Dtype) -> Dtype {
    let is_f32 = shape.dimensions().len() < 2
        || name.ends_with("_norm.weight")
        || !name.ends_with(".weight")
        || matches!(name, "position_embd.weight" | "token_types.weight");
    if is_f32 {
        Dtype::F32
    } else if gguf::bytes_of(to, shape).is_none() {
        Dtype::F16
    } else {
        to
    }
}

fn laid_out(
    source: Source,
    dtype: Dtype,
    shape: Shape,
    heads: Option<u64>,
    is_incremented: bool,
) -> Result<TensorLayout> {
    let bytes = gguf::bytes_of(dtype, &shape);
    let end = bytes.and_then(|bytes| bytes.checked_next_multiple_of(gguf::ALIGNMENT));
    let (bytes, end) = bytes.zip(end).ok_or_else(|| Error::invalid("a tensor of too many bytes"))?;
    Ok(TensorLayout { source, dtype, shape, heads, is_incremented, bytes, padding: end - bytes })
}

fn literal(name: &str, values: &[f32]) -> Result<(String, TensorLayout)> {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let shape = Shape::new(&[values.len() as u64]).ok_or_else(|| Error::invalid("too many factors"))?;
    let made = laid_out(Source::Literal(bytes), Dtype::F32, shape, None, false)?;
    Ok((name.to_owned(), made))
}

/// Checks that all tensors are there that llama.cpp needs.
fn check_complete(architecture: &Architecture, sizes: &Sizes, made: &[(String, TensorLayout)]) -> Result<()> {
    if sizes.layers > made.len() as u64 {
        let text =
            format!("config.json names {} layers, and the model has {} tensors", sizes.layers, made.len());
        return Err(Error::invalid(text));
    }
    let mut names: HashSet<&str> = HashSet::with_capacity(made.len());
    if let Some((twice, _)) = made.iter().find(|(name, _)| !names.insert(name)) {
        return Err(Error::invalid(format!("two tensors of the model become {twice}")));
    }
    for row in architecture.tensors.iter().filter(|row| row.is_needed) {
        let layers = if row.name.contains("{}") { sizes.layers } else { 1 };
        for layer in 0..layers {
            let with_layer = |text: &str| text.replace("{}", &layer.to_string());
            if !names.contains(with_layer(row.name).as_str()) {
                return Err(Error::invalid(format!("tensor {:?} is missing", with_layer(row.source))));
            }
        }
    }
    Ok(())
}
