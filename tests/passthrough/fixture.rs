//! A mounted store with a container, an array and a plain file, and counters that show whether the kernel or the
//! daemon reads them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, assert_same, imported, run, wait_until};

/// Files of the collection, each contiguous in one data file.
pub const WHOLE: [&str; 3] = ["model.safetensors", "x.npy", "sub/vocab.txt"];

pub struct Fixture {
    pub place: Place,
    pub source: PathBuf,
    pub mounted: Mounted,
    mounts: u32,
}

impl Fixture {
    pub fn new(options: &[&str]) -> Fixture {
        let (place, source) = imported(&[]);
        let mounted = place.mount(options);
        Fixture { place, source, mounted, mounts: 0 }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(Path::new("demo/model").join(name))
    }

    pub fn source(&self, name: &str) -> Vec<u8> {
        fs::read(self.source.join(name)).unwrap()
    }

    /// Reads a file through the daemon, which verifies every block.
    pub fn check(&self, name: &str) {
        assert_same(&fs::read(self.path(name)).unwrap(), &self.source(name), name);
    }

    /// Runs `reading`; returns the number of opens served by passthrough meanwhile.
    pub fn by_kernel<T>(&self, reading: impl FnOnce() -> T) -> (u64, T) {
        let before = self.mounted.counter("passthrough_opens");
        let result = reading();
        (self.mounted.counter("passthrough_opens") - before, result)
    }

    /// Reads a file. The daemon must see only the open.
    #[track_caller]
    pub fn read_by_kernel(&self, path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        // The daemon counts a read after it has answered, so an earlier read may be counted late.
        wait_until("a read that the daemon does not notice", || {
            let before = self.mounted.counter("reads");
            let (opens, read) = self.by_kernel(|| fs::read(path).unwrap());
            assert_eq!(opens, 1, "{} went through the daemon", path.display());
            bytes = read;
            // The counters were read three times: for `before`, and twice to count the opens.
            self.mounted.counter("reads") - before == 3
        });
        bytes
    }

    /// The contents of the data files of the store.
    pub fn data(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        data_of(&self.place.store())
    }

    pub fn unmount(&self) {
        run(["umount".as_ref(), self.mounted.mountpoint.as_os_str()]).ok();
    }

    /// Mounts the store again, at another mount point, after `unmount`.
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
