//! Model files and embedding batches that programs write or copy through a mount: their recognition, their tensors, the
//! names of tensors, and what becomes of them when the files change. Compared with the libraries that own the formats and
//! with the independent writer `tests/golden/reference.py`. They need /dev/fuse and the files that `make setup` fetches.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod archives;
mod arrivals;
mod batches;
mod changed_containers;
mod data_files;
mod gguf;
mod listings;
mod plain_names;
mod raw_records;
mod recognition;
mod tensor_names;
mod tensor_writes;
mod views;
