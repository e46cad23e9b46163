//! The store, its mount, the model, and the rounds of a history.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Mounted, Place, Random, answer, run, tierfs};

use super::mapping::Held;
use super::model::{Model, Node, tensors};

/// Operations between a mount and its end.
const STEPS: usize = 90;
/// At most this many clones, each in a collection of its own.
const CLONES_MAX: usize = 2;

pub struct World {
    pub place: Place,
    pub mounted: Option<Mounted>,
    pub random: Random,
    pub model: Model,
    pub held: Vec<Held>,
    pub done: u64,
    /// The daemon was or will be killed while requests are answered.
    pub is_killed: Arc<AtomicBool>,
    /// Paths that the last operation was about, which may be either way if it met the end of the daemon.
    pub touched: Vec<String>,
    /// Whether it changes bytes, and not only names.
    pub changes_bytes: bool,
    /// A thread will kill the daemon in this round.
    pub has_killer: bool,
    disk: Option<PathBuf>,
    clones: usize,
    trace: Vec<String>,
    /// Numbers for the summary: refused for lack of room, kills inside, pages of mappings compared.
    pub full: u64,
    kills_inside: u64,
    rounds: u64,
}

/// An error of a request whose daemon has ended.
pub fn is_death(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::EINTR))
}

impl World {
    pub fn new(seed: u64, disk_mebibytes: u64) -> World {
        let place = Place::new();
        let store = place.store();
        fs::create_dir(&store).unwrap();
        let disk = (disk_mebibytes > 0).then(|| store.clone());
        if disk.is_some() {
            let options = std::ffi::CString::new(format!("size={disk_mebibytes}m")).unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("tmpfs", &store, "tmpfs", flags, &*options).unwrap();
        }
        run(["init".as_ref(), store.as_os_str()]).ok();
        let mut world = World {
            place,
            mounted: None,
            random: Random(seed),
            model: Model::default(),
            held: Vec::new(),
            done: 0,
            is_killed: Arc::default(),
            touched: Vec::new(),
            changes_bytes: false,
            has_killer: false,
            disk,
            clones: 0,
            trace: Vec::new(),
            full: 0,
            kills_inside: 0,
            rounds: 0,
        };
        world.mount();
        for name in ["c1", "c2"] {
            fs::create_dir_all(world.path(name)).unwrap();
            world.model.names.insert(name.to_owned(), Node::Directory);
        }
        support::set(&world.path("c1"), "lossy", "allow").unwrap();
        world
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.mounted.as_ref().unwrap().path("t").join(path)
    }

    /// Notes a line of the history, which a failure prints.
    pub fn note(&mut self, line: String) {
        if std::env::var_os("TIERFS_HISTORY_TRACE").is_some() {
            println!("{line}");
        }
        self.trace.push(line);
    }

    fn mount(&mut self) {
        let some = |random: &mut Random, options: &[&'static str]| {
            if random.below(3) == 0 { options.to_vec() } else { Vec::new() }
        };
        let mut options = some(&mut self.random, &["--decode-all", "--decoded-cache", "2M"]);
        if !support::decoded_options().is_empty() {
            options.clear();
        }
        options.extend(some(&mut self.random, &["--verify", "always"]));
        let settings = self.place.store().join("tierfs.toml");
        let kept = fs::read_to_string(&settings).unwrap();
        let kept: String = kept
            .lines()
            .filter(|line| !line.starts_with("idle_memory_max"))
            .fold(String::new(), |text, line| text + line + "\n");
        let idle = if self.random.below(2) == 0 { "idle_memory_max = 1\n" } else { "" };
        // A full disk may not take it.
        if let Err(error) = fs::write(self.place.path("tierfs.toml"), format!("{idle}{kept}"))
            .and_then(|()| fs::copy(self.place.path("tierfs.toml"), &settings))
        {
            assert!(self.disk.is_some(), "{error}");
            fs::copy(self.place.path("tierfs.toml"), &settings).map(drop).unwrap_or_default();
        }
        self.mounted = Some(self.place.mount(&[&["--create"], &options[..]].concat()));
    }

    /// Mounts, works, ends the mount in one of the ways, and compares.
    pub fn round(&mut self) {
        self.rounds += 1;
        self.note(format!("round {}", self.rounds));
        self.is_killed = Arc::default();
        self.has_killer = self.random.below(3) == 0;
        let killer = self.has_killer.then(|| self.killer());
        let steps = 1 + self.random.below(STEPS);
        for _ in 0..steps {
            self.touched.clear();
            self.step();
            self.done += 1;
            if self.is_killed.load(Ordering::Acquire) && self.mounted.as_ref().unwrap().daemon().is_none() {
                break;
            }
        }
        if let Some(killer) = killer {
            killer.join().unwrap();
            self.has_killer = false;
            self.kills_inside += 1;
            self.crash();
            return self.compare("after a kill inside requests");
        }
        self.compare("at the end of a round");
        match self.random.below(4) {
            0 => self.crash(),
            1 => {
                let described = self.synced_description();
                self.crash();
                self.compare_description(described, "after a kill");
            }
            2 if self.clones < CLONES_MAX && self.disk.is_none() => {
                self.unmount();
                self.clone_one();
                self.mount();
            }
            _ => {
                let described = self.synced_description();
                let lost = self.unmount();
                self.mount();
                self.take_over(lost);
                self.compare_description(described, "after a clean unmount");
            }
        }
        self.compare("after the mount");
    }

    /// A thread that kills the daemon after a while.
    fn killer(&mut self) -> std::thread::JoinHandle<()> {
        let daemon = self.mounted.as_ref().unwrap().daemon().unwrap();
        let after = Duration::from_micros(self.random.below(300_000) as u64);
        let is_killed = self.is_killed.clone();
        std::thread::spawn(move || {
            std::thread::sleep(after);
            is_killed.store(true, Ordering::Release);
            // SAFETY: kill takes two numbers and touches no memory of this process.
            unsafe { libc::kill(daemon, libc::SIGKILL) };
        })
    }

    /// Kills the daemon and mounts again. Mappings live on.
    fn crash(&mut self) {
        self.note("kill".to_owned());
        let mounted = self.mounted.take().unwrap();
        mounted.kill();
        drop(mounted);
        self.held.iter_mut().for_each(|held| held.is_orphan = true);
        self.check_mappings("after a kill");
        self.mount();
        self.settle_after_kill();
    }

    /// Unmounts. Returns the files that `tierfs umount` said had no room for their last writes.
    fn unmount(&mut self) -> Vec<usize> {
        self.note("unmount".to_owned());
        self.check_mappings("before an unmount");
        self.held.retain(|held| held.is_orphan);
        let lost = self.mounted.take().unwrap().unmount_without_room();
        assert!(lost.is_empty() || self.disk.is_some(), "{lost:?} had no room on a roomy disk");
        run(["fsck".as_ref(), self.place.store().as_os_str()]).ok();
        let mut numbers = Vec::new();
        for path in lost {
            let found = self.files_at(path.strip_prefix("t/").unwrap_or(&path));
            if found.is_empty() {
                self.fail(&format!("an unmount names {path}, which is not a file, as one without room"));
            }
            numbers.extend(found);
        }
        numbers
    }

    /// Publishes `c1` and makes a clone of it, whose bytes are fetched when they are read.
    fn clone_one(&mut self) {
        self.clones += 1;
        let (name, remote) = (format!("k{}", self.clones), self.place.path(format!("remote{}", self.clones)));
        self.note(format!("clone c1 as {name}"));
        fs::create_dir(&remote).unwrap();
        let url = format!("file://{}", remote.display());
        let store = self.place.store();
        answer(tierfs().arg("push").arg(&store).args(["t/c1", &url, "--create"])).ok();
        answer(tierfs().args(["clone", &url, &format!("t/c1=t/{name}")]).arg(&store)).ok();
        let mut files = BTreeMap::new();
        for (path, node) in self.model.names.clone() {
            let Some(rest) = path.strip_prefix("c1").filter(|rest| rest.is_empty() || rest.starts_with('/'))
            else {
                continue;
            };
            let node = match node {
                Node::File(number) => {
                    let known = self.model.files[number].clone();
                    let copy = *files.entry(number).or_insert_with(|| self.model.add("", known.now));
                    Node::File(copy)
                }
                other => other,
            };
            self.model.names.insert(format!("{name}{rest}"), node);
        }
        self.model.names.remove("");
    }

    /// The tables of blocks and some attributes of all files, once everything is in the log.
    fn synced_description(&mut self) -> Option<BTreeMap<String, String>> {
        if let Err(error) = fs::write(self.mounted.as_ref().unwrap().path(".ctl/sync"), "1") {
            assert!(matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EBUSY)), "sync: {error}");
            return None;
        }
        // A compaction goes on moving blocks.
        let jobs = self.mounted.as_ref().unwrap().path(".ctl/jobs");
        support::wait_until("the end of all jobs", || {
            let jobs = fs::read_to_string(&jobs).unwrap();
            !jobs.contains(" running") && !jobs.contains(" waiting")
        });
        Some(self.description())
    }

    /// The files and logical bytes that the quotas of the collections count.
    fn counted(&self) -> BTreeMap<String, String> {
        let collections = self.model.paths(|path, _| !path.contains('/')).into_iter();
        let counted = |collection: String| {
            let quota = fs::read_to_string(self.path(&collection).join(".ctl/quota")).unwrap();
            // The bytes of the log differ after each mount.
            let lines = quota.lines().filter(|line| line.starts_with("files") || line.starts_with("logical"));
            let lines: Vec<_> = lines.collect();
            (format!("{collection}/.ctl/quota"), lines.join("\n"))
        };
        collections.map(counted).collect()
    }

    fn description(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for path in self.model.paths(|_, node| matches!(node, Node::File(_))) {
            let described = self.described(&path);
            all.insert(path, described);
        }
        all.extend(self.settled_counts());
        all
    }

    /// The counts of the quotas between two recognitions: a file that is being recognized has its tensors counted for a
    /// moment, also where the recognition is refused and repeated.
    fn settled_counts(&self) -> BTreeMap<String, String> {
        let (mut counted, mut looks) = (self.counted(), 0);
        support::wait_until("the end of all recognitions", || {
            std::thread::sleep(Duration::from_millis(20));
            let before = std::mem::replace(&mut counted, self.counted());
            looks = if counted == before { looks + 1 } else { 0 };
            looks == 10
        });
        counted
    }

    /// The attributes and the table of blocks of a file.
    fn described(&self, path: &str) -> String {
        use std::os::unix::fs::MetadataExt;
        let (collection, below) = path.split_once('/').unwrap();
        let table = self.path(collection).join(".ctl/blocks").join(below);
        let table = fs::read_to_string(table).unwrap_or_else(|error| format!("{error}"));
        let attributes = ["tier", "pin", "id", "parent", "reconstruct", "lossy", "why", "dtype", "shape"];
        let shown = attributes.map(|name| {
            let value = support::try_get(&self.path(path), name).unwrap_or_default();
            // The last refused request of a caller is not in the log.
            let lines = value.lines().filter(|line| !line.contains(" refused: "));
            format!("{name}={}", lines.collect::<Vec<_>>().join("; "))
        });
        let metadata = fs::symlink_metadata(self.path(path)).unwrap();
        let stat = (metadata.ino(), metadata.nlink(), metadata.mtime_nsec(), metadata.mode());
        format!("{}\n{stat:?}\n{table}", shown.join(" "))
    }

    /// The state of the daemon is that of a replay of the log.
    fn compare_description(&mut self, before: Option<BTreeMap<String, String>>, when: &str) {
        let Some(before) = before else { return };
        let after = self.description();
        for (path, one) in &before {
            let other = after.get(path).map_or("", String::as_str);
            if one != other {
                println!("before:\n{one}\nafter:\n{other}");
                let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
                self.fail(&format!("{path} {when} is described otherwise: {differs:?}"));
            }
        }
    }

    /// Takes over what an operation has done that met the end of the daemon: all, nothing, or a part.
    fn settle_after_kill(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        let before: Vec<Vec<u8>> = touched
            .iter()
            .flat_map(|path| [self.model.below(path), vec![path.clone()]].concat())
            .filter_map(|path| Some(self.model.files[self.model.file(&path)?].now.clone()))
            .collect();
        for path in &touched {
            if let Some(number) = self.model.file(path).filter(|_| self.changes_bytes) {
                self.model.files[number].is_loose = true;
            }
        }
        let known = self.model.files.len();
        for path in touched {
            for name in [self.model.below(&path), vec![path.clone()]].concat() {
                self.settle_name(&name);
            }
            // A rename moves what is below a directory.
            if let Ok(found) = fs::symlink_metadata(self.path(&path))
                && found.is_dir()
            {
                for below in files_below(&self.path(&path)) {
                    self.settle_name(&format!("{path}/{below}"));
                }
            }
        }
        for file in self.model.files.iter().skip(known).filter(|_| !self.changes_bytes) {
            if !file.now.is_empty() && !before.contains(&file.now) {
                self.fail("a file that met a kill while its name changed has other bytes");
            }
        }
        self.take_over(
            (0..self.model.files.len()).filter(|number| self.model.files[*number].is_loose).collect(),
        );
        for number in 0..self.model.files.len() {
            let Some(name) = self.model.names_of(number).first().cloned() else { continue };
            let known = self.model.files[number].clone();
            if !known.others.is_empty() {
                let found = fs::read(self.path(&name)).unwrap();
                if found != known.now && !known.others.contains(&found) {
                    self.fail(&format!(
                        "{name} after a kill is none of its {} versions",
                        known.others.len() + 1
                    ));
                }
                self.set_after_kill(number, found);
            }
        }
    }

    /// Takes over the bytes of files that may have any.
    fn take_over(&mut self, numbers: Vec<usize>) {
        for number in numbers {
            let Some(name) = self.model.names_of(number).first().cloned() else { continue };
            match fs::read(self.path(&name)) {
                Ok(found) => self.set_after_kill(number, found),
                Err(error) => self.fail(&format!("{name} after a mount: {error}")),
            }
        }
    }

    fn set_after_kill(&mut self, number: usize, found: Vec<u8>) {
        let file = &mut self.model.files[number];
        (file.now, file.is_loose) = (found, false);
        file.others.clear();
    }

    /// Takes over what a name leads to now.
    fn settle_name(&mut self, path: &str) {
        use std::os::unix::fs::MetadataExt;
        let at = self.path(path);
        match fs::symlink_metadata(&at) {
            Err(_) => drop(self.model.names.remove(path)),
            Ok(found) if found.is_dir() => {
                self.model.names.insert(path.to_owned(), Node::Directory);
            }
            Ok(found) if found.is_symlink() => {
                let target = fs::read_link(&at).unwrap().to_str().unwrap().to_owned();
                self.model.names.insert(path.to_owned(), Node::Link(target));
            }
            Ok(found) => {
                // Another name of a file that is known, or a file of its own.
                let collection = path.split('/').next().unwrap().to_owned();
                let others = self.model.paths(|name, node| {
                    matches!(node, Node::File(_))
                        && name != path
                        && name.starts_with(&format!("{collection}/"))
                });
                let same = others
                    .iter()
                    .find(|name| fs::metadata(self.path(name)).is_ok_and(|other| other.ino() == found.ino()));
                match same.and_then(|name| self.model.file(name)) {
                    Some(number) => drop(self.model.names.insert(path.to_owned(), Node::File(number))),
                    None => {
                        let bytes = fs::read(&at).unwrap();
                        let is_parent =
                            self.model.file(path).is_some_and(|old| self.model.files[old].is_parent);
                        let number = self.model.add(path, bytes);
                        self.model.files[number].is_parent = is_parent;
                    }
                }
            }
        }
    }

    /// Compares names, kinds, bytes and tensors of all files.
    pub fn compare(&mut self, when: &str) {
        let found: Vec<String> = files_below(&self.path(""));
        let known: Vec<String> = self.model.names.keys().cloned().collect();
        if found != known {
            let missing: Vec<_> = known.iter().filter(|name| !found.contains(name)).collect();
            let strange: Vec<_> = found.iter().filter(|name| !known.contains(name)).collect();
            self.fail(&format!("{when}: missing {missing:?}, strange {strange:?}"));
        }
        for path in known {
            self.check(&path, when);
        }
        self.check_mappings(when);
    }

    /// Compares one name.
    pub fn check(&mut self, path: &str, when: &str) {
        match self.model.names.get(path).cloned() {
            Some(Node::File(number)) => {
                let known = self.model.files[number].now.clone();
                match self.shown(path, known.len()) {
                    Ok(found) if found == known => {}
                    Ok(found) => {
                        let at = found.iter().zip(&known).position(|(one, other)| one != other);
                        let count = found.iter().zip(&known).filter(|(one, other)| one != other).count();
                        let lens = (found.len(), known.len());
                        self.fail(&format!(
                            "{path} {when}: lengths {lens:?}, {count} bytes differ from {at:?} on"
                        ));
                    }
                    Err(error) if self.is_dying(&error) => return,
                    Err(error) => self.fail(&format!("{path} {when}: {error}")),
                }
                self.check_tensors(path, &known, when);
            }
            Some(Node::Link(target)) => {
                let found = fs::read_link(self.path(path)).unwrap();
                assert_eq!(found, Path::new(&target), "{path} {when}");
            }
            Some(Node::Directory) => assert!(self.path(path).is_dir(), "{path} {when}"),
            None => assert!(fs::symlink_metadata(self.path(path)).is_err(), "{path} {when}"),
        }
    }

    /// The bytes of a file, by the page cache or past it.
    fn shown(&mut self, path: &str, len: usize) -> io::Result<Vec<u8>> {
        if self.random.below(3) > 0 {
            return fs::read(self.path(path));
        }
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).custom_flags(libc::O_DIRECT).open(self.path(path))?;
        let mut memory = support::Aligned::new(len + 4096);
        let pages = memory.pages((len + 4096).next_multiple_of(4096));
        let count = std::os::unix::fs::FileExt::read_at(&file, pages, 0)?;
        Ok(pages[..count].to_vec())
    }

    /// Whether an error comes from the daemon that a thread is killing.
    fn is_dying(&self, error: &io::Error) -> bool {
        self.has_killer && self.is_killed.load(Ordering::Acquire) && is_death(error)
    }

    fn check_tensors(&mut self, path: &str, known: &[u8], when: &str) {
        if !path.ends_with(".safetensors") {
            return;
        }
        for (tensor, begin, end) in tensors(known).unwrap_or_default() {
            // After a kill, a mount recognizes files that the last one had no time for.
            let until = std::time::Instant::now() + support::PATIENCE;
            let mut at = self.tensor(path, &tensor, &known[begin..end]);
            while at.is_none() && self.disk.is_none() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
                at = self.tensor(path, &tensor, &known[begin..end]);
            }
            // A container that met a full disk may be a plain file.
            let Some(at) = at else {
                if self.disk.is_some() || self.has_killer && self.is_killed.load(Ordering::Acquire) {
                    continue;
                }
                let shown = self.path(folder(path)).join(".tensors");
                let mut listed = files_below(&shown);
                listed.sort();
                let described = self.described(path);
                self.fail(&format!(
                    "{path} {when} has no tensor {tensor}, which is not in {listed:?}\n{described}"
                ));
            };
            match fs::read(&at) {
                Ok(found) if found == known[begin..end] => {}
                Ok(_) => self.fail(&format!("tensor {tensor} of {path} {when} differs from its container")),
                Err(error) if self.is_dying(&error) => return,
                Err(error) => self.fail(&format!("tensor {tensor} of {path} {when}: {error}")),
            }
        }
    }

    /// The path of a tensor of a container, which has these bytes. `None` if it is not shown.
    pub fn tensor(&self, container: &str, tensor: &str, known: &[u8]) -> Option<PathBuf> {
        let (folder, name) = container.rsplit_once('/')?;
        let tensors = self.path(folder).join(".tensors");
        // Where containers have tensors of the same names, each has a directory of its own.
        let own = tensors.join(name);
        if own.exists() {
            return Some(own.join(tensor)).filter(|at| at.exists());
        }
        // Another container may have a tensor of this name while this one is a plain file.
        let at = tensors.join(tensor);
        let is_own = at.exists() && fs::read(&at).map_or(true, |found| found == known);
        (is_own || !self.is_shared(folder, container, tensor)).then_some(at).filter(|at| at.exists())
    }

    /// Whether another container in a directory may have a tensor of this name.
    fn is_shared(&self, folder: &str, container: &str, tensor: &str) -> bool {
        let is_beside = |path: &str| path != container && self::folder(path) == folder;
        self.model.names.iter().any(|(path, node)| match node {
            Node::File(number) => is_beside(path) && self.has_tensor(*number, tensor),
            _ => false,
        })
    }

    /// Whether a version of a file has a tensor of this name.
    fn has_tensor(&self, number: usize, tensor: &str) -> bool {
        let file = &self.model.files[number];
        let has = |bytes: &Vec<u8>| {
            tensors(bytes).is_some_and(|found| found.iter().any(|(name, ..)| name == tensor))
        };
        file.others.iter().chain([&file.now]).any(has)
    }

    /// The files that a path below the tenant stands for: a file, or the containers that may have a tensor.
    fn files_at(&self, path: &str) -> Vec<usize> {
        let Some((folder, tensor)) = path.split_once("/.tensors/") else {
            return self.model.file(path).into_iter().collect();
        };
        let beside = self.model.names.iter().filter_map(|(name, node)| match node {
            Node::File(number) if self::folder(name) == folder => {
                let own =
                    tensor.strip_prefix(name.rsplit('/').next()?).and_then(|rest| rest.strip_prefix('/'));
                self.has_tensor(*number, own.unwrap_or(tensor)).then_some(*number)
            }
            _ => None,
        });
        beside.collect()
    }

    pub fn check_mappings(&mut self, when: &str) {
        for place in 0..self.held.len() {
            let wrong = self.held[place].wrong_pages();
            if !wrong.is_empty() {
                let names = self.model.names_of(self.held[place].file);
                self.fail(&format!("{when}: a mapping of {names:?} shows other bytes in pages at {wrong:?}"));
            }
        }
    }

    pub fn is_on_a_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Ends the history with what led to a failure.
    pub fn fail(&self, what: &str) -> ! {
        let last = self.trace.len().saturating_sub(60);
        for line in &self.trace[last..] {
            println!("{line}");
        }
        panic!("after {} operations: {what}", self.done);
    }

    pub fn finish(mut self) {
        self.compare("at the end");
        self.held.clear();
        self.unmount();
        println!(
            "{} operations in {} rounds, {} kills inside requests, {} requests without room",
            self.done, self.rounds, self.kills_inside, self.full
        );
    }
}

/// The directory of a path.
fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Drop for World {
    fn drop(&mut self) {
        self.held.clear();
        self.mounted = None;
        if let Some(disk) = &self.disk {
            let lazily = rustix::mount::UnmountFlags::DETACH;
            if let Err(error) = rustix::mount::unmount(disk, lazily) {
                eprintln!("unmounting {}: {error}", disk.display());
            }
        }
    }
}

/// The paths below a folder, relative to it and sorted, without following links.
fn files_below(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![String::new()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(folder.join(&at)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = if at.is_empty() { name } else { format!("{at}/{name}") };
            if entry.file_type().unwrap().is_dir() {
                folders.push(path.clone());
            }
            found.push(path);
        }
    }
    found.sort();
    found
}
