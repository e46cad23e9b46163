//! Shared by the test binaries: temporary stores and mounts, the `tierfs` program, files to import, control files and
//! extended attributes, system calls, and comparisons. One crate, compiled once.

mod acceptor;
mod allocator;
mod attributes;
mod bucket;
mod calls;
mod compare;
mod control;
mod files;
mod fixture;
mod mapping;
mod mount;
mod process;
pub mod protobuf;
mod python;
mod random;
mod shell;
mod takeover;
mod wait;

pub use acceptor::*;
pub use allocator::*;
pub use attributes::*;
pub use bucket::*;
pub use calls::*;
pub use compare::*;
pub use control::*;
pub use files::*;
pub use fixture::*;
pub use mapping::*;
pub use mount::*;
pub use process::*;
pub use python::*;
pub use random::*;
pub use shell::*;
pub use takeover::*;
pub use wait::*;

use std::path::{Path, PathBuf};

/// A path below the root of the repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join(path)
}
