//! The catalog: what names, nodes and objects a collection has. Each entry is the
//! payload of a Catalog record; its kind and version stand in the record.
//!
//! Integers are little-endian; a text or a list is its length, u32, and its bytes or
//! items; an optional value is a byte, 0 or 1, and the value after a 1.
//!
//! | kind | payload of version 1; of a Node, of version 3 |
//! |---|---|
//! | 1 Collection | number u32, created_at u64 (s), last_entry u64 |
//! | 2 Object | object_id u128, tensor_id u128 at creation, seed_id u128, creation u64, dtype u8, bytes u64, block_bytes u32, home: optional (data file u64, offset u64) |
//! | 3 Node | node u64, mode u32, uid u32, gid u32, atime i64 (ns), mtime i64 (ns), ctime i64 (ns), created_at u64 (s), what u8, then by what: 0 directory: nothing; 1 symlink: target text; 2 file: see below |
//! | 4 Node removed | node u64 |
//! | 5 Name | parent node u64, entry u64, name text, node u64 |
//! | 6 Name removed | parent node u64, name text |
//! | 7 Setting | node u64, key text, value: optional text |
//! | 8 Outside file | data file u64, path text, bytes u64, mtime i64 (ns) |
//! | 9 Written | node u64, mtime i64 (ns), ctime i64 (ns) |
//!
//! A file: content u8 (0 plain, 1 tensor, 2 safetensors, 3 npy, 4 part of a
//! container, 5 cgeb), objects: list of u128, tensor: optional (own name text, dtype u8, shape:
//! list of u64, parent tensor_id u128), container: optional node
//! u64, digests: u8 (0 not taken, 1 sha256 32 bytes and blake3 32 bytes, 2 blake3 32 bytes,
//! 3 outdated), error: optional (maximum f32, sum of squares f64, elements u64), why text.
//!
//! An Object with a lineage parent has version 2: the payload of version 1, then parent:
//! object_id u128, tenant text, collection text.
//!
//! A Node that is an embedding batch (content 5) has version 4: the payload of version 3,
//! then its records: dimension u32, experts u8, top_k u8, runs: list of (count u64, kind u8,
//! aux_offset u64, aux_length u64). Bits 0-1 of a kind: 0 version 1, 1 version 2 with
//! big-endian floats, 2 version 2 with little-endian floats; bit 2: the content hash covers
//! the payload. Its objects are the vectors, the weights where there are experts, the
//! selected experts where top_k is not 0, and headers and aux, record by record.
//!
//! An entry of an unknown kind or another version is refused: `Unsupported`.

mod pieces;
mod records;
mod wire;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::format::files::cgeb::Runs;
use crate::model::{Dtype, EntryId, ObjectId, SeedId, Shape, TensorId};

/// The kind of an Object entry.
pub const OBJECT: u8 = 2;
/// The kind of a Node entry.
pub const NODE: u8 = 3;
/// The version of entries.
pub const ENTRY_VERSION: u8 = 1;
/// The version of an Object entry that names a lineage parent.
pub const OBJECT_WITH_PARENT_VERSION: u8 = 2;
/// The version of a Node entry. Those before had no atime.
pub const NODE_VERSION: u8 = 3;
/// The version of a Node entry that is an embedding batch.
pub const NODE_WITH_RECORDS_VERSION: u8 = 4;
/// Nodes and names have numbers up to this, given out one by one: never used up, and one more
/// is always a number.
pub const NUMBER_MAX: u64 = (1 << 48) - 1;
/// A name in a directory has at most this many bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// A block has at most this many bytes: what a reader must hold of one at a time.
pub const BLOCK_BYTES_MAX: u32 = 128 << 10;

/// One entry of the catalog.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// What the collection itself is.
    Collection {
        /// Its number in the store: the upper part of its inode numbers.
        number: u32,
        /// When it was made, in seconds since 1970.
        created_at: u64,
        /// The highest number that a node or a name has had.
        last_entry: u64,
    },
    /// Something that blocks are keyed by.
    Object(ObjectEntry),
    /// A file, a directory or a symbolic link, without its name.
    Node(Box<NodeEntry>),
    /// The node is gone.
    NodeRemoved(EntryId),
    /// A name in a directory.
    Name {
        /// The directory.
        parent: EntryId,
        /// The name's own number: its place in listings.
        entry: EntryId,
        /// The name, as it is shown.
        name: Arc<[u8]>,
        /// What it leads to.
        node: EntryId,
    },
    /// The name is gone.
    NameRemoved {
        /// The directory.
        parent: EntryId,
        /// The name.
        name: Arc<[u8]>,
    },
    /// A setting of a node; without a value it is inherited again.
    Setting {
        /// The node.
        node: EntryId,
        /// Its name, as in the attributes.
        key: String,
        /// Its value.
        value: Option<String>,
    },
    /// A data file that is a file outside the store.
    Outside(OutsideFile),
    /// Bytes of a file were written over: its digests are outdated from here on, and all else of
    /// it is as before. A Node says the same and names every object of a container.
    Written {
        /// The file.
        node: EntryId,
        /// When it was written, in nanoseconds since 1970.
        mtime: i64,
        /// When bytes or attributes last changed, in nanoseconds since 1970.
        ctime: i64,
    },
}

/// A file outside the store that is only ever read: exact bytes of objects lie in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutsideFile {
    /// The number that names it among the data files.
    pub file: u64,
    /// Its absolute path.
    pub path: Vec<u8>,
    /// Bytes that it had when it came in.
    pub bytes: u64,
    /// When its bytes had changed then, in nanoseconds since 1970.
    pub mtime: i64,
}

/// Something that blocks are keyed by: a shard of a tensor, or a stretch of other bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct ObjectEntry {
    /// Its identity.
    pub id: ObjectId,
    /// The tensor that it was created for.
    pub tensor: TensorId,
    /// Its place among the shards.
    pub seed: SeedId,
    /// The number that tells it from others of the same tensor and seed.
    pub creation: u64,
    /// Element type.
    pub dtype: Dtype,
    /// Logical bytes.
    pub bytes: u64,
    /// Logical bytes of every block but the last.
    pub block_bytes: u32,
    /// Where its exact bytes lie: a data file and an offset in it.
    pub extent: Option<Extent>,
    /// What it was made from, where that is known: its blocks can be kept as differences.
    pub parent: Option<Box<Parent>>,
}

/// The lineage parent of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parent {
    /// The parent itself.
    pub object: ObjectId,
    /// The tenant of the collection that it is in.
    pub tenant: String,
    /// The collection's name.
    pub collection: String,
}

/// A place in a data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number that names the data file.
    pub file: u64,
    /// Byte offset.
    pub offset: u64,
}

/// A file, a directory or a symbolic link.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeEntry {
    /// Its number in the collection: the lower part of its inode number.
    pub id: EntryId,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// When it was used, in nanoseconds since 1970: as set, else when it was made. Reads do not
    /// change it.
    pub atime: i64,
    /// When its bytes changed, in nanoseconds since 1970.
    pub mtime: i64,
    /// When anything of it changed, in nanoseconds since 1970.
    pub ctime: i64,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// What it is.
    pub what: What,
}

/// What a node is.
#[derive(Clone, PartialEq, Debug)]
pub enum What {
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink(Vec<u8>),
    /// A file.
    File(Box<FileEntry>),
}

/// The objects of a file: of one without memory of its own.
pub type ObjectIds = SmallVec<[ObjectId; 1]>;

/// What a file's bytes are.
#[derive(Clone, PartialEq, Debug)]
pub struct FileEntry {
    /// The kind of its content.
    pub content: Content,
    /// Its bytes are those of these objects, one after the other.
    pub objects: ObjectIds,
    /// What it is as a tensor.
    pub tensor: Option<TensorEntry>,
    /// The container that it is a part of.
    pub container: Option<EntryId>,
    /// Digests of the bytes that came in.
    pub digests: Digests,
    /// How far it is from what was encoded.
    pub error: Option<Box<Measured>>,
    /// The last refusal or surprise.
    pub why: Box<str>,
    /// Of an embedding batch, where its records lie: its bytes are stitched from its objects.
    pub records: Option<Arc<Runs>>,
}

// A collection has as many as it has tensors, and more.
const _: () = assert!(size_of::<FileEntry>() <= 176);

/// The kind of a file's content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Bytes.
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
}

/// What a file is as a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorEntry {
    /// Its own name, unescaped.
    pub name: Box<str>,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Shape,
    /// The lineage parent, zero for none.
    pub parent: TensorId,
}

/// Digests that were taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// BLAKE3.
    pub blake3: [u8; 32],
    /// SHA-256, where it had to be compared.
    pub sha256: Option<[u8; 32]>,
}

/// Digests of the bytes that a file came in with.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Digests {
    /// None were taken. Those of the bytes as they are read now are of what came in, as long
    /// as all of them are exact.
    #[default]
    NotTaken,
    /// They were taken when the file came in.
    Taken(Box<Taken>),
    /// A part of the file was written to since: what came in is not there to digest.
    Outdated,
}

impl Digests {
    /// The BLAKE3 that was taken.
    pub fn blake3(&self) -> Option<[u8; 32]> {
        match self {
            Digests::Taken(taken) => Some(taken.blake3),
            Digests::NotTaken | Digests::Outdated => None,
        }
    }

    /// The SHA-256 that was taken.
    pub fn sha256(&self) -> Option<[u8; 32]> {
        match self {
            Digests::Taken(taken) => taken.sha256,
            Digests::NotTaken | Digests::Outdated => None,
        }
    }
}

/// Differences between what is read and what was encoded.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// The largest.
    pub maximum: f32,
    /// The sum of their squares.
    pub squares: f64,
    /// The number of elements compared.
    pub elements: u64,
}

impl Measured {
    /// The root of the mean square.
    pub fn rms(&self) -> f64 {
        (self.squares / (self.elements.max(1)) as f64).sqrt()
    }

    /// Adds what was measured elsewhere.
    pub fn add(&mut self, other: Measured) {
        self.maximum = self.maximum.max(other.maximum);
        self.squares += other.squares;
        self.elements += other.elements;
    }
}

impl Content {
    pub(super) const ALL: [Content; 7] = [
        Content::Plain,
        Content::Tensor,
        Content::Safetensors,
        Content::Npy,
        Content::Part,
        Content::Cgeb,
        Content::Gguf,
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
        }
    }

    /// Whether its tensors appear beside it as files.
    pub fn is_container(self) -> bool {
        matches!(self, Content::Safetensors | Content::Npy | Content::Gguf | Content::Cgeb)
    }
}
