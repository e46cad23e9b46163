//! The mounted file system without the kernel.

pub mod form;
pub mod open;
mod tree;

pub use tree::attr::{Attr, Kind};
pub use tree::content::{CacheMode, Content, ContentVersion};
pub use tree::ino::{ChildName, Ino, Owner, Place};
pub use tree::invalidation::Invalidation;
pub use tree::list::Listed;
pub use tree::list_mode::ListMode;
pub use tree::location::{
    CONTROL_NAME, Control, ControlView, Controls, FORMS_NAME, FileView, FormView, Located, Scope, Shape,
};
pub use tree::vfs::Vfs;
