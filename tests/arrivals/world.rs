//! A store that is mounted for writing, with a collection in it, and a limit on how long all of it may take.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::support::{Answer, Mounted, Place, answer, run, scale};

/// A test that takes longer is said to hang.
const LIMIT: Duration = Duration::from_secs(100);

/// A place whose daemons are killed when the test takes too long: what hangs fails then.
pub struct World {
    mounted: Option<Mounted>,
    pub place: Place,
    _ended: Sender<()>,
}

impl World {
    /// An empty store, mounted, with the collection `demo/m`.
    pub fn new() -> World {
        let mut world = World::unmounted(Place::new());
        run(["init".as_ref(), world.place.store().as_os_str()]).ok();
        world.mount();
        fs::create_dir_all(world.path("")).unwrap();
        world
    }

    /// Nothing yet.
    pub fn unmounted(place: Place) -> World {
        let (sender, receiver) = channel();
        let folder = place.path("").to_str().unwrap().to_owned();
        std::thread::spawn(move || {
            if receiver.recv_timeout(LIMIT * scale()) == Err(RecvTimeoutError::Timeout) {
                eprintln!("a test in {folder} hangs: its daemons are killed");
                kill_daemons(&folder);
            }
        });
        World { mounted: None, place, _ended: sender }
    }

    pub fn mount(&mut self) {
        self.mounted = Some(self.place.mount(&[]));
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    /// A path in the collection.
    pub fn path(&self, name: &str) -> PathBuf {
        self.mounted().path(Path::new("demo/m").join(name))
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Kills the daemon as a crash would, and mounts again.
    pub fn crash(&mut self) {
        let mounted = self.mounted.take().unwrap();
        mounted.kill();
        drop(mounted);
        self.mount();
    }

    /// Unmounts, checks the store, and mounts again.
    pub fn again(&mut self) {
        self.unmount();
        self.mount();
    }

    /// Unmounts and checks the store.
    pub fn unmount(&mut self) {
        self.mounted.take().unwrap().unmount();
        run(["fsck".as_ref(), self.place.store().as_os_str()]).ok();
    }

    /// An extended attribute as text.
    pub fn attribute(&self, name: &str, key: &str) -> String {
        let path = self.path(name);
        let mut value = [0u8; 4096];
        let len = rustix::fs::getxattr(&path, format!("user.tierfs.{key}"), &mut value).unwrap();
        String::from_utf8(value[..len].to_vec()).unwrap()
    }

    /// Bytes in the store's files of this kind, as they are allocated.
    pub fn allocated(&self, name: &str) -> u64 {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(self.place.store().join("demo/m").join(name)).map_or(0, |found| found.blocks() * 512)
    }

    pub fn data_files(&self) -> usize {
        fs::read_dir(self.place.store().join("demo/m/data")).unwrap().count()
    }
}

fn kill_daemons(folder: &str) {
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if process != std::process::id() as i32 && String::from_utf8_lossy(&line).contains(folder) {
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
    }
}

/// Runs a script of the shell that must end in time.
pub fn script(folder: &Path, text: &str) -> Answer {
    answer(Command::new("bash").args(["-euo", "pipefail", "-c", text]).current_dir(folder))
}

/// The tensors of a safetensors file, read by the format's own crate.
pub fn tensors_of(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let parsed = safetensors::SafeTensors::deserialize(bytes).unwrap();
    parsed.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect()
}
