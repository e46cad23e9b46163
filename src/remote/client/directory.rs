//! The directory of a `file://` URL, as objects.
//!
//! `object_store` writes objects. It shows no file `x#1`, the name of its own drafts, takes a directory that is missing
//! for one without objects, and makes it again: so this reads, lists and removes. Links are followed.
//!
//! - A directory that has gone is away, and so is a remote without its file `tierfs.remote`, or another directory that is
//!   empty where one with files was: a file system that is not mounted leaves its mount point.
//! - In a remote, files with names of drafts are what killed pushes left. Only [`Directory::remove_drafts`] sees them.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::vec;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::remote::client::failure::Failure;

/// Files that are listed by a thread at a time.
const LISTED_AT_ONCE: usize = 1000;
/// Files that are removed at a time.
const REMOVED_AT_ONCE: usize = 10;
/// The directories of a remote, which may have drafts.
const DIRECTORIES: [&str; 6] = [keys::SNAPSHOTS, keys::HEADS, "list/", keys::PIECES, keys::GARBAGE, "tag/"];
/// Names that are told as left out.
const LEFT_OUT_MAX: usize = 1000;

/// A device and a node of it, which tell a directory from the mount point below it.
type Identity = (u64, u64);

/// A directory as it was last seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// It has had no files yet.
    Empty,
    /// It had files.
    Filled(Identity),
    /// It was a remote.
    Remote,
}

/// A directory. Clones share their knowledge of it.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    root: PathBuf,
    seen: Arc<Mutex<Seen>>,
    /// Texts about files that cannot be shown.
    left_out: Arc<Mutex<BTreeSet<String>>>,
}

/// An entry of a directory.
enum Entry {
    Object(ObjectMeta),
    Directory(Path, Identity),
}

/// A walk through the files of a directory, in the order of their keys.
struct Walk {
    directory: Directory,
    /// The entries left, of each directory on the way down, and the directories themselves.
    levels: Vec<(vec::IntoIter<Entry>, Identity)>,
    after: Option<Path>,
    shows_drafts: bool,
}

impl Directory {
    /// The directory at this path. One that was a remote before may be away.
    pub fn open(root: PathBuf, was_remote: bool) -> Directory {
        let seen = if was_remote { Seen::Remote } else { Seen::Empty };
        let (seen, left_out) = (Arc::new(Mutex::new(seen)), Arc::default());
        let directory = Directory { root, seen, left_out };
        if let Err(error) = directory.check() {
            log::debug!("{directory}: {error}");
        }
        directory
    }

    /// Fails if the directory is away.
    fn check(&self) -> std::result::Result<(), Failure> {
        let away = |error: io::Error| Failure::Away(format!("the directory is away: {error}"));
        let identity = identity(&fs::metadata(&self.root).map_err(away)?);
        let is_filled = fs::read_dir(&self.root).map_err(away)?.next().transpose().map_err(away)?.is_some();
        let (is_remote, mut seen) = (self.is_remote().map_err(away)?, self.seen.lock());
        let lacks = match *seen {
            _ if is_remote => {
                *seen = Seen::Remote;
                return Ok(());
            }
            Seen::Remote => "it has no file tierfs.remote",
            Seen::Filled(known) if known != identity && !is_filled => "it is empty",
            _ => {
                if is_filled {
                    *seen = Seen::Filled(identity);
                }
                return Ok(());
            }
        };
        Err(Failure::Away(format!("the directory is away: {lacks}; perhaps its file system is not mounted")))
    }

    /// An error at a path. That an object is missing is believed of a directory that is there only.
    fn error(&self, path: &Path, source: io::Error) -> Error {
        if source.kind() != ErrorKind::NotFound {
            return generic(source);
        }
        match self.check() {
            Ok(()) => Error::NotFound { path: path.to_string(), source: Box::new(source) },
            Err(failure) => generic(failure),
        }
    }

    /// The file of a key.
    fn path(&self, key: &Path) -> PathBuf {
        self.root.join(key.as_ref())
    }

    /// Writes objects, unless the directory is away: `object_store` would make it again.
    async fn writer(&self) -> Result<LocalFileSystem> {
        let directory = self.clone();
        blocking(move || {
            directory.check().map_err(generic)?;
            Ok(LocalFileSystem::new_with_prefix(&directory.root)?.with_fsync(true))
        })
        .await
    }

    fn is_remote(&self) -> io::Result<bool> {
        self.root.join(keys::REMOTE).try_exists()
    }

    /// Whether files with names of drafts are shown.
    fn shows_drafts(&self) -> Result<bool> {
        Ok(!self.is_remote().map_err(generic)?)
    }

    /// The entries of a directory, in the order of keys. None if it does not exist.
    fn entries(&self, below: &Path, shows_drafts: bool) -> Result<Vec<Entry>> {
        let listed = match fs::read_dir(self.path(below)) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            listed => listed.map_err(generic)?,
        };
        let mut entries = Vec::new();
        for entry in listed {
            let entry = entry.map_err(generic)?;
            let name = entry.file_name();
            let key = name.to_str().and_then(|name| match below.as_ref() {
                "" => Path::parse(name).ok(),
                below => Path::parse(format!("{below}/{name}")).ok(),
            });
            let Some(key) = key else {
                self.leave_out(format!("{below}/{}: no key can have its name", name.display()));
                continue;
            };
            if !shows_drafts && is_draft(&key) {
                continue;
            }
            let found = match fs::metadata(entry.path()) {
                Ok(found) => found,
                // It was removed, or is a link to nothing.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) if entry.file_type().is_ok_and(|kind| kind.is_symlink()) => {
                    self.leave_out(format!("{key}: {error}"));
                    continue;
                }
                Err(error) => return Err(generic(error)),
            };
            if found.is_dir() {
                entries.push(Entry::Directory(key, identity(&found)));
            } else if found.is_file() {
                entries.push(Entry::Object(meta(key, &found)));
            }
        }
        entries.sort_by_cached_key(|entry| match entry {
            Entry::Object(meta) => meta.location.to_string(),
            Entry::Directory(key, _) => format!("{key}/"),
        });
        Ok(entries)
    }

    /// A file is not shown.
    fn leave_out(&self, text: String) {
        let text = text.trim_start_matches('/').to_owned();
        let mut left_out = self.left_out.lock();
        if left_out.len() < LEFT_OUT_MAX && left_out.insert(text.clone()) {
            log::warn!("{}/{text}; it is left out", self.root.display());
        }
    }

    fn walk(&self, below: &Path, after: Option<&Path>, shows_drafts: bool) -> Result<Walk> {
        let entries = self.entries(below, shows_drafts)?;
        // A directory that is away has no entries either.
        if entries.is_empty() {
            self.check().map_err(generic)?;
        }
        let identity = fs::metadata(self.path(below)).map_or((0, 0), |found| identity(&found));
        let levels = vec![(entries.into_iter(), identity)];
        Ok(Walk { directory: self.clone(), levels, after: after.cloned(), shows_drafts })
    }

    /// The objects below a directory, in the order of their keys.
    fn walked(&self, below: Option<&Path>, after: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (directory, below, after) = (self.clone(), below.cloned().unwrap_or_default(), after.cloned());
        let begin = move || directory.walk(&below, after.as_ref(), directory.shows_drafts()?);
        let chunks = stream::once(blocking(begin)).flat_map(|begun| match begun {
            Err(error) => stream::once(async { Err(error) }).boxed(),
            Ok(walk) => stream::try_unfold(walk, |mut walk| async {
                let (chunk, walk) = blocking(move || Ok((walk.chunk()?, walk))).await?;
                Ok((!chunk.is_empty()).then_some((chunk, walk)))
            })
            .boxed(),
        });
        chunks
            .flat_map(|chunk| match chunk {
                Err(error) => stream::iter(VecDeque::from([Err(error)])),
                Ok(chunk) => stream::iter(chunk.into_iter().map(Ok).collect::<VecDeque<_>>()),
            })
            .boxed()
    }

    /// Removes the drafts of a remote that are older than this, in seconds since 1970. Returns their number.
    pub fn remove_drafts(&self, before: i64) -> std::result::Result<usize, Failure> {
        let mut removed = 0;
        for below in DIRECTORIES {
            let below = Path::from(below);
            let mut walk = self.walk(&below, None, true)?;
            loop {
                let chunk = walk.chunk()?;
                if chunk.is_empty() {
                    break;
                }
                let is_old = |meta: &&ObjectMeta| meta.last_modified.timestamp() < before;
                for draft in chunk.iter().filter(|meta| is_draft(&meta.location)).filter(is_old) {
                    match fs::remove_file(self.path(&draft.location)) {
                        Ok(()) => removed += 1,
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => return Err(generic(error).into()),
                    }
                }
            }
        }
        Ok(removed)
    }
}

impl Walk {
    /// The next objects; none at the end.
    fn chunk(&mut self) -> Result<Vec<ObjectMeta>> {
        let mut chunk = Vec::new();
        while chunk.len() < LISTED_AT_ONCE
            && let Some((level, _)) = self.levels.last_mut()
        {
            match level.next() {
                None => drop(self.levels.pop()),
                Some(Entry::Object(meta)) => {
                    if self.after.as_ref().is_none_or(|after| meta.location > *after) {
                        chunk.push(meta);
                    }
                }
                Some(Entry::Directory(key, identity)) => {
                    if self.levels.iter().any(|(_, above)| *above == identity) {
                        self.directory.leave_out(format!("{key}: it is a link to a directory above it"));
                        continue;
                    }
                    let entries = self.directory.entries(&key, self.shows_drafts)?;
                    // It may have gone with the file system.
                    if entries.is_empty() {
                        self.directory.check().map_err(generic)?;
                    }
                    self.levels.push((entries.into_iter(), identity));
                }
            }
        }
        Ok(chunk)
    }
}

impl std::fmt::Display for Directory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}", self.root.display())
    }
}

/// Runs work that waits for a disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|source| Error::JoinError { source })?
}

fn generic(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Generic { store: "directory", source: Box::new(source) }
}

fn identity(found: &Metadata) -> Identity {
    (found.dev(), found.ino())
}

/// Whether a file has a name that `object_store` gives to objects that it has not written whole.
fn is_draft(key: &Path) -> bool {
    let number = key.filename().and_then(|name| Some(name.split_once('#')?.1));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A file as an object, with the ETag that `object_store` gives to those that it writes.
fn meta(location: Path, found: &Metadata) -> ObjectMeta {
    let modified = found.modified().unwrap_or(std::time::UNIX_EPOCH);
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let e_tag = format!("\"{:x}-{:x}-{:x}\"", found.ino(), since.as_micros(), found.len());
    ObjectMeta {
        location,
        last_modified: modified.into(),
        size: found.len(),
        e_tag: Some(e_tag),
        version: None,
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (directory, location) = (self.clone(), location.clone());
        blocking(move || {
            let path = directory.path(&location);
            let failed = |error| directory.error(&location, error);
            let file = fs::File::open(&path).map_err(failed)?;
            let found = file.metadata().map_err(failed)?;
            if found.is_dir() {
                return Err(failed(io::Error::new(ErrorKind::NotFound, "it is a directory")));
            }
            let meta = meta(location.clone(), &found);
            options.check_preconditions(&meta)?;
            let range = options.range.map(|range| range.as_range(meta.size)).transpose().map_err(generic)?;
            let range = range.unwrap_or(0..meta.size);
            let payload = GetResultPayload::File(file, path);
            Ok(GetResult {
                payload,
                meta,
                range,
                attributes: Default::default(),
                extensions: Default::default(),
            })
        })
        .await
    }

    fn list(&self, below: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.walked(below, None)
    }

    fn list_with_offset(&self, below: Option<&Path>, after: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.walked(below, Some(after))
    }

    async fn list_with_delimiter(&self, below: Option<&Path>) -> Result<ListResult> {
        let (directory, below) = (self.clone(), below.cloned().unwrap_or_default());
        blocking(move || {
            let walk = directory.walk(&below, None, directory.shows_drafts()?)?;
            let mut listed = ListResult {
                common_prefixes: Vec::new(),
                objects: Vec::new(),
                extensions: Default::default(),
            };
            for entry in walk.levels.into_iter().flat_map(|(entries, _)| entries) {
                match entry {
                    Entry::Object(meta) => listed.objects.push(meta),
                    Entry::Directory(key, _) => listed.common_prefixes.push(key),
                }
            }
            Ok(listed)
        })
        .await
    }

    async fn put_opts(&self, to: &Path, bytes: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.writer().await?.put_opts(to, bytes, options).await
    }

    async fn put_multipart_opts(
        &self,
        to: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.writer().await?.put_multipart_opts(to, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let directory = self.clone();
        let delete = move |location: Result<Path>| {
            let directory = directory.clone();
            blocking(move || {
                let location = location?;
                fs::remove_file(directory.path(&location))
                    .map_err(|error| directory.error(&location, error))?;
                Ok(location)
            })
        };
        locations.map(delete).buffered(REMOVED_AT_ONCE).boxed()
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.writer().await?.copy_opts(from, to, options).await
    }
}
