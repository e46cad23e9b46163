//! The interface to the kernel: requests in, replies out.
//!
//! 1. `kernel`: the protocol of FUSE over `/dev/fuse` or io_uring, and the devices of passthrough.
//! 2. `state`: the memory of a mount between requests: handles, names that the kernel has cached, files that the kernel
//!    reads itself, decoded copies, files that wait to be recognized.
//! 3. `answer`: the answer to each kind of request.
//! 4. `mount`: the life of a mount.
//!
//! # Threads
//!
//! A request is answered on the thread that received it, a long one (`kernel/long_requests.rs`, or over io_uring) on
//! another, as one that may wait for a network is (`kernel/long_requests.rs`). Separate threads answer
//! digests, opens and writes of control files, opens of forms, slow attributes, opens that verify or decode a file
//! first, and requests that may recognize a file: closes, syncs, renames, changes of size (`state/recognition.rs`). One
//! thread invalidates pages. The first thread waits for the end of the mount, syncs every 5 s, and looks twice a second
//! for damage to heal, copies to make and policies to follow.
//!
//! A panic in a request answers EIO for that request and is logged (`state/failure.rs`). `state/in_progress.rs` logs requests
//! without an answer for a minute, and what all threads wait for. Payloads and partial blocks lie in buffers that each
//! thread keeps.
//!
//! A read of the daemon leaves its pages in the cache of the kernel, so the pages of the data file are dropped after
//! each 4 MiB (`vfs/open/page_cache.rs`). They stay after O_DIRECT, for files outside the store, and while the kernel
//! reads the data file itself.
//!
//! To change how long the kernel may cache: `Times` in `state/times.rs`, the flags in `Dispatcher::open_handle`,
//! `kernel/session.rs`.

mod answer;
pub mod kernel;
mod mount;
mod state;

pub use kernel::errno::Errno;
pub use kernel::rings::{Choice as TransportChoice, Support as UringSupport};
pub use mount::bundle::{Bundle, of_standard_input, receive_with, send_with};
pub use mount::handover::{Asking, Leaving};
pub use mount::offline::Offline;
pub use mount::waker::Waker;
pub use mount::{Mount, MountEnd, Options, mount, take_up, unmount_by_helper};
pub use state::decoded_copies::Budget;
pub use state::times::ShownOwner;
