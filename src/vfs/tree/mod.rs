//! Resolves paths in the mount to nodes, and gives their attributes and listings. Independent of the
//! kernel.

pub(in crate::vfs) mod attr;
pub(in crate::vfs) mod backing;
pub(in crate::vfs) mod caches;
pub(in crate::vfs) mod change;
pub(in crate::vfs) mod content;
pub(in crate::vfs) mod controls;
pub(in crate::vfs) mod flush;
pub(in crate::vfs) mod forms;
pub(in crate::vfs) mod ino;
pub(in crate::vfs) mod invalidate;
pub(in crate::vfs) mod invalidation;
pub(in crate::vfs) mod list;
pub(in crate::vfs) mod list_mode;
pub(in crate::vfs) mod location;
pub(in crate::vfs) mod opened_forms;
pub(in crate::vfs) mod relocation;
pub(in crate::vfs) mod tenant;
pub(in crate::vfs) mod unlinked_files;
pub(in crate::vfs) mod vfs;
