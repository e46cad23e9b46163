//! The requests in progress, and a thread that tells of those that are not answered for a long time.
//!
//! A thread that answers requests has a slot, which says what it does and since when. The watching thread reads the slots
//! without a lock that a request takes, so a request that waits for ever does not stop it.

use std::cell::OnceCell;
use std::fs;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::control::Operation;
use crate::fs::kernel::rings::on_own;
use crate::trace;
use crate::vfs::Ino;

/// A request without an answer for so long is told of, once, and again each time its age has doubled.
const LONG: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// In place of the number of an operation: the kernel invalidates pages.
const INVALIDATION: u8 = u8::MAX;

/// The work of a thread.
#[derive(Debug, Default)]
struct Slot {
    /// The number of the thread.
    thread: i32,
    /// When the request began, in milliseconds after `epoch()` and at least 1; 0 without a request.
    began: AtomicU64,
    /// Its number in `Operation::ALL`, or `INVALIDATION`.
    operation: AtomicU8,
    ino: AtomicU64,
}

/// The slots of all threads. Held while the list is copied or added to, never during a request.
static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

thread_local! {
    static SLOT: OnceCell<Arc<Slot>> = const { OnceCell::new() };
}

/// The begin of the time that slots count.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

fn milliseconds(at: Instant) -> u64 {
    at.saturating_duration_since(epoch()).as_millis() as u64 + 1
}

fn new_slot() -> Arc<Slot> {
    let slot = Arc::new(Slot { thread: rustix::thread::gettid().as_raw_nonzero().get(), ..Slot::default() });
    let mut slots = SLOTS.lock();
    slots.retain(|slot| slot.strong_count() > 0);
    slots.push(Arc::downgrade(&slot));
    slot
}

/// The request that a thread answers, until this is dropped.
#[must_use]
pub(in crate::fs) struct InProgress(());

impl Drop for InProgress {
    fn drop(&mut self) {
        SLOT.with(|slot| {
            if let Some(slot) = slot.get() {
                slot.began.store(0, Ordering::Relaxed);
            }
        });
    }
}

/// Notes that this thread answers a request.
pub(in crate::fs) fn request(operation: Operation, ino: Ino, began: Instant) -> InProgress {
    begin(operation as u8, ino.0, milliseconds(began))
}

/// Notes that this thread waits until the kernel has invalidated the pages of an inode.
pub(in crate::fs) fn invalidation(ino: Ino) -> InProgress {
    begin(INVALIDATION, ino.0, milliseconds(Instant::now()))
}

fn begin(operation: u8, ino: u64, began: u64) -> InProgress {
    SLOT.with(|slot| {
        let slot = slot.get_or_init(new_slot);
        slot.operation.store(operation, Ordering::Relaxed);
        slot.ino.store(ino, Ordering::Relaxed);
        slot.began.store(began, Ordering::Release);
    });
    InProgress(())
}

/// The number of requests in progress, if each of them can be left to another daemon, which does it again: it only looks.
pub(in crate::fs) fn all_that_look() -> Option<usize> {
    let slots: Vec<Arc<Slot>> = SLOTS.lock().iter().filter_map(Weak::upgrade).collect();
    let all = slots.iter().map(|slot| Seen::of(slot)).filter(|seen| seen.began > 0);
    let looks = |seen: Seen| {
        use Operation::{
            Getattr, Getxattr, Listxattr, Lookup, Lseek, Read, Readdir, Readdirplus, Readlink, Statfs,
        };
        let operation = Operation::ALL.get(usize::from(seen.operation))?;
        let only_looks = matches!(
            operation,
            Getattr
                | Getxattr
                | Listxattr
                | Lookup
                | Lseek
                | Read
                | Readdir
                | Readdirplus
                | Readlink
                | Statfs
        );
        only_looks.then_some(())
    };
    all.map(looks).collect::<Option<Vec<()>>>().map(|all| all.len())
}

/// Work on the request of this thread that another thread does.
pub(in crate::fs) fn carried(work: impl FnOnce()) -> impl FnOnce() {
    let request = SLOT.with(|slot| {
        let slot = slot.get()?;
        let [ino, began] = [&slot.ino, &slot.began].map(|number| number.load(Ordering::Relaxed));
        (began > 0).then(|| (slot.operation.load(Ordering::Relaxed), ino, began))
    });
    trace::carried(on_own(move || {
        let _in_progress = request.map(|(operation, ino, began)| begin(operation, ino, began));
        work();
    }))
}

/// Goes on with the request of this thread on a thread of its own, so that other requests are answered meanwhile.
pub(in crate::fs) fn on_own_thread(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(carried(work));
}

/// A request, as a slot shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    thread: i32,
    began: u64,
    operation: u8,
    ino: u64,
}

impl Seen {
    fn of(slot: &Slot) -> Seen {
        let began = slot.began.load(Ordering::Acquire);
        let (operation, ino) = (slot.operation.load(Ordering::Relaxed), slot.ino.load(Ordering::Relaxed));
        Seen { thread: slot.thread, began, operation, ino }
    }

    /// Milliseconds since it began.
    fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.began)
    }

    /// Whether its age has reached `LONG` or a double of that since `before`.
    fn is_due(&self, before: u64, now: u64) -> bool {
        let long = LONG.as_millis() as u64;
        let doubles = |at| (self.age(at) / long).checked_ilog2();
        self.began > 0 && doubles(now) > doubles(before.max(self.began))
    }

    fn told(&self, now: u64) -> String {
        let what = match Operation::ALL.get(usize::from(self.operation)) {
            Some(operation) => format!("no answer yet to {} of", operation.name()),
            None => "the kernel has not dropped the pages of".to_owned(),
        };
        format!("{what} inode {:#x} for {} s, in thread {}", self.ino, self.age(now) / 1000, self.thread)
    }
}

/// Starts the thread that tells of requests without an answer, if it does not run.
pub(in crate::fs) fn watch() -> std::io::Result<()> {
    static IS_STARTED: Mutex<bool> = Mutex::new(false);
    let mut is_started = IS_STARTED.lock();
    if !*is_started {
        let thread = std::thread::Builder::new().name("watch-requests".to_owned());
        thread.spawn(|| {
            let mut before = milliseconds(Instant::now());
            loop {
                std::thread::sleep(LOOK_EVERY);
                let now = milliseconds(Instant::now());
                look(before, now).iter().for_each(|line| log::warn!("{line}"));
                before = now;
            }
        })?;
        *is_started = true;
    }
    Ok(())
}

/// The messages about requests whose time to be told of has come since `before`, and what all threads do.
fn look(before: u64, now: u64) -> Vec<String> {
    let slots: Vec<Arc<Slot>> = SLOTS.lock().iter().filter_map(Weak::upgrade).collect();
    let due: Vec<Seen> =
        slots.iter().map(|slot| Seen::of(slot)).filter(|seen| seen.is_due(before, now)).collect();
    let mut lines: Vec<String> = due.iter().map(|seen| seen.told(now)).collect();
    if !lines.is_empty() {
        lines.extend(threads());
    }
    lines
}

/// A line for each thread of this process: the place where it waits, as far as the kernel tells.
fn threads() -> Vec<String> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let of_one = |task: fs::DirEntry| {
        let text = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let stack: Vec<String> = text("stack").lines().map(|line| line.replace("[<0>] ", "")).collect();
        let (name, waits) = (text("comm"), text("wchan"));
        format!(
            "thread {} {} in {}: {}",
            task.file_name().display(),
            name.trim_end(),
            waits.trim_end(),
            stack.join(", ")
        )
    };
    tasks.filter_map(Result::ok).map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Instant;

    use super::{LONG, carried, invalidation, look, milliseconds, request};
    use crate::control::Operation;
    use crate::vfs::Ino;

    const UNKNOWN: Ino = Ino(0x5eed_1234);

    /// The messages about the inode of these tests after `minutes`, and the number of others.
    fn told(minutes: (u64, u64)) -> (Vec<String>, usize) {
        let [before, now] = [minutes.0, minutes.1].map(|at| milliseconds(Instant::now()) + at * 60_000 + 100);
        let (own, others): (Vec<String>, Vec<String>) =
            look(before, now).into_iter().partition(|line| line.contains("0x5eed1234"));
        (own, others.len())
    }

    #[test]
    fn a_request_without_an_answer_is_told_of_after_a_minute_and_each_double_of_that_with_all_threads() {
        assert_eq!(LONG.as_secs(), 60);
        let (began, carry_on) = (Instant::now(), channel::<()>());
        let work = {
            let _in_progress = request(Operation::Setxattr, UNKNOWN, began);
            assert_eq!(told((0, 0)).0, [""; 0]);
            let (own, others) = told((0, 1));
            assert!(own.len() == 1 && own[0].contains("setxattr") && own[0].contains("for 60 s"), "{own:?}");
            assert!(others >= 1, "the threads");
            assert_eq!(told((2, 3)).0.len(), 0);
            assert_eq!(told((3, 4)).0.len(), 1);
            carried(move || carry_on.1.recv().unwrap())
        };
        assert_eq!(told((0, 1)).0.len(), 0, "it is over on this thread");
        let other = std::thread::spawn(work);
        let until = Instant::now() + LONG;
        while told((0, 1)).0.is_empty() {
            assert!(Instant::now() < until, "another thread goes on with it");
            std::thread::yield_now();
        }
        carry_on.0.send(()).unwrap();
        other.join().unwrap();
        assert_eq!(told((0, 1)).0.len(), 0);
        let _in_progress = invalidation(UNKNOWN);
        assert!(told((0, 1)).0[0].starts_with("the kernel has not dropped"));
    }
}
