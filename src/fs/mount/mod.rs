//! Mounting: the session with the kernel, from start to end.
//!
//! 1. `cli/mount.rs` checks both paths. Without `-f` it starts itself again as a daemon and waits for the line `ready`
//!    on a pipe.
//! 2. The daemon registers SIGTERM, SIGINT and SIGHUP, and opens the store (exclusive; shared with `--read-only`).
//! 3. A `Session` (`fs/kernel/session.rs`) mounts. As many threads as cores, at least 2, get a device descriptor each.
//!    The read-ahead of the kernel is raised to 4 MiB through `/sys/class/bdi` if permitted. Where the kernel offers
//!    it, requests arrive over io_uring (`fs/kernel/rings/mod.rs`).
//! 4. The daemon reports ready, on the pipe and to systemd (`sd-notify`), and leaves the terminal. Collections open at
//!    their first use.
//! 5. A signal or the end of the session wakes the waiting thread (`waker.rs`). On a signal the mount is detached, and
//!    requests in progress have 5 s. Open files are flushed, everything is synced.
//!    Another program may take the mount over (`handover.rs`, `give_up.rs`), and a process may keep it beyond the death of
//!    the daemon (`cli/mount/keeper.rs`).
//! 6. `tierfs umount` unmounts, then waits up to 30 s for the end of the daemon and of the lock of the store. It sends
//!    no request to a daemon that the kernel names (`fdinfo` of `/dev/fuse`), and finds other mount namespaces in
//!    `/proc/*/mountinfo` (`cli/common/connection.rs`). `--lazy` detaches and does not wait. `--force` detaches, aborts
//!    the connection through `fusectl` after 1 s, and kills the daemon after 20 s.

pub(in crate::fs) mod bundle;
mod give_up;
pub(in crate::fs) mod handover;
pub(in crate::fs) mod offline;
pub(in crate::fs) mod waker;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::control::{self, Job, Mounted};
use crate::format::handover::{HandOver, Head};
use crate::fs::answer::dispatcher::Dispatcher;
use crate::fs::kernel::device::{DeviceThreads, Devices};
use crate::fs::kernel::drop_long_buffers;
use crate::fs::kernel::notify::{Notifier, invalidate_names, resend_requests};
use crate::fs::kernel::rings::{Choice, Prepared, Transport};
use crate::fs::kernel::session::{Mounting, Session};
use crate::fs::mount::bundle::Bundle;
use crate::fs::mount::give_up::taken_up;
use crate::fs::mount::handover::{Askers, Listening};
use crate::fs::mount::waker::Waker;
use crate::fs::state::decoded_copies::{self, Budget, DecodedCache};
use crate::fs::state::earlier::Before;
use crate::fs::state::failure::guarded;
use crate::fs::state::handles::Handles;
use crate::fs::state::in_progress;
use crate::fs::state::invalidate::{InvalidationQueue, Invalidator};
use crate::fs::state::number_records::NumberRecords;
use crate::fs::state::open_records::Records;
use crate::fs::state::times::ShownOwner;
use crate::model::{Error, Owner, Progress, Result};
use crate::store::SaveUsage;
use crate::store::Verify;
use crate::store::{Access, Store};
use crate::vfs::{Invalidation, ListMode, Vfs};

/// The kernel's read-ahead, in KiB. Measured best for streams through a daemon.
const READ_AHEAD_KIB: u32 = 4096;

/// Interval of the periodic sync.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// How often the policy makes room while too few bytes of the disk are free.
const PRESSED_EVERY: Duration = Duration::from_secs(5);

/// Memory of closed collections after which the allocator gives free memory back to the system.
const TRIMMED_BYTES: u64 = 64 << 20;
/// A remote whose traffic is quiet for so many looks needs no buffers.
const LOOKS_UNTIL_IDLE: u32 = 6;

/// Longest delay before damage, copies of pinned files and policies are checked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Stacking depth for passthrough, which is the kernel's maximum. It allows a store on an overlay.
/// The kernel then refuses an overlay on the mount, which could not follow a file from one inode
/// number to the other.
const STACK_DEPTH: u32 = 2;

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The list mode of directories without a setting of their own.
    pub list: ListMode,
    /// When stored bytes are verified.
    pub verify: Verify,
    /// Whether other users may access the mount, subject to the files' modes.
    pub allow_other: bool,
    /// Whether blocks that cannot be reconstructed read as zeros.
    pub zero_fill: bool,
    /// Number of threads that answer requests; by default the number of cores, at least 2.
    pub threads: Option<usize>,
    pub transport: Choice,
    /// Whether the kernel gets none of the rings that it agreed to use. For tests.
    pub withholds_rings: bool,
    /// Requests of each core that the daemon has at a time over io_uring. For tests.
    pub ring_entries: Option<usize>,
    /// Whether the daemon answers all reads, without passthrough.
    pub reads_all: bool,
    /// Whether the kernel opens files without a request. Only for a store that is mounted read-only.
    pub opens_itself: bool,
    /// Whether the kernel asks for names of tensors at every use.
    pub asks_names: bool,
    /// The address at which metrics are served over HTTP, if any.
    pub metrics: Option<SocketAddr>,
    /// How much memory decoded files may take.
    pub decoded_cache: Budget,
    /// Whether every file is decoded when it is opened. For tests.
    pub decodes_all: bool,
    /// The owner that files are shown with. Only for a read-only mount.
    pub owner: ShownOwner,
    /// Further options, passed to the kernel unchanged.
    pub kernel: Vec<String>,
    /// The arguments and the directory that another program needs to take the mount over. Without them none can.
    pub offer: Option<HandOver>,
}

impl Options {
    /// The options as the control file `config` shows them.
    fn table(&self, threads: usize) -> toml::Table {
        let mut table = toml::Table::new();
        table.insert("list".to_owned(), self.list.name().into());
        let verify = match self.verify {
            Verify::First => "first",
            Verify::Always => "always",
        };
        table.insert("verify".to_owned(), verify.into());
        table.insert("allow_other".to_owned(), self.allow_other.into());
        table.insert("zero_fill".to_owned(), self.zero_fill.into());
        table.insert("passthrough".to_owned(), (!self.reads_all).into());
        table.insert("opens".to_owned(), if self.opens_itself { "kernel" } else { "daemon" }.into());
        table.insert("keep_names".to_owned(), (!self.asks_names).into());
        table.insert("transport".to_owned(), self.transport.name().into());
        table.insert("decoded_cache".to_owned(), self.decoded_cache.to_string().into());
        table.insert("threads".to_owned(), i64::try_from(threads).unwrap_or(i64::MAX).into());
        if let Some(at) = self.metrics {
            table.insert("metrics".to_owned(), at.to_string().into());
        }
        let numbers = [("uid", self.owner.uid), ("gid", self.owner.gid)];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            table.insert(name.to_owned(), i64::from(number).into());
        }
        if self.owner.umask != 0 {
            table.insert("umask".to_owned(), format!("{:04o}", self.owner.umask).into());
        }
        table.insert("kernel".to_owned(), self.kernel.clone().into());
        table
    }
}

pub struct Mount {
    /// Unmounts when it is dropped.
    session: Session,
    /// The threads that answer requests from the device.
    threads: DeviceThreads,
    /// The threads that answer over io_uring, if that is in use.
    transport: Option<Transport>,
    mountpoint: PathBuf,
    dispatcher: Arc<Dispatcher>,
    waker: Arc<Waker>,
    /// The thread that runs jobs.
    jobs: std::thread::JoinHandle<()>,
    /// Programs that take the mount over.
    askers: Askers,
    offer: HandOver,
    /// The numbers of the collections of a remote.
    numbers: Option<Arc<NumberRecords>>,
    /// The socket by which they ask.
    _listening: Option<Listening>,
}

/// How a mount ended.
#[derive(Clone, Debug)]
pub struct MountEnd {
    /// Whether all requests ended in time.
    pub in_time: bool,
    /// The files whose last writes are lost, with the reason. Each of their closes or syncs failed, or would have.
    pub lost: Vec<(String, String)>,
}

/// The file system of a store, and the queue of invalidations that the kernel has to be told of.
pub(in crate::fs) struct Parts {
    pub dispatcher: Arc<Dispatcher>,
    pub forgetting: InvalidationQueue,
}

impl Parts {
    /// The file system with these options, shown as mounted on `mountpoint` and served by as many `threads`.
    pub fn new(
        store: Arc<Store>,
        mountpoint: String,
        options: &Options,
        threads: usize,
        handles: Handles,
    ) -> Result<Parts> {
        let owner =
            Owner { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
        let vfs = Vfs::new(store, options.list, options.verify, owner, control::controls());
        let vfs = Arc::new(vfs);
        if options.zero_fill {
            vfs.engine().fill_with_zeros();
        }
        let mounted = Arc::new(Mounted::new(vfs.clone(), mountpoint, options.table(threads)));
        // Zeros for what is lost are not the bytes of a file.
        let is_cached = !options.reads_all && !options.zero_fill && options.verify == Verify::First;
        let budget = if is_cached { options.decoded_cache } else { Budget::Off };
        let decoded = Arc::new(DecodedCache::new(mounted.clone(), budget, options.decodes_all));
        let (invalidator, forgetting) = Invalidator::new(decoded.clone());
        let dispatcher = Dispatcher::new(vfs, mounted, invalidator, decoded, options.owner, handles);
        Ok(Parts { dispatcher: Arc::new(dispatcher), forgetting })
    }
}

/// Mounts a store. The mount answers requests when this returns.
pub fn mount(store: Arc<Store>, mountpoint: &Path, options: &Options) -> Result<Mount> {
    let mount = serve(store, mountpoint, options, None)?;
    mount.begin()?;
    Ok(mount)
}

/// Goes on with the mount of a store that another daemon had. The mount answers requests after [`Mount::begin`].
pub fn take_up(store: Arc<Store>, mountpoint: &Path, options: &Options, bundle: Bundle) -> Result<Mount> {
    serve(store, mountpoint, options, Some(bundle))
}

fn serve(
    store: Arc<Store>,
    mountpoint: &Path,
    options: &Options,
    mut bundle: Option<Bundle>,
) -> Result<Mount> {
    if options.owner != ShownOwner::default() && store.access() == Access::Write {
        let text = "uid, gid and umask change what a read-only mount shows; mount with --read-only";
        return Err(Error::invalid(text));
    }
    if options.opens_itself && (store.access() == Access::Write || store.shows_snapshots()) {
        let text = "opens=kernel is for a store on this machine that is mounted with --read-only: its files stay as they are";
        return Err(Error::invalid(text));
    }
    let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
    let threads = options.threads.unwrap_or(cores).max(2);
    let failed = |error| {
        let text = format!("mounting on {} (tierfs doctor names the missing part)", mountpoint.display());
        Error::io(text, error)
    };
    let waits = || store.shows_snapshots() || store.waits_for_network();
    let rings = options.transport.prepare(threads, options.ring_entries, waits);
    let mounting = Mounting {
        source: store.place(),
        is_read_only: store.access() == Access::Read,
        allow_other: options.allow_other,
        options: &options.kernel,
        stack_depth: if options.reads_all { 0 } else { STACK_DEPTH },
        has_rings: rings.is_some(),
        opens_itself: options.opens_itself,
    };
    let shown = mountpoint.display().to_string();
    let numbers = give_up::numbers(&store, bundle.as_mut())?;
    let (session, devices, parts, left) = match bundle {
        None => {
            let session = Session::new(mountpoint, &mounting).map_err(failed)?;
            let devices = Devices::new(session.device(), threads).map_err(failed)?;
            let head = Head { agreed: session.agreed.bits(), connection: session.connection };
            let records = Records::new(head).map_err(failed)?;
            let handles = Handles::new(records);
            (session, devices, Parts::new(store, shown, options, threads, handles)?, None)
        }
        Some(bundle) => {
            let (session, devices, handles, left) = taken_up(bundle, mountpoint)?;
            let parts = Parts::new(store, shown, options, threads, handles)?;
            (session, devices, parts, Some(left))
        }
    };
    let Parts { dispatcher, forgetting } = parts;
    let Dispatcher { mounted, .. } = &*dispatcher;
    if let Some(at) = options.metrics {
        control::serve_metrics(mounted, at)?;
    }
    let waker = Arc::new(Waker::new()?);
    if session.agreed.passthrough && !options.reads_all {
        dispatcher.passthrough.begin(session.device());
    }
    if session.agreed.opens_itself {
        dispatcher.handles.by_inode().begin();
    }
    if session.agreed.maps_uncached {
        dispatcher.handles.allow_uncached();
    }
    if session.agreed.forgets_names {
        if dispatcher.handles.earlier().before() == Before::Died {
            // Names of changes that were not announced, and of what the next daemon numbers in another way.
            invalidate_names(session.device()).map_err(failed)?;
        }
        if !options.asks_names {
            dispatcher.names.begin(session.device().try_clone().map_err(failed)?);
        }
    }
    if let Some(left) = left {
        dispatcher.go_on_with(left)?;
    }
    forgetting.start(Notifier::new(session.device().clone())).map_err(failed)?;
    let rings = rings.filter(|_| session.agreed.rings);
    let transport = rings.and_then(|rings| start_rings(rings, options, &session, &dispatcher, &waker));
    let in_use = if transport.is_some() { Choice::Uring } else { Choice::Classic };
    mounted.transport.get_or_init(|| in_use.name());
    let ending = waker.clone();
    let threads = DeviceThreads::start(devices, threads, &dispatcher, move || ending.end());
    let threads = threads.map_err(failed)?;
    decoded_copies::watch(&dispatcher.decoded).map_err(failed)?;
    in_progress::watch().map_err(failed)?;
    raise_read_ahead(mountpoint);
    raise_descriptor_limit();
    let jobs = start_jobs(mounted.clone(), dispatcher.invalidator.clone())?;
    let askers = Askers::default();
    let listening = options.offer.as_ref().and_then(|offer| {
        let listening = give_up::listen(dispatcher.vfs.store(), &session, offer, &askers, &waker);
        listening.inspect_err(|error| log::info!("no program can take the mount over: {error}")).ok()
    });
    Ok(Mount {
        session,
        threads,
        transport,
        mountpoint: mountpoint.to_owned(),
        dispatcher,
        waker,
        jobs,
        askers,
        offer: options.offer.clone().unwrap_or_default(),
        numbers,
        _listening: listening,
    })
}

impl Mount {
    /// Begins to answer requests. Call it once, as the last step that can fail, after [`take_up`].
    /// # Errors
    /// Returns an error if the kernel does not give requests again that the daemon before had read; nothing was read then.
    pub fn begin(&self) -> Result<()> {
        if self.dispatcher.handles.earlier().before() != Before::None {
            let resent = resend_requests(self.session.device());
            resent.map_err(|error| Error::io("asking the kernel for requests without an answer", error))?;
        }
        self.threads.go_on();
        Ok(())
    }

    /// The waker that makes [`Mount::wait`] check at once whether to stop.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    fn vfs(&self) -> &Arc<Vfs> {
        &self.dispatcher.vfs
    }

    /// Gives memory back that traffic with a remote has left, once that is quiet. Called every few seconds.
    fn give_back_idle(&self, quiet: &mut Quiet) {
        let store = self.vfs().store();
        let Some(traffic) = store.traffic() else { return };
        let seen = (traffic.received_bytes, traffic.cache_hits.saturating_add(traffic.cache_misses));
        if seen != quiet.seen {
            *quiet = Quiet { seen, looks: 0 };
            return;
        }
        quiet.looks = quiet.looks.saturating_add(1);
        if quiet.looks == LOOKS_UNTIL_IDLE {
            store.drop_buffers();
            drop_long_buffers();
        }
        if [1, LOOKS_UNTIL_IDLE].contains(&quiet.looks) {
            give_memory_back();
        }
    }

    /// Waits until the store is unmounted, or until `stop` returns `true`. `stop` is called twice a
    /// second and on each wake. It then unmounts the store, and gives its users `patience` to finish.
    /// All writes are durable when this returns, except those that it returns as lost.
    ///
    /// `leave` replaces this program by one that gives the mount to another program which takes it over. It returns why it
    /// cannot.
    pub fn wait(
        self,
        stop: impl Fn() -> bool,
        patience: Duration,
        leave: impl Fn(Bundle) -> Error,
    ) -> Result<MountEnd> {
        let (mut synced, mut trimmed, mut traffic) = (Instant::now(), 0, Quiet::default());
        let [heals, tends, follows, empties, compares] = [(); 5].map(|()| Arc::new(AtomicBool::new(false)));
        let tick = Duration::from_secs(u64::from(self.vfs().store().ticks().length()));
        let (mut looked, mut pressed) = (Instant::now(), Instant::now());
        let is_futile = Arc::new(AtomicBool::new(false));
        let ended = loop {
            if self.is_over() {
                break true;
            }
            if stop() {
                break self.unmount(patience)?;
            }
            if let Some(asker) = self.askers.next() {
                self.give_up(&asker, &leave);
            }
            if synced.elapsed() >= SYNC_EVERY {
                guarded(&self.dispatcher.mounted, "syncing", || self.sync());
                // Collections whose logs record the sync may be closed.
                let closed = self.vfs().store().close_unused();
                if closed >= trimmed + TRIMMED_BYTES {
                    give_memory_back();
                    trimmed = closed;
                }
                self.give_back_idle(&mut traffic);
                synced = Instant::now();
            }
            self.dispatcher.names.notify_again(Instant::now());
            self.vfs().release_forgotten();
            self.dispatcher.second_looks.release_old();
            self.heal(&heals);
            self.tend_pins(&tends);
            self.empty_caches(&empties);
            self.compare(&compares);
            let is_pressed = pressed.elapsed() >= PRESSED_EVERY && !is_futile.load(Ordering::Acquire) && {
                pressed = Instant::now();
                self.vfs().is_short_of_space()
            };
            if is_pressed || looked.elapsed() >= tick {
                self.follow_policy(&follows, &is_futile);
                looked = Instant::now();
            }
            self.waker.listen(LOOK_EVERY)?;
        };
        let Mount { dispatcher, threads, jobs, .. } = self;
        let Dispatcher { vfs, mounted, names, .. } = &*dispatcher;
        names.end();
        mounted.jobs.end();
        if jobs.join().is_err() {
            log::error!("jobs: a bug in tierfs: the last one was not finished");
        }
        let (lost, synced) = vfs.flush_at_end();
        lost.iter().for_each(|(path, why)| log::error!("{path}: lost: {why}"));
        if lost.is_empty() {
            synced?;
        }
        vfs.store().open_collections().iter().for_each(|open| open.save_usage(SaveUsage::Now));
        if ended {
            threads.join().map_err(|error| Error::io("answering requests", error))?;
        }
        vfs.store().save_cache();
        Ok(MountEnd { in_time: ended, lost })
    }

    /// Queues a job that rewrites damaged blocks that reads have found.
    fn heal(&self, heals: &Arc<AtomicBool>) {
        let vfs = self.vfs().clone();
        self.start_one("heal", heals, vfs.engine().has_damaged(), move |_| {
            Ok(format!("{} blocks stored anew", vfs.engine().heal_waiting()?))
        });
    }

    /// Queues a job that verifies copies of pinned files and recreates them, like damaged blocks.
    fn tend_pins(&self, tends: &Arc<AtomicBool>) {
        let vfs = self.vfs().clone();
        self.start_one("pins", tends, vfs.engine().has_pins_waiting(), move |progress| {
            Ok(format!("{} copies made anew", vfs.engine().tend_pins(progress)))
        });
    }

    /// Queues a job that removes files of caches that come close to their limits.
    fn empty_caches(&self, empties: &Arc<AtomicBool>) {
        let (vfs, invalidator) = (self.vfs().clone(), self.dispatcher.invalidator.clone());
        self.start_one("caches", empties, vfs.has_full_caches(), move |_| {
            Ok(vfs.empty_full_caches(&mut |forget| invalidator.forget(forget, || ())))
        });
    }

    /// Queues a job that compares closed files with others, so that equal ones share a data file.
    fn compare(&self, compares: &Arc<AtomicBool>) {
        let vfs = self.vfs().clone();
        self.start_one("share", compares, vfs.has_files_to_compare(), move |progress| {
            let shared = vfs.compare_closed(progress)?;
            Ok(if shared == 0 { String::new() } else { format!("{shared} files share bytes with others") })
        });
    }

    /// Queues a job that moves tensors between tiers by policy. Sets whether it found nothing to do: until the next tick
    /// another one would not either, however full the disk is.
    fn follow_policy(&self, follows: &Arc<AtomicBool>, is_futile: &Arc<AtomicBool>) {
        let (vfs, invalidator, is_futile) =
            (self.vfs().clone(), self.dispatcher.invalidator.clone(), is_futile.clone());
        self.start_one("policy", follows, vfs.has_automatic(), move |progress| {
            let done = vfs.follow_policy(progress, &mut |forget| invalidator.forget(forget, || ()))?;
            is_futile.store(done.is_empty(), Ordering::Release);
            Ok(done)
        });
    }

    /// Queues a job if it is due. `waits` ensures that at most one of its kind is queued or runs.
    fn start_one(
        &self,
        what: &str,
        waits: &Arc<AtomicBool>,
        is_due: bool,
        work: impl FnOnce(&dyn Progress) -> Result<String> + Send + 'static,
    ) {
        if !is_due || waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let waiting = Waiting(waits.clone());
        let job = Job::of_mount(what.to_owned(), self.vfs().owner().uid);
        self.dispatcher.mounted.jobs.push(job, move |progress, report| {
            // Cleared however the job ends, also when it is cancelled while queued.
            let _waiting = waiting;
            report.text = work(progress)?;
            Ok(())
        });
    }

    /// Syncs and logs an error. A program that calls fsync gets the error itself.
    fn sync(&self) {
        if let Err(error) =
            self.vfs().sync_now_and_then(&mut |forget| self.dispatcher.invalidator.forget(forget, || ()))
        {
            log::error!("syncing: {error}");
            self.dispatcher.invalidator.invalidate_meanwhile(self.vfs(), Invalidation::default());
        }
    }

    /// Whether no more requests will arrive.
    fn is_over(&self) -> bool {
        let has_ended = self.waker.has_ended();
        match &self.transport {
            Some(transport) if has_ended => {
                transport.stop();
                transport.has_ended()
            }
            _ => has_ended,
        }
    }

    fn unmount(&self, patience: Duration) -> Result<bool> {
        if self.session.is_mounted()
            && let Err(error) = detach(&self.mountpoint)
        {
            log::warn!("unmounting {}: {error}", self.mountpoint.display());
        }
        let until = Instant::now() + patience;
        while !self.is_over() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.waker.listen(left.min(LOOK_EVERY))?;
        }
        Ok(true)
    }
}

fn detach(mountpoint: &Path) -> std::io::Result<()> {
    let detached = rustix::mount::unmount(mountpoint, rustix::mount::UnmountFlags::DETACH);
    match detached.map_err(std::io::Error::from) {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            unmount_by_helper(mountpoint, true, Stdio::null()).map(|_| ())
        }
        detached => detached,
    }
}

/// Unmounts with `fusermount3`, the helper of libfuse for users without privileges. Returns whether it
/// succeeded.
pub fn unmount_by_helper(mountpoint: &Path, is_lazy: bool, messages: Stdio) -> std::io::Result<bool> {
    let mut helper = Command::new("fusermount3");
    helper.arg(if is_lazy { "-uz" } else { "-u" }).arg("--").arg(mountpoint);
    Ok(helper.stderr(messages).status()?.success())
}

/// Gives rings to the kernel, which has agreed to use them. Without them it uses the device.
fn start_rings(
    rings: Prepared,
    options: &Options,
    session: &Session,
    dispatcher: &Arc<Dispatcher>,
    waker: &Arc<Waker>,
) -> Option<Transport> {
    let waker = waker.clone();
    let ended = move || waker.wake();
    let started = Transport::start(rings, options.withholds_rings, session.device(), dispatcher, ended);
    started.inspect_err(|error| log::warn!("requests arrive by the device, not by io_uring: {error}")).ok()
}

/// Marks a job as queued or running until it is dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Starts the thread that runs the jobs of a mount, at the lowest CPU priority.
fn start_jobs(mounted: Arc<Mounted>, invalidator: Invalidator) -> Result<std::thread::JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("jobs".to_owned());
    let spawned = thread.spawn(move || {
        if let Err(error) = rustix::process::nice(19) {
            log::info!("jobs run like requests do: {error}");
        }
        let make_room = || {
            let store = mounted.store();
            if store.space().is_ok_and(|space| space.available < space.total / 16) {
                store.make_room();
            }
        };
        mounted.jobs.work(&make_room, &|| {
            // A reader that sees a finished job then also sees its results.
            let (forgotten, waiting) = std::sync::mpsc::channel();
            let then = move || forgotten.send(()).unwrap_or_default();
            invalidator.invalidate_pending(&mounted.vfs, Invalidation::default(), then);
            waiting.recv().unwrap_or_default();
        });
    });
    spawned.map_err(|error| Error::io("starting the thread of jobs", error))
}

/// Raises the read-ahead from the default of 128 KiB. Without the privilege for it, reads are slower.
fn raise_read_ahead(mountpoint: &Path) {
    let raised = device_of(mountpoint).and_then(|device| {
        std::fs::write(format!("/sys/class/bdi/{device}/read_ahead_kb"), READ_AHEAD_KIB.to_string()).ok()
    });
    if raised.is_none() {
        log::info!(
            "the kernel's read-ahead could not be raised to {READ_AHEAD_KIB} KiB; reads will be smaller"
        );
    }
}

/// Raises the limit of descriptors. Each file of the store in use takes one; most systems start with
/// 1024 and allow more.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        log::info!(
            "the limit of {} open files could not be raised: {error}",
            limit.current.unwrap_or(u64::MAX)
        );
    }
}

/// `major:minor` of the file system mounted on a directory, without a request to it.
fn device_of(mountpoint: &Path) -> Option<String> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    // Escapes as the kernel writes them. The backslash comes first, because the others add
    // backslashes.
    let escapes = [("\\", "\\134"), (" ", "\\040"), ("\t", "\\011"), ("\n", "\\012")];
    let wanted = mountpoint.to_str()?.to_owned();
    let wanted = escapes.iter().fold(wanted, |text, (from, to)| text.replace(from, to));
    // Names of other mount points may have any bytes.
    let lines = mounts.split(|byte| *byte == b'\n');
    let mut fields = lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
    // The last line is that of the topmost mount.
    let found = fields.rfind(|fields| fields.get(4) == Some(&wanted.as_bytes()))?;
    found.get(2).and_then(|device| String::from_utf8(device.to_vec()).ok())
}

/// How long the traffic with a remote was quiet.
#[derive(Default)]
struct Quiet {
    /// Bytes that were received, and reads, so far.
    seen: (u64, u64),
    /// Looks that have found the same.
    looks: u32,
}

/// Gives free memory back to the system, which the allocator keeps otherwise.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, and changes no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
