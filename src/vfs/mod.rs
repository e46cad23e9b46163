//! Resolves paths in the mount to nodes, and gives their attributes and listings. Independent of the
//! kernel.

mod attr;
mod backing;
mod caches;
mod change;
mod content;
mod controls;
mod flush;
mod forget;
mod forms;
mod ino;
mod invalidation;
mod list;
mod list_mode;
mod located;
mod opened_forms;
mod relocation;
mod tenant;
mod tree;
mod unlinked;

pub use attr::{Attr, Kind};
pub use content::{CacheMode, Content, ContentVersion};
pub use ino::{Ino, Owner, Place};
pub use invalidation::Invalidation;
pub use list::Listed;
pub use list_mode::ListMode;
pub use located::{
    CONTROL_NAME, Control, ControlView, Controls, FORMS_NAME, FileView, FormView, Located, Scope, Shape,
};
pub use tree::Vfs;
