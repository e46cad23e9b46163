//! Stubs for a program that was built without CUDA.

use std::path::Path;

use crate::gpu::{Options, Presence, Report, Span};
use crate::model::{Error, ErrorKind, Result};

fn not_built<T>() -> Result<T> {
    let text = "built without the feature cuda: cargo build --release --features cuda";
    Err(Error::new(ErrorKind::NotSupported, text))
}

/// Reads a part of a file into temporary device memory. Always fails: built without the feature.
pub fn read(_path: &Path, _span: Span, _options: &Options) -> Result<Report> {
    not_built()
}

/// Reads a part of a file to `pointer`, in device memory. Always fails: built without the feature.
///
/// # Safety
/// No requirement here. With the feature, the function writes to `pointer`.
pub unsafe fn read_into(_path: &Path, _span: Span, _pointer: u64, _options: &Options) -> Result<Report> {
    not_built()
}

/// The requirements that this machine meets or lacks; empty without the feature.
pub fn presence() -> Vec<Presence> {
    Vec::new()
}
