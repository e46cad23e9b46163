//! The rule that decides which users see the name of a collection in texts.

use crate::control::context::Mounted;
use crate::store::{Collection, ROOT};

/// Mode bits that let the owner list and enter a directory.
const OWNER_LISTS: u32 = 0o500;
/// Mode bits that let any other user do so, whatever the user's groups.
const OTHERS_LIST: u32 = 0o055;

/// The owners and modes that decide whether a user may see the name of a collection.
#[derive(Clone)]
pub(super) struct Visibility {
    tenant: String,
    /// Owner and mode of the collection; `None` if it cannot be opened.
    collection: Option<(u32, u32)>,
}

impl Visibility {
    /// That of an open collection.
    pub fn of(collection: &Collection) -> Visibility {
        let root = collection.state().node(ROOT).map(|node| (node.entry.uid, node.entry.mode));
        Visibility { tenant: collection.tenant().to_owned(), collection: root }
    }

    /// That of a collection of a tenant that cannot be opened.
    pub fn unopened(tenant: &str) -> Visibility {
        Visibility { tenant: tenant.to_owned(), collection: None }
    }

    /// Whether a user may see it: root, the mount's user, the owners of tenant and collection, and users who
    /// may list both.
    pub fn is_visible_to(&self, mounted: &Mounted, user: u32) -> bool {
        let lists = |owner: u32, mode: u32| {
            let bits = if owner == user { OWNER_LISTS } else { OTHERS_LIST };
            mode & bits == bits
        };
        let owner = mounted.vfs.tenant_owner(&self.tenant).uid;
        let mode = mounted.store().tenant(&self.tenant).entry().mode;
        let is_open = || match self.collection {
            Some((has, of)) => has == user || lists(owner, mode) && lists(has, of),
            None => false,
        };
        mounted.is_run_by(user) || owner == user || is_open()
    }
}
