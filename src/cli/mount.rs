//! `tierfs mount`.

mod keeper;
pub(super) mod options;
mod takeover;

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts;

use crate::cli::common::log::Destination;
use crate::cli::common::open_store::{open_left_store, open_store, open_when_free};
use crate::cli::common::remote::{self, EarlierMount, RemoteArgs};
use crate::cli::common::traces::{self, parse_collector};
use crate::cli::common::{lost_writes, mounts};
use crate::cli::mount::keeper::Keeper;
use crate::cli::mount::options::{
    MountOption, Switch, parse_address, parse_list_mode, parse_opens, parse_option, parse_switch,
    parse_umask, parse_verify,
};
use crate::cli::{Outcome, init, misused};
use crate::format::handover::HandOver;
use crate::fs::{
    Asking, Budget, Bundle, Options, ShownOwner, TransportChoice, mount, of_standard_input, take_up,
};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Verify;
use crate::store::disk::files::FileDisk;
use crate::store::{Access, EventKind, Store};
use crate::vfs::ListMode;

/// Mount a store; its tensors and files appear below the mount point.
///
/// Returns when the mount is ready, and leaves a daemon in the background. A remote is mounted read-only;
/// its credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
/// AWS_ENDPOINT).
///
/// Example: tierfs mount /srv/tensors /mnt
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or a remote such as s3://BUCKET/PREFIX
    #[arg(required_unless_present = "takeover", default_value = ".", hide_default_value = true)]
    store: PathBuf,
    /// The directory to mount on
    #[arg(required_unless_present = "takeover", default_value = ".", hide_default_value = true)]
    mountpoint: PathBuf,
    /// Take the mount on this directory over from its daemon while programs use it, with the options that it has: another
    /// version of this program goes on. If it cannot, the daemon goes on
    #[arg(long, value_name = "MOUNTPOINT", exclusive = false, conflicts_with_all = ["store", "mountpoint"])]
    takeover: Option<PathBuf>,
    /// Start the daemon again when it dies, by another process that keeps the mount meanwhile: programs go on, but those
    /// that write get ESTALE
    #[arg(long)]
    keep_device: bool,
    /// Stay in the foreground and log to standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Create the store if it does not exist
    #[arg(long)]
    create: bool,
    /// Open the store read-only; several processes may then read it at the same time
    #[arg(long)]
    read_only: bool,
    /// Let other users access the mount, as the modes of files permit
    #[arg(long)]
    allow_other: bool,
    /// Read unrecoverable blocks as zeros instead of failing
    #[arg(long)]
    zero_fill: bool,
    /// On a read-only mount, show this user as the owner of all files
    #[arg(long, value_name = "NUMBER")]
    uid: Option<u32>,
    /// On a read-only mount, show this group as that of all files
    #[arg(long, value_name = "NUMBER")]
    gid: Option<u32>,
    /// On a read-only mount, hide these permission bits of all files, in octal
    #[arg(long, value_name = "BITS", value_parser = parse_umask)]
    umask: Option<u32>,
    /// Number of threads that answer requests [default: number of cores; 64 for a remote]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// When to verify stored bytes: first (on first use) or always (on every read)
    #[arg(long, value_name = "WHEN", default_value = "first", value_parser = parse_verify)]
    verify: Verify,
    /// How requests of the kernel arrive: auto (io_uring, if the kernel offers it), uring (the same, and says where it
    /// does not) or classic (the device)
    #[arg(long, value_name = "HOW", default_value = "auto")]
    transport: TransportChoice,
    /// Agree to use io_uring, but give the kernel no rings
    #[arg(long, hide = true)]
    withhold_rings: bool,
    /// Requests of each core that the daemon has at a time over io_uring
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u16).range(1..=64))]
    ring_entries: Option<u16>,
    /// Let the kernel read contiguous exact files without the daemon: on or off
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = parse_switch)]
    passthrough: Switch,
    /// Which side opens files: daemon, or kernel, which then opens them without a request. For a store that is mounted
    /// read-only; the mount has no control files and no passthrough
    #[arg(long, value_name = "SIDE", default_value = "daemon", value_parser = parse_opens, action = clap::ArgAction::Set)]
    opens: bool,
    /// Let the kernel cache the names of tensors for a while: on or off
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = parse_switch)]
    keep_names: Switch,
    /// Memory for decoded files: a size such as 4G, a part of the memory such as 10%, or off
    #[arg(long, value_name = "SIZE", default_value_t)]
    decoded_cache: Budget,
    /// Decode every file when it is opened
    #[arg(long, hide = true)]
    decode_all: bool,
    /// Entries of directories: files, or both files and the tensors of containers
    #[arg(long, value_name = "WHAT", default_value = "files", value_parser = parse_list_mode)]
    list: ListMode,
    /// Serve metrics in the OpenMetrics format at http://ADDRESS:PORT/metrics, without authentication
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    metrics: Option<SocketAddr>,
    /// Export traces to the OpenTelemetry collector at this URL (OTLP over HTTP); needs the feature traces
    #[arg(long, value_name = "URL", value_parser = parse_collector)]
    traces: Option<String>,
    /// Options in the syntax of mount(8), for example ro,allow_other,threads=4,list=both; nonempty mounts
    /// over a directory that is not empty
    #[arg(short = 'o', value_name = "OPTION[,...]", value_delimiter = ',', value_parser = parse_option)]
    options: Vec<MountOption>,
    /// Log file of the background daemon [default: the journal or syslog]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Print a line when the mount is ready, then detach from the terminal
    #[arg(long, hide = true)]
    announce: bool,
    /// Print an error as a JSON object
    #[arg(long, hide = true)]
    json: bool,
    /// Standard input is a socket to the process that keeps the mount
    #[arg(long, hide = true)]
    kept: bool,
    /// Wait until another program has taken over the mount that standard input, a socket, brings
    #[arg(long, hide = true)]
    given_up: bool,
    /// Whether the mount point may hold files (`-o nonempty`)
    #[arg(skip)]
    nonempty: bool,
    /// The arguments, without those that say how the process was started
    #[arg(skip)]
    arguments: Vec<OsString>,
}

/// How a daemon begins.
#[derive(Default)]
struct Begun {
    /// The mount of an earlier daemon.
    bundle: Option<Bundle>,
    /// The conversation with that daemon, if it waits.
    asking: Option<Asking>,
    /// The process that keeps the mount, if there is one.
    keeper: Option<Keeper>,
    /// The remote, if it is open.
    remote: Option<Store>,
}

/// How long a mount that is asked to end waits for its users to finish.
const PATIENCE: Duration = Duration::from_secs(5);
/// Threads that answer requests of a mounted remote, and of a store with clones. A read holds its thread until the bytes are there, and
/// names must not wait for it.
const REMOTE_THREADS: usize = 64;
/// A process that was killed has let its store go by then, unless one of its threads waits for a request to be answered.
const DYING: Duration = Duration::from_secs(1);
const READY: &str = "ready";
/// The signals that end a mount.
const SIGNALS: [i32; 3] = [consts::SIGTERM, consts::SIGINT, consts::SIGHUP];

/// The error for a store that does not exist.
fn no_store(path: &Path) -> Error {
    let shown = path.display();
    let text =
        format!("{shown} does not exist; create a store with `tierfs init {shown}`, or mount with --create");
    Error::new(ErrorKind::NotFound, text)
}

impl Args {
    pub fn run(mut self) -> Result<Outcome> {
        if let Some(mountpoint) = &self.takeover {
            let is_daemon = self.foreground || self.announce;
            return if is_daemon { takeover::take_over(mountpoint, &self) } else { self.start() };
        }
        self.arguments = keeper::own_arguments(std::env::args_os().skip(2));
        let kernel = self.take_options();
        if self.keep_device || self.kept {
            // Requests that a dead daemon had over io_uring would never be answered.
            self.transport = TransportChoice::Classic;
        }
        if !self.is_remote() && self.remote.are_given() {
            return misused(
                "--at, --trust, --tier, --mirror and --follow are options of a remote, such as s3://BUCKET/PREFIX",
            );
        }
        if self.given_up {
            let Some(bundle) = takeover::wait_for_other()? else { return Ok(Outcome::Succeeded) };
            return self.go_on(kernel, Begun { bundle: Some(bundle), ..Begun::default() });
        }
        if self.kept {
            takeover::take_name()?;
            let socket = of_standard_input().map_err(|error| Error::io("asking the keeper", error))?;
            let (keeper, bundle) = Keeper::met(socket)?;
            let begun = Begun { bundle, keeper: Some(keeper), ..Begun::default() };
            return if begun.bundle.is_some() {
                self.go_on(kernel, begun)
            } else {
                self.begin(kernel, begun)
            };
        }
        self.begin(kernel, Begun::default())
    }

    fn is_remote(&self) -> bool {
        remote::url(&self.store).is_some()
    }

    /// Goes on with a mount that an earlier daemon has made. Nothing here asks it: it answers nobody.
    fn go_on(mut self, kernel: Vec<String>, begun: Begun) -> Result<Outcome> {
        self.find_places()?;
        self.serve(kernel, begun)
    }

    /// Resolves the paths of a mount that is there.
    fn find_places(&mut self) -> Result<()> {
        if !self.is_remote() {
            self.store =
                fs::canonicalize(&self.store).map_err(|error| Error::io(self.store.display(), error))?;
        }
        self.mountpoint = mounts::resolved(&self.mountpoint)?;
        Ok(())
    }

    /// Makes a mount.
    fn begin(mut self, kernel: Vec<String>, begun: Begun) -> Result<Outcome> {
        if !self.is_remote() {
            self.prepare_store()?;
        } else if self.create {
            return Err(Error::invalid(
                "--create makes only local stores; to make a remote: tierfs push STORE TENANT/COLLECTION URL --create",
            ));
        }
        let failed = |path: &Path, error| Error::io(path.display(), error);
        mounts::mount_of(&self.mountpoint)?;
        self.mountpoint =
            fs::canonicalize(&self.mountpoint).map_err(|error| failed(&self.mountpoint, error))?;
        self.refuse_second_mount()?;
        if !self.mountpoint.is_dir() {
            return Err(Error::invalid(format!("{} is not a directory", self.mountpoint.display())));
        }
        let shown = self.directory();
        if shown
            .is_some_and(|shown| shown.starts_with(&self.mountpoint) || self.mountpoint.starts_with(&shown))
        {
            return Err(Error::invalid(
                "a store cannot be mounted on itself or on a directory above or below it",
            ));
        }
        self.refuse_hiding_files()?;
        match (self.foreground || self.announce, self.keep_device) {
            (true, true) => keeper::keep(&self),
            (true, false) => self.serve(kernel, begun),
            (false, _) => self.start(),
        }
    }

    /// The directory that is mounted; `None` for a bucket. The daemon must not wait for its own answers.
    fn directory(&self) -> Option<PathBuf> {
        if !self.is_remote() {
            return Some(self.store.clone());
        }
        let path = Path::new(self.store.to_str()?.strip_prefix("file://")?);
        // One that is away is read by this name once it is back.
        Some(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()))
    }

    /// Makes the store if that was asked for, and resolves its path.
    fn prepare_store(&mut self) -> Result<()> {
        if self.create && !Store::is_there(&FileDisk::new(&self.store))? {
            init::create(&self.store)?;
        }
        mounts::refuse_own_mount(&self.store)?;
        self.store = fs::canonicalize(&self.store).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => no_store(&self.store),
            _ => Error::io(self.store.display(), error),
        })?;
        Ok(())
    }

    /// Refuses to mount over another tierfs, which the new mount would hide.
    fn refuse_second_mount(&self) -> Result<()> {
        let mounted = mounts::mount_of(&self.mountpoint)?;
        let Some(mounted) = mounted.filter(|mounted| mounted.mountpoint == self.mountpoint) else {
            return Ok(());
        };
        let (shown, store) = (self.mountpoint.display(), mounted.store.display());
        let text = format!("{store} is already mounted on {shown}; unmount it with tierfs umount {shown}");
        Err(Error::new(ErrorKind::Busy, text))
    }

    /// Refuses to mount over files, which the mount would hide.
    fn refuse_hiding_files(&self) -> Result<()> {
        let shown = self.mountpoint.display();
        let mut entries =
            fs::read_dir(&self.mountpoint).map_err(|error| Error::io(shown.to_string(), error))?;
        if self.nonempty || entries.next().is_none() {
            return Ok(());
        }
        if Store::exists(&FileDisk::new(&self.mountpoint)) {
            let store = self.store.display();
            let text = format!(
                "{shown} is a tierfs store, which the mount would hide; the store comes first: tierfs mount {shown} \
                 {store}; otherwise name an empty directory"
            );
            return Err(Error::new(ErrorKind::NotEmpty, text));
        }
        let text = format!(
            "{shown} is not empty, and the mount would hide its files; name an empty directory, or mount with \
             -o nonempty"
        );
        Err(Error::new(ErrorKind::NotEmpty, text))
    }

    /// Applies the options of `-o` to the fields of their flags. Returns the options for the kernel.
    fn take_options(&mut self) -> Vec<String> {
        let mut kernel = Vec::new();
        for option in std::mem::take(&mut self.options) {
            match option {
                MountOption::List(shown) => self.list = shown,
                MountOption::Verify(verify) => self.verify = verify,
                MountOption::Passthrough(switch) => self.passthrough = switch,
                MountOption::Opens(by_kernel) => self.opens = by_kernel,
                MountOption::KeepNames(switch) => self.keep_names = switch,
                MountOption::Metrics(at) => self.metrics = Some(at),
                MountOption::Traces(url) => self.traces = Some(url),
                MountOption::DecodedCache(budget) => self.decoded_cache = budget,
                MountOption::Threads(threads) => self.threads = Some(threads),
                MountOption::Transport(choice) => self.transport = choice,
                MountOption::Uid(uid) => self.uid = Some(uid),
                MountOption::Gid(gid) => self.gid = Some(gid),
                MountOption::Umask(umask) => self.umask = Some(umask),
                MountOption::At(at) => self.remote.at.push(at),
                MountOption::Trust(key) => self.remote.trust.push(key),
                MountOption::Tier(tier) => self.remote.tier = Some(tier),
                MountOption::Cache(directory) => self.remote.cache = Some(directory),
                MountOption::CacheSize(size) => self.remote.cache_size = Some(size),
                MountOption::Mirror(url) => self.remote.mirror.push(url),
                MountOption::Timeout(seconds) => self.remote.timeout = Some(seconds),
                MountOption::Follow(period) => self.remote.follow = Some(period),
                MountOption::ReadOnly => self.read_only = true,
                MountOption::AllowOther => self.allow_other = true,
                MountOption::ZeroFill => self.zero_fill = true,
                MountOption::Nonempty => self.nonempty = true,
                MountOption::Kernel(option) => kernel.push(option),
                MountOption::Ignored => {}
            }
        }
        kernel
    }

    /// Starts a daemon and waits until its mount is ready.
    fn start(&self) -> Result<Outcome> {
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", error))?;
        let mut command = Command::new(program);
        // The arguments after the subcommand go unchanged to the daemon, which parses them again.
        command.args(["mount", "--announce"]).args(std::env::args_os().skip(2));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut daemon = command.spawn().map_err(|error| Error::io("starting the daemon", error))?;
        let output =
            daemon.stdout.take().ok_or_else(|| Error::invalid("the daemon has no standard output"))?;
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        read.map_err(|error| Error::io("waiting for the daemon", error))?;
        if line.trim_end() == READY {
            return Ok(Outcome::Succeeded);
        }
        // The daemon has printed the reason.
        daemon.wait().map_err(|error| Error::io("waiting for the daemon", error))?;
        Ok(Outcome::Failed)
    }

    /// Opens the store, with the lock of an earlier daemon if that has handed the mount over.
    fn open_store(&self, bundle: Option<&mut Bundle>) -> Result<Store> {
        if let Some(url) = remote::url(&self.store) {
            let said = bundle.map(|bundle| bundle.said()).transpose()?.flatten();
            let earlier = said.as_deref().map(|said| EarlierMount { said, has_daemon: false });
            return self.remote.open(url, earlier);
        }
        let access = if self.read_only { Access::Read } else { Access::Write };
        let note =
            format!("process {}, which has it mounted on {}", std::process::id(), self.mountpoint.display());
        let store = match bundle {
            None => open_store(&self.store, access, &note)?,
            Some(bundle) if bundle.state.is_some() => {
                let disk = FileDisk::new(&self.store).with_lock(bundle.lock.take().map(fs::File::from));
                open_when_free(disk, access, &note, |_| false)?
            }
            Some(bundle) => open_left_store(&self.store, access, &note, |waited| {
                if waited >= DYING {
                    bundle.fail_stuck();
                }
            })?,
        };
        self.remote.fetch(&store)?;
        Ok(store)
    }

    /// The disk of a store that the mount writes to.
    fn own_disk(&self) -> Option<FileDisk> {
        let is_own = !self.read_only && remote::url(&self.store).is_none();
        is_own.then(|| FileDisk::new(&self.store))
    }

    /// Mounts the store and serves it until it is unmounted or a signal ends it.
    fn serve(&self, kernel: Vec<String>, begun: Begun) -> Result<Outcome> {
        let Begun { mut bundle, asking, mut keeper, remote } = begun;
        let is_new = bundle.is_none();
        let stop = Arc::new(AtomicBool::new(false));
        let deaf = |error| Error::io("waiting for signals", error);
        // A mount that follows a remote looks for snapshots then.
        let ends = |signal: &i32| *signal != consts::SIGHUP || self.remote.follow.is_none();
        for signal in SIGNALS.into_iter().filter(ends) {
            signal_hook::flag::register(signal, stop.clone()).map_err(deaf)?;
        }
        let left = self.own_disk().and_then(|disk| lost_writes::of_note(&disk));
        let refused = |error: Error| {
            if let Some(asking) = &asking {
                asking.refuse(&error.to_string());
            }
            error
        };
        let store = remote.map_or_else(|| self.open_store(bundle.as_mut()), Ok).map_err(refused)?;
        let store = Arc::new(store);
        if let Some(lost) = left {
            log::warn!("the last mount of the store ended without {lost}");
            store.events().tell(
                EventKind::Unrecorded,
                "/",
                "unmount",
                &format!("the last mount ended without {lost}"),
            );
        }
        let waits = remote::url(&self.store).is_some() || store.waits_for_network();
        let options = Options {
            list: self.list,
            verify: self.verify,
            allow_other: self.allow_other,
            zero_fill: self.zero_fill,
            threads: self.threads.map(usize::from).or(waits.then_some(REMOTE_THREADS)),
            reads_all: self.passthrough == Switch::Off,
            opens_itself: self.opens,
            asks_names: self.keep_names == Switch::Off,
            metrics: self.metrics,
            decoded_cache: self.decoded_cache,
            decodes_all: self.decode_all,
            transport: self.transport,
            withholds_rings: self.withhold_rings,
            ring_entries: self.ring_entries.map(usize::from),
            owner: ShownOwner { uid: self.uid, gid: self.gid, umask: self.umask.unwrap_or(0) },
            kernel,
            offer: Some(self.offer(&store)?),
        };
        // Dropped after the mount has ended.
        let exporter = traces::begin(self.traces.as_deref(), &self.store, &self.mountpoint)?;
        self.remote.follow(&store)?;
        if let Some(socket) = bundle.as_mut().and_then(|bundle| bundle.keeper.take()) {
            keeper = Some(Keeper::of(socket));
        }
        let mount = match bundle {
            Some(bundle) => take_up(store, &self.mountpoint, &options, bundle).map_err(refused)?,
            None => mount(store, &self.mountpoint, &options)?,
        };
        for signal in SIGNALS.into_iter().filter(ends) {
            let wake = mount.waker().wake_handle().map_err(refused)?;
            signal_hook::low_level::pipe::register(signal, wake).map_err(deaf).map_err(refused)?;
        }
        if !is_new {
            mount.begin().map_err(refused)?;
        }
        // From here on this process has the mount, whatever the others do.
        match keeper.as_ref().map(|keeper| keeper.keep(&mount)) {
            Some(Err(error)) if is_new => return Err(error),
            Some(Err(error)) => log::warn!("the mount is not kept: {error}"),
            _ => {}
        }
        let tell = |state| {
            let told = sd_notify::notify(&[state]);
            told.unwrap_or_else(|error| log::warn!("telling systemd which process has the mount: {error}"));
        };
        // systemd shall not take the end of the former daemon for that of the service. A keeper is its process all along.
        if keeper.is_none() && !is_new {
            tell(sd_notify::NotifyState::MainPid(std::process::id()));
        }
        if let Some(Err(error)) = asking.map(|asking| asking.done()) {
            log::warn!("{error}");
        }
        let detached = if self.announce { self.detach(!self.given_up) } else { Ok(()) };
        match detached {
            Err(error) if is_new => return Err(error),
            Err(error) => log::warn!("{error}"),
            Ok(()) => {}
        }
        tell(sd_notify::NotifyState::Ready);
        let leave = |bundle| takeover::leave(self, bundle, keeper.as_ref());
        let ended = mount.wait(|| stop.load(Ordering::Relaxed), PATIENCE, leave)?;
        keeper.iter().for_each(Keeper::end);
        if let Some(disk) = self.own_disk().filter(|_| !ended.lost.is_empty()) {
            return Err(lost_writes::leave_note(&disk, &ended.lost));
        }
        if !ended.in_time {
            log::warn!("{} was still in use after {} s", self.mountpoint.display(), PATIENCE.as_secs());
            // Later reads of open files fail. Everything written is in the log.
            traces::end(exporter);
            std::process::exit(0);
        }
        Ok(Outcome::Succeeded)
    }

    /// The arguments with which another program can take the mount over.
    fn offer(&self, store: &Store) -> Result<HandOver> {
        let directory = std::env::current_dir().map_err(|error| Error::io("the working directory", error))?;
        let arguments = self.arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect();
        let directory = directory.as_os_str().as_bytes().to_vec();
        let said = store.said().unwrap_or_default().into_bytes();
        Ok(HandOver { arguments, directory, said, ..HandOver::default() })
    }

    /// Detaches from the terminal; prints before that the mount is ready, if `is_told`.
    fn detach(&self, is_told: bool) -> Result<()> {
        let failed = |error: rustix::io::Errno| Error::io("detaching from the terminal", error.into());
        let destination = Destination::of_daemon(self.log.as_deref())?;
        if let Some(note) = destination.note() {
            crate::cli::common::output::complain(&format!("tierfs: {note}"));
        }
        if is_told {
            crate::cli::common::output::print(&format!("{READY}\n"))?;
            rustix::process::setsid().map_err(failed)?;
        }
        let nowhere = fs::OpenOptions::new().write(true).open("/dev/null");
        let nowhere = nowhere.map_err(|error| Error::io("opening /dev/null", error))?;
        rustix::stdio::dup2_stdout(nowhere.as_fd()).map_err(failed)?;
        let stderr = destination.file().map_or(nowhere.as_fd(), |file| file.as_fd());
        rustix::stdio::dup2_stderr(stderr).map_err(failed)?;
        destination.begin();
        Ok(())
    }
}
