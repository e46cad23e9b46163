//! An import as a whole: what a request names is found, and taken in one file after the other.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::ingest::inside::{StoreFiles, identity};
use crate::ingest::manifest::Manifest;
use crate::ingest::walk::{Found, Mounts, files, shards};
use crate::ingest::{
    Options, Origin, Parents, Progress, Report, Request, Target, import_file, import_shards, room,
};
use crate::model::{EntryId, Error, ErrorKind, Result};
use crate::store::Use;
use crate::store::disk::files::open_source;
use crate::store::{Collection, Store};

/// Who is told how an import goes.
pub trait Watch: Progress {
    /// A file is taken in now.
    fn began(&self, _path: &str) {}
    /// A file is there, and durable.
    fn took(&self, _path: &str, _bytes: u64) -> Result<()> {
        Ok(())
    }
    /// A file could not be taken in.
    fn failed(&self, _source: &str, _error: &Error) {}
    /// Tensors of a file keep the bytes that were to be evicted.
    fn kept(&self, _path: &str, _why: &str) {}
}

/// Evicts what came in; why some of it keeps its bytes, if some does.
pub type Evict<'a> = &'a dyn Fn(&Arc<Collection>, &Target) -> Result<Option<String>>;

/// What a request asks for, found. Nothing is changed yet.
pub struct Plan {
    request: Request,
    options: Options,
    found: Vec<Found>,
    manifest: Option<Manifest>,
    /// Of an import in place, the files that cannot be sources.
    stores: Option<StoreFiles>,
}

/// What came in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Files.
    pub files: u64,
    /// Tensors that have names now.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Bytes of the sources.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// Sources that could not be taken in, and why.
    pub failed: Vec<(String, String)>,
    /// Files of which tensors keep the bytes that were to be evicted, and why.
    pub kept: Vec<(String, String)>,
    /// Nodes of the collection that changed or went.
    pub changed: Vec<EntryId>,
}

impl Plan {
    /// Finds what a request asks for. Sources that lie on a tierfs are refused, and of an
    /// import in place those that are files of a store.
    pub fn of(request: Request, store: &Path) -> Result<Plan> {
        let options = request.options()?;
        let mounts = Mounts::read()?;
        let found = match request.shard_of {
            Some(_) => shards(&request.paths, &mounts)?,
            None => files(&request.paths, &mounts)?,
        };
        let stores = if request.in_place { Some(StoreFiles::of(store, &mounts)?) } else { None };
        if let Some(stores) = &stores {
            found.iter().try_for_each(|found| stores.refuse(&found.source, &found.real, found.identity))?;
        }
        if let Some(path) = &request.manifest {
            mounts.refuse_ours("manifest", path)?;
        }
        let manifest = request.manifest.as_deref().map(Manifest::read).transpose()?;
        Ok(Plan { request, options, found, manifest, stores })
    }

    /// Its request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The path of the collection.
    pub fn path(&self) -> String {
        format!("{}/{}", self.request.collection.0, self.request.collection.1)
    }

    /// Bytes of all sources.
    pub fn bytes(&self) -> u64 {
        self.found.iter().map(|found| found.bytes).sum()
    }

    /// Sources, their places and bytes, in the order in which they are taken in.
    pub fn sources(&self) -> impl Iterator<Item = (String, String, u64)> + '_ {
        let shown = |found: &Found| (found.source.display().to_string(), found.target.path(), found.bytes);
        self.found.iter().map(shown).filter(|_| self.request.shard_of.is_none())
    }

    /// `Quota` where all of it would be too much for the tenant or the collection, before
    /// anything is done. What goes to a tier is asked file by file, shards before the first.
    pub fn check_quota(&self, store: &Store) -> Result<()> {
        let (tenant, name) = (&self.request.collection.0, &self.request.collection.1);
        let whole = |found: &Found| Use {
            logical: found.bytes,
            stored: if self.options.tier.is_some() { 0 } else { found.bytes },
            files: 1,
        };
        let is_there = store.tenants()?.contains(tenant) && store.collections(tenant)?.contains(name);
        let collection = if is_there { Some(store.collection(tenant, name)?) } else { None };
        let mut more = Use::default();
        for found in self.found.iter().filter(|_| self.request.shard_of.is_none()) {
            let file = whole(found);
            more = more.and(match &collection {
                // The directories that are missing may be the same for many.
                Some(collection) => {
                    let more = room::more_than_there(&collection.state(), &found.target, file);
                    Use { files: more.files.min(1), ..more }
                }
                None => file,
            });
        }
        match collection {
            Some(collection) => collection.meter().check(more),
            None => store.check_tenant_quota(tenant, more),
        }
    }

    /// Takes it in, and adds to `sum`. What fails for a file is in it, and the others go on;
    /// `Interrupted` where it was told to stop. `evict` is called for each file that came in.
    pub fn run(
        &self,
        store: &Store,
        owner: (u32, u32),
        watch: &dyn Watch,
        evict: Option<Evict<'_>>,
        sum: &mut Sum,
    ) -> Result<()> {
        let parents = self.request.parent.as_deref().map(|parent| parents(store, parent)).transpose()?;
        let options = Options { parents, ..self.options.clone() };
        let (tenant, name) = (&self.request.collection.0, &self.request.collection.1);
        let collection = store.collection_made(tenant, name, owner)?;
        let ran = self.all(store, &collection, owner, (&options, watch), (evict, &mut *sum));
        // What came in is not lost with the end of the log.
        let marked = match collection.check_writable() {
            Ok(()) => collection.sync(),
            // Each file that was refused says so.
            Err(_) => Ok(()),
        };
        ran.and(marked)
    }

    fn all(
        &self,
        store: &Store,
        collection: &Arc<Collection>,
        owner: (u32, u32),
        (options, watch): (&Options, &dyn Watch),
        (evict, sum): (Option<Evict<'_>>, &mut Sum),
    ) -> Result<()> {
        if let Some(tensor) = &self.request.shard_of {
            let target = target_of(tensor)?;
            sum.note_changed(collection, &target);
            sum.add(self.shards(collection, &target, owner, (options, watch))?);
            return Ok(());
        }
        for found in &self.found {
            let path = found.target.path();
            watch.began(&path);
            sum.note_changed(collection, &found.target);
            match self.one(store, collection, found, owner, (options, watch)) {
                Ok(report) => {
                    sum.add(report);
                    if let Some(why) =
                        evict.map(|evict| evict(collection, &found.target)).transpose()?.flatten()
                    {
                        watch.kept(&path, &why);
                        sum.kept.push((path.clone(), why));
                    }
                    sum.note_changed(collection, &found.target);
                    watch.took(&path, report.bytes)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    let source = found.source.display().to_string();
                    watch.failed(&source, &error);
                    sum.failed.push((source, error.to_string()));
                    // The store itself takes no more.
                    if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn one(
        &self,
        store: &Store,
        collection: &Arc<Collection>,
        found: &Found,
        owner: (u32, u32),
        (options, watch): (&Options, &dyn Watch),
    ) -> Result<Report> {
        // What lies where may have changed since it was found.
        Mounts::read()?.refuse_ours("source", &found.source)?;
        let sha256 = self.manifest.as_ref().map(|manifest| manifest.find(&found.target)).transpose()?;
        let failed = |error| Error::io("opening it", error);
        let source = open_source(&found.source).map_err(failed)?;
        let metadata = fs::metadata(&found.source).map_err(failed)?;
        let in_place = match &self.stores {
            Some(stores) => {
                let real = fs::canonicalize(&found.source).map_err(failed)?;
                stores.refuse(&found.source, &real, identity(&metadata))?;
                Some(real.into_os_string().into_vec())
            }
            None => None,
        };
        let options = Options { in_place, ..options.clone() };
        let origin = origin(&metadata, owner, sha256);
        import_file(collection, store.settings(), &found.target, &source, &origin, &options, watch)
    }

    fn shards(
        &self,
        collection: &Arc<Collection>,
        target: &Target,
        owner: (u32, u32),
        (options, watch): (&Options, &dyn Watch),
    ) -> Result<Report> {
        let mut sources = Vec::new();
        for path in &self.request.paths {
            sources.push(open_source(path).map_err(|error| Error::io(path.display(), error))?);
        }
        let first = self.request.paths.first().ok_or_else(|| Error::invalid("no shards"))?;
        let metadata = fs::metadata(first).map_err(|error| Error::io(first.display(), error))?;
        let origin = origin(&metadata, owner, None);
        import_shards(collection, target, &sources, &origin, options, watch)
    }
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.files += 1;
        self.tensors += report.tensors;
        self.children += report.children;
        self.bytes += report.bytes;
        self.stored += report.stored;
    }

    /// What a file that comes to a place changes: the directories above, and what goes for it.
    fn note_changed(&mut self, collection: &Collection, target: &Target) {
        let state = collection.state();
        let (directories, replaced) = room::found(&state, target);
        self.changed.push(crate::store::ROOT);
        self.changed.extend(directories);
        self.changed.extend(replaced);
        let file = replaced.and_then(|node| state.node(node)).and_then(|node| node.file());
        self.changed.extend(file.into_iter().flat_map(|file| state.parts(file)).map(|part| part.entry.id));
    }

    /// As `tierfs import --json` prints it.
    pub fn to_json(&self, collection: &str) -> Value {
        let failed = self.failed.iter().map(|(path, error)| json!({ "path": path, "error": error }));
        json!({
            "collection": collection,
            "files": self.files,
            "tensors": self.tensors,
            "children": self.children,
            "bytes": self.bytes,
            "bytes_stored": self.stored,
            "failed": failed.collect::<Vec<_>>(),
        })
    }

    /// The sum that [`to_json`](Self::to_json) has written; without what changed.
    pub fn from_json(text: &str) -> Option<Sum> {
        let value: Value = serde_json::from_str(text).ok()?;
        let number = |key: &str| value.get(key)?.as_u64();
        let mut failed = Vec::new();
        for entry in value.get("failed")?.as_array()? {
            let text = |key: &str| entry.get(key)?.as_str().map(str::to_owned);
            failed.push((text("path")?, text("error")?));
        }
        Some(Sum {
            files: number("files")?,
            tensors: number("tensors")?,
            children: number("children")?,
            kept: Vec::new(),
            bytes: number("bytes")?,
            stored: number("bytes_stored")?,
            failed,
            changed: Vec::new(),
        })
    }
}

/// Where the lineage parents are.
fn parents(store: &Store, text: &str) -> Result<Parents> {
    let mut parts = text.splitn(3, '/');
    let (tenant, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let named = parts.next().filter(|path| !path.is_empty());
    let collection = store.collection(tenant, name).map_err(|error| error.at(format!("--parent {text}")))?;
    Parents::new(&collection, named)
}

/// The place of a tensor's name below the collection.
fn target_of(tensor: &str) -> Result<Target> {
    let mut parts: Vec<Vec<u8>> = tensor.split('/').map(|part| part.as_bytes().to_vec()).collect();
    if parts.iter().any(|part| matches!(part.as_slice(), b"" | b"." | b"..")) {
        return Err(Error::invalid(format!("{tensor:?} is no path below a collection")));
    }
    let name = parts.pop().unwrap_or_default();
    Ok(Target { directories: parts, name })
}

fn origin(metadata: &fs::Metadata, owner: (u32, u32), sha256: Option<[u8; 32]>) -> Origin {
    let nanoseconds = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
    Origin {
        mode: metadata.mode() & crate::ingest::PERMISSIONS,
        owner,
        atime: nanoseconds(metadata.atime(), metadata.atime_nsec()),
        mtime: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        sha256,
    }
}
