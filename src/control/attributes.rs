//! The extended attributes.

use crate::control::digests::{blake3, sha256};
use crate::control::measure::{Measure, checksum};
use crate::control::refusals::{Asker, Refusals};
use crate::control::sets::{self, Set};
use crate::control::totals::why_unreadable;
use crate::engine::{self, Heat};
use crate::format::files::safetensors;
use crate::format::log::catalog::{Content, FileEntry};
use crate::model::{self, Error, ErrorKind, Result, TensorId, Threshold, Tier, hex, quoted_name};
use crate::store::{self, ROOT, TENSORS_NAME};
use crate::vfs::form::why_of_config;
use crate::vfs::{FileView, Vfs};

/// `why` of a container lists at most this many tensors whose names are taken.
const NAMES_SHOWN_MAX: usize = 20;

/// The prefix of every name.
pub const PREFIX: &str = "user.tierfs.";

/// The cost of reading an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cost {
    Small,
    /// May read the whole file.
    WholeFile,
}

/// The context in which attributes are read.
pub struct Reader<'a> {
    pub vfs: &'a Vfs,
    /// On a mount, the refusals that it keeps, and the inode and user that ask.
    pub refusals: Option<(&'a Refusals, Asker)>,
}

pub struct Attribute {
    /// The name after [`PREFIX`].
    pub name: &'static str,
    /// The meaning and the form of the value.
    pub help: &'static str,
    /// The cost of reading it.
    pub cost: Cost,
    /// Sets it on a writable mount; `None` if it is read-only.
    pub set: Option<Set>,
    /// Whether listxattr(2) names it. Copying tools restore the attributes that they list.
    pub is_listed: bool,
    /// Whether `tierfs stat` prints it.
    pub is_printed: bool,
    get: fn(&Reader, &FileView) -> Result<Option<String>>,
}

const fn shown(
    name: &'static str,
    help: &'static str,
    get: fn(&Reader, &FileView) -> Result<Option<String>>,
) -> Attribute {
    Attribute { name, help, cost: Cost::Small, set: None, is_listed: false, is_printed: true, get }
}

const fn setting(
    name: &'static str,
    help: &'static str,
    set: Set,
    get: fn(&Reader, &FileView) -> Result<Option<String>>,
) -> Attribute {
    Attribute { set: Some(set), ..shown(name, help, get) }
}

/// A threshold, which `tierfs stat` does not print.
macro_rules! threshold {
    ($threshold:ident, $help:literal) => {
        Attribute {
            is_printed: false,
            ..setting(
                model::$threshold.name,
                $help,
                sets::at_once(|asked, text| sets::set_threshold(asked, &model::$threshold, text)),
                |_, view| threshold_of(view, &model::$threshold),
            )
        }
    };
}

/// Every attribute, in the order in which `tierfs stat` prints them.
pub const ATTRIBUTES: &[Attribute] = &[
    Attribute {
        is_listed: true,
        ..setting(
            "dtype",
            "element type: f32, f16, bf16, i8, ...; of a directory, that of files that arrive, or none; inherited",
            sets::DTYPE,
            |_, view| {
                let of_arrivals = || of_directory(view, store::DTYPE);
                Ok(tensor(view).map(|tensor| tensor.dtype.name().to_owned()).or_else(of_arrivals))
            },
        )
    },
    Attribute {
        is_listed: true,
        ..setting("shape", "sizes of the dimensions, outermost first: 4096x11008", sets::SHAPE, |_, view| {
            Ok(tensor(view).map(|tensor| tensor.shape.to_string()))
        })
    },
    shown("scheme", "how a file of tensors keeps quantized weights: gptq, awq, fp8, hqq, ...", |_, view| {
        let is_of_model = |content| matches!(content, Content::Safetensors | Content::Torch | Content::Npz);
        let Some(file) = view.node.file().filter(|file| is_of_model(file.content)) else { return Ok(None) };
        let state = view.collection.state();
        let tensors = state.parts(file).filter_map(|part| part.file()?.tensor.as_ref());
        Ok(safetensors::scheme(tensors.map(|tensor| (&*tensor.name, tensor.dtype, &tensor.shape))))
    }),
    setting(
        "tier",
        "exact, q8, q7, q5, q3, q3x, absent or mixed; set to move (hot, warm, warm5, cold mean q8, q7, q5, q3), \
         or to packed or verbatim, which stay exact; @FIRST:END behind a tier moves rows",
        sets::TIER,
        |reader, view| {
            let number = view.collection.state().number();
            if let Some(moving) = reader.vfs.engine().moving(number, view.node.entry.id) {
                return Ok(Some(format!("{} -> {} {}%", moving.from, moving.to, moving.percent())));
            }
            on_file(view, |measure| measure.tier().to_owned())
        },
    ),
    shown("tiers", "shares of the tiers in the bytes of a mixed file: exact=62.5% q3=37.5%", |_, view| {
        Ok(measured(view)?.and_then(|measure| measure.shares()))
    }),
    setting(
        "plan",
        "write-only: a value of tier, or policy; checks that move, or those of a day without a use, and changes nothing; \
         jobs shows the result",
        sets::PLAN,
        |_, _| Ok(None),
    ),
    setting(
        "lossy",
        "whether the last exact copy may be given up: deny or allow; inherited",
        sets::LOSSY,
        |_, view| Ok(Some(inherited(view, &engine::LOSSY))),
    ),
    setting("pin", "1: kept contiguous in its present form and tier; 0: not pinned", sets::PIN, |_, view| {
        let is_pinned = view.collection.state().is_pinned_with_container(view.node.entry.id);
        Ok(Some(u8::from(is_pinned).to_string()))
    }),
    setting(
        "evict",
        "write-only: cache drops cached pages, 1 evicts reconstructible bytes, discard removes all bytes for good",
        sets::EVICT,
        |_, _| Ok(None),
    ),
    setting(
        "reconstruct",
        "how absent blocks are reconstructed: none; delta, from the lineage parent; factor (factor:rank=K, \
         factor:energy=E), from low-rank matrices; origin, from the source of an in-place import; inherited",
        sets::RECONSTRUCT,
        |_, view| {
            let found = engine::Reconstruct::of(&view.collection.state(), view.node.entry.id);
            Ok(Some(found.name().to_owned()))
        },
    ),
    setting(
        "policy",
        "how tiers move: manual, auto, auto:TIER, or cache:SIZE (a directory that removes files, as cache:200G or cache:50%); inherited",
        sets::POLICY,
        |_, view| Ok(Some(inherited(view, &engine::POLICY))),
    ),
    Attribute {
        is_printed: false,
        ..setting(
            "unit",
            "what policy=auto moves by use: tensor, or block for stretches of 64 blocks; inherited",
            sets::UNIT,
            |_, view| Ok(Some(inherited(view, &engine::UNIT))),
        )
    },
    setting(
        "encoder",
        "how the encoder chooses scales: best, least or absmax; inherited",
        sets::ENCODER,
        |_, view| Ok(Some(inherited(view, &engine::ENCODER))),
    ),
    setting(
        "writes",
        "how small writes into an encoded tensor are stored: exact or delta; inherited",
        sets::WRITES,
        |_, view| Ok(Some(inherited(view, &engine::WRITES))),
    ),
    setting(
        "list",
        "whether listings show tensors of containers: files or both; inherited",
        sets::LIST,
        |reader, view| {
            let mode = reader.vfs.list_mode(&view.collection.state(), view.node.entry.id);
            Ok(view.node.file().is_none().then(|| mode.name().to_owned()))
        },
    ),
    setting(
        "plain",
        "whether tensors also open beside their container, by plain names that are only read: off or on; inherited",
        sets::PLAIN,
        |_, view| Ok(view.node.file().is_none().then(|| inherited(view, &engine::PLAIN))),
    ),
    setting(
        "cache",
        "how decoded bytes are cached: kernel, decoded (in memory, whole, at an open), none, or auto; inherited",
        sets::CACHE,
        |_, view| Ok(Some(inherited(view, &engine::CACHE))),
    ),
    setting(
        "pack",
        "how exact tensors that arrive are stored: none, or ladder for packed ones; inherited",
        sets::PACK,
        |_, view| {
            let state = view.collection.state();
            Ok(Some(view.collection.pack_of(&state, view.node.entry.id).to_owned()))
        },
    ),
    setting(
        "arrive",
        "how tensors that arrive in a directory are stored: exact, packed, or a tier such as q8 or q8:all; inherited",
        sets::ARRIVE,
        |_, view| {
            let state = view.collection.state();
            let is_directory = view.node.file().is_none();
            let value = state.inherited(view.node.entry.id, store::ARRIVE).unwrap_or(Tier::Exact.name());
            Ok(is_directory.then(|| value.to_owned()))
        },
    ),
    setting(
        "row",
        "shape without the first dimension of files with the dtype of a directory: 8x128, or none; inherited",
        sets::ROW,
        |_, view| Ok(of_directory(view, store::ROW)),
    ),
    setting(
        "head_dim",
        "elements of which blocks of arriving tensors hold whole multiples: 1 to 4096, or none; inherited",
        sets::HEAD_DIM,
        |_, view| Ok(of_directory(view, store::HEAD_DIM)),
    ),
    setting(
        "block_bytes",
        "length of the blocks of arriving tensors: 4096 to 131072, or none; inherited",
        sets::BLOCK_BYTES,
        |_, view| Ok(of_directory(view, store::BLOCK_BYTES)),
    ),
    setting(
        "tail",
        "number of the last rows of a tensor that stay exact, with back: 0 and more, or none; inherited",
        sets::TAIL,
        |_, view| Ok(of_directory(view, store::TAIL)),
    ),
    setting(
        "back",
        "tiers of the rows behind the tail: q8, or q8,q3@32768 with rows further back in q3; none; inherited",
        sets::BACK,
        |_, view| Ok(of_directory(view, store::BACK)),
    ),
    threshold!(DOWN_BELOW, "score below which the policy moves it down, 0 to 1000; inherited"),
    threshold!(UP_ABOVE, "score above which the policy moves it up, 0 to 1000; inherited"),
    threshold!(HOLD, "seconds in a tier before the policy moves it down, or 90s, 30m, 12h, 7d; inherited"),
    threshold!(IDLE, "seconds without a use before the policy makes it absent; inherited"),
    threshold!(EMA_SHARE, "weight of a use in the average of its score, 0.001 to 1; inherited"),
    threshold!(DELTA_CHANGED, "share of the elements of a block that a delta may change, 0 to 1; inherited"),
    threshold!(DELTA_NORM, "share of the norm of a block that a rounded delta may change, 0 to 1; inherited"),
    threshold!(DELTA_CHAIN, "number of deltas on a block, 1 to 8; inherited"),
    threshold!(
        FREE_MIN,
        "bytes of the store's disk that stay free, or 500M, 50G, 1T: below, caches and the policy make room; inherited"
    ),
    Attribute {
        is_listed: true,
        ..setting(
            "tags",
            "words with commas between; the directory .tags of the mount has a link for each; not inherited",
            sets::TAGS,
            |_, view| {
                let state = view.collection.state();
                let tags: Vec<&str> = state.tags_of(view.node.entry.id).collect();
                Ok((!tags.is_empty()).then(|| tags.join(",")))
            },
        )
    },
    shown("id", "tensor_id: 32 hex digits, computed from the current name", |_, view| {
        let below = view.collection.state().path(view.node.entry.id);
        let path = String::from_utf8_lossy(&below);
        let name = view.collection.state().own_path(&view.node).unwrap_or_else(|| path.into_owned());
        let id = TensorId::of(view.collection.tenant(), view.collection.name(), &name, parent(view));
        Ok(view.node.file().map(|_| id.to_string()))
    }),
    shown("parent", "tensor_id of the lineage parent", |_, view| {
        Ok(Some(parent(view)).filter(|id| *id != TensorId(0)).map(|id| id.to_string()))
    }),
    shown("shards", "number of shards", |_, view| on_file(view, |measure| measure.objects.to_string())),
    shown("blocks", "number of blocks", |_, view| on_file(view, |measure| measure.sum().blocks.to_string())),
    shown("bits", "stored bits per element, including scales", |_, view| {
        Ok(measured(view)?.map(|measure| {
            let (stored, elements) = (measure.sum().stored as f64, measure.elements as f64);
            let bits = if elements == 0.0 { 0.0 } else { stored * 8.0 / elements };
            format!("{}", (bits * 1000.0).round() / 1000.0)
        }))
    }),
    shown("bytes", "size of the file in bytes", |_, view| {
        let state = view.collection.state();
        let node = state.node(view.node.entry.id);
        Ok(view.node.file().and(node).map(|node| node.bytes.to_string()))
    }),
    shown("bytes_stored", "bytes of the stored payloads", |_, view| {
        on_file(view, |measure| measure.sum().stored.to_string())
    }),
    shown("checksum", "CRC32C of the stored payloads, in order", |_, view| {
        let joined = view.node.file().map(|_| checksum(view)).transpose()?;
        let shown = |checksum| format!("crc32c:{checksum:08x}");
        Ok(joined.map(|joined| joined.map_or_else(|| "none until read".to_owned(), shown)))
    }),
    Attribute {
        cost: Cost::WholeFile,
        ..shown(
            "blake3",
            "BLAKE3 of the bytes as imported or written, while all are exact",
            |reader, view| {
                view.node.file().map(|_| blake3(reader.vfs, view).map(|digest| hex(&digest))).transpose()
            },
        )
    },
    Attribute {
        cost: Cost::WholeFile,
        ..shown(
            "sha256",
            "SHA-256 of the bytes as imported or written, while all are exact",
            |reader, view| {
                view.node.file().map(|_| sha256(reader.vfs, view).map(|digest| hex(&digest))).transpose()
            },
        )
    },
    shown(
        "error",
        "max=... rms=...: encoding error against the source, or absent for lost bytes",
        |_, view| {
            if tensor(view).is_some() && engine::has_lost_blocks(&view.collection, view.node.entry.id) {
                return Ok(Some("absent".to_owned()));
            }
            let measured = view.node.file().map(|file| file.error.as_deref().copied().unwrap_or_default());
            Ok(tensor(view)
                .and(measured)
                .map(|error| format!("max={:e} rms={:e}", error.maximum, error.rms())))
        },
    ),
    shown(
        "access",
        "access count of the hottest block, then its last access in Unix seconds, or 0",
        |_, view| Ok(heat(view).map(|heat| format!("{} {}", heat.count, heat.last_access))),
    ),
    shown("score", "how hot the hottest block is, 0 to 1000", |_, view| {
        Ok(heat(view).map(|heat| ((heat.score * 1000.0).round() / 1000.0).to_string()))
    }),
    shown("chain", "largest number of deltas on a block", |_, view| {
        on_file(view, |measure| measure.chain.to_string())
    }),
    shown("snapshot", "of a collection of a remote: the number of the snapshot that is shown", |_, view| {
        let number = if view.node.entry.id == ROOT { view.collection.snapshot()? } else { None };
        Ok(number.map(|number| number.to_string()))
    }),
    shown(
        "variants",
        "of a collection of a remote: exact and its published variants, the one that is shown first",
        |_, view| {
            let published =
                if view.node.entry.id == ROOT { view.collection.published()? } else { Vec::new() };
            let name = |name: &String| if name.is_empty() { "exact" } else { name.as_str() }.to_owned();
            Ok((!published.is_empty()).then(|| published.iter().map(name).collect::<Vec<_>>().join(" ")))
        },
    ),
    shown(
        "why",
        "reason of your last refused request, or of an unexpected event of this file",
        |reader, view| {
            let refused = reader.refusals.and_then(|(refusals, asker)| refusals.text(asker));
            let event = view.node.file().map(|file| file.why.to_string()).filter(|why| !why.is_empty());
            let unrecorded = view.collection.unrecorded(view.node.entry.id);
            let unreadable = view.collection.unreadable_in(view.node.entry.id);
            let unreadable = unreadable.map(|found| why_unreadable(&found));
            let no_model = why_of_config(&view.collection, view.node.entry.id);
            let lines = [refused, unrecorded, unreadable, event.or_else(|| taken_names(view)), no_model];
            let lines: Vec<String> = lines.into_iter().flatten().collect();
            Ok((!lines.is_empty()).then(|| lines.join("\n")))
        },
    ),
    Attribute {
        is_printed: false,
        ..shown("refusal", "your last refused request, as JSON", |reader, _| {
            Ok(reader.refusals.and_then(|(refusals, asker)| refusals.json(asker)))
        })
    },
];

/// Finds an attribute by its full name. Fails with `NotSupported` for a name without [`PREFIX`], with
/// `Absent` for an unknown name.
pub fn attribute(name: &[u8]) -> Result<&'static Attribute> {
    let own = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(PREFIX));
    let Some(own) = own else {
        return Err(Error::new(
            ErrorKind::NotSupported,
            "the names of tierfs attributes begin with user.tierfs.",
        ));
    };
    ATTRIBUTES
        .iter()
        .find(|attribute| attribute.name == own)
        .ok_or_else(|| Error::new(ErrorKind::Absent, format!("unknown attribute user.tierfs.{own}")))
}

impl Attribute {
    /// The value for a file or directory. Fails with `Absent` if there is none.
    pub fn get(&self, reader: &Reader, view: &FileView) -> Result<String> {
        let value = (self.get)(reader, view)?;
        value.ok_or_else(|| Error::new(ErrorKind::Absent, format!("{} has no {}", view.path(), self.name)))
    }
}

/// The value of an attribute of an inode that is neither a file nor a directory of a collection. Only
/// refusals have values there. Fails with `Absent` for the others.
pub fn refusal_attribute(refusals: &Refusals, asker: Asker, name: &[u8]) -> Result<String> {
    let attribute = attribute(name)?;
    let value = match attribute.name {
        "why" => refusals.text(asker),
        "refusal" => refusals.json(asker),
        _ => {
            let text = "only files and directories of a collection have attributes";
            return Err(Error::new(ErrorKind::Absent, text));
        }
    };
    value.ok_or_else(|| Error::new(ErrorKind::Absent, "no request was refused"))
}

/// The full names that listxattr(2) returns for a file.
pub fn listed(vfs: &Vfs, view: &FileView) -> Result<Vec<String>> {
    let reader = Reader { vfs, refusals: None };
    let mut names = Vec::new();
    for attribute in ATTRIBUTES.iter().filter(|attribute| attribute.is_listed) {
        if (attribute.get)(&reader, view)?.is_some() {
            names.push(format!("{PREFIX}{}", attribute.name));
        }
    }
    Ok(names)
}

/// The attributes that are wanted and have a value, by name.
pub fn values(
    vfs: &Vfs,
    view: &FileView,
    is_wanted: &dyn Fn(&Attribute) -> bool,
) -> Result<Vec<(&'static str, String)>> {
    let reader = Reader { vfs, refusals: None };
    let mut values = Vec::new();
    for attribute in ATTRIBUTES.iter().filter(|attribute| is_wanted(attribute)) {
        match (attribute.get)(&reader, view) {
            Ok(Some(value)) => values.push((attribute.name, value)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::Absent => {}
            Err(error) => return Err(error),
        }
    }
    Ok(values)
}

fn tensor(view: &FileView) -> Option<&crate::format::log::catalog::TensorEntry> {
    view.node.file().and_then(|file: &FileEntry| file.tensor.as_ref())
}

fn parent(view: &FileView) -> TensorId {
    tensor(view).map_or(TensorId(0), |tensor| tensor.parent)
}

/// The tensors of a container that have no names of their own in its directory.
fn taken_names(view: &FileView) -> Option<String> {
    let state = view.collection.state();
    let taken = state.taken_names(view.node.entry.id);
    let (_, name) = state.links(view.node.entry.id).first()?;
    let shown: Vec<&str> = taken.iter().take(NAMES_SHOWN_MAX).map(|name| quoted_name(name)).collect();
    let more = match taken.len() - shown.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let at = format!("{TENSORS_NAME}/{}", String::from_utf8_lossy(name));
    let text = format!("another container has the names of these tensors, open them below {at}: ");
    (!taken.is_empty()).then(|| format!("{text}{}{more}", shown.join(", ")))
}

fn measured(view: &FileView) -> Result<Option<Measure>> {
    view.node.file().map(|_| Measure::of(view)).transpose()
}

fn on_file(view: &FileView, show: impl FnOnce(&Measure) -> String) -> Result<Option<String>> {
    Ok(measured(view)?.as_ref().map(show))
}

fn inherited(view: &FileView, setting: &engine::Setting) -> String {
    setting.of(&view.collection.state(), view.node.entry.id).to_owned()
}

/// A setting that only directories have. `None` where neither it nor one above has it.
fn of_directory(view: &FileView, key: &str) -> Option<String> {
    let state = view.collection.state();
    let value = state.inherited(view.node.entry.id, key).filter(|_| view.node.file().is_none());
    value.map(str::to_owned)
}

fn threshold_of(view: &FileView, threshold: &Threshold) -> Result<Option<String>> {
    let thresholds = view.collection.thresholds_of(&view.collection.state(), view.node.entry.id);
    Ok(Some(threshold.of(&thresholds).to_string()))
}

fn heat(view: &FileView) -> Option<Heat> {
    view.node.file()?;
    let objects = view.collection.objects_of(view.node.entry.id).ok()?;
    Some(Heat::of(&view.collection, &view.collection.state(), &view.node, &objects))
}
