//! A store with a container, an array and a plain file, and who reads from it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::support::{Mounted, Place, assert_same, imported, read_at, run, wait_until};

/// Files of the collection that lie whole in a data file each.
pub const WHOLE: [&str; 3] = ["model.safetensors", "x.npy", "sub/vocab.txt"];

pub struct World {
    pub place: Place,
    pub source: PathBuf,
    pub mounted: Mounted,
    mounts: u32,
}

impl World {
    pub fn new(options: &[&str]) -> World {
        let (place, source) = imported(&[]);
        let mounted = place.mount(options);
        World { place, source, mounted, mounts: 0 }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.path("demo/model").join(name)
    }

    pub fn source(&self, name: &str) -> Vec<u8> {
        fs::read(self.source.join(name)).unwrap()
    }

    /// Reads a file through the daemon, which checks every block.
    pub fn check(&self, name: &str) {
        assert_same(&fs::read(self.path(name)).unwrap(), &self.source(name), name);
    }

    /// A counter. Asking is one read, however long the text is.
    pub fn count(&self, counter: &str) -> u64 {
        let mut text = vec![0; 1 << 18];
        let len = read_at(&fs::File::open(self.mounted.path(".ctl/stats.json")).unwrap(), &mut text, 0);
        let stats: serde_json::Value = serde_json::from_slice(&text[..len]).unwrap();
        stats[counter].as_u64().unwrap()
    }

    /// Opens that the kernel got a physical file for, while `reading`.
    pub fn by_kernel<T>(&self, reading: impl FnOnce() -> T) -> (u64, T) {
        let before = self.count("passthrough_opens");
        let result = reading();
        (self.count("passthrough_opens") - before, result)
    }

    /// Reads a file, which the daemon must not notice but for its opening.
    #[track_caller]
    pub fn read_by_kernel(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A read is counted after it was answered: one from before may come late.
        wait_until("a read that the daemon does not notice", || {
            let before = self.count("reads");
            let (opens, read) = self.by_kernel(|| fs::read(path).unwrap());
            assert_eq!(opens, 1, "{} went through the daemon", path.display());
            bytes = read;
            // The counters were read for `before`, and twice to count the opens.
            self.count("reads") - before == 3
        });
        bytes
    }

    /// The data files of the store, byte for byte.
    pub fn data(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        data_of(&self.place.store())
    }

    pub fn unmount(&self) {
        run(["umount".as_ref(), self.mounted.mountpoint.as_os_str()]).ok();
    }

    /// Mounts what is not mounted any more, elsewhere: the earlier mount ends here.
    pub fn mount(&mut self, options: &[&str]) {
        self.mounts += 1;
        self.mounted = self.place.mount_on(&format!("mnt{}", self.mounts), options);
    }
}

pub fn data_of(store: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(store.join("demo/model/data")).unwrap();
    files.map(|file| file.unwrap().path()).map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

pub fn number(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// A mapping that may be written to.
pub struct Writable {
    at: *mut libc::c_void,
    len: usize,
}

impl Writable {
    pub fn of(file: &fs::File, flags: i32) -> Writable {
        use std::os::fd::AsRawFd;
        let len = file.metadata().unwrap().len() as usize;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the descriptor is open.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Writable { at, len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped in `of` for so many bytes, until drop; borrowed from the only owner.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast::<u8>(), self.len) }
    }
}

impl Drop for Writable {
    fn drop(&mut self) {
        // SAFETY: mapped in `of` with this length, and not used after this.
        unsafe { libc::munmap(self.at, self.len) };
    }
}
