//! A store that is opened in this process, with one tensor.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use tierfs::model::{EntryId, Tier};
use tierfs::store::Object;
use tierfs::store::ROOT;
use tierfs::store::Writes;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, Collection, Store};
use tierfs::store::{OpenObject, Verify};

use crate::Result;
use crate::place::Place;
use crate::through::Kept;

/// One tensor of it.
pub struct Opened {
    /// The collection.
    pub collection: Arc<Collection>,
    /// The tensor's object.
    pub object: Arc<Object>,
    /// The object, open.
    pub open: OpenObject,
    /// The tensor's node.
    pub node: EntryId,
    _store: Store,
    _kept: Rc<Kept>,
}

impl Opened {
    /// Imports a file and opens one of the names that it brings.
    pub fn import(place: &Place, source: &Path, tier: Tier, name: &str, options: &[&str]) -> Result<Opened> {
        Opened::of(&Rc::new(Kept::import(place, source, tier, options)?), name)
    }

    /// Opens a store.
    pub fn of(kept: &Rc<Kept>, name: &str) -> Result<Opened> {
        let store = Store::open(Arc::new(FileDisk::new(&kept.path)), Access::Write, "tierfs-bench")?;
        let collection = store.collection("b", "c")?;
        let node = collection.state().find(ROOT, name.as_bytes()).ok_or("no such name")?;
        // The tensor is the last name of a container.
        let object = collection.objects_of(node)?.pop().ok_or("a file without objects")?;
        let open = OpenObject::open(&collection, &object, Verify::First)?;
        Ok(Opened { collection, object, open, node, _store: store, _kept: kept.clone() })
    }

    /// Writes one block and records it, without a sync.
    pub fn put(&self, index: u32, block: &[u8]) -> Result<()> {
        self.open.write(self.object.layout().start(index), block)?;
        let mut written = self.open.written(Writes::default())?;
        let touched = written.touched();
        self.collection.record(touched, |batch, _| {
            written.add(batch);
            Ok(())
        })?;
        written.recorded();
        Ok(())
    }

    /// The bytes of one block.
    pub fn block(&self, index: u32) -> Result<Vec<u8>> {
        let cut = self.object.layout();
        let mut out = vec![0; cut.len(index)];
        self.open.read(cut.start(index), &mut out)?;
        Ok(out)
    }
}
