//! Reads files into GPU memory: with cuFile from the physical file where possible, otherwise through pinned host
//! memory. Only this layer uses `cudarc`, at its lowest level.
//!
//! The module exists in every build, so that the command line is always the same. Without the feature `cuda` each
//! function returns an error that says how to build with it. With the feature, the driver and cuFile are loaded on
//! first use, and a missing part is an error ([`ErrorKind::NotSupported`](crate::model::ErrorKind::NotSupported)),
//! never a panic.
//!
//! `driver.rs` and `cufile.rs` look up the library and each function before the first call, because cudarc 0.19.10
//! panics at a missing one; a test compares their list with the calls. They also avoid these parts of the crate:
//!
//! - `CudaStream::alloc` uses the pool of the device where there is one, which cuFile does not register; `cuMemAlloc`
//!   does not.
//! - `Cufile::buf_register` passes elements as bytes, `Cufile::register` does not set O_DIRECT, `FileHandle::sync_read`
//!   unwraps, and `cufile::result::read` turns any negative result into an enum. cuFile is called through pointers that
//!   return numbers.
//! - cudarc does not try the name `libcufile.so.0`; the message of a missing library says to link it.
//!
//! The end of the process closes the cuFile driver, as in cudarc: other users in the process may need it. `compare.ptx`
//! is compiled by the driver; NVRTC would be another required library.
//!
//! `route.rs` asks for the route of each part before and after a read. A cuFile read bypasses the daemon; committed
//! bytes are never overwritten, and numbers of data files and pinned copies never reused, so if both answers agree, the
//! bytes were those of the file.
//! Slots of `tier0.dat` are reused, and are left to the daemon. No lock is held for a program that may die.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod counter;
#[cfg(feature = "cuda")]
mod cufile;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod host;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(any(feature = "cuda", test))]
mod pieces;
pub mod route;
#[cfg(feature = "cuda")]
mod transfer;
#[cfg(feature = "cuda")]
mod verify;

#[cfg(not(feature = "cuda"))]
pub use absent::{presence, read, read_into};
pub use route::{Route, Span};
#[cfg(feature = "cuda")]
pub use transfer::{presence, read, read_into};

/// The requested route.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// cuFile where possible, otherwise through host memory.
    #[default]
    Auto,
    /// cuFile, or an error.
    CuFile,
    /// Through host memory.
    Host,
}

/// Options of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The requested route.
    pub wanted: Wanted,
    /// Whether to compare the bytes on the device with an ordinary read of the file.
    pub verify: bool,
    /// The number of the device, as the CUDA driver counts, from 0.
    pub device: u32,
}

/// The result of a read.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The number of bytes read.
    pub bytes: u64,
    /// The route that was taken.
    pub route: Route,
    /// Failed attempts and other notes, in order.
    pub steps: Vec<String>,
    /// Seconds from the first request to the last byte on the device. Excludes opening the device, allocating memory,
    /// registering it with cuFile and opening the file.
    pub seconds: f64,
    /// The device's name from the driver.
    pub device: String,
    /// The result of the comparison, if one was requested.
    pub compared: Option<Compared>,
}

/// The result of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// The number of differing bytes.
    pub differing: u64,
    /// Where the bytes were compared.
    pub place: ComparedOn,
}

/// Where bytes were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComparedOn {
    /// On the device.
    Device,
    /// On the host, because the device could not load the program.
    Host,
}

/// A requirement of reading into a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// Its name.
    pub what: &'static str,
    /// A description, or the missing part.
    pub found: Result<String, String>,
    /// Advice if it is missing.
    pub advice: &'static str,
}
