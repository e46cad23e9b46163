//! A push: a collection becomes a snapshot of a remote.
//!
//! The newest manifest is read first. If its log is the canonical log of the frozen collection, the payloads are equal
//! too (objects have random numbers, each change of a block an epoch, each block a CRC32C): the push reads no payload,
//! makes four requests and ends. Otherwise the push asks whether the server supports conditional creation, reads the
//! plans of garbage, uploads the pieces that no manifest at hand names, and creates the manifest as the last step. The
//! probe and the plans come after the comparison of logs; plans that are read later name more, never less. `head` is
//! written only if it says otherwise.
//!
//! A piece that changed a little is stored as its difference from the same tensors of an earlier snapshot
//! (`differences.rs`), which the manifest names too: so a collection of garbage keeps it.
//!
//! `tierfs index` (`index.rs`) makes a snapshot of a listing (`remote/index/`), and sends no payload.
//!
//! A push from a mounted store is a job of the daemon, with its credentials: those of the user who asks would have to
//! pass through a control file.

mod clone_push;
mod contents;
mod differences;
pub mod history;
pub mod index;
pub mod outcome;
pub mod parameters;
pub mod publish;
pub mod request;
mod send;
