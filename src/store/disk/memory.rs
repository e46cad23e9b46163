//! A disk in memory, for tests and for hosts without files.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::store::disk::{Disk, File, FileAttributes, Listed, Lock, Open, ReadAt, Space};

/// A directory tree in memory. Clones share it.
#[derive(Clone, Default)]
pub struct MemoryDisk {
    tree: Arc<RwLock<Tree>>,
}

#[derive(Default)]
struct Tree {
    files: BTreeMap<String, Arc<MemoryFile>>,
    directories: BTreeSet<String>,
}

/// A file in memory.
#[derive(Default)]
struct MemoryFile {
    bytes: RwLock<Vec<u8>>,
    /// Number of names.
    links: AtomicU64,
}

impl ReadAt for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.read();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let rest = bytes.get(from..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        Ok(count)
    }

    fn read_in_memory(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.read().len() as u64)
    }
}

impl File for MemoryFile {
    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<()> {
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let end = from.checked_add(new.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut bytes = self.bytes.write();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(from..end) {
            place.copy_from_slice(new);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.bytes.write().resize(usize::try_from(len).map_err(io::Error::other)?, 0);
        Ok(())
    }

    fn attributes(&self) -> io::Result<FileAttributes> {
        Ok(FileAttributes { links: self.links.load(Ordering::Relaxed), ..FileAttributes::default() })
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
}

/// An empty file in memory without a name.
pub fn unnamed_file() -> Arc<dyn File> {
    Arc::new(MemoryFile::default())
}

impl MemoryDisk {
    /// An empty tree.
    pub fn new() -> MemoryDisk {
        MemoryDisk::default()
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Tree {
    fn has_directory(&self, path: &str) -> bool {
        path.is_empty() || self.directories.contains(path)
    }
}

impl Disk for MemoryDisk {
    fn place(&self) -> String {
        "memory".to_owned()
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let mut tree = self.tree.write();
        match (tree.files.get(path), how) {
            (Some(_), Open::Create) => Err(io::ErrorKind::AlreadyExists.into()),
            (Some(file), _) => Ok(file.clone()),
            (None, Open::Create) if tree.has_directory(parent(path)) => {
                let file = Arc::new(MemoryFile { links: AtomicU64::new(1), ..MemoryFile::default() });
                tree.files.insert(path.to_owned(), file.clone());
                Ok(file)
            }
            (None, _) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn create_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree.write();
        if !tree.has_directory(parent(path)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        tree.directories.insert(path.to_owned());
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.tree.write();
        if tree.directories.contains(from) {
            let moved = |path: &str| {
                let rest = path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
                rest.map(|rest| format!("{to}{rest}"))
            };
            let directories = std::mem::take(&mut tree.directories).into_iter();
            tree.directories = directories.map(|path| moved(&path).unwrap_or(path)).collect();
            let files = std::mem::take(&mut tree.files).into_iter();
            tree.files = files.map(|(path, file)| (moved(&path).unwrap_or(path), file)).collect();
            return Ok(());
        }
        let file = tree.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        if let Some(replaced) = tree.files.insert(to.to_owned(), file) {
            replaced.links.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn exchange(&self, one: &str, other: &str) -> io::Result<()> {
        let between = format!("{one}.exchanged");
        self.rename(one, &between)?;
        self.rename(other, one)?;
        self.rename(&between, other)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut tree = self.tree.write();
        let file = tree.files.get(from).cloned().ok_or(io::ErrorKind::NotFound)?;
        if tree.files.contains_key(to) || !tree.has_directory(parent(to)) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        file.links.fetch_add(1, Ordering::Relaxed);
        tree.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        let removed = self.tree.write().files.remove(path).ok_or(io::ErrorKind::NotFound)?;
        removed.links.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    fn remove_directory(&self, path: &str) -> io::Result<()> {
        let mut tree = self.tree.write();
        let is_inside = |inner: &String| parent(inner) == path;
        if tree.files.keys().any(is_inside) || tree.directories.iter().any(is_inside) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        if tree.directories.remove(path) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn list(&self, path: &str) -> io::Result<Vec<Listed>> {
        let tree = self.tree.read();
        if !tree.has_directory(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |full: &String| {
            (parent(full) == path).then(|| full.rsplit('/').next().unwrap_or_default().to_owned())
        };
        let files = tree.files.keys().filter_map(name).map(|name| Listed { name, is_directory: false });
        let directories =
            tree.directories.iter().filter_map(name).map(|name| Listed { name, is_directory: true });
        Ok(files.chain(directories).collect())
    }

    fn sync_directory(&self, _path: &str) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }

    fn lock(&self, _how: Lock, _note: &str) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }
}
