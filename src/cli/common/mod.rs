//! Code that several subcommands share: finding mounts and stores, printing, logging, traces, waiting for jobs.

pub(in crate::cli) mod connection;
pub(in crate::cli) mod folder;
pub(in crate::cli) mod interrupt;
pub(in crate::cli) mod jobs;
pub(in crate::cli) mod log;
pub(in crate::cli) mod lost_writes;
pub(in crate::cli) mod mounts;
pub(in crate::cli) mod open_store;
pub(in crate::cli) mod output;
pub(in crate::cli) mod places;
pub(in crate::cli) mod process;
pub(in crate::cli) mod refusal;
pub(in crate::cli) mod remote;
pub(in crate::cli) mod request;
pub(in crate::cli) mod traces;
pub(in crate::cli) mod tree;
pub(in crate::cli) mod watch;
