//! Encodes and decodes catalog entries; the parent module documents the layout.

use std::sync::Arc;

use crate::format::cursor::{Reader, Writer};
use crate::format::files::View;
use crate::format::log::catalog::records::{put_records, read_records, records_of, write_records};
use crate::format::log::catalog::{
    BLOCK_BYTES_MAX, Content, Digests, ENTRY_VERSION, Entry, Extent, FileEntry, Measured, NODE, NODE_VERSION,
    NODE_WITH_RECORDS_VERSION, NODE_WITH_VIEW_VERSION, NUMBER_MAX, NodeEntry, NodeType, OBJECT,
    OBJECT_WITH_PARENT_VERSION, ObjectEntry, ObjectIds, OutsideFile, OutsidePlace, Parent, RecordedDigests,
    SourcePlace, TensorEntry, Version,
};
use crate::format::values::{
    read_count, read_dtype, read_list, read_option, read_string, read_text, write_option, write_text,
};
use crate::model::{
    CollectionName, DIMENSIONS_MAX, EntryId, Error, NAME_BYTES_MAX, ObjectId, OwnedCollectionName, Result,
    SeedId, Shape, TensorId, check_label,
};

/// Longest target of a symbolic link in bytes.
const TARGET_BYTES_MAX: usize = 4096;
/// The kind of an Outside entry that is an object at a URL.
const OUTSIDE_OBJECT: u8 = 10;
/// Longest path of an outside file in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Largest number of shards of a tensor, and of parts of a file.
const OBJECTS_MAX: usize = 1 << 24;

impl Entry {
    /// The kind byte of its record.
    pub fn kind(&self) -> u8 {
        match self {
            Entry::Collection { .. } => 1,
            Entry::Object(_) => OBJECT,
            Entry::Node(_) => NODE,
            Entry::NodeRemoved(_) => 4,
            Entry::Name { .. } => 5,
            Entry::NameRemoved { .. } => 6,
            Entry::Setting { .. } => 7,
            Entry::Outside(OutsideFile { place: OutsidePlace::Path(_), .. }) => 8,
            Entry::Outside(_) => OUTSIDE_OBJECT,
            Entry::Written { .. } => 9,
        }
    }

    /// The version byte of its record.
    pub fn version(&self) -> u8 {
        match self {
            Entry::Object(object) if object.parent.is_some() => OBJECT_WITH_PARENT_VERSION,
            Entry::Node(node) if records_of(node).is_some() => NODE_WITH_RECORDS_VERSION,
            Entry::Node(node) if view_of(node).is_some() => NODE_WITH_VIEW_VERSION,
            Entry::Node(_) => NODE_VERSION,
            _ => ENTRY_VERSION,
        }
    }

    /// The payload of its record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Entry::Collection { number, created_at, last_entry } => {
                out.u32(*number).u64(*created_at).u64(*last_entry);
            }
            Entry::Object(object) => write_object(&mut out, object),
            Entry::Node(node) => {
                write_node(&mut out, node);
                if let Some(records) = records_of(node) {
                    write_records(&mut out, records);
                }
                if let Some(view) = view_of(node) {
                    write_view(&mut out, view);
                }
            }
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
            Entry::Outside(outside) => write_outside(&mut out, outside),
            Entry::Written { node, mtime, ctime } => {
                out.u64(node.0).u64(*mtime as u64).u64(*ctime as u64);
            }
        }
        out.into_bytes()
    }

    /// Decodes a payload.
    pub fn parse(kind: u8, version: u8, payload: &[u8]) -> Result<Entry> {
        let has_parent = (kind, version) == (OBJECT, OBJECT_WITH_PARENT_VERSION);
        let has_records = (kind, version) == (NODE, NODE_WITH_RECORDS_VERSION);
        let has_view = (kind, version) == (NODE, NODE_WITH_VIEW_VERSION);
        let known = if kind == NODE { NODE_VERSION } else { ENTRY_VERSION };
        if version != known && !has_parent && !has_records && !has_view {
            return Err(Error::unsupported(format!(
                "a catalog entry of kind {kind} has version {version}, this program knows {known}"
            )));
        }
        let mut bytes = Reader::new(payload);
        let entry = match kind {
            1 => Entry::Collection {
                number: bytes.u32()?,
                created_at: bytes.u64()?,
                last_entry: read_number(&mut bytes)?.0,
            },
            OBJECT => {
                let object = read_object(&mut bytes)?;
                let parent = if has_parent { Some(Box::new(read_parent(&mut bytes)?)) } else { None };
                Entry::Object(ObjectEntry { parent, ..object })
            }
            NODE => {
                let mut node = read_node(&mut bytes)?;
                let records = has_records.then(|| read_records(&mut bytes)).transpose()?;
                put_records(&mut node, records)?;
                if has_view {
                    read_view(&mut bytes, &mut node)?;
                }
                Entry::Node(Box::new(node))
            }
            4 => Entry::NodeRemoved(read_number(&mut bytes)?),
            5 => Entry::Name {
                parent: read_number(&mut bytes)?,
                entry: read_number(&mut bytes)?,
                name: read_name(&mut bytes)?.into(),
                node: read_number(&mut bytes)?,
            },
            6 => Entry::NameRemoved { parent: read_number(&mut bytes)?, name: read_name(&mut bytes)?.into() },
            7 => Entry::Setting {
                node: read_number(&mut bytes)?,
                key: read_string(&mut bytes)?,
                value: read_option(&mut bytes, read_string)?,
            },
            8 => Entry::Outside(read_outside(&mut bytes)?),
            OUTSIDE_OBJECT => Entry::Outside(read_outside_object(&mut bytes)?),
            9 => Entry::Written {
                node: read_number(&mut bytes)?,
                mtime: bytes.u64()? as i64,
                ctime: bytes.u64()? as i64,
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
    write_option(out, object.extent.as_ref(), |out, extent| {
        out.u64(extent.file).u64(extent.offset);
    });
    if let Some(parent) = &object.parent {
        out.u128(parent.object.0);
        let CollectionName { tenant, name: collection } = parent.place(CollectionName::new("", ""));
        write_text(out, tenant.as_bytes());
        write_text(out, collection.as_bytes());
    }
}

/// The number of a node or a name.
fn read_number(bytes: &mut Reader<'_>) -> Result<EntryId> {
    match bytes.u64()? {
        number @ 0..=NUMBER_MAX => Ok(EntryId(number)),
        number => Err(Error::corrupt(format!("the number {number}; the maximum is {NUMBER_MAX}"))),
    }
}

fn read_parent(bytes: &mut Reader<'_>) -> Result<Parent> {
    let object = ObjectId(bytes.u128()?);
    let (tenant, collection) = (read_string(bytes)?, read_string(bytes)?);
    if tenant.is_empty() && collection.is_empty() {
        return Ok(Parent { object, collection: None });
    }
    for label in [&tenant, &collection] {
        check_label(label).map_err(|wrong| Error::corrupt(format!("{label:?} in a lineage: {wrong}")))?;
    }
    Ok(Parent { object, collection: Some(OwnedCollectionName { tenant, name: collection }) })
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
        extent: read_option(bytes, |bytes| Ok(Extent { file: bytes.u64()?, offset: bytes.u64()? }))?,
        parent: None,
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
    let end = object.extent.map_or(Some(0), |extent| extent.offset.checked_add(object.bytes));
    if end.is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::corrupt(format!("object {} ends past 2^63 - 1", object.id)));
    }
    Ok(object)
}

fn write_outside(out: &mut Writer, OutsideFile { file, place, bytes, mtime }: &OutsideFile) {
    out.u64(*file);
    match place {
        OutsidePlace::Path(path) => {
            write_text(out, path);
            out.u64(*bytes).u64(*mtime as u64);
        }
        OutsidePlace::Object { object, is_read } => {
            let SourcePlace { source, key, version } = &**object;
            let (kind, version) = version.parts();
            write_text(out, source.as_bytes());
            write_text(out, key.as_bytes());
            out.u64(*bytes).u8(kind);
            write_text(out, version.as_bytes());
            out.u64(*mtime as u64).u8(u8::from(*is_read));
        }
    }
}

fn read_outside_object(bytes: &mut Reader<'_>) -> Result<OutsideFile> {
    let (file, source, key) = (bytes.u64()?, read_string(bytes)?, read_string(bytes)?);
    let (len, kind) = (bytes.u64()?, bytes.u8()?);
    let text = read_string(bytes)?;
    let version = Version::of_parts(kind, text.clone())?;
    if version.parts().1 != text {
        return Err(Error::corrupt(format!("{text:?} as the version of an object")));
    }
    let is_plain = |text: &String| text.len() <= PATH_BYTES_MAX && !text.chars().any(char::is_control);
    if source.is_empty() || ![&source, &key, &text].into_iter().all(is_plain) {
        return Err(Error::corrupt(format!("{source:?} and {key:?} as the place of an outside file")));
    }
    let mtime = bytes.u64()? as i64;
    let is_read = match bytes.u8()? {
        0 => false,
        1 => true,
        byte => return Err(Error::corrupt(format!("byte {byte} where 0 or 1 is expected"))),
    };
    let object = Box::new(SourcePlace { source, key, version });
    checked_outside(OutsideFile { file, place: OutsidePlace::Object { object, is_read }, bytes: len, mtime })
}

fn checked_outside(outside: OutsideFile) -> Result<OutsideFile> {
    if outside.bytes > i64::MAX as u64 {
        return Err(Error::corrupt(format!("an outside file of {} bytes", outside.bytes)));
    }
    Ok(outside)
}

fn read_outside(bytes: &mut Reader<'_>) -> Result<OutsideFile> {
    let file = bytes.u64()?;
    let path = read_text(bytes, PATH_BYTES_MAX)?.to_vec();
    let is_plain = |part: &[u8]| !matches!(part, b"" | b"." | b"..") && !part.contains(&0);
    let below = path.strip_prefix(b"/").unwrap_or_default();
    if !below.split(|&byte| byte == b'/').all(is_plain) {
        let path = String::from_utf8_lossy(&path).into_owned();
        return Err(Error::corrupt(format!("{path:?} as the path of an outside file")));
    }
    let place = OutsidePlace::Path(path);
    checked_outside(OutsideFile { file, place, bytes: bytes.u64()?, mtime: bytes.u64()? as i64 })
}

fn write_node(out: &mut Writer, node: &NodeEntry) {
    out.u64(node.id.0).u32(node.mode).u32(node.uid).u32(node.gid);
    out.u64(node.atime as u64).u64(node.mtime as u64).u64(node.ctime as u64).u64(node.created_at);
    match &node.node_type {
        NodeType::Directory => {
            out.u8(0);
        }
        NodeType::Symlink(target) => {
            out.u8(1);
            write_text(out, target);
        }
        NodeType::File(file) => {
            out.u8(2);
            write_file(out, file);
        }
    }
}

fn read_node(bytes: &mut Reader<'_>) -> Result<NodeEntry> {
    Ok(NodeEntry {
        id: read_number(bytes)?,
        mode: bytes.u32()?,
        uid: bytes.u32()?,
        gid: bytes.u32()?,
        atime: bytes.u64()? as i64,
        mtime: bytes.u64()? as i64,
        ctime: bytes.u64()? as i64,
        created_at: bytes.u64()?,
        node_type: match bytes.u8()? {
            0 => NodeType::Directory,
            1 => NodeType::Symlink(read_text(bytes, TARGET_BYTES_MAX)?.to_vec()),
            2 => NodeType::File(Box::new(read_file(bytes)?)),
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
    write_digests(out, &file.digests);
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
        objects: read_objects(bytes)?,
        tensor: read_option(bytes, |bytes| {
            Ok(TensorEntry {
                name: read_string(bytes)?.into(),
                dtype: read_dtype(bytes)?,
                shape: Shape::new(&read_list(bytes, DIMENSIONS_MAX, 8, Reader::u64)?)
                    .ok_or_else(|| Error::corrupt("a shape of more than 2^63 elements"))?,
                parent: TensorId(bytes.u128()?),
            })
        })?,
        container: read_option(bytes, read_number)?,
        digests: read_digests(bytes)?,
        error: read_option(bytes, |bytes| {
            Ok(Box::new(Measured {
                maximum: bytes.f32()?,
                squares: f64::from_bits(bytes.u64()?),
                elements: bytes.u64()?,
            }))
        })?,
        why: read_string(bytes)?.into(),
        records: None,
        view: None,
    })
}

fn write_digests(out: &mut Writer, digests: &Digests) {
    match digests {
        Digests::NotTaken => out.u8(0),
        Digests::Recorded(taken) => match &taken.sha256 {
            Some(sha256) => out.u8(1).bytes(sha256).bytes(&taken.blake3),
            None => out.u8(2).bytes(&taken.blake3),
        },
        Digests::Outdated => out.u8(3),
    };
}

fn read_digests(bytes: &mut Reader<'_>) -> Result<Digests> {
    Ok(match bytes.u8()? {
        0 => Digests::NotTaken,
        1 => Digests::Recorded(Box::new(RecordedDigests {
            sha256: Some(bytes.array()?),
            blake3: bytes.array()?,
        })),
        2 => Digests::Recorded(Box::new(RecordedDigests { sha256: None, blake3: bytes.array()? })),
        3 => Digests::Outdated,
        byte => return Err(Error::unsupported(format!("digests of kind {byte}"))),
    })
}

fn read_name<'a>(bytes: &mut Reader<'a>) -> Result<&'a [u8]> {
    let name = read_text(bytes, NAME_BYTES_MAX)?;
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Error::corrupt(format!("{:?} as a name", String::from_utf8_lossy(name))));
    }
    Ok(name)
}

fn read_objects(bytes: &mut Reader<'_>) -> Result<ObjectIds> {
    let count = read_count(bytes, OBJECTS_MAX, size_of::<ObjectId>())?;
    let mut objects = ObjectIds::with_capacity(count);
    for _ in 0..count {
        objects.push(ObjectId(bytes.u128()?));
    }
    Ok(objects)
}

fn view_of(node: &NodeEntry) -> Option<&Arc<View>> {
    match &node.node_type {
        NodeType::File(file) => file.view.as_ref(),
        _ => None,
    }
}

fn write_view(out: &mut Writer, view: &View) {
    out.u64(view.begin).u32(view.strides.len() as u32);
    for stride in &view.strides {
        out.u64(*stride);
    }
}

/// Reads the view of a node, and sets it. Fails unless the node is a tensor of a container whose elements can lie so.
fn read_view(bytes: &mut Reader<'_>, node: &mut NodeEntry) -> Result<()> {
    let begin = bytes.u64()?;
    let view = View { begin, strides: read_list(bytes, DIMENSIONS_MAX, 8, Reader::u64)?.into() };
    let invalid = || Error::corrupt("a view of something that is not a tensor of a container");
    let NodeType::File(file) = &mut node.node_type else { return Err(invalid()) };
    let tensor = file.tensor.as_ref().filter(|_| file.content == Content::Part && file.container.is_some());
    let tensor = tensor.filter(|tensor| tensor.dtype.block().0 == 1 && file.objects.len() == 1);
    if tensor.is_none_or(|tensor| view.range(tensor.dtype, &tensor.shape).is_none()) {
        return Err(invalid());
    }
    file.view = Some(Arc::new(view));
    Ok(())
}
