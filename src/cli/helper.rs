//! `mount.tierfs`: the same program under the name by which mount(8) calls it for `mount -t tierfs`
//! and for the lines of /etc/fstab.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use clap::Parser;

use crate::cli::Done;
use crate::model::{Error, Result};

const NAME: &str = "mount.tierfs";

/// Mount a store of tierfs. Called by mount(8).
///
/// Example: mount -t tierfs -o allow_other /srv/tensors /mnt
#[derive(Parser)]
#[command(name = NAME, version)]
pub(super) struct Helper {
    /// The store
    store: OsString,
    /// A directory
    mountpoint: OsString,
    /// Pass over options that are not known
    #[arg(short)]
    sloppy: bool,
    /// Do everything but mounting
    #[arg(short)]
    fake: bool,
    /// Say more: mount(8) passes it on
    #[arg(short)]
    verbose: bool,
    /// Write no /etc/mtab, as tierfs never does
    #[arg(short)]
    no_mtab: bool,
    /// A namespace, which mount(8) has entered by then
    #[arg(short = 'N', value_name = "NAMESPACE")]
    vfs: Option<OsString>,
    /// Options, as `tierfs mount -o` takes them
    #[arg(short = 'o', value_name = "OPTION[,...]")]
    options: Option<String>,
    /// The type, as it stood in fstab
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
}

/// Whether the program was called by this name.
pub(super) fn is_called(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == NAME)
}

impl Helper {
    /// Becomes `tierfs mount`.
    pub fn run(self) -> Result<Done> {
        let options =
            self.options.as_deref().unwrap_or_default().split(',').filter(|option| !option.is_empty());
        let options: Vec<&str> =
            options.filter(|option| !self.sloppy || super::mount::is_option(option)).collect();
        let mut arguments: Vec<OsString> = vec!["mount".into()];
        if !options.is_empty() {
            arguments.extend(["-o".into(), options.join(",").into()]);
        }
        arguments.extend(["--".into(), self.store, self.mountpoint]);
        if self.fake {
            super::Cli::try_parse_from(std::iter::once("tierfs".into()).chain(arguments))
                .map_err(|error| Error::invalid(error.to_string()))?;
            return Ok(Done::Well);
        }
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", error))?;
        Err(Error::io("starting tierfs mount", Command::new(program).args(arguments).exec()))
    }
}
