//! Resolves paths in the mount to nodes, and gives their attributes and listings. Independent of the kernel.
//!
//! A lookup (`vfs.rs`) finds the tenant, opens the collection at its first use, and looks the name up in the state
//! (`store/state/mod.rs` says how names lead to tensors). The answer is an inode number (`ino.rs`), which joins the
//! numbers of collection and node, and attributes (`attr.rs`). Numbers of collections and nodes are never used twice.
//!
//! Code that holds the state of a collection never asks an open file for its size: `list.rs` and `vfs.rs` overlay it
//! afterwards (`docs/LOCKS.md`). `flush.rs` finds room on a full disk, `invalidate.rs` turns changes into inodes,
//! `backing.rs` and `content.rs` say which files the kernel may read itself and which may be decoded as a whole.

pub(in crate::vfs) mod allocate;
pub(in crate::vfs) mod attr;
pub(in crate::vfs) mod backing;
pub(in crate::vfs) mod caches;
pub(in crate::vfs) mod change;
pub(in crate::vfs) mod content;
pub(in crate::vfs) mod controls;
mod copy;
pub(in crate::vfs) mod flush;
mod form_controls;
pub(in crate::vfs) mod form_numbers;
pub(in crate::vfs) mod forms;
pub(in crate::vfs) mod holes;
pub(in crate::vfs) mod ino;
pub(in crate::vfs) mod invalidate;
pub(in crate::vfs) mod invalidation;
mod join;
mod kept_adapters;
pub(in crate::vfs) mod list;
pub(in crate::vfs) mod list_mode;
pub(in crate::vfs) mod location;
mod merges;
pub(in crate::vfs) mod opened_forms;
pub(in crate::vfs) mod relocation;
mod row_orders;
mod rows;
mod share;
pub(in crate::vfs) mod tag_places;
pub(in crate::vfs) mod tags;
pub(in crate::vfs) mod tenant;
pub(in crate::vfs) mod unlinked_files;
mod unnamed_files;
pub(in crate::vfs) mod vfs;
