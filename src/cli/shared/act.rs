//! `tierfs tier`, `pin`, `unpin`, `evict`: attributes of files of a mount, set, and waited for.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::fs::XattrFlags;

use crate::cli::Done;
use crate::cli::shared::mounts::{Mounted, mount_of};
use crate::cli::shared::output::{print, print_json};
use crate::control::PREFIX;
use crate::model::{Error, ErrorKind, Result};

/// How often it is looked at what goes on.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Move tensors to a precision tier.
///
/// Of a container or a directory those tensors go that quantizers of models take too; with
/// :all after the tier every float tensor. Precision goes only where user.tierfs.lossy is
/// allow, or where an exact source remains.
///
/// Example: tierfs tier q5 /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Tier {
    /// exact, q8, q7, q5, q3 or q3x; with :all after it every float tensor
    tier: String,
    /// Files or directories of a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Keep files as they read now, contiguous, and in their tier.
///
/// The kernel reads the copy itself. Of a container its tensors too, of a directory every file
/// below it.
///
/// Example: tierfs pin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Pin {
    /// Files or directories of a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Let pinned files go, and remove their copies.
///
/// Example: tierfs unpin /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(in crate::cli) struct Unpin {
    /// Files or directories of a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// Give up what is stored of tensors, or the kernel's pages of files.
///
/// Without an option only of tensors that can be made again: user.tierfs.reconstruct says how.
/// Of a container or a directory nothing is given up where one of the tensors is pinned, needed
/// by others, or has no way back.
///
/// Example: tierfs evict --cache /mnt/acme/llama
#[derive(clap::Args)]
pub(in crate::cli) struct Evict {
    /// Files or directories of a mount
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Drop the kernel's pages of what was read, and nothing that is stored
    #[arg(long, conflicts_with = "discard")]
    cache: bool,
    /// Stored bytes for good; user.tierfs.lossy must be allow
    #[arg(long)]
    discard: bool,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

impl Tier {
    pub fn run(self) -> Result<Done> {
        set_all(&self.paths, "tier", &self.tier, self.json)
    }
}

impl Pin {
    pub fn run(self) -> Result<Done> {
        set_all(&self.paths, "pin", "1", self.json)
    }
}

impl Unpin {
    pub fn run(self) -> Result<Done> {
        set_all(&self.paths, "pin", "0", self.json)
    }
}

impl Evict {
    pub fn run(self) -> Result<Done> {
        let value = match (self.cache, self.discard) {
            (true, _) => "cache",
            (_, true) => "discard",
            _ => "1",
        };
        set_all(&self.paths, "evict", value, self.json)
    }
}

/// Sets an attribute of each path, and waits until that has done what it does. Goes on when
/// one fails.
pub(in crate::cli) fn set_all(paths: &[PathBuf], name: &str, value: &str, json: bool) -> Result<Done> {
    let mut done = Done::Well;
    let mut rows = Vec::new();
    for path in paths {
        let ended = set_one(path, name, value);
        let (text, failed) = match &ended {
            Ok(text) => (text.clone(), false),
            Err(error) => (error.to_string(), true),
        };
        if failed {
            done = Done::Failed;
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
        Error::invalid("it lies on no tierfs mount; mount the store and name a path of the mount")
    })?;
    let is_directory = fs::metadata(path).map_err(|error| Error::io(path.display(), error))?.is_dir();
    let before = if is_directory { last_job(&mounted)?.map_or(0, |job| job.number) } else { 0 };
    let has_ended = AtomicBool::new(false);
    let set = std::thread::scope(|scope| {
        let attribute = format!("{PREFIX}{name}");
        let setting = scope.spawn(|| {
            let set = rustix::fs::setxattr(path, attribute, value.as_bytes(), XattrFlags::empty());
            has_ended.store(true, Ordering::Release);
            set
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

/// The reason that the daemon left, or what the error number says.
fn refusal(path: &Path, errno: rustix::io::Errno) -> Error {
    let error = std::io::Error::from(errno);
    let mut why = vec![0; 4096];
    match rustix::fs::getxattr(path, format!("{PREFIX}why"), &mut why[..]) {
        Ok(len) if len > 0 => {
            why.truncate(len);
            Error::new(ErrorKind::Denied, format!("{error}: {}", String::from_utf8_lossy(&why)))
        }
        _ => Error::new(ErrorKind::Denied, format!("{error}; /.ctl/events of the mount may say why")),
    }
}

/// Shows how far a file is, until it is there.
fn show_tier(path: &Path, has_ended: &AtomicBool) {
    let bar = new_bar();
    while !has_ended.load(Ordering::Acquire) {
        std::thread::sleep(LOOK_EVERY);
        let mut tier = vec![0; 256];
        if let Ok(len) = rustix::fs::getxattr(path, format!("{PREFIX}tier"), &mut tier[..]) {
            let text = String::from_utf8_lossy(tier.get(..len).unwrap_or_default()).into_owned();
            bar.set_position(percent(&text));
            bar.set_message(text);
        }
    }
    bar.finish_and_clear();
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
    let path = mounted.mountpoint.join(".ctl/jobs");
    let text = fs::read(&path).map_err(|error| Error::io(path.display(), error))?;
    let line = text.split(|byte| *byte == b'\n').rfind(|line| !line.is_empty());
    Ok(line.and_then(|line| job_of(&String::from_utf8_lossy(line))))
}

fn job_of(line: &str) -> Option<JobLine> {
    let (number, text) = line.split_once(' ')?;
    Some(JobLine { number: number.parse().ok()?, text: text.to_owned() })
}

/// Starts something that queues a job, and waits for its end with a bar; what it said.
pub(in crate::cli) fn wait_for_new_job(
    mounted: &Mounted,
    start: impl FnOnce() -> Result<()>,
) -> Result<String> {
    let before = last_job(mounted)?.map_or(0, |job| job.number);
    start()?;
    wait_for_job(mounted, before)
}

/// Waits for the job that came after number `before`.
fn wait_for_job(mounted: &Mounted, before: u64) -> Result<String> {
    let path = mounted.mountpoint.join(".ctl/jobs");
    let bar = new_bar();
    loop {
        let text = fs::read_to_string(&path).map_err(|error| Error::io(path.display(), error))?;
        let job = text.lines().filter_map(job_of).find(|job| job.number > before);
        let Some(job) = job else { return Ok("nothing to do".to_owned()) };
        if let Some(ended) = how_it_ended(&job.text) {
            bar.finish_and_clear();
            return ended;
        }
        bar.set_position(percent(&job.text));
        bar.set_message(job.text);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits for the job of this name, and shows on a bar of bytes how far it is; what it said.
/// Jobs that ended are shown for a while only, so it must have been queued just now.
pub(in crate::cli) fn wait_for_tagged_job(
    mounted: &Mounted,
    what: &str,
    bar: &ProgressBar,
) -> Result<String> {
    let path = mounted.mountpoint.join(".ctl/jobs");
    loop {
        let text = fs::read_to_string(&path).map_err(|error| Error::io(path.display(), error))?;
        let mut jobs = text.lines().filter_map(job_of);
        let job = jobs.find(|job| job.text.split(' ').next() == Some(what));
        let job = job.ok_or_else(|| Error::new(ErrorKind::NotFound, format!("the job {what} is gone")))?;
        if let Some(ended) = how_it_ended(&job.text) {
            return ended;
        }
        if let Some(done) = job.text.split(" of ").next().and_then(|text| text.rsplit(' ').next()) {
            bar.set_position(done.parse().unwrap_or_default());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What a job that has ended says, or why it failed.
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
    fn lines_of_jobs_are_read() {
        let job = job_of("12 tier=q8 t/c running 41% 7 of 17 bytes, 3 s").unwrap();
        assert_eq!((job.number, percent(&job.text)), (12, 41));
        assert_eq!((percent("q8 -> q5 7%"), percent("exact")), (7, 0));
        assert!(job_of("no line").is_none());
    }
}
