//! Spans of traces: requests of the kernel, decodes, jobs, and syncs of logs.
//!
//! Without the feature `traces` all of this is empty. With it a call looks at one flag until `begin` was
//! called, which only a mount with a collector does. Code anywhere in the crate makes spans by these functions,
//! whether the feature is on or not; `remote/traces.rs` exports them.
//!
//! A span is the current one of its thread until its guard is dropped, and spans made meanwhile are its
//! children. The functions `note_...` add to the current span.

#[cfg(not(feature = "traces"))]
mod off;
#[cfg(feature = "traces")]
mod on;

#[cfg(not(feature = "traces"))]
pub use off::*;
#[cfg(feature = "traces")]
pub use on::*;
