//! Traces of a mount, as a collector gets them: spans of reads, moves, jobs and syncs, and collectors that do not
//! answer. `cargo nextest run --features traces --test control -E 'test(/^traces::/)'`.

#[cfg(feature = "traces")]
mod collector;
#[cfg(feature = "traces")]
mod protobuf;
#[cfg(feature = "traces")]
mod spans;

use std::fs;

use support::{Place, answer, tierfs};

#[test]
fn a_collector_that_is_no_url_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    for wrong in ["127.0.0.1:4318", "ftp://host", "http://"] {
        let mut command = tierfs();
        command.arg("mount").arg(place.store()).arg(place.path("mnt")).args(["--create", "--traces", wrong]);
        answer(&mut command).failed(2, &["expected a URL, such as http://127.0.0.1:4318"]);
    }
}

#[cfg(not(feature = "traces"))]
#[test]
fn a_program_without_traces_refuses_a_collector_and_says_what_to_build() {
    let place = Place::new();
    fs::create_dir(place.path("mnt")).unwrap();
    let mut command = tierfs();
    command.arg("mount").arg(place.store()).arg(place.path("mnt"));
    command.args(["--create", "--traces", "http://127.0.0.1:4318"]);
    answer(&mut command)
        .failed(1, &["built without the feature traces", "cargo build --release --features traces"]);
    // The environment of other programs does not concern it.
    let mut other = tierfs();
    other.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
    place.mount_by(&mut other, "mnt", &[]).unmount();
}
