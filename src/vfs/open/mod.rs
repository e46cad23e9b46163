//! Changes: open files, the writes to them, and names that are created and removed.
//!
//! Invariants:
//! 1. A read sees every earlier write, by every name of the same bytes that the daemon serves.
//! 2. After close and fsync the writes are in the log, and every name agrees.
//! 3. An open file keeps the content that it opened when its name is removed.
//!
//! # A write
//!
//! 1. `create` (`names.rs`) makes an empty plain file with one batch. An existing file is opened once, however many
//!    programs have it open (`table.rs`): an `OpenFile` with the objects of the file and a stream of them.
//! 2. `OpenFile::write`: if the file grows, the layout is taken alone. The last object grows; if the file has no
//!    object, or the last one is a tensor of a container, a *draft* is added, an object unknown to the log with a data
//!    file of its own. The first 16 KiB of a new file stay in memory until its first flush (`MEMORY_FILE`). Then pieces
//!    of the range go to the objects under the shared layout (`store/io/mod.rs`).
//! 3. `OpenFile::flush` (`flush.rs`) holds the layout alone. Its callers are the close of a descriptor that may write,
//!    the release (late stores into mappings), fsync, changes of time, mode, owner or size, and the sync every 5 s.
//! 4. A file is taken apart (`ingest/mod.rs`) if all its objects are drafts, if it is a container whose size changed or
//!    that was written outside of its tensors, or if it is a plain file with the suffix of a container. Blocks are read
//!    back for their CRC32C unless the draft knows it, as it does where whole blocks of it make one. A container whose parts stay the same keeps
//!    them. A container that does not parse any more becomes a plain file, and its `why` says so.
//!    The close of a new file also stores it as its directory says for what arrives (`arrival.rs`).
//! 5. Any other file is recorded in one batch: sizes of objects, records of the written blocks, a Delete for each
//!    object that was cut off, new nodes with the mtime for the file and those that share its bytes. Dirty blocks are
//!    read back if their CRC32C is unknown or they may become patches.
//!    A plain file that was new is noted in `ClosedFiles`: seconds later, while nobody has it open, it is compared with
//!    others (`share.rs`). Its first bytes are noted too, so that a rename to a suffix that ordinary files have too need
//!    not read them.
//! 6. The batch is appended without a sync. After fsync `Collection::sync_unmarked` makes it durable, while others append; `fs/mount/mod.rs` syncs every
//!    open file and collection every 5 s, and at unmount.
//!
//! Names, modes, owners and times (`names.rs`, `attributes.rs`) are one batch each. A rename to another directory,
//! another suffix, or another `.npy` or `.cgeb` name ends with `OpenFile::recognize_again`. A plain file that becomes a
//! container by its name is recognized first, and one batch has the rename and the tensors
//! (`OpenFile::rename_as_container`).
//!
//! # A full disk
//!
//! `Vfs::with_room` (`vfs/tree/flush.rs`) repeats a request of a program after it has freed what any collection can
//! free (`Vfs::make_room`), for up to 70 ms while the kernel may yet tell of a last close. An import does the same for
//! each file. Jobs make room before they begin on a disk that is nearly full. `Collection::record` repeats the append
//! after it has reclaimed what durable batches freed. Everything in between returns the error `Full`. Files that the
//! log could not take stay in `Vfs::unflushed` until it can, and in `Unrecorded` (`store/collection/unrecorded_files.rs`),
//! which problems, `why` and events show. `Vfs::flush_at_end` records them as plain files with the reserve of the log.
//! A note in the file of the store's lock (`cli/common/lost_writes.rs`) names the files that are lost then; `tierfs umount`
//! and the next mount read the note.
//!
//! `stat` of a file waits while that file is flushed. To serve another change of names or attributes, add a function in
//! `names.rs` that fills one batch and returns `Changes`.

mod arrival;
mod attributes;
mod changes;
mod copy;
mod file;
mod flush;
mod hub;
mod layout;
mod nameless;
mod names;
mod page_cache;
mod program_attributes;
mod recognition;
mod share;
mod source;
mod table;

pub use arrival::{Writer, arrives_by_rename};
pub use attributes::{SetAttr, has_setid, set_attr, set_tensor};
pub use changes::Changes;
pub use copy::{CopyStep, SharedBlocks};
pub use file::OpenFile;
pub use hub::blob_of_link;
pub use nameless::create_nameless;
pub use names::{
    Above, create, exchange, finish_renames, has_other_suffix, inherited, link, make_directory,
    may_become_container, remove_directory, rename, rename_ordinary, symlink, unlink, unlink_if,
};
pub use program_attributes::{SetHow, remove_program_attribute, set_program_attribute, set_tags};
pub use share::{ClosedFile, ClosedFiles};
pub use table::OpenFiles;
