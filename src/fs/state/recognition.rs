//! Threads for requests that may recognize a file: closes and syncs of a written one, renames, changes of its size.
//!
//! Invariant: no thread that takes requests from the kernel recognizes a file. However long that takes, and however many
//! such files a tenant closes at once, other requests are answered meanwhile. A tenant has at most half of these
//! threads, so that the closes of others go on too.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// A thread without work ends after this time: a program that closes files one by one pays for one thread.
const REST: Duration = Duration::from_secs(2);

/// Runs jobs on threads that end when nothing is left to do.
#[derive(Clone)]
pub(in crate::fs) struct Recognition {
    shared: Arc<(Mutex<Queue>, Condvar)>,
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
        Recognition { shared: Arc::default(), threads_max: cores.max(2) }
    }

    /// Runs a job of a tenant as soon as the tenant may have a thread.
    pub fn run(&self, tenant: &str, job: Job) {
        {
            let (queue, arrived) = &*self.shared;
            let mut queue = queue.lock();
            queue.waiting.push_back((tenant.to_owned(), job));
            if arrived.notify_one() || queue.threads == self.threads_max {
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
        let (queue, arrived) = &*self.shared;
        let mut queue = queue.lock();
        loop {
            if let Some((tenant, job)) = queue.next(share) {
                drop(queue);
                job();
                queue = self.shared.0.lock();
                queue.ended(&tenant);
                continue;
            }
            // Jobs that still wait are those of a tenant that has its share of threads, which take them.
            let is_over = arrived.wait_for(&mut queue, REST).timed_out();
            if is_over && queue.next_place(share).is_none() {
                queue.threads -= 1;
                return;
            }
        }
    }
}

impl Queue {
    /// The place of the first job of a tenant with fewer than `share` running.
    fn next_place(&self, share: usize) -> Option<usize> {
        let has_room =
            |(tenant, _): &(String, Job)| self.running.get(tenant).is_none_or(|count| *count < share);
        self.waiting.iter().position(has_room)
    }

    fn next(&mut self, share: usize) -> Option<(String, Job)> {
        let place = self.next_place(share)?;
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
