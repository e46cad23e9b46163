//! Files into the memory of a GPU: from the physical file by cuFile where that can be, otherwise through pinned memory
//! of the host. The only place that names `cudarc`.
//!
//! Always there, so that the command line has one shape; without the feature `cuda` each function answers with an error
//! that says how to build it. With it, the driver and cuFile are loaded when they are first asked for, and what is
//! missing is an error ([`ErrorKind::NotSupported`](crate::model::ErrorKind::NotSupported)), never a panic.

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
#[cfg(feature = "cuda")]
mod reading;
pub mod route;
#[cfg(feature = "cuda")]
mod verify;

#[cfg(not(feature = "cuda"))]
pub use absent::{presence, read, read_into};
#[cfg(feature = "cuda")]
pub use reading::{presence, read, read_into};
pub use route::{Route, Span};

/// Which route is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wanted {
    /// cuFile where that can be, otherwise by way of the host.
    #[default]
    Auto,
    /// cuFile, or an error.
    CuFile,
    /// By way of the host.
    Host,
}

/// How a file is to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Which route.
    pub wanted: Wanted,
    /// Whether what came to the device is compared with what any program reads of the file.
    pub verify: bool,
    /// The device, counted from 0 as the CUDA driver counts.
    pub device: u32,
}

/// How a file was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The bytes that are on the device now.
    pub bytes: u64,
    /// The route that was taken.
    pub route: Route,
    /// What was tried and not taken, and what else is worth knowing, in order.
    pub steps: Vec<String>,
    /// Seconds from the first byte asked for to the last one on the device. Opening the device, getting memory,
    /// registering it with cuFile and opening the file come before.
    pub seconds: f64,
    /// The device's name, as its driver says it.
    pub device: String,
    /// What the comparison said, if one was wanted.
    pub compared: Option<Compared>,
}

/// What a comparison said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compared {
    /// The bytes that were not the same.
    pub differing: u64,
    /// Where they were compared.
    pub place: ComparedOn,
}

/// Where bytes were compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComparedOn {
    /// On the device.
    Device,
    /// On the host: the device did not take the program for it.
    Host,
}

/// Something that reading into a GPU needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// What it is.
    pub what: &'static str,
    /// What was found; what is missing.
    pub found: Result<String, String>,
    /// What to do where it is missing.
    pub advice: &'static str,
}
