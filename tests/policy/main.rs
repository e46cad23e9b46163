//! Automatic changes of tiers: plans over simulated time, and stores whose clock a test sets.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

mod plans;
mod stores;
// Other test programs use the other functions of the module.
#[path = "../import/fixture.rs"]
#[allow(unused)]
mod fixture;
