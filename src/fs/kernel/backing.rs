//! Physical files that the kernel reads itself.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::from_mut;
use std::sync::Weak;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

use super::device::IOCTL_GROUP;

/// FUSE_DEV_IOC_BACKING_CLOSE, which takes the number of a file.
const CLOSE: Opcode = opcode::write::<u32>(IOCTL_GROUP, 2);

#[repr(C)]
struct BackingMap {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

struct OpenBacking(BackingMap);

// SAFETY: the kernel reads a `struct fuse_backing_map` and writes nothing. It returns the number of the file.
unsafe impl Ioctl for OpenBacking {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<BackingMap>(IOCTL_GROUP, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<u32, Errno> {
        Ok(out.cast_unsigned())
    }
}

/// A physical file that the kernel has, until this is dropped. Files that programs have open keep it.
#[derive(Debug)]
pub(in crate::fs) struct BackingId {
    device: Weak<OwnedFd>,
    number: u32,
}

impl BackingId {
    /// Registers a physical file with the kernel.
    pub fn open(device: &Weak<OwnedFd>, file: BorrowedFd) -> io::Result<BackingId> {
        let open = device.upgrade().ok_or_else(|| io::Error::other("the mount has ended"))?;
        let map = BackingMap { descriptor: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: as `OpenBacking` says; `file` is open.
        let number = unsafe { ioctl(&open, OpenBacking(map)) }?;
        Ok(BackingId { device: device.clone(), number })
    }

    /// A physical file that an earlier daemon registered under this number.
    pub fn taken_over(device: &Weak<OwnedFd>, number: u32) -> BackingId {
        BackingId { device: device.clone(), number }
    }

    /// Its number for the kernel.
    pub fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for BackingId {
    fn drop(&mut self) {
        let Some(device) = self.device.upgrade() else { return };
        // SAFETY: the ioctl reads one u32.
        if let Err(error) = unsafe { ioctl(&device, Setter::<CLOSE, u32>::new(self.number)) } {
            log::error!("closing a physical file: {error}");
        }
    }
}
