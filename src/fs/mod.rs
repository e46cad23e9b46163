//! The interface to the kernel: requests in, replies out.
//!
//! `kernel/` has the protocol, `dispatch.rs` the answer to each kind of request, `passthrough.rs` and `decoded/` the
//! files that the kernel reads itself, `invalidate.rs` and `names.rs` what the kernel must forget. `errno.rs` has all
//! error numbers, `mount.rs` the session from start to end.
//!
//! # Threads
//!
//! A request is answered on the thread that received it, a long one over io_uring on another. Separate threads answer
//! digests, opens and writes of control files, opens of forms, slow attributes, opens that verify or decode a file
//! first, and requests that may recognize a file: closes, syncs, renames, changes of size (`recognition.rs`). One
//! thread invalidates pages. The first thread waits for the end of the mount, syncs every 5 s, and looks twice a second
//! for damage to heal, copies to make and policies to follow.
//!
//! A panic in a request answers EIO for that request and is logged (`failure.rs`). `in_progress.rs` logs requests
//! without an answer for a minute, and what all threads wait for. Payloads and partial blocks lie in buffers that each
//! thread keeps.
//!
//! A read of the daemon leaves its pages in the cache of the kernel, so the pages of the data file are dropped after
//! each 4 MiB (`vfs/open/page_cache.rs`). They stay after O_DIRECT, for files outside the store, and while the kernel
//! reads the data file itself.
//!
//! To change how long the kernel may cache: `Times` in `times.rs`, the flags in `Dispatcher::open_handle`,
//! `kernel/session.rs`.

mod attributes;
mod controls;
mod decoded;
mod dispatch;
mod errno;
mod failure;
mod form_file;
mod forms;
mod handles;
mod in_progress;
mod invalidate;
pub mod kernel;
mod mount;
mod names;
mod numbers;
mod offline;
mod passthrough;
mod read;
mod read_pattern;
mod recognition;
mod second_look;
mod serve;
mod times;
mod verify_on_open;
mod waker;

pub use decoded::Budget;
pub use errno::Errno;
pub use kernel::rings::{Choice as TransportChoice, Support as UringSupport};
pub use mount::{Mount, MountEnd, Options, mount, unmount_by_helper};
pub use offline::Offline;
pub use times::ShownOwner;
pub use waker::Waker;
