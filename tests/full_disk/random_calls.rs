//! Random operations on a disk that is full at times, with a daemon that is killed at random moments, against a model.
//!
//! The model has the content of each name, and the versions that may be read after a kill. A failed call changes
//! nothing, except a write, of which the kernel may have done the first pages.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use support::{Mounted, Place, Random, run, scale};

const STORE_BYTES: u64 = 6 << 20;
const FILE_BYTES_MAX: usize = 150_000;
/// A write of at most this many bytes reaches the daemon as one request.
const WRITE_BYTES_MAX: usize = 16 << 10;
const NAMES: usize = 6;
const STEPS: usize = 120;
/// Rounds of a run of the usual length; a long run is ten times as long.
const ROUNDS: u32 = 20;

/// A file of the model.
#[derive(Clone, Default)]
struct Modelled {
    /// The present content.
    now: Vec<u8>,
    /// The versions that may be read after a kill: the logged one and the later ones.
    versions: Vec<Option<Vec<u8>>>,
}

struct Work {
    place: Place,
    store: PathBuf,
    mounted: Option<Mounted>,
    random: Random,
    files: BTreeMap<String, Modelled>,
    open: BTreeMap<String, File>,
    done: usize,
    full: usize,
    failed_cuts: usize,
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

impl Work {
    fn new(seed: u64) -> Work {
        let place = Place::new();
        let store = place.store();
        fs::create_dir(&store).unwrap();
        let options = std::ffi::CString::new(format!("size={STORE_BYTES}")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &store, "tmpfs", flags, &*options).unwrap();
        run(["init".as_ref(), store.as_os_str()]).ok();
        let mounted = place.mount(&[]);
        fs::create_dir_all(mounted.path("demo/m")).unwrap();
        Work {
            place,
            store,
            mounted: Some(mounted),
            random: Random(seed),
            files: BTreeMap::new(),
            open: BTreeMap::new(),
            done: 0,
            full: 0,
            failed_cuts: 0,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.as_ref().unwrap().path("demo/m").join(name)
    }

    fn some_name(&mut self) -> String {
        match self.random.below(NAMES) {
            0 => "x.npy".to_owned(),
            number => format!("f{number}"),
        }
    }

    /// Records the effect of a finished call.
    fn is_now(&mut self, name: &str, now: Vec<u8>) {
        let file = self.files.entry(name.to_owned()).or_default();
        file.versions.push(Some(now.clone()));
        file.now = now;
    }

    /// The log has the present content.
    fn is_logged(&mut self, name: &str) {
        let file = self.files.get_mut(name).unwrap();
        file.versions = vec![Some(file.now.clone())];
    }

    fn note(&mut self, error: &io::Error, what: &str) {
        assert!(is_full(error), "{what}: {error}");
        self.full += 1;
    }

    /// The single descriptor of an open file writes it.
    fn descriptor(&mut self, name: &str) -> Option<&File> {
        if !self.open.contains_key(name) {
            let opened = OpenOptions::new().read(true).write(true).open(self.path(name));
            self.open.insert(name.to_owned(), opened.unwrap());
        }
        self.open.get(name)
    }

    fn create(&mut self, name: &str) {
        match File::create_new(self.path(name)) {
            Ok(file) => {
                self.open.insert(name.to_owned(), file);
                self.files
                    .insert(name.to_owned(), Modelled { now: Vec::new(), versions: vec![Some(Vec::new())] });
            }
            Err(error) => self.note(&error, "create"),
        }
    }

    fn write(&mut self, name: &str) {
        let now = self.files[name].now.clone();
        let at = match self.random.below(3) {
            0 => now.len(),
            1 => now.len() + self.random.below(20_000),
            _ => self.random.below(now.len() + 1),
        };
        let len = 1 + self.random.below(WRITE_BYTES_MAX - 1);
        if at + len > FILE_BYTES_MAX {
            return;
        }
        let bytes = self.random.bytes(len);
        let mut new = now.clone();
        new.resize(new.len().max(at + len), 0);
        new[at..at + len].copy_from_slice(&bytes);
        let written = self.descriptor(name).unwrap().write_at(&bytes, at as u64);
        match written {
            Ok(count) if count == len => self.is_now(name, new),
            Ok(_) | Err(_) => {
                if let Err(error) = written {
                    self.note(&error, "write");
                }
                // A prefix of it may be there.
                let found = fs::read(self.path(name)).unwrap();
                let old = |place: usize| now.get(place).copied().or((place < found.len()).then_some(0));
                let count = (0..len).take_while(|place| found.get(at + place) == new.get(at + place)).count();
                let right = found.len() >= now.len()
                    && found.len() <= new.len()
                    && (0..found.len()).all(|place| {
                        let is_new = (at..at + count).contains(&place) && found[place] == new[place];
                        is_new || Some(found[place]) == old(place)
                    });
                assert!(right, "{name}: a write of {len} bytes at {at} of {} left other bytes", now.len());
                self.is_now(name, found);
            }
        }
    }

    /// A truncation is logged, or changes nothing.
    fn truncate(&mut self, name: &str) {
        let now = self.files[name].now.clone();
        let len = match self.random.below(4) {
            0 => 0,
            1 => self.random.below(FILE_BYTES_MAX),
            _ => self.random.below(now.len() + 1),
        };
        let cut = match (len, self.random.below(2)) {
            (0, 0) => OpenOptions::new().write(true).truncate(true).open(self.path(name)).map(drop),
            _ => self.descriptor(name).unwrap().set_len(len as u64),
        };
        match cut {
            Ok(()) => {
                let mut new = now;
                new.resize(len, 0);
                self.is_now(name, new);
                self.is_logged(name);
            }
            Err(error) => {
                self.note(&error, "truncate");
                self.failed_cuts += 1;
                let found = fs::read(self.path(name)).unwrap();
                assert!(
                    found == now,
                    "{name}: a cut from {} to {len} bytes that failed left {}",
                    now.len(),
                    found.len()
                );
            }
        }
    }

    fn close(&mut self, name: &str) {
        let Some(file) = self.open.remove(name) else { return };
        match file.sync_all() {
            Ok(()) => self.is_logged(name),
            Err(error) => self.note(&error, "fsync"),
        }
        drop(file);
    }

    fn remove(&mut self, name: &str) {
        match fs::remove_file(self.path(name)) {
            Ok(()) => {
                self.open.remove(name);
                self.files.remove(name);
            }
            Err(error) => self.note(&error, "unlink"),
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        if from == to {
            return;
        }
        match fs::rename(self.path(from), self.path(to)) {
            Ok(()) => {
                self.open.remove(to);
                let file = self.files.remove(from).unwrap();
                self.files.insert(to.to_owned(), file);
                if let Some(file) = self.open.remove(from) {
                    self.open.insert(to.to_owned(), file);
                }
            }
            Err(error) => self.note(&error, "rename"),
        }
    }

    fn fill(&self) {
        let mut filler =
            OpenOptions::new().append(true).create(true).open(self.store.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
    }

    fn empty(&self) {
        let filler = self.store.join("filler");
        if filler.exists() {
            fs::remove_file(filler).unwrap();
        }
    }

    fn check(&self, context: &str) {
        for (name, file) in &self.files {
            let found =
                fs::read(self.path(name)).unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
            let first = found.iter().zip(&file.now).position(|(found, wanted)| found != wanted);
            let lens = (found.len(), file.now.len());
            assert!(
                found == file.now,
                "{context}: {name} reads otherwise: {lens:?} bytes, from {first:?} on"
            );
        }
    }

    /// Kills the daemon and mounts again; every file is one of its versions.
    fn kill(&mut self, context: &str) {
        self.open.clear();
        let mounted = self.mounted.take().unwrap();
        mounted.kill();
        drop(mounted);
        self.mounted = Some(self.place.mount(&[]));
        for name in self.files.keys().cloned().collect::<Vec<_>>() {
            let found =
                fs::read(self.path(&name)).unwrap_or_else(|error| panic!("{context}: {name}: {error}"));
            let file = self.files.get_mut(&name).unwrap();
            let lens: Vec<_> = file.versions.iter().flatten().map(Vec::len).collect();
            let right = file.versions.iter().flatten().any(|version| *version == found);
            assert!(right, "{context}: {name} has {} bytes after a kill, none of {lens:?}", found.len());
            *file = Modelled { now: found.clone(), versions: vec![Some(found)] };
        }
    }

    fn step(&mut self, context: &str) {
        let name = self.some_name();
        if !self.files.contains_key(&name) {
            return self.create(&name);
        }
        match self.random.below(20) {
            0 => self.remove(&name),
            1 => {
                let to = self.some_name();
                self.rename(&name, &to);
            }
            2 | 3 => self.close(&name),
            4..8 => self.truncate(&name),
            8 => self.fill(),
            9 => self.empty(),
            10 if self.random.below(4) == 0 => self.kill(context),
            _ => self.write(&name),
        }
        self.done += 1;
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.open.clear();
        self.mounted = None;
        if let Err(error) = rustix::mount::unmount(&self.store, rustix::mount::UnmountFlags::DETACH) {
            eprintln!("unmounting {}: {error}", self.store.display());
        }
    }
}

#[test]
fn full_disks_and_kills_leave_every_file_as_its_calls_made_it() {
    let (mut done, mut full, mut failed_cuts) = (0, 0, 0);
    for round in 0..ROUNDS * scale() {
        let mut work = Work::new(1000 + u64::from(round));
        for step in 0..STEPS {
            let context = format!("round {round}, step {step}");
            work.step(&context);
            if step % 10 == 0 {
                work.check(&context);
            }
        }
        work.empty();
        work.check(&format!("round {round}, at its end"));
        for name in work.files.keys().cloned().collect::<Vec<_>>() {
            work.close(&name);
        }
        fs::write(work.mounted.as_ref().unwrap().path(".ctl/sync"), "now").unwrap();
        work.files.keys().cloned().collect::<Vec<_>>().iter().for_each(|name| work.is_logged(name));
        work.kill(&format!("round {round}, after a sync"));
        work.mounted.take().unwrap().unmount();
        run(["fsck".as_ref(), work.store.as_os_str()]).ok();
        (done, full, failed_cuts) = (done + work.done, full + work.full, failed_cuts + work.failed_cuts);
        work.mounted = None;
    }
    println!("{done} steps, {full} calls found the disk full, {failed_cuts} cuts among them");
    assert!(
        full > done / 50 && failed_cuts > 0,
        "{full} of {done} calls found the disk full, {failed_cuts} cuts"
    );
}
