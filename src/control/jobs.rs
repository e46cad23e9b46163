//! Background jobs, which outlive the request that queued them. They run one after the other, in order.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use crate::engine::Counted;
use crate::model::{Error, ErrorKind, Progress, Result};

/// Number of jobs to list. Older jobs that have ended are dropped from the list.
const ENDED_MAX: usize = 100;

/// A piece of work.
pub struct Job {
    what: String,
    path: String,
    bytes: u64,
    counted: Counted,
    state: Mutex<State>,
}

enum State {
    Waiting,
    Running(Instant),
    Ended(String),
}

type Work = Box<dyn FnOnce(&dyn Progress) -> Result<String> + Send>;

/// The jobs of a mount.
#[derive(Default)]
pub struct Jobs {
    inner: Mutex<Inner>,
    changed: Condvar,
    watches: Mutex<Watches>,
}

/// The programs that wait for a change of the list of jobs. A last lock.
#[derive(Default)]
struct Watches {
    /// Number of changes so far.
    changes: u64,
    /// Called once at the next change, by the handle of the open file.
    waiting: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

#[derive(Default)]
struct Inner {
    last: u64,
    waiting: VecDeque<(Arc<Job>, Work)>,
    /// Jobs that wait, run or have ended, by number.
    shown: VecDeque<(u64, Arc<Job>)>,
    is_ending: bool,
}

impl Job {
    /// A job on a path. `bytes` is the amount to process, 0 if unknown.
    pub fn new(what: String, path: String, bytes: u64) -> Job {
        Job { what, path, bytes, counted: Counted::default(), state: Mutex::new(State::Waiting) }
    }

    fn line(&self, number: u64) -> String {
        let done = self.counted.done.load(Ordering::Relaxed);
        let state = match &*self.state.lock() {
            State::Waiting => "waiting".to_owned(),
            State::Running(since) => {
                let percent = (done * 100)
                    .checked_div(self.bytes)
                    .map_or(String::new(), |part| format!(" {}%", part.min(100)));
                format!("running{percent} {done} of {} bytes, {} s", self.bytes, since.elapsed().as_secs())
            }
            State::Ended(how) => how.clone(),
        };
        format!("{number} {} {} {state}\n", self.what, self.path)
    }
}

impl Jobs {
    /// Queues a job and returns its number.
    pub fn push(&self, job: Job, work: impl FnOnce(&dyn Progress) -> Result<String> + Send + 'static) -> u64 {
        let job = Arc::new(job);
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        inner.waiting.push_back((job.clone(), Box::new(work)));
        inner.shown.push_back((number, job));
        let ended = |shown: &(u64, Arc<Job>)| matches!(*shown.1.state.lock(), State::Ended(_));
        while inner.shown.len() > ENDED_MAX && inner.shown.front().is_some_and(ended) {
            inner.shown.pop_front();
        }
        self.changed.notify_all();
        drop(inner);
        self.note_change();
        number
    }

    /// Number of changes of the list: jobs that were queued, began or ended.
    pub fn changes(&self) -> u64 {
        self.watches.lock().changes
    }

    /// Calls `tell` once the list has changed more than `seen` times, in place of an earlier call for the
    /// same `handle`. `false`, without a call, if it has already.
    pub fn watch(&self, handle: u64, seen: u64, tell: impl FnOnce() + Send + 'static) -> bool {
        let mut watches = self.watches.lock();
        let is_new = watches.changes == seen;
        if is_new {
            watches.waiting.insert(handle, Box::new(tell));
        }
        is_new
    }

    /// Ends the watch of a handle.
    pub fn unwatch(&self, handle: u64) {
        self.watches.lock().waiting.remove(&handle);
    }

    fn note_change(&self) {
        let waiting = {
            let mut watches = self.watches.lock();
            watches.changes += 1;
            std::mem::take(&mut watches.waiting)
        };
        waiting.into_values().for_each(|tell| tell());
    }

    /// One line per job: its number, its action, its path and its state.
    pub fn text(&self) -> String {
        let shown: Vec<_> = self.inner.lock().shown.iter().cloned().collect();
        shown.iter().map(|(number, job)| job.line(*number)).collect()
    }

    /// Cancels a running or waiting job. Returns whether there was one.
    pub fn cancel(&self, number: u64) -> bool {
        let mut inner = self.inner.lock();
        let found = inner.shown.iter().find(|(known, _)| *known == number).map(|(_, job)| job.clone());
        let Some(job) = found else { return false };
        if matches!(*job.state.lock(), State::Ended(_)) {
            return false;
        }
        job.counted.is_cancelled.store(true, Ordering::Relaxed);
        let is_waiting = |waiting: &(Arc<Job>, Work)| Arc::ptr_eq(&waiting.0, &job);
        if let Some(place) = inner.waiting.iter().position(is_waiting) {
            inner.waiting.remove(place);
            *job.state.lock() = State::Ended("cancelled".to_owned());
            drop(inner);
            self.note_change();
        }
        true
    }

    /// Cancels all jobs with this action and path. Returns their number.
    pub fn cancel_all(&self, what: &str, path: &str) -> usize {
        let shown: Vec<_> = self.inner.lock().shown.iter().cloned().collect();
        let is_it = |job: &Arc<Job>| job.what == what && job.path == path;
        shown.iter().filter(|(number, job)| is_it(job) && self.cancel(*number)).count()
    }

    /// Runs jobs until [`end`](Self::end). Calls `flushed` after each job and before its end becomes
    /// visible.
    pub fn work(&self, flushed: &dyn Fn()) {
        loop {
            let (job, work) = {
                let mut inner = self.inner.lock();
                loop {
                    if inner.is_ending {
                        return;
                    }
                    if let Some(next) = inner.waiting.pop_front() {
                        break next;
                    }
                    self.changed.wait(&mut inner);
                }
            };
            let since = Instant::now();
            *job.state.lock() = State::Running(since);
            self.note_change();
            let done = catch_unwind(AssertUnwindSafe(|| work(&job.counted)));
            let bug =
                || Err(Error::new(ErrorKind::Io, "a bug in tierfs ended it; see the log of the daemon"));
            let done = done.unwrap_or_else(|_| bug());
            flushed();
            let ended = match done {
                Ok(note) if note.is_empty() => {
                    // The job found nothing to do, so it is not listed.
                    self.inner.lock().shown.retain(|(_, shown)| !Arc::ptr_eq(shown, &job));
                    self.note_change();
                    continue;
                }
                Ok(note) => format!("done in {:.1} s: {note}", since.elapsed().as_secs_f64()),
                Err(error) if error.kind() == ErrorKind::Interrupted => "cancelled".to_owned(),
                Err(error) => {
                    log::error!("{} of {}: {error}", job.what, job.path);
                    format!("failed: {error}")
                }
            };
            *job.state.lock() = State::Ended(ended);
            self.note_change();
        }
    }

    /// Cancels all jobs. The running one stops after its current step; waiting ones do not start.
    pub fn end(&self) {
        let mut inner = self.inner.lock();
        inner.is_ending = true;
        for (_, job) in &inner.shown {
            job.counted.is_cancelled.store(true, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Job, Jobs};
    use crate::model::{Error, ErrorKind};

    fn job() -> Job {
        Job::new("tier=q8".to_owned(), "t/c".to_owned(), 100)
    }

    #[test]
    fn a_watch_is_told_of_the_next_change_and_once() {
        let jobs = Jobs::default();
        let told = Arc::new(AtomicU64::new(0));
        let tell = || {
            let told = told.clone();
            move || {
                told.fetch_add(1, Ordering::Relaxed);
            }
        };
        let seen = jobs.changes();
        assert!(jobs.watch(1, seen, tell()) && jobs.watch(1, seen, tell()) && jobs.watch(2, seen, tell()));
        jobs.unwatch(2);
        let number = jobs.push(job(), |_| unreachable!());
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert!(!jobs.watch(1, seen, tell()), "what was missed needs no watch");
        assert!(jobs.watch(1, jobs.changes(), tell()));
        assert!(jobs.cancel(number));
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn jobs_run_in_order_and_report_how_they_ended() {
        let jobs = Arc::new(Jobs::default());
        let ender = jobs.clone();
        jobs.push(job(), |progress| {
            progress.advance(100);
            Ok("3 blocks".to_owned())
        });
        jobs.push(job(), |_| Err(Error::new(ErrorKind::Full, "no space")));
        let cancelled = jobs.push(job(), |_| unreachable!());
        assert!(jobs.cancel(cancelled) && !jobs.cancel(cancelled) && !jobs.cancel(99));
        jobs.push(job(), |_| Ok(String::new()));
        jobs.push(job(), move |_| {
            ender.end();
            Ok("the last".to_owned())
        });
        jobs.work(&|| ());
        let text = jobs.text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("1 tier=q8 t/c done in ") && lines[0].ends_with("3 blocks"));
        assert_eq!(lines[1], "2 tier=q8 t/c failed: no space");
        assert_eq!(lines[2], "3 tier=q8 t/c cancelled");
        assert!(lines[3].starts_with("5 ") && lines.len() == 4, "one that found nothing to do is not shown");
    }
}
