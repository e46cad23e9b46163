//! `tierfs completions` and `tierfs man`: generated from the definitions of the arguments.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::shared::output::print;
use crate::cli::{Cli, Outcome};
use crate::model::{Error, Result};

/// Print the completion script of a shell.
///
/// Example: tierfs completions bash > /usr/share/bash-completion/completions/tierfs
#[derive(clap::Args)]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tierfs", &mut text);
        print(&String::from_utf8_lossy(&text))?;
        Ok(Outcome::Succeeded)
    }
}

/// Write the manual pages, one for each command, or print tierfs(1).
///
/// Example: tierfs man /usr/share/man/man1
#[derive(clap::Args)]
pub(super) struct Manual {
    /// An existing directory for the pages; without it, tierfs(1) is printed
    directory: Option<PathBuf>,
}

impl Manual {
    pub fn run(self) -> Result<Outcome> {
        let mut command = Cli::command().disable_help_subcommand(true);
        command.build();
        match &self.directory {
            None => print(&String::from_utf8_lossy(&page(command)?))?,
            Some(directory) => write_pages(command, directory)?,
        }
        Ok(Outcome::Succeeded)
    }
}

/// Writes the page of a command and those of its subcommands, named like `tierfs-import.1`.
fn write_pages(command: clap::Command, directory: &Path) -> Result<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_pages(below.clone(), directory)?;
    }
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let path = directory.join(format!("{name}.1"));
    let failed = |error| Error::io(format!("writing {}", path.display()), error);
    fs::write(&path, page(command)?).map_err(failed)
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    Man::new(command).render(&mut text).map_err(|error| Error::io("formatting a manual page", error))?;
    Ok(text)
}
