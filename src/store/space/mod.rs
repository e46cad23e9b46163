//! The space that bytes may take: the files, free space and reservations.
//!
//! # The way of a slot
//!
//! A slot of a tier file is reserved (`reservations.rs`) until a batch names it; after a failure the next reclaim takes
//! it back. Free slots are found around what blocks refer to, when a process first writes to a tier file; nothing on
//! disk records them.
//!
//! 1. A batch that replaces, cuts or deletes leaves the freed space in `State::freed`. Blocks that were cut off before
//!    a batch says so wait in `Writing::dropped` (`store/object/write_state.rs`). Both move to `Writer::freed`, with
//!    the number of the batch.
//! 2. `Collection::reclaim` (`store/collection/reclaim.rs`) runs after each sync and before a slot is taken. It takes
//!    what durable batches freed, and the space of an object once no open file has the object.
//! 3. It takes `Collection::gate` alone once, so that reads that looked up a place before have ended.
//! 4. Slots return to `slots.rs`. Whole free pages of tier files, and stretches of data files that blocks have left,
//!    are joined across objects and punched out with one call for each stretch. A data file is removed when no object
//!    lies in it. Only a compaction uses overwritten stretches of a data file again.
//!
//! # Holders of bytes
//!
//! A program that maps a file may close its descriptor, and the daemon is not told when the mapping ends. So counts of
//! opens do not say whether bytes of a data file may change.
//!
//! 1. `Change` (`store/disk/change.rs`) names each operation that changes bytes of a file or gives them back; its table
//!    says what keeps the bytes of each `Holder`. `tests/tidy/rules.rs` lists every place that changes a file.
//!    `tests/passthrough/holders.rs` tries the cells of the table.
//! 2. `Shown::alone` (`holders.rs`) gives the right to change a data file, an `Alone`: nobody reads the file directly,
//!    nobody is shown it while the right lasts, and the system says that nobody has it open or mapped.
//! 3. `File::is_held` asks the system: it grants a write lease only if the descriptor that asks is the only one of the
//!    inode. The store first closes other descriptors of its own. The question takes 2 to 4 microseconds.
//! 4. A sync that finds a file held leaves its stretches in `Writer::freed`. Later syncs ask again, at most every 100
//!    ms, and a collection with such stretches stays open. After a restart the log does not name them any more:
//!    `OpenObject::punch_left` gives them back in a compaction.

pub(in crate::store) mod external_file;
pub(in crate::store) mod files;
pub(in crate::store) mod holders;
pub(in crate::store) mod reservations;
pub(in crate::store) mod slots;
