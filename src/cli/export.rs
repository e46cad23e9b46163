//! `tierfs export`.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cli::Done;
use crate::cli::output::{human, print};
use crate::cli::tree::Tree;
use crate::edit::Live;
use crate::model::{Error, Result};
use crate::namespace::{Attr, Ino, Kind, Located, Namespace, Shown};

/// Bytes that are copied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Copy a file or a collection out of a store.
///
/// Of a collection: containers, plain files and tensors that are files of their own, so that every
/// byte is copied once. A file appears under its name only when it is whole.
///
/// Example: tierfs export /srv/tensors acme/llama ./llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store
    store: PathBuf,
    /// TENANT/COLLECTION, or a path below it
    path: String,
    /// A directory, made if it is not there; for one file also the file's new name
    destination: PathBuf,
}

impl Args {
    pub fn run(self) -> Result<Done> {
        let tree = Tree::open(&self.store, Some(&self.path), Shown::Containers)?;
        let Tree::Store { namespace, below } = &tree else {
            let text = format!("{} is mounted: copy {} with cp", self.store.display(), tree.place());
            return Err(Error::new(crate::model::ErrorKind::Busy, text));
        };
        let (ino, located) = namespace.walk(below)?;
        let mut sum = (0, 0);
        let attr = namespace.attr(ino, &located);
        if attr.kind == Kind::Directory {
            directory(namespace, ino, &self.destination, &mut sum)?;
        } else {
            let name = below.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let to_directory = self.destination.is_dir();
            let name = Path::new(std::ffi::OsStr::from_bytes(name));
            let target = if to_directory { self.destination.join(name) } else { self.destination.clone() };
            entry(namespace, &located, &attr, &target, &mut sum)?;
        }
        print(&format!("{} files, {}\n", sum.0, human(sum.1)))?;
        Ok(Done::Well)
    }
}

fn directory(namespace: &Namespace, ino: Ino, target: &Path, sum: &mut (u64, u64)) -> Result<()> {
    fs::create_dir_all(target).map_err(|error| Error::io(target.display(), error))?;
    let mut names = Vec::new();
    namespace.list(ino, 0, &mut |listed| {
        if !matches!(listed.name.as_slice(), b"." | b"..") {
            names.push(listed.name);
        }
        true
    })?;
    for name in names {
        let (ino, located) = namespace.lookup(ino, &name)?;
        let attr = namespace.attr(ino, &located);
        let target = target.join(std::ffi::OsStr::from_bytes(&name));
        match attr.kind {
            Kind::Directory => directory(namespace, ino, &target, sum)?,
            _ => entry(namespace, &located, &attr, &target, sum)?,
        }
    }
    Ok(())
}

fn entry(
    namespace: &Namespace,
    located: &Located,
    attr: &Attr,
    target: &Path,
    sum: &mut (u64, u64),
) -> Result<()> {
    let failed = |error| Error::io(target.display(), error);
    let Located::Node(view) = located else {
        return Err(Error::invalid("only what is in a collection can be copied"));
    };
    if attr.kind == Kind::Symlink {
        let link = namespace.read_link(attr.ino)?;
        return std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&link), target).map_err(failed);
    }
    let stream = namespace.open(view)?;
    let mut draft = target.as_os_str().to_owned();
    draft.push(".tierfs-partial");
    let draft = PathBuf::from(draft);
    match write(&stream, attr, &draft, target) {
        Ok(bytes) => {
            sum.0 += 1;
            sum.1 += bytes;
            Ok(())
        }
        Err(error) => {
            // What stopped it says more than that its beginning could not be removed.
            drop(fs::remove_file(&draft));
            Err(error)
        }
    }
}

/// Writes all bytes, and gives them their name when they are durable; how many they are.
fn write(stream: &Live, attr: &Attr, draft: &Path, target: &Path) -> Result<u64> {
    let failed = |error| Error::io(target.display(), error);
    let mut file = fs::File::create(draft).map_err(failed)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = stream.read(at, &mut chunk)?;
        let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        file.write_all(bytes).map_err(failed)?;
        at += count as u64;
    }
    file.set_permissions(fs::Permissions::from_mode(attr.mode & 0o777)).map_err(failed)?;
    let changed = Duration::from_nanos(attr.mtime.unsigned_abs());
    let changed: SystemTime = if attr.mtime < 0 { UNIX_EPOCH - changed } else { UNIX_EPOCH + changed };
    file.set_modified(changed).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    fs::rename(draft, target).map_err(failed)?;
    Ok(at)
}
