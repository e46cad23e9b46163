//! Shared by subcommands: what they look at, what they print, whom they wait for.

pub(in crate::cli) mod act;
pub(in crate::cli) mod folder;
pub(in crate::cli) mod mounts;
pub(in crate::cli) mod output;
pub(in crate::cli) mod process;
pub(in crate::cli) mod tree;
