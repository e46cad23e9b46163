//! Objects that are open, and the interface of other sources of their blocks.

use std::ops::Range;
use std::sync::Arc;

use crate::model::{ErrorKind, Result};
use crate::store::collection::Collection;
use crate::store::disk::File;
use crate::store::disk::memory::unnamed_file;
use crate::store::object::Object;
use crate::store::object::blocks::Block;

/// The data file of a draft that is in memory. No data file gets this number.
pub const MEMORY_FILE: u64 = u64::MAX;

/// When stored bytes are verified against their checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verify {
    /// At the first use, and whenever a payload is read whole.
    #[default]
    First,
    /// At every use.
    Always,
}

/// How an outside file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    /// Through the file that others have open, whether or not it still has its name.
    Shared,
    /// By its present name.
    ByName,
}

/// An object that is open for reading. Its data file is kept while this lives.
#[derive(Clone)]
pub struct OpenObject {
    pub(in crate::store) collection: Arc<Collection>,
    pub(in crate::store) object: Arc<Object>,
    /// The data file, or why it cannot be opened. Blocks in other files can be read without it.
    pub(in crate::store) extent: Option<Result<Arc<dyn File>, String>>,
    pub(in crate::store) verify: Verify,
    /// Its blocks in the data file have no checksums: nobody has read them, and the disk compares what it keeps.
    pub(in crate::store) is_unread: bool,
    reach: Reach,
}

impl OpenObject {
    /// Opens an object and its data file. A missing data file fails only reads of the blocks in it.
    pub fn open(collection: &Arc<Collection>, object: &Arc<Object>, verify: Verify) -> Result<OpenObject> {
        OpenObject::reached(collection, object, verify, Reach::Shared)
    }

    /// Opens an object in order to give up a copy of its blocks, or of blocks that depend on them: an
    /// outside file is opened by its present name, not shared with earlier users.
    pub fn open_by_name(collection: &Arc<Collection>, object: &Arc<Object>) -> Result<OpenObject> {
        OpenObject::reached(collection, object, Verify::First, Reach::ByName)
    }

    /// [`open_by_name`](Self::open_by_name), with the outside file that `before` has just opened if the
    /// object lies in the same.
    pub fn open_by_name_after(
        collection: &Arc<Collection>,
        object: &Arc<Object>,
        before: Option<&OpenObject>,
    ) -> Result<OpenObject> {
        let file = |object: &Object| object.origin.as_ref().and(object.extent()).map(|extent| extent.file);
        match before {
            Some(before)
                if before.reach == Reach::ByName
                    && Arc::ptr_eq(&before.collection, collection)
                    && file(object).is_some_and(|number| file(&before.object) == Some(number)) =>
            {
                Ok(OpenObject::over(collection, object, before.extent.clone(), Verify::First, Reach::ByName))
            }
            _ => OpenObject::open_by_name(collection, object),
        }
    }

    /// An object to ask about its blocks. No file is opened, so blocks in a data file cannot be read.
    pub fn unread(collection: &Arc<Collection>, object: &Arc<Object>) -> OpenObject {
        OpenObject::over(collection, object, None, Verify::First, Reach::Shared)
    }

    /// Opens another object in the same way as this one.
    pub fn open_same_way(&self, collection: &Arc<Collection>, object: &Arc<Object>) -> Result<OpenObject> {
        OpenObject::reached(collection, object, self.verify, self.reach)
    }

    fn reached(
        collection: &Arc<Collection>,
        object: &Arc<Object>,
        verify: Verify,
        reach: Reach,
    ) -> Result<OpenObject> {
        let extent = match (&object.origin, reach) {
            (Some(origin), Reach::ByName) => Some(collection.files.open_outside(&origin.file)),
            _ => object.extent().map(|extent| collection.data_file(extent.file)),
        };
        let extent = match extent {
            Some(Err(error)) if object.origin.is_some() || error.kind() == ErrorKind::NotFound => {
                Some(Err(error.to_string()))
            }
            opened => opened.transpose()?.map(Ok),
        };
        let is_unread = extent.is_some() && collection.state().is_unread();
        let open = OpenObject::over(collection, object, extent, verify, reach);
        Ok(OpenObject { is_unread: is_unread || open.is_unread, ..open })
    }

    /// A draft whose data file, [`MEMORY_FILE`], is new and in memory.
    pub fn in_memory(collection: &Arc<Collection>, draft: &Arc<Object>, verify: Verify) -> OpenObject {
        OpenObject::over(collection, draft, Some(Ok(unnamed_file())), verify, Reach::Shared)
    }

    /// Whether it is such a draft.
    pub fn is_in_memory(&self) -> bool {
        self.object.extent().is_some_and(|extent| extent.file == MEMORY_FILE)
    }

    fn over(
        collection: &Arc<Collection>,
        object: &Arc<Object>,
        extent: Option<Result<Arc<dyn File>, String>>,
        verify: Verify,
        reach: Reach,
    ) -> OpenObject {
        let (collection, object) = (collection.clone(), object.clone());
        let is_unread = object.origin.as_ref().is_some_and(|origin| origin.file.is_unread());
        OpenObject { collection, object, extent, verify, is_unread, reach }
    }

    /// Opens an object of a file that is open already. If the data file cannot be opened, reads of the
    /// blocks in it fail; the file stays open.
    pub fn reopen(collection: &Arc<Collection>, object: &Arc<Object>, verify: Verify) -> OpenObject {
        OpenObject::open(collection, object, verify).unwrap_or_else(|error| {
            OpenObject::over(collection, object, Some(Err(error.to_string())), verify, Reach::Shared)
        })
    }

    /// Logical bytes.
    pub fn bytes(&self) -> u64 {
        self.object.bytes()
    }

    /// The collection.
    pub fn collection(&self) -> &Arc<Collection> {
        &self.collection
    }

    /// The object itself.
    pub fn object(&self) -> &Arc<Object> {
        &self.object
    }
}

/// Provides blocks from other sources. Called by reads, from many threads, and may read itself.
pub trait Rebuild: Send + Sync {
    /// Writes the content that readers see of a block to `elements`, which has the length of the whole
    /// block. `false` if there is no source; an error if there is one and it fails.
    fn rebuild(&self, open: &OpenObject, index: u32, block: &Block, elements: &mut [u8]) -> Result<bool>;

    /// Whether there seems to be a source for an absent block, as far as can be told without reading.
    fn can_rebuild(&self, open: &OpenObject, index: u32, block: &Block) -> bool;

    /// Looks in other collections, which `rebuild` must not open, for the payloads of corrupt blocks in a range, and
    /// keeps them for `rebuild`. Called without any lock of a collection, and outside of reads. Returns whether it
    /// found one.
    fn gather(&self, open: &OpenObject, range: Range<u32>) -> bool;

    /// Called after a corrupt payload was replaced for a reader, so that a writer stores it again.
    fn made_good(&self, open: &OpenObject, index: u32, block: &Block);
}
