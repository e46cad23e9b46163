//! The identity of a collection, and the access that it was opened for.

use crate::model::{CollectionName, StoreId};

/// Access to a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read only. Nothing on the disk changes.
    Read,
    /// Read and write.
    Write,
}

/// The identity of a collection.
pub(in crate::store) struct Identity {
    store: StoreId,
    tenant: String,
    name: String,
    access: Access,
}

impl Identity {
    /// The collection `name` of `tenant`, in the store with this uuid.
    pub fn new(
        store: StoreId,
        CollectionName { tenant, name }: CollectionName<'_>,
        access: Access,
    ) -> Identity {
        Identity { store, tenant: tenant.to_owned(), name: name.to_owned(), access }
    }

    /// The uuid of the store.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// The tenant.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    /// The name within the tenant.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The access that the collection was opened for.
    pub fn access(&self) -> Access {
        self.access
    }
}
