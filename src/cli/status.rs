//! `tierfs status`.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::connection::left_elsewhere;
use crate::cli::common::jobs::{Job, jobs};
use crate::cli::common::mounts::{Mounted, all_mounts, mount_of};
use crate::cli::common::output::{print, print_json};
use crate::cli::common::places::mount_or_below;
use crate::model::{Error, ErrorKind, Result};

/// Longest wait for the answers of all mounts.
const ANSWERS_MAX: Duration = Duration::from_secs(5);

/// The state of a mount and its unfinished jobs.
type State = (&'static str, usize);

/// Show the mounts of this machine, or the state of one.
///
/// Without a mount point, prints one line per mount: the mount point, its store, and whether its daemon
/// answers, or that the mount is closed to you, or that only a container still has it. With one, prints the daemon's view of the store. Says how to recover if the daemon has
/// ended.
///
/// Example: tierfs status /mnt/tensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// A mount point, a path below one, or a mounted store
    mountpoint: Option<PathBuf>,
    /// Print JSON: an array of mounts, or an object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        match &self.mountpoint {
            None => self.all(),
            Some(path) => {
                let mounted = mount_of(&mount_or_below(path)?)?.ok_or_else(|| {
                    let text = format!(
                        "{} is not on a tierfs mount; tierfs status lists the mounts",
                        path.display()
                    );
                    Error::new(ErrorKind::NotFound, text)
                })?;
                self.one(&mounted)
            }
        }
    }

    fn all(&self) -> Result<Outcome> {
        let (mut rows, mut text, mut outcome) = (Vec::new(), String::new(), Outcome::Succeeded);
        let until = Instant::now() + ANSWERS_MAX;
        let asked: Vec<_> = all_mounts()?.into_iter().map(|mounted| (asked(&mounted), mounted)).collect();
        for (answer, mounted) in asked {
            let (point, store) =
                (mounted.mountpoint.display().to_string(), mounted.store.display().to_string());
            let left = until.saturating_duration_since(Instant::now());
            let (state, running) = answer.recv_timeout(left).unwrap_or(("no answer", 0));
            rows.push(json!({ "mountpoint": point, "store": store, "state": state, "jobs": running }));
            let note = match state {
                "ok" if running == 1 => "1 job".to_owned(),
                "ok" if running > 0 => format!("{running} jobs"),
                "ended" => {
                    outcome = Outcome::Failed;
                    format!("the daemon has ended; {}", mounted.remedy())
                }
                "closed" => {
                    "closed to you; its user can open it to others: tierfs mount --allow-other".to_owned()
                }
                "no answer" => format!("no answer; tierfs umount --force {point} ends the mount"),
                state => state.to_owned(),
            };
            text.push_str(&format!("{point}  {store}  {note}\n"));
        }
        for user in left_elsewhere() {
            let (point, store) =
                (user.mounted.mountpoint.display().to_string(), user.mounted.source.display());
            rows.push(
                json!({ "mountpoint": point, "store": store.to_string(), "state": "elsewhere", "jobs": 0 }),
            );
            text.push_str(&format!(
                "{point}  {store}  not mounted here any more, but still used in another mount namespace: {user}; \
                 tierfs umount --force {point} ends the mount\n"
            ));
        }
        if self.json {
            print_json(&rows.into())?;
        } else if text.is_empty() {
            print("no store is mounted\n")?;
        } else {
            print(&text)?;
        }
        Ok(outcome)
    }

    fn one(&self, mounted: &Mounted) -> Result<Outcome> {
        let name = if self.json { ".ctl/stats.json" } else { ".ctl/status" };
        let shown = mounted.mountpoint.display();
        let text = fs::read_to_string(mounted.mountpoint.join(name)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                format!("{shown}: a mount with opens=kernel has no control files"),
            ),
            _ => Error::io(format!("asking the mount {shown}"), error),
        })?;
        if self.json {
            print_json(&serde_json::from_str::<Value>(&text).unwrap_or_default())?;
        } else {
            print(&text)?;
        }
        Ok(Outcome::Succeeded)
    }
}

/// Asks a mount on a thread of its own: one whose daemon is stopped or stuck keeps whoever asks.
fn asked(mounted: &Mounted) -> Receiver<State> {
    let (sender, receiver) = channel();
    let mounted = mounted.clone();
    thread::spawn(move || {
        let state = match jobs(&mounted) {
            Ok(jobs) => ("ok", jobs.iter().filter(|job| !Job::has_ended(job)).count()),
            Err(_) if mounted.is_dead() => ("ended", 0),
            Err(_) if mounted.is_closed() => ("closed", 0),
            Err(error) if error.kind() == ErrorKind::NotFound => ("no control files (opens=kernel)", 0),
            Err(_) => ("no answer", 0),
        };
        // Nobody waits any more if this took too long.
        sender.send(state).ok();
    });
    receiver
}
