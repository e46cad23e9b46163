//! The directories of a source as the collections of a mount.
//!
//! A mount shows `TENANT/COLLECTION/...`. Of `s3://bucket/models`, `models` is the tenant and each directory below it
//! a collection. A source with a container directly below it, or without directories, is one collection, whose tenant is
//! the directory above it; so a file has the same path in a mount of `s3://bucket/models` and of
//! `s3://bucket/models/llama`. Other files directly below the source are a collection with the name of the tenant.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::manifest::{Manifest, OwnerAndMode, SnapshotName};
use crate::format::snapshot::piece_map::Digest;
use crate::model::{
    CollectionName, Error, ErrorKind, OwnedCollectionName, Owner, Result, StoreId, check_label,
};
use crate::remote::client::url::server_of;
use crate::remote::index::build::{Index, build, elsewhere, name_of};
use crate::remote::index::file::SourceFile;
use crate::remote::index::names::{Named, named};
use crate::remote::place::remote::Remote;
use crate::remote::read::cache::Cache;
use crate::remote::read::cache::object_cache::Kind;
use crate::remote::read::failure_reports::Tell;
use crate::remote::read::files::{Files, Source as Reader};
use crate::remote::read::listings::{Answer, Listings};
use crate::remote::read::pieces::to_io;
use crate::remote::source::{NO_RANGES, Source, SourceObject};
use crate::store::{Describe, Elsewhere, Reads, Snapshot, Snapshots, Traffic};

/// Permission bits of the tenant.
const MODE: u32 = 0o755;
/// A listing may be outdated when headers are read, so it is made again this often.
const TRIES: usize = 3;
/// The file that makes a directory a store.
const STORE: &str = "tierfs.toml";
/// The names of tenants and collections where a URL has none.
const UNNAMED: &str = "source";
/// The suffixes of files that make a directory a model.
const CONTAINERS: [&str; 8] = [".safetensors", ".gguf", ".onnx", ".npy", ".npz", ".pt", ".pth", ".ckpt"];

/// How the directories of a source are shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// The source is this collection.
    One(OwnedCollectionName),
    /// Its directories are collections of this tenant. If there are files beside them, these are a collection of the same
    /// name.
    Many(String),
}

/// The collections of a source.
pub struct Listed {
    source: Arc<dyn Source>,
    reader: Arc<Reader>,
    describe: Box<Describe>,
    owner: OwnerAndMode,
    shape: Shape,
    /// Names of directories, by nothing.
    names: Listings<Vec<String>>,
    opened: Mutex<HashMap<OwnedCollectionName, Opened>>,
}

/// An index that is shown.
struct Opened {
    /// The name of the index of what was listed.
    index: Digest,
    snapshot: Snapshot,
}

impl Shape {
    /// The shape as a text.
    fn to_text(&self) -> String {
        match self {
            Shape::One(one) => {
                format!("one {} {}", keys::escape_whole(&one.tenant), keys::escape_whole(&one.name))
            }
            Shape::Many(tenant) => format!("many {}", keys::escape_whole(tenant)),
        }
    }

    /// The shape of a text that [`Listed`] has left. `None` if it is another text.
    pub fn parse(text: &str) -> Option<Shape> {
        match text.split(' ').collect::<Vec<_>>().as_slice() {
            [_, "one", tenant, name] => {
                let (tenant, name) = (keys::unescape_whole(tenant)?, keys::unescape_whole(name)?);
                Some(Shape::One(OwnedCollectionName::new(tenant, name)))
            }
            [_, "many", tenant] => keys::unescape_whole(tenant).map(Shape::Many),
            _ => None,
        }
    }
}

/// The id of a source. It names the directory of its cache.
pub fn id_of(source: &dyn Source) -> StoreId {
    // Another server has other bytes at the same URL.
    let text = format!("tierfs source {} {}", server_of(source.place()), source.place());
    let hash = blake3::hash(text.as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
    StoreId(u128::from_le_bytes(*first))
}

/// Reads the bytes of a source, through a cache if there is one.
pub fn reader(source: &dyn Source, cache: Option<Cache>, tell: Tell) -> Reader {
    Reader::new(Remote::of_source(source.client().clone(), id_of(source)), cache, tell)
}

/// The index of a source as one collection of the store `id`, for all who mount that.
pub(in crate::remote) fn index(
    source: &dyn Source,
    place: CollectionName<'_>,
    id: StoreId,
    describe: &Describe,
    reads: Reads,
) -> Result<Index> {
    build(source, place, id, &all_named(source)?, describe, reads)
}

/// The objects of a source as files, which are read when they are.
pub fn files(source: &dyn Source) -> Result<Vec<Elsewhere>> {
    let named = all_named(source)?;
    let files = SourceFile::all(source, &named);
    Ok(named.iter().zip(&files).map(|(named, file)| elsewhere(source.place(), named, file)).collect())
}

/// The objects of a source as one collection. `NotFound` if the source has no objects.
fn all_named(source: &dyn Source) -> Result<Vec<Named>> {
    let objects = source.list("")?;
    if objects.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, format!("{} has no objects", source.place())));
    }
    let (listed, left_out) = named("", objects);
    for (key, why) in &left_out {
        log::warn!("{}: {key:?} is left out: {why}", source.place());
    }
    Ok(listed)
}

/// The collection that all of a source is.
pub fn collection_of(source: &dyn Source) -> OwnedCollectionName {
    source.collection().unwrap_or_else(|| {
        let (above, last) = last_names(source.place());
        OwnedCollectionName::new(above, last)
    })
}

impl Listed {
    /// The collections of a source, whose bytes `reader` reads. `owner` has what is shown.
    pub fn new(
        source: Arc<dyn Source>,
        reader: Reader,
        shape: Shape,
        describe: Box<Describe>,
        owner: Owner,
    ) -> Listed {
        let owner = OwnerAndMode { uid: owner.uid, gid: owner.gid, mode: MODE };
        let (reader, names, opened) = (Arc::new(reader), Listings::default(), Mutex::default());
        Listed { source, reader, describe, owner, shape, names, opened }
    }

    /// The names of the collections of the tenant.
    fn directories(&self, tenant: &str) -> Result<Vec<String>> {
        let (source, tenant) = (self.source.clone(), tenant.to_owned());
        self.names.get("", move || {
            let level = source.level("")?;
            let mut names = level.directories;
            names.retain(|name| check_label(name).is_ok());
            if !level.objects.is_empty() && !names.contains(&tenant) {
                names.push(tenant);
            }
            Ok(Answer::Of(names))
        })
    }

    /// The objects of a collection, and the directory that they are below; `None` if there is no such collection.
    fn objects(&self, key: &OwnedCollectionName) -> Result<Option<(String, Vec<SourceObject>)>> {
        match &self.shape {
            Shape::One(one) if one == key => Ok(Some((String::new(), self.source.list("")?))),
            Shape::Many(tenant) if *tenant == key.tenant && check_label(&key.name).is_ok() => {
                let below = self.source.list(&key.name)?;
                if below.is_empty() && key.name == *tenant {
                    return Ok(Some((String::new(), self.source.level("")?.objects)));
                }
                Ok(Some((key.name.clone(), below)))
            }
            _ => Ok(None),
        }
    }

    fn snapshot(&self, key: &OwnedCollectionName) -> Result<Option<Snapshot>> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.snapshot_now(key) {
                Err(error) if error.kind() == ErrorKind::Gone && tries < TRIES => log::debug!("{error}"),
                found => return found,
            }
        }
    }

    fn snapshot_now(&self, key: &OwnedCollectionName) -> Result<Option<Snapshot>> {
        let listed = self.objects(key)?.filter(|(_, objects)| !objects.is_empty());
        let Some((below, objects)) = listed else {
            self.opened.lock().remove(key);
            return Ok(None);
        };
        let (listed, left_out) = named(&below, objects);
        // Another server may have the same URL, and the log has the id.
        let owner = format!("{:?} {}", self.owner, self.reader.remote().id());
        let name = name_of(self.source.place(), key.borrowed(), &owner, &listed);
        let mut number = 1;
        if let Some(opened) = self.opened.lock().get(key) {
            if opened.index == name {
                return Ok(Some(opened.snapshot.clone()));
            }
            number = opened.snapshot.manifest.number.saturating_add(1);
        }
        if let Some((first, why)) = left_out.first() {
            let text = format!("{} objects are not shown: {first:?}: {why}", left_out.len());
            self.reader.tell(&key.to_string(), &text);
        }
        let snapshot = self.of_index(self.index(key, &name, &listed)?, &name, number)?;
        self.reader.shows(&snapshot.manifest);
        self.opened.lock().insert(key.clone(), Opened { index: name, snapshot: snapshot.clone() });
        Ok(Some(snapshot))
    }

    /// The snapshot that an index is, which has this name.
    fn of_index(&self, index: Index, name: &Digest, number: u64) -> Result<Snapshot> {
        let Index { mut manifest, log, .. } = index;
        manifest.number = number;
        let manifest = Arc::new(manifest);
        let files = Arc::new(Files::new(&self.reader, &manifest)?.with_log(log));
        // The digest covers the files and the way in which they are described, so all such logs give them the same numbers.
        let name = SnapshotName { number, digest: *name, more: 0 };
        Ok(Snapshot { manifest, variant: None, files, name })
    }

    /// The index of this name, if the cache has it.
    fn kept(&self, key: &OwnedCollectionName, name: &Digest) -> Option<Index> {
        let kept = self.reader.cache()?.kept_whole(Kind::Index, name)?;
        Index::parse(&kept).inspect_err(|error| log::warn!("{key}: {error}")).ok()
    }

    /// The index of a listing: from the cache, if that has it.
    fn index(&self, key: &OwnedCollectionName, name: &Digest, listed: &[Named]) -> Result<Index> {
        if let Some(kept) = self.kept(key, name) {
            return Ok(kept);
        }
        let id = self.reader.remote().id();
        let index = build(&*self.source, key.borrowed(), id, listed, &*self.describe, Reads::Headers)?;
        if let Some(cache) = self.reader.cache()
            && let Err(error) = cache.keep(Kind::Index, name, &index.to_bytes(name)?)
        {
            self.reader.disk_failed(&error);
        }
        Ok(index)
    }

    /// The snapshot of this name, which was shown before: from the cache, or else if the same is listed now.
    fn snapshot_again(&self, key: &OwnedCollectionName, name: &SnapshotName) -> Result<Option<Snapshot>> {
        let kept = self.kept(key, &name.digest);
        let kept = kept.map(|index| self.of_index(index, &name.digest, name.number)).transpose()?;
        let again = match kept {
            Some(kept) => kept,
            None => {
                let found = self.snapshot(key)?.filter(|found| found.name.digest == name.digest);
                let Some(mut found) = found else { return Ok(None) };
                found.name.number = name.number;
                found.manifest = Arc::new(Manifest { number: name.number, ..(*found.manifest).clone() });
                found
            }
        };
        let mut opened = self.opened.lock();
        // The next one counts on from the newest.
        if opened.get(key).is_none_or(|before| before.snapshot.name.number < name.number) {
            opened.insert(key.clone(), Opened { index: name.digest, snapshot: again.clone() });
        }
        Ok(Some(again))
    }
}

/// How the directories of a source are shown. `NotFound` if it has no objects.
pub fn shape_of(source: &dyn Source) -> Result<Shape> {
    let place = source.place();
    if let Some(one) = source.collection() {
        // Mistakes in the URL and missing credentials are named now.
        if source.list("")?.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, format!("{place} has no files")));
        }
        return Ok(Shape::One(one));
    }
    let unlisted = |error: Error| {
        let text = format!("{place} is not a remote of tierfs, and cannot be listed: {error}");
        Error::new(error.kind(), text)
    };
    let level = source.level("").map_err(unlisted)?;
    if level.objects.iter().any(|object| object.key == STORE) {
        let text = format!("{place} is the directory of a tierfs store; name it by its path");
        return Err(Error::invalid(text));
    }
    if level.directories.is_empty() && level.objects.is_empty() {
        let text = format!(
            "{place} is not a remote of tierfs, and has no objects; tierfs push with --create makes a remote"
        );
        return Err(Error::new(ErrorKind::NotFound, text));
    }
    // A site that sends whole files for parts is named now, too. Other errors are those of the file.
    let is_site = place.starts_with("http://") || place.starts_with("https://");
    if let Some(file) = level.objects.iter().find(|file| is_site && file.bytes > 1)
        && let Err(error) = source.client().get_range(&file.at, 0..1)
        && error.to_string().contains(NO_RANGES)
    {
        return Err(error);
    }
    let is_container = |object: &SourceObject| CONTAINERS.iter().any(|suffix| object.key.ends_with(suffix));
    if level.directories.is_empty() || level.objects.iter().any(is_container) {
        return Ok(Shape::One(collection_of(source)));
    }
    Ok(Shape::Many(last_names(place).1))
}

/// The last two names of a URL, outermost first.
fn last_names(url: &str) -> (String, String) {
    let path = url.split_once("://").map_or(url, |(_, path)| path);
    let mut names = path.rsplit('/').filter(|name| check_label(name).is_ok()).map(str::to_owned);
    let last = names.next().unwrap_or_else(|| UNNAMED.to_owned());
    (names.next().unwrap_or_else(|| UNNAMED.to_owned()), last)
}

impl Snapshots for Listed {
    fn place(&self) -> String {
        self.source.place().to_owned()
    }

    fn id(&self) -> StoreId {
        self.reader.remote().id()
    }

    fn tenants(&self) -> io::Result<Vec<String>> {
        Ok(match &self.shape {
            Shape::One(one) => vec![one.tenant.clone()],
            Shape::Many(tenant) => vec![tenant.clone()],
        })
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        match &self.shape {
            Shape::One(one) if one.tenant == tenant => Ok(vec![one.name.clone()]),
            Shape::Many(own) if own == tenant => self.directories(tenant).map_err(to_io),
            _ => Ok(Vec::new()),
        }
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        self.snapshot(&OwnedCollectionName::new(tenant, collection)).map_err(to_io)
    }

    fn again(&self, tenant: &str, collection: &str, name: &SnapshotName) -> io::Result<Option<Snapshot>> {
        self.snapshot_again(&OwnedCollectionName::new(tenant, collection), name).map_err(to_io)
    }

    fn said(&self) -> String {
        // The id depends on the server, which the URL may not name.
        format!("{} {}", self.id(), self.shape.to_text())
    }

    fn tenant_owner(&self, _tenant: &str) -> io::Result<Option<OwnerAndMode>> {
        Ok(Some(self.owner))
    }

    fn list_again(&self) {
        self.names.make_old();
    }

    fn traffic(&self) -> Traffic {
        self.reader.traffic()
    }

    fn drop_buffers(&self) {
        self.reader.drop_buffers();
    }

    fn save_cache(&self) {
        if let Some(cache) = self.reader.cache() {
            cache.save();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::last_names;

    #[test]
    fn a_file_has_the_same_path_below_a_bucket_and_below_a_model() {
        let names = |url| last_names(url);
        assert_eq!(names("s3://bucket/models").1, "models");
        assert_eq!(names("s3://bucket/models/llama"), ("models".to_owned(), "llama".to_owned()));
        assert_eq!(names("s3://bucket"), ("source".to_owned(), "bucket".to_owned()));
        assert_eq!(names("file:///"), ("source".to_owned(), "source".to_owned()));
    }
}
