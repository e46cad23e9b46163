//! Libraries that stand in for those of NVIDIA, so that reads run on any machine: `cuda.c` and `cufile.c`.

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Answer, Place, answer, tierfs};

/// Builds the libraries, into a folder of their own.
pub fn build(place: &Place, names: &[&str]) -> PathBuf {
    let folder = place.path("libraries");
    std::fs::create_dir_all(&folder).unwrap();
    for name in names {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/gpu/{name}.c"));
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]);
        answer(command.arg(folder.join(format!("lib{name}.so"))).arg(source).arg("-ldl")).ok();
    }
    folder
}

/// `tierfs gpu-read` with the libraries of a folder.
pub fn gpu_read(folder: &Path, settings: &[(&str, &str)], options: &[&str], paths: &[&Path]) -> Answer {
    let mut command = tierfs();
    command.env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    answer(command.arg("gpu-read").args(options).args(paths))
}
