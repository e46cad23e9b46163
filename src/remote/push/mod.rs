//! A push: a collection becomes a snapshot of a remote.

mod clone_push;
mod contents;
pub mod outcome;
pub mod parameters;
pub mod publish;
pub mod request;
mod send;
