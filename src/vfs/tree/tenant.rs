//! Directories of tenants: their owners and modes.

use crate::format::log::catalog::NodeType;
use crate::model::{Error, ErrorKind, Owner, Result};
use crate::vfs::open::{self, Above, SetAttr};
use crate::vfs::tree::attr::Attr;
use crate::vfs::tree::ino::Ino;
use crate::vfs::tree::invalidation::Invalidation;
use crate::vfs::tree::vfs::Vfs;

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
}
