//! `all.npy`, `all.fvecs` and `all.fbin` of a directory in `.as/npy`, as files of a mount.
//!
//! The files with rows of a directory, sorted by name, are an *order*. While files are added behind the others, it is the
//! same order: the files of the form keep their inode numbers and grow. After any other change, a name that sorts before
//! another for example, rows lie elsewhere, and there is a new order with another number. Its files have other inode
//! numbers, because all programs that map an inode share its pages: so an open file, and a mapping, keep the rows of the
//! order that they were opened in.
//!
//! Listings omit these files, so that a copy of the directory has each row once. The kernel keeps neither their names
//! nor their sizes, and asks at each use; an open drops their pages.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::format::log::catalog::{NodeEntry, NodeType};
use crate::model::{EntryId, Error, ErrorKind, READ_BITS, Result};
use crate::store::{Collection, Node};
use crate::vfs::form::{self, Form, Item, Members, Recipe, RowFormat, RowsOf};
use crate::vfs::tree::attr::{Attr, Kind};
use crate::vfs::tree::forms::{READ_CLASSES, allowed};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::location::{FormView, no_name};
use crate::vfs::tree::row_orders::{Order, RowsPlace};
use crate::vfs::tree::vfs::Vfs;

impl Vfs {
    /// Looks up a file with all rows of a directory in `.as/npy`. `None` for other names, and where a tensor has the name.
    pub(super) fn rows_named(&self, view: &FormView, name: &[u8]) -> Option<Result<FormView>> {
        let format = RowFormat::named(name)?;
        let directory = directory_of_arrays(view)?;
        if form::find(Form::Npy, &view.collection.state(), directory.entry.id, name).is_some() {
            return None;
        }
        let found = self.present_order(&view.collection, directory.entry.id).and_then(|number| {
            let order = self.row_orders().order(number).ok_or_else(|| no_name(name))?;
            order.members.check(format).map(|()| number)
        });
        let of = |order| FormView {
            collection: view.collection.clone(),
            of: Some((Form::Rows(RowsOf { format, order }), Item::Node(directory.clone()))),
        };
        let refused = |error| {
            log::debug!("{}: no {}: {error}", view.path(), format.name());
            no_name(name)
        };
        Some(found.map(of).map_err(refused))
    }

    /// The number of the order of the present files of a directory. Fails if they are not one array.
    fn present_order(&self, collection: &Arc<Collection>, directory: EntryId) -> Result<u64> {
        let orders = self.row_orders();
        // The state stays as it is until the order is set. So orders are set in the sequence in which the files change.
        let state = collection.state();
        let place = RowsPlace { collection: state.number(), directory };
        if let Some(number) = orders.present(collection, place) {
            return Ok(number);
        }
        let members = Members::of(&state, directory).inspect_err(|_| orders.end(place))?;
        let in_use = || self.form_numbers().orders_of_rows();
        let found = orders.put(collection, place, members, in_use);
        drop(state);
        if found.has_grown {
            // The kernel may have the page in which the file ended.
            let nodes = self.forms.of(place.collection, &BTreeSet::from([directory]));
            self.queue_invalidation(Invalidation { nodes });
        }
        Ok(found.number)
    }

    /// The order of a file with all rows of a directory, up to date.
    fn order_of(&self, view: &FormView, rows: RowsOf, directory: &Node) -> Result<Order> {
        // Without present rows the order has ended.
        self.present_order(&view.collection, directory.entry.id).ok();
        let place = RowsPlace { collection: view.collection.state().number(), directory: directory.entry.id };
        // The kernel may know an inode whose number means rows of another directory by now.
        let order = self.row_orders().order(rows.order).filter(|order| order.place == place);
        order.ok_or_else(|| Error::new(ErrorKind::Gone, "the files of the directory were replaced"))
    }

    /// The attributes of such a file, from those of its directory. A file of an order that has ended keeps its size.
    pub(super) fn rows_attr(&self, view: &FormView, directory: &Attr, entry: &NodeEntry) -> Option<Attr> {
        let (rows, node) = rows_of(view)?;
        let order = self.order_of(view, rows, node).ok();
        let bytes =
            order.as_ref().and_then(|order| order.members.bytes(rows.format).ok()).unwrap_or_default();
        let (mut mode, mut mtime) = (entry.mode & READ_BITS, entry.mtime);
        let state = view.collection.state();
        for file in order.iter().flat_map(|order| order.members.files()) {
            let file = &state.node(file.entry.id).unwrap_or(file).entry;
            mode &= allowed(entry, file, READ_CLASSES);
            mtime = mtime.max(file.mtime);
        }
        let attr = Attr { kind: Kind::File, links: 1, mode, mtime, of_container: true, ..*directory };
        // The kernel asks again at each use.
        Some(Attr { is_unlogged: true, ..attr.of_bytes(bytes) })
    }

    /// The recipe of such a file. Fails with `Gone` once its order has ended.
    pub(super) fn rows_recipe(&self, view: &FormView) -> Option<Result<Recipe>> {
        let (rows, node) = rows_of(view)?;
        let gone = || Error::new(ErrorKind::Gone, "a name was added or removed before others");
        let order = self.order_of(view, rows, node);
        let order = order.and_then(|order| if order.is_present { Ok(order) } else { Err(gone()) });
        Some(order.and_then(|order| order.members.recipe(&view.collection, node, rows.format)))
    }

    /// A number that changes with the files that such a file shows. `None` for other files.
    pub fn rows_version(&self, view: &FormView) -> Option<u64> {
        Some(self.row_orders().version(rows_of(view)?.0.order))
    }

    /// Why a directory in `.as/npy` lacks files with all its rows.
    pub fn why_no_rows(&self, view: &FormView) -> Option<String> {
        let directory = directory_of_arrays(view)?;
        let members = Members::of(&view.collection.state(), directory.entry.id);
        let refused = match members {
            Ok(members) => members.why_refused()?,
            Err(error) => format!("all.npy, all.fvecs and all.fbin: {error}"),
        };
        Some(format!("no {refused}"))
    }

    /// Flushes the files that such a file shows.
    pub(super) fn flush_rows(&self, view: &FormView) -> Result<()> {
        let Some((rows, node)) = rows_of(view) else { return Ok(()) };
        let Ok(order) = self.order_of(view, rows, node) else { return Ok(()) };
        self.flush_nodes(&view.collection, order.members.files().map(|file| file.entry.id))
    }

    /// The directories with orders whose files are among the changed nodes, or that these nodes are. Notes the change.
    pub(super) fn directories_of_rows(
        &self,
        collection: &Collection,
        changed: &BTreeSet<EntryId>,
    ) -> Vec<EntryId> {
        let (number, directories) = {
            let state = collection.state();
            let container =
                |node: &EntryId| state.node(*node).and_then(|node| node.file()?.container).unwrap_or(*node);
            let above = changed.iter().map(container).flat_map(|file| state.links(file).iter());
            let above = above.map(|(directory, _)| *directory);
            (state.number(), above.chain(changed.iter().copied()).collect())
        };
        self.row_orders().note_changed(number, &directories)
    }
}

/// The directory of a view in `.as/npy`.
fn directory_of_arrays(view: &FormView) -> Option<&Arc<Node>> {
    match &view.of {
        Some((Form::Npy, Item::Node(node))) if node.entry.node_type == NodeType::Directory => Some(node),
        _ => None,
    }
}

/// The order of a file with all rows of a directory, and the directory.
fn rows_of(view: &FormView) -> Option<(RowsOf, &Arc<Node>)> {
    match &view.of {
        Some((Form::Rows(rows), Item::Node(node))) => Some((*rows, node)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use crate::format::files::npy;
    use crate::model::{Dtype, ErrorKind, Owner, Shape, StoreId};
    use crate::store::disk::Disk;
    use crate::store::disk::memory::MemoryDisk;
    use crate::store::{Access, Store, Verify};
    use crate::vfs::form::Item;
    use crate::vfs::tree::ino::Ino;
    use crate::vfs::tree::list_mode::ListMode;
    use crate::vfs::tree::location::{Controls, FileView, FormView, Located};
    use crate::vfs::tree::row_orders::Order;
    use crate::vfs::tree::vfs::Vfs;

    const OWNER: Owner = Owner { uid: 0, gid: 0 };

    /// A mount with the collection `t/c`.
    fn mounted() -> Vfs {
        let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
        Store::create(&*disk, StoreId(1)).unwrap();
        let store = Arc::new(Store::open(disk, Access::Write, "").unwrap());
        store.create_tenant("t", OWNER, 0o755).unwrap();
        store.collection_made("t", "c", OWNER).unwrap();
        let controls = Controls { mount: &[], tenant: &[], collection: &[] };
        Vfs::new(store, ListMode::Files, Verify::First, OWNER, controls)
    }

    /// Makes a directory in the collection. Returns it, and its inode number.
    fn directory(vfs: &Vfs, name: &str) -> (Ino, FileView) {
        let collection = vfs.walk(b"t/c").unwrap().0;
        match vfs.make_directory(collection, name.as_bytes(), 0o755, OWNER).unwrap() {
            (ino, Located::Node(view)) => (ino, view),
            _ => panic!("not a directory"),
        }
    }

    /// Adds an array of two rows.
    fn add(vfs: &Vfs, directory: Ino, name: &str) {
        let Located::Node(view) = vfs.create(directory, name.as_bytes(), 0o644, OWNER).unwrap().1 else {
            panic!("no file")
        };
        let open_file = vfs.open(&view).unwrap();
        let header = npy::write_header(Dtype::F32, &Shape::new(&[2, 4]).unwrap(), 64).unwrap();
        vfs.write(&open_file, 0, &[header, vec![1; 32]].concat()).unwrap();
        vfs.flush(&open_file).unwrap();
    }

    fn present(vfs: &Vfs, of: &FileView) -> (u64, Order) {
        let number = vfs.present_order(&of.collection, of.node.entry.id).unwrap();
        (number, vfs.row_orders().order(number).unwrap())
    }

    #[test]
    fn the_files_of_a_directory_are_looked_at_once_after_each_change() {
        let vfs = mounted();
        let (ino, view) = directory(&vfs, "e");
        add(&vfs, ino, "1.npy");
        let (number, order) = present(&vfs, &view);
        assert!(Arc::ptr_eq(&present(&vfs, &view).1.members, &order.members));
        add(&vfs, ino, "2.npy");
        let (same, grown) = present(&vfs, &view);
        assert_eq!((same, grown.members.count()), (number, 2));
        add(&vfs, ino, "0.npy");
        let (other, _) = present(&vfs, &view);
        assert_ne!(other, number);
    }

    #[test]
    fn threads_that_look_while_files_are_added_find_one_order() {
        let vfs = mounted();
        let (ino, view) = directory(&vfs, "e");
        add(&vfs, ino, "000.npy");
        let first = present(&vfs, &view).0;
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        vfs.present_order(&view.collection, view.node.entry.id).unwrap();
                    }
                });
            }
            (1..400).for_each(|number| add(&vfs, ino, &format!("{number:03}.npy")));
            is_over.store(true, Ordering::Relaxed);
        });
        let (last, order) = present(&vfs, &view);
        assert_eq!((last, order.members.count()), (first, 400));
    }

    #[test]
    fn an_inode_of_one_directory_never_shows_the_rows_of_another() {
        let vfs = mounted();
        let of_both = ["d", "e"].map(|name| {
            let (ino, view) = directory(&vfs, name);
            add(&vfs, ino, "1.npy");
            view
        });
        let Located::Form(shown) = vfs.walk(b"t/c/.as/npy/d/all.npy").unwrap().1 else { panic!("no form") };
        let (form, _) = shown.of.clone().unwrap();
        let with = |view: &FileView| FormView {
            collection: shown.collection.clone(),
            of: Some((form, Item::Node(view.node.clone()))),
        };
        let [own, other] = of_both.map(|view| vfs.rows_recipe(&with(&view)).unwrap());
        assert!(own.unwrap().bytes().unwrap() > 64);
        assert_eq!(other.err().map(|error| error.kind()), Some(ErrorKind::Gone));
    }
}
