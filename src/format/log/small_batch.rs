//! The records of a small batch in few bytes.
//!
//! Making, writing and removing a small file takes three batches of a few records each. In slots of their own,
//! these take most of the log. One record, [`Record::Small`], has them all and is their Commit too. Its content
//! is a list of items, each a tag u8 and fields. `v` is a number in groups of 7 bits, the lowest first, with the
//! upper bit set in all bytes but the last; `s` is a signed number `n` as the `v` `2n`, or `-2n - 1` below zero.
//!
//! | tag | item |
//! |---|---|
//! | 1 Node, a directory | node s, mode v, uid v, gid v, atime t, mtime t, ctime t, created_at c |
//! | 2 Node, a plain file without digests, error and `why` | as a directory, then a count v and the objects o |
//! | 3 Node removed | node s |
//! | 4 Name | parent v, name x, node s, entry s |
//! | 5 Name removed | parent v, name x |
//! | 6 Object | tensor u128, seed v, creation s, dtype u8, bytes v, block_bytes v, extent: 0, or 1 and data file v, offset v |
//! | 7 Create of an exact block without a lineage parent | object o, block v, flags u8, data_offset v, data_len v, checksum u32, created_at c |
//! | 8 Delete | object o |
//! | 255 | the end: only zeros follow |
//!
//! - A node and an entry are the difference to the last node before in the batch, 0 at first.
//! - t is the difference to the first time of the batch, itself at first; c the difference to the whole seconds
//!   of that time.
//! - o is 0 and a u128, or 1: the last Object of the batch. Its identity follows from its fields (`model/id.rs`).
//! - creation is the difference to the number of the item's record. The block of a Create has the element type
//!   of the last Object, which it belongs to, and its number of elements as the shape.
//! - A name x is its length u8 and its bytes.
//!
//! A batch that such items do not express exactly is written in slots.

use crate::format::checksum;
use crate::format::cursor::{Reader, Writer};
use crate::format::log::catalog::{
    Content, Entry, Extent, FileEntry, NodeEntry, NodeType, ObjectEntry, ObjectIds,
};
use crate::format::log::record::{ObjectDescription, Record, Stored};
use crate::format::log::slot::SLOT_BYTES;
use crate::model::{Dtype, EntryId, Error, ObjectId, Result, SeedId, Shape, TensorId, Tier};

/// Bytes of the content that the slot of the record has room for.
pub const HEAD_BYTES: usize = 65;
/// The longest content. Longer batches are written in slots.
pub const CONTENT_BYTES_MAX: usize = HEAD_BYTES + 8 * SLOT_BYTES;
/// The most records in a small batch.
pub const RECORDS_MAX: usize = 64;

const DIRECTORY: u8 = 1;
const FILE: u8 = 2;
const NODE_REMOVED: u8 = 3;
const NAME: u8 = 4;
const NAME_REMOVED: u8 = 5;
const OBJECT: u8 = 6;
const CREATE: u8 = 7;
const DELETE: u8 = 8;
const END: u8 = 255;

const IN_DATA: u8 = 1;
const SECOND: i64 = 1_000_000_000;

/// A record of a small batch.
#[derive(Clone, PartialEq, Debug)]
pub enum Item {
    /// An entry of the catalog.
    Entry(Entry),
    /// A Create or a Delete.
    Record(Record),
}

/// The values that later items refer to.
#[derive(Default)]
struct Before {
    time: Option<i64>,
    node: u64,
    object: Option<ObjectEntry>,
}

/// The content of a small batch whose first record has the number `sequence`. `None` if items cannot express
/// it.
pub fn content<'a>(sequence: u64, records: impl Iterator<Item = ItemRef<'a>> + Clone) -> Option<Vec<u8>> {
    let mut out = Writer::with_capacity(HEAD_BYTES);
    let mut before = Before::default();
    for (place, record) in records.clone().enumerate() {
        if place >= RECORDS_MAX || out.position() > CONTENT_BYTES_MAX {
            return None;
        }
        match record {
            ItemRef::Entry(entry) => before.put_entry(&mut out, entry, sequence + place as u64)?,
            ItemRef::Record(record) => before.put_record(&mut out, record)?,
        }
    }
    let content = out.u8(END).as_slice().to_vec();
    // Items leave out rare fields. Reading them back shows whether the batch has any.
    let is_same = |(item, record): (&Item, ItemRef<'a>)| match (item, record) {
        (Item::Entry(read), ItemRef::Entry(entry)) => read == entry,
        (Item::Record(read), ItemRef::Record(record)) => read == record,
        _ => false,
    };
    let read = items(sequence, &content).ok().filter(|_| content.len() <= CONTENT_BYTES_MAX)?;
    let is_exact = read.len() == records.clone().count() && read.iter().zip(records).all(is_same);
    is_exact.then_some(content)
}

/// A record of a batch, borrowed.
#[derive(Clone, Copy)]
pub enum ItemRef<'a> {
    /// An entry of the catalog.
    Entry(&'a Entry),
    /// Another record.
    Record(&'a Record),
}

/// The records of a small batch from its content, the first with the number `sequence`.
pub fn items(sequence: u64, content: &[u8]) -> Result<Vec<Item>> {
    let mut bytes = Reader::new(content);
    let (mut before, mut found) = (Before::default(), Vec::new());
    loop {
        let tag = bytes.u8()?;
        if tag == END {
            break;
        }
        if found.len() >= RECORDS_MAX {
            return Err(Error::corrupt(format!("a small batch of more than {RECORDS_MAX} records")));
        }
        found.push(before.item(tag, &mut bytes, sequence.saturating_add(found.len() as u64))?);
    }
    let rest = bytes.bytes(bytes.remaining())?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Error::corrupt("bytes follow the end of a small batch"));
    }
    Ok(found)
}

impl Item {
    /// The record and its payload, as the log has them in slots.
    pub fn into_record(self) -> (Record, Vec<u8>) {
        match self {
            Item::Record(record) => (record, Vec::new()),
            Item::Entry(entry) => {
                let payload = entry.to_bytes();
                let (len, checksum) = (payload.len() as u32, checksum::of(&payload));
                (Record::Catalog { len, checksum, kind: entry.kind(), version: entry.version() }, payload)
            }
        }
    }
}

impl Before {
    fn put_entry(&mut self, out: &mut Writer, entry: &Entry, sequence: u64) -> Option<()> {
        match entry {
            Entry::Node(node) => self.put_node(out, node)?,
            Entry::NodeRemoved(node) => {
                out.u8(NODE_REMOVED);
                self.put_number(out, node.0, true);
            }
            Entry::Name { parent, entry, name, node } => {
                put(out.u8(NAME), parent.0);
                put_name(out, name)?;
                self.put_number(out, node.0, true);
                self.put_number(out, entry.0, false);
            }
            Entry::NameRemoved { parent, name } => {
                put(out.u8(NAME_REMOVED), parent.0);
                put_name(out, name)?;
            }
            Entry::Object(object) => {
                out.u8(OBJECT).u128(object.tensor.0);
                put(out, u64::try_from(object.seed.0).ok()?);
                put_signed(out, object.creation.wrapping_sub(sequence) as i64);
                put(out.u8(object.dtype.code()), object.bytes);
                put(out, u64::from(object.block_bytes));
                out.u8(u8::from(object.extent.is_some()));
                if let Some(extent) = object.extent {
                    put(out, extent.file);
                    put(out, extent.offset);
                }
                self.object = Some(object.clone());
            }
            _ => return None,
        }
        Some(())
    }

    fn put_node(&mut self, out: &mut Writer, node: &NodeEntry) -> Option<()> {
        let file = match &node.node_type {
            NodeType::Directory => None,
            NodeType::File(file) => Some(file),
            NodeType::Symlink(_) => return None,
        };
        out.u8(if file.is_some() { FILE } else { DIRECTORY });
        self.put_number(out, node.id.0, true);
        put(out, u64::from(node.mode));
        put(out, u64::from(node.uid));
        put(out, u64::from(node.gid));
        for time in [node.atime, node.mtime, node.ctime] {
            put_signed(out, time.wrapping_sub(self.base(time)));
        }
        self.put_seconds(out, node.created_at);
        if let Some(file) = file {
            put(out, file.objects.len() as u64);
            file.objects.iter().for_each(|object| self.put_object(out, *object));
        }
        Some(())
    }

    fn put_record(&mut self, out: &mut Writer, record: &Record) -> Option<()> {
        match record {
            Record::Delete { object } => {
                out.u8(DELETE);
                self.put_object(out, *object);
            }
            Record::Create { object, block, stored, created_at, .. } => {
                out.u8(CREATE);
                self.put_object(out, *object);
                put(out, u64::from(*block));
                put(out.u8(if stored.in_data { IN_DATA } else { 0 }), stored.offset);
                put(out, u64::from(stored.len));
                out.u32(stored.checksum);
                self.put_seconds(out, *created_at);
            }
            _ => return None,
        }
        Some(())
    }

    fn put_object(&self, out: &mut Writer, object: ObjectId) {
        if self.object.as_ref().is_some_and(|last| last.id == object) {
            out.u8(1);
        } else {
            out.u8(0).u128(object.0);
        }
    }

    /// A number of a node or a name.
    fn put_number(&mut self, out: &mut Writer, number: u64, is_node: bool) {
        put_signed(out, number.wrapping_sub(self.node) as i64);
        if is_node {
            self.node = number;
        }
    }

    fn put_seconds(&self, out: &mut Writer, seconds: u64) {
        put_signed(out, (seconds as i64).wrapping_sub(self.time.unwrap_or(0) / SECOND));
    }

    /// The first time of the batch, or 0 if `time` is the first.
    fn base(&mut self, time: i64) -> i64 {
        match self.time {
            Some(base) => base,
            None => {
                self.time = Some(time);
                0
            }
        }
    }

    fn item(&mut self, tag: u8, bytes: &mut Reader<'_>, sequence: u64) -> Result<Item> {
        Ok(match tag {
            DIRECTORY | FILE => Item::Entry(Entry::Node(Box::new(self.node_entry(tag, bytes)?))),
            NODE_REMOVED => Item::Entry(Entry::NodeRemoved(self.number(bytes, true)?)),
            NAME => {
                let parent = EntryId(number(bytes)?);
                let name = name(bytes)?.into();
                let node = self.number(bytes, true)?;
                Item::Entry(Entry::Name { parent, name, node, entry: self.number(bytes, false)? })
            }
            NAME_REMOVED => {
                let parent = EntryId(number(bytes)?);
                Item::Entry(Entry::NameRemoved { parent, name: name(bytes)?.into() })
            }
            OBJECT => Item::Entry(Entry::Object(self.object_entry(bytes, sequence)?)),
            CREATE => Item::Record(self.create(bytes)?),
            DELETE => Item::Record(Record::Delete { object: self.object(bytes)? }),
            tag => {
                let text = format!("an item {tag} of a small batch, which this program does not know");
                return Err(Error::unsupported(text));
            }
        })
    }

    fn node_entry(&mut self, tag: u8, bytes: &mut Reader<'_>) -> Result<NodeEntry> {
        let id = self.number(bytes, true)?;
        let (mode, uid, gid) = (small(bytes)?, small(bytes)?, small(bytes)?);
        let (atime, mtime, ctime) = (self.time(bytes)?, self.time(bytes)?, self.time(bytes)?);
        let created_at = self.seconds(bytes)?;
        let node_type = if tag == DIRECTORY {
            NodeType::Directory
        } else {
            let count = number(bytes)?;
            if count > RECORDS_MAX as u64 {
                return Err(Error::corrupt(format!("a file in a small batch has {count} objects")));
            }
            let objects = (0..count).map(|_| self.object(bytes)).collect::<Result<ObjectIds>>()?;
            NodeType::File(Box::new(FileEntry::new(Content::Plain, objects)))
        };
        Ok(NodeEntry { id, mode, uid, gid, atime, mtime, ctime, created_at, node_type })
    }

    fn object_entry(&mut self, bytes: &mut Reader<'_>, sequence: u64) -> Result<ObjectEntry> {
        let (tensor, seed) = (TensorId(bytes.u128()?), SeedId(u128::from(number(bytes)?)));
        let creation = sequence.wrapping_add(signed(bytes)? as u64);
        let code = bytes.u8()?;
        let dtype = Dtype::from_code(code).ok_or_else(|| {
            Error::unsupported(format!("element type {code}, which this program does not know"))
        })?;
        let (length, block_bytes) = (number(bytes)?, small(bytes)?);
        let extent = match bytes.u8()? {
            0 => None,
            1 => Some(Extent { file: number(bytes)?, offset: number(bytes)? }),
            flag => return Err(Error::corrupt(format!("an extent of kind {flag}"))),
        };
        let id = ObjectId::of(tensor, seed, creation);
        let entry = ObjectEntry {
            id,
            tensor,
            seed,
            creation,
            dtype,
            bytes: length,
            block_bytes,
            extent,
            parent: None,
        };
        self.object = Some(entry.clone());
        Ok(entry)
    }

    fn create(&mut self, bytes: &mut Reader<'_>) -> Result<Record> {
        let object = self.object(bytes)?;
        let block = small(bytes)?;
        let flags = bytes.u8()?;
        let (offset, len, checksum) = (number(bytes)?, small(bytes)?, bytes.u32()?);
        let created_at = self.seconds(bytes)?;
        let of = self.object.as_ref().filter(|last| last.id == object && flags & !IN_DATA == 0);
        let of = of.ok_or_else(|| {
            Error::corrupt("a block in a small batch does not belong to the object before it")
        })?;
        let shape = Shape::new(&[of.bytes / of.dtype.bytes()]).unwrap_or_default();
        let described = ObjectDescription { dtype: of.dtype, shape, parent: None, reconstruct: 0 };
        let in_data = flags & IN_DATA != 0;
        let stored = Stored { tier: Tier::Exact, scale: 0.0, checksum, offset, len, in_data };
        Ok(Record::Create { object, block, described, stored, created_at })
    }

    fn object(&self, bytes: &mut Reader<'_>) -> Result<ObjectId> {
        match (bytes.u8()?, &self.object) {
            (0, _) => Ok(ObjectId(bytes.u128()?)),
            (1, Some(last)) => Ok(last.id),
            _ => Err(Error::corrupt("a small batch refers to an object that it does not contain")),
        }
    }

    fn number(&mut self, bytes: &mut Reader<'_>, is_node: bool) -> Result<EntryId> {
        let number = self.node.wrapping_add(signed(bytes)? as u64);
        if is_node {
            self.node = number;
        }
        Ok(EntryId(number))
    }

    fn time(&mut self, bytes: &mut Reader<'_>) -> Result<i64> {
        let difference = signed(bytes)?;
        let base = self.base(difference);
        Ok(base.wrapping_add(difference))
    }

    fn seconds(&self, bytes: &mut Reader<'_>) -> Result<u64> {
        Ok((self.time.unwrap_or(0) / SECOND).wrapping_add(signed(bytes)?) as u64)
    }
}

fn put(out: &mut Writer, mut number: u64) {
    while number >= 0x80 {
        out.u8(number as u8 | 0x80);
        number >>= 7;
    }
    out.u8(number as u8);
}

fn put_signed(out: &mut Writer, number: i64) {
    put(out, ((number << 1) ^ (number >> 63)) as u64);
}

fn put_name(out: &mut Writer, name: &[u8]) -> Option<()> {
    out.u8(u8::try_from(name.len()).ok()?).bytes(name);
    Some(())
}

fn number(bytes: &mut Reader<'_>) -> Result<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = bytes.u8()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Error::corrupt("a number of more than 64 bits in a small batch"))
}

fn signed(bytes: &mut Reader<'_>) -> Result<i64> {
    let number = number(bytes)?;
    Ok((number >> 1) as i64 ^ -((number & 1) as i64))
}

fn small(bytes: &mut Reader<'_>) -> Result<u32> {
    let number = number(bytes)?;
    u32::try_from(number)
        .map_err(|_| Error::corrupt(format!("{number} in a small batch; the maximum is 2^32 - 1")))
}

fn name<'a>(bytes: &mut Reader<'a>) -> Result<&'a [u8]> {
    let len = bytes.u8()?;
    bytes.bytes(usize::from(len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::log::catalog::Digests;
    use crate::model::Owner;

    const NOW: i64 = 1_795_000_000_123_456_789;

    fn node(id: u64, node_type: NodeType) -> Entry {
        let owner = Owner { uid: 1000, gid: 1000 };
        Entry::Node(Box::new(NodeEntry::new(EntryId(id), 0o644, owner, NOW, node_type)))
    }

    fn file(objects: &[ObjectId]) -> NodeType {
        NodeType::File(Box::new(FileEntry::new(Content::Plain, objects)))
    }

    fn object(sequence: u64) -> ObjectEntry {
        let tensor = TensorId(0x1234_5678_9abc_def0_1234_5678_9abc_def0);
        ObjectEntry {
            id: ObjectId::of(tensor, SeedId(0), sequence),
            tensor,
            seed: SeedId(0),
            creation: sequence,
            dtype: Dtype::U8,
            bytes: 100,
            block_bytes: 16384,
            extent: None,
            parent: None,
        }
    }

    fn create(object: &ObjectEntry, scale: f32) -> Record {
        let stored = Stored { len: 100, checksum: 77, scale, ..Stored::in_slot(Tier::Exact, 1 << 30) };
        let shape = Shape::new(&[object.bytes]).unwrap();
        let described = ObjectDescription { dtype: object.dtype, shape, parent: None, reconstruct: 0 };
        Record::Create { object: object.id, block: 0, described, stored, created_at: 1_795_000_001 }
    }

    fn packed(sequence: u64, items: &[Item]) -> Option<Vec<u8>> {
        content(
            sequence,
            items.iter().map(|item| match item {
                Item::Entry(entry) => ItemRef::Entry(entry),
                Item::Record(record) => ItemRef::Record(record),
            }),
        )
    }

    /// The batches of a small file: made, written, removed.
    fn batches() -> [Vec<Item>; 3] {
        let (name, parent) = (b"file-12345".as_slice().into(), EntryId(40_000));
        let (id, of) = (100_000, object(900_000));
        let directory = node(parent.0, NodeType::Directory);
        let removed = Entry::NameRemoved { parent, name: b"file-12345".as_slice().into() };
        let named = Entry::Name { parent, entry: EntryId(id + 1), name, node: EntryId(id) };
        [
            vec![Item::Entry(node(id, file(&[]))), Item::Entry(named), Item::Entry(directory.clone())],
            vec![
                Item::Entry(Entry::Object(of.clone())),
                Item::Record(create(&of, 0.0)),
                Item::Entry(node(id, file(&[of.id]))),
            ],
            vec![
                Item::Entry(removed),
                Item::Entry(Entry::NodeRemoved(EntryId(id))),
                Item::Record(Record::Delete { object: of.id }),
                Item::Entry(directory),
            ],
        ]
    }

    #[test]
    fn the_batches_of_a_small_file_fit_the_slot_or_a_little_more() {
        for (batch, most) in batches().iter().zip([HEAD_BYTES, HEAD_BYTES + SLOT_BYTES, HEAD_BYTES]) {
            let content = packed(900_000, batch).unwrap();
            assert!(content.len() <= most, "{} bytes", content.len());
            assert_eq!(items(900_000, &content).unwrap(), *batch);
            // The slot fills up with zeros.
            let filled = [content, vec![0; 30]].concat();
            assert_eq!(items(900_000, &filled).unwrap(), *batch);
        }
    }

    #[test]
    fn batches_with_fields_that_items_lack_stay_in_slots() {
        let (mut digested, mut why) = (
            FileEntry::new(Content::Plain, ObjectIds::new()),
            FileEntry::new(Content::Plain, ObjectIds::new()),
        );
        digested.digests = Digests::Outdated;
        why.why = "a reason".into();
        let of = object(7);
        let other = Item::Entry(Entry::Object(ObjectEntry { id: ObjectId(5), ..of.clone() }));
        let of = Item::Entry(Entry::Object(of));
        let setting = Entry::Setting { node: EntryId(1), key: "pin".into(), value: None };
        for batch in [
            vec![Item::Entry(node(1, NodeType::Symlink(b"x".to_vec())))],
            vec![Item::Entry(node(1, NodeType::File(Box::new(digested))))],
            vec![Item::Entry(node(1, NodeType::File(Box::new(why))))],
            vec![Item::Entry(node(
                1,
                NodeType::File(Box::new(FileEntry::new(Content::Npy, ObjectIds::new()))),
            ))],
            vec![Item::Entry(setting)],
            vec![other],
            vec![of, Item::Record(create(&object(7), 0.5))],
            vec![Item::Record(create(&object(7), 0.0))],
            vec![Item::Entry(Entry::NodeRemoved(EntryId(1))); RECORDS_MAX + 1],
        ] {
            assert_eq!(packed(7, &batch), None, "{batch:?}");
        }
    }

    #[test]
    fn every_number_is_read_as_it_was_written() {
        let mut out = Writer::new();
        let signs = [0, 1, -1, 63, -64, 64, i64::MAX, i64::MIN];
        let numbers = [0, 127, 128, 1 << 35, u64::MAX];
        signs.iter().for_each(|number| put_signed(&mut out, *number));
        numbers.iter().for_each(|number| put(&mut out, *number));
        let mut bytes = Reader::new(out.as_slice());
        signs.iter().for_each(|wanted| assert_eq!(signed(&mut bytes).unwrap(), *wanted));
        numbers.iter().for_each(|wanted| assert_eq!(number(&mut bytes).unwrap(), *wanted));
        assert!(
            number(&mut Reader::new(&[0xff; 10])).is_err() && number(&mut Reader::new(&[0x80; 3])).is_err()
        );
    }

    #[test]
    fn damaged_content_is_an_error_and_never_a_panic() {
        for batch in batches() {
            let content = packed(900_000, &batch).unwrap();
            for len in 0..content.len() {
                assert!(items(900_000, &content[..len]).is_err());
            }
            for at in 0..content.len() {
                for bit in 0..8 {
                    let mut flipped = content.clone();
                    flipped[at] ^= 1 << bit;
                    drop(items(u64::MAX, &flipped));
                }
            }
            assert!(items(1, &[content, vec![1]].concat()).is_err());
        }
    }
}
