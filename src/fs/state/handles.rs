//! Handles of open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::control::Text;
use crate::format::handover::OpenRecord;
use crate::fs::kernel::OpenFlags;
use crate::fs::state::earlier::{Before, Earlier};
use crate::fs::state::files_by_inode::FilesByInode;
use crate::fs::state::form_file::FormFile;
use crate::fs::state::open_records::Records;
use crate::fs::state::read_pattern::ReadPattern;
use crate::model::Result;
use crate::vfs::ControlView;
use crate::vfs::open::{OpenFile, Writer};

/// The source of an open file.
pub(in crate::fs) enum Handle {
    /// A file of a collection, how it is read, and whether it may be written.
    File(Arc<OpenFile>, ReadPattern, Option<Writer>),
    /// A control file, its text, and the number of changes of the list of jobs before that was made.
    Control(ControlView, Text, u64),
    /// A file of a form, and how it is read.
    Form(Arc<FormFile>, ReadPattern),
    /// A growing text, and the position in it where the file begins.
    Growing(AtomicU64),
}

impl Handle {
    /// A file of a collection that is read.
    pub fn file(open_file: Arc<OpenFile>) -> Handle {
        Handle::File(open_file, ReadPattern::default(), None)
    }

    /// A file of a collection that may be written.
    pub fn written(open_file: Arc<OpenFile>) -> Handle {
        let writer = Writer::of(open_file.clone());
        Handle::File(open_file, ReadPattern::default(), Some(writer))
    }

    /// Notes that a program has closed a descriptor of it.
    pub fn closed(&self) {
        if let Handle::File(_, _, Some(writer)) = self {
            writer.closed();
        }
    }

    /// Notes that a program writes to it.
    pub fn writes(&self) {
        if let Handle::File(_, _, Some(writer)) = self {
            writer.writes();
        }
    }

    /// Whether its writes go past the kernel's page cache.
    pub fn is_written_uncached(&self) -> bool {
        matches!(self, Handle::File(_, _, Some(writer)) if writer.is_uncached())
    }

    /// [`write_uncached`](Self::write_uncached) if nobody else has the file open. Whether its writes go past the page
    /// cache now.
    pub fn write_uncached_alone(&self) -> bool {
        matches!(self, Handle::File(_, _, Some(writer)) if writer.write_uncached_alone())
    }

    /// Notes that its writes, if it may write, go past the kernel's page cache.
    pub fn write_uncached(&self) {
        if let Handle::File(_, _, Some(writer)) = self {
            writer.write_uncached();
        }
    }

    /// How it is read.
    pub fn pattern(&self) -> Option<&ReadPattern> {
        match self {
            Handle::File(_, pattern, _) | Handle::Form(_, pattern) => Some(pattern),
            _ => None,
        }
    }
}

/// The open files by handle.
///
/// A number is a place, and above it how often the place was used: a late release of an old number touches no new file.
/// Each open file has a record in memory that outlives this process, if another one keeps it. The next daemon finds the
/// records, and opens each file again when a request names it.
#[derive(Default)]
pub(in crate::fs) struct Handles {
    slots: RwLock<Slots>,
    records: Records,
    /// Open files of an earlier daemon that were not opened again yet.
    left: AtomicUsize,
    /// Whether new files may be written past the kernel's page cache.
    may_be_uncached: AtomicBool,
    /// The daemon that had the mount before.
    earlier: Earlier,
    /// Files without a handle, which the kernel opens itself.
    by_inode: FilesByInode,
}

#[derive(Default)]
struct Slots {
    open: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Default)]
struct Slot {
    /// How often it was used. Never 0 while it is in use.
    uses: u32,
    entry: Entry,
}

#[derive(Clone, Default)]
pub(in crate::fs) enum Entry {
    #[default]
    Free,
    Open(Arc<Handle>),
    /// An earlier daemon opened it.
    Left(OpenRecord),
}

impl Slots {
    fn slot(&mut self, number: u64) -> Option<&mut Slot> {
        let (place, uses) = parts(number);
        self.open.get_mut(place).filter(|slot| slot.uses == uses)
    }
}

/// The place of a number, and how often the place was used.
fn parts(number: u64) -> (usize, u32) {
    ((number & u64::from(u32::MAX)) as usize, (number >> 32) as u32)
}

impl Handles {
    /// No open files yet, with a place for their records.
    pub fn new(records: Records) -> Handles {
        Handles { records, ..Handles::default() }
    }

    /// The open files of an earlier daemon.
    pub fn taken_over(records: Records, earlier: Earlier) -> Result<Handles> {
        let handles = Handles { records, earlier, ..Handles::default() };
        {
            let mut slots = handles.slots.write();
            for (place, (last, record)) in handles.records.all()?.into_iter().enumerate() {
                let mut record = record.filter(|record| parts(record.handle).0 == place);
                if handles.earlier.before() == Before::Died
                    && let Some(record) =
                        record.as_mut().filter(|record| !OpenFlags(record.flags).reads_only())
                {
                    // Also for the daemons after this one.
                    record.is_lost = true;
                    handles.records.put(place, record);
                }
                let entry = record.map_or(Entry::Free, Entry::Left);
                match entry {
                    Entry::Left(_) => drop(handles.left.fetch_add(1, Ordering::Relaxed)),
                    _ => slots.free.push(place),
                }
                slots.open.push(Slot { uses: parts(last).1, entry });
            }
        }
        Ok(handles)
    }

    /// The daemon that had the mount before.
    pub fn earlier(&self) -> &Earlier {
        &self.earlier
    }

    /// The records of the open files.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// The open files of an earlier daemon that were not opened again yet.
    pub fn left(&self) -> Vec<OpenRecord> {
        if self.left.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let slots = self.slots.read();
        let left = slots.open.iter().filter_map(|slot| match slot.entry {
            Entry::Left(record) => Some(record),
            _ => None,
        });
        left.collect()
    }

    /// Whether there may be such files.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) > 0
    }

    /// All open files with their handles.
    pub fn all(&self) -> Vec<(u64, Arc<Handle>)> {
        let slots = self.slots.read();
        let open = slots.open.iter().enumerate().filter_map(|(place, slot)| match &slot.entry {
            Entry::Open(handle) => Some((number(place, slot.uses), handle.clone())),
            _ => None,
        });
        open.collect()
    }

    /// Lets new files be written past the kernel's page cache. A kernel that does not map such files, before Linux 6.6,
    /// would refuse shared mappings of others who open one meanwhile.
    pub fn allow_uncached(&self) {
        self.may_be_uncached.store(true, Ordering::Release);
    }

    /// Whether that is so.
    pub fn may_be_uncached(&self) -> bool {
        self.may_be_uncached.load(Ordering::Acquire)
    }

    /// The files that the kernel opens itself.
    pub fn by_inode(&self) -> &FilesByInode {
        &self.by_inode
    }

    /// Stores an open file and returns its handle, which its record gets.
    pub fn insert(&self, handle: Handle, record: OpenRecord) -> u64 {
        let is_uncached = handle.is_written_uncached();
        let mut slots = self.slots.write();
        let place = slots.free.pop().unwrap_or_else(|| {
            slots.open.push(Slot::default());
            slots.open.len() - 1
        });
        let Some(slot) = slots.open.get_mut(place) else { return 0 };
        *slot = Slot { uses: slot.uses.wrapping_add(1).max(1), entry: Entry::Open(Arc::new(handle)) };
        let handle = number(place, slot.uses);
        self.records.put(place, &OpenRecord { handle, is_uncached, ..record });
        handle
    }

    /// The open file of a handle.
    pub fn get(&self, number: u64) -> Option<Arc<Handle>> {
        match self.find(number) {
            Entry::Open(handle) => Some(handle),
            _ => None,
        }
    }

    /// The state of a handle.
    pub fn find(&self, number: u64) -> Entry {
        let (place, uses) = parts(number);
        let slots = self.slots.read();
        let found = slots.open.get(place).filter(|slot| slot.uses == uses);
        found.map_or(Entry::Free, |slot| slot.entry.clone())
    }

    /// Stores a file of an earlier daemon that was opened again, unless another thread was faster or it is closed.
    pub fn reopen(&self, number: u64, handle: Handle) {
        let mut slots = self.slots.write();
        if let Some(slot) = slots.slot(number)
            && matches!(slot.entry, Entry::Left(_))
        {
            slot.entry = Entry::Open(Arc::new(handle));
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Removes an open file, and returns it: closing it may take a while. Reads in progress finish first.
    pub fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        let mut slots = self.slots.write();
        let entry = slots.slot(number).map(|slot| std::mem::take(&mut slot.entry)).unwrap_or_default();
        if matches!(entry, Entry::Free) {
            return None;
        }
        let (place, _) = parts(number);
        self.records.clear(place, number);
        slots.free.push(place);
        match entry {
            Entry::Open(handle) => Some(handle),
            _ => {
                self.left.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }
}

fn number(place: usize, uses: u32) -> u64 {
    u64::from(uses) << 32 | place as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Handle, Handles, parts};
    use crate::control::Text;
    use crate::format::handover::{Head, OpenRecord, ReadBy};
    use crate::fs::state::earlier::{Before, Earlier};
    use crate::fs::state::open_records::Records;
    use crate::vfs::{ControlView, Scope};

    fn record() -> OpenRecord {
        let (read_by, is_uncached, is_lost) = (ReadBy::Daemon, false, false);
        OpenRecord { handle: 0, inode: 5, flags: 0, user: 0, read_by, is_uncached, is_lost }
    }

    fn text(shown: &str) -> Handle {
        Handle::Control(ControlView::top(Scope::Mount), Text::whole(shown.to_owned()), 0)
    }

    #[test]
    fn a_place_is_used_again_under_another_number_after_its_release() {
        let handles = Handles::default();
        let insert = |shown| handles.insert(text(shown), record());
        let (first, second) = (insert("1"), insert("2"));
        assert!(first != second && first != 0 && second != 0);
        assert!(handles.remove(first).is_some());
        assert!(handles.get(first).is_none());
        assert!(handles.remove(first).is_none());
        let (third, fourth) = (insert("3"), insert("4"));
        assert_eq!(parts(third).0, parts(first).0);
        assert!(third != first && fourth != first && fourth != second && fourth != third);
        // A late release of the old number.
        assert!(handles.remove(first).is_none() && handles.get(third).is_some());
        let kept = handles.get(second).unwrap();
        let (mut shown, Handle::Control(_, text, _)) = ([0; 2], &*kept) else { panic!() };
        assert_eq!((text.read(0, &mut shown).unwrap(), shown[0]), (1, b'2'));
    }

    #[test]
    fn the_next_daemon_finds_the_files_that_are_open_under_their_numbers() {
        let records = Records::new(Head { agreed: 3, connection: 4 }).unwrap();
        let kept = records.duplicate().unwrap();
        let handles = Handles::new(records);
        let numbers: Vec<u64> = (0..4).map(|_| handles.insert(text("x"), record())).collect();
        handles.remove(numbers[1]);
        let again = handles.insert(text("y"), record());
        handles.remove(numbers[2]);
        drop(handles);
        let (records, head) = Records::taken_over(kept).unwrap();
        assert_eq!((head.agreed, head.connection), (3, 4));
        let handles = Handles::taken_over(records, Earlier::default()).unwrap();
        let mut left: Vec<u64> = handles.left().iter().map(|record| record.handle).collect();
        left.sort_unstable();
        let mut expected = vec![numbers[0], again, numbers[3]];
        expected.sort_unstable();
        assert_eq!(left, expected);
        handles.reopen(again, text("z"));
        assert!(handles.get(again).is_some() && handles.get(numbers[0]).is_none());
        assert!(handles.remove(numbers[0]).is_none());
        assert_eq!(handles.left().len(), 1);
        let new = handles.insert(text("n"), record());
        assert!(numbers.iter().all(|number| *number != new));
    }

    #[test]
    fn a_file_that_was_open_for_writing_when_a_daemon_died_stays_lost_to_all_later_daemons() {
        let records = Records::new(Head { agreed: 0, connection: 1 }).unwrap();
        let kept = [(); 2].map(|()| records.duplicate().unwrap());
        let handles = Handles::new(records);
        let read = handles.insert(text("r"), record());
        let written = handles.insert(text("w"), OpenRecord { flags: libc::O_RDWR as u32, ..record() });
        drop(handles);
        let ends = [Before::Died, Before::HandedOver];
        for (kept, before) in kept.into_iter().zip(ends) {
            let (records, _) = Records::taken_over(kept).unwrap();
            let earlier = Earlier::new(before, HashMap::new(), Vec::new());
            let left = Handles::taken_over(records, earlier).unwrap().left();
            let mut lost: Vec<_> = left.iter().map(|record| (record.handle, record.is_lost)).collect();
            lost.sort_unstable();
            assert_eq!(lost, [(read, false), (written, true)], "{before:?}");
        }
    }
}
