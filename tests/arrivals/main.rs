//! Files that programs write through a mount: their recognition, their tensors, full disks, and power cuts at any change.
//! They need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod archives;
mod block_checksums;
mod changed_containers;
mod concurrent_changes;
mod data_files;
mod durability_marks;
mod full_disk;
mod full_store;
mod gguf;
mod history;
mod nearly_full;
mod power_cut_disk;
mod power_cut_points;
mod power_cuts;
mod recognition;
mod recorder;
mod removed_names;
mod shared_files;
mod space_reuse;
mod sparse;
mod tensor_writes;
mod versions;
