//! The log of a collection against damage: flipped bits, torn ends, lost sectors, zeros.
//!
//! What must be found is told from the outside: the bytes that were imported, and a
//! walk over the log that knows nothing but where the format puts lengths.

// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod aside;
mod damage;
mod hostile;
mod numbers;
mod order;
mod torn;
mod world;
