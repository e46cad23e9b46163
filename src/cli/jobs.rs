//! `tierfs jobs`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs::{Job, jobs, jobs_in};
use crate::cli::common::mounts::{Mounted, all_mounts, mounts_of};
use crate::cli::common::output::{complain, human, human_part, print, print_json};
use crate::cli::common::places::mount_or_below;
use crate::cli::common::watch::{JobList, wait_for_change};
use crate::model::{ErrorKind, Result};

/// List the jobs of mounts: those that wait and run, and the last ones that have ended.
///
/// Example: tierfs jobs --follow /mnt/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A mount point or a mounted store; without it, every mount
    mountpoint: Option<PathBuf>,
    /// Print each job when it ends, until no job is left
    #[arg(long)]
    follow: bool,
    /// Print JSON: an array, or with --follow one object a line
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let place = self.mountpoint.as_deref().map(mount_or_below).transpose()?;
        let mounts = self.readable(mounts_of(place.as_deref())?)?;
        if self.follow {
            return self.follow(&mounts);
        }
        let (mut rows, mut text) = (Vec::new(), String::new());
        for mounted in &mounts {
            let listed = match jobs(mounted) {
                // It was unmounted meanwhile.
                Err(_) if self.mountpoint.is_none() && !all_mounts()?.contains(mounted) => continue,
                listed => listed?,
            };
            for job in listed {
                text.push_str(&line(mounted, &job));
                rows.push(json(mounted, &job));
            }
        }
        if self.json { print_json(&rows.into()) } else { print(&text) }?;
        Ok(Outcome::Succeeded)
    }

    /// The mounts whose jobs this user may read. Only a mount that was named must be one of them.
    fn readable(&self, mounts: Vec<Mounted>) -> Result<Vec<Mounted>> {
        if self.mountpoint.is_some() {
            return Ok(mounts);
        }
        let mut readable = Vec::new();
        for mounted in mounts {
            match JobList::read(&mounted) {
                Err(error) if error.kind() == ErrorKind::Forbidden => {
                    complain(&format!("tierfs: {error}; its jobs are left out"));
                }
                // Other errors are met again when the list is read.
                _ => readable.push(mounted),
            }
        }
        Ok(readable)
    }

    fn follow(&self, mounts: &[Mounted]) -> Result<Outcome> {
        let interrupt = Interrupt::listen()?;
        let mut ended = BTreeSet::new();
        for (place, mounted) in mounts.iter().enumerate() {
            let old = jobs(mounted)?.into_iter().filter(Job::has_ended);
            ended.extend(old.map(|job| (place, job.number)));
        }
        while !interrupt.is_pressed() {
            let mut waits = false;
            let lists = mounts.iter().map(JobList::read).collect::<Result<Vec<_>>>()?;
            for (place, (mounted, list)) in mounts.iter().zip(&lists).enumerate() {
                for job in jobs_in(list) {
                    waits |= !job.has_ended();
                    if job.has_ended() && ended.insert((place, job.number)) {
                        print(&if self.json {
                            format!("{}\n", json(mounted, &job))
                        } else {
                            line(mounted, &job)
                        })?;
                    }
                }
            }
            if !waits {
                break;
            }
            wait_for_change(&lists, None)?;
        }
        Ok(Outcome::Succeeded)
    }
}

fn json(mounted: &Mounted, job: &Job) -> serde_json::Value {
    let mut value = job.value.clone();
    if let Some(object) = value.as_object_mut() {
        object.insert("mountpoint".to_owned(), mounted.mountpoint.display().to_string().into());
    }
    value
}

fn line(mounted: &Mounted, job: &Job) -> String {
    let number = |key: &str| job.value.get(key).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let seconds = job.value.get("seconds").and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let state = match job.state.as_str() {
        "waiting" => "waiting".to_owned(),
        "running" if number("bytes") > 0 => {
            format!("running, {} in {seconds:.0} s", human_part(number("done_bytes"), number("bytes")))
        }
        "running" => format!("running, {} in {seconds:.0} s", human(number("done_bytes"))),
        "done" => format!("done in {seconds:.1} s: {}", job.text),
        _ => job.ended_text(),
    };
    let path = mounted.mountpoint.join(job.path.trim_start_matches('/'));
    format!("{:>4}  {}  {}  {state}\n", job.number, job.request, path.display())
}
