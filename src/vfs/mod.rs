//! Resolves paths in the mount to nodes, and gives their attributes and listings. Independent of the
//! kernel.

mod attr;
mod backing;
mod caches;
mod change;
mod controls;
mod flush;
mod forget;
mod forms;
mod ino;
mod invalidation;
mod list;
mod list_mode;
mod tenant;
mod tree;
mod unlinked;

pub use attr::{Attr, Kind};
pub use controls::{Control, ControlView, Controls, Scope, Shape};
pub use forms::FormView;
pub use ino::{Ino, Owner, Place};
pub use invalidation::Invalidation;
pub use list::Listed;
pub use list_mode::ListMode;
pub use tree::{FileView, Located, Vfs};

/// The control directory of the mount, of each tenant and of each collection. Listings hide it, as they
/// hide [`TENSORS_NAME`](crate::store::TENSORS_NAME) of each directory of a collection.
pub const CONTROL_NAME: &str = ".ctl";

/// The directory of forms in each collection. Listings hide it.
pub const FORMS_NAME: &str = ".as";
