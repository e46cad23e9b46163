//! The layout of an open file: the objects in which its bytes lie.

use std::ops::Range;
use std::sync::Arc;

use crate::model::{EntryId, Error, Result};
use crate::store::{Assembly, Collection, Parts};
use crate::store::{OpenObject, Verify};
use crate::stream::{Piece, Plan, Stream};

/// The objects that a file consists of.
pub(super) struct Layout {
    /// In file order. Drafts come last.
    pub objects: Vec<OpenObject>,
    /// How many of them are drafts, which are not in the log yet.
    pub drafts: usize,
    /// How many of them precede the end of the last one that shares blocks with a source and is a draft.
    pub shared: usize,
    /// The same objects as one stream.
    pub stream: Arc<Stream>,
    /// The start of each object; empty for a file that is assembled otherwise.
    plan: Plan,
    /// How the file is assembled from the objects, if it is not their concatenation. It takes no writes then.
    pub assembly: Option<Assembly>,
    /// Whether the size or the parts differ from those in the log.
    pub is_other: bool,
    /// Time of the last write that is not in the log yet, in nanoseconds since 1970.
    pub mtime: Option<i64>,
    /// Why the file cannot be read or written until it is reopened, if so.
    failed: Option<String>,
}

impl Layout {
    /// The layout of a file as the log records it.
    pub fn open(collection: &Arc<Collection>, node: EntryId, verify: Verify) -> Result<Layout> {
        let (objects, assembly) = collection.parts_of(node)?;
        let objects = objects.iter().map(|object| OpenObject::open(collection, object, verify));
        Layout::of(objects.collect::<Result<_>>()?, assembly)
    }

    /// The layout of an empty file.
    pub fn empty() -> Result<Layout> {
        Layout::of(Vec::new(), None)
    }

    /// The offset of the next hole from `offset` on, or of the next byte that is not in one. `None` if there is none;
    /// the end of the file is a hole.
    pub fn next(&self, offset: u64, is_hole: bool) -> Option<u64> {
        let (bytes, mut at) = (self.bytes(), offset);
        if self.assembly.is_some() {
            return (offset < bytes).then_some(if is_hole { bytes } else { offset });
        }
        for piece in self.pieces(offset..bytes) {
            let Some(open) = self.objects.get(piece.segment) else { break };
            let (object, cut) = (open.object(), open.object().layout());
            let begin = at - piece.range.start;
            while at - begin < piece.range.end {
                let index = cut.index(at - begin);
                let zeros = object.zeros_from(index, cut);
                if is_hole == (zeros > index) {
                    return Some(at);
                }
                let end = if is_hole { index.saturating_add(1) } else { zeros };
                at = begin + cut.start(end).min(piece.range.end);
            }
        }
        (is_hole && offset < bytes).then_some(bytes)
    }

    /// Switches to the parts that a batch gave the file. On an error the file can no longer be read
    /// or written: the old objects lack the extents that the batch took from them.
    pub fn replace(
        &mut self,
        collection: &Arc<Collection>,
        parts: Result<Parts>,
        verify: Verify,
    ) -> Result<()> {
        let replaced = parts.and_then(|(objects, assembly)| {
            let objects = objects.iter().map(|object| OpenObject::reopen(collection, object, verify));
            Layout::of(objects.collect(), assembly)
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

    /// Fails with `Corrupt` where the file could not switch to the parts that the log gives it.
    pub fn check(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(Error::corrupt(format!("{reason}; close the file and open it again"))),
        }
    }

    fn of(objects: Vec<OpenObject>, assembly: Option<Assembly>) -> Result<Layout> {
        let mut layout = Layout {
            objects,
            drafts: 0,
            shared: 0,
            stream: Arc::new(Stream::new(Vec::new())?),
            plan: Plan::default(),
            assembly,
            is_other: false,
            mtime: None,
            failed: None,
        };
        layout.refresh()?;
        Ok(layout)
    }

    /// Rebuilds the stream and the plan after the sizes of objects changed.
    pub fn refresh(&mut self) -> Result<()> {
        self.stream = Arc::new(Stream::of_file(self.objects.clone(), self.assembly.as_ref())?);
        self.plan = match self.assembly {
            Some(_) => Plan::default(),
            None => Plan::new(self.objects.iter().map(OpenObject::bytes))?,
        };
        Ok(())
    }

    /// How many of the objects hold the first `bytes`, and where the last of these ends.
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

    /// Size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.stream.bytes()
    }

    /// The pieces of objects that make up `range`. For an embedding batch they cover whole records, in the order of its
    /// parts; for a view they are the objects that it lies in.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Piece> {
        let of_parts: Vec<Range<u64>> = match &self.assembly {
            Some(Assembly::Batch(runs)) => {
                runs.part_ranges(range.clone()).into_iter().map(|(_, range)| range).collect()
            }
            Some(Assembly::View(_)) => self.objects.iter().map(|object| 0..object.bytes()).collect(),
            None => Vec::new(),
        };
        let of_parts = of_parts.into_iter().enumerate();
        let of_parts = of_parts.map(|(segment, range)| Piece { segment, range });
        of_parts.filter(|piece| !piece.range.is_empty()).chain(self.plan.pieces(range))
    }
}
