//! The mounted file system without the kernel.
//!
//! `tree/` leads from paths and inode numbers to nodes: lookup, listing, stat, `.ctl` and `.as`, and the inodes that
//! the kernel must invalidate after a change. `open/` has open files, their writes and flushes, and changes of names
//! and attributes, one batch a change. `form/` has the forms below `.as`: which files a form has, and what each
//! consists of.

pub mod form;
pub mod open;
mod tree;

pub use tree::allocate::Allocate;
pub use tree::attr::{Attr, Kind};
pub use tree::content::{CacheMode, Content, ContentVersion};
pub use tree::holes::Whence;
pub use tree::ino::{ChildName, Ino, Owner, Place};
pub use tree::invalidation::Invalidation;
pub use tree::list::Listed;
pub use tree::list_mode::ListMode;
pub use tree::location::{
    CONTROL_NAME, Control, ControlView, Controls, FORMS_NAME, FileView, FormView, Located, Scope, Shape,
};
pub use tree::tag_places::{TAGS_NAME, TagsView, Viewer};
pub use tree::vfs::Vfs;
