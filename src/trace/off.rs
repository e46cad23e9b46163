//! The functions of a program without traces: they do nothing.

use std::fmt::Display;

use crate::model::Tier;

/// The guard of a span.
#[must_use]
pub struct Entered;

/// Begins the span of a request about an inode, and a name in it if there is one.
#[inline(always)]
pub fn request(_operation: &'static str, _inode: u64, _name: Option<&[u8]>) -> Entered {
    Entered
}

/// Begins a span for encoded payloads of a tier that are fetched and decoded into `bytes` bytes.
#[inline(always)]
pub fn decode(_tier: Tier, _bytes: u64) -> Entered {
    Entered
}

/// Begins the span of a file of `bytes` bytes that is decoded as a whole.
#[inline(always)]
pub fn decode_file(_inode: u64, _bytes: u64) -> Entered {
    Entered
}

/// Begins the span of a job.
#[inline(always)]
pub fn job(_number: u64, _request: &str, _path: &str) -> Entered {
    Entered
}

/// Begins the span of a sync of a collection's files and log.
#[inline(always)]
pub fn sync(_collection: impl FnOnce() -> String) -> Entered {
    Entered
}

/// Work that runs in the present span, on any thread.
#[inline(always)]
pub fn carried<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    work
}

/// Notes the bytes that a request has read or written.
#[inline(always)]
pub fn note_bytes(_bytes: u64) {}

/// Notes the tier of blocks that a request has read.
#[inline(always)]
pub fn note_tier(_tier: Tier) {}

/// Notes the new value of an attribute.
#[inline(always)]
pub fn note_value(_value: &[u8]) {}

/// Notes the error number that a request is answered with.
#[inline(always)]
pub fn note_errno(_number: i32) {}

/// Notes that the work of the span has failed.
#[inline(always)]
pub fn note_failure(_why: &dyn Display) {}

/// Notes the end of a job: its state, and the bytes that it has processed.
#[inline(always)]
pub fn note_end(_state: &'static str, _bytes: u64) {}
