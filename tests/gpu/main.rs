//! Reading into the memory of a GPU: the route of each file on real mounts, reads with libraries that stand in for the
//! CUDA driver and cuFile, and the messages where these are missing.

#![cfg(feature = "mount")]
// clippy.toml exempts tests, but not the functions that they call.
#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "cuda")]
mod fake;
#[cfg(feature = "cuda")]
mod library;
#[cfg(feature = "cuda")]
mod missing;
mod pinned;
#[cfg(feature = "cuda")]
mod reads;
mod routes;
mod script;

#[cfg(not(feature = "cuda"))]
#[test]
fn a_program_without_the_feature_says_how_to_build_it() {
    let said = support::run(["gpu-read", "/dev/null"]);
    said.failed(1, &["built without the feature cuda", "cargo build --release --features cuda"]);
    support::run(["gpu-read"]).failed(2, &["PATHS"]);
}
