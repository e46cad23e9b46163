//! What stands in a directory.

use crate::model::{EntryId, ErrorKind, Result};
use crate::namespace::attr::Attr;
use crate::namespace::ino::Ino;
use crate::namespace::tree::{FileView, Located, Namespace};

/// Offsets 1 and 2 are those of `.` and `..`; names follow by their own numbers.
const FIRST_OFFSET: u64 = 2;
/// Names that are looked at before the collection is let go.
const NAMES_AT_A_TIME: usize = 128;

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Where a listing that goes on after it begins. The name's own number: it stays
    /// the same while others come and go.
    pub offset: u64,
    /// The name.
    pub name: Vec<u8>,
    /// What stat shows of it.
    pub attr: Attr,
}

impl Namespace {
    /// Lists a directory after `offset`, 0 for all of it, until `take` returns `false`.
    /// `.` and `..` come first; control directories are left out.
    pub fn list(&self, ino: Ino, offset: u64, take: &mut dyn FnMut(Listed) -> bool) -> Result<()> {
        let located = self.locate(ino)?;
        let parent = self.parent(&located)?;
        let own = self.attr(ino, &located);
        for (place, (name, attr)) in [(".", own), ("..", parent)].into_iter().enumerate() {
            let listed = Listed { offset: place as u64 + 1, name: name.into(), attr };
            if offset < listed.offset && !take(listed) {
                return Ok(());
            }
        }
        let after = offset.saturating_sub(FIRST_OFFSET);
        match &located {
            Located::Root => {
                let names = self.store().tenants()?;
                self.list_names(names, after, take, |name| Ok(Located::Tenant(self.tenant_named(name)?)))
            }
            Located::Tenant(tenant) => {
                let names = self.store().collections(tenant)?;
                self.list_names(names, after, take, |name| {
                    let collection = self.collection_named(tenant, name)?;
                    let node = collection.state().node(crate::store::state::ROOT).cloned();
                    let node =
                        node.ok_or_else(|| crate::model::Error::corrupt("a collection without a node"))?;
                    Ok(Located::Node(FileView { collection, node }))
                })
            }
            Located::Node(view) => self.list_node(view, after, take),
            Located::Control { collection, place: 0 } => {
                let names =
                    self.controls(collection.as_ref()).iter().map(|name| (*name).to_owned()).collect();
                let mut place = after as u32;
                self.list_names(names, after, take, |_| {
                    place += 1;
                    Ok(Located::Control { collection: collection.clone(), place })
                })
            }
            Located::Control { .. } => Err(crate::model::Error::invalid("not a directory")),
        }
    }

    /// What stat shows of the directory above; of the mount: itself.
    fn parent(&self, located: &Located) -> Result<Attr> {
        let above = match located {
            Located::Root | Located::Tenant(_) | Located::Control { collection: None, .. } => Located::Root,
            Located::Control { collection: Some(collection), .. } => {
                Located::Tenant(collection.tenant().to_owned())
            }
            Located::Node(FileView { collection, node }) => {
                let state = collection.state();
                let above =
                    state.links(node.entry.id).first().and_then(|(parent, _)| state.node(*parent)).cloned();
                match above {
                    Some(node) => Located::Node(FileView { collection: collection.clone(), node }),
                    None => Located::Tenant(collection.tenant().to_owned()),
                }
            }
        };
        Ok(self.attr(self.ino(&above)?, &above))
    }

    /// Names that no log numbers: their places are their numbers.
    fn list_names(
        &self,
        names: Vec<String>,
        after: u64,
        take: &mut dyn FnMut(Listed) -> bool,
        mut located: impl FnMut(&str) -> Result<Located>,
    ) -> Result<()> {
        for (place, name) in names.into_iter().enumerate().skip(after as usize) {
            let found = match located(&name) {
                Ok(found) => found,
                // Never finished, or damaged: the others can still be listed.
                Err(error) => {
                    if error.kind() != ErrorKind::NotFound {
                        log::warn!("{name} is left out of the listing: {error}");
                    }
                    continue;
                }
            };
            let attr = self.attr(self.ino(&found)?, &found);
            let listed = Listed { offset: place as u64 + 1 + FIRST_OFFSET, name: name.into_bytes(), attr };
            if !take(listed) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn list_node(&self, view: &FileView, after: u64, take: &mut dyn FnMut(Listed) -> bool) -> Result<()> {
        let mut after = EntryId(after);
        loop {
            let listed = self.names_after(view, after)?;
            let Some((last, _)) = listed.last() else { return Ok(()) };
            after = *last;
            for mut listed in listed.into_iter().filter_map(|(_, listed)| listed) {
                // Not under the state's lock: an open file may be waiting for it.
                self.overlay(&mut listed.attr);
                if !take(listed) {
                    return Ok(());
                }
            }
        }
    }

    /// The next names, with the numbers of all that were looked at.
    fn names_after(&self, view: &FileView, after: EntryId) -> Result<Vec<(EntryId, Option<Listed>)>> {
        let state = view.collection.state();
        let directory = state.directory(view.node.entry.id);
        let directory = directory.ok_or_else(|| crate::model::Error::invalid("not a directory"))?;
        let number = state.number();
        let listed = directory.after(after).take(NAMES_AT_A_TIME).map(|(entry, name, node)| {
            let node = state.node(node).filter(|node| self.shown().shows(node, &state));
            let listed = node.and_then(|node| {
                let ino = Ino::of(super::Place::Node { collection: number, node: node.entry.id })?;
                let attr = Attr::node(ino, node, &state);
                Some(Listed { offset: entry.0 + FIRST_OFFSET, name: name.to_vec(), attr })
            });
            (entry, listed)
        });
        Ok(listed.collect())
    }
}
