//! Names to nodes: what a path in the mount leads to, what it looks like, what stands
//! in a directory. Knows nothing of the kernel.

mod attr;
mod automatic;
mod backing;
mod caches;
mod change;
mod controls;
mod flush;
mod forget;
mod forms;
mod ino;
mod list;
mod shown;
mod tenant;
mod tree;
mod unflushed;
mod whole;

pub use attr::{Attr, Kind};
pub use controls::{Control, ControlView, Controls, Scope, Shape};
pub use forget::Invalidation;
pub use forms::FormView;
pub use ino::{Ino, Owner, Place};
pub use list::Listed;
pub use shown::Shown;
pub use tree::{FileView, Located, Vfs};

/// A directory that every directory has beside its entries, and that listings leave out.
pub const CONTROL_NAME: &str = ".ctl";

/// A directory that every collection has beside its entries, and that listings leave out.
pub const FORMS_NAME: &str = ".as";
