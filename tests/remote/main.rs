//! Stores on object storage, compared with the stores that they were pushed from: on a bucket in memory whose requests
//! fail, on the directory of a file system, on SeaweedFS, and (`snapshots`) on pieces in memory. The disk of the cache
//! fails and is full here, because those tests need the bucket. The mounts need /dev/fuse.

// The exemption of tests in clippy.toml does not reach what they call.
#![allow(clippy::unwrap_used, clippy::panic, clippy::expect_used)]
#![cfg(feature = "remote")]

mod away;
mod cache;
mod client;
mod clones;
mod clones_mounted;
mod cluster;
mod differences;
mod directories;
mod failing_disk;
mod faulty;
mod fleet;
mod following;
mod garbage;
mod here_and_there;
mod history;
mod http_request;
mod imitation;
mod kept;
mod many_collections;
mod mistakes;
mod mounted;
mod other_parents;
mod proxy;
mod push;
mod push_over;
mod ranks;
mod reading;
mod rounds;
mod seaweed;
mod series;
mod server;
mod shared_cache;
mod signed;
mod snapshots;
mod sources;
mod takeover;
mod through_http;
mod url_imports;
mod url_in_place;
mod url_meetings;
mod variants;
mod views;
mod web;
// Other test binaries use the rest of it.
#[path = "../library/mod.rs"]
#[allow(unused)]
mod library;

use library::fixture;
