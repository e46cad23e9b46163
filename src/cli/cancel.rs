//! `tierfs cancel`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs::{cancel, new_bar, wait};
use crate::cli::common::mounts::mounts_of;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::places::mount_or_below;
use crate::model::{Error, ErrorKind, Result};

/// Cancel a job, wait for its end, and print what it has done.
///
/// Example: tierfs cancel 7
#[derive(clap::Args)]
pub(super) struct Args {
    /// The number of the job, as tierfs jobs lists it
    #[arg(value_parser = parse_job)]
    job: u64,
    /// The mount point or the mounted store; needed if more than one store is mounted
    mountpoint: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_job(text: &str) -> Result<u64> {
    let wrong = || Error::invalid("it is not the number of a job; tierfs jobs lists them");
    text.parse().map_err(|_| wrong())
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let place = self.mountpoint.as_deref().map(mount_or_below).transpose()?;
        let mounts = mounts_of(place.as_deref())?;
        let [mounted] = mounts.as_slice() else {
            let points: Vec<_> =
                mounts.iter().map(|mounted| mounted.mountpoint.display().to_string()).collect();
            let text = format!("several stores are mounted; name one of {}", points.join(", "));
            return Err(Error::invalid(text));
        };
        let number = self.job;
        if !cancel(mounted, number)? {
            let text = format!("no job {number} of yours is running or waiting; tierfs jobs lists them");
            return Err(Error::new(ErrorKind::NotFound, text));
        }
        let job = wait(mounted, &Interrupt::listen()?, &new_bar(), |job| job.number == number)?;
        let gone = || Error::new(ErrorKind::NotFound, format!("the mount no longer lists job {number}"));
        let job = job.ok_or_else(gone)?;
        if self.json {
            print_json(&job.value)?;
        } else {
            print(&format!("job {number}: {}\n", job.ended_text()))?;
        }
        Ok(Outcome::Succeeded)
    }
}
