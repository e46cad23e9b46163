//! `tierfs diff`.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::output::{number_json, print, print_json};
use crate::cli::common::places::one_in_mount;
use crate::control::PREFIX;
use crate::format::log::catalog::Content;
use crate::ingest::recognize;
use crate::model::{Dtype, Error, ErrorKind, Result, Shape};
use crate::store::StridedElements;
use crate::store::disk::File;
use crate::store::disk::files::open_source;
use crate::stream::{Computed, Segment, Stream, Strided, cast, is_castable};

/// Elements that are compared at a time.
const ELEMENTS_AT_ONCE: u64 = 1 << 18;
/// Bytes of a plain file that are compared at a time.
const BYTES_AT_ONCE: u64 = 1 << 20;

/// Compare tensors: whether their bytes are the same, the largest and RMS difference of their values, and how many elements
/// differ.
///
/// Each of the two is a tensor, a container (.safetensors, .gguf, .npy and others) or a directory, on a mount or
/// elsewhere. Compares tensors with those of the same name in the same directory, in any container, and
/// plain files by their bytes. Compares two single tensors with any names.
///
/// A difference is infinite between an infinity or a NaN and any other number. JSON has no infinity: --json prints the
/// text "inf" for it, and null where there are no values to compare.
///
/// Exits with 1 if anything differs.
///
/// Example: tierfs diff ~/models/llama /mnt/acme/llama
///
/// Example: tierfs diff /mnt/run/policy/.as/@1 /mnt/run/policy/.as/@20
#[derive(clap::Args)]
pub(super) struct Args {
    /// The first file or directory
    a: PathBuf,
    /// The second file or directory
    b: PathBuf,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The identity of an item among those of its side. Names are bytes: two of them may look the same as text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    /// The names of the directories and of the file or the tensor.
    name: Vec<u8>,
    kind: Kind,
    /// The container, if another one in the directory has a tensor of this name.
    container: Option<Vec<u8>>,
    /// The number of tensors before this one that have all the rest in common.
    place: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    /// A file that is no container: a plain file, or a tensor of a mount.
    File,
    /// A tensor in a container.
    Tensor,
}

impl Key {
    fn file(name: Vec<u8>) -> Key {
        Key { name, kind: Kind::File, container: None, place: 0 }
    }

    /// The key of the same name and the other kind.
    fn of_other_kind(&self) -> Key {
        let kind = if self.kind == Kind::File { Kind::Tensor } else { Kind::File };
        Key { kind, ..self.clone() }
    }

    /// The name, with bytes that are not UTF-8 as `\xff`.
    fn shown(&self) -> String {
        let Some(container) = &self.container else { return readable(&self.name) };
        let begin = self.name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let (above, own) = self.name.split_at(begin);
        format!("{}{}: {}", readable(above), readable(container), readable(own))
    }
}

fn readable(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

/// A tensor, or a plain file.
struct Item {
    path: PathBuf,
    begin: u64,
    bytes: u64,
    tensor: Option<(Dtype, Shape)>,
    /// The elements in the file, if they do not follow each other.
    view: Option<Arc<StridedElements>>,
}

/// The bytes of a file.
struct Whole {
    file: Arc<dyn File>,
    bytes: u64,
}

impl Computed for Whole {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, range.start).map_err(|error| Error::io("reading it", error))
    }
}

/// How two items compare.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Found {
    Same,
    /// Largest and RMS difference of the values, and the number of elements that differ.
    Values {
        max: f64,
        rms: f64,
        elements: u64,
    },
    /// The bytes differ, and are not numbers that can be compared.
    Bytes,
    OtherShape,
    OnlyInA,
    OnlyInB,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (a, b) = (one_in_mount(&self.a)?, one_in_mount(&self.b)?);
        let (mut first, mut second) = (items(&a)?, items(&b)?);
        let are_single = first.len() == 1 && second.len() == 1 && !a.is_dir() && !b.is_dir();
        if let Some(key) = first.keys().next().filter(|_| are_single) {
            second = second.into_values().map(|item| (key.clone(), item)).collect();
        }
        let pairs: BTreeMap<Key, Key> = first
            .iter()
            .filter_map(|(key, item)| Some((key.clone(), pair(key, item, &first, &second)?)))
            .collect();
        let mut rows = Vec::new();
        while let Some((key, one)) = first.pop_first() {
            let other = pairs.get(&key).and_then(|key| second.remove(key));
            let found = match &other {
                Some(other) => compare(&one, other)?,
                None => Found::OnlyInA,
            };
            rows.push((key, one, other, found));
        }
        rows.extend(second.into_iter().map(|(key, item)| (key, item, None, Found::OnlyInB)));
        rows.sort_by(|one, other| one.0.cmp(&other.0));
        let rows: Vec<_> =
            rows.into_iter().map(|(key, one, other, found)| (key.shown(), one, other, found)).collect();
        let count = |is: fn(&Found) -> bool| rows.iter().filter(|row| is(&row.3)).count();
        let (same, only_a, only_b) = (
            count(|found| *found == Found::Same),
            count(|found| *found == Found::OnlyInA),
            count(|found| *found == Found::OnlyInB),
        );
        let differ = rows.len() - same - only_a - only_b;
        if self.json {
            let rows: Vec<Value> =
                rows.iter().map(|(name, one, other, found)| row(name, one, other, *found)).collect();
            print_json(&json!({
                "same": same, "differ": differ, "only_in_a": only_a, "only_in_b": only_b, "rows": rows,
            }))?;
        } else {
            let shown = rows.iter().map(|(name, one, other, found)| line(name, one, other.as_ref(), *found));
            let mut text = shown.collect::<String>();
            let mut parts = vec![format!("{same} same"), format!("{differ} different")];
            for (count, path) in [(only_a, &self.a), (only_b, &self.b)] {
                if count > 0 {
                    parts.push(format!("{count} only in {}", path.display()));
                }
            }
            text.push_str(&format!("{}\n", parts.join(", ")));
            print(&text)?;
        }
        Ok(if same == rows.len() { Outcome::Succeeded } else { Outcome::Failed })
    }
}

/// The key of the other side that is compared with `key`: the same, or that of a tensor which is a file there and lies in a
/// container here.
fn pair(key: &Key, item: &Item, own: &BTreeMap<Key, Item>, others: &BTreeMap<Key, Item>) -> Option<Key> {
    if others.contains_key(key) {
        return Some(key.clone());
    }
    let other = key.of_other_kind();
    let is_tensor = item.tensor.is_some() && others.get(&other)?.tensor.is_some();
    (is_tensor && !own.contains_key(&other)).then_some(other)
}

/// The tensors and plain files of a path.
fn items(path: &Path) -> Result<BTreeMap<Key, Item>> {
    let mut found = BTreeMap::new();
    let metadata = fs::metadata(path).map_err(|error| Error::io(path.display(), error))?;
    if !metadata.is_dir() {
        add(&mut found, path, b"")?;
        return Ok(found);
    }
    let mut waiting = vec![(path.to_owned(), Vec::new())];
    while let Some((directory, prefix)) = waiting.pop() {
        let failed = |error| Error::io(directory.display(), error);
        let mut names = Vec::new();
        for entry in fs::read_dir(&directory).map_err(failed)? {
            names.push(entry.map_err(failed)?.path());
        }
        names.sort();
        for path in names {
            let link = fs::symlink_metadata(&path).map_err(|error| Error::io(path.display(), error))?;
            if link.is_dir() {
                let prefix = [&prefix, file_name(&path), b"/"].concat();
                waiting.push((path, prefix));
            } else if path.is_file() {
                add(&mut found, &path, &prefix)?;
            }
        }
    }
    Ok(found)
}

/// Adds the tensors of a file, or the file itself.
fn add(found: &mut BTreeMap<Key, Item>, path: &Path, prefix: &[u8]) -> Result<()> {
    let name = file_name(path);
    let source = open_source(path).map_err(|error| Error::io(path.display(), error))?;
    let item = |begin: u64, end: u64, tensor| Item {
        path: path.to_owned(),
        begin,
        bytes: end.saturating_sub(begin),
        tensor,
        view: None,
    };
    let recognized = match recognize(&source, name) {
        Ok(recognized) => Some(recognized).filter(|recognized| recognized.content != Content::Cgeb),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::Invalid | ErrorKind::Unreadable | ErrorKind::Unsupported
            ) =>
        {
            None
        }
        Err(error) => return Err(error.at(path.display())),
    };
    let parts = recognized.map(|recognized| recognized.parts).unwrap_or_default();
    let mut tensors =
        parts.into_iter().filter_map(|part| Some((part.begin, part.end, part.tensor?))).peekable();
    if tensors.peek().is_none() {
        let bytes = source.len().map_err(|error| Error::io(path.display(), error))?;
        found.insert(Key::file([prefix, name].concat()), item(0, bytes, attributes(path, bytes)));
        return Ok(());
    }
    for (begin, end, tensor) in tensors {
        let own_name = [prefix, tensor.name.as_bytes()].concat();
        let mut key = Key { name: own_name, kind: Kind::Tensor, container: None, place: 0 };
        if found.contains_key(&key) {
            key.container = Some(name.to_vec());
        }
        while found.contains_key(&key) {
            key.place += 1;
        }
        let (dtype, shape) = (tensor.dtype, tensor.shape);
        let elements = tensor.view.map(|view| Arc::new(StridedElements::new(&view, dtype, &shape, 0)));
        let own = elements.as_ref().and_then(|_| dtype.bytes_of(shape.elements())).unwrap_or_default();
        found.insert(
            key,
            Item { view: elements, ..item(begin, end.saturating_add(own), Some((dtype, shape))) },
        );
    }
    Ok(())
}

/// The type and shape of a tensor on a mount.
fn attributes(path: &Path, bytes: u64) -> Option<(Dtype, Shape)> {
    let get = |name: &str| {
        let mut value = [0; 256];
        let len = rustix::fs::getxattr(path, format!("{PREFIX}{name}"), &mut value[..]).ok()?;
        Some(String::from_utf8_lossy(value.get(..len)?).into_owned())
    };
    let dtype = Dtype::from_name(&get("dtype")?)?;
    let shape = get("shape")?;
    let sizes: Option<Vec<u64>> =
        shape.split('x').filter(|size| !size.is_empty()).map(|size| size.parse().ok()).collect();
    let shape = Shape::new(&sizes?)?;
    (dtype.bytes_of(shape.elements()) == Some(bytes)).then_some((dtype, shape))
}

fn file_name(path: &Path) -> &[u8] {
    path.file_name().unwrap_or_default().as_bytes()
}

fn compare(one: &Item, other: &Item) -> Result<Found> {
    let open = |item: &Item| open_source(&item.path).map_err(|error| Error::io(item.path.display(), error));
    let sources = [(one, open(one)?), (other, open(other)?)];
    match (&one.tensor, &other.tensor) {
        (Some((_, shape)), Some((_, other))) if shape != other => Ok(Found::OtherShape),
        (Some((dtype, shape)), Some((other, _))) if has_values(*dtype) && has_values(*other) => {
            values(&sources, [*dtype, *other], shape.elements())
        }
        (Some((dtype, _)), Some((other, _))) if dtype != other => Ok(Found::Bytes),
        _ => bytes(&sources),
    }
}

fn bytes(sources: &[(&Item, Arc<dyn File>); 2]) -> Result<Found> {
    let [(one, _), (other, _)] = sources;
    if one.bytes != other.bytes {
        return Ok(Found::Bytes);
    }
    let (mut chunks, mut at) = ([Vec::new(), Vec::new()], 0);
    while at < one.bytes {
        let len = (one.bytes - at).min(BYTES_AT_ONCE);
        for ((item, source), chunk) in sources.iter().zip(&mut chunks) {
            read(item, source, at, len, chunk)?;
        }
        let [first, second] = &chunks;
        if first != second {
            return Ok(Found::Bytes);
        }
        at += len;
    }
    Ok(Found::Same)
}

/// Reads a part of an item into `chunk`.
fn read(item: &Item, source: &Arc<dyn File>, at: u64, len: u64, chunk: &mut Vec<u8>) -> Result<()> {
    chunk.resize(len as usize, 0);
    if let Some(elements) = &item.view {
        let bytes = source.len().map_err(|error| Error::io(item.path.display(), error))?;
        let whole = Segment::Computed(Arc::new(Whole { file: source.clone(), bytes }));
        let strided = Strided::new(elements.clone(), Stream::new(vec![whole])?);
        return strided.read(at..at + len, chunk).map_err(|error| error.at(item.path.display()));
    }
    source.read_exact_at(chunk, item.begin + at).map_err(|error| Error::io(item.path.display(), error))
}

fn has_values(dtype: Dtype) -> bool {
    dtype == Dtype::F64 || is_castable(dtype)
}

/// The elements of a chunk.
fn numbers(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f64>> {
    if dtype == Dtype::F64 {
        let (chunks, _) = bytes.as_chunks::<8>();
        return Ok(chunks.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect());
    }
    let count = bytes.len() as u64 / dtype.bytes().max(1);
    let mut floats = vec![0; count as usize * size_of::<f32>()];
    cast(dtype, Dtype::F32, bytes, &mut floats)?;
    let (chunks, _) = floats.as_chunks::<4>();
    Ok(chunks.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect())
}

fn values(sources: &[(&Item, Arc<dyn File>); 2], [one, other]: [Dtype; 2], elements: u64) -> Result<Found> {
    let mut chunks = [Vec::new(), Vec::new()];
    let (mut max, mut squares, mut is_same, mut at) = (0_f64, 0_f64, one == other, 0);
    let mut differing = 0_u64;
    while at < elements {
        let count = (elements - at).min(ELEMENTS_AT_ONCE);
        for (((item, source), chunk), dtype) in sources.iter().zip(&mut chunks).zip([one, other]) {
            read(item, source, at * dtype.bytes(), count * dtype.bytes(), chunk)?;
        }
        at += count;
        let [first, second] = &chunks;
        if one == other && first == second {
            continue;
        }
        is_same = false;
        let is_one_type = one == other;
        if is_one_type {
            let width = one.bytes().max(1) as usize;
            let pairs = first.chunks(width).zip(second.chunks(width));
            differing += pairs.filter(|(one, other)| one != other).count() as u64;
        }
        for (one, other) in numbers(one, first)?.into_iter().zip(numbers(other, second)?) {
            // Two infinities of one sign do not differ; neither do two NaNs.
            let difference =
                if one == other || one.is_nan() && other.is_nan() { 0.0 } else { (one - other).abs() };
            differing += u64::from(!is_one_type && difference != 0.0);
            // A number differs from a NaN by any amount.
            max = max.max(if difference.is_nan() { f64::INFINITY } else { difference });
            squares += difference * difference;
        }
    }
    let rms = if max.is_infinite() { max } else { (squares / elements.max(1) as f64).sqrt() };
    Ok(if is_same { Found::Same } else { Found::Values { max, rms, elements: differing } })
}

/// The types and shapes of both; one of them if they agree.
fn what(one: &Item, other: Option<&Item>) -> String {
    let show = |item: &Item| match &item.tensor {
        Some((dtype, shape)) => format!("{dtype} {shape}"),
        None => "file".to_owned(),
    };
    match other.map(show).filter(|other| *other != show(one)) {
        Some(other) => format!("{} and {other}", show(one)),
        None => show(one),
    }
}

fn line(name: &str, one: &Item, other: Option<&Item>, found: Found) -> String {
    let result = match found {
        Found::Same => "same".to_owned(),
        Found::Values { max, rms, elements } => {
            format!("max={max:.3e} rms={rms:.3e} elements={elements}")
        }
        Found::Bytes => "bytes differ".to_owned(),
        Found::OtherShape => "another shape".to_owned(),
        Found::OnlyInA => "only in the first".to_owned(),
        Found::OnlyInB => "only in the second".to_owned(),
    };
    format!("{name}  {}  {result}\n", what(one, other))
}

fn row(name: &str, one: &Item, other: &Option<Item>, found: Found) -> Value {
    let (state, difference) = match found {
        Found::Same => ("same", Some((0.0, 0.0, 0))),
        Found::Values { max, rms, elements } => ("values", Some((max, rms, elements))),
        Found::Bytes => ("bytes", None),
        Found::OtherShape => ("shape", None),
        Found::OnlyInA => ("only in a", None),
        Found::OnlyInB => ("only in b", None),
    };
    json!({
        "name": name,
        "state": state,
        "what": what(one, other.as_ref()),
        "max": difference.map(|(max, ..)| number_json(max)),
        "rms": difference.map(|(_, rms, _)| number_json(rms)),
        "elements": difference.map(|(.., elements)| elements),
    })
}
