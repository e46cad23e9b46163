//! The session with the kernel: the mount and the handshake. The only file that names `fuser`.
//!
//! `fuser` mounts, with or without `fusermount3`, and shakes hands. Its types for requests and replies cannot be made
//! outside of it, so requests that arrive by a ring could not be answered by its `Filesystem`. The protocol is therefore
//! our own, for the device and the rings alike; a `Session` of `fuser` is never run. A mount that an earlier daemon made
//! has no handshake: the kernel's answers stay those of the connection.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use fuser::{Config, Filesystem, InitFlags, KernelConfig, MountOption, SessionACL};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::notify::invalidate_names;
use super::rings::PAYLOAD_BYTES;
use super::sender::TRANSFER_BYTES_MAX;
use crate::format::mountinfo::topmost;

/// Maximal number of pending background requests, such as read-ahead.
const BACKGROUND_MAX: u16 = 96;
/// Longest read that the kernel requests, in bytes. Half of its own limit, so that two threads answer a direct
/// read of 1 MiB.
const MAX_READ: u32 = 512 << 10;

/// How a store is mounted.
pub(in crate::fs) struct Mounting<'a> {
    /// The place of the store, which the table of mounts shows.
    pub source: String,
    pub is_read_only: bool,
    /// Whether other users may access the mount.
    pub allow_other: bool,
    /// Further options, passed to the kernel unchanged.
    pub options: &'a [String],
    /// Stacking depth for passthrough; 0 disables it.
    pub stack_depth: u32,
    /// Whether there are rings for the kernel.
    pub has_rings: bool,
    /// Whether the kernel opens files without a request.
    pub opens_itself: bool,
}

/// The kernel's answers in the handshake.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::fs) struct Agreed {
    /// The kernel reads physical files itself.
    pub passthrough: bool,
    /// The kernel uses rings. It then answers nobody before it has them.
    pub rings: bool,
    /// The kernel maps files whose reads and writes go past its page cache.
    pub maps_uncached: bool,
    /// The kernel forgets all names when it is told to.
    pub forgets_names: bool,
    /// The kernel gives requests again when it is told to.
    pub resends: bool,
    /// The kernel opens files without a request.
    pub opens_itself: bool,
}

impl Agreed {
    /// The answers as bits.
    pub fn bits(self) -> u32 {
        let Agreed { passthrough, rings, maps_uncached, forgets_names, resends, opens_itself } = self;
        let answers = [passthrough, rings, maps_uncached, forgets_names, resends, opens_itself];
        answers.into_iter().enumerate().map(|(place, answer)| u32::from(answer) << place).sum()
    }

    /// The answers that bits stand for.
    pub fn of_bits(bits: u32) -> Agreed {
        let has = |place: u32| bits >> place & 1 != 0;
        Agreed {
            passthrough: has(0),
            rings: has(1),
            maps_uncached: has(2),
            forgets_names: has(3),
            resends: has(4),
            opens_itself: has(5),
        }
    }
}

/// A mount.
pub(in crate::fs) struct Session {
    /// Unmounts when it is dropped, whatever is mounted at that place by then. None of a mount that an earlier daemon made,
    /// which stays.
    session: Option<fuser::Session<Handshake>>,
    device: Arc<OwnedFd>,
    pub agreed: Agreed,
    mountpoint: PathBuf,
    /// The number of the connection; 0 if it is not known.
    pub connection: u32,
}

impl Session {
    /// Mounts, and shakes hands with the kernel.
    pub fn new(mountpoint: &Path, mounting: &Mounting) -> io::Result<Session> {
        let agreed = Arc::new(OnceLock::new());
        let handshake = Handshake {
            stack_depth: mounting.stack_depth,
            has_rings: mounting.has_rings,
            opens_itself: mounting.opens_itself,
            agreed: agreed.clone(),
        };
        let session = fuser::Session::new(handshake, mountpoint, &mounting.config())?;
        let device = Arc::new(session.as_fd().try_clone_to_owned()?);
        let agreed = agreed.get().copied().unwrap_or_default();
        // Nothing can be mounted on a name of this mount yet.
        let forgets_names = invalidate_names(&device).inspect_err(|error| {
            log::info!("names of tensors are not kept by this kernel ({error}): it is before 6.16");
        });
        let agreed = Agreed { forgets_names: forgets_names.is_ok(), ..agreed };
        let (mountpoint, connection) = (mountpoint.to_owned(), connection_of(mountpoint).unwrap_or_default());
        Ok(Session { session: Some(session), device, agreed, mountpoint, connection })
    }

    /// Goes on with a mount of an earlier daemon, to which the kernel gave these answers.
    pub fn taken_over(device: OwnedFd, agreed: Agreed, mountpoint: &Path, connection: u32) -> Session {
        let (device, mountpoint) = (Arc::new(device), mountpoint.to_owned());
        Session { session: None, device, agreed, mountpoint, connection }
    }

    /// Whether this mount is the one on its directory. Another program may have unmounted it, and mounted something else.
    pub fn is_mounted(&self) -> bool {
        let there = connection_of(&self.mountpoint);
        if !self.is_over() {
            // Where the table of mounts cannot be read, only this mount is known.
            return self.connection == 0 || there.is_none_or(|there| there == self.connection);
        }
        // A mount whose connection was aborted stays, without an answer. A later mount may have its number.
        let answer = || rustix::fs::statfs(&self.mountpoint);
        self.connection != 0
            && there == Some(self.connection)
            && answer().is_err_and(|error| error == Errno::NOTCONN)
    }

    /// Whether the kernel has ended the connection.
    fn is_over(&self) -> bool {
        let mut device = [PollFd::new(&self.device, PollFlags::empty())];
        let polled = poll(&mut device, Some(&Timespec::default()));
        polled.is_ok() && device.iter().any(|device| device.revents().contains(PollFlags::ERR))
    }

    /// The descriptor from which requests are read.
    pub fn device(&self) -> &Arc<OwnedFd> {
        &self.device
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its descriptor of the device stays open until the process ends.
        if !self.is_mounted() {
            std::mem::forget(self.session.take());
        }
    }
}

/// Returns the number of the connection of the mount on a directory, or 0 if nothing is mounted there. `None` if the table of
/// mounts cannot be read.
fn connection_of(mountpoint: &Path) -> Option<u32> {
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    let found =
        topmost(&mounts, mountpoint).filter(|found| found.is_ours() && found.mountpoint == mountpoint);
    Some(found.map_or(0, |found| found.device))
}

impl Mounting<'_> {
    fn config(&self) -> Config {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(self.source.clone()),
            // As root, a plain subtype option would be dropped.
            MountOption::CUSTOM("subtype=tierfs".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::NoAtime,
        ];
        if self.is_read_only {
            config.mount_options.push(MountOption::RO);
        }
        if self.allow_other {
            config.acl = SessionACL::All;
            config.mount_options.extend([MountOption::NoSuid, MountOption::NoDev]);
        }
        if !self.options.iter().any(|option| option.starts_with("max_read=")) {
            config.mount_options.push(MountOption::CUSTOM(format!("max_read={MAX_READ}")));
        }
        config.mount_options.extend(self.options.iter().cloned().map(MountOption::CUSTOM));
        config
    }
}

/// Answers the first request of the kernel, and no other.
struct Handshake {
    stack_depth: u32,
    has_rings: bool,
    opens_itself: bool,
    agreed: Arc<OnceLock<Agreed>>,
}

impl Filesystem for Handshake {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let agreed = self.ask(config)?;
        self.agreed.get_or_init(|| agreed);
        Ok(())
    }
}

impl Handshake {
    /// Requests the capabilities that make the mount fast; those that the kernel lacks are skipped.
    fn ask(&self, config: &mut KernelConfig) -> io::Result<Agreed> {
        let wanted = [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        let known = config.capabilities();
        for flag in wanted.into_iter().filter(|flag| known.contains(*flag)) {
            config.add_capabilities(flag).map_err(|unknown| io::Error::other(format!("{unknown:?}")))?;
        }
        config.set_max_background(BACKGROUND_MAX).map_err(at_most)?;
        let rings = self.has_rings && uses_rings(config);
        let max_write = if rings { PAYLOAD_BYTES } else { TRANSFER_BYTES_MAX };
        config.set_max_write(max_write as u32).map_err(at_most)?;
        // The answer ENOSYS to the first open makes it so.
        let opens_itself = self.opens_itself && known.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        let passthrough = self.stack_depth > 0
            && !opens_itself
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(self.stack_depth).is_ok();
        let maps_uncached = known.contains(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP);
        let resends = known.contains(InitFlags::FUSE_HAS_RESEND);
        Ok(Agreed { passthrough, rings, maps_uncached, forgets_names: false, resends, opens_itself })
    }
}

/// Agrees to use rings, if the kernel offers it. A version of `fuser` may refuse a capability that it does not serve.
fn uses_rings(config: &mut KernelConfig) -> bool {
    let is_offered = config.capabilities().contains(InitFlags::FUSE_OVER_IO_URING);
    let uses = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
    if is_offered && !uses {
        log::warn!(
            "requests arrive by the device, not by io_uring: the crate fuser refuses the kernel's offer"
        );
    }
    uses
}

fn at_most(limit: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("at most {limit}"))
}
