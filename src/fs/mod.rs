//! The interface to the kernel: requests in, replies out.
//!
//! 1. `kernel`: the protocol of FUSE over `/dev/fuse` or io_uring, and the devices of passthrough.
//! 2. `state`: the memory of a mount between requests: handles, names that the kernel has cached, files that the kernel
//!    reads itself, decoded copies, files that wait to be recognized.
//! 3. `answer`: the answer to each kind of request.
//! 4. `mount`: the life of a mount.

mod answer;
pub mod kernel;
mod mount;
mod state;

pub use kernel::errno::Errno;
pub use kernel::rings::{Choice as TransportChoice, Support as UringSupport};
pub use mount::offline::Offline;
pub use mount::waker::Waker;
pub use mount::{Mount, MountEnd, Options, mount, unmount_by_helper};
pub use state::decoded_copies::Budget;
pub use state::times::ShownOwner;
