//! Jobs: requests that take long. They outlive the program that made them, can be listed and cancelled.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use serde_json::{Value, json};

use crate::engine::Counted;
use crate::model::{Error, ErrorKind, Progress, Result};
use crate::trace;

/// Number of jobs to list. Older jobs that have ended are dropped from the list.
const ENDED_MAX: usize = 1000;

/// A piece of work.
pub struct Job {
    request: String,
    path: String,
    user: u32,
    /// Whether the mount started it by itself.
    is_own: bool,
    counted: Counted,
    state: Mutex<State>,
}

enum State {
    Waiting,
    Running(Instant),
    Ended(Ended),
}

/// How a job ended.
struct Ended {
    /// `done`, `failed` or `cancelled`.
    state: &'static str,
    seconds: f64,
    /// The reason of a failure.
    error: String,
    report: Report,
}

/// The result of a job, also of one that fails or is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// For people. A job that succeeds without a text found nothing to do, and is not listed.
    pub text: String,
    pub result: Value,
}

type Work = Box<dyn FnOnce(&dyn Progress, &mut Report) -> Result<()> + Send>;

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
    waiting: VecDeque<(u64, Arc<Job>, Work)>,
    /// Jobs that wait, run or have ended, by number.
    shown: VecDeque<(u64, Arc<Job>)>,
    is_ending: bool,
    /// Whether no queued job may begin.
    is_paused: bool,
    /// Whether a queued job runs.
    is_busy: bool,
}

/// The user whose jobs are selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// All jobs, for root and the user who runs the mount.
    All,
    /// The jobs of one user.
    User(u32),
}

impl Of {
    fn has(self, job: &Job) -> bool {
        self == Of::All || self == Of::User(job.user)
    }
}

impl Job {
    /// A job of a user on a path. `bytes` is the amount to process, 0 if unknown.
    pub fn new(request: String, path: String, user: u32, bytes: u64) -> Job {
        let counted = Counted { bytes: bytes.into(), ..Counted::default() };
        Job { request, path, user, is_own: false, counted, state: Mutex::new(State::Waiting) }
    }

    /// A job that the mount starts by itself, whenever there is something to do.
    pub fn of_mount(request: String, user: u32) -> Job {
        Job { is_own: true, ..Job::new(request, "/".to_owned(), user, 0) }
    }

    fn line(&self, number: u64) -> String {
        let [done, bytes] = self.bytes();
        let state = match &*self.state.lock() {
            State::Waiting => "waiting".to_owned(),
            State::Running(since) => {
                let percent = (done * 100)
                    .checked_div(bytes)
                    .map_or(String::new(), |part| format!(" {}%", part.min(100)));
                format!("running{percent} {done} of {bytes} bytes, {} s", since.elapsed().as_secs())
            }
            State::Ended(ended) => ended.text(),
        };
        format!("{number} {} {} {state}\n", self.request, self.path)
    }

    /// Logical bytes that are finished, and all of them.
    fn bytes(&self) -> [u64; 2] {
        [&self.counted.done, &self.counted.bytes].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    fn to_json(&self, number: u64) -> Value {
        let [done, bytes] = self.bytes();
        let mut value = json!({
            "job": number,
            "request": self.request,
            "path": self.path,
            "user": self.user,
            "done_bytes": done,
            "bytes": bytes,
        });
        let more = match &*self.state.lock() {
            State::Waiting => json!({ "state": "waiting" }),
            State::Running(since) => json!({ "state": "running", "seconds": since.elapsed().as_secs_f64() }),
            State::Ended(ended) => json!({
                "state": ended.state,
                "seconds": ended.seconds,
                "error": ended.error,
                "text": ended.report.text,
                "result": ended.report.result,
            }),
        };
        if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
            value.extend(more);
        }
        value
    }

    fn has_ended(&self) -> bool {
        matches!(*self.state.lock(), State::Ended(_))
    }
}

impl Ended {
    fn text(&self) -> String {
        let done = match self.report.text.as_str() {
            "" => String::new(),
            text => format!(": {text}"),
        };
        match self.state {
            "done" => format!("done in {:.1} s{done}", self.seconds),
            "failed" => format!("failed: {}", self.error),
            state => format!("{state}{done}"),
        }
    }
}

impl Jobs {
    fn add(&self, job: Job, work: Option<Work>) -> (u64, Arc<Job>) {
        let job = Arc::new(job);
        let mut inner = self.inner.lock();
        inner.last += 1;
        let number = inner.last;
        if let Some(work) = work {
            inner.waiting.push_back((number, job.clone(), work));
        }
        inner.shown.push_back((number, job.clone()));
        while inner.shown.len() > ENDED_MAX && inner.shown.front().is_some_and(|(_, job)| job.has_ended()) {
            inner.shown.pop_front();
        }
        self.changed.notify_all();
        drop(inner);
        self.note_change();
        (number, job)
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

    /// Queues a job and returns its number. Queued jobs run one after the other, in order.
    pub fn push(
        &self,
        job: Job,
        work: impl FnOnce(&dyn Progress, &mut Report) -> Result<()> + Send + 'static,
    ) -> u64 {
        self.add(job, Some(Box::new(work))).0
    }

    /// Runs a job on this thread. Fails as the job does. One that is refused has changed nothing and is not
    /// listed any more: its caller has the reasons.
    pub fn run(&self, job: Job, work: impl FnOnce(&dyn Progress, &mut Report) -> Result<()>) -> Result<()> {
        let (number, job) = self.add(job, None);
        let done = self.perform(number, &job, work, &|| ());
        if done.as_ref().is_err_and(|error| !error.refusals().is_empty()) {
            self.forget(&job);
            self.note_change();
        }
        done
    }

    fn forget(&self, job: &Arc<Job>) {
        self.inner.lock().shown.retain(|(_, shown)| !Arc::ptr_eq(shown, job));
    }

    fn perform(
        &self,
        number: u64,
        job: &Arc<Job>,
        work: impl FnOnce(&dyn Progress, &mut Report) -> Result<()>,
        flushed: &dyn Fn(),
    ) -> Result<()> {
        let since = Instant::now();
        let _span = trace::job(number, &job.request, &job.path);
        *job.state.lock() = State::Running(since);
        self.note_change();
        let mut report = Report::default();
        let done = catch_unwind(AssertUnwindSafe(|| work(&job.counted, &mut report)));
        let bug = || Err(Error::new(ErrorKind::Io, "a bug in tierfs ended it; see the log of the daemon"));
        let done = done.unwrap_or_else(|_| bug());
        flushed();
        if done.is_ok() && report.text.is_empty() {
            self.forget(job);
        }
        let (state, error) = match &done {
            Ok(()) => ("done", String::new()),
            Err(error) if error.kind() == ErrorKind::Interrupted => ("cancelled", String::new()),
            Err(error) => ("failed", error.to_string()),
        };
        trace::note_end(state, job.counted.done.load(Ordering::Relaxed));
        if state == "failed" {
            trace::note_failure(&error);
        }
        *job.state.lock() =
            State::Ended(Ended { state, seconds: since.elapsed().as_secs_f64(), error, report });
        self.note_change();
        done
    }

    fn shown(&self, of: Of) -> Vec<(u64, Arc<Job>)> {
        self.inner.lock().shown.iter().filter(|(_, job)| of.has(job)).cloned().collect()
    }

    /// The numbers of jobs that wait and that run.
    pub fn states(&self) -> [u64; 2] {
        let (mut waiting, mut running) = (0, 0);
        for (_, job) in self.shown(Of::All) {
            match &*job.state.lock() {
                State::Waiting => waiting += 1,
                State::Running(_) => running += 1,
                State::Ended(_) => {}
            }
        }
        [waiting, running]
    }

    /// The line of a job of a program that waits or runs; the jobs that the mount starts by itself begin again later.
    pub fn unfinished(&self) -> Option<String> {
        let shown = self.shown(Of::All);
        let mut unfinished = shown.iter().filter(|(_, job)| !job.is_own && !job.has_ended());
        unfinished.next().map(|(number, job)| job.line(*number).trim_end().to_owned())
    }

    /// Wakes the programs that wait for a change of the list.
    pub fn tell_all(&self) {
        self.note_change();
    }

    /// One line per job: its number, its request, its path and its state.
    pub fn text(&self, of: Of) -> String {
        self.shown(of).iter().map(|(number, job)| job.line(*number)).collect()
    }

    /// The same as a JSON array, one job per line.
    pub fn json(&self, of: Of) -> String {
        let lines: Vec<_> =
            self.shown(of).iter().map(|(number, job)| job.to_json(*number).to_string()).collect();
        format!("[{}]\n", lines.join(",\n"))
    }

    /// Cancels a running or waiting job. Returns whether there was one.
    pub fn cancel(&self, number: u64, of: Of) -> bool {
        let mut inner = self.inner.lock();
        let found = inner.shown.iter().find(|(known, job)| *known == number && of.has(job));
        let Some(job) = found.map(|(_, job)| job.clone()) else { return false };
        if job.has_ended() {
            return false;
        }
        job.counted.is_cancelled.store(true, Ordering::Relaxed);
        let is_waiting = |waiting: &(u64, Arc<Job>, Work)| waiting.0 == number;
        if let Some(place) = inner.waiting.iter().position(is_waiting) {
            inner.waiting.remove(place);
            let (state, error, report) = ("cancelled", String::new(), Report::default());
            *job.state.lock() = State::Ended(Ended { state, seconds: 0.0, error, report });
            drop(inner);
            self.note_change();
        }
        true
    }

    /// Cancels all jobs with this request and path. Returns their number.
    pub fn cancel_all(&self, request: &str, path: &str) -> usize {
        let is_it = |job: &Arc<Job>| job.request == request && job.path == path;
        let shown = self.shown(Of::All);
        shown.iter().filter(|(number, job)| is_it(job) && self.cancel(*number, Of::All)).count()
    }

    /// Runs queued jobs until [`end`](Self::end). Calls `begins` before each job, and `flushed` after it and
    /// before its end becomes visible.
    pub fn work(&self, begins: &dyn Fn(), flushed: &dyn Fn()) {
        loop {
            let (number, job, work) = {
                let mut inner = self.inner.lock();
                loop {
                    if inner.is_ending {
                        return;
                    }
                    if !inner.is_paused
                        && let Some(next) = inner.waiting.pop_front()
                    {
                        inner.is_busy = true;
                        break next;
                    }
                    self.changed.wait(&mut inner);
                }
            };
            begins();
            match self.perform(number, &job, work, flushed) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    log::error!("{} of {}: {error}", job.request, job.path);
                }
                _ => {}
            }
            self.inner.lock().is_busy = false;
            self.changed.notify_all();
        }
    }

    /// Lets no queued job begin, and cancels the running one if the mount has started it by itself. Waits until none runs.
    /// `false` if that takes longer than `patience`; no job begins all the same.
    pub fn pause(&self, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let mut inner = self.inner.lock();
        inner.is_paused = true;
        for (_, job) in inner.shown.iter().filter(|(_, job)| job.is_own) {
            let is_running = matches!(&*job.state.lock(), State::Running(_));
            job.counted.is_cancelled.fetch_or(is_running, Ordering::Relaxed);
        }
        while inner.is_busy {
            if self.changed.wait_until(&mut inner, until).timed_out() {
                return !inner.is_busy;
            }
        }
        true
    }

    /// Ends a [`pause`](Self::pause).
    pub fn go_on(&self) {
        self.inner.lock().is_paused = false;
        self.changed.notify_all();
    }

    /// Cancels all jobs. Running ones stop after their current step; waiting ones do not start.
    pub fn end(&self) {
        let mut inner = self.inner.lock();
        inner.is_ending = true;
        // Their work holds the mount.
        inner.waiting.clear();
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
    use std::time::Duration;

    use super::{Job, Jobs, Of, Report};
    use crate::model::{Cause, Error, ErrorKind, Progress, Refusal, Result};

    fn job() -> Job {
        Job::new("tier=q8".to_owned(), "t/c".to_owned(), 1000, 100)
    }

    fn says(text: &str) -> impl FnOnce(&dyn Progress, &mut Report) -> Result<()> + Send + use<> {
        let text = text.to_owned();
        move |progress, report| {
            progress.advance(100);
            report.text = text;
            Ok(())
        }
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
        let number = jobs.push(job(), |_, _| unreachable!());
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert!(!jobs.watch(1, seen, tell()), "what was missed needs no watch");
        assert!(jobs.watch(1, jobs.changes(), tell()));
        assert!(jobs.cancel(number, Of::All));
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn no_job_begins_during_a_pause_and_the_mounts_own_job_is_cancelled() {
        let jobs = Arc::new(Jobs::default());
        let (began, begun) = std::sync::mpsc::channel();
        jobs.push(Job::of_mount("policy".to_owned(), 0), move |progress, _| {
            began.send(()).unwrap();
            while !progress.is_cancelled() {
                std::thread::yield_now();
            }
            Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"))
        });
        let worker = jobs.clone();
        let thread = std::thread::spawn(move || worker.work(&|| (), &|| ()));
        begun.recv().unwrap();
        assert!(jobs.unfinished().is_none(), "the mount starts it again");
        assert!(jobs.pause(Duration::from_secs(60)));
        let (ran, run) = std::sync::mpsc::channel();
        jobs.push(job(), move |_, _| {
            ran.send(()).unwrap();
            Ok(())
        });
        assert!(jobs.unfinished().is_some());
        assert!(run.recv_timeout(Duration::from_millis(50)).is_err());
        jobs.go_on();
        run.recv_timeout(Duration::from_secs(60)).unwrap();
        jobs.end();
        thread.join().unwrap();
    }

    #[test]
    fn jobs_run_in_order_and_report_how_they_ended() {
        let jobs = Arc::new(Jobs::default());
        let ender = jobs.clone();
        jobs.push(job(), says("3 tensors"));
        jobs.push(job(), |_, _| Err(Error::new(ErrorKind::Full, "no space")));
        let cancelled = jobs.push(job(), |_, _| unreachable!());
        assert!(!jobs.cancel(cancelled, Of::User(7)), "only its user cancels a job");
        assert!(jobs.cancel(cancelled, Of::User(1000)));
        assert!(!jobs.cancel(cancelled, Of::All) && !jobs.cancel(99, Of::All));
        jobs.push(job(), says(""));
        jobs.push(job(), move |_, report| {
            report.text = "2 of 7 tensors".to_owned();
            ender.end();
            Err(Error::new(ErrorKind::Interrupted, "the job was cancelled"))
        });
        jobs.work(&|| (), &|| ());
        let text = jobs.text(Of::All);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("1 tier=q8 t/c done in ") && lines[0].ends_with("3 tensors"));
        assert_eq!(lines[1], "2 tier=q8 t/c failed: no space");
        assert_eq!(lines[2], "3 tier=q8 t/c cancelled");
        assert_eq!(lines[3], "5 tier=q8 t/c cancelled: 2 of 7 tensors");
        assert_eq!(lines.len(), 4, "one that found nothing to do is not shown");
        assert_eq!(jobs.text(Of::User(7)), "");
    }

    #[test]
    fn a_job_on_the_thread_of_its_request_is_listed_and_fails_as_its_work_does() {
        let jobs = Jobs::default();
        jobs.run(job(), says("1 tensor")).unwrap();
        let failed = jobs.run(job(), |_, _| Err(Error::invalid("no such tier")));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Invalid);
        let listed: serde_json::Value = serde_json::from_str(&jobs.json(Of::All)).unwrap();
        assert_eq!((&listed[0]["state"], &listed[0]["text"]), (&"done".into(), &"1 tensor".into()));
        assert_eq!((&listed[1]["state"], &listed[1]["error"]), (&"failed".into(), &"no such tier".into()));
        let refusal = Refusal { path: "t/c/w".to_owned(), cause: Cause::Pinned };
        let refused = jobs.run(job(), |_, _| Err(Error::refused(vec![refusal])));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(jobs.text(Of::All).lines().count(), 2, "the caller has the reasons");
    }
}
