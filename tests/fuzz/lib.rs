//! The fuzz targets of `tierfs`, for the programs beside this file.

#[path = "targets/mod.rs"]
pub mod targets;
