//! The jobs of a mount: lists them, waits for them, cancels them.

use std::fs;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::mounts::Mounted;
use crate::cli::common::output::{complain, printable};
use crate::cli::common::watch::{JobList, wait_for_change};
use crate::model::{Error, ErrorKind, Result};

/// Interval at which progress is shown on a terminal.
pub(in crate::cli) const SHOW_EVERY: Duration = Duration::from_millis(50);

/// A job of a mount.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Job {
    pub number: u64,
    /// The request: `tier=q5`, `import:TAG`, `scrub`.
    pub request: String,
    /// The path in the mount.
    pub path: String,
    /// `waiting`, `running`, `done`, `failed` or `cancelled`.
    pub state: String,
    pub error: String,
    /// Its result so far.
    pub text: String,
    /// The whole object that the daemon printed.
    pub value: Value,
}

impl Job {
    fn of(value: &Value) -> Option<Job> {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(Job {
            number: value.get("job")?.as_u64()?,
            request: text("request"),
            path: text("path"),
            state: text("state"),
            error: text("error"),
            text: text("text"),
            value: value.clone(),
        })
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.state.as_str(), "done" | "failed" | "cancelled")
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state == "cancelled"
    }

    /// The line that ends a request.
    pub fn ended_text(&self) -> String {
        match (self.state.as_str(), self.text.as_str()) {
            ("failed", _) => format!("failed: {}", self.error),
            ("cancelled", "") => "cancelled; nothing was done".to_owned(),
            ("cancelled", text) => format!("cancelled: {text}"),
            (_, text) => text.to_owned(),
        }
    }

    /// A number of its value; 0 without one of that name.
    pub fn number_of(&self, key: &str) -> u64 {
        self.value.get(key).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// The jobs of a mount that the user may see, in the order in which they were queued.
pub(in crate::cli) fn jobs(mounted: &Mounted) -> Result<Vec<Job>> {
    Ok(jobs_in(&JobList::read(mounted)?))
}

/// The jobs in a list.
pub(in crate::cli) fn jobs_in(list: &JobList) -> Vec<Job> {
    jobs_of(&serde_json::from_slice(&list.text).unwrap_or_default())
}

/// The jobs in the content of a list.
pub(in crate::cli) fn jobs_of(list: &Value) -> Vec<Job> {
    list.as_array().map_or(Vec::new(), |jobs| jobs.iter().filter_map(Job::of).collect())
}

/// The number of the last job; 0 without any.
pub(in crate::cli) fn last_number(mounted: &Mounted) -> Result<u64> {
    Ok(jobs(mounted)?.last().map_or(0, |job| job.number))
}

/// Cancels a job. Returns whether it was running or waiting.
pub(in crate::cli) fn cancel(mounted: &Mounted, number: u64) -> Result<bool> {
    let failed = |error| Error::io(format!("cancelling job {number}"), error);
    match fs::write(mounted.mountpoint.join(".ctl/jobs"), format!("cancel {number}")) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Waits for the end of the first job that `is_it` accepts, with a bar of its bytes. Ctrl-C cancels it.
/// `None` if there is no such job.
pub(in crate::cli) fn wait(
    mounted: &Mounted,
    interrupt: &Interrupt,
    bar: &ProgressBar,
    is_it: impl Fn(&Job) -> bool,
) -> Result<Option<Job>> {
    let mut is_told = false;
    loop {
        let list = JobList::read(mounted)?;
        let Some(job) = jobs_in(&list).into_iter().find(|job| is_it(job)) else { return Ok(None) };
        if job.has_ended() {
            bar.finish_and_clear();
            return Ok(Some(job));
        }
        if interrupt.is_pressed() && !is_told {
            is_told = true;
            cancel(mounted, job.number)?;
            bar.suspend(|| {
                complain(&format!("tierfs: cancelling job {}; press Ctrl-C again to leave now", job.number))
            });
        }
        bar.set_length(job.number_of("bytes"));
        bar.set_position(job.number_of("done_bytes"));
        bar.set_message(printable(&job.request).into_owned());
        wait_for_change(&[list], (!bar.is_hidden()).then_some(SHOW_EVERY))?;
    }
}

/// Runs `start`, which queues a job with this request, and waits for the job. Fails as the job does.
pub(in crate::cli) fn wait_for_new(
    mounted: &Mounted,
    request: &str,
    start: impl FnOnce() -> Result<()>,
) -> Result<Job> {
    let interrupt = Interrupt::listen()?;
    let before = last_number(mounted)?;
    start()?;
    let is_it = |job: &Job| job.number > before && job.request == request;
    let gone = || Error::new(ErrorKind::NotFound, format!("the mount no longer lists job {request}"));
    let job = wait(mounted, &interrupt, &new_bar(), is_it)?.ok_or_else(gone)?;
    match job.state.as_str() {
        "failed" => Err(Error::new(ErrorKind::Denied, job.error)),
        "cancelled" => Err(Error::new(ErrorKind::Interrupted, job.ended_text())),
        _ => Ok(job),
    }
}

/// Has the daemon do the work of the control file `name` on all collections, and waits. Returns one line
/// per collection.
pub(in crate::cli) fn run_by_daemon(mounted: &Mounted, name: &str) -> Result<String> {
    let path = mounted.mountpoint.join(".ctl").join(name);
    let failed = |error| Error::io(path.display(), error);
    wait_for_new(mounted, name, || fs::write(&path, "start").map_err(failed))?;
    fs::read_to_string(&path).map_err(failed)
}

/// A bar of bytes on a terminal; hidden elsewhere.
pub(in crate::cli) fn new_bar() -> ProgressBar {
    let is_shown = std::io::stderr().is_terminal();
    let bar = if is_shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {bytes}/{total_bytes} {wide_msg}") {
        bar.set_style(style);
    }
    bar
}
