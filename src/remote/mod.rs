//! Stores on object storage: the client, and what is published there.
//!
//! This is the only layer with a network and with asynchronous code. Others call its functions from their
//! own threads and wait.

pub mod client;
