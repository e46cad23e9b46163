//! Finds the files below paths, and their targets.

use std::collections::HashSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::log::catalog::SourcePlace;
use crate::format::mountinfo::{MountedThere, mounted, topmost};
use crate::ingest::find::hub::{Repository, Revisions, hub_cache};
use crate::ingest::find::provenance::place;
use crate::ingest::find::store_paths::identity;
use crate::ingest::find::target::Target;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Elsewhere;
use crate::store::disk::files::open_source;
use crate::store::disk::{File, Identity};

/// A file to import.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct Found {
    /// Its path as given.
    pub source: PathBuf,
    /// Its path with symbolic links resolved.
    pub real: PathBuf,
    /// Its target in the collection.
    pub target: Target,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its modification time in nanoseconds since 1970.
    pub mtime: i64,
    /// Its identity, independent of the path to it.
    pub identity: Identity,
    /// The directory that is imported, with symbolic links resolved; for a single file, its directory.
    pub root: Arc<[u8]>,
    /// Identifies its blob, if it is a file of a hub cache. A blob never changes, and the collection
    /// stores it once for all of its names.
    pub blob: Option<String>,
    /// The file itself, if it lies elsewhere than on this machine.
    pub elsewhere: Option<GivenFile>,
}

/// A file that lies elsewhere.
#[derive(Clone)]
pub(in crate::ingest) struct GivenFile {
    file: Arc<dyn File>,
    /// Where it lies.
    pub place: SourcePlace,
    /// Identifies its bytes, as the blob of a file of a hub cache does.
    bytes_name: String,
    /// The SHA-256 that it must have, if somebody says it.
    pub sha256: Option<[u8; 32]>,
}

impl fmt::Debug for GivenFile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("GivenFile").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

impl Found {
    /// Opens it.
    pub fn open(&self) -> io::Result<Arc<dyn File>> {
        self.elsewhere.as_ref().map_or_else(|| open_source(&self.source), |given| Ok(given.file.clone()))
    }

    /// Identifies its bytes, if something else than its modification time does.
    pub fn bytes_name(&self) -> Option<&String> {
        self.elsewhere.as_ref().map(|given| &given.bytes_name).or(self.blob.as_ref())
    }
}

/// A symbolic link to make.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct FoundLink {
    /// Its target in the collection.
    pub target: Target,
    pub text: Vec<u8>,
    pub root: Arc<[u8]>,
}

/// The files below paths.
#[derive(Default)]
pub(in crate::ingest) struct Walked {
    /// Sorted by target; no two have the same one.
    pub found: Vec<Found>,
    pub links: Vec<FoundLink>,
    /// Entries that could not be read, with reasons. The others are there.
    pub failed: Vec<(PathBuf, Error)>,
    /// Entries that are not files, directories or links, with their kinds.
    pub skipped: Vec<(PathBuf, String)>,
    /// The directories that are imported as a whole, as in [`Found::root`].
    pub roots: Vec<Arc<[u8]>>,
}

/// The mount table, at one time.
pub(in crate::ingest) struct Mounts(Vec<u8>);

impl Mounts {
    pub fn read() -> Result<Mounts> {
        let bytes = fs::read("/proc/self/mountinfo");
        bytes.map(Mounts).map_err(|error| Error::io("reading /proc/self/mountinfo", error))
    }

    pub fn stores(&self) -> impl Iterator<Item = PathBuf> {
        mounted(&self.0).filter(MountedThere::is_ours).map(|ours| ours.source)
    }

    /// Rejects a path on a tierfs mount before any request to it: a daemon that reads its own mount
    /// would deadlock. Returns the path with symbolic links resolved.
    pub fn refuse_ours(&self, what: &str, path: &Path) -> Result<PathBuf> {
        let failed = |error| Error::io(path.display(), error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name())
            && let Ok(parent) = fs::canonicalize(parent)
        {
            self.refuse(what, path, &parent.join(name))?;
        }
        let real = fs::canonicalize(path).map_err(failed)?;
        self.refuse(what, path, &real)?;
        Ok(real)
    }

    fn refuse(&self, what: &str, path: &Path, real: &Path) -> Result<()> {
        match topmost(&self.0, real).filter(MountedThere::is_ours) {
            Some(ours) => {
                let (path, root) = (path.display(), ours.mountpoint.display());
                let text = format!("the {what} {path} lies on the tierfs mounted on {root}");
                Err(Error::invalid(match what {
                    "source" => format!(
                        "{text}; copy or move it there with cp or tierfs mv, or import a copy from outside of \
                         the mount"
                    ),
                    _ => text,
                }))
            }
            None => Ok(()),
        }
    }
}

/// The files of `paths`: a file by its own name, the content of a directory by its path in it; of a
/// repository of a hub cache, the files of its revisions. Symbolic links are followed. Two files with
/// the same target are an error, and so is a source on a tierfs mount; an entry below a directory that
/// cannot be read is noted, and the others are found.
pub(in crate::ingest) fn files(paths: &[PathBuf], revisions: &Revisions, mounts: &Mounts) -> Result<Walked> {
    let mut walk = Walk { mounts, walked: Walked::default(), below: Vec::new(), above: HashSet::new() };
    for path in paths {
        walk.path(path, revisions)?;
    }
    let mut walked = walk.walked;
    walked.found.sort_by_key(|found| (found.target.directories.clone(), found.target.name.clone()));
    for pair in walked.found.windows(2) {
        if let [one, other] = pair
            && one.target.directories == other.target.directories
            && one.target.name == other.target.name
        {
            let (one, other) = (one.source.display(), other.source.display());
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{one} and {other} would have the same path in the collection"),
            ));
        }
    }
    Ok(walked)
}

/// The URL, if a source is not a path.
#[cfg(feature = "remote")]
pub(in crate::ingest) fn url_of(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| crate::remote::client::url::is_remote(text))
}

/// This program reads no URLs.
#[cfg(not(feature = "remote"))]
pub(in crate::ingest) fn url_of(_path: &Path) -> Option<&str> {
    None
}

/// The path of a `file://` URL.
pub(in crate::ingest) fn path_of(path: &Path) -> Option<&Path> {
    url_of(path)?.strip_prefix("file://").filter(|path| path.starts_with('/')).map(Path::new)
}

/// The files at a URL and, if the server keeps some back, one of these.
#[cfg(feature = "remote")]
fn listed(url: &str) -> Result<(Vec<Elsewhere>, Option<String>)> {
    let source = crate::remote::source::open(url)?;
    let found = crate::remote::index::collections::files(&*source)?;
    Ok((found, source.refused()))
}

/// This program reads no URLs.
#[cfg(not(feature = "remote"))]
fn listed(url: &str) -> Result<(Vec<Elsewhere>, Option<String>)> {
    Err(Error::unsupported(format!("{url}: this program has no remotes")))
}

/// The files at a URL, with the credentials of this process. `deletes` says whether files that are not among them will be
/// removed: `Forbidden` if the server keeps some back.
pub(in crate::ingest) fn files_at(url: &str, mounts: &Mounts, deletes: bool) -> Result<Walked> {
    let local = url.strip_prefix("file://").map(Path::new);
    if let Some(directory) = local {
        mounts.refuse_ours("source", directory)?;
    }
    let (found, refused) = listed(url)?;
    if let Some(key) = refused.filter(|_| deletes) {
        let text = format!("{url} is imported without --delete: the server refuses {key}, which is not gone");
        return Err(Error::new(ErrorKind::Forbidden, text));
    }
    let walked = elsewhere(url, found);
    if let Some(directory) = local {
        let mut found = walked.found.iter().map(|found| directory.join(found.target.path()));
        found.try_for_each(|path| mounts.refuse_ours("source", &path).map(drop))?;
    }
    Ok(walked)
}

/// Files that lie elsewhere, all of one place.
fn elsewhere(root: &str, files: Vec<Elsewhere>) -> Walked {
    let root: Arc<[u8]> = root.as_bytes().into();
    let given = |Elsewhere { path, file, mtime, place: at, sha256 }: Elsewhere| {
        let bytes = file.len().ok()?;
        let (name, directories) = path.split_last()?;
        let target = Target::new(directories, name);
        let source = PathBuf::from(format!("{}/{}", String::from_utf8_lossy(&root), target.path()));
        let bytes_name = place(b"", &at.identity());
        let elsewhere = Some(GivenFile { file, place: at, bytes_name, sha256 });
        let (real, identity, root) = (source.clone(), Identity::default(), root.clone());
        Some(Found { source, real, target, bytes, mtime, identity, root, blob: None, elsewhere })
    };
    let mut found: Vec<Found> = files.into_iter().filter_map(given).collect();
    // Models say which tensors their data files have.
    found.sort_by_key(|found| !found.target.name.ends_with(b".onnx"));
    Walked { found, roots: vec![root], ..Walked::default() }
}

/// The given files in the given order, independent of their names.
pub(in crate::ingest) fn shards(paths: &[PathBuf], mounts: &Mounts) -> Result<Walked> {
    let shard = |path: &PathBuf| {
        let (real, metadata) = stat(path, mounts)?;
        if metadata.is_file() {
            Ok(found(path, real, &metadata, Target::default(), &Arc::from([]), false))
        } else {
            Err(Error::invalid(format!("{} is not a file", path.display())))
        }
    };
    let found = paths.iter().map(shard).collect::<Result<_>>()?;
    Ok(Walked { found, ..Walked::default() })
}

fn stat(path: &Path, mounts: &Mounts) -> Result<(PathBuf, fs::Metadata)> {
    let real = mounts.refuse_ours("source", path)?;
    let metadata = fs::metadata(&real).map_err(|error| Error::io(path.display(), error))?;
    Ok((real, metadata))
}

fn found(
    path: &Path,
    real: PathBuf,
    metadata: &fs::Metadata,
    target: Target,
    root: &Arc<[u8]>,
    is_blob: bool,
) -> Found {
    Found {
        source: path.to_owned(),
        target,
        bytes: metadata.len(),
        mtime: mtime(metadata),
        identity: identity(metadata),
        root: root.clone(),
        blob: is_blob.then(|| place(b"", real.as_os_str().as_bytes())),
        elsewhere: None,
        real,
    }
}

/// The modification time in nanoseconds since 1970.
pub(in crate::ingest) fn mtime(metadata: &fs::Metadata) -> i64 {
    metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec())
}

/// The word for an entry that an import leaves out.
fn special(metadata: &fs::Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    let kinds = [
        (kind.is_fifo(), "a fifo"),
        (kind.is_socket(), "a socket"),
        (kind.is_block_device() || kind.is_char_device(), "a device"),
    ];
    kinds.into_iter().find(|(is_it, _)| *is_it).map(|(_, word)| word)
}

fn bytes_of(path: PathBuf) -> Arc<[u8]> {
    path.into_os_string().into_vec().into()
}

struct Walk<'a> {
    mounts: &'a Mounts,
    walked: Walked,
    /// The current directory of the collection and those above.
    below: Vec<Vec<u8>>,
    /// The current directory of the source and those above.
    above: HashSet<Identity>,
}

impl Walk<'_> {
    /// Finds the files of a path that the user named.
    fn path(&mut self, path: &Path, revisions: &Revisions) -> Result<()> {
        let (real, metadata) =
            stat(path, self.mounts).map_err(|error| match dangling(path, &error, false) {
                Some(dangling) => dangling.at(path.display()),
                None => error,
            })?;
        if let Some(repository) = Repository::at(path) {
            let root = bytes_of(real);
            self.walked.roots.push(root.clone());
            return self.repository(&repository, revisions, &root);
        }
        if *revisions != Revisions::Main {
            let text = format!(
                "{} is not a repository of a hub cache, so --revision and --all-revisions do not apply",
                path.display()
            );
            return Err(Error::invalid(text));
        }
        if metadata.is_dir() {
            if hub_cache(path)?.is_some() {
                let text = format!(
                    "{0} is a hub cache; to import each of its models into a separate collection, \
                     name a tenant: tierfs import STORE TENANT {0}",
                    path.display()
                );
                return Err(Error::invalid(text));
            }
            let root = bytes_of(real);
            self.walked.roots.push(root.clone());
            return self.directory(path, &root, false);
        }
        if !metadata.is_file() {
            return Err(Error::invalid(format!("{} is neither a file nor a directory", path.display())));
        }
        let name = path.file_name().map(OsStrExt::as_bytes);
        let name = name.ok_or_else(|| Error::invalid(format!("{} has no name", path.display())))?;
        let failed = |error| Error::io(path.display(), error);
        let absolute = std::path::absolute(path).map_err(failed)?;
        let root = absolute.parent().map(fs::canonicalize).transpose().map_err(failed)?;
        let root = bytes_of(root.unwrap_or_default());
        let target = Target::new(&[], name);
        self.walked.found.push(found(path, real, &metadata, target, &root, false));
        Ok(())
    }

    /// Finds the files of the revisions of a repository. Each revision has a directory, and the names of
    /// branches and tags are links to them.
    fn repository(&mut self, repository: &Repository, revisions: &Revisions, root: &Arc<[u8]>) -> Result<()> {
        let is_all = *revisions == Revisions::All;
        for commit in repository.commits(revisions)? {
            let snapshot = repository.snapshot(&commit);
            self.mounts.refuse_ours("source", &snapshot)?;
            if is_all {
                self.below.push(commit.into_bytes());
            }
            self.directory(&snapshot, root, true)?;
            self.below.clear();
        }
        for (name, commit) in if is_all { repository.refs()? } else { Vec::new() } {
            let mut directories: Vec<Vec<u8>> =
                name.split('/').map(|part| part.as_bytes().to_vec()).collect();
            let name = directories.pop().unwrap_or_default();
            let text = format!("{}{commit}", "../".repeat(directories.len())).into_bytes();
            let target = Target::new(&directories, &name);
            self.walked.links.push(FoundLink { target, text, root: root.clone() });
        }
        Ok(())
    }

    /// Finds the files below a directory.
    fn directory(&mut self, path: &Path, root: &Arc<[u8]>, is_hub: bool) -> Result<()> {
        let failed = |error| Error::io(path.display(), error);
        let identity = identity(&fs::metadata(path).map_err(failed)?);
        if !self.above.insert(identity) {
            let error = Error::invalid("it leads back to a directory above it");
            self.walked.failed.push((path.to_owned(), error));
            return Ok(());
        }
        let entries = fs::read_dir(path).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        match entries {
            Ok(entries) => entries.iter().try_for_each(|entry| self.entry(entry, root, is_hub))?,
            Err(error) => self.walked.failed.push((path.to_owned(), Error::io("listing it", error))),
        }
        self.above.remove(&identity);
        Ok(())
    }

    fn entry(&mut self, entry: &fs::DirEntry, root: &Arc<[u8]>, is_hub: bool) -> Result<()> {
        let (path, name) = (entry.path(), entry.file_name().into_vec());
        let (real, metadata) = match stat(&path, self.mounts) {
            Ok(found) => found,
            // It lies on a tierfs.
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
            Err(error) => {
                let error = unreadable(&path, error, is_hub);
                self.walked.failed.push((path, error));
                return Ok(());
            }
        };
        if metadata.is_dir() {
            self.below.push(name);
            self.directory(&path, root, is_hub)?;
            self.below.pop();
        } else if let Some(word) = special(&metadata) {
            self.walked.skipped.push((path, format!("{word}, left out")));
        } else {
            let target = Target::new(&self.below, &name);
            self.walked.found.push(found(&path, real, &metadata, target, root, is_hub));
        }
        Ok(())
    }
}

/// The error of a link to a missing file, without its path; `None` for other errors.
fn dangling(path: &Path, error: &Error, is_hub: bool) -> Option<Error> {
    let text = fs::read_link(path).ok().filter(|_| error.kind() == ErrorKind::NotFound)?;
    let advice = if is_hub {
        "its download is incomplete; download the model again, which continues the download".to_owned()
    } else {
        format!("restore the file that it leads to, or remove the link: rm {}", path.display())
    };
    let text = format!("it is a dangling link to {}; {advice}", text.display());
    Some(Error::new(ErrorKind::NotFound, text))
}

/// The error of an entry that cannot be read, without its path.
fn unreadable(path: &Path, error: Error, is_hub: bool) -> Error {
    if let Some(dangling) = dangling(path, &error, is_hub) {
        return dangling;
    }
    // The text of the other error names the path.
    match fs::metadata(path) {
        Err(error) => Error::io("reading it", error),
        Ok(_) => error,
    }
}
