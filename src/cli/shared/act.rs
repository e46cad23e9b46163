//! `tierfs tier`, `pin`, `unpin`, `evict`: set an attribute of files on a mount and wait for its effect.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::XattrFlags;

use crate::cli::Outcome;
use crate::cli::shared::mounts::{Mounted, mount_of};
use crate::cli::shared::output::{print, print_json};
use crate::cli::shared::watch::JobList;
use crate::control::PREFIX;
use crate::model::{Error, ErrorKind, Result};

/// Interval at which progress is shown on a terminal.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// Move tensors to a precision tier.
///
/// On a container or directory, moves the tensors that model quantizers usually touch; with :all
/// after the tier, every float tensor. Precision is given up only where user.tierfs.lossy is allow
/// or an exact source remains.
///
/// Example: tierfs tier q5 /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Tier {
    /// exact, q8, q7, q5, q3 or q3x; append :all to move every float tensor
    tier: String,
    /// Files or directories on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Keep files contiguous, with the bytes that they have now, and in their tier.
///
/// tierfs stores a contiguous copy of each file, which the kernel reads without the daemon. Pinning
/// a container also pins its tensors; pinning a directory pins every file below it.
///
/// Example: tierfs pin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Pin {
    /// Files or directories on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Unpin files and remove their copies.
///
/// Example: tierfs unpin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Unpin {
    /// Files or directories on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Remove the stored bytes of tensors, or drop the page cache of files.
///
/// Without an option, evicts only tensors that can be reconstructed (see user.tierfs.reconstruct). A
/// container or directory is left unchanged if any of its tensors is pinned, is needed by another
/// tensor, or cannot be reconstructed.
///
/// Example: tierfs evict --cache /mnt/acme/llama
#[derive(clap::Args)]
pub(in crate::cli) struct Evict {
    /// Files or directories on a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Drop only the kernel's page cache; stored bytes stay
    #[arg(long, conflicts_with = "discard")]
    cache: bool,
    /// Remove the stored bytes permanently; requires user.tierfs.lossy=allow
    #[arg(long)]
    discard: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Tier {
    pub fn run(self) -> Result<Outcome> {
        set_all(&self.paths, "tier", &self.tier, self.json)
    }
}

impl Pin {
    pub fn run(self) -> Result<Outcome> {
        set_all(&self.paths, "pin", "1", self.json)
    }
}

impl Unpin {
    pub fn run(self) -> Result<Outcome> {
        set_all(&self.paths, "pin", "0", self.json)
    }
}

impl Evict {
    pub fn run(self) -> Result<Outcome> {
        let value = match (self.cache, self.discard) {
            (true, _) => "cache",
            (_, true) => "discard",
            _ => "1",
        };
        set_all(&self.paths, "evict", value, self.json)
    }
}

/// Sets an attribute of each path and waits for its effect. Continues with the next path when one
/// fails.
pub(in crate::cli) fn set_all(paths: &[PathBuf], name: &str, value: &str, json: bool) -> Result<Outcome> {
    let mut done = Outcome::Succeeded;
    let mut rows = Vec::new();
    for path in paths {
        let ended = set_one(path, name, value);
        let (text, failed) = match &ended {
            Ok(text) => (text.clone(), false),
            Err(error) => (error.to_string(), true),
        };
        if failed {
            done = Outcome::Failed;
        }
        match (json, failed) {
            (true, _) => rows.push(serde_json::json!({
                "path": path.display().to_string(), "failed": failed, "text": text
            })),
            (false, true) => eprintln!("tierfs: {}: {text}", path.display()),
            (false, false) => print(&format!("{}: {text}\n", path.display()))?,
        }
    }
    if json {
        print_json(&serde_json::Value::Array(rows))?;
    }
    Ok(done)
}

fn set_one(path: &Path, name: &str, value: &str) -> Result<String> {
    let mounted = mount_of(path)?.ok_or_else(|| {
        Error::invalid(
            "no tierfs mount contains this path; mount the store and name a path below its mount point",
        )
    })?;
    let is_directory = fs::metadata(path).map_err(|error| Error::io(path.display(), error))?.is_dir();
    let before = if is_directory { last_job(&mounted)?.map_or(0, |job| job.number) } else { 0 };
    let set = std::thread::scope(|scope| {
        let attribute = format!("{PREFIX}{name}");
        let (ended, has_ended) = mpsc::channel::<()>();
        let setting = scope.spawn(move || {
            let _ended = ended;
            rustix::fs::setxattr(path, attribute, value.as_bytes(), XattrFlags::empty())
        });
        if !is_directory {
            show_tier(path, &has_ended);
        }
        setting.join().unwrap_or(Err(rustix::io::Errno::IO))
    });
    set.map_err(|errno| refusal(path, errno))?;
    if is_directory && value != "cache" {
        wait_for_job(&mounted, before)
    } else {
        Ok(format!("{name} {value}"))
    }
}

/// The reason that the daemon recorded in `why`, or else the text of the error number.
fn refusal(path: &Path, errno: rustix::io::Errno) -> Error {
    let error = std::io::Error::from(errno);
    let mut why = vec![0; 4096];
    match rustix::fs::getxattr(path, format!("{PREFIX}why"), &mut why[..]) {
        Ok(len) if len > 0 => {
            why.truncate(len);
            Error::new(ErrorKind::Denied, format!("{error}: {}", String::from_utf8_lossy(&why)))
        }
        _ => Error::new(ErrorKind::Denied, format!("{error}; see .ctl/events of the mount for the reason")),
    }
}

/// Shows the progress of a move on a terminal until the other end of the channel is dropped.
fn show_tier(path: &Path, has_ended: &mpsc::Receiver<()>) {
    let bar = new_bar();
    if bar.is_hidden() {
        return;
    }
    while has_ended.recv_timeout(SHOW_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
        let mut tier = vec![0; 256];
        if let Ok(len) = rustix::fs::getxattr(path, format!("{PREFIX}tier"), &mut tier[..]) {
            let text = String::from_utf8_lossy(tier.get(..len).unwrap_or_default()).into_owned();
            bar.set_position(percent(&text));
            bar.set_message(text);
        }
    }
    bar.finish_and_clear();
}

/// The time after which a bar is drawn again: never if it is hidden.
fn show_every(bar: &ProgressBar) -> Option<Duration> {
    (!bar.is_hidden()).then_some(SHOW_EVERY)
}

fn new_bar() -> ProgressBar {
    let is_shown = std::io::stderr().is_terminal();
    let bar = if is_shown { ProgressBar::new(100) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent}% {wide_msg}") {
        bar.set_style(style);
    }
    bar
}

/// The number before the first percent sign.
fn percent(text: &str) -> u64 {
    let before = text.split('%').next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A line of `/.ctl/jobs`.
struct JobLine {
    number: u64,
    text: String,
}

fn last_job(mounted: &Mounted) -> Result<Option<JobLine>> {
    Ok(JobList::read(mounted)?.text.lines().rfind(|line| !line.is_empty()).and_then(job_of))
}

fn job_of(line: &str) -> Option<JobLine> {
    let (number, text) = line.split_once(' ')?;
    Some(JobLine { number: number.parse().ok()?, text: text.to_owned() })
}

/// Runs `start`, which queues a job, and waits for the job with a progress bar. Returns the job's
/// result text.
pub(in crate::cli) fn wait_for_new_job(
    mounted: &Mounted,
    start: impl FnOnce() -> Result<()>,
) -> Result<String> {
    let before = last_job(mounted)?.map_or(0, |job| job.number);
    start()?;
    wait_for_job(mounted, before)
}

/// Waits for the first job with a number above `before`.
fn wait_for_job(mounted: &Mounted, before: u64) -> Result<String> {
    let bar = new_bar();
    loop {
        let list = JobList::read(mounted)?;
        let job = list.text.lines().filter_map(job_of).find(|job| job.number > before);
        let Some(job) = job else { return Ok("nothing to do".to_owned()) };
        if let Some(ended) = how_it_ended(&job.text) {
            bar.finish_and_clear();
            return ended;
        }
        bar.set_position(percent(&job.text));
        bar.set_message(job.text);
        list.wait(show_every(&bar))?;
    }
}

/// Waits for the job with this name, showing its progress on a bar of bytes, and returns its result
/// text. `/.ctl/jobs` drops jobs some time after they end, so the job must have been queued just now.
pub(in crate::cli) fn wait_for_tagged_job(
    mounted: &Mounted,
    what: &str,
    bar: &ProgressBar,
) -> Result<String> {
    loop {
        let list = JobList::read(mounted)?;
        let mut jobs = list.text.lines().filter_map(job_of);
        let job = jobs.find(|job| job.text.split(' ').next() == Some(what));
        let job = job.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("job {what} is no longer listed in .ctl/jobs"))
        })?;
        if let Some(ended) = how_it_ended(&job.text) {
            return ended;
        }
        if let Some(done) = job.text.split(" of ").next().and_then(|text| text.rsplit(' ').next()) {
            bar.set_position(done.parse().unwrap_or_default());
        }
        list.wait(show_every(bar))?;
    }
}

/// The result text of a job that has ended, or the reason that it failed.
fn how_it_ended(text: &str) -> Option<Result<String>> {
    if let Some(at) = text.find(" done in ") {
        return Some(Ok(text.split_at(at + 1).1.to_owned()));
    }
    let at = text.find(" failed: ").or_else(|| text.find(" cancelled"))?;
    Some(Err(Error::new(ErrorKind::Denied, text.split_at(at + 1).1.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::{job_of, percent};

    #[test]
    fn job_lines_are_parsed() {
        let job = job_of("12 tier=q8 t/c running 41% 7 of 17 bytes, 3 s").unwrap();
        assert_eq!((job.number, percent(&job.text)), (12, 41));
        assert_eq!((percent("q8 -> q5 7%"), percent("exact")), (7, 0));
        assert!(job_of("no line").is_none());
    }
}
