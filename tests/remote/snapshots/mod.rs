//! Snapshots without a network: reads of pieces in memory equal the store that was frozen.

mod frozen;
mod histories;
mod hostile;
mod memory;
mod racing;
mod sources;
