//! Files in memory with the decoded bytes of a file.
//!
//! They lie in a tmpfs of their own with huge pages. The mount has no place in any directory: the daemon
//! holds its only descriptor, so no other program finds it, and no namespace is changed. Without the
//! privilege to make one they are memfds.
//!
//! A file is written once, with write(2), which reports a lack of memory as an error where a store to a
//! mapping would be a signal. Then only a descriptor that cannot write is left, and the pages are freed with
//! the file: a program that has mapped it, or has moved its pages into a pipe, never sees other bytes.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

use crate::store::disk::files::{Held, held};

/// The bytes of a page, in which space is counted: 4 KiB to 64 KiB, by the kernel.
pub(super) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// The file system that the files lie in.
pub(super) enum MemoryFiles {
    /// A tmpfs without a place in a directory.
    Tmpfs(OwnedFd),
    /// The kernel's own tmpfs, mostly without huge pages.
    Memfd,
}

/// A file in memory that is being written.
pub(super) struct Draft(File);

/// A file in memory that nobody can write.
pub(in crate::fs) struct DecodedFile {
    file: File,
    /// The bytes that its pages take.
    pub held_bytes: u64,
}

impl MemoryFiles {
    /// Files of `bytes_max` bytes in total at most.
    pub fn new(bytes_max: u64) -> MemoryFiles {
        match tmpfs(bytes_max) {
            Ok(mount) => MemoryFiles::Tmpfs(mount),
            Err(error) => {
                log::info!("decoded files have small pages: a tmpfs for them cannot be made: {error}");
                MemoryFiles::Memfd
            }
        }
    }

    /// Whether the files lie in a tmpfs of the daemon.
    pub fn has_own(&self) -> bool {
        matches!(self, MemoryFiles::Tmpfs(_))
    }

    /// Makes a file of `bytes` bytes.
    pub fn create(&self, bytes: u64) -> io::Result<Draft> {
        let file = match self {
            MemoryFiles::Tmpfs(mount) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                rustix::fs::openat(mount, ".", flags, Mode::RUSR | Mode::WUSR)?
            }
            MemoryFiles::Memfd => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                rustix::fs::memfd_create("tierfs-decoded", flags)?
            }
        };
        let file = File::from(file);
        // `huge=within_size` gives huge pages up to this length only.
        file.set_len(bytes)?;
        Ok(Draft(file))
    }
}

/// A tmpfs with huge pages that is mounted nowhere.
fn tmpfs(bytes_max: u64) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set = |key, value: &str| rustix::mount::fsconfig_set_string(&context, key, value);
    set("size", &bytes_max.to_string())?;
    set("mode", "0700")?;
    // A kernel without huge pages refuses `huge`; kernels before 6.4 refuse `noswap`.
    if let Err(error) = set("huge", "within_size") {
        log::info!("decoded files have small pages: {error}");
    }
    if let Err(error) = rustix::mount::fsconfig_set_flag(&context, "noswap") {
        log::info!("decoded files may be swapped: {error}");
    }
    rustix::mount::fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    Ok(rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

impl Draft {
    /// Writes bytes at an offset.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.0, bytes, offset)
    }

    pub fn finish(self, files: &MemoryFiles) -> io::Result<Arc<DecodedFile>> {
        if !files.has_own() {
            let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
            rustix::fs::fcntl_add_seals(&self.0, seals)?;
        }
        let held_bytes = self.0.metadata()?.len().next_multiple_of(page_bytes());
        let file = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        Ok(Arc::new(DecodedFile { file, held_bytes }))
    }
}

impl DecodedFile {
    /// The descriptor for the kernel.
    pub fn descriptor(&self) -> &File {
        &self.file
    }

    /// Whether no program has the file open or mapped. The caller has the only reference, so nothing opens
    /// the file meanwhile.
    ///
    /// A program that has mapped a file may have closed it, and the daemon is not told when the mapping ends.
    pub fn is_unused(&self) -> bool {
        held(&self.file) != Held::Perhaps
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::{MemoryFiles, page_bytes};

    #[test]
    fn a_finished_file_has_its_bytes_and_cannot_be_written() {
        for files in [MemoryFiles::new(1 << 20), MemoryFiles::Memfd] {
            let draft = files.create(5000).unwrap();
            draft.write_at(&[7; 4000], 1000).unwrap();
            draft.write_at(&[3; 1000], 0).unwrap();
            let made = draft.finish(&files).unwrap();
            assert_eq!(made.held_bytes, 5000_u64.next_multiple_of(page_bytes()));
            let mut bytes = Vec::new();
            made.descriptor().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [vec![3; 1000], vec![7; 4000]].concat());
            let path = format!("/proc/self/fd/{}", made.descriptor().as_raw_fd());
            let written = std::fs::OpenOptions::new().write(true).open(&path);
            let written = written.and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0));
            assert!(files.has_own() || written.is_err(), "a sealed file was written");
        }
    }

    #[test]
    fn a_file_is_in_use_while_somebody_else_has_it_open() {
        for files in [MemoryFiles::new(1 << 20), MemoryFiles::Memfd] {
            let made = files.create(5000).unwrap().finish(&files).unwrap();
            assert!(made.is_unused());
            let other = File::open(format!("/proc/self/fd/{}", made.descriptor().as_raw_fd())).unwrap();
            assert!(!made.is_unused());
            drop(other);
            assert!(made.is_unused() && made.is_unused());
        }
    }

    #[test]
    fn a_full_file_system_is_an_error_and_not_a_signal() {
        let files = MemoryFiles::new(1 << 20);
        if files.has_own() {
            let draft = files.create(4 << 20).unwrap();
            let mut written = (0..4).map(|at| draft.write_at(&vec![1; 1 << 20], at << 20));
            assert!(written.any(|written| written.is_err()), "more than the file system has");
        }
    }
}
