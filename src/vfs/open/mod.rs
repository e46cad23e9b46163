//! Changes: open files, the writes to them, and names that are created and removed.
//!
//! Invariants:
//! 1. A read sees every earlier write, by every name of the same bytes that the daemon serves.
//! 2. After close and fsync the writes are in the log, and every name agrees.
//! 3. An open file keeps the content that it opened when its name is removed.

mod attributes;
mod changes;
mod file;
mod flush;
mod hub;
mod layout;
mod names;
mod page_cache;
mod recognition;
mod source;
mod table;

pub use attributes::{SetAttr, has_setid, set_attr, set_tensor};
pub use changes::Changes;
pub use file::OpenFile;
pub use hub::blob_of_link;
pub use names::{
    Above, create, finish_renames, has_other_suffix, inherited, link, make_directory, may_become_container,
    remove_directory, rename, symlink, unlink,
};
pub use table::OpenFiles;
