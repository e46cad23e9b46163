//! `mount.tierfs`: the name by which mount(8) calls this program for `mount -t tierfs` and for lines of
//! /etc/fstab.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::Parser;

use crate::cli::Outcome;
use crate::model::{Error, Result};

const NAME: &str = "mount.tierfs";

/// Mount a tierfs store. Called by mount(8).
///
/// Example: mount -t tierfs -o allow_other /srv/tensors /mnt
#[derive(Parser)]
#[command(name = NAME, version)]
pub(super) struct Helper {
    /// The store to mount
    store: OsString,
    /// The directory to mount on
    mountpoint: OsString,
    #[arg(short)]
    sloppy: bool,
    /// Check the arguments but do not mount
    #[arg(short)]
    fake: bool,
    /// Accepted for mount(8); has no effect
    #[arg(short)]
    verbose: bool,
    /// Accepted for mount(8): tierfs never writes /etc/mtab
    #[arg(short)]
    no_mtab: bool,
    /// Accepted for mount(8), which has already entered the namespace
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Options, as for tierfs mount -o
    #[arg(short = 'o', value_name = "OPTION[,...]")]
    options: Option<String>,
    /// The file system type from fstab; ignored
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
}

/// Whether the program was called as `mount.tierfs`.
pub(super) fn is_called(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == NAME)
}

impl Helper {
    /// Replaces this process with `tierfs mount`.
    pub fn run(self) -> Result<Outcome> {
        let options =
            self.options.as_deref().unwrap_or_default().split(',').filter(|option| !option.is_empty());
        let options: Vec<&str> =
            options.filter(|option| !self.sloppy || super::mount::options::is_option(option)).collect();
        let mut arguments: Vec<OsString> = vec!["mount".into()];
        if !options.is_empty() {
            arguments.extend(["-o".into(), options.join(",").into()]);
        }
        arguments.extend(["--".into(), self.store, self.mountpoint]);
        if self.fake {
            super::Cli::try_parse_from(std::iter::once("tierfs".into()).chain(arguments))
                .map_err(|error| Error::invalid(error.to_string()))?;
            return Ok(Outcome::Succeeded);
        }
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", error))?;
        Err(Error::io("starting tierfs mount", Command::new(program).args(arguments).exec()))
    }
}
