//! Whole imports: finds the files that a request names, and imports one after the other.

use std::collections::HashMap;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use crate::format::files::shard_index;
use crate::format::log::catalog::OutsidePlace;
use crate::ingest::bytes::options::{Options, Report};
use crate::ingest::bytes::parents::Parents;
use crate::ingest::bytes::room;
use crate::ingest::find::provenance::place_of;
use crate::ingest::find::shard_order::shards_in_order;
use crate::ingest::find::store_paths::{StoreFiles, refuse_own};
use crate::ingest::find::target::Target;
use crate::ingest::find::walk::{Found, Mounts, Walked, files, files_at, path_of, shards};
use crate::ingest::job::import_file::import_file;
use crate::ingest::job::import_shards::{Shard, import_joined};
use crate::ingest::job::manifest::Manifest;
use crate::ingest::job::missing_shards::note_of_missing;
use crate::ingest::job::origins::{now, origin, origin_of};
use crate::ingest::job::request::Request;
use crate::ingest::job::sum::{Action, Listed, Sum};
use crate::ingest::job::versions::KeptVersions;
use crate::ingest::publish::compare::{Compare, Comparison, node_at};
use crate::ingest::publish::links::{is_there, link, may_share, set_time, symlink};
use crate::ingest::publish::mend::{Damage, Mended};
use crate::ingest::publish::removal::{Removal, removals, remove};
use crate::ingest::publish::tags::add_tags;
use crate::model::{Cause, EntryId, Error, ErrorKind, OwnedCollectionName, Owner, Progress, Result};
use crate::store::Use;
use crate::store::disk::Identity;
use crate::store::disk::files::FileDisk;
use crate::store::{Collection, Event, EventKind, ROOT, Store, Touched, show_plain_names};

pub trait Watch: Progress {
    /// The import of a file begins.
    fn began(&self, _path: &str) {}
    /// An action is done and durable or, in a dry run, would be done.
    fn did(&self, _listed: &Listed) -> Result<()> {
        Ok(())
    }
    /// A file could not be imported.
    fn failed(&self, _source: &str, _error: &Error) {}
    /// A source was left out.
    fn skipped(&self, _source: &str, _why: &str) {}
    /// A remark about a file.
    fn noted(&self, _path: &str, _note: &str) {}
    /// Records the bytes that programs have written to open files of a collection.
    fn flush(&self, _collection: &Arc<Collection>) -> Result<()> {
        Ok(())
    }
    /// Frees the space of what was removed. Whether there was any.
    fn make_room(&self, store: &Store) -> bool {
        store.make_room()
    }
}

/// Finishes an imported file, for example by packing or evicting it. Returns why some of its tensors
/// were left, if any.
pub type Finish<'a> = &'a dyn Fn(&Arc<Collection>, EntryId) -> Result<Option<String>>;

/// The files of a request. Finding them changes nothing.
pub struct Plan {
    request: Request,
    options: Options,
    walked: Walked,
    manifest: Option<Manifest>,
    /// For an import in place, the files of stores, which cannot be sources.
    stores: Option<StoreFiles>,
}

impl Plan {
    /// Finds the files of a request, also of one that names a URL. Rejects sources on a tierfs mount and, for an import
    /// in place, files of a store.
    pub fn of(mut request: Request, store: &Path) -> Result<Plan> {
        if request.in_place {
            // Its files are those of this machine, which have paths.
            let paths = request.paths.iter().map(|path| path_of(path).unwrap_or(path).to_owned());
            request.paths = paths.collect();
        }
        let options = request.options()?;
        let mounts = Mounts::read()?;
        let mut walked = match (request.url(), &request.shard_of) {
            (Some(url), _) => files_at(url, &mounts, request.delete)?,
            (_, Some(_)) => shards(&request.paths, &mounts)?,
            (_, None) => files(&request.paths, &request.revisions(), &mounts)?,
        };
        if request.shard_of.is_none() {
            // Models say which tensors their data files have.
            walked.found.sort_by_key(|found| !found.target.name.ends_with(b".onnx"));
        }
        if request.delete && walked.roots.is_empty() {
            return Err(Error::invalid(
                "--delete needs a directory as source; files that it no longer has are removed from the collection",
            ));
        }
        // A dry run creates no store.
        let has_store = !request.dry_run || Store::exists(&FileDisk::new(store));
        let stores = if request.in_place && has_store { Some(StoreFiles::of(store, &mounts)?) } else { None };
        if let Some(stores) = &stores {
            let mut found = walked.found.iter();
            found.try_for_each(|found| stores.refuse(&found.source, &found.real, found.identity))?;
        } else if let Ok(store) = fs::canonicalize(store) {
            // Its files change while it imports them.
            let mut found = walked.found.iter();
            found.try_for_each(|found| refuse_own(&found.source, &found.real, &store))?;
        }
        if let Some(path) = &request.manifest {
            mounts.refuse_ours("manifest", path)?;
        }
        let manifest = request.manifest.as_deref().map(Manifest::read).transpose()?;
        Ok(Plan { request, options, walked, manifest, stores })
    }

    pub fn request(&self) -> &Request {
        &self.request
    }

    /// Whether files that stay at a URL are read once, so that their checksums are known.
    fn reads_all(&self) -> bool {
        self.request.checksum || self.manifest.is_some()
    }

    /// The path of the collection.
    pub fn path(&self) -> String {
        self.request.collection.to_string()
    }

    /// Total bytes of the sources.
    pub fn bytes(&self) -> u64 {
        self.walked.found.iter().map(|found| found.bytes).sum()
    }

    /// Checks the quotas of the tenant and the collection for the whole import, before it begins.
    /// Fails with `Quota`. The stored bytes of files that go to a tier are checked file by file,
    /// those of shards before the first.
    pub fn check_quota(&self, store: &Store) -> Result<()> {
        let whole = |found: &Found| Use {
            logical: found.bytes,
            stored: if self.options.tier.is_some() { 0 } else { found.bytes },
            files: 1,
        };
        let collection = self.existing(store)?;
        let compare = Compare { checksum: false, ..self.compare(store, &self.options, &|| false) };
        let mut more = Use::default();
        for found in self.walked.found.iter().filter(|_| self.request.shard_of.is_none()) {
            let file = whole(found);
            more = more.and(match &collection {
                Some(collection) => {
                    if matches!(compare.compare(collection, found, None)?, Comparison::Unchanged { .. }) {
                        continue;
                    }
                    // Many files may share the missing directories.
                    let more = room::more_than_there(&collection.state(), &found.target, file);
                    Use { files: more.files.min(1), ..more }
                }
                None => file,
            });
        }
        match collection {
            Some(collection) => collection.meter().check(more),
            None => store.check_tenant_quota(&self.request.collection.tenant, more),
        }
    }

    /// The collection, if it exists.
    fn existing(&self, store: &Store) -> Result<Option<Arc<Collection>>> {
        let OwnedCollectionName { tenant, name } = &self.request.collection;
        if self.is_there(store)? { store.collection(tenant, name).map(Some) } else { Ok(None) }
    }

    fn is_there(&self, store: &Store) -> Result<bool> {
        let OwnedCollectionName { tenant, name } = &self.request.collection;
        Ok(store.tenants()?.contains(tenant) && store.collections(tenant)?.contains(name))
    }

    fn compare<'a>(
        &self,
        store: &'a Store,
        options: &'a Options,
        is_cancelled: &'a dyn Fn() -> bool,
    ) -> Compare<'a> {
        Compare {
            settings: store.settings(),
            options,
            checksum: self.request.checksum,
            evicts: self.request.reconstruct.is_some(),
            in_place: self.request.in_place,
            is_cancelled,
        }
    }

    /// Runs the import and adds to `sum`; a dry run adds the actions that the import would take. An
    /// error in one file is noted there, and the others go on. Fails with `Interrupted` on cancellation.
    /// `finish` is called for each imported file.
    pub fn run(
        &self,
        store: &Store,
        owner: Owner,
        watch: &dyn Watch,
        finish: Option<Finish<'_>>,
        sum: &mut Sum,
    ) -> Result<()> {
        let parents = self.request.parent.as_deref().map(|parent| parents(store, parent)).transpose()?;
        let options = Options { parents, ..self.options.clone() };
        if self.request.dry_run {
            return self.preview_in(self.existing(store)?.as_ref(), Some((store, &options)), watch, sum);
        }
        self.tell_walked(watch, sum);
        let OwnedCollectionName { tenant, name } = &self.request.collection;
        // One that a killed import has begun to make has no names either.
        let is_made = !self.is_there(store)? || store.collection(tenant, name).is_err();
        let collection = store.collection_made(tenant, name, owner)?;
        if is_made && collection.check_writable().is_ok() {
            collection.record(Touched::default(), |batch, _| {
                batch.entry(show_plain_names(ROOT));
                Ok(())
            })?;
        }
        let kept = KeptVersions { store, collection: &collection, request: &self.request, watch };
        kept.before(sum)?;
        let job =
            ImportJob { plan: self, store, collection: &collection, owner, options: &options, watch, finish };
        let ran = job.all(sum).and_then(|()| kept.after(sum));
        if sum.files + sum.linked + sum.mended + sum.removed > 0 || ran.is_err() {
            let (path, cause) = (collection.path(), format!("import, user {}", owner.uid));
            let text = match &ran {
                Ok(()) => sum.text(&self.request),
                Err(error) => format!("{}; {error}", sum.text(&self.request)),
            };
            let event = Event {
                kind: EventKind::Import,
                path: &path,
                cause: &cause,
                text: &text,
                user: Some(owner.uid),
                step: None,
            };
            collection.event_log().note(&event);
        }
        collection.save_damage();
        // Makes the imported files durable.
        let marked = match collection.check_writable() {
            Ok(()) => collection.sync(),
            // Each rejected file has reported this.
            Err(_) => Ok(()),
        };
        ran.and(marked)
    }

    /// The actions of the import in a store that does not exist.
    pub fn preview(&self, watch: &dyn Watch, sum: &mut Sum) -> Result<()> {
        self.preview_in(None, None, watch, sum)
    }

    fn preview_in(
        &self,
        collection: Option<&Arc<Collection>>,
        store: Option<(&Store, &Options)>,
        watch: &dyn Watch,
        sum: &mut Sum,
    ) -> Result<()> {
        self.tell_walked(watch, sum);
        let would = |sum: &mut Sum, action, path: String, bytes| {
            let listed = Listed { action, path, bytes };
            watch.did(&listed)?;
            sum.list(listed);
            Ok::<_, Error>(())
        };
        let is_cancelled = || watch.is_cancelled();
        for found in &self.walked.found {
            let compared = match (collection, store) {
                (Some(collection), Some((store, options))) => {
                    self.compare_one(&self.compare(store, options, &is_cancelled), collection, found)
                }
                _ => Ok(Comparison::New),
            };
            let compared = compared.and_then(|compared| {
                let is_damaged = self.damage(&compared, collection)?.is_some_and(|damage| !damage.is_none());
                Ok((compared, is_damaged))
            });
            let action = match compared {
                Ok((Comparison::Unchanged { .. }, true)) => {
                    would(sum, Action::Mend, found.target.path(), found.bytes)?;
                    watch.advance(found.bytes);
                    continue;
                }
                Ok((Comparison::Unchanged { .. }, false)) => {
                    sum.unchanged += 1;
                    watch.advance(found.bytes);
                    continue;
                }
                Ok((Comparison::Changed { is_newer } | Comparison::Unreadable { is_newer, .. }, _)) => {
                    if is_newer && self.note_newer(found, watch, sum) {
                        continue;
                    }
                    Action::Replace
                }
                Ok((Comparison::New, _)) => Action::Import,
                Err(error) => {
                    let place = store.map_or(String::new(), |(store, _)| store.place());
                    self.note_failed(found, error, &place, watch, sum)?;
                    continue;
                }
            };
            sum.files += 1;
            sum.bytes += found.bytes;
            would(sum, action, found.target.path(), found.bytes)?;
            watch.advance(found.bytes);
        }
        let is_missing = |link: &&_| collection.is_none_or(|collection| !is_there(collection, link));
        for link in self.walked.links.iter().filter(is_missing) {
            would(sum, Action::Link, link.target.path(), 0)?;
        }
        if let Some(collection) = collection {
            for removal in self.removals(collection, watch, sum) {
                sum.removed += 1;
                would(sum, Action::Remove, removal.path, removal.bytes)?;
            }
        }
        Ok(())
    }

    /// Reports the entries below directories that are not imported.
    fn tell_walked(&self, watch: &dyn Watch, sum: &mut Sum) {
        for (path, error) in &self.walked.failed {
            let source = path.display().to_string();
            watch.failed(&source, error);
            sum.failed.push((source, error.to_string()));
        }
        for (path, why) in &self.walked.skipped {
            let source = path.display().to_string();
            watch.skipped(&source, why);
            sum.skipped.push((source, why.clone()));
        }
    }

    /// The damage of a file that is otherwise as the import would store it. It is looked for only where the import
    /// compares bytes, or reads have found some.
    fn damage(&self, compared: &Comparison, collection: Option<&Arc<Collection>>) -> Result<Option<Damage>> {
        match (compared, collection) {
            (Comparison::Unchanged { node, .. }, Some(collection))
                if self.request.checksum || collection.is_suspect(*node) =>
            {
                Damage::of(collection, *node).map(Some)
            }
            (Comparison::Unreadable { node, .. }, Some(collection)) => {
                Damage::of(collection, *node).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn compare_one(
        &self,
        compare: &Compare<'_>,
        collection: &Arc<Collection>,
        found: &Found,
    ) -> Result<Comparison> {
        let sha256 = self.manifest.as_ref().map(|manifest| manifest.find(&found.target)).transpose()?;
        let sha256 = sha256.or(found.elsewhere.as_ref().and_then(|given| given.sha256));
        compare.compare(collection, found, sha256)
    }

    /// Notes that a file of the collection is newer than the source. Returns whether it is left.
    fn note_newer(&self, found: &Found, watch: &dyn Watch, sum: &mut Sum) -> bool {
        let path = found.target.path();
        let left = self.request.update;
        let note = match (left, self.request.dry_run) {
            (true, _) => "left as it is: it was changed in the collection after the source was changed",
            (false, true) => {
                "would be replaced, although it was changed in the collection after the source was changed; \
                 --update leaves such files"
            }
            (false, false) => {
                "replaced, although it was changed in the collection after the source was changed; \
                 --update leaves such files"
            }
        };
        watch.noted(&path, note);
        sum.notes.push((path, note.to_owned()));
        if left {
            watch.advance(found.bytes);
        }
        left
    }

    /// Notes the error of a file. Fails if the error ends the import. `place` is that of the store.
    fn note_failed(
        &self,
        found: &Found,
        error: Error,
        place: &str,
        watch: &dyn Watch,
        sum: &mut Sum,
    ) -> Result<()> {
        if error.kind() == ErrorKind::Interrupted {
            return Err(error);
        }
        let source = found.source.display().to_string();
        let error = with_advice(error, place);
        watch.failed(&source, &error);
        sum.failed.push((source, error.to_string()));
        Ok(())
    }

    /// The names to remove. None if a part of the source could not be read.
    fn removals(&self, collection: &Collection, watch: &dyn Watch, sum: &mut Sum) -> Vec<Removal> {
        if !self.request.delete {
            return Vec::new();
        }
        let mut note = |path: String, note: &str| {
            watch.noted(&path, note);
            sum.notes.push((path, note.to_owned()));
        };
        if !self.walked.failed.is_empty() {
            note(self.path(), "nothing was removed, because a part of the source could not be read");
            return Vec::new();
        }
        let (removals, changed): (Vec<_>, Vec<_>) =
            removals(collection, &self.walked).into_iter().partition(|removal| removal.is_untouched);
        for removal in changed {
            note(removal.path, "not removed, because it may have been changed since it was imported");
        }
        removals
    }
}

/// An import that runs.
struct ImportJob<'a> {
    plan: &'a Plan,
    store: &'a Store,
    collection: &'a Arc<Collection>,
    owner: Owner,
    /// The options of the plan, with the lineage parents.
    options: &'a Options,
    watch: &'a dyn Watch,
    finish: Option<Finish<'a>>,
}

/// A file and how it compares with its target.
struct Compared<'a> {
    found: &'a Found,
    compared: Comparison,
}

/// The action on a file, done.
struct Done {
    action: Action,
    report: Report,
}

impl ImportJob<'_> {
    fn all(&self, sum: &mut Sum) -> Result<()> {
        let ImportJob { plan, store, collection, watch, .. } = *self;
        if let Some(tensor) = &plan.request.shard_of {
            let target = target_of(tensor)?;
            sum.note_changed(collection, &target);
            let report = with_room(store, plan.bytes(), watch, || self.shards(&target))?;
            sum.add(&report);
            self.finish(&target, report.note, sum)?;
            return add_tags(collection, [&target].into_iter(), &plan.request.tags);
        }
        let is_cancelled = || watch.is_cancelled();
        let compare = plan.compare(store, self.options, &is_cancelled);
        let compared: Vec<_> =
            plan.walked.found.iter().map(|found| plan.compare_one(&compare, collection, found)).collect();
        let (mut blobs, mut indexes) = (Blobs::default(), Vec::new());
        for (found, compared) in plan.walked.found.iter().zip(&compared) {
            if let Ok(Comparison::Unchanged { node, .. }) = compared {
                blobs.add(found, *node);
            }
        }
        let count = plan.walked.found.len();
        for (index, (found, compared)) in plan.walked.found.iter().zip(compared).enumerate() {
            // Counts this file too, until it is finished.
            sum.left = (count - index) as u64;
            if watch.is_cancelled() {
                return Err(cancelled());
            }
            let imported = compared
                .and_then(|compared| self.imported(&compare, Compared { found, compared }, &blobs, sum));
            match imported {
                Ok(Some(done)) => self.finished(found, done, &mut blobs, sum)?,
                Ok(None) => continue,
                Err(error) => {
                    // The whole store accepts no more writes.
                    let is_last = matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly);
                    plan.note_failed(found, error, &store.place(), watch, sum)?;
                    sum.left -= 1;
                    if is_last {
                        return Ok(());
                    }
                    continue;
                }
            }
            if shard_index::is_name(&found.target.name) {
                indexes.push(&found.target);
            }
        }
        sum.left = 0;
        self.links(sum)?;
        for target in &indexes {
            if let Some(note) = note_of_missing(collection, target) {
                let path = target.path();
                watch.noted(&path, &note);
                sum.notes.push((path, note));
            }
        }
        add_tags(collection, plan.walked.found.iter().map(|found| &found.target), &plan.request.tags)?;
        self.remove(sum)
    }

    /// Imports a file, if it differs from its target. Returns the action and its report. `None` for a file that stays as it is.
    fn imported(
        &self,
        compare: &Compare<'_>,
        Compared { found, compared }: Compared<'_>,
        blobs: &Blobs,
        sum: &mut Sum,
    ) -> Result<Option<Done>> {
        let ImportJob { plan, store, collection, watch, .. } = *self;
        let (compared, is_mended) = self.mended(compare, found, compared)?;
        let action = match compared {
            Comparison::New => Action::Import,
            Comparison::Changed { is_newer: true } if plan.note_newer(found, watch, sum) => {
                return Ok(None);
            }
            Comparison::Changed { .. } | Comparison::Unreadable { .. } => Action::Replace,
            Comparison::Unchanged { node, is_retimed } => {
                if is_retimed {
                    set_time(collection, node, found)?;
                    sum.changed.push(node);
                }
                watch.advance(found.bytes);
                if is_mended {
                    return Ok(Some(Done { action: Action::Mend, report: Report::default() }));
                }
                sum.unchanged += 1;
                return Ok(None);
            }
        };
        watch.began(&found.target.path());
        sum.note_changed(collection, &found.target);
        if let Some(node) = blobs.get(found)
            && link(collection, node, found, &origin_of(found, self.owner, None)?)?
        {
            watch.advance(found.bytes);
            return Ok(Some(Done { action: Action::Link, report: Report::default() }));
        }
        let report = with_room(store, found.bytes, watch, || self.one(found))?;
        Ok(Some(Done { action, report }))
    }

    /// Reports a file that was imported.
    fn finished<'a>(
        &self,
        found: &'a Found,
        Done { action, report }: Done,
        blobs: &mut Blobs<'a>,
        sum: &mut Sum,
    ) -> Result<()> {
        let ImportJob { collection, watch, .. } = *self;
        let path = found.target.path();
        sum.note_changed(collection, &found.target);
        if !matches!(action, Action::Link | Action::Mend) {
            sum.add(&report);
            if let Some(node) = node_at(&collection.state(), &found.target) {
                blobs.add(found, node);
            }
            self.finish(&found.target, report.note, sum)?;
        }
        let listed = Listed { action, path, bytes: found.bytes };
        watch.did(&listed)?;
        sum.list(listed);
        Ok(())
    }

    /// Finishes an imported file, and passes on the remarks about it.
    fn finish(&self, target: &Target, note: String, sum: &mut Sum) -> Result<()> {
        let ImportJob { collection, watch, .. } = *self;
        let (path, node) = (target.path(), node_at(&collection.state(), target));
        let stored = || {
            let state = collection.state();
            node.and_then(|node| Some(state.stored(state.node(node)?.file()?))).unwrap_or(0)
        };
        let before = stored();
        let finish = self.finish.zip(node);
        let left = finish.map(|(finish, node)| finish(collection, node)).transpose()?.flatten();
        sum.stored = sum.stored.saturating_sub(before.saturating_sub(stored()));
        for note in Some(note).filter(|note| !note.is_empty()).into_iter().chain(left) {
            watch.noted(&path, &note);
            sum.notes.push((path.clone(), note));
        }
        Ok(())
    }

    /// Mends a file that is otherwise as the import would store it. Returns how it compares then, and whether it was
    /// mended.
    fn mended(
        &self,
        compare: &Compare<'_>,
        found: &Found,
        compared: Comparison,
    ) -> Result<(Comparison, bool)> {
        let ImportJob { plan, collection, .. } = *self;
        let damage = plan.damage(&compared, Some(collection))?.filter(|damage| !damage.is_none());
        let Some(damage) = damage else { return Ok((compared, false)) };
        let source = found.open().map_err(|error| Error::io("opening it", error))?;
        let mended = damage.mend(&*source)?;
        collection.sync()?;
        if mended == Mended::NotAll {
            let is_newer = matches!(compared, Comparison::Unreadable { is_newer: true, .. });
            return Ok((Comparison::Changed { is_newer }, false));
        }
        let compared = match compared {
            Comparison::Unreadable { .. } => plan.compare_one(compare, collection, found)?,
            compared => compared,
        };
        Ok((compared, matches!(compared, Comparison::Unchanged { .. })))
    }

    fn one(&self, found: &Found) -> Result<Report> {
        let ImportJob { plan, collection, watch, .. } = *self;
        if found.elsewhere.is_none() {
            // Mounts may have changed since the files were found.
            Mounts::read()?.refuse_ours("source", &found.source)?;
        }
        let sha256 = plan.manifest.as_ref().map(|manifest| manifest.find(&found.target)).transpose()?;
        let failed = |error| Error::io("opening it", error);
        let (source, mut origin) = (found.open().map_err(failed)?, origin_of(found, self.owner, sha256)?);
        if plan.request.in_place && found.elsewhere.is_some() && !plan.reads_all() {
            // Nobody reads the bytes that it is the digest of. The cache compares them once it has all.
            origin.sha256 = None;
        }
        let in_place = match (&found.elsewhere, &plan.stores) {
            (Some(given), _) if plan.request.in_place => {
                let (object, is_read) = (Box::new(given.place.clone()), plan.reads_all());
                Some(OutsidePlace::Object { object, is_read })
            }
            (_, Some(stores)) => {
                let real = fs::canonicalize(&found.source).map_err(failed)?;
                stores.refuse(&found.source, &real, found.identity)?;
                Some(OutsidePlace::Path(real.into_os_string().into_vec()))
            }
            (_, None) => None,
        };
        let places =
            [place_of(&found.root, &found.target)].into_iter().chain(found.bytes_name().cloned()).collect();
        let options = Options { in_place, places, ..self.options.clone() };
        import_file(collection, self.store.settings(), &found.target, &source, &origin, &options, watch)
    }

    fn shards(&self, target: &Target) -> Result<Report> {
        let (plan, collection) = (self.plan, self.collection);
        let mut shards = Vec::new();
        let paths = shards_in_order(&plan.request.paths)?;
        for path in &paths {
            shards.push(Shard::open(collection, path, plan.stores.as_ref())?);
        }
        let first = paths.first().ok_or_else(|| Error::invalid("no shards"))?;
        let first = fs::metadata(first).map_err(|error| Error::io(first.display(), error))?;
        let origin = origin(&first, self.owner, None);
        let (settings, options) = (self.store.settings(), self.options);
        import_joined(collection, settings, target, shards, &origin, options, self.watch)
    }

    /// Makes the symbolic links.
    fn links(&self, sum: &mut Sum) -> Result<()> {
        let ImportJob { plan, collection, watch, .. } = *self;
        for link in &plan.walked.links {
            let path = link.target.path();
            sum.note_changed(collection, &link.target);
            match symlink(collection, link, &now(self.owner)) {
                Ok(false) => {}
                Ok(true) => {
                    sum.note_changed(collection, &link.target);
                    let listed = Listed { action: Action::Link, path, bytes: 0 };
                    watch.did(&listed)?;
                    sum.list(listed);
                }
                Err(error) => {
                    watch.failed(&path, &error);
                    sum.failed.push((path, error.to_string()));
                }
            }
        }
        Ok(())
    }

    /// Removes files that the source no longer has.
    fn remove(&self, sum: &mut Sum) -> Result<()> {
        let ImportJob { plan, collection, watch, .. } = *self;
        for removal in plan.removals(collection, watch, sum) {
            match remove(collection, &removal, &now(self.owner)) {
                Ok(changed) => {
                    sum.changed.extend(changed);
                    sum.removed += 1;
                    let Removal { path, bytes, .. } = removal;
                    let listed = Listed { action: Action::Remove, path, bytes };
                    watch.did(&listed)?;
                    sum.list(listed);
                }
                Err(error) => {
                    watch.failed(&removal.path, &error);
                    sum.failed.push((removal.path, error.to_string()));
                }
            }
        }
        Ok(())
    }
}

/// Stores something of `bytes` bytes. Where the disk is full, what was removed is freed, and it is tried once more.
fn with_room<T>(
    store: &Store,
    bytes: u64,
    watch: &dyn Watch,
    mut work: impl FnMut() -> Result<T>,
) -> Result<T> {
    if store.space().is_ok_and(|space| space.available < bytes) {
        watch.make_room(store);
    }
    work().or_else(|error| match error.kind() {
        ErrorKind::Full if watch.make_room(store) => work(),
        _ => Err(error),
    })
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Interrupted, "the import was cancelled")
}

/// Adds advice to the error of a quota, and to that of a full disk.
fn with_advice(error: Error, place: &str) -> Error {
    if error.kind() == ErrorKind::Full {
        let text = format!(
            "{error}; make room on the file system of the store (df {place}), or remove a collection: tierfs rm {place} \
             TENANT/COLLECTION; then import again"
        );
        return Error::new(ErrorKind::Full, text);
    }
    let of = error.refusals().iter().find_map(|refusal| match &refusal.cause {
        Cause::Quota(of, _) => Some(of.clone()),
        _ => None,
    });
    match of {
        Some(of) => {
            let text = format!(
                "{error}; remove files, or raise the quota in a mount: \
                 echo bytes=SIZE stored=SIZE files=N > MOUNTPOINT/{of}/.ctl/quota"
            );
            Error::new(error.kind(), text)
        }
        None => error,
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
        return Err(Error::invalid(format!("{tensor:?} is not a path below a collection")));
    }
    let name = parts.pop().unwrap_or_default();
    Ok(Target::new(&parts, &name))
}

/// Blobs of a hub cache that the collection has already.
#[derive(Default)]
struct Blobs<'a>(HashMap<Identity, Vec<(&'a [u8], EntryId)>>);

impl<'a> Blobs<'a> {
    fn add(&mut self, found: &'a Found, node: EntryId) {
        if found.blob.is_some() {
            self.0.entry(found.identity).or_default().push((&found.target.name, node));
        }
    }

    /// The node of the same bytes, if it can have this name too.
    fn get(&self, found: &Found) -> Option<EntryId> {
        let there = self.0.get(&found.identity).filter(|_| found.blob.is_some())?;
        there.iter().find(|(name, _)| may_share(name, &found.target.name)).map(|(_, node)| *node)
    }
}
