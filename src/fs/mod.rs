//! The interface to the kernel: requests in, replies out. No other folder names `fuser`.

mod adapter;
mod attributes;
mod controls;
mod decoded;
mod errno;
mod failure;
mod forget;
mod form_file;
mod forms;
mod handles;
mod in_progress;
mod kernel;
mod mount;
mod names;
mod numbers;
mod passthrough;
mod read;
mod read_pattern;
mod recognition;
mod reply;
mod second_look;
mod serve;
mod transport;
mod verify_on_open;
mod waker;

pub use decoded::Budget;
pub use mount::{Mount, MountEnd, Options, mount, unmount_by_helper};
pub use reply::ShownOwner;
pub use transport::{Choice as TransportChoice, Support as UringSupport};
pub use waker::Waker;
