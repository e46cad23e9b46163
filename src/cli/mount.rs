//! `tierfs mount`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts;

use crate::cli::shared::mounts;
use crate::cli::{Done, init};
use crate::fs::{Options, mount};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Verify;
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};
use crate::vfs::Shown;

/// Mount a store: its tensors and files appear below the mount point.
///
/// Returns when the mount is ready.
///
/// Example: tierfs mount /srv/tensors /mnt
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store
    store: PathBuf,
    /// A directory
    mountpoint: PathBuf,
    /// Stay in the foreground, and log to standard error
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Make the store if it is not there
    #[arg(long)]
    create: bool,
    /// Change nothing in the store, so that others may read it at the same time
    #[arg(long)]
    read_only: bool,
    /// Let other users in, as the files' modes say
    #[arg(long)]
    allow_other: bool,
    /// Bytes that are absent, and that nothing can make again, read as zeros
    #[arg(long)]
    zero_fill: bool,
    /// Threads that answer requests; as many as cores without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    /// Check stored bytes at their first use, or always
    #[arg(long, value_name = "WHEN", default_value = "first", value_parser = parse_verify)]
    verify: Verify,
    /// Let the kernel read files that lie whole and exact in the store by itself: on, off
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = parse_switch)]
    passthrough: Switch,
    /// Let the kernel keep names of tensors for a while: on, off
    #[arg(long, value_name = "WHEN", default_value = "on", value_parser = parse_switch)]
    keep_names: Switch,
    /// What listings show: both, tensors, or containers; all open by name
    #[arg(long, value_name = "WHAT", default_value = "both", value_parser = parse_shown)]
    list: Shown,
    /// Options as mount(8) writes them: list=containers,verify=always,ro,allow_other,threads=4
    #[arg(short = 'o', value_name = "OPTION[,...]", value_delimiter = ',', value_parser = parse_option)]
    options: Vec<MountOption>,
    /// Where a daemon in the background logs to; nowhere without it
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Say on standard output when the mount is ready, then let go of the terminal
    #[arg(long, hide = true)]
    announce: bool,
}

/// How long a mount that is told to end waits for those who use it.
const PATIENCE: Duration = Duration::from_secs(5);
const READY: &str = "ready";
/// What ends a mount.
const SIGNALS: [i32; 3] = [consts::SIGTERM, consts::SIGINT, consts::SIGHUP];

fn parse_verify(text: &str) -> Result<Verify> {
    match text {
        "first" => Ok(Verify::First),
        "always" => Ok(Verify::Always),
        _ => Err(Error::invalid(format!("{text:?} is neither first nor always"))),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    On,
    Off,
}

fn parse_switch(text: &str) -> Result<Switch> {
    match text {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err(Error::invalid(format!("{text:?} is neither on nor off"))),
    }
}

fn parse_shown(text: &str) -> Result<Shown> {
    Shown::from_name(text)
        .ok_or_else(|| Error::invalid(format!("{text:?} is none of both, tensors, containers")))
}

/// An option as mount(8) writes it.
#[derive(Clone)]
enum MountOption {
    List(Shown),
    Verify(Verify),
    Passthrough(Switch),
    KeepNames(Switch),
    Threads(u16),
    ReadOnly,
    AllowOther,
    ZeroFill,
    /// For the kernel.
    Kernel(String),
    /// What fstab and mount(8) add by themselves.
    Nothing,
}

fn parse_option(text: &str) -> Result<MountOption> {
    let option = match text.split_once('=') {
        Some(("list", value)) => MountOption::List(parse_shown(value)?),
        Some(("verify", value)) => MountOption::Verify(parse_verify(value)?),
        Some(("passthrough", value)) => MountOption::Passthrough(parse_switch(value)?),
        Some(("keep_names", value)) => MountOption::KeepNames(parse_switch(value)?),
        Some(("threads", value)) => {
            let threads = value.parse().ok().filter(|threads| (1..=256).contains(threads));
            let wrong = || Error::invalid(format!("{value:?} threads: 1 to 256 are possible"));
            MountOption::Threads(threads.ok_or_else(wrong)?)
        }
        None if text == "ro" => MountOption::ReadOnly,
        None if text == "allow_other" => MountOption::AllowOther,
        None if matches!(text, "zero_fill" | "zero-fill") => MountOption::ZeroFill,
        None if matches!(text, "nosuid" | "nodev" | "noexec") => MountOption::Kernel(text.to_owned()),
        None if IDLE_OPTIONS.contains(&text) => MountOption::Nothing,
        _ if IDLE_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) => MountOption::Nothing,
        _ => return Err(Error::invalid(format!("{text:?} is no mount option"))),
    };
    Ok(option)
}

/// What fstab(5) and mount(8) have for themselves, or is so anyway.
const IDLE_OPTIONS: [&str; 22] = [
    "_netdev",
    "async",
    "auto",
    "defaults",
    "dev",
    "diratime",
    "exec",
    "group",
    "noatime",
    "noauto",
    "nodiratime",
    "nofail",
    "nogroup",
    "noowner",
    "norelatime",
    "nouser",
    "nousers",
    "owner",
    "relatime",
    "rw",
    "user",
    "users",
];
const IDLE_PREFIXES: [&str; 3] = ["x-", "X-", "comment="];

/// Whether an option is one that a mount takes.
pub(super) fn is_option(text: &str) -> bool {
    parse_option(text).is_ok()
}

/// Whether a mount answers like one whose daemon has ended.
fn is_gone(error: &std::io::Error) -> bool {
    let number = error.raw_os_error();
    [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED]
        .iter()
        .any(|known| number == Some(known.raw_os_error()))
}

fn daemon_is_gone(mountpoint: &Path) -> Error {
    let shown = mountpoint.display();
    let text = format!("the daemon of {shown} is gone; tierfs umount --lazy {shown} takes its mount away");
    Error::new(ErrorKind::Busy, text)
}

impl Args {
    pub fn run(mut self) -> Result<Done> {
        let kernel = self.take_options();
        if self.create && !Store::exists(&FileDisk::new(&self.store)) {
            init::create(&self.store)?;
        }
        let failed = |path: &Path, error| Error::io(path.display(), error);
        mounts::refuse_own_mount("store", &self.store)?;
        self.store = fs::canonicalize(&self.store).map_err(|error| failed(&self.store, error))?;
        self.mountpoint = fs::canonicalize(&self.mountpoint).map_err(|error| {
            if is_gone(&error) { daemon_is_gone(&self.mountpoint) } else { failed(&self.mountpoint, error) }
        })?;
        self.refuse_second_mount()?;
        if !self.mountpoint.is_dir() {
            return Err(Error::invalid(format!("{} is no directory", self.mountpoint.display())));
        }
        if self.store.starts_with(&self.mountpoint) || self.mountpoint.starts_with(&self.store) {
            return Err(Error::invalid("a store cannot be mounted on itself, or on what it lies in"));
        }
        if self.foreground || self.announce { self.serve(kernel) } else { self.start() }
    }

    /// One tierfs on another would hide it, and one on a dead one cannot be.
    fn refuse_second_mount(&self) -> Result<()> {
        let mounted = mounts::mount_of(&self.mountpoint)?;
        let Some(mounted) = mounted.filter(|mounted| mounted.mountpoint == self.mountpoint) else {
            return Ok(());
        };
        match fs::read_dir(&self.mountpoint) {
            Err(error) if is_gone(&error) => Err(daemon_is_gone(&self.mountpoint)),
            _ => {
                let (shown, store) = (self.mountpoint.display(), mounted.store.display());
                let text = format!("{store} is mounted on {shown} already; tierfs umount {shown} ends that");
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    /// Puts the options where their flags are; what is left is for the kernel.
    fn take_options(&mut self) -> Vec<String> {
        let mut kernel = Vec::new();
        for option in std::mem::take(&mut self.options) {
            match option {
                MountOption::List(shown) => self.list = shown,
                MountOption::Verify(verify) => self.verify = verify,
                MountOption::Passthrough(switch) => self.passthrough = switch,
                MountOption::KeepNames(switch) => self.keep_names = switch,
                MountOption::Threads(threads) => self.threads = Some(threads),
                MountOption::ReadOnly => self.read_only = true,
                MountOption::AllowOther => self.allow_other = true,
                MountOption::ZeroFill => self.zero_fill = true,
                MountOption::Kernel(option) => kernel.push(option),
                MountOption::Nothing => {}
            }
        }
        kernel
    }

    /// Starts a daemon and waits until its mount is ready.
    fn start(&self) -> Result<Done> {
        let program = std::env::current_exe().map_err(|error| Error::io("finding this program", error))?;
        let mut command = Command::new(program);
        // As they were given, behind the command's name: the daemon takes them apart again.
        command.args(["mount", "--announce"]).args(std::env::args_os().skip(2));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut daemon = command.spawn().map_err(|error| Error::io("starting the daemon", error))?;
        let output = daemon.stdout.take().ok_or_else(|| Error::invalid("a daemon without an output"))?;
        let mut line = String::new();
        let read = BufReader::new(output).read_line(&mut line);
        read.map_err(|error| Error::io("waiting for the daemon", error))?;
        if line.trim_end() == READY {
            return Ok(Done::Well);
        }
        // It has said why.
        daemon.wait().map_err(|error| Error::io("waiting for the daemon", error))?;
        Ok(Done::Failed)
    }

    /// Mounts and answers until somebody unmounts or stops it.
    fn serve(&self, kernel: Vec<String>) -> Result<Done> {
        let stop = Arc::new(AtomicBool::new(false));
        let deaf = |error| Error::io("waiting for signals", error);
        for signal in SIGNALS {
            signal_hook::flag::register(signal, stop.clone()).map_err(deaf)?;
        }
        let access = if self.read_only { Access::Read } else { Access::Write };
        let note =
            format!("process {}, which has it mounted on {}", std::process::id(), self.mountpoint.display());
        let store = Store::open(Arc::new(FileDisk::new(&self.store)), access, &note);
        let store = Arc::new(store.map_err(|error| mounts::with_mounts(error, &self.store))?);
        let options = Options {
            shown: self.list,
            verify: self.verify,
            allow_other: self.allow_other,
            zero_fill: self.zero_fill,
            threads: self.threads.map(usize::from),
            reads_all: self.passthrough == Switch::Off,
            asks_names: self.keep_names == Switch::Off,
            kernel,
        };
        let mount = mount(store, &self.mountpoint, &options)?;
        for signal in SIGNALS {
            signal_hook::low_level::pipe::register(signal, mount.waker().wake_handle()?).map_err(deaf)?;
        }
        if self.announce {
            self.detach()?;
        }
        let ready = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        ready.map_err(|error| Error::io("telling systemd that the mount is ready", error))?;
        let ended = mount.wait(|| stop.load(Ordering::Relaxed), PATIENCE)?;
        if !ended {
            log::warn!("{} was still in use after {} s", self.mountpoint.display(), PATIENCE.as_secs());
            // Who still reads gets errors after this; what was written is in the log.
            std::process::exit(0);
        }
        Ok(Done::Well)
    }

    /// Says that the mount is ready and lets go of the terminal.
    fn detach(&self) -> Result<()> {
        let failed = |error: rustix::io::Errno| Error::io("leaving the terminal", error.into());
        crate::cli::shared::output::print(&format!("{READY}\n"))?;
        rustix::process::setsid().map_err(failed)?;
        let nowhere = fs::OpenOptions::new().write(true).open("/dev/null");
        let nowhere = nowhere.map_err(|error| Error::io("opening /dev/null", error))?;
        let log = match &self.log {
            Some(path) => fs::OpenOptions::new().append(true).create(true).open(path),
            None => nowhere.try_clone(),
        };
        let log = log.map_err(|error| Error::io("opening the log", error))?;
        rustix::stdio::dup2_stdout(nowhere.as_fd()).map_err(failed)?;
        rustix::stdio::dup2_stderr(log.as_fd()).map_err(failed)
    }
}
