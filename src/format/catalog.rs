//! The catalog: what names, nodes and objects a collection has. Each entry is the
//! payload of a Catalog record; its kind and version stand in the record.
//!
//! Integers are little-endian; a text or a list is its length, u32, and its bytes or
//! items; an optional value is a byte, 0 or 1, and the value after a 1.
//!
//! | kind | payload of version 1 |
//! |---|---|
//! | 1 Collection | number u32, created_at u64 (s) |
//! | 2 Object | object_id u128, tensor_id u128 at creation, seed_id u128, creation u64, dtype u8, bytes u64, block_bytes u32, home: optional (data file u64, offset u64) |
//! | 3 Node | node u64, mode u32, uid u32, gid u32, mtime i64 (ns), ctime i64 (ns), created_at u64 (s), what u8, then by what: 0 directory: nothing; 1 symlink: target text; 2 file: see below |
//! | 4 Node removed | node u64 |
//! | 5 Name | parent node u64, entry u64, name text, node u64 |
//! | 6 Name removed | parent node u64, name text |
//! | 7 Setting | node u64, key text, value: optional text |
//!
//! A file: content u8 (0 plain, 1 tensor, 2 safetensors, 3 npy, 4 part of a
//! container), objects: list of u128, tensor: optional (own name text, dtype u8, shape:
//! list of u64, parent tensor_id u128), container: optional node
//! u64, digests: optional (sha256 32 bytes, blake3 32 bytes), error: optional
//! (maximum f32, sum of squares f64, elements u64), why text.
//!
//! An entry of an unknown kind or a newer version is refused: `Unsupported`.

use crate::format::cursor::{Reader, Writer};
use crate::model::{DIMENSIONS_MAX, Dtype, EntryId, Error, ObjectId, Result, SeedId, Shape, TensorId};

/// The version of every kind of entry that this program writes.
pub const ENTRY_VERSION: u8 = 1;
/// A name in a directory has at most this many bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// A block has at most this many bytes: what a reader must hold of one at a time.
pub const BLOCK_BYTES_MAX: u32 = 128 << 10;
/// A symbolic link's target has at most this many bytes.
const TARGET_BYTES_MAX: usize = 4096;
/// A tensor has at most this many shards, a file at most this many parts.
const OBJECTS_MAX: usize = 1 << 24;

/// One entry of the catalog.
#[derive(Clone, PartialEq, Debug)]
pub enum Entry {
    /// What the collection itself is.
    Collection {
        /// Its number in the store: the upper part of its inode numbers.
        number: u32,
        /// When it was made, in seconds since 1970.
        created_at: u64,
    },
    /// Something that blocks are keyed by.
    Object(ObjectEntry),
    /// A file, a directory or a symbolic link, without its name.
    Node(NodeEntry),
    /// The node is gone.
    NodeRemoved(EntryId),
    /// A name in a directory.
    Name {
        /// The directory.
        parent: EntryId,
        /// The name's own number: its place in listings.
        entry: EntryId,
        /// The name, as it is shown.
        name: Vec<u8>,
        /// What it leads to.
        node: EntryId,
    },
    /// The name is gone.
    NameRemoved {
        /// The directory.
        parent: EntryId,
        /// The name.
        name: Vec<u8>,
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
    pub home: Option<Home>,
}

/// A place in a data file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Home {
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
    File(FileEntry),
}

/// What a file's bytes are.
#[derive(Clone, PartialEq, Debug)]
pub struct FileEntry {
    /// The kind of its content.
    pub content: Content,
    /// Its bytes are those of these objects, one after the other.
    pub objects: Vec<ObjectId>,
    /// What it is as a tensor.
    pub tensor: Option<TensorEntry>,
    /// The container that it is a part of.
    pub container: Option<EntryId>,
    /// Digests of the bytes that came in.
    pub digests: Option<Digests>,
    /// How far it is from what was encoded.
    pub error: Option<Measured>,
    /// The last refusal or surprise.
    pub why: String,
}

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
}

/// What a file is as a tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorEntry {
    /// Its own name, unescaped.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape.
    pub shape: Shape,
    /// The lineage parent, zero for none.
    pub parent: TensorId,
}

/// Digests of the bytes that came in whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digests {
    /// SHA-256.
    pub sha256: [u8; 32],
    /// BLAKE3.
    pub blake3: [u8; 32],
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
    const ALL: [Content; 5] =
        [Content::Plain, Content::Tensor, Content::Safetensors, Content::Npy, Content::Part];

    fn code(self) -> u8 {
        match self {
            Content::Plain => 0,
            Content::Tensor => 1,
            Content::Safetensors => 2,
            Content::Npy => 3,
            Content::Part => 4,
        }
    }

    /// Whether its tensors appear beside it as files.
    pub fn is_container(self) -> bool {
        matches!(self, Content::Safetensors | Content::Npy)
    }
}

impl Entry {
    /// The kind byte of its record.
    pub fn kind(&self) -> u8 {
        match self {
            Entry::Collection { .. } => 1,
            Entry::Object(_) => 2,
            Entry::Node(_) => 3,
            Entry::NodeRemoved(_) => 4,
            Entry::Name { .. } => 5,
            Entry::NameRemoved { .. } => 6,
            Entry::Setting { .. } => 7,
        }
    }

    /// The payload.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Entry::Collection { number, created_at } => {
                out.u32(*number).u64(*created_at);
            }
            Entry::Object(object) => write_object(&mut out, object),
            Entry::Node(node) => write_node(&mut out, node),
            Entry::NodeRemoved(node) => {
                out.u64(node.0);
            }
            Entry::Name { parent, entry, name, node } => {
                out.u64(parent.0).u64(entry.0);
                write_text(&mut out, name);
                out.u64(node.0);
            }
            Entry::NameRemoved { parent, name } => {
                out.u64(parent.0);
                write_text(&mut out, name);
            }
            Entry::Setting { node, key, value } => {
                out.u64(node.0);
                write_text(&mut out, key.as_bytes());
                write_option(&mut out, value.as_ref(), |out, value| write_text(out, value.as_bytes()));
            }
        }
        out.into_bytes()
    }

    /// The entry of a payload.
    pub fn parse(kind: u8, version: u8, payload: &[u8]) -> Result<Entry> {
        if version != ENTRY_VERSION {
            return Err(Error::unsupported(format!(
                "a catalog entry of kind {kind} has version {version}, this program knows {ENTRY_VERSION}"
            )));
        }
        let mut bytes = Reader::new(payload);
        let entry = match kind {
            1 => Entry::Collection { number: bytes.u32()?, created_at: bytes.u64()? },
            2 => Entry::Object(read_object(&mut bytes)?),
            3 => Entry::Node(read_node(&mut bytes)?),
            4 => Entry::NodeRemoved(EntryId(bytes.u64()?)),
            5 => Entry::Name {
                parent: EntryId(bytes.u64()?),
                entry: EntryId(bytes.u64()?),
                name: read_name(&mut bytes)?,
                node: EntryId(bytes.u64()?),
            },
            6 => Entry::NameRemoved { parent: EntryId(bytes.u64()?), name: read_name(&mut bytes)? },
            7 => Entry::Setting {
                node: EntryId(bytes.u64()?),
                key: read_string(&mut bytes)?,
                value: read_option(&mut bytes, read_string)?,
            },
            kind => {
                return Err(Error::unsupported(format!(
                    "a catalog entry of kind {kind}, which this program does not know"
                )));
            }
        };
        if bytes.remaining() > 0 {
            return Err(Error::corrupt(format!(
                "a catalog entry of kind {kind} has {} bytes after its end",
                bytes.remaining()
            )));
        }
        Ok(entry)
    }
}

fn write_object(out: &mut Writer, object: &ObjectEntry) {
    out.u128(object.id.0)
        .u128(object.tensor.0)
        .u128(object.seed.0)
        .u64(object.creation)
        .u8(object.dtype.code())
        .u64(object.bytes)
        .u32(object.block_bytes);
    write_option(out, object.home.as_ref(), |out, home| {
        out.u64(home.file).u64(home.offset);
    });
}

fn read_object(bytes: &mut Reader<'_>) -> Result<ObjectEntry> {
    let object = ObjectEntry {
        id: ObjectId(bytes.u128()?),
        tensor: TensorId(bytes.u128()?),
        seed: SeedId(bytes.u128()?),
        creation: bytes.u64()?,
        dtype: read_dtype(bytes)?,
        bytes: bytes.u64()?,
        block_bytes: bytes.u32()?,
        home: read_option(bytes, |bytes| Ok(Home { file: bytes.u64()?, offset: bytes.u64()? }))?,
    };
    if !(1..=BLOCK_BYTES_MAX).contains(&object.block_bytes) || object.bytes > i64::MAX as u64 {
        return Err(Error::corrupt(format!(
            "object {} has {} bytes in blocks of {}",
            object.id, object.bytes, object.block_bytes
        )));
    }
    if object.bytes.div_ceil(u64::from(object.block_bytes)) >= u64::from(u32::MAX) {
        return Err(Error::corrupt(format!("object {} has more than 2^32 - 2 blocks", object.id)));
    }
    let end = object.home.map_or(Some(0), |home| home.offset.checked_add(object.bytes));
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::corrupt(format!("object {} ends past 2^63 - 1", object.id)));
    }
    Ok(object)
}

fn write_node(out: &mut Writer, node: &NodeEntry) {
    out.u64(node.id.0).u32(node.mode).u32(node.uid).u32(node.gid);
    out.u64(node.mtime as u64).u64(node.ctime as u64).u64(node.created_at);
    match &node.what {
        What::Directory => {
            out.u8(0);
        }
        What::Symlink(target) => {
            out.u8(1);
            write_text(out, target);
        }
        What::File(file) => {
            out.u8(2);
            write_file(out, file);
        }
    }
}

fn read_node(bytes: &mut Reader<'_>) -> Result<NodeEntry> {
    Ok(NodeEntry {
        id: EntryId(bytes.u64()?),
        mode: bytes.u32()?,
        uid: bytes.u32()?,
        gid: bytes.u32()?,
        mtime: bytes.u64()? as i64,
        ctime: bytes.u64()? as i64,
        created_at: bytes.u64()?,
        what: match bytes.u8()? {
            0 => What::Directory,
            1 => What::Symlink(read_text(bytes, TARGET_BYTES_MAX)?.to_vec()),
            2 => What::File(read_file(bytes)?),
            what => return Err(Error::unsupported(format!("a node of kind {what}"))),
        },
    })
}

fn write_file(out: &mut Writer, file: &FileEntry) {
    out.u8(file.content.code()).u32(file.objects.len() as u32);
    for object in &file.objects {
        out.u128(object.0);
    }
    write_option(out, file.tensor.as_ref(), |out, tensor| {
        write_text(out, tensor.name.as_bytes());
        out.u8(tensor.dtype.code()).u32(tensor.shape.dimensions().len() as u32);
        for &size in tensor.shape.dimensions() {
            out.u64(size);
        }
        out.u128(tensor.parent.0);
    });
    write_option(out, file.container.as_ref(), |out, node| {
        out.u64(node.0);
    });
    write_option(out, file.digests.as_ref(), |out, digests| {
        out.bytes(&digests.sha256).bytes(&digests.blake3);
    });
    write_option(out, file.error.as_ref(), |out, error| {
        out.f32(error.maximum).u64(error.squares.to_bits()).u64(error.elements);
    });
    write_text(out, file.why.as_bytes());
}

fn read_file(bytes: &mut Reader<'_>) -> Result<FileEntry> {
    let code = bytes.u8()?;
    let content = Content::ALL
        .into_iter()
        .find(|content| content.code() == code)
        .ok_or_else(|| Error::unsupported(format!("a file whose content is of kind {code}")))?;
    Ok(FileEntry {
        content,
        objects: read_list(bytes, OBJECTS_MAX, 16, |bytes| Ok(ObjectId(bytes.u128()?)))?,
        tensor: read_option(bytes, |bytes| {
            Ok(TensorEntry {
                name: read_string(bytes)?,
                dtype: read_dtype(bytes)?,
                shape: Shape::new(&read_list(bytes, DIMENSIONS_MAX, 8, Reader::u64)?)
                    .ok_or_else(|| Error::corrupt("a shape of more than 2^63 elements"))?,
                parent: TensorId(bytes.u128()?),
            })
        })?,
        container: read_option(bytes, |bytes| Ok(EntryId(bytes.u64()?)))?,
        digests: read_option(bytes, |bytes| Ok(Digests { sha256: bytes.array()?, blake3: bytes.array()? }))?,
        error: read_option(bytes, |bytes| {
            Ok(Measured {
                maximum: bytes.f32()?,
                squares: f64::from_bits(bytes.u64()?),
                elements: bytes.u64()?,
            })
        })?,
        why: read_string(bytes)?,
    })
}

fn write_text(out: &mut Writer, text: &[u8]) {
    out.u32(text.len() as u32).bytes(text);
}

fn read_text<'a>(bytes: &mut Reader<'a>, longest: usize) -> Result<&'a [u8]> {
    let len = bytes.u32()? as usize;
    if len > longest {
        return Err(Error::corrupt(format!("a text of {len} bytes where {longest} is the most")));
    }
    bytes.bytes(len)
}

fn read_string(bytes: &mut Reader<'_>) -> Result<String> {
    let longest = bytes.remaining();
    let text = read_text(bytes, longest)?;
    String::from_utf8(text.to_vec()).map_err(|_| Error::corrupt("a text that is not UTF-8"))
}

fn read_name(bytes: &mut Reader<'_>) -> Result<Vec<u8>> {
    let name = read_text(bytes, NAME_BYTES_MAX)?;
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Error::corrupt(format!("{:?} as a name", String::from_utf8_lossy(name))));
    }
    Ok(name.to_vec())
}

fn read_dtype(bytes: &mut Reader<'_>) -> Result<Dtype> {
    let code = bytes.u8()?;
    Dtype::from_code(code)
        .ok_or_else(|| Error::unsupported(format!("element type {code}, which this program does not know")))
}

fn write_option<T>(out: &mut Writer, value: Option<&T>, write: impl FnOnce(&mut Writer, &T)) {
    out.u8(u8::from(value.is_some()));
    if let Some(value) = value {
        write(out, value);
    }
}

fn read_option<'a, T>(
    bytes: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T>,
) -> Result<Option<T>> {
    match bytes.u8()? {
        0 => Ok(None),
        1 => read(bytes).map(Some),
        byte => Err(Error::corrupt(format!("{byte} where 0 or 1 says whether a value follows"))),
    }
}

fn read_list<'a, T>(
    bytes: &mut Reader<'a>,
    longest: usize,
    item_bytes: usize,
    read: impl Fn(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let count = bytes.u32()? as usize;
    // The items must lie in what is left: a length cannot ask for more memory than that.
    if count > longest || count.saturating_mul(item_bytes) > bytes.remaining() {
        return Err(Error::corrupt(format!("a list of {count} items")));
    }
    (0..count).map(|_| read(bytes)).collect()
}
