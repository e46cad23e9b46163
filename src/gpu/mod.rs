//! Reads files into GPU memory: with cuFile from the physical file where possible, otherwise through pinned host memory.
//! Only this layer uses `cudarc`.
//!
//! The module exists in every build, so that the command line is always the same. Without the feature `cuda` each
//! function returns an error that says how to build with it. With the feature, the driver and cuFile are loaded on
//! first use, and a missing part is an error
//! ([`ErrorKind::NotSupported`](crate::model::ErrorKind::NotSupported)), never a panic.

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
