//! The log of a collection against damage: flipped bits, torn ends, lost sectors, zeros.
//!
//! The expected state comes from outside the library: from the imported bytes, and from a walk over the log that knows
//! only where the format puts lengths.

// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]

mod collection_numbers;
mod damage;
mod dropped_end;
mod fixture;
mod highest_numbers;
mod host_clock;
mod hostile;
mod record_order;
mod small_batches;
mod torn_end;
