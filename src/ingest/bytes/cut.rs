//! Cuts the bytes of a written file at the borders of its tensors, where they lie. A block whose bytes lie
//! together in the data file of its tensor stays there; any other block is copied to a slot.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::format::checksum;
use crate::format::log::catalog::{Digests, Extent};
use crate::format::log::record::Stored;
use crate::ingest::bytes::store_parts::{StoredBlocks, StoredObject, StoredParts, TakenPart};
use crate::ingest::recognize::block_size::Blocking;
use crate::ingest::recognize::parts::{Part, Recognized};
use crate::model::{Dtype, Encoder, Error, Result, Tier};
use crate::store::disk::File;
use crate::store::{Collection, Object, Place, Stretch, Touched};

/// Bytes that are read or copied at a time.
const CHUNK_BYTES: u64 = 4 << 20;

/// The bytes of a written file.
pub struct Written<'a> {
    pub file: &'a Arc<dyn File>,
    /// Where it lies, in order and without gaps.
    pub stretches: Vec<Stretch>,
    /// The objects that have these bytes, one after the other, or none; their known checksums are reused. Nobody writes to
    /// them meanwhile.
    pub objects: Vec<Arc<Object>>,
}

/// How a file is cut.
pub(in crate::ingest) struct Cutting<'a> {
    written: &'a Written<'a>,
    bytes: u64,
    objects: Vec<CutObject>,
    /// Where the objects of the written file begin in it.
    begins: Vec<u64>,
}

/// An object of a cut file, before its blocks are described.
struct CutObject {
    dtype: Dtype,
    block_bytes: u32,
    bytes: Range<u64>,
    extent: Option<Extent>,
    steps: Vec<Step>,
}

/// Consecutive blocks that are described alike.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Step {
    bytes: Range<u64>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// In the data file.
    Run,
    /// A hole of the data file.
    Hole,
    /// Zeros that lie nowhere.
    Zeros,
    Copy,
}

impl<'a> Cutting<'a> {
    /// Plans how to cut a file. Nothing is read or written.
    pub fn new(written: &'a Written<'a>, recognized: &Recognized, blocking: Blocking) -> Cutting<'a> {
        let of_part = |part: &Part| {
            let dtype = part.tensor.as_ref().map_or(Dtype::U8, |tensor| tensor.dtype);
            let bytes = part.begin..part.end;
            let block_bytes = blocking.block_bytes(dtype, bytes.end - bytes.start);
            let stretches = stretches_in(&written.stretches, &bytes);
            let extent = extent(stretches, &bytes);
            let steps = steps(stretches, &bytes, block_bytes, extent);
            CutObject { dtype, block_bytes, bytes, extent, steps }
        };
        let begins = written.objects.iter().scan(0, |end, object| {
            let begin = *end;
            *end += object.bytes();
            Some(begin)
        });
        Cutting {
            written,
            bytes: recognized.bytes,
            objects: recognized.parts.iter().map(of_part).collect(),
            begins: begins.collect(),
        }
    }

    /// How many bytes are copied.
    pub fn copied(&self) -> u64 {
        let steps = self.objects.iter().flat_map(|object| &object.steps);
        steps.filter(|step| step.kind == Kind::Copy).map(Step::len).sum()
    }

    /// Copies the blocks that must move, then reads the others for their checksums. A disk without room
    /// thus costs little time.
    pub fn store(self, collection: &Collection) -> Result<StoredParts> {
        let mut touched = Touched::default();
        let mut copied = Vec::new();
        for object in &self.objects {
            for step in object.steps.iter().filter(|step| step.kind == Kind::Copy) {
                copied.push(self.copy(collection, object, step, &mut touched)?);
            }
        }
        let mut copied = copied.into_iter();
        let mut objects = Vec::with_capacity(self.objects.len());
        for object in &self.objects {
            if let Some(extent) = object.extent {
                touched.file(&collection.data_file(extent.file)?);
            }
            let mut parts = Vec::with_capacity(object.steps.len());
            for step in &object.steps {
                let blocks = step.blocks(object.block_bytes);
                parts.push(match step.kind {
                    Kind::Run => TakenPart::Run(self.checksums(step, object.block_bytes)?),
                    Kind::Hole => TakenPart::Hole(blocks),
                    Kind::Zeros => TakenPart::Zeros(blocks),
                    Kind::Copy => TakenPart::Slots(copied.next().unwrap_or_default()),
                });
            }
            objects.push(StoredObject {
                dtype: object.dtype,
                bytes: object.bytes.end - object.bytes.start,
                block_bytes: object.block_bytes,
                extent: object.extent,
                blocks: StoredBlocks::Parts(parts),
                error: None,
            });
        }
        let digests = Digests::NotTaken;
        Ok(StoredParts {
            bytes: self.bytes,
            objects,
            digests,
            touched,
            outside: Vec::new(),
            is_shared: false,
        })
    }

    fn copy(
        &self,
        collection: &Collection,
        object: &CutObject,
        step: &Step,
        touched: &mut Touched,
    ) -> Result<Vec<Stored>> {
        let mut chunk = vec![0; step.len() as usize];
        self.read(step.bytes.start, &mut chunk)?;
        let (dtype, block_bytes) = (object.dtype, object.block_bytes as usize);
        let (stored, _) =
            collection.store_blocks(Tier::Exact, Encoder::Best, dtype, &chunk, block_bytes, touched)?;
        Ok(stored)
    }

    /// The checksums of the blocks of a step. Blocks that agree with blocks of an object take theirs from
    /// it; the others are read.
    fn checksums(&self, step: &Step, block_bytes: u32) -> Result<Vec<u32>> {
        let mut checksums = Vec::with_capacity(step.blocks(block_bytes) as usize);
        let end_of = |at: u64| (at + u64::from(block_bytes)).min(step.bytes.end);
        let known = |at: u64| {
            let place = self.begins.partition_point(|begin| *begin <= at).checked_sub(1)?;
            let (object, begin) = (self.written.objects.get(place)?, self.begins.get(place)?);
            object.known_checksum(at - begin, (end_of(at) - at) as usize)
        };
        let mut chunk = Vec::new();
        let mut at = step.bytes.start;
        while at < step.bytes.end {
            if let Some(checksum) = known(at) {
                checksums.push(checksum);
                at = end_of(at);
                continue;
            }
            let until =
                (at + CHUNK_BYTES / u64::from(block_bytes) * u64::from(block_bytes)).min(step.bytes.end);
            let next = (at..until).step_by(block_bytes as usize).find(|at| known(*at).is_some());
            chunk.resize((next.unwrap_or(until) - at) as usize, 0);
            self.read(at, &mut chunk)?;
            checksums.extend(chunk.chunks(block_bytes as usize).map(checksum::of));
            at += chunk.len() as u64;
        }
        Ok(checksums)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.written.file.read_exact_at(into, at).map_err(|error| Error::io("reading it back", error))
    }
}

impl Step {
    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    fn blocks(&self, block_bytes: u32) -> u32 {
        u32::try_from(self.len().div_ceil(u64::from(block_bytes))).unwrap_or(u32::MAX)
    }
}

/// The stretches that have bytes of a range.
fn stretches_in<'a>(stretches: &'a [Stretch], bytes: &Range<u64>) -> &'a [Stretch] {
    let first = stretches.partition_point(|stretch| stretch.bytes.end <= bytes.start);
    let end = stretches.partition_point(|stretch| stretch.bytes.start < bytes.end);
    stretches.get(first..end).unwrap_or_default()
}

/// The place that a part has in the data file with most of its bytes.
fn extent(stretches: &[Stretch], part: &Range<u64>) -> Option<Extent> {
    let mut bytes_at: HashMap<(u64, u64), (u64, u64)> = HashMap::new();
    for stretch in stretches {
        let Some(extent) = begin_of(stretch, part) else { continue };
        let len = stretch.bytes.end.min(part.end) - stretch.bytes.start.max(part.start);
        let (data, holes) = bytes_at.entry((extent.file, extent.offset)).or_default();
        *(if matches!(stretch.place, Place::Data(_)) { data } else { holes }) += len;
    }
    let most = bytes_at.into_iter().max_by_key(|(place, bytes)| (*bytes, *place));
    most.map(|((file, offset), _)| Extent { file, offset })
}

/// Where a part begins in a data file if it lies there as a stretch of it does.
fn begin_of(stretch: &Stretch, part: &Range<u64>) -> Option<Extent> {
    let (Place::Data(extent) | Place::Hole(extent)) = stretch.place else { return None };
    let offset = extent.offset.checked_add(part.start)?.checked_sub(stretch.bytes.start)?;
    Some(Extent { offset, ..extent })
}

/// The blocks of a part, by how they are described.
fn steps(
    mut stretches: &[Stretch],
    part: &Range<u64>,
    block_bytes: u32,
    extent: Option<Extent>,
) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let kind_of = |stretch: &Stretch| {
        let is_there = extent.is_some() && begin_of(stretch, part) == extent;
        match stretch.place {
            Place::Data(_) if is_there => Kind::Run,
            Place::Hole(_) if is_there => Kind::Hole,
            Place::Hole(_) | Place::Zeros => Kind::Zeros,
            Place::Data(_) | Place::Elsewhere => Kind::Copy,
        }
    };
    let block = u64::from(block_bytes);
    let mut at = part.start;
    while at < part.end {
        let ended = stretches.partition_point(|stretch| stretch.bytes.end <= at);
        stretches = stretches.get(ended..).unwrap_or_default();
        let here = stretches.first();
        let whole = match here.map_or(at, |stretch| stretch.bytes.end.min(part.end)) {
            end if end == part.end => end - at,
            end => (end - at) / block * block,
        };
        let (len, kind) = match here {
            Some(stretch) if whole > 0 => (whole, kind_of(stretch)),
            _ => {
                let len = block.min(part.end - at);
                let kinds = stretches_in(stretches, &(at..at + len)).iter().map(kind_of);
                (len, kinds.reduce(together).unwrap_or(Kind::Copy))
            }
        };
        push(&mut steps, at..at + len, kind, CHUNK_BYTES / block * block);
        at += len;
    }
    steps
}

/// How a block is described that lies in several stretches.
fn together(one: Kind, other: Kind) -> Kind {
    match (one, other) {
        (one, other) if one == other => one,
        (Kind::Run | Kind::Hole, Kind::Run | Kind::Hole) => Kind::Run,
        (Kind::Zeros | Kind::Hole, Kind::Zeros | Kind::Hole) => Kind::Zeros,
        _ => Kind::Copy,
    }
}

/// Adds blocks. A step of copies has at most `copied_max` bytes.
fn push(steps: &mut Vec<Step>, bytes: Range<u64>, kind: Kind, copied_max: u64) {
    if kind == Kind::Copy {
        let starts = (bytes.start..bytes.end).step_by(copied_max as usize);
        steps.extend(starts.map(|at| Step { bytes: at..(at + copied_max).min(bytes.end), kind }));
        return;
    }
    match steps.last_mut() {
        Some(last) if last.kind == kind => last.bytes.end = bytes.end,
        _ => steps.push(Step { bytes, kind }),
    }
}

#[cfg(test)]
mod tests {
    use super::{Kind, extent, steps};
    use crate::format::log::catalog::Extent;
    use crate::store::{Place, Stretch};

    const BLOCK: u32 = 10;

    fn cut(places: &[(u64, Place)], part: std::ops::Range<u64>) -> (Option<Extent>, Vec<(u64, Kind)>) {
        let mut stretches = Vec::new();
        let mut at = 0;
        for (end, place) in places {
            Stretch::push(&mut stretches, at..*end, *place);
            at = *end;
        }
        let found = super::stretches_in(&stretches, &part);
        let extent = extent(found, &part);
        let steps = steps(found, &part, BLOCK, extent);
        assert_eq!(steps.first().map(|step| step.bytes.start), Some(part.start));
        assert!(steps.windows(2).all(|two| two[0].bytes.end == two[1].bytes.start));
        (extent, steps.iter().map(|step| (step.bytes.end, step.kind)).collect())
    }

    fn data(file: u64, offset: u64) -> Place {
        Place::Data(Extent { file, offset })
    }

    fn hole(file: u64, offset: u64) -> Place {
        Place::Hole(Extent { file, offset })
    }

    #[test]
    fn blocks_in_one_data_file_stay_and_those_that_touch_other_places_are_copied() {
        let places = [(33, data(1, 0)), (47, Place::Elsewhere), (100, data(1, 47))];
        let (found, steps) = cut(&places, 5..95);
        assert_eq!(found, Some(Extent { file: 1, offset: 5 }));
        assert_eq!(
            steps,
            [(25, Kind::Run), (35, Kind::Copy), (45, Kind::Copy), (55, Kind::Copy), (95, Kind::Run)]
        );
    }

    #[test]
    fn a_hole_and_the_bytes_beside_it_are_one_run_where_a_block_has_both() {
        let places = [(12, data(1, 0)), (58, hole(1, 12)), (100, data(1, 58))];
        let (_, steps) = cut(&places, 0..100);
        assert_eq!(steps, [(20, Kind::Run), (50, Kind::Hole), (100, Kind::Run)]);
    }

    #[test]
    fn a_part_takes_the_data_file_with_most_of_its_bytes() {
        let places = [(30, data(1, 0)), (100, data(2, 30)), (120, Place::Zeros)];
        let (found, steps) = cut(&places, 0..115);
        assert_eq!(found, Some(Extent { file: 2, offset: 0 }));
        assert_eq!(steps, [(30, Kind::Copy), (100, Kind::Run), (115, Kind::Zeros)]);
        // It cannot begin before a data file does.
        let (found, steps) = cut(&[(30, data(1, 0)), (100, data(2, 0))], 20..100);
        assert_eq!(found, Some(Extent { file: 1, offset: 20 }));
        assert_eq!(steps.first(), Some(&(30, Kind::Run)));
        assert!(steps[1..].iter().all(|(_, kind)| *kind == Kind::Copy));
    }

    #[test]
    fn zeros_that_lie_nowhere_stay_so() {
        let (found, steps) = cut(&[(25, Place::Elsewhere), (100, Place::Zeros)], 0..100);
        assert_eq!((found, steps), (None, vec![(20, Kind::Copy), (30, Kind::Copy), (100, Kind::Zeros)]));
    }
}
