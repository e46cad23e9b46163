//! The hand-over of a mount to another program, while programs use it.
//!
//! ```text
//! new program                      old daemon
//! connects, version ─────────────> checks the user and the version
//!                   <───────────── arguments of the mount, or why not
//! could it serve them? Can it reach the remote?
//! "go on" ───────────────────────> flushes; lets its threads rest; waits for the answers; flushes
//!                                  runs itself again, without threads, with the descriptors
//!                   <───────────── descriptors and state, or why not
//! opens the store, takes the mount up
//! "done", or why not ────────────> ends, or takes the mount up again itself
//! ```
//!
//! From "go on" to "done" requests wait in the kernel. The old daemon gives up its memory before the new one opens the
//! store, so at no time do two processes change it, and whatever the new one does, the old one takes the mount up from what
//! the log says. A connection that ends is a "why not".

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use crate::format::cursor::{Reader, Writer};
use crate::format::handover::{HandOver, VERSION, check_version};
use crate::fs::mount::waker::Waker;
use crate::model::{Error, ErrorKind, Result};

const MAGIC: &[u8; 8] = b"tierfsTO";
/// A peer that says nothing for so long is left.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest time in which a program takes a mount up that it got.
const TAKING_MAX: Duration = Duration::from_secs(120);
/// Longest text between the two.
const TEXT_BYTES_MAX: u32 = 1 << 24;

const REFUSED: u8 = 0;
const AGREED: u8 = 1;

/// The socket by which the daemon of a connection, by its number, is asked for its mount.
fn socket_path(connection: u32) -> Option<PathBuf> {
    let directory = if geteuid().is_root() {
        PathBuf::from("/run/tierfs")
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)?;
        runtime.is_absolute().then(|| runtime.join("tierfs"))?
    };
    Some(directory.join(format!("{connection}.sock")))
}

/// Programs that wait to take the mount over. The waiting thread of the mount takes them.
#[derive(Clone, Default)]
pub(super) struct Askers(Arc<Mutex<Vec<UnixStream>>>);

impl Askers {
    /// The next program.
    pub fn next(&self) -> Option<UnixStream> {
        self.0.lock().pop()
    }
}

/// Removes the socket when it is dropped.
pub(super) struct Listening {
    path: PathBuf,
    inode: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        // A later mount may have the number of this one, and a socket in its place.
        let is_own = |found: fs::Metadata| found.ino() == self.inode;
        let removed = match fs::symlink_metadata(&self.path).map(is_own) {
            Ok(true) => fs::remove_file(&self.path),
            found => found.map(drop),
        };
        if let Err(error) = removed {
            log::debug!("removing {}: {error}", self.path.display());
        }
    }
}

/// Listens for programs that take the mount over. `arguments` and the working directory are those of the mount. `prepare` is
/// called before each offer.
pub(super) fn listen(
    connection: u32,
    offer: HandOver,
    askers: Askers,
    waker: Arc<Waker>,
    prepare: impl Fn() + Send + 'static,
) -> io::Result<Listening> {
    let path = socket_path(connection).ok_or_else(|| io::Error::other("XDG_RUNTIME_DIR is not set"))?;
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    // One of an earlier mount with this number.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let inode = fs::symlink_metadata(&path)?.ino();
    let thread = std::thread::Builder::new().name("takeover".to_owned());
    thread.spawn(move || {
        for stream in listener.incoming() {
            let met = stream.map_err(|error| Error::io("a connection", error));
            match met.and_then(|stream| meet(stream, &offer, &prepare)) {
                Ok(asker) => {
                    askers.0.lock().push(asker);
                    waker.wake();
                }
                Err(error) => log::warn!("a program did not take the mount over: {error}"),
            }
        }
    })?;
    Ok(Listening { path, inode })
}

/// Makes the offer to a program. Returns when the program can take the mount.
fn meet(mut stream: UnixStream, offer: &HandOver, prepare: &impl Fn()) -> Result<UnixStream> {
    let failed = |error| Error::io("a program that asks for the mount", error);
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    check_peer(&stream)?;
    let mut hello = [0; 12];
    stream.read_exact(&mut hello).map_err(failed)?;
    let mut from = Reader::new(&hello);
    if from.array()? != *MAGIC {
        return Err(Error::corrupt("it does not ask as tierfs does"));
    }
    if let Err(error) = check_version(from.u32()?) {
        refuse(&stream, &error.to_string());
        return Err(error);
    }
    prepare();
    say(&stream, AGREED, &offer.encode()).map_err(failed)?;
    // The program may have to wait for a remote.
    stream.set_read_timeout(Some(TAKING_MAX)).map_err(failed)?;
    match hear(&stream)? {
        (AGREED, _) => Ok(stream),
        (_, why) => Err(Error::new(ErrorKind::Unsupported, String::from_utf8_lossy(&why).into_owned())),
    }
}

/// Fails unless the other end is of the same user, or of root.
fn check_peer(stream: &UnixStream) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    let peer = peer.map_err(|error| Error::io("asking who connects", error.into()))?;
    if peer.uid == geteuid() || peer.uid.is_root() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Denied, format!("it is of user {}", peer.uid.as_raw())))
}

/// Tells the other end why not. It may have ended.
pub(super) fn refuse(stream: &UnixStream, why: &str) {
    if let Err(error) = say(stream, REFUSED, why.as_bytes()) {
        log::debug!("the program that asked for the mount has ended: {error}");
    }
}

fn say(mut stream: &UnixStream, what: u8, text: &[u8]) -> io::Result<()> {
    let mut out = Writer::with_capacity(text.len() + 5);
    out.u8(what).u32(text.len() as u32).bytes(text);
    stream.write_all(out.as_slice())
}

fn hear(mut stream: &UnixStream) -> Result<(u8, Vec<u8>)> {
    let failed = |error| Error::io("waiting for the other program", error);
    let mut head = [0; 5];
    stream.read_exact(&mut head).map_err(failed)?;
    let mut from = Reader::new(&head);
    let (what, len) = (from.u8()?, from.u32()?);
    if len > TEXT_BYTES_MAX {
        return Err(Error::corrupt(format!("a text of {len} bytes")));
    }
    let mut text = vec![0; len as usize];
    stream.read_exact(&mut text).map_err(failed)?;
    Ok((what, text))
}

/// The end of the new program in a conversation with the daemon of a mount.
pub struct Asking(UnixStream);

impl Asking {
    /// Asks the daemon of a connection for its mount. Returns what it offers: the arguments of the mount.
    /// # Errors
    /// Says why not.
    pub fn begin(connection: u32) -> Result<(Asking, HandOver)> {
        let path = socket_path(connection).ok_or_else(|| Error::invalid("XDG_RUNTIME_DIR is not set"))?;
        let failed = |error| Error::io(format!("asking the daemon by {}", path.display()), error);
        let mut stream = UnixStream::connect(&path).map_err(failed)?;
        check_peer(&stream)?;
        let mut hello = Writer::new();
        hello.bytes(MAGIC).u32(VERSION);
        stream.write_all(hello.as_slice()).map_err(failed)?;
        let offer = agreed(&stream)?;
        Ok((Asking(stream), HandOver::decode(&offer)?))
    }

    /// Asks for the mount. The daemon stops answering requests.
    /// # Errors
    /// Says why not; the daemon goes on.
    pub fn go_on(&self) -> Result<()> {
        say(&self.0, AGREED, &[]).map_err(|error| Error::io("asking for the mount", error))?;
        agreed(&self.0).map(drop)
    }

    /// The socket, by which the descriptors come.
    pub fn socket(&self) -> &UnixStream {
        &self.0
    }

    /// Says that the mount is taken up. The daemon ends.
    /// # Errors
    /// Returns an error if the daemon does not hear it.
    pub fn done(&self) -> Result<()> {
        say(&self.0, AGREED, &[]).map_err(|error| Error::io("telling the former daemon", error))
    }

    /// Says why the mount is not taken up. The daemon goes on.
    pub fn refuse(&self, why: &str) {
        refuse(&self.0, why);
    }
}

fn agreed(stream: &UnixStream) -> Result<Vec<u8>> {
    match hear(stream)? {
        (AGREED, text) => Ok(text),
        (_, why) => Err(Error::new(ErrorKind::Busy, String::from_utf8_lossy(&why).into_owned())),
    }
}

/// The end of the old daemon, when it has given up the mount.
pub struct Leaving(UnixStream);

impl Leaving {
    /// The conversation on this socket.
    pub fn new(stream: UnixStream) -> Leaving {
        Leaving(stream)
    }

    /// Says that descriptors and state follow.
    /// # Errors
    /// Returns an error if the program has ended.
    pub fn announce(&self) -> io::Result<()> {
        say(&self.0, AGREED, &[])
    }

    /// The socket, for the descriptors.
    pub fn socket(&self) -> &UnixStream {
        &self.0
    }

    /// Waits until the program has taken the mount up. One that does not say so in time is killed.
    /// # Errors
    /// Says why not: the mount has no daemon.
    pub fn wait(&self) -> Result<()> {
        let failed = |error| Error::io("waiting for the other program", error);
        let peer = rustix::net::sockopt::socket_peercred(&self.0).map_err(|error| failed(error.into()))?;
        let peer = pidfd_open(peer.pid, PidfdFlags::empty());
        self.0.set_read_timeout(Some(TAKING_MAX)).map_err(failed)?;
        let since = Instant::now();
        let heard = agreed(&self.0).map(drop);
        if heard.is_err()
            && since.elapsed() >= TAKING_MAX
            && let Ok(peer) = peer
        {
            pidfd_send_signal(&peer, Signal::KILL).map_err(|error| failed(error.into()))?;
            let mut ended = [PollFd::new(&peer, PollFlags::IN)];
            let limit = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
            poll(&mut ended, Some(&limit)).map_err(|error| failed(error.into()))?;
        }
        heard
    }
}
