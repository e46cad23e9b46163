//! A disk in memory that can lose any part of the unsynced changes at a power cut.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tierfs::store::disk::change::Change;
use tierfs::store::disk::{Disk, File, FileAttributes, Listed, Lock, Open, ReadAt, Space};

use support::Random;

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub struct CutDisk(Arc<Mutex<Tree>>);

#[derive(Default)]
struct Tree {
    directories: Vec<String>,
    /// A directory that is made is durable at once, one that is renamed once its parent is synced.
    durable_directories: Vec<String>,
    names: BTreeMap<String, Arc<CutFile>>,
    durable: BTreeMap<String, Arc<CutFile>>,
    /// Names made or removed since their directory was synced, in order.
    pending: Vec<Entries>,
}

/// Names that are made and removed together.
#[derive(Clone)]
struct Entries {
    /// The directory whose sync makes them durable.
    directory: String,
    names: Vec<(String, Option<Arc<CutFile>>)>,
    /// A directory that gets another name with them.
    renamed: Option<(String, String)>,
}

impl Entries {
    fn of(names: Vec<(String, Option<Arc<CutFile>>)>) -> Entries {
        let directory = parent(&names[0].0);
        // No file is renamed from one directory to another.
        assert!(names.iter().all(|(name, _)| parent(name) == directory));
        Entries { directory, names, renamed: None }
    }

    fn apply(&self, names: &mut BTreeMap<String, Arc<CutFile>>, directories: &mut [String]) {
        for (path, file) in &self.names {
            match file {
                Some(file) => names.insert(path.clone(), file.clone()),
                None => names.remove(path),
            };
        }
        if let Some((from, to)) = &self.renamed {
            rename_directories(directories, from, to);
        }
    }
}

fn parent(path: &str) -> String {
    path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned()
}

/// The path that a path has when a directory is renamed, if it is that or below it.
fn moved(path: &str, from: &str, to: &str) -> Option<String> {
    let below = path.strip_prefix(from)?;
    (below.is_empty() || below.starts_with('/')).then(|| format!("{to}{below}"))
}

fn rename_directories(directories: &mut [String], from: &str, to: &str) {
    for directory in directories {
        if let Some(now) = moved(directory, from, to) {
            *directory = now;
        }
    }
}

#[derive(Default)]
struct CutFile {
    content: Mutex<Content>,
    /// Number of its names.
    links: AtomicU64,
}

#[derive(Default)]
struct Content {
    syncs: usize,
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Pending>,
}

#[derive(Clone)]
enum Pending {
    Write(usize, Vec<u8>),
    Len(usize),
}

fn change(bytes: &mut Vec<u8>, change: &Pending) {
    match change {
        Pending::Write(at, new) => {
            if bytes.len() < at + new.len() {
                bytes.resize(at + new.len(), 0);
            }
            bytes[*at..at + new.len()].copy_from_slice(new);
        }
        Pending::Len(len) => bytes.resize(*len, 0),
    }
}

impl Tree {
    /// Renames a directory with all below it. What is durable there has the old or the new name after a power cut.
    fn rename_directory(&mut self, from: &str, to: &str) -> io::Result<()> {
        if self.directories.iter().any(|known| known == to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        rename_directories(&mut self.directories, from, to);
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names.map(|(path, file)| (moved(&path, from, to).unwrap_or(path), file)).collect();
        let below = self.durable.iter().filter_map(|(path, file)| Some((path, moved(path, from, to)?, file)));
        let names = below.flat_map(|(old, new, file)| [(old.clone(), None), (new, Some(file.clone()))]);
        let entries = Entries {
            directory: parent(from),
            names: names.collect(),
            renamed: Some((from.to_owned(), to.to_owned())),
        };
        // Changes below the directory that are not durable move along.
        for pending in &mut self.pending {
            pending.directory = moved(&pending.directory, from, to).unwrap_or(pending.directory.clone());
            for (path, _) in &mut pending.names {
                *path = moved(path, from, to).unwrap_or(path.clone());
            }
        }
        self.pending.push(entries);
        Ok(())
    }
}

impl CutDisk {
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.0.lock().unwrap()
    }

    /// The disk after a power cut: each unsynced sector, size and name survives with a chance of `kept` in four.
    pub fn cut(&self, random: &mut Random, kept: usize) -> CutDisk {
        let tree = self.tree();
        let mut keep = || random.below(4) < kept;
        let (mut names, mut directories) = (tree.durable.clone(), tree.durable_directories.clone());
        tree.pending
            .iter()
            .filter(|_| keep())
            .for_each(|entries| entries.apply(&mut names, &mut directories));
        let mut cut: HashMap<*const CutFile, Arc<CutFile>> = HashMap::new();
        let names: BTreeMap<String, Arc<CutFile>> = names
            .into_iter()
            .map(|(path, file)| {
                // Several names of one file stay names of one file.
                if let Some(made) = cut.get(&Arc::as_ptr(&file)) {
                    made.links.fetch_add(1, Ordering::Relaxed);
                    return (path, made.clone());
                }
                let content = file.content.lock().unwrap();
                let mut bytes = content.durable.clone();
                for pending in &content.pending {
                    match pending {
                        Pending::Write(at, new) => {
                            let mut from = 0;
                            while from < new.len() {
                                let end = (SECTOR - (at + from) % SECTOR + from).min(new.len());
                                if keep() {
                                    change(&mut bytes, &Pending::Write(at + from, new[from..end].to_vec()));
                                }
                                from = end;
                            }
                        }
                        Pending::Len(_) if !keep() => {}
                        len => change(&mut bytes, len),
                    }
                }
                let content = Content { now: bytes.clone(), durable: bytes, ..Content::default() };
                let made = Arc::new(CutFile { content: Mutex::new(content), links: AtomicU64::new(1) });
                cut.insert(Arc::as_ptr(&file), made.clone());
                (path, made)
            })
            .collect();
        let (durable, durable_directories) = (names.clone(), directories.clone());
        let tree = Tree { directories, durable_directories, durable, names, pending: Vec::new() };
        CutDisk(Arc::new(Mutex::new(tree)))
    }

    /// How often files were synced.
    pub fn syncs(&self) -> usize {
        self.tree().names.values().map(|file| file.content.lock().unwrap().syncs).sum()
    }

    /// Bytes of a file.
    pub fn len(&self, path: &str) -> u64 {
        self.tree().names.get(path).map_or(0, |file| file.content.lock().unwrap().now.len() as u64)
    }
}

impl ReadAt for CutFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let content = self.content.lock().unwrap();
        let rest = content.now.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.content.lock().unwrap().now.len() as u64)
    }
}

impl File for CutFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        let new = Pending::Write(offset as usize, bytes.to_vec());
        change(&mut content.now, &new);
        content.pending.push(new);
        Ok(())
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        Ok(FileAttributes { links: self.links.load(Ordering::Relaxed), ..FileAttributes::default() })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        content.now.resize(len as usize, 0);
        content.pending.push(Pending::Len(len as usize));
        Ok(())
    }

    /// Like a file system that frees the pages at once, even if the removal is not durable.
    fn punch(&self, _change: Change, offset: u64, len: u64) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        let Content { now, durable, .. } = &mut *content;
        for bytes in [now, durable] {
            let end = bytes.len().min((offset + len) as usize);
            bytes.get_mut(offset as usize..end).unwrap_or_default().fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut content = self.content.lock().unwrap();
        content.pending.clear();
        content.syncs += 1;
        content.durable = content.now.clone();
        Ok(())
    }
}

impl Disk for CutDisk {
    fn place(&self) -> String {
        "a disk to cut".to_owned()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let mut tree = self.tree();
        match (tree.names.get(path).cloned(), how) {
            (Some(_), Open::Create) => Err(io::ErrorKind::AlreadyExists.into()),
            (Some(file), _) => Ok(file),
            (None, Open::Create) => {
                let file = Arc::new(CutFile { links: AtomicU64::new(1), ..CutFile::default() });
                tree.names.insert(path.to_owned(), file.clone());
                tree.pending.push(Entries::of(vec![(path.to_owned(), Some(file.clone()))]));
                Ok(file)
            }
            (None, _) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        if !tree.directories.iter().any(|known| known == path) {
            tree.directories.push(path.to_owned());
            tree.durable_directories.push(path.to_owned());
        }
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.tree();
        if tree.directories.iter().any(|known| known == from) {
            return tree.rename_directory(from, to);
        }
        let file = tree.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        if let Some(replaced) = tree.names.insert(to.to_owned(), file.clone()) {
            replaced.links.fetch_sub(1, Ordering::Relaxed);
        }
        tree.pending.push(Entries::of(vec![(from.to_owned(), None), (to.to_owned(), Some(file))]));
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.tree();
        let file = tree.names.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
        if tree.names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        file.links.fetch_add(1, Ordering::Relaxed);
        tree.names.insert(to.to_owned(), file.clone());
        tree.pending.push(Entries::of(vec![(to.to_owned(), Some(file))]));
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        let removed = tree.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        removed.links.fetch_sub(1, Ordering::Relaxed);
        tree.pending.push(Entries::of(vec![(path.to_owned(), None)]));
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        if tree.names.keys().chain(&tree.directories).any(|name| parent(name) == path) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        tree.directories.retain(|known| known != path);
        Ok(())
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let tree = self.tree();
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let below = |name: &String| {
            name.strip_prefix(&prefix)
                .filter(|rest| !rest.is_empty() && !rest.contains('/'))
                .map(str::to_owned)
        };
        let files = tree.names.keys().filter_map(below).map(|name| Listed { name, is_directory: false });
        let directories = tree.directories.iter().filter_map(below);
        Ok(files.chain(directories.map(|name| Listed { name, is_directory: true })).collect())
    }

    fn sync_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree();
        let pending = std::mem::take(&mut tree.pending);
        for entries in pending {
            if entries.directory == path {
                let Tree { durable, durable_directories, .. } = &mut *tree;
                entries.apply(durable, durable_directories);
            } else {
                tree.pending.push(entries);
            }
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }

    fn lock(&self, _how: Lock, _note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }
}
