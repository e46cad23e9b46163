//! Names to nodes: what a path in the mount leads to, what it looks like, what stands
//! in a directory. Knows nothing of the kernel.

mod attr;
mod automatic;
mod backing;
mod caches;
mod change;
mod controls;
mod ino;
mod list;
mod settled;
mod tenant;
mod tree;

pub use attr::{Attr, Kind};
pub use controls::{Control, ControlView, Controls, Scope, Shape};
pub use ino::{Ino, Owner, Place};
pub use list::Listed;
pub use settled::Forget;
pub use tree::{FileView, Located, Namespace, Shown};

/// A directory that every directory has beside its entries, and that listings leave out.
pub const CONTROL_NAME: &str = ".ctl";
