//! Python scripts and lines, and the model that `make setup` fetches.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use crate::{answer, repository};

/// The folder of the real model.
pub fn minilm() -> PathBuf {
    let path = repository("target/models/minilm");
    assert!(path.join("model.safetensors").exists(), "{} is missing: run make setup", path.display());
    path
}

/// The interpreter of the virtual environment.
pub fn python_command() -> Command {
    let path = repository("target/venv/bin/python");
    assert!(path.exists(), "{} is missing: run make setup", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Runs a script of tests/python, which must succeed; its output.
#[track_caller]
pub fn python<S: AsRef<OsStr>>(script: &str, arguments: impl IntoIterator<Item = S>) -> String {
    answer(python_command().arg(repository("tests/python").join(script)).args(arguments)).ok()
}

/// Runs Python code, which must succeed; its output.
#[track_caller]
pub fn python_line<S: AsRef<OsStr>>(code: &str, arguments: impl IntoIterator<Item = S>) -> String {
    answer(python_command().args(["-c", code]).args(arguments)).ok()
}
