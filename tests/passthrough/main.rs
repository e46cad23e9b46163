//! Files that the kernel reads itself: what is read, that the daemon is not asked, and what happens when they are
//! written to, renamed and removed meanwhile. They need /dev/fuse and the privilege to let the kernel do it.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod compacted_files;
mod fixture;
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
