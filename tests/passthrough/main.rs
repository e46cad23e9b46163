//! Files that the kernel reads by passthrough: their bytes, the absence of requests to the daemon, and writes, renames and
//! removals meanwhile. They need /dev/fuse and the privilege for passthrough.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod compacted_files;
mod decoded_copies;
mod decoded_memory;
mod decoded_readers;
mod fixture;
mod holders;
mod limits;
mod page_cache;
mod partial_verification;
mod physical_files;
mod prefetch;
mod reading;
mod replaced_names;
mod stale_names;
mod verify_on_open;
mod writing;
