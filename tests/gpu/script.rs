//! `scripts/gpu.sh`, without a GPU.

use std::process::Command;

use support::{Answer, Place, answer, repository, tierfs};

/// Runs the script with this binary, and a folder of its own.
fn script(place: &Place, settings: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(repository("scripts/gpu.sh"));
    command.env("TIERFS", tierfs().get_program()).env("GPU_FOLDER", place.path("work"));
    answer(command.envs(settings.iter().copied()))
}

#[test]
fn the_script_ends_with_a_reason_where_nothing_can_be_read_into_a_gpu() {
    let place = Place::new();
    // A folder of files that are not libraries, for machines that have a driver.
    let folder = place.path("libraries");
    std::fs::create_dir(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.join(name), b"").unwrap();
    }
    let said = script(&place, &[("LD_LIBRARY_PATH", folder.to_str().unwrap())]);
    said.failed(1, &["gpu.sh: nothing can be read into a GPU here"]);
    // Nothing is left behind.
    assert_eq!(std::fs::read_dir(place.path("work")).unwrap().count(), 0);
    let late = script(&place, &[("GPU_SECONDS", "0")]);
    late.failed(1, &["gpu.sh: 0 seconds are over"]);
}

#[test]
fn the_script_builds_nothing_where_there_is_no_device() {
    if std::path::Path::new("/dev/nvidiactl").exists() || std::path::Path::new("/dev/dxg").exists() {
        return;
    }
    let place = Place::new();
    let mut command = Command::new(repository("scripts/gpu.sh"));
    let said = answer(command.env_remove("TIERFS").env("GPU_FOLDER", place.path("work")));
    said.failed(1, &["there is no NVIDIA GPU here", "/dev/nvidiactl"]);
}

#[cfg(feature = "cuda")]
#[test]
fn the_script_prints_a_row_for_each_file_and_route() {
    let place = Place::new();
    let folder = crate::fake::build(&place, &["cuda", "cufile"]);
    let settings = [("LD_LIBRARY_PATH", folder.to_str().unwrap()), ("GPU_BYTES", "1048576")];
    let said = script(&place, &settings);
    assert_eq!(said.code, Some(0), "{said:?}");
    let rows: Vec<Vec<&str>> = said.out.lines().map(|line| line.split(" | ").collect()).collect();
    let routes = |file: &str| -> Vec<&str> {
        let of_file = rows.iter().filter(|row| row[0] == format!("| {file}"));
        of_file.map(|row| row[2]).collect()
    };
    for file in [
        "model.safetensors",
        "demo/exact/w",
        "demo/pinned/w",
        "demo/pinned/batch.cgeb",
        "demo/pinned/.as/safetensors/w.safetensors",
        "demo/pinned/.as/bf16/model.safetensors",
    ] {
        assert_eq!(routes(file), ["cuFile", "host", "cp to /dev/null"], "{file}: {said:?}");
    }
    for file in ["demo/q8/w", "demo/exact/batch.cgeb", "demo/exact/.as/npy/w.npy"] {
        assert_eq!(routes(file), ["host", "cp to /dev/null"], "{file}: {said:?}");
    }
    assert!(!said.out.contains("differ"), "{said:?}");
}
