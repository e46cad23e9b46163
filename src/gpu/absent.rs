//! What a program that was built without CUDA answers.

use std::path::Path;

use crate::gpu::{Options, Presence, Report, Span};
use crate::model::{Error, ErrorKind, Result};

fn not_built<T>() -> Result<T> {
    let text = "built without the feature cuda: cargo build --release --features cuda";
    Err(Error::new(ErrorKind::NotSupported, text))
}

/// Reads a part of a file into memory of a device that is let go of afterwards. Fails: built without the feature.
pub fn read(_path: &Path, _span: Span, _options: &Options) -> Result<Report> {
    not_built()
}

/// Reads a part of a file to `pointer`, in a device's memory. Fails: built without the feature.
///
/// # Safety
/// None here; with the feature, `pointer` is written to.
pub unsafe fn read_into(_path: &Path, _span: Span, _pointer: u64, _options: &Options) -> Result<Report> {
    not_built()
}

/// What this machine has of what is needed: nothing is looked for without the feature.
pub fn presence() -> Vec<Presence> {
    Vec::new()
}
