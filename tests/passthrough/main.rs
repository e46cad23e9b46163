//! Files that the kernel reads itself: what is read, that the daemon is not asked, and what happens when they are
//! written to, renamed and removed meanwhile. They need /dev/fuse and the privilege to let the kernel do it.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod ahead;
mod fixture;
mod given;
mod lies;
mod limits;
mod partly;
mod prefetch;
mod reading;
mod replaced;
mod storm;
mod whole;
mod writing;
