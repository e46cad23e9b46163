//! The `tierfs` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    tierfs::cli::main()
}
