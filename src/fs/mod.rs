//! The interface to the kernel: requests in, replies out.

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
