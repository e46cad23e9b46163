//! Automatic changes of tiers: plans over simulated time, and stores whose clock a test sets.

// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod plans;
mod stores;
// Other test programs use the rest of it.
#[path = "../import/fixture.rs"]
#[allow(unused)]
mod fixture;
