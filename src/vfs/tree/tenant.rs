//! Directories of tenants: their owners and modes. Directories of a remote's collections in them that nobody has entered: they
//! are shown as the remote's list of them says, and opened at the first look into them.

use std::sync::Weak;

use crate::format::log::catalog::NodeType;
use crate::model::{CollectionName, Error, ErrorKind, Owner, Result};
use crate::store::ROOT;
use crate::vfs::open::{self, Above, SetAttr};
use crate::vfs::tree::attr::Attr;
use crate::vfs::tree::ino::{Ino, Place};
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::{KnownCollection, Vfs};

/// The user and group of nodes that no log records, and their time.
pub(super) struct Mounted {
    pub by: Owner,
    pub at: i64,
}

impl Vfs {
    /// User and group that run the mount.
    pub fn owner(&self) -> Owner {
        self.mounted.by
    }

    /// User and group of a tenant.
    pub fn tenant_owner(&self, name: &str) -> Owner {
        self.store().tenant(name).entry().owner.unwrap_or(self.mounted.by)
    }

    /// The attributes of a tenant.
    pub(super) fn tenant_attr(&self, ino: Ino, name: &str) -> Attr {
        let mode = self.store().tenant(name).entry().mode;
        let attr = Attr::directory(ino, mode, self.mounted.at, self.tenant_owner(name));
        attr.with_directories(self.store().collections(name).map_or(0, |collections| collections.len()))
    }

    /// Sets mode and owner of a tenant. Fails with `Denied` for size and times.
    pub(super) fn set_tenant(&self, name: &str, set: SetAttr, bytes: Option<u64>) -> Result<Invalidation> {
        if bytes.is_some() || set.atime.is_some() || set.mtime.is_some() {
            return Err(Error::new(ErrorKind::Denied, "a tenant has a mode and an owner that can be set"));
        }
        let before = self.tenant_owner(name);
        self.store().change_tenant(name, |entry| {
            entry.mode = set.mode.unwrap_or(entry.mode);
            if set.uid.is_some() || set.gid.is_some() {
                entry.owner =
                    Some(Owner { uid: set.uid.unwrap_or(before.uid), gid: set.gid.unwrap_or(before.gid) });
            }
        })?;
        Ok(Invalidation::default())
    }

    /// Creates a collection. It inherits the tenant's group where the tenant has the set-group-ID
    /// bit.
    pub(super) fn make_collection(&self, tenant: &str, name: &str, mode: u32, owner: Owner) -> Result<()> {
        if self.store().collection(tenant, name).is_ok() {
            return Err(Error::new(ErrorKind::Exists, "the name is taken"));
        }
        let mode_above = self.store().tenant(tenant).entry().mode;
        let above = Above { mode: mode_above, gid: self.tenant_owner(tenant).gid };
        let (mode, owner) = open::inherited(above, mode, owner, &NodeType::Directory);
        self.store().collection_made_with(tenant, name, owner, mode)?;
        Ok(())
    }

    /// Whether a collection of a remote was opened.
    pub(super) fn is_entered(&self, tenant: &str, name: &str) -> bool {
        self.looked_up.entered.read().contains(&CollectionName::new(tenant, name).owned())
    }

    /// The attributes of a collection's directory if nobody has opened the collection and the remote has an entry of it.
    pub(super) fn unopened_attr(&self, tenant: &str, name: &str) -> Option<Attr> {
        if self.is_entered(tenant, name) {
            return None;
        }
        let found = self.store().unopened(tenant, name)?;
        let ino = Ino::of(Place::Node { collection: found.number, node: ROOT })?;
        let known = || KnownCollection {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            collection: Weak::new(),
            kept: None,
            of: None,
            shown: None,
        };
        let owner = Owner { uid: found.owner.uid, gid: found.owner.gid };
        {
            let mut collections = self.looked_up.collections.write();
            let known = collections.entry(found.number).or_insert_with(known);
            if known.collection.strong_count() > 0 {
                return None;
            }
            known.shown = Some((found.owner.mode, owner));
        }
        let directory = found.directory;
        let attr = Attr::directory(ino, found.owner.mode, directory.modified, owner);
        Some(Attr { links: directory.links, atime: directory.accessed, ctime: directory.changed, ..attr })
    }

    /// Notes that the kernel gets the attributes of an inode as they are. From now on, requests for what is in a collection
    /// are those of users whom its mode lets in.
    pub(super) fn note_true_attributes(&self, ino: Ino) {
        let Place::Node { collection, node: ROOT } = ino.place() else { return };
        let is_otherwise = |known: &KnownCollection| known.is_shown_otherwise();
        if self.looked_up.collections.read().get(&collection).is_some_and(is_otherwise)
            && let Some(known) = self.looked_up.collections.write().get_mut(&collection)
        {
            known.shown = None;
        }
    }

    /// The same of a name in the directory of a tenant, if its entry was listed.
    pub fn look_up_unopened(&self, parent: Ino, name: &[u8]) -> Option<Attr> {
        let Place::Tenant(number) = parent.place() else { return None };
        self.unopened_attr(&self.tenant_numbered(number)?, std::str::from_utf8(name).ok()?)
    }

    /// The same of an inode.
    pub fn stat_unopened(&self, ino: Ino) -> Option<Attr> {
        let Place::Node { collection, node: ROOT } = ino.place() else { return None };
        let (tenant, name) = {
            let collections = self.looked_up.collections.read();
            let known = collections.get(&collection).filter(|known| known.collection.strong_count() == 0)?;
            (known.tenant.clone(), known.name.clone())
        };
        // Another number means another snapshot.
        self.unopened_attr(&tenant, &name).filter(|attr| attr.ino == ino)
    }
}
