//! `tierfs import`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use serde_json::json;

use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::jobs;
use crate::cli::common::mounts;
use crate::cli::common::mounts::Mounted;
use crate::cli::common::open_store::open_store;
use crate::cli::common::output::{complain, human, print, print_json, printable};
use crate::cli::common::process::own_owner;
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::cli::common::remote;
use crate::cli::{Outcome, init};
use crate::control::IMPORT;
use crate::engine::{Engine, Finish, Reconstruct};
use crate::ingest::{
    Action, Blocking, Listed, Plan, Request, Sum, Watch, hub_cache, parse_collection, parse_encoder,
};
use crate::model::{
    Dtype, Encoder, Error, ErrorKind, MoveTo, OwnedCollectionName, Progress, Result, Shape, check_label,
    check_tag,
};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store, Verify};
use crate::vfs::open::{OpenFiles, finish_renames};

/// Import files into a collection; the tensors of model files (.safetensors, .gguf, .npy and others) become files too.
///
/// The contents of a directory keep their relative paths in the collection. Symbolic links are followed.
/// If a file fails, none of it appears, and the import goes on with the others. The daemon imports into a
/// mounted store.
///
/// A file that the collection has already, with the same size and modification time, is not read again.
/// One that differs is replaced as a whole.
///
/// A cache of the Hugging Face Hub is imported as a whole if only a tenant is named: each model
/// models--ORG--NAME becomes the collection ORG--NAME, with the files of its main revision.
///
/// Example: tierfs import /srv/tensors acme/llama ~/models/llama --tier q8
///
/// Example: tierfs import /srv/tensors acme ~/.cache/huggingface/hub
///
/// Example: tierfs import --previous /srv/tensors run/policy ./checkpoint
///
/// Example: tierfs import --delete --dry-run /srv/tensors acme/llama ~/models/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, created if nothing exists at this path; a path in a mount names both
    store: PathBuf,
    /// The collection, as TENANT/COLLECTION; for a hub cache, the tenant. Created if it does not exist
    #[arg(id = "collection", value_name = "TENANT[/COLLECTION]", value_parser = parse_destination)]
    destination: Destination,
    /// Files and directories to import, or a URL such as s3://BUCKET/PREFIX
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Store float matrices in this tier: exact, q8, q7, q5, q3 or q3x; with :all, every float tensor
    #[arg(long, value_name = "TIER[:all]", value_parser = parse_tier)]
    tier: Option<String>,
    /// Pack tensors that stay exact: the same bytes in less space; the daemon decodes them. With --in-place,
    /// the store keeps packed bytes of its own
    #[arg(long)]
    pack: bool,
    /// How the encoder chooses scales: best (least squared error within the bound of the tier), least (without
    /// the bound) or absmax
    #[arg(long, default_value = "best", value_parser = parse_encoder)]
    encoder: Encoder,
    /// Join the paths to one file with this name: in this order, or in that of the 128-bit numbers (32 hex digits) that
    /// the names of all end with
    #[arg(long, value_name = "NAME", conflicts_with_all = ["manifest", "checksum", "update", "delete", "dry_run"])]
    shard_of: Option<String>,
    /// Create the store. Its directory may exist, if it is empty
    #[arg(long)]
    create: bool,
    /// Element type of the joined file, unless its name and bytes make it a container
    #[arg(long, value_name = "TYPE", value_parser = parse_dtype, requires = "shard_of")]
    dtype: Option<String>,
    /// Shape of the joined file, such as 4096x11008
    #[arg(long, value_name = "SIZES", value_parser = parse_shape, requires_all = ["shard_of", "dtype"])]
    shape: Option<String>,
    /// Lineage parent: TENANT/COLLECTION, where each tensor has the tensor of the same name and shape as
    /// its parent, or TENANT/COLLECTION/TENSOR
    #[arg(long, value_name = "COLLECTION-OR-TENSOR")]
    parent: Option<String>,
    /// Keep the state before the import and the state after it as versions, which .as/@N shows and tierfs log lists; an
    /// earlier one is stored as its difference from the next
    #[arg(long, conflicts_with_all = ["parent", "in_place", "reconstruct"])]
    previous: bool,
    /// Remove the oldest versions until N are left
    #[arg(long, value_name = "N", requires = "previous", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Copy nothing; the bytes stay in the source files, which must not change any more
    #[arg(long, conflicts_with = "tier")]
    in_place: bool,
    /// Evict the tensors after the import; reconstruct them by delta, origin, factor, factor:rank=K or
    /// factor:energy=E
    #[arg(long, value_name = "HOW", value_parser = parse_reconstruct)]
    reconstruct: Option<String>,
    /// Block size in bytes, 4096 to 131072
    #[arg(long, value_name = "N", value_parser = |text: &str| checked(text, Blocking::bytes), conflicts_with = "head_dim")]
    block_bytes: Option<u64>,
    /// Align blocks to positions of N elements, for key-value caches
    #[arg(long, value_name = "N", value_parser = |text: &str| checked(text, Blocking::head_dim))]
    head_dim: Option<u64>,
    /// Import only files whose SHA-256 matches this list, which is in the format of sha256sum
    #[arg(long, value_name = "SHA256SUMS")]
    manifest: Option<PathBuf>,
    /// Import this branch, tag or commit of a hub cache's repository, instead of main
    #[arg(long, value_name = "REVISION", conflicts_with = "all_revisions")]
    revision: Option<String>,
    /// Import all revisions of a hub cache's repository, in directories named by their commits; equal files
    /// are stored once
    #[arg(long)]
    all_revisions: bool,
    /// Compare files with those of the collection by their BLAKE3, not by size and modification time, and mend
    /// damaged blocks
    #[arg(long)]
    checksum: bool,
    /// Leave files that were changed in the collection after they were changed in the source
    #[arg(long, short)]
    update: bool,
    /// Remove files that an earlier import of the same directory made, and that it no longer has
    #[arg(long)]
    delete: bool,
    /// Store the bytes of files that the tenant has already, instead of sharing them
    #[arg(long)]
    no_share: bool,
    /// Refuse files that can only be kept as plain files, such as arrays in Fortran order and git-lfs
    /// pointers
    #[arg(long)]
    strict: bool,
    /// Give the files this tag, beside those that they have; may be repeated
    #[arg(long = "tag", value_name = "TAG", value_parser = parse_tag)]
    tags: Vec<String>,
    /// List what would be imported, replaced and removed, and do nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Of a mounted store: print the number of the job and leave; tierfs jobs shows its progress
    #[arg(long, conflicts_with = "dry_run")]
    detach: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// The destination of an import: a collection, or a tenant for the models of a hub cache.
#[derive(Clone, Debug)]
struct Destination {
    tenant: String,
    collection: Option<String>,
}

fn parse_destination(text: &str) -> Result<Destination> {
    let text = text.trim_end_matches('/');
    if text.contains('/') {
        let OwnedCollectionName { tenant, name } = parse_collection(text)?;
        return Ok(Destination { tenant, collection: Some(name) });
    }
    check_label(text).map_err(|wrong| Error::invalid(format!("{text:?}: {wrong}")))?;
    Ok(Destination { tenant: text.to_owned(), collection: None })
}

fn parse_tier(text: &str) -> Result<String> {
    MoveTo::parse_tier(text).map(|_| text.to_owned())
}

pub(super) fn parse_dtype(text: &str) -> Result<String> {
    let wrong = || Error::invalid(format!("{text:?} is not a type such as f32 or bf16"));
    Dtype::from_name(text).map(|_| text.to_owned()).ok_or_else(wrong)
}

pub(super) fn parse_shape(text: &str) -> Result<String> {
    let wrong = || Error::invalid(format!("{text:?} are not sizes such as 4096x11008"));
    Shape::parse(text).map(|_| text.to_owned()).ok_or_else(wrong)
}

fn parse_tag(text: &str) -> Result<String> {
    check_tag(text).map(|()| text.to_owned())
}

fn parse_reconstruct(text: &str) -> Result<String> {
    Reconstruct::parse(text).map(|_| text.to_owned())
}

fn checked(text: &str, check: fn(u64) -> Result<Blocking>) -> Result<u64> {
    let number = text.parse().map_err(|_| Error::invalid(format!("{text:?} is not a number")))?;
    check(number).map(|_| number)
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        remote::refuse_as_store(&self.store)?;
        mounts::refuse_own_mount(&self.store)?;
        let (place, json, dry_run) = (self.store.clone(), self.json, self.dry_run);
        let (detach, create) = (self.detach, self.create);
        let is_cache = self.destination.collection.is_none();
        let mut failures = Vec::new();
        let Some((requests, left_out)) = self.requests()? else { return Ok(Outcome::Misused) };
        let mut imports = Vec::new();
        for request in requests {
            if request.in_place && !dry_run {
                make_if_missing(&place, create)?;
            }
            // The daemon of a mounted store has credentials of its own.
            if request.url().is_some() && mounts::mount_for(&place)?.is_some() {
                imports.push(Import::Unlisted(Box::new(request)));
                continue;
            }
            match Plan::of(request, &place) {
                Ok(plan) => imports.push(Import::Planned(Box::new(plan))),
                // A model without the revision does not stop the others.
                Err(error) if is_cache && error.kind() == ErrorKind::NotFound => {
                    complain(&format!("tierfs: {error}"));
                    failures.push(error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        let bar = Bar::new(imports.iter().map(Import::bytes).sum(), json, dry_run)?;
        for (path, why) in &left_out {
            bar.skipped(path, why);
        }
        let destination = open(&place, dry_run, create)?;
        if detach {
            return destination.detach(&imports, json);
        }
        let mut sums = Vec::new();
        for import in &imports {
            let sum = destination.import(import, &bar)?;
            if !json {
                bar.bar.suspend(|| print(&report(import.request(), &sum)))?;
            }
            let is_cancelled = sum.is_cancelled;
            sums.push((import.request().collection.to_string(), sum));
            if is_cancelled {
                break;
            }
        }
        bar.finish();
        if json && is_cache {
            let skipped = left_out.iter().map(|(path, why)| json!({ "path": path, "reason": why }));
            print_json(&json!({
                "collections": sums.iter().map(|(path, sum)| sum.to_json(path)).collect::<Vec<_>>(),
                "skipped": skipped.collect::<Vec<_>>(),
                "failed": failures,
            }))?;
        } else if json && let Some((path, sum)) = sums.first() {
            print_json(&sum.to_json(path))?;
        }
        let has_failed =
            !failures.is_empty() || sums.iter().any(|(_, sum)| !sum.failed.is_empty() || sum.is_cancelled);
        Ok(if has_failed { Outcome::Failed } else { Outcome::Succeeded })
    }

    /// The requests, one for each collection, and the sources that are left out. `None`, after printing
    /// the reason, if the destination must be a collection.
    fn requests(self) -> Result<Option<(Vec<Request>, LeftOut)>> {
        let Destination { tenant, collection } = self.destination;
        let request = Request {
            collection: OwnedCollectionName::new(tenant.clone(), String::new()),
            paths: self.paths,
            tier: self.tier,
            pack: self.pack,
            encoder: self.encoder,
            shard_of: self.shard_of,
            dtype: self.dtype,
            shape: self.shape,
            parent: self.parent,
            previous: self.previous,
            keep: self.keep,
            reconstruct: self.reconstruct,
            in_place: self.in_place,
            block_bytes: self.block_bytes,
            head_dim: self.head_dim,
            manifest: self.manifest,
            revision: self.revision,
            all_revisions: self.all_revisions,
            checksum: self.checksum,
            update: self.update,
            delete: self.delete,
            no_share: self.no_share,
            strict: self.strict,
            dry_run: self.dry_run,
            tags: self.tags,
            tag: None,
        };
        if let Some(name) = collection {
            let collection = OwnedCollectionName { tenant, name };
            let request = Request { collection, ..request };
            return Ok(Some((vec![request], Vec::new())));
        }
        let (mut requests, mut left_out) = (Vec::<Request>::new(), Vec::new());
        for path in &request.paths {
            let Some(cache) = hub_cache(path)? else {
                complain(&format!(
                    "tierfs: {} is not a hub cache; to import it, name a collection: {tenant}/COLLECTION",
                    path.display()
                ));
                return Ok(None);
            };
            for model in cache.models {
                let collection = OwnedCollectionName::new(&tenant, model.collection);
                if let Some(other) = requests.iter().find(|other| other.collection == collection) {
                    let (one, other) = (model.path.display(), other.paths.iter().map(|path| path.display()));
                    let other = other.map(|path| path.to_string()).collect::<String>();
                    let text = format!(
                        "{other} and {one} would become the same collection; import them one by one into collections with other names"
                    );
                    return Err(Error::new(ErrorKind::Exists, text));
                }
                requests.push(Request { collection, paths: vec![model.path], ..request.clone() });
            }
            left_out.extend(cache.left_out.into_iter().map(|(path, why)| (path.display().to_string(), why)));
        }
        Ok(Some((requests, left_out)))
    }
}

/// An import to do.
enum Import {
    Planned(Box<Plan>),
    /// The daemon of a mount lists the URL.
    Unlisted(Box<Request>),
}

impl Import {
    fn request(&self) -> &Request {
        match self {
            Import::Planned(plan) => plan.request(),
            Import::Unlisted(request) => request,
        }
    }

    /// Bytes of the files; 0 if they are not known yet.
    fn bytes(&self) -> u64 {
        match self {
            Import::Planned(plan) => plan.bytes(),
            Import::Unlisted(_) => 0,
        }
    }
}

/// The repositories of a hub cache that are left out, with the reason.
type LeftOut = Vec<(String, String)>;

/// A store to import into.
enum Place {
    /// Opened by this process.
    Store(Box<Engine>),
    /// Mounted. The error is for a mount that does not serve imports.
    Mounted(Mounted, Error),
    /// It does not exist, and a dry run does not create it.
    Missing,
}

impl Place {
    /// Has the daemon import, and prints the jobs without waiting for them.
    fn detach(&self, imports: &[Import], json: bool) -> Result<Outcome> {
        let Place::Mounted(mounted, busy) = self else {
            let text = "--detach needs a mounted store: without a daemon this process would import; mount the \
                        store first: tierfs mount STORE MOUNTPOINT";
            return Err(Error::invalid(text));
        };
        let mut rows = Vec::new();
        for request in imports.iter().map(Import::request) {
            let (path, request) = (request.collection.to_string(), queue(mounted, request, busy)?);
            let job = jobs::jobs(mounted)?.into_iter().find(|job| job.request == request);
            let number = job.ok_or_else(gone)?.number;
            if !json {
                print(&format!("{path}: job {number}\n"))?;
            }
            rows.push(json!({ "collection": path, "state": "queued", "job": number }));
        }
        if json {
            print_json(&rows.into())?;
        }
        Ok(Outcome::Succeeded)
    }

    fn import(&self, import: &Import, bar: &Bar) -> Result<Sum> {
        let request = import.request();
        let place = match self {
            Place::Mounted(mounted, busy) => return import_through_daemon(mounted, request, busy, bar),
            Place::Store(engine) => engine.store.place(),
            Place::Missing => String::new(),
        };
        let found;
        let plan = match import {
            Import::Planned(plan) => plan,
            // Its mount is gone by now, or a dry run reads the store beside a mount that only reads.
            Import::Unlisted(request) => {
                found = Box::new(Plan::of(Request::clone(request), Path::new(&place))?);
                &found
            }
        };
        let mut sum = Sum::default();
        let Place::Store(engine) = self else {
            plan.preview(bar, &mut sum)?;
            return Ok(sum);
        };
        let owner = own_owner();
        let finish = Finish::new(request.packs_later(), request.reconstruct.as_deref())?;
        let finish = |collection: &_, node| finish.finish(engine, collection, node);
        let OwnedCollectionName { tenant, name } = &request.collection;
        let had_tenant = engine.store.tenants()?.contains(tenant);
        let is_made = !had_tenant || !engine.store.collections(tenant)?.contains(name);
        match plan.run(&engine.store, owner, bar, Some(&finish), &mut sum) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                sum.is_cancelled = true;
                if is_made && sum.files + sum.linked == 0 {
                    let removed = engine.store.remove_collection(tenant, name);
                    let removed = removed
                        .and_then(|_| if had_tenant { Ok(()) } else { engine.store.remove_tenant(tenant) });
                    removed.unwrap_or_else(|error| log::warn!("{tenant}/{name} stays: {error}"));
                    return Ok(sum);
                }
            }
            ran => ran?,
        }
        let imported = engine.store.collection(tenant, name).ok();
        // A dry run opens the store to read only.
        if let Some(collection) = imported.filter(|found| found.access() == Access::Write) {
            finish_renames(&collection, &OpenFiles::default(), Verify::First, &mut Vec::new());
            collection.sync()?;
        }
        Ok(sum)
    }
}

/// Opens a store, to write unless for a dry run, and creates it if nothing exists at its path, or if that was asked for.
fn open(path: &Path, dry_run: bool, create: bool) -> Result<Place> {
    let disk = FileDisk::new(path);
    if !Store::is_there(&disk)? {
        if dry_run {
            return Ok(Place::Missing);
        }
        init::create_at(path, create)?;
    }
    let note = format!("process {}, which imports", std::process::id());
    let access = if dry_run { Access::Read } else { Access::Write };
    match open_store(path, access, &note) {
        Ok(store) => {
            remote::fetch_clones(&store);
            Ok(Place::Store(Box::new(Engine::new(Arc::new(store)))))
        }
        Err(error) if error.kind() == ErrorKind::Busy => match mounts::mount_for(path)? {
            Some(mounted) => Ok(Place::Mounted(mounted, error)),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Has the daemon of a mount queue an import. Returns the request of its job; `busy` if the mount is
/// read-only.
fn queue(mounted: &Mounted, request: &Request, busy: &Error) -> Result<String> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let tag = format!("{}-{}", std::process::id(), since.map_or(0, |since| since.as_nanos()));
    let line = Request { tag: Some(tag.clone()), ..request.clone() }.to_json()?;
    let path = mounted.mountpoint.join(".ctl/import");
    let before = refusal::last_number(&path);
    if let Err(error) = std::fs::write(&path, line) {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        if errno == Errno::ROFS {
            return Err(Error::new(ErrorKind::Busy, busy.to_string()));
        }
        let typed = Typed { words: "import", path: &path };
        let refusal = Refusal::of(mounted, &typed, before, errno);
        return Err(Error::invalid(format!("{}: refused: {}", request.collection, refusal.clause())));
    }
    Ok(format!("{IMPORT}:{tag}"))
}

/// Has the daemon of a mount import and waits.
fn import_through_daemon(mounted: &Mounted, request: &Request, busy: &Error, bar: &Bar) -> Result<Sum> {
    let queued = queue(mounted, request, busy)?;
    let job = jobs::wait(mounted, &bar.interrupt, &bar.bar, |job| job.request == queued)?.ok_or_else(gone)?;
    if job.state == "failed" {
        return Err(Error::new(ErrorKind::Denied, format!("{}: {}", request.collection, job.error)));
    }
    let cancelled = || Sum { is_cancelled: true, ..Sum::default() };
    let sum = job.value.get("result").and_then(Sum::from_json).or_else(|| job.is_cancelled().then(cancelled));
    let unknown = "the daemon sent an answer that this program does not understand; unmount the store and mount \
                   it again with this version of tierfs";
    let mut sum = sum.ok_or_else(|| Error::invalid(unknown))?;
    for (source, _) in sum.failed.iter_mut().chain(&mut sum.skipped) {
        *source = as_typed(source, &request.paths);
    }
    for (source, why) in &sum.failed {
        bar.warn(&format!("tierfs: {source}: {why}"));
    }
    sum.skipped.iter().for_each(|(source, why)| bar.skipped(source, why));
    sum.notes.iter().for_each(|(path, note)| bar.noted(path, note));
    for listed in &sum.listed {
        bar.did(listed)?;
    }
    Ok(sum)
}

fn gone() -> Error {
    Error::new(
        ErrorKind::NotFound,
        "the mount no longer lists the job of the import; .ctl/events of the mount says how it ended",
    )
}

/// A source as the user has named it. The daemon has only absolute paths.
fn as_typed(source: &str, paths: &[PathBuf]) -> String {
    let below = |path: &PathBuf| {
        let absolute = std::path::absolute(path).ok()?;
        let rest = Path::new(source).strip_prefix(absolute).ok()?;
        let is_itself = rest.as_os_str().is_empty();
        Some(if is_itself { path.clone() } else { path.join(rest) }.display().to_string())
    };
    paths.iter().find_map(below).unwrap_or_else(|| source.to_owned())
}

/// The last line of the output.
fn report(request: &Request, sum: &Sum) -> String {
    format!("{}: {}\n", request.collection, sum.text(request))
}

fn make_if_missing(path: &Path, create: bool) -> Result<()> {
    if Store::is_there(&FileDisk::new(path))? { Ok(()) } else { init::create_at(path, create) }
}

/// Shows progress as a bar on a terminal, and as lines elsewhere.
struct Bar {
    bar: ProgressBar,
    quiet: bool,
    dry_run: bool,
    interrupt: Interrupt,
}

impl Bar {
    fn new(bytes: u64, quiet: bool, dry_run: bool) -> Result<Bar> {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = if terminal { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        // The lines of a dry run are its result, so a terminal shows them too.
        let interrupt = Interrupt::listen()?;
        Ok(Bar { bar, quiet: quiet || (terminal && !dry_run), dry_run, interrupt })
    }

    fn warn(&self, line: &str) {
        self.bar.suspend(|| complain(line));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    fn is_cancelled(&self) -> bool {
        self.interrupt.is_pressed()
    }
}

impl Watch for Bar {
    fn began(&self, path: &str) {
        self.bar.set_message(printable(path).into_owned());
    }

    fn did(&self, Listed { action, path, bytes }: &Listed) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let bytes = human(*bytes);
        let line = match (action, self.dry_run) {
            (Action::Link, true) => format!("would link {path}\n"),
            (_, true) => format!("would {} {path}  {bytes}\n", action.name()),
            (Action::Import | Action::Replace, false) => format!("{path}  {bytes}\n"),
            (Action::Link, false) => format!("{path}  linked\n"),
            (Action::Mend, false) => format!("{path}  mended\n"),
            (Action::Remove, false) => format!("{path}  removed\n"),
        };
        self.bar.suspend(|| print(&line))
    }

    fn skipped(&self, source: &str, why: &str) {
        self.warn(&format!("tierfs: {source}: {why}"));
    }

    fn noted(&self, path: &str, note: &str) {
        self.warn(&format!("tierfs: {path}: {note}"));
    }

    fn failed(&self, source: &str, error: &Error) {
        self.warn(&format!("tierfs: {source}: {error}"));
    }
}
