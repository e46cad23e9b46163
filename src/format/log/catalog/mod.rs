//! The catalog: the names, nodes and objects of a collection. Each entry is the payload of a
//! Catalog record, which contains its kind and version.
//!
//! Integers are little-endian; a text or a list is its length, u32, and its bytes or
//! items; an optional value is a byte, 0 or 1, and the value after a 1.
//!
//! | kind | payload of version 1; of a Node, of version 5 |
//! |---|---|
//! | 1 Collection | number u32, created_at u64 (s), last_entry u64 |
//! | 2 Object | object_id u128, tensor_id u128 at creation, seed_id u128, creation u64, dtype u8, bytes u64, block_bytes u32, extent: optional (data file u64, offset u64) |
//! | 3 Node | node u64, mode u32, uid u32, gid u32, atime i64 (ns), mtime i64 (ns), ctime i64 (ns), created_at u64 (s), what u8, then by what: 0 directory: nothing; 1 symlink: target text; 2 file: see below |
//! | 4 Node removed | node u64 |
//! | 5 Name | parent node u64, entry u64, name text, node u64 |
//! | 6 Name removed | parent node u64, name text |
//! | 7 Setting | node u64, key text, value: optional text |
//! | 8 Outside file | data file u64, path text, bytes u64, mtime i64 (ns) |
//! | 9 Written | node u64, mtime i64 (ns), ctime i64 (ns) |
//! | 10 Outside object | data file u64, URL of its source text, key text, bytes u64, kind of its version u8, version text, mtime i64 (ns), is_read u8 |
//!
//! Kinds of versions are those of a manifest (`format/snapshot/references.rs`). With is_read 0 nobody has read the object:
//! what the log has as the checksum of a block in it is that of its place.
//!
//! A file: content u8 (0 plain, 1 tensor, 2 safetensors, 3 npy, 4 part of a
//! container, 5 cgeb, 6 gguf, 7 torch, 8 npz, 9 onnx, 10 data file of an onnx), objects: list of u128, tensor: optional (own name text, dtype u8, shape:
//! list of u64, parent tensor_id u128), container: optional node
//! u64, digests: u8 (0 not taken, 1 sha256 32 bytes and blake3 32 bytes, 2 blake3 32 bytes,
//! 3 outdated), error: optional (maximum f32, sum of squares f64, elements u64), why text.
//!
//! An Object with a lineage parent has version 2: the payload of version 1, then parent:
//! object_id u128, tenant text, collection text.
//!
//! A Node that is an embedding batch (content 5) has version 6: the payload of version 5,
//! then its records: dimension u32, experts u8, top_k u8, runs: list of (count u64, kind u8,
//! aux_offset u64, aux_length u64). Bits 0-1 of a kind: 0 version 1, 1 version 2 with
//! big-endian floats, 2 version 2 with little-endian floats; bit 2: the content hash covers
//! the payload; bit 3, of the last run only: the file ends without the padding of its last record. Its objects are the vectors, the weights where there are experts, the
//! selected experts where top_k is not 0, and headers and aux, record by record.
//!
//! A Node that is a view, a tensor without bytes of its own (content 4, with a container), has version 7: the payload of
//! version 5, then its view: begin u64 (bytes from the container's start), strides: list of u64 (elements, outermost
//! first). Its only object has no bytes.
//!
//! An entry of an unknown kind or version fails with `Unsupported`.

mod records;
mod wire;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::files::View;
use crate::format::files::cgeb::Runs;
pub use crate::format::snapshot::references::Version;
use crate::model::{
    CollectionName, Dtype, EntryId, MODE_BITS, ObjectId, OwnedCollectionName, Owner, SeedId, Shape, TensorId,
};

/// The kind of an Object entry.
pub const OBJECT: u8 = 2;
/// The kind of a Node entry.
pub const NODE: u8 = 3;
/// The version of entries.
pub const ENTRY_VERSION: u8 = 1;
/// The version of an Object entry that names a lineage parent.
pub const OBJECT_WITH_PARENT_VERSION: u8 = 2;
/// The version of a Node entry. In logs of earlier versions the tensors of containers had names.
pub const NODE_VERSION: u8 = 5;
/// The version of a Node entry that is an embedding batch.
pub const NODE_WITH_RECORDS_VERSION: u8 = 6;
/// The version of a Node entry that is a view.
pub const NODE_WITH_VIEW_VERSION: u8 = 7;
/// The highest number of a node or name. Numbers are assigned one by one, so they never run out, and
/// adding one to a number does not overflow.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;
/// Largest block in bytes, which bounds the memory that a reader needs for one.
pub const BLOCK_BYTES_MAX: u32 = 128 << 10;

/// One entry of the catalog.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// The collection itself.
    Collection {
        /// Its number in the store, which is the upper part of its inode numbers.
        number: u32,
        /// Creation time in Unix seconds.
        created_at: u64,
        /// The highest number that any node or name has had.
        last_entry: u64,
    },
    /// An object, to which blocks belong.
    Object(ObjectEntry),
    /// A file, a directory or a symbolic link, without its name.
    Node(Box<NodeEntry>),
    /// The removal of a node.
    NodeRemoved(EntryId),
    /// A name in a directory.
    Name {
        /// The directory.
        parent: EntryId,
        /// The name's own number, which is its position in listings.
        entry: EntryId,
        /// The name as it is shown.
        name: Arc<[u8]>,
        /// The node that it refers to.
        node: EntryId,
    },
    /// The removal of a name.
    NameRemoved {
        /// The directory.
        parent: EntryId,
        /// The name.
        name: Arc<[u8]>,
    },
    /// A setting of a node. Without a value, the node inherits it again.
    Setting {
        /// The node.
        node: EntryId,
        /// The name of its attribute.
        key: String,
        /// Its value.
        value: Option<String>,
    },
    /// A data file that lies outside the store.
    Outside(OutsideFile),
    /// Bytes of a file were overwritten: its digests are outdated from here on, and nothing else
    /// changes. A Node would express the same, but lists every object of a container.
    Written {
        /// The file.
        node: EntryId,
        /// When it was written, in nanoseconds since 1970.
        mtime: i64,
        /// When bytes or attributes last changed, in nanoseconds since 1970.
        ctime: i64,
    },
}

/// A file outside the store that holds exact bytes of objects and is never written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideFile {
    /// Its number among the data files.
    pub file: u64,
    /// Where it lies.
    pub place: OutsidePlace,
    /// Its size in bytes at the import.
    pub bytes: u64,
    /// Its mtime at the import, in nanoseconds since 1970.
    pub mtime: i64,
}

/// The place of an outside file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutsidePlace {
    /// An absolute path.
    Path(Vec<u8>),
    /// An object of a source that is named by a URL.
    Object {
        /// The object.
        object: Box<SourcePlace>,
        /// Whether the log has the checksums of its bytes, and not those of their places.
        is_read: bool,
    },
}

/// An object of a source, and its version.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SourcePlace {
    /// The URL of the source.
    pub source: String,
    /// The key of the object for the client of the source.
    pub key: String,
    /// Its version.
    pub version: Version,
}

impl SourcePlace {
    /// A text that names its bytes.
    pub fn identity(&self) -> Vec<u8> {
        let SourcePlace { source, key, version } = self;
        format!("{source}\n{key}\n{version:?}").into_bytes()
    }
}

impl std::fmt::Display for SourcePlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.source, self.key)
    }
}

impl OutsideFile {
    /// The object, if it lies at a URL.
    pub fn object(&self) -> Option<&SourcePlace> {
        match &self.place {
            OutsidePlace::Path(_) => None,
            OutsidePlace::Object { object, .. } => Some(object),
        }
    }

    /// Whether nobody has read its bytes, so that their checksums are not known.
    pub fn is_unread(&self) -> bool {
        matches!(self.place, OutsidePlace::Object { is_read: false, .. })
    }

    /// Its path or URL, for messages.
    pub fn name(&self) -> String {
        match &self.place {
            OutsidePlace::Path(path) => String::from_utf8_lossy(path).into_owned(),
            OutsidePlace::Object { object, .. } => object.to_string(),
        }
    }
}

/// An object, to which blocks belong: a shard of a tensor, or a range of other bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct ObjectEntry {
    /// Its identity.
    pub id: ObjectId,
    /// The tensor that it was created for.
    pub tensor: TensorId,
    /// Its position among the shards.
    pub seed: SeedId,
    /// A number that distinguishes it from other objects of the same tensor and seed.
    pub creation: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Logical bytes.
    pub bytes: u64,
    /// Logical bytes of every block except the last.
    pub block_bytes: u32,
    /// The location of its exact bytes: a data file and an offset.
    pub extent: Option<Extent>,
    /// The object that it was derived from, if known. Its blocks can then be stored as deltas.
    pub parent: Option<Box<Parent>>,
}

/// The lineage parent of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    /// The parent itself.
    pub object: ObjectId,
    /// Tenant and name of its collection. `None` if that is the child's own, which may be renamed and cloned.
    pub collection: Option<OwnedCollectionName>,
}

impl Parent {
    /// Tenant and name of the parent's collection, for a child in the collection `own`.
    pub fn place<'a>(&'a self, own: CollectionName<'a>) -> CollectionName<'a> {
        self.collection.as_ref().map_or(own, OwnedCollectionName::borrowed)
    }
}

/// A location in a data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number of the data file.
    pub file: u64,
    /// Byte offset.
    pub offset: u64,
}

/// A file, a directory or a symbolic link.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeEntry {
    /// Its number in the collection, which is the lower part of its inode number.
    pub id: EntryId,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access time in nanoseconds since 1970: as set, else the creation time. Reads do not change it.
    pub atime: i64,
    /// Time of the last change of its bytes, in nanoseconds since 1970.
    pub mtime: i64,
    /// Time of the last change of its bytes or metadata, in nanoseconds since 1970.
    pub ctime: i64,
    /// Creation time in Unix seconds.
    pub created_at: u64,
    /// Its type, with the data of that type.
    pub node_type: NodeType,
}

impl NodeEntry {
    /// A node that is created at `now`, in nanoseconds since 1970.
    pub fn new(id: EntryId, mode: u32, owner: Owner, now: i64, node_type: NodeType) -> NodeEntry {
        NodeEntry {
            id,
            mode: mode & MODE_BITS,
            uid: owner.uid,
            gid: owner.gid,
            atime: now,
            mtime: now,
            ctime: now,
            created_at: u64::try_from(now / 1_000_000_000).unwrap_or(0),
            node_type,
        }
    }

    /// Its owner and group.
    pub fn owner(&self) -> Owner {
        Owner { uid: self.uid, gid: self.gid }
    }
}

/// The type of a node, with the data of that type.
#[derive(Clone, PartialEq, Debug)]
pub enum NodeType {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A file.
    File(Box<FileEntry>),
}

/// The objects of a file. A single one needs no allocation.
pub type ObjectIds = SmallVec<[ObjectId; 1]>;

/// The contents of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct FileEntry {
    /// The kind of its content.
    pub content: Content,
    /// The objects whose concatenation is the file.
    pub objects: ObjectIds,
    /// Its description as a tensor, if it is one.
    pub tensor: Option<TensorEntry>,
    /// The container that contains it.
    pub container: Option<EntryId>,
    /// Digests of the original bytes.
    pub digests: Digests,
    /// The error of the encoding.
    pub error: Option<Box<Measured>>,
    /// The reason of the last refusal or unexpected event.
    pub why: Box<str>,
    /// For an embedding batch, the layout of its records, from which its bytes are assembled.
    pub records: Option<Arc<Runs>>,
    /// For a tensor without bytes of its own, the place of its elements in its container.
    pub view: Option<Arc<View>>,
}

// A collection has at least one per tensor.
const _: () = assert!(size_of::<FileEntry>() <= 176);

impl FileEntry {
    /// A file that consists of these objects and has no other properties yet.
    pub fn new(content: Content, objects: impl Into<ObjectIds>) -> FileEntry {
        FileEntry {
            content,
            objects: objects.into(),
            tensor: None,
            container: None,
            digests: Digests::NotTaken,
            error: None,
            why: Box::default(),
            records: None,
            view: None,
        }
    }
}

/// The kind of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Other bytes.
    Plain,
    /// A tensor that is a file of its own.
    Tensor,
    /// A container of safetensors.
    Safetensors,
    /// A NumPy array file.
    Npy,
    /// A tensor inside a container.
    Part,
    /// An embedding batch.
    Cgeb,
    /// A GGUF file.
    Gguf,
    /// A PyTorch checkpoint.
    Torch,
    /// A NumPy archive of arrays.
    Npz,
    /// An ONNX model.
    Onnx,
    /// A file beside an ONNX model that has tensors of it.
    OnnxData,
}

/// The description of a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorEntry {
    /// Its own name, unescaped. In an `.npy` or `.cgeb` file, what follows the file's stem.
    pub name: Box<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Shape,
    /// The lineage parent; zero if there is none.
    pub parent: TensorId,
}

/// Recorded digests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedDigests {
    /// BLAKE3.
    pub blake3: [u8; 32],
    /// SHA-256, recorded only if the import compared it.
    pub sha256: Option<[u8; 32]>,
}

/// Digests of the original bytes of a file: as imported, or as last written whole.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Digests {
    /// None are recorded. While all blocks are exact, the current bytes are the original ones.
    #[default]
    NotTaken,
    /// Recorded with the original bytes.
    Recorded(Box<RecordedDigests>),
    /// A part of the file was overwritten since, so the original bytes no longer exist.
    Outdated,
}

impl Digests {
    /// The recorded BLAKE3.
    pub fn blake3(&self) -> Option<[u8; 32]> {
        match self {
            Digests::Recorded(taken) => Some(taken.blake3),
            Digests::NotTaken | Digests::Outdated => None,
        }
    }

    /// The recorded SHA-256.
    pub fn sha256(&self) -> Option<[u8; 32]> {
        match self {
            Digests::Recorded(taken) => taken.sha256,
            Digests::NotTaken | Digests::Outdated => None,
        }
    }
}

/// Differences between decoded elements and their source.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// The largest difference.
    pub maximum: f32,
    /// The sum of the squared differences.
    pub squares: f64,
    /// The number of elements compared.
    pub elements: u64,
}

impl Measured {
    /// The root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.squares / (self.elements.max(1)) as f64).sqrt()
    }

    /// Adds the measurements of other elements.
    pub fn add(&mut self, other: Measured) {
        self.maximum = self.maximum.max(other.maximum);
        self.squares += other.squares;
        self.elements += other.elements;
    }
}

impl Content {
    pub(super) const ALL: [Content; 11] = [
        Content::Plain,
        Content::Tensor,
        Content::Safetensors,
        Content::Npy,
        Content::Part,
        Content::Cgeb,
        Content::Gguf,
        Content::Torch,
        Content::Npz,
        Content::Onnx,
        Content::OnnxData,
    ];

    pub(super) fn code(self) -> u8 {
        match self {
            Content::Plain => 0,
            Content::Tensor => 1,
            Content::Safetensors => 2,
            Content::Npy => 3,
            Content::Part => 4,
            Content::Cgeb => 5,
            Content::Gguf => 6,
            Content::Torch => 7,
            Content::Npz => 8,
            Content::Onnx => 9,
            Content::OnnxData => 10,
        }
    }

    /// Whether it holds tensors, which are files below `.tensors` of its directory.
    pub fn is_container(self) -> bool {
        !matches!(self, Content::Plain | Content::Tensor | Content::Part)
    }

    /// Whether its own reader compares a checksum of each tensor, so that tensors in it must stay exact.
    pub fn has_checksums(self) -> bool {
        self == Content::Npz
    }
}
