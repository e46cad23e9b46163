//! Threads for requests that may recognize a file: closes and syncs of a written one, renames, changes of its size.
//!
//! Invariant: no thread that takes requests from the kernel recognizes a file. However long that takes, and however many
//! such files a tenant closes at once, other requests are answered meanwhile. A tenant has at most half of these
//! threads, so that the closes of others go on too.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::fs::failure::guarded;
use crate::fs::in_progress;
use crate::fs::kernel::Reply;
use crate::fs::serve::{Dispatcher, Durable};
use crate::ingest::{has_models, may_be_recognized};
use crate::vfs::Ino;
use crate::vfs::open::OpenFile;

type Job = Box<dyn FnOnce() + Send>;

/// Runs jobs on threads that end when nothing is left to do.
#[derive(Clone)]
pub(super) struct Recognition {
    queue: Arc<Mutex<Queue>>,
    threads_max: usize,
}

/// Held briefly; no other lock is taken with it.
#[derive(Default)]
struct Queue {
    /// Each with its tenant.
    waiting: VecDeque<(String, Job)>,
    /// Jobs that run, by tenant.
    running: HashMap<String, usize>,
    threads: usize,
}

impl Recognition {
    pub fn new() -> Recognition {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Recognition { queue: Arc::default(), threads_max: cores.max(2) }
    }

    /// Runs a job of a tenant as soon as the tenant may have a thread.
    fn run(&self, tenant: &str, job: Job) {
        {
            let mut queue = self.queue.lock();
            queue.waiting.push_back((tenant.to_owned(), job));
            if queue.threads == self.threads_max {
                return;
            }
            queue.threads += 1;
        }
        let work = self.clone();
        let started = std::thread::Builder::new().name("recognition".to_owned()).spawn(move || work.work());
        if let Err(error) = started {
            log::warn!("recognizing on the thread of the request: {error}");
            self.work();
        }
    }

    fn work(&self) {
        let share = (self.threads_max / 2).max(1);
        loop {
            let (tenant, job) = {
                let mut queue = self.queue.lock();
                match queue.next(share) {
                    Some(next) => next,
                    // A thread that runs a job of their tenant takes those that still wait.
                    None => {
                        queue.threads -= 1;
                        return;
                    }
                }
            };
            job();
            self.queue.lock().ended(&tenant);
        }
    }
}

impl Queue {
    /// The first job of a tenant with fewer than `share` running.
    fn next(&mut self, share: usize) -> Option<(String, Job)> {
        let has_room =
            |(tenant, _): &(String, Job)| self.running.get(tenant).is_none_or(|count| *count < share);
        let place = self.waiting.iter().position(has_room)?;
        let (tenant, job) = self.waiting.remove(place)?;
        *self.running.entry(tenant.clone()).or_default() += 1;
        Some((tenant, job))
    }

    fn ended(&mut self, tenant: &str) {
        if let Some(count) = self.running.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(tenant);
            }
        }
    }
}

impl Dispatcher {
    /// Flushes a file as [`flush`](Dispatcher::flush) does, where it may be recognized on a thread for that.
    pub fn flush_recognizing(
        &self,
        open_file: Arc<OpenFile>,
        durable: Durable,
        doing: &'static str,
        reply: Reply,
    ) {
        let is_recognized = open_file.is_unclosed() && open_file.may_be_recognized();
        let tenant = is_recognized.then(|| open_file.collection().tenant().to_owned());
        self.recognizing(tenant, doing, move |dispatcher| {
            if doing == "release" {
                dispatcher.flush_released(&open_file, reply);
                dispatcher.vfs.keep_unflushed(&open_file);
            } else {
                dispatcher.flush(&open_file, durable, doing, reply);
            }
        });
    }

    /// Runs a request that may recognize a file of this tenant, if there is one, on a thread for that.
    pub fn recognizing(
        &self,
        tenant: Option<String>,
        doing: &'static str,
        request: impl FnOnce(&Dispatcher) + Send + 'static,
    ) {
        let Some(tenant) = tenant else { return request(self) };
        let dispatcher = self.clone();
        let job = move || {
            let dispatcher = &dispatcher;
            guarded(&dispatcher.mounted, doing, || request(dispatcher));
        };
        self.recognition.run(&tenant, Box::new(in_progress::carried(job)));
    }

    /// The tenant of a file, if a change of its attributes may recognize it.
    pub fn recognized_by_change(&self, ino: Ino, bytes: Option<u64>) -> Option<String> {
        let open_file = match bytes {
            Some(_) => self.vfs.open(&self.view(ino).ok()?).ok()?,
            // Writes are flushed before other attributes are set.
            None => self.vfs.open_file(ino.own()).filter(|open_file| open_file.is_changed())?,
        };
        open_file.may_be_recognized().then(|| open_file.collection().tenant().to_owned())
    }

    /// The tenant of a directory, if a change of these names in it may recognize a file.
    pub fn recognized_by_names(&self, parent: Ino, names: &[&[u8]]) -> Option<String> {
        let view = self.view(parent).ok()?;
        let is_recognized =
            names.iter().any(|name| may_be_recognized(name)) || has_models(&view.collection.state());
        is_recognized.then(|| view.collection.tenant().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::Recognition;

    const LONG: Duration = Duration::from_secs(60);

    /// Runs a job that says that it began, and ends when it is told to.
    fn begin(threads: &Recognition, tenant: &'static str, began: &Sender<&'static str>) -> Sender<()> {
        let (end, told) = channel();
        let began = began.clone();
        threads.run(
            tenant,
            Box::new(move || {
                began.send(tenant).unwrap();
                told.recv_timeout(LONG).unwrap();
            }),
        );
        end
    }

    #[test]
    fn a_tenant_that_recognizes_for_ever_leaves_threads_to_another() {
        let threads = Recognition { threads_max: 4, ..Recognition::new() };
        let (began, starts) = channel();
        let hostile: Vec<_> = (0..10).map(|_| begin(&threads, "hostile", &began)).collect();
        let next = || starts.recv_timeout(LONG).unwrap();
        assert_eq!([next(), next()], ["hostile"; 2]);
        let other: Vec<_> = (0..2).map(|_| begin(&threads, "other", &began)).collect();
        assert_eq!([next(), next()], ["other"; 2]);
        assert!(starts.try_recv().is_err(), "no tenant has more than half of the threads");
        other.iter().for_each(|end| end.send(()).unwrap());
        // Those that wait follow one by one.
        for end in &hostile {
            end.send(()).unwrap();
        }
        (2..10).for_each(|_| assert_eq!(next(), "hostile"));
    }
}
