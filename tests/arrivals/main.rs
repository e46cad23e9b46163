//! What programs write through a mount: what was written is what is read, by every name of the same bytes, over the
//! daemon's end too, and space is neither lost nor used twice. They need /dev/fuse, and what `make setup` fetches.

#![cfg(feature = "mount")]
// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod arrive;
mod change;
mod cut;
mod disk;
mod full;
mod gguf;
mod history;
mod known;
mod marks;
mod meanwhile;
mod points;
mod recorder;
mod removed;
mod room;
mod space;
mod sparse;
mod tensors;
mod versions;
