//! Sets an attribute of files, directories, collections, tenants or whole mounts, and waits for the effect.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;

use rustix::fs::XattrFlags;
use serde_json::{Map, Value, json};

use crate::cli::Outcome;
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs::{self, Job, SHOW_EVERY, new_bar};
use crate::cli::common::mounts::{Mounted, mount_of};
use crate::cli::common::output::{complain, print, print_json};
use crate::cli::common::places::in_mount;
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::control::PREFIX;
use crate::model::Result;

/// How a request is made.
#[derive(clap::Args, Clone, Debug)]
pub(in crate::cli) struct How {
    /// Print the number of the job and leave; tierfs jobs shows its progress
    #[arg(long)]
    pub detach: bool,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// An attribute and its new value.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Request<'a> {
    pub name: &'a str,
    pub value: &'a str,
    /// The words of the command before the path, for advice.
    pub words: &'a str,
}

/// How a request for one path ended.
enum Ended {
    /// It was done, with a result.
    Done(String, Value),
    /// It runs as this job.
    Queued(u64),
    /// It was cancelled or failed, with the result so far.
    Stopped(Job),
    Refused(Refusal),
}

/// Makes requests for each path, in order, and prints their ends. Continues with the next path after a
/// refusal, but not after Ctrl-C.
pub(in crate::cli) fn make_all(requests: &[Request], paths: &[PathBuf], how: &How) -> Result<Outcome> {
    let paths = &in_mount(paths)?;
    let interrupt = Interrupt::listen()?;
    let (mut outcome, mut rows) = (Outcome::Succeeded, Vec::new());
    for path in paths {
        let targets = match targets(path) {
            Ok(targets) => targets,
            Err(refused) => {
                outcome = Outcome::Failed;
                show(path, &Ended::Refused(refused), how, &mut rows)?;
                continue;
            }
        };
        for (mounted, path) in &targets {
            for request in requests {
                let ended = make(mounted, path, request, &interrupt, how);
                if !matches!(ended, Ended::Done(..) | Ended::Queued(_)) {
                    outcome = Outcome::Failed;
                }
                show(path, &ended, how, &mut rows)?;
                if interrupt.is_pressed() {
                    return finish(Outcome::Failed, how, rows);
                }
            }
        }
    }
    finish(outcome, how, rows)
}

fn finish(outcome: Outcome, how: &How, rows: Vec<Value>) -> Result<Outcome> {
    if how.json {
        print_json(&Value::Array(rows))?;
    }
    Ok(outcome)
}

/// The collections of a mount or tenant; any other path itself.
pub(in crate::cli) fn targets(path: &Path) -> std::result::Result<Vec<(Mounted, PathBuf)>, Refusal> {
    let mounted = mount_of(path).map_err(|error| Refusal::from(&error))?;
    let Some(mounted) = mounted else {
        if !path.exists() {
            return Err(Refusal::new("not found", "there is no such file or directory", None));
        }
        let advice = "to mount a store: tierfs mount STORE MOUNTPOINT".to_owned();
        return Err(Refusal::new("not mounted", "it is not on a tierfs mount", Some(advice)));
    };
    let listed = |path: &Path| -> std::result::Result<Vec<PathBuf>, Refusal> {
        let failed = |error: std::io::Error| Refusal::new("system", crate::model::plain(&error), None);
        let mut found = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            found.push(path.join(entry.map_err(failed)?.file_name()));
        }
        found.sort();
        Ok(found)
    };
    let paths = match depth(&mounted, path) {
        Some(0) => {
            let tenants = listed(path)?;
            let collections: std::result::Result<Vec<_>, _> =
                tenants.iter().map(|tenant| listed(tenant)).collect();
            collections?.concat()
        }
        Some(1) => listed(path)?,
        _ => vec![path.to_owned()],
    };
    if paths.is_empty() {
        return Err(Refusal::new("not found", "there is no collection in it", None));
    }
    Ok(paths.into_iter().map(|path| (mounted.clone(), path)).collect())
}

/// The number of names below the mount point.
fn depth(mounted: &Mounted, path: &Path) -> Option<usize> {
    let real = fs::canonicalize(path).ok()?;
    let below = real.strip_prefix(&mounted.mountpoint).ok()?;
    Some(below.components().filter(|part| matches!(part, Component::Normal(_))).count())
}

fn make(mounted: &Mounted, path: &Path, request: &Request, interrupt: &Interrupt, how: &How) -> Ended {
    let typed = Typed { words: request.words, path };
    let before = refusal::last_number(path);
    let last_job = match jobs::last_number(mounted) {
        Ok(number) => number,
        Err(error) => return Ended::Refused(Refusal::from(&error)),
    };
    let asked = format!("{}={}", request.name, request.value);
    let is_it = |job: &Job| job.number > last_job && job.request == asked;
    let job_now = || jobs::jobs(mounted).ok().and_then(|jobs| jobs.into_iter().find(|job| is_it(job)));
    // A file's request ends with the call, so the call has a thread of its own.
    let (sender, answer) = mpsc::channel();
    let (attribute, value) = (format!("{PREFIX}{}", request.name), request.value.to_owned());
    let owned = path.to_owned();
    std::thread::spawn(move || {
        let set = rustix::fs::setxattr(&owned, attribute, value.as_bytes(), XattrFlags::empty());
        sender.send(set).unwrap_or_default();
    });
    let bar = new_bar();
    let mut is_told = false;
    let set = loop {
        match answer.recv_timeout(SHOW_EVERY) {
            Ok(set) => break set,
            Err(mpsc::RecvTimeoutError::Disconnected) => break Err(rustix::io::Errno::IO),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let Some(job) = job_now() else { continue };
        if how.detach {
            return Ended::Queued(job.number);
        }
        if interrupt.is_pressed() && !is_told {
            is_told = true;
            match jobs::cancel(mounted, job.number) {
                Ok(_) => complain(&format!(
                    "tierfs: cancelling job {}; press Ctrl-C again to leave now",
                    job.number
                )),
                Err(error) => complain(&format!("tierfs: {error}")),
            }
        }
        bar.set_length(job.value.get("bytes").and_then(Value::as_u64).unwrap_or(0));
        bar.set_position(job.value.get("done_bytes").and_then(Value::as_u64).unwrap_or(0));
    };
    if let Err(errno) = set {
        bar.finish_and_clear();
        if let Some(job) = job_now().filter(Job::is_cancelled) {
            return Ended::Stopped(job);
        }
        return Ended::Refused(Refusal::of(mounted, &typed, before, errno));
    }
    if let Some(job) = job_now().filter(|_| how.detach) {
        return Ended::Queued(job.number);
    }
    match jobs::wait(mounted, interrupt, &bar, is_it) {
        Ok(None) => Ended::Done(asked, Value::Null),
        Ok(Some(job)) if job.state == "done" => {
            let result = job.value.get("result").cloned().unwrap_or_default();
            Ended::Done(job.text, result)
        }
        Ok(Some(job)) if job.state == "failed" => match Refusal::newer(mounted, &typed, before) {
            Some(refusal) => Ended::Refused(refusal),
            None => Ended::Stopped(job),
        },
        Ok(Some(job)) => Ended::Stopped(job),
        Err(error) => Ended::Refused(Refusal::from(&error)),
    }
}

fn show(path: &Path, ended: &Ended, how: &How, rows: &mut Vec<Value>) -> Result<()> {
    let shown = path.display().to_string();
    if how.json {
        let mut row = Map::from_iter([("path".to_owned(), shown.into())]);
        let more = match ended {
            Ended::Done(text, result) => json!({ "state": "done", "text": text, "result": result }),
            Ended::Queued(number) => json!({ "state": "queued", "job": number }),
            Ended::Stopped(job) => json!({
                "state": job.state, "text": job.ended_text(), "result": job.value.get("result"),
            }),
            Ended::Refused(refusal) => json!({ "state": "refused", "reasons": refusal.to_json() }),
        };
        if let Value::Object(more) = more {
            row.extend(more);
        }
        rows.push(Value::Object(row));
        return Ok(());
    }
    match ended {
        Ended::Done(text, _) => print(&format!("{shown}: {text}\n")),
        Ended::Queued(number) => print(&format!("{shown}: job {number}\n")),
        Ended::Stopped(job) => {
            complain(&format!("{shown}: {}", job.ended_text()));
            Ok(())
        }
        Ended::Refused(refusal) => {
            complain(&refusal.lines(path));
            Ok(())
        }
    }
}
