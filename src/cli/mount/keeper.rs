//! A process that keeps the descriptors of a mount, and starts its daemon again after it has died.
//!
//! The daemon has a socket to it as its standard input. By that the keeper says how the daemon begins, `NEW`, or `KEPT` with
//! the descriptors of the mount; the daemon sends these once it has mounted (`KEPT`), which process is the daemon (`DAEMON`,
//! with a descriptor of the process), and that the mount has ended (`ENDED`). A program that takes the mount over gets the
//! socket with it, and goes on with the conversation.
//!
//! The keeper opens no store and answers no request. It ends after `ENDED`, or when the daemon cannot be started.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::cli::Outcome;
use crate::cli::mount::{Args, READY, takeover};
use crate::fs::{Bundle, Mount, receive_with, send_with};
use crate::model::{Error, Result};

const NEW: u8 = b'N';
const KEPT: u8 = b'K';
const DAEMON: u8 = b'D';
const ENDED: u8 = b'E';

/// The pause before a daemon is started again, and the longest one: each start that fails doubles it.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a look at a dying daemon waits for its end.
const BRIEFLY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How often it is looked whether a daemon is dying.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// After so many looks at a dying daemon, requests that it has not answered fail, so that it can end.
const DYING_LOOKS: usize = 20;
/// A daemon that dies sooner may have died of a request that the kernel gives to the next one too. After so many of these in
/// a row the pause grows.
const LIVED: Duration = Duration::from_secs(1);
const SHORT_LIVES: u32 = 100;

/// The daemon's end of the conversation.
pub(super) struct Keeper(UnixStream);

impl Keeper {
    /// The keeper that has started this process, and the mount to go on with if its daemon has died.
    pub fn met(stream: UnixStream) -> Result<(Keeper, Option<Bundle>)> {
        let failed = |error| Error::io("asking the process that keeps the mount", error);
        let mut what = [0];
        receive_with(stream.as_fd(), &mut what).map_err(failed)?;
        let begin = match what {
            [KEPT] => Some(Bundle::receive(&stream)?),
            _ => None,
        };
        Ok((Keeper(stream), begin))
    }

    /// The keeper of a mount that is taken over.
    pub fn of(socket: OwnedFd) -> Keeper {
        Keeper(socket.into())
    }

    /// Its socket, for the next daemon.
    pub fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Gives it the descriptors of a mount that this process has made or taken up, and says that this is the daemon.
    pub fn keep(&self, mount: &Mount) -> Result<()> {
        let told = || -> io::Result<()> {
            send_with(self.0.as_fd(), &[KEPT], &[])?;
            mount.kept()?.send(&self.0)?;
            let own = pidfd_open(getpid(), PidfdFlags::empty())?;
            let told = [&[DAEMON], std::process::id().to_le_bytes().as_slice()].concat();
            send_with(self.0.as_fd(), &told, &[own.as_fd()])
        };
        told().map_err(|error| Error::io("giving the mount to the process that keeps it", error))
    }

    /// Says that the mount has ended.
    pub fn end(&self) {
        if let Err(error) = send_with(self.0.as_fd(), &[ENDED], &[]) {
            log::debug!("the process that keeps the mount has ended: {error}");
        }
    }
}

/// The keeper's side: the socket, and what it has heard.
struct Kept {
    socket: UnixStream,
    bundle: Option<Bundle>,
    /// The daemon and its number, if it is not a child of this process.
    daemon: Option<(u32, OwnedFd)>,
    child: Child,
    has_ended: bool,
}

/// Starts the daemon of a mount, and keeps the mount until it ends.
pub(super) fn keep(args: &Args) -> Result<Outcome> {
    // Its name shall not be that of a daemon: `Connection::daemon` looks for that.
    rustix::thread::set_name(c"keep-tierfs").map_err(|error| failed(error.into()))?;
    let mut kept = start(args, None)?;
    if !args.foreground && !is_ready(&mut kept.child)? {
        return Ok(Outcome::Failed);
    }
    if args.announce {
        args.detach(true)?;
    }
    let (mut pause, mut since, mut short_lives) = (PAUSE, Instant::now(), 0);
    loop {
        if !kept.listen()? {
            continue;
        }
        let status = kept.child.try_wait().map_err(failed)?;
        let is_over =
            kept.has_ended || (kept.daemon.is_none() && status.is_some_and(|status| status.success()));
        if is_over || kept.bundle.is_none() {
            let is_good = is_over || status.is_none_or(|status| status.success());
            return Ok(if is_good { Outcome::Succeeded } else { Outcome::Failed });
        }
        short_lives = if since.elapsed() < LIVED { short_lives + 1 } else { 0 };
        let is_well = kept.daemon.is_some() && short_lives <= SHORT_LIVES;
        pause = if is_well { PAUSE } else { (pause * 2).min(PAUSE_MAX) };
        log::error!("the daemon of {} has died; it is started again", args.mountpoint.display());
        let bundle = kept.bundle.take();
        kept = loop {
            std::thread::sleep(pause);
            since = Instant::now();
            match start(args, bundle.as_ref()) {
                Ok(started) => break Kept { bundle, ..started },
                // The system may lack memory or processes for a while.
                Err(error) => log::error!("{error}"),
            }
            pause = (pause * 2).min(PAUSE_MAX);
        };
    }
}

impl Kept {
    /// Waits for a message, or for the end of the daemon. Whether the daemon has ended.
    fn listen(&mut self) -> Result<bool> {
        let (number, daemon) = match &self.daemon {
            Some((number, daemon)) => (*number, daemon.try_clone().map_err(failed)?),
            None => (self.child.id(), child_descriptor(&self.child).map_err(failed)?),
        };
        let (says, mut ends) = waited(&self.socket, &daemon, &LOOK_EVERY)?;
        // The daemon may have sent a message and then ended.
        if says {
            match self.hear() {
                Ok(()) => return Ok(false),
                Err(error) => log::debug!("the daemon says nothing more: {error}"),
            }
        }
        // A thread of it may wait until the kernel has dropped a page for which a request waits.
        let mut looks = 0;
        while !ends && looks < DYING_LOOKS && (says || is_dying(number)) {
            ends = waited(&daemon, &daemon, &BRIEFLY)?.1;
            looks += 1;
        }
        if !ends && is_dying(number) {
            self.bundle.iter().for_each(Bundle::fail_stuck);
        }
        Ok(ends)
    }

    /// Hears a message. An error says that no whole one will come: the daemon ends.
    fn hear(&mut self) -> Result<()> {
        let mut what = [0];
        let descriptors = receive_with(self.socket.as_fd(), &mut what).map_err(failed)?;
        match what {
            [KEPT] => self.bundle = Some(Bundle::receive(&self.socket)?),
            [DAEMON] => {
                let mut number = [0; 4];
                receive_with(self.socket.as_fd(), &mut number).map_err(failed)?;
                self.daemon = descriptors.into_iter().next().map(|own| (u32::from_le_bytes(number), own));
            }
            [ENDED] => self.has_ended = true,
            _ => {}
        }
        Ok(())
    }
}

/// Waits for a message or for the end of a process. Which of them has come.
fn waited(socket: impl AsFd, process: &OwnedFd, limit: &Timespec) -> Result<(bool, bool)> {
    let mut waiting = [PollFd::new(&socket, PollFlags::IN), PollFd::new(process, PollFlags::IN)];
    match poll(&mut waiting, Some(limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(failed(error.into())),
    }
    let [says, ends] = waiting.map(|waiting| !waiting.revents().is_empty());
    Ok((says, ends))
}

/// Whether a process was killed, and not all of its threads have ended.
fn is_dying(number: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn child_descriptor(child: &Child) -> io::Result<OwnedFd> {
    let number = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    let number = number.ok_or_else(|| io::Error::other("a process without a number"))?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

/// Starts a daemon with the arguments of this process.
fn start(args: &Args, bundle: Option<&Bundle>) -> Result<Kept> {
    let (own, theirs) = UnixStream::pair().map_err(failed)?;
    let mut command = Command::new(takeover::program());
    command.args(["mount", "--kept"]);
    if !args.foreground {
        command.arg("--announce");
    }
    command.args(&args.arguments);
    let is_heard = bundle.is_none() && !args.foreground;
    command.stdin(Stdio::from(OwnedFd::from(theirs)));
    command.stdout(if is_heard { Stdio::piped() } else { Stdio::null() });
    let child = command.spawn().map_err(|error| Error::io("starting the daemon", error))?;
    let begin = if bundle.is_some() { KEPT } else { NEW };
    let told = send_with(own.as_fd(), &[begin], &[])
        .and_then(|()| bundle.map_or(Ok(()), |bundle| bundle.send(&own)));
    // It may have ended already.
    if let Err(error) = told {
        log::debug!("a daemon that was started: {error}");
    }
    Ok(Kept { socket: own, bundle: None, daemon: None, child, has_ended: false })
}

/// Whether a daemon says that it is ready.
fn is_ready(child: &mut Child) -> Result<bool> {
    let Some(output) = child.stdout.take() else { return Ok(false) };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).map_err(failed)?;
    Ok(line.trim_end() == READY)
}

fn failed(error: io::Error) -> Error {
    Error::io("keeping the mount", error)
}

/// The arguments of a mount without those that say how its daemon was started.
pub(super) fn own_arguments(all: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let how = ["--announce", "--kept", "--given-up", "--keep-device"];
    all.filter(|argument| !how.iter().any(|known| argument == known)).collect()
}
