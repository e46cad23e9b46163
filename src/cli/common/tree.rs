//! The tree that a command reads: an unmounted store, or a path on a mount.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::cli::common::mounts::{mount_of, mounted_at, resolved};
use crate::cli::common::open_store::open_store;
use crate::cli::common::places::below_store;
use crate::cli::common::remote;
use crate::control::{self, ATTRIBUTES, Attribute, Cost, Mounted, PREFIX};
use crate::model::{Error, ErrorKind, Owner, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store, TENSORS_NAME, Verify};
use crate::vfs::{Ino, Kind, ListMode, Located, Vfs};

/// The tree that a command reads.
pub(in crate::cli) enum Tree {
    /// An unmounted store and a path below it.
    Store {
        vfs: Arc<Vfs>,
        /// The path below the store.
        below: Vec<u8>,
    },
    /// A path on a mount.
    Mount(PathBuf),
}

/// A line of a listing.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Row {
    pub name: OsString,
    /// Whether it is a directory.
    pub is_directory: bool,
    pub bytes: u64,
    /// Stored bytes, rounded up to a multiple of 512.
    pub stored: u64,
}

impl Tree {
    /// Opens `path`, a store, a remote or a path on a mount, joined with `below`.
    pub fn open(path: &Path, below: Option<&str>) -> Result<Tree> {
        let below = below.unwrap_or_default().trim_matches('/');
        if let Some(url) = remote::url(path) {
            let vfs = Vfs::new(
                Arc::new(remote::open(url)?),
                ListMode::Files,
                Verify::First,
                Owner { uid: 0, gid: 0 },
                control::controls(),
            );
            check_collection(&vfs, url, below)?;
            return Ok(Tree::Store { vfs: Arc::new(vfs), below: below.as_bytes().to_vec() });
        }
        if mount_of(path)?.is_some() {
            // A link to a place on the mount stands for that place.
            let is_link = fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
            let path = if is_link { resolved(path)? } else { path.to_owned() };
            return Ok(Tree::Mount(if below.is_empty() { path } else { path.join(below) }));
        }
        if let Some((store, above)) = below_store(path) {
            let names = above.join(below);
            return match names.to_str() {
                Some(names) => Tree::open(&store, Some(names)),
                None => Err(Error::invalid(format!("{} is not UTF-8", path.display()))),
            };
        }
        let store = match open_store(path, Access::Read, "") {
            // The store is mounted: ask the daemon, which knows the current state.
            Err(error) if error.kind() == ErrorKind::Busy => {
                return mounted_at(&error).map(|mountpoint| Tree::Mount(mountpoint.join(below))).ok_or(error);
            }
            Err(error) if error.kind() == ErrorKind::NotFound && !Store::exists(&FileDisk::new(path)) => {
                return Err(no_tree(path));
            }
            opened => opened?,
        };
        remote::fetch_clones(&store);
        let vfs = Vfs::new(
            Arc::new(store),
            ListMode::Files,
            Verify::First,
            Owner { uid: 0, gid: 0 },
            control::controls(),
        );
        Ok(Tree::Store { vfs: Arc::new(vfs), below: below.as_bytes().to_vec() })
    }

    /// The entries of a directory, sorted by name; for a file, the file itself.
    pub fn rows(&self) -> Result<Vec<Row>> {
        let mut rows = match self {
            Tree::Store { vfs, below } => {
                let (ino, located) = vfs.walk(below)?;
                store_rows(vfs, ino, &located, below)?
            }
            Tree::Mount(path) => mount_rows(path)?,
        };
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(rows)
    }

    /// Whether the path is a directory.
    pub fn is_directory(&self) -> Result<bool> {
        match self {
            Tree::Store { vfs, below } => {
                let (ino, located) = vfs.walk(below)?;
                Ok(vfs.attr(ino, &located).kind == Kind::Directory)
            }
            Tree::Mount(path) => {
                let failed = |error| Error::io(path.display(), error);
                let reached = Reached::of(path).map_err(failed)?;
                Ok(fs::symlink_metadata(reached.path()).map_err(failed)?.is_dir())
            }
        }
    }

    pub fn enter(&mut self, name: &OsStr) {
        match self {
            Tree::Store { below, .. } => {
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend(name.as_bytes());
            }
            Tree::Mount(path) => path.push(name),
        }
    }

    /// Returns to the parent directory.
    pub fn leave(&mut self) {
        match self {
            Tree::Store { below, .. } => {
                let end = below.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                below.truncate(end);
            }
            Tree::Mount(path) => {
                path.pop();
            }
        }
    }

    /// Descends to the tensors of a container, or of the containers in a directory.
    pub fn enter_tensors(&mut self) -> Result<()> {
        if self.is_directory()? {
            self.enter(OsStr::new(TENSORS_NAME));
            return Ok(());
        }
        let name = match self {
            Tree::Store { below, .. } => {
                OsStr::from_bytes(below.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).to_owned()
            }
            Tree::Mount(path) => path.file_name().unwrap_or_default().to_owned(),
        };
        self.leave();
        self.enter(OsStr::new(TENSORS_NAME));
        self.enter(&name);
        Ok(())
    }

    /// The attributes that have a value and cost at most `most` to read.
    pub fn attributes(&self, most: Cost) -> Result<Vec<(&'static str, String)>> {
        let is_cheap = |of: &Attribute| of.cost == Cost::Small || most == Cost::WholeFile;
        self.wanted_attributes(&|of| of.is_printed && is_cheap(of))
    }

    /// Those with these names that have a value.
    pub fn named_attributes(&self, names: &[&str]) -> Result<Vec<(&'static str, String)>> {
        self.wanted_attributes(&|of| names.contains(&of.name))
    }

    /// The settings and their values.
    pub fn settings(&self) -> Result<Vec<(&'static str, String)>> {
        self.wanted_attributes(&|of| of.set.is_some() && of.cost == Cost::Small)
    }

    fn wanted_attributes(
        &self,
        is_wanted: &dyn Fn(&Attribute) -> bool,
    ) -> Result<Vec<(&'static str, String)>> {
        match self {
            Tree::Store { vfs, below } => match vfs.walk(below)?.1 {
                Located::Node(view) => control::values(vfs, &view, is_wanted),
                _ => Ok(Vec::new()),
            },
            Tree::Mount(path) => mount_attributes(path, is_wanted),
        }
    }

    /// Reads a file from an offset until the buffer is full or the file ends. Returns the number of bytes.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        match self {
            Tree::Store { vfs, below } => match vfs.walk(below)?.1 {
                Located::Node(view) => vfs.open(&view)?.read(offset, out),
                _ => Err(Error::invalid(format!("{} is not a file of a collection", self.place()))),
            },
            Tree::Mount(path) => {
                let failed = |error| Error::io(path.display(), error);
                let reached = Reached::of(path).map_err(failed)?;
                let file = fs::File::open(reached.path()).map_err(failed)?;
                let mut done = 0;
                while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
                    match file.read_at(rest, offset + done as u64).map_err(failed)? {
                        0 => break,
                        count => done += count,
                    }
                }
                Ok(done)
            }
        }
    }

    /// The text of a control file, by its path below the place of the tree, which is a store or a mount point.
    pub fn control(&self, path: &str) -> Result<String> {
        let (vfs, place) = match self {
            Tree::Store { vfs, below } => (vfs, [below.as_slice(), b"/", path.as_bytes()].concat()),
            Tree::Mount(mountpoint) => {
                let path = mountpoint.join(path);
                return fs::read_to_string(&path).map_err(|error| Error::io(path.display(), error));
            }
        };
        let Located::Control(view) = vfs.walk(&place)?.1 else {
            return Err(Error::new(ErrorKind::NotFound, format!("{path} is not a control file")));
        };
        let mounted = Mounted::new(vfs.clone(), vfs.store().place(), toml::Table::new());
        let text = control::show(&mounted, &view, vfs.owner().uid)?;
        let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            let count = text.read(bytes.len() as u64, &mut chunk)?;
            let Some(more) = chunk.get(..count).filter(|more| !more.is_empty()) else { break };
            bytes.extend_from_slice(more);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The path, for messages.
    pub fn place(&self) -> String {
        match self {
            Tree::Store { vfs, below } => {
                format!("{}/{}", vfs.store().place(), String::from_utf8_lossy(below))
            }
            Tree::Mount(path) => path.display().to_string(),
        }
    }
}

/// The error for a path that is neither in a store nor on a mount.
fn no_tree(path: &Path) -> Error {
    let shown = path.display();
    let text = match path.exists() {
        true => {
            format!("{shown} is neither a tierfs store nor on a tierfs mount; tierfs status lists the mounts")
        }
        false => format!("{shown} does not exist"),
    };
    Error::new(ErrorKind::NotFound, text)
}

/// Fails with `NotFound` for a path in a collection that the remote does not have.
fn check_collection(vfs: &Vfs, url: &str, below: &str) -> Result<()> {
    let mut names = below.split('/').filter(|name| !name.is_empty());
    let (Some(tenant), Some(name)) = (names.next(), names.next()) else { return Ok(()) };
    let wanted = format!("{tenant}/{name}");
    match vfs.walk(wanted.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        _ => return Ok(()),
    }
    let mut there = Vec::new();
    for tenant in vfs.store().tenants()? {
        there.extend(vfs.store().collections(&tenant)?.into_iter().map(|name| format!("{tenant}/{name}")));
    }
    Err(remote::no_collection(url, &wanted, &there))
}

fn store_rows(vfs: &Vfs, ino: Ino, located: &Located, below: &[u8]) -> Result<Vec<Row>> {
    let attr = vfs.attr(ino, located);
    let row = |name: &[u8], attr: &crate::vfs::Attr| Row {
        name: OsStr::from_bytes(name).to_owned(),
        is_directory: attr.kind == Kind::Directory,
        bytes: attr.bytes,
        stored: attr.blocks * 512,
    };
    if attr.kind != Kind::Directory {
        let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        return Ok(vec![row(name, &attr)]);
    }
    let mut rows = Vec::new();
    vfs.list(ino, 0, &mut |listed| {
        if !matches!(listed.name.as_slice(), b"." | b"..") {
            rows.push(row(&listed.name, &listed.attr));
        }
        true
    })?;
    Ok(rows)
}

fn mount_rows(path: &Path) -> Result<Vec<Row>> {
    let failed = |error| Error::io(path.display(), error);
    let row = |name: &OsStr, metadata: &fs::Metadata| Row {
        name: name.to_owned(),
        is_directory: metadata.is_dir(),
        bytes: if metadata.is_dir() { 0 } else { metadata.len() },
        stored: metadata.blocks() * 512,
    };
    let reached = Reached::of(path).map_err(failed)?;
    let metadata = fs::symlink_metadata(reached.path()).map_err(failed)?;
    if !metadata.is_dir() {
        let name = path.file_name().unwrap_or_default();
        return Ok(vec![row(name, &metadata)]);
    }
    let mut rows = Vec::new();
    for entry in fs::read_dir(reached.path()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let metadata = entry.metadata().map_err(failed)?;
        rows.push(row(&entry.file_name(), &metadata));
    }
    Ok(rows)
}

fn mount_attributes(
    path: &Path,
    is_wanted: &dyn Fn(&Attribute) -> bool,
) -> Result<Vec<(&'static str, String)>> {
    let mut values = Vec::new();
    let failed = |error| Error::io(path.display(), error);
    let reached = Reached::of(path).map_err(failed)?;
    fs::symlink_metadata(reached.path()).map_err(failed)?;
    let mut buffer = vec![0; 64 << 10];
    for attribute in ATTRIBUTES.iter().filter(|attribute| is_wanted(attribute)) {
        let name = format!("{PREFIX}{}", attribute.name);
        match rustix::fs::getxattr(reached.path(), &name, &mut buffer[..]) {
            Ok(len) => {
                let value = buffer.get(..len).unwrap_or_default();
                values.push((attribute.name, String::from_utf8_lossy(value).into_owned()));
            }
            Err(rustix::io::Errno::NODATA) => {}
            Err(error) => return Err(Error::io(format!("{}: {name}", path.display()), error.into())),
        }
    }
    Ok(values)
}

/// The longest path that calls of the system take, in bytes, with room for a name.
const PATH_BYTES_MAX: usize = 4096 - 256;

/// A path for calls of the system, however long: a longer one is reached by descriptors of directories above it.
struct Reached {
    path: PathBuf,
    /// The directory that the path begins at.
    _above: Option<OwnedFd>,
}

impl Reached {
    fn of(path: &Path) -> io::Result<Reached> {
        let (mut above, mut below): (Option<OwnedFd>, PathBuf) = (None, PathBuf::new());
        for part in path {
            if below.as_os_str().len() + part.len() >= PATH_BYTES_MAX {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                above = Some(match &above {
                    Some(above) => openat(above, &below, flags, Mode::empty()),
                    None => openat(CWD, &below, flags, Mode::empty()),
                }?);
                below = PathBuf::new();
            }
            below.push(part);
        }
        let begin = above.as_ref().map(|above| PathBuf::from(format!("/proc/self/fd/{}", above.as_raw_fd())));
        Ok(Reached { path: begin.map_or(path.to_owned(), |begin| begin.join(below)), _above: above })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

    use super::mount_rows;

    #[test]
    fn directories_with_longer_paths_than_calls_take_are_listed() {
        let place = tempfile::tempdir().unwrap();
        let (mut path, name) = (place.path().to_owned(), "d".repeat(200));
        let open = |at: std::os::fd::BorrowedFd<'_>, name: &std::path::Path| {
            openat(at, name, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).unwrap()
        };
        let mut at = open(CWD.as_fd(), &path);
        for _ in 0..50 {
            mkdirat(&at, name.as_str(), Mode::RWXU).unwrap();
            at = open(at.as_fd(), name.as_ref());
            path.push(&name);
        }
        openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
        assert!(std::fs::read_dir(&path).is_err());
        let rows = mount_rows(&path).unwrap();
        assert_eq!(rows.iter().map(|row| row.name.to_str().unwrap()).collect::<Vec<_>>(), ["file"]);
        assert!(!mount_rows(&path.join("file")).unwrap()[0].is_directory);
        assert!(mount_rows(&path.join("none")).is_err());
    }
}
