//! The name of a collection in a store: its tenant, and its name within the tenant.

use std::fmt::{Display, Formatter};

/// The name of a collection. Displayed as `tenant/name`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CollectionName<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// The name within the tenant.
    pub name: &'a str,
}

impl<'a> CollectionName<'a> {
    /// The collection `name` of `tenant`.
    pub const fn new(tenant: &'a str, name: &'a str) -> CollectionName<'a> {
        CollectionName { tenant, name }
    }

    /// An owned copy.
    pub fn owned(self) -> OwnedCollectionName {
        OwnedCollectionName { tenant: self.tenant.to_owned(), name: self.name.to_owned() }
    }
}

impl Display for CollectionName<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

/// Like [`CollectionName`], but owns its parts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct OwnedCollectionName {
    /// The tenant.
    pub tenant: String,
    /// The name within the tenant.
    pub name: String,
}

impl OwnedCollectionName {
    /// The collection `name` of `tenant`.
    pub fn new(tenant: impl Into<String>, name: impl Into<String>) -> OwnedCollectionName {
        OwnedCollectionName { tenant: tenant.into(), name: name.into() }
    }

    /// The same name, borrowed.
    pub fn borrowed(&self) -> CollectionName<'_> {
        CollectionName { tenant: &self.tenant, name: &self.name }
    }
}

impl Display for OwnedCollectionName {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        self.borrowed().fmt(f)
    }
}
