//! Handles of open files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::control::Text;
use crate::fs::state::form_file::FormFile;
use crate::fs::state::read_pattern::ReadPattern;
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
#[derive(Default)]
pub(in crate::fs) struct Handles {
    slots: RwLock<Slots>,
    /// Whether new files may be written past the kernel's page cache.
    may_be_uncached: AtomicBool,
}

#[derive(Default)]
struct Slots {
    open: Vec<Option<Arc<Handle>>>,
    free: Vec<usize>,
}

impl Handles {
    /// Lets new files be written past the kernel's page cache. A kernel that does not map such files, before Linux 6.6,
    /// would refuse shared mappings of others who open one meanwhile.
    pub fn allow_uncached(&self) {
        self.may_be_uncached.store(true, Ordering::Release);
    }

    /// Whether that is so.
    pub fn may_be_uncached(&self) -> bool {
        self.may_be_uncached.load(Ordering::Acquire)
    }

    /// Stores an open file and returns its handle.
    pub fn insert(&self, handle: Handle) -> u64 {
        let mut slots = self.slots.write();
        let handle = Some(Arc::new(handle));
        if let Some(place) = slots.free.pop()
            && let Some(slot) = slots.open.get_mut(place)
        {
            *slot = handle;
            return place as u64;
        }
        slots.open.push(handle);
        slots.open.len() as u64 - 1
    }

    /// The open file of a handle.
    pub fn get(&self, number: u64) -> Option<Arc<Handle>> {
        self.slots.read().open.get(number as usize)?.clone()
    }

    /// Removes an open file, and returns it: closing it may take a while. Reads in progress finish first.
    pub fn remove(&self, number: u64) -> Option<Arc<Handle>> {
        let mut slots = self.slots.write();
        let removed = slots.open.get_mut(number as usize).and_then(Option::take);
        if removed.is_some() {
            slots.free.push(number as usize);
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::{Handle, Handles};
    use crate::control::Text;
    use crate::vfs::{ControlView, Scope};

    #[test]
    fn handle_numbers_are_reused_only_after_their_release() {
        let handles = Handles::default();
        let text =
            |shown: &str| Handle::Control(ControlView::top(Scope::Mount), Text::whole(shown.to_owned()), 0);
        let (first, second) = (handles.insert(text("1")), handles.insert(text("2")));
        assert_ne!(first, second);
        assert!(handles.remove(first).is_some());
        assert!(handles.get(first).is_none());
        assert!(handles.remove(first).is_none());
        let (third, fourth) = (handles.insert(text("3")), handles.insert(text("4")));
        assert_eq!(third, first);
        assert!(fourth != first && fourth != second);
        let kept = handles.get(second).unwrap();
        let (mut shown, Handle::Control(_, text, _)) = ([0; 2], &*kept) else { panic!() };
        assert_eq!((text.read(0, &mut shown).unwrap(), shown[0]), (1, b'2'));
    }
}
