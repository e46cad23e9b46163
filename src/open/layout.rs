//! What the bytes of an open file are made of.

use std::ops::Range;
use std::sync::Arc;

use crate::format::files::cgeb::Runs;
use crate::model::{EntryId, Error, Result};
use crate::store::Collection;
use crate::store::Parts;
use crate::store::{OpenObject, Verify};
use crate::stream::{Piece, Plan, Stream};

/// What a file's bytes are made of.
pub(super) struct Layout {
    /// In order. Those that no log knows yet come last.
    pub objects: Vec<OpenObject>,
    /// How many of them no log knows yet.
    pub drafts: usize,
    /// The same objects as one run of bytes.
    pub stream: Arc<Stream>,
    /// Where each begins; not of an embedding batch.
    plan: Plan,
    /// Where the records of an embedding batch lie, which is stitched of the objects.
    pub records: Option<Arc<Runs>>,
    /// Whether the size or the parts are not what the log says.
    pub is_other: bool,
    /// When it was written, in nanoseconds since 1970, while the log does not say it.
    pub mtime: Option<i64>,
    /// Why the file cannot be read or written until it is opened anew, if it cannot.
    failed: Option<String>,
}

impl Layout {
    /// The layout of a file as the log says it.
    pub fn open(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Layout> {
        let (objects, records) = collection.parts_of(node)?;
        let objects = objects.iter().map(|object| OpenObject::open(collection, object, verify));
        Layout::of(objects.collect::<Result<_>>()?, records)
    }

    /// Takes over the parts that a batch gave the file. Where that fails nothing of the file is
    /// read or written any more: the objects of before do not have what the batch took from them.
    pub fn replace(
        &mut self,
        collection: &Arc<Collection>,
        parts: Result<Parts>,
        verify: Verify,
    ) -> Result<()> {
        let replaced = parts.and_then(|(objects, records)| {
            let objects = objects.iter().map(|object| OpenObject::reopen(collection, object, verify));
            Layout::of(objects.collect(), records)
        });
        match replaced {
            Ok(layout) => *self = layout,
            Err(error) => {
                self.failed = Some(error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }

    /// `Corrupt` where the parts that the log gives the file could not be taken over.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::corrupt(format!("{reason}; close the file and open it again"))),
        }
    }

    fn of(objects: Vec<OpenObject>, records: Option<Arc<Runs>>) -> Result<Layout> {
        let mut layout = Layout {
            objects,
            drafts: 0,
            stream: Arc::new(Stream::new(Vec::new())?),
            plan: Plan::default(),
            records,
            is_other: false,
            mtime: None,
            failed: None,
        };
        layout.refresh()?;
        Ok(layout)
    }

    /// Looks at the objects' sizes again.
    pub fn refresh(&mut self) -> Result<()> {
        self.stream = Arc::new(Stream::of_file(self.objects.clone(), self.records.as_ref())?);
        self.plan = match self.records {
            Some(_) => Plan::default(),
            None => Plan::new(self.objects.iter().map(OpenObject::bytes))?,
        };
        Ok(())
    }

    /// How many of the objects the first `bytes` lie in, and where the last of these ends.
    pub fn kept(&self, bytes: u64) -> (usize, u64) {
        let (mut kept, mut end) = (0, 0);
        for object in &self.objects {
            if end >= bytes {
                break;
            }
            kept += 1;
            end += object.bytes();
        }
        (kept, end)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.stream.bytes()
    }

    /// The pieces of objects that the bytes in `range` are made of; of an embedding batch those
    /// of whole records, in the order of its parts.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let of_parts = self.records.as_ref().map(|runs| runs.part_ranges(range.clone())).unwrap_or_default();
        let of_parts = of_parts.into_iter().enumerate();
        let of_parts = of_parts.map(|(segment, (_, range))| Piece { segment, range });
        of_parts.filter(|piece| !piece.range.is_empty()).chain(self.plan.pieces(range))
    }
}
