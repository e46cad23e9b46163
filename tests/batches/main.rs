//! Embedding batches through a real mount: split into tensors, assembled, encoded, written to, damaged. The independent
//! writer `tests/golden/reference.py` makes the files and checks the served bytes. They need /dev/fuse.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod batch;
mod changes;
mod command;
mod hostile;
mod model;
mod reading;
