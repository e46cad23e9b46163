//! Whole imports: finds the files that a request names, and imports one after the other.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::ingest::inside::{StoreFiles, identity};
use crate::ingest::manifest::Manifest;
use crate::ingest::walk::{Found, Mounts, files, shards};
use crate::ingest::{Options, Origin, Parents, Report, Request, Target, import_file, import_shards, room};
use crate::model::{EntryId, Error, ErrorKind, Progress, Result};
use crate::store::Use;
use crate::store::disk::files::open_source;
use crate::store::{Collection, Store};

/// Observes an import.
pub trait Watch: Progress {
    /// The import of a file begins.
    fn began(&self, _path: &str) {}
    /// A file is imported and durable.
    fn took(&self, _path: &str, _bytes: u64) -> Result<()> {
        Ok(())
    }
    /// A file could not be imported.
    fn failed(&self, _source: &str, _error: &Error) {}
    /// Some tensors of a file could not be evicted as requested.
    fn kept(&self, _path: &str, _why: &str) {}
}

/// Evicts an imported file. Returns why some of it was not evicted, if so.
pub type Evict<'a> = &'a dyn Fn(&Arc<Collection>, &Target) -> Result<Option<String>>;

/// The files of a request. Nothing is changed yet.
pub struct Plan {
    request: Request,
    options: Options,
    found: Vec<Found>,
    manifest: Option<Manifest>,
    /// For an import in place, the files of stores, which cannot be sources.
    stores: Option<StoreFiles>,
}

/// The result of an import.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Files.
    pub files: u64,
    /// Tensors that got names.
    pub tensors: u64,
    /// Tensors that have a lineage parent.
    pub children: u64,
    /// Bytes of the sources.
    pub bytes: u64,
    /// Bytes of the payloads.
    pub stored: u64,
    /// Sources that could not be imported, and why.
    pub failed: Vec<(String, String)>,
    /// Files with tensors that could not be evicted as requested, and why.
    pub kept: Vec<(String, String)>,
    /// Nodes of the collection that changed or were removed.
    pub changed: Vec<EntryId>,
}

impl Plan {
    /// Finds the files of a request. Rejects sources on a tierfs mount and, for an import in place,
    /// files of a store.
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

    /// Total bytes of the sources.
    pub fn bytes(&self) -> u64 {
        self.found.iter().map(|found| found.bytes).sum()
    }

    /// Source, target path and size of each file, in the order of import.
    pub fn sources(&self) -> impl Iterator<Item = (String, String, u64)> + '_ {
        let shown = |found: &Found| (found.source.display().to_string(), found.target.path(), found.bytes);
        self.found.iter().map(shown).filter(|_| self.request.shard_of.is_none())
    }

    /// Checks the quotas of the tenant and the collection for the whole import, before it begins.
    /// Fails with `Quota`. The stored bytes of files that go to a tier are checked file by file,
    /// those of shards before the first.
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
                // Many files may share the missing directories.
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

    /// Runs the import and adds to `sum`. An error in one file is noted there, and the others go on.
    /// Fails with `Interrupted` on cancellation. `evict` is called for each imported file.
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
        // Makes the imported files durable.
        let marked = match collection.check_writable() {
            Ok(()) => collection.sync(),
            // Each rejected file has reported this.
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
                    // The whole store accepts no more.
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
        // Mounts may have changed since the files were found.
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

    /// Notes the nodes that an import to a target changes: the directories above it, and the replaced
    /// file.
    fn note_changed(&mut self, collection: &Collection, target: &Target) {
        let state = collection.state();
        let (directories, replaced) = room::found(&state, target);
        self.changed.push(crate::store::ROOT);
        self.changed.extend(directories);
        self.changed.extend(replaced);
        let file = replaced.and_then(|node| state.node(node)).and_then(|node| node.file());
        self.changed.extend(file.into_iter().flat_map(|file| state.parts(file)).map(|part| part.entry.id));
    }

    /// The summary that `tierfs import --json` prints.
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

    /// Parses the output of [`to_json`](Self::to_json), which has no changed nodes.
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

/// Finds the lineage parents.
fn parents(store: &Store, text: &str) -> Result<Parents> {
    let mut parts = text.splitn(3, '/');
    let (tenant, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let named = parts.next().filter(|path| !path.is_empty());
    let collection = store.collection(tenant, name).map_err(|error| error.at(format!("--parent {text}")))?;
    Parents::new(&collection, named)
}

/// The target of a tensor's name in the collection.
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
        mode: metadata.mode() & crate::model::PERMISSIONS,
        owner,
        atime: nanoseconds(metadata.atime(), metadata.atime_nsec()),
        mtime: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
        sha256,
    }
}
