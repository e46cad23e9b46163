//! Automatic changes of tiers: plans over simulated time, and stores whose clock a test sets.

mod plans;
mod reference;
mod stores;
