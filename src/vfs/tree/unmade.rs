//! Tenants and collections before they exist, in a store whose `tierfs.toml` has `mkdir = "auto"`.
//!
//! A lookup finds each name that one could have, as an empty directory with the mode and owner of the one above, which no
//! listing shows. The first name that a program makes in it makes it, so that `cp` needs no mkdir(2). A program that has opened the
//! directory before goes on in the collection by the inode number that it knows; everybody else gets that of the collection.

use crate::model::{Error, ErrorKind, Owner, Result, check_label};
use crate::store::{Access, ROOT};
use crate::vfs::tree::attr::Attr;
use crate::vfs::tree::change::other_collection;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::location::Located;
use crate::vfs::tree::unmade_names::{MODE, Unmade};
use crate::vfs::tree::vfs::Vfs;

impl Vfs {
    fn makes_directories(&self) -> bool {
        let store = self.store();
        store.settings().makes_directories && store.access() == Access::Write && !store.shows_snapshots()
    }

    /// The directory that a name will be, if somebody makes it; `error` for one that is another thing.
    pub(super) fn unmade_in(&self, above: Ino, name: &[u8], error: Error) -> Result<(Ino, Located)> {
        if error.kind() != ErrorKind::NotFound || !self.makes_directories() {
            return Err(error);
        }
        let label = std::str::from_utf8(name).ok().filter(|label| check_label(label).is_ok());
        let Some(label) = label.map(str::to_owned) else { return Err(error) };
        let unmade = match self.locate(above)? {
            Located::Root => Unmade { tenant: label, collection: None },
            Located::Tenant(tenant) | Located::Unmade(Unmade { tenant, collection: None }) => {
                Unmade { tenant, collection: Some(label) }
            }
            _ => return Err(error),
        };
        let place = unmade.place();
        match Ino::of(place).filter(|_| self.unmade_names().note(place, &unmade)) {
            Some(ino) => Ok((ino, Located::Unmade(unmade))),
            None => Err(error),
        }
    }

    /// The target of the number of such a directory: the collection, once it is made. `None` for a number that was never looked
    /// up.
    pub(super) fn unmade_at(&self, place: Place) -> Result<Option<Located>> {
        self.unmade_names().get(place).map(|unmade| self.made_or_not(unmade)).transpose()
    }

    fn made_or_not(&self, unmade: Unmade) -> Result<Located> {
        let made = match &unmade.collection {
            None => self.tenant_named(&unmade.tenant).map(Located::Tenant),
            Some(name) => self
                .collection_named(&unmade.tenant, name)
                .and_then(|collection| self.node_in(collection, ROOT)),
        };
        match made {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Located::Unmade(unmade)),
            // It is known as others are from now on.
            Ok(tenant @ Located::Tenant(_)) => {
                self.unmade_names().forget(unmade.place());
                Ok(tenant)
            }
            made => made,
        }
    }

    /// The directory above.
    pub(super) fn above_unmade(&self, unmade: &Unmade) -> Located {
        match (&unmade.collection, self.tenant_named(&unmade.tenant)) {
            (None, _) => Located::Root,
            (Some(_), Ok(tenant)) => Located::Tenant(tenant),
            (Some(_), Err(_)) => Located::Unmade(Unmade { collection: None, ..unmade.clone() }),
        }
    }

    /// Its attributes, which the kernel does not keep. Those who may make it, may make names in it.
    pub(super) fn unmade_attr(&self, ino: Ino, unmade: &Unmade) -> Attr {
        let by = match self.above_unmade(unmade) {
            Located::Tenant(tenant) => self.tenant_attr(ino, &tenant),
            _ => Attr::directory(ino, MODE, self.mounted.at, self.owner()),
        };
        let owner = Owner { uid: by.uid, gid: by.gid };
        Attr { is_unlogged: true, ..Attr::directory(ino, by.mode, self.mounted.at, owner) }
    }

    /// The directory to which a name of another one is renamed. A tenant is made for a collection. For a file none is made: it
    /// does not leave its collection by a rename.
    pub(super) fn made_to_rename(&self, from: Ino, to: Ino) -> Result<Ino> {
        if !matches!(to.place(), Place::Tenant(_) | Place::Unmade(_)) {
            return Ok(to);
        }
        match (self.locate(from), self.locate(to)) {
            (Ok(Located::Tenant(_)), Ok(Located::Unmade(Unmade { collection: None, .. }))) => {
                self.made(to, None)
            }
            (Ok(Located::Node(_)), Ok(Located::Unmade(_))) => Err(other_collection()),
            _ => Ok(to),
        }
    }

    /// A directory in which a program makes a name: the number itself, or that of the directory that is made here. Without an owner
    /// it gets that of the one above.
    pub(super) fn made(&self, ino: Ino, owner: Option<Owner>) -> Result<Ino> {
        if !matches!(ino.place(), Place::Tenant(_) | Place::Unmade(_)) {
            return Ok(ino);
        }
        let Ok(Located::Unmade(unmade)) = self.locate(ino) else { return Ok(ino) };
        self.check_access()?;
        let owner = owner.unwrap_or_else(|| {
            let attr = self.unmade_attr(ino, &unmade);
            Owner { uid: attr.uid, gid: attr.gid }
        });
        let or_there = |made: Result<()>| match made {
            Err(error) if error.kind() == ErrorKind::Exists => Ok(()),
            made => made,
        };
        or_there(self.store().create_tenant(&unmade.tenant, owner, MODE))?;
        if let Some(name) = &unmade.collection {
            or_there(self.make_collection(&unmade.tenant, name, MODE, owner))?;
        }
        self.ino(&self.made_or_not(unmade)?)
    }
}
