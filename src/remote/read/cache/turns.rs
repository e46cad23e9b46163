//! Locks of the processes that share a cache. Each is a range of the file `lock`, locked by the description of an open file
//! (`F_OFD_SETLK` of fcntl(2)), so the kernel releases it when its process ends, however that ends, and nothing is left
//! to be cleaned up. A file a lock would stay behind.
//!
//! | first byte | lock |
//! |---|---|
//! | the first 62 bits of a digest | the piece or object of this digest is on its way |
//! | 2^62 | shared: a process uses the cache; alone: it is put in order or checked |
//! | 2^62 + 1 | names of files change, or a small file is replaced |

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use crate::format::snapshot::piece_map::Digest;
use crate::remote::read::cache::root::{Root, unlinked};

const LOCK: &str = "lock";
/// A wait for another holder ends after it has made no progress for this long.
const SILENT_MAX: Duration = Duration::from_secs(5);
/// The whole wait ends after this long: others may make progress in the same file.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// One who waits looks after this long at first, and then half as often each time.
const LOOKED_AFTER: Duration = Duration::from_millis(1);
const LOOKED_AFTER_MAX: Duration = Duration::from_millis(16);
const USE: i64 = 1 << 62;
const NAMES: i64 = USE + 1;

/// A lock, released when it is dropped.
pub struct Turn {
    file: fs::File,
    at: i64,
}

/// The mode of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Shared,
    Alone,
}

impl Mode {
    fn number(self) -> i16 {
        (match self {
            Mode::Shared => libc::F_RDLCK,
            Mode::Alone => libc::F_WRLCK,
        }) as i16
    }
}

impl Root {
    /// The lock of a piece or an object, not taken yet.
    pub(super) fn turn_of(&self, digest: &Digest) -> io::Result<Turn> {
        let first = digest.first_chunk::<8>().copied().unwrap_or_default();
        self.turn(i64::from_be_bytes(first) & (USE - 1))
    }

    /// The lock of the use of the cache, not taken yet.
    pub(super) fn turn_of_use(&self) -> io::Result<Turn> {
        self.turn(USE)
    }

    /// Waits until no other process changes names, which takes a moment, and keeps others from it. Fails with `TimedOut`
    /// after 5 s: the other process may be stopped.
    pub(super) fn names(&self) -> io::Result<Turn> {
        let turn = self.turn(NAMES)?;
        let (begun, mut after) = (Instant::now(), LOOKED_AFTER);
        while !turn.take(Mode::Alone)? {
            if begun.elapsed() > SILENT_MAX {
                let text = "another process keeps the names of the cache locked";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            std::thread::sleep(after);
            after = (after * 2).min(LOOKED_AFTER_MAX);
        }
        Ok(turn)
    }

    fn turn(&self, at: i64) -> io::Result<Turn> {
        let mut options = unlinked();
        let file = options.read(true).write(true).create(true).truncate(false).open(self.path(LOCK))?;
        Ok(Turn { file, at })
    }
}

impl Turn {
    /// Takes the lock in this mode, in place of the mode that it has, unless another holder is in the way.
    pub(super) fn take(&self, mode: Mode) -> io::Result<bool> {
        match self.control(libc::F_OFD_SETLK, mode.number()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // POSIX lets the kernel say this instead.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits for the lock. `None` once another holder has done what it was for, and if `progress` of the holder stays the
    /// same for 5 s: it may be stopped, or wait for a remote that is away. At most 20 s.
    pub(super) async fn wait<P: PartialEq>(
        self,
        is_done: impl Fn() -> bool,
        progress: impl Fn() -> P,
    ) -> Option<Turn> {
        let begun = Instant::now();
        let (mut last, mut since, mut after) = (progress(), begun, LOOKED_AFTER);
        loop {
            match self.take(Mode::Alone) {
                Ok(true) => return Some(self),
                Ok(false) => {}
                Err(error) => {
                    log::debug!("a lock of the cache: {error}");
                    return None;
                }
            }
            let now = progress();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if is_done() || since.elapsed() > SILENT_MAX || begun.elapsed() > WAIT_MAX {
                return None;
            }
            tokio::time::sleep(after).await;
            after = (after * 2).min(LOOKED_AFTER_MAX);
        }
    }

    /// Whether another has the lock, in any mode.
    pub(super) fn is_taken(&self) -> io::Result<bool> {
        Ok(self.control(libc::F_OFD_GETLK, Mode::Alone.number())?.l_type != libc::F_UNLCK as i16)
    }

    fn control(&self, command: i32, kind: i16) -> io::Result<libc::flock> {
        loop {
            let mut asked = libc::flock {
                l_type: kind,
                l_whence: libc::SEEK_SET as i16,
                l_start: self.at,
                l_len: 1,
                l_pid: 0,
            };
            // SAFETY: these commands read and write the structure, which outlives the call.
            if unsafe { libc::fcntl(self.file.as_raw_fd(), command, &raw mut asked) } != -1 {
                return Ok(asked);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_keeps_others_out_until_it_is_dropped_and_changes_its_mode_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(&folder.path().join("cache")).unwrap();
        let (one, other) = (root.turn_of(&[0xff; 32]).unwrap(), root.turn_of(&[0xff; 32]).unwrap());
        let mut digest = [0xff; 32];
        digest[0] = 0x3f;
        let same = root.turn_of(&digest).unwrap();
        assert!(!one.is_taken().unwrap() && one.take(Mode::Alone).unwrap());
        assert!(other.is_taken().unwrap() && !other.take(Mode::Shared).unwrap());
        assert!(!one.is_taken().unwrap(), "its own lock is in nobody's way");
        assert!(one.take(Mode::Shared).unwrap() && other.take(Mode::Shared).unwrap());
        assert!(!other.take(Mode::Alone).unwrap());
        drop(one);
        assert!(other.take(Mode::Alone).unwrap() && root.turn_of_use().unwrap().take(Mode::Alone).unwrap());
        // The first two bits of a digest are not used.
        assert!(!same.take(Mode::Alone).unwrap());
        assert!(root.names().is_ok() && root.names().is_ok());
    }
}
