//! `tierfs import`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::shared::act::wait_for_tagged_job;
use crate::cli::shared::mounts;
use crate::cli::shared::mounts::Mounted;
use crate::cli::shared::output::{human, print, print_json};
use crate::cli::{Outcome, init};
use crate::control::IMPORT;
use crate::engine::{Engine, Reconstruct, evict_imported};
use crate::ingest::{Blocking, Plan, Request, Sum, Watch, parse_collection, parse_encoder};
use crate::model::{Encoder, Error, ErrorKind, MoveTo, Progress, Result};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store};

/// Import files into a collection; tensors in .safetensors, .gguf and .npy files become files too.
///
/// The contents of a directory keep their relative paths in the collection. Symbolic links are followed.
/// An existing file is replaced as a whole. If a file fails, none of it appears, and the import goes on
/// with the others. The daemon imports into a mounted store.
///
/// Example: tierfs import /srv/tensors acme/llama ~/models/llama --tier q8
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store; created if it does not exist
    store: PathBuf,
    /// The collection, as TENANT/COLLECTION; created if it does not exist
    #[arg(value_name = "TENANT/COLLECTION", value_parser = parse_collection)]
    collection: (String, String),
    /// Files and directories to import
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Store float matrices in this tier: exact, q8, q7, q5, q3 or q3x; with :all, every float tensor
    #[arg(long, value_name = "TIER[:all]", value_parser = parse_tier)]
    tier: Option<String>,
    /// How the encoder chooses scales: best (least squared error) or absmax
    #[arg(long, default_value = "best", value_parser = parse_encoder)]
    encoder: Encoder,
    /// Import the paths as the shards, in this order, of one tensor with this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tier", "manifest"])]
    shard_of: Option<String>,
    /// Lineage parent: TENANT/COLLECTION, where each tensor has the tensor of the same name and shape as
    /// its parent, or TENANT/COLLECTION/TENSOR
    #[arg(long, value_name = "COLLECTION-OR-TENSOR")]
    parent: Option<String>,
    /// Copy nothing; the bytes stay in the source files, which must not change any more
    #[arg(long, conflicts_with_all = ["tier", "shard_of"])]
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
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_tier(text: &str) -> Result<String> {
    MoveTo::parse(text).map(|_| text.to_owned())
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
        let (place, json) = (self.store, self.json);
        mounts::refuse_own_mount("store", &place)?;
        let request = Request {
            collection: self.collection,
            paths: self.paths,
            tier: self.tier,
            encoder: self.encoder,
            shard_of: self.shard_of,
            parent: self.parent,
            reconstruct: self.reconstruct,
            in_place: self.in_place,
            block_bytes: self.block_bytes,
            head_dim: self.head_dim,
            manifest: self.manifest,
            tag: None,
        };
        if request.in_place {
            make_if_missing(&place)?;
        }
        let plan = Plan::of(request, &place)?;
        let bar = Bar::new(plan.bytes(), json);
        let sum = match open(&place) {
            Ok(store) => {
                let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
                let engine = Engine::new(Arc::new(store));
                let how = plan.request().reconstruct.as_deref().map(Reconstruct::parse).transpose()?;
                let evict = |collection: &_, target: &_| match how {
                    Some(how) => evict_imported(&engine, collection, target, how),
                    None => Ok(None),
                };
                let mut sum = Sum::default();
                plan.run(&engine.store, owner, &bar, Some(&evict), &mut sum).map(|()| sum)
            }
            Err(error) if error.kind() == ErrorKind::Busy => match mounts::mount_for(&place)? {
                Some(mounted) => import_through_daemon(&mounted, &plan, error, &bar),
                None => Err(error),
            },
            Err(error) => Err(error),
        };
        bar.finish();
        report(&plan, &sum?, json)
    }
}

/// Has the daemon of a mount import and waits. Returns `busy` if the mount is read-only.
fn import_through_daemon(mounted: &Mounted, plan: &Plan, busy: Error, bar: &Bar) -> Result<Sum> {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let tag = format!("{}-{}", std::process::id(), since.map_or(0, |since| since.as_nanos()));
    let line = Request { tag: Some(tag.clone()), ..plan.request().clone() }.to_json()?;
    let path = mounted.mountpoint.join(".ctl/import");
    if let Err(error) = std::fs::write(&path, line) {
        return Err(match error.raw_os_error() {
            Some(number) if number == rustix::io::Errno::ROFS.raw_os_error() => busy,
            _ => {
                Error::io(format!("{} (see .ctl/events of the mount for the reason)", path.display()), error)
            }
        });
    }
    let ended = wait_for_tagged_job(mounted, &format!("{IMPORT}:{tag}"), &bar.bar)?;
    let json = ended.split_once(": ").map_or("", |(_, json)| json);
    let sum = Sum::from_json(json)
        .ok_or_else(|| Error::invalid(format!("unexpected result from the daemon: {ended:?}")))?;
    let tried = (sum.files as usize).saturating_add(sum.failed.len());
    for (source, target, bytes) in plan.sources().take(tried) {
        match sum.failed.iter().find(|(failed, _)| *failed == absolute(&source)) {
            Some((_, why)) => bar.warn(&format!("tierfs: {source}: {why}")),
            None => bar.took(&target, bytes)?,
        }
    }
    Ok(sum)
}

/// The absolute path by which the daemon reports a source.
fn absolute(source: &str) -> String {
    std::path::absolute(source).map_or_else(|_| source.to_owned(), |path| path.display().to_string())
}

fn report(plan: &Plan, sum: &Sum, json: bool) -> Result<Outcome> {
    let path = plan.path();
    if json {
        print_json(&sum.to_json(&path))?;
    } else {
        let Sum { files, tensors, children, bytes, stored, .. } = sum;
        let lineage = plan.request().parent.as_ref().map_or(String::new(), |parent| {
            let without = tensors.saturating_sub(*children);
            format!(", {children} with a parent in {parent} and {without} without")
        });
        let (bytes, stored) = (human(*bytes), human(*stored));
        print(&format!(
            "{path}: {files} files with {tensors} tensors{lineage}, {bytes}, stored in {stored}\n"
        ))?;
    }
    Ok(if sum.failed.is_empty() { Outcome::Succeeded } else { Outcome::Failed })
}

fn make_if_missing(path: &Path) -> Result<()> {
    if Store::exists(&FileDisk::new(path)) { Ok(()) } else { init::create(path) }
}

/// Opens a store for writing and creates it if it does not exist.
fn open(path: &Path) -> Result<Store> {
    make_if_missing(path)?;
    let note = format!("process {}, which imports", std::process::id());
    let disk = FileDisk::new(path);
    Store::open(Arc::new(disk), Access::Write, &note).map_err(|error| mounts::with_mounts(error, path))
}

/// Shows progress as a bar on a terminal, and as lines elsewhere.
struct Bar {
    bar: ProgressBar,
    quiet: bool,
}

impl Bar {
    fn new(bytes: u64, quiet: bool) -> Bar {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = if terminal { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
        let style = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Bar { bar, quiet: quiet || terminal }
    }

    fn warn(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Progress for Bar {
    fn advance(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Watch for Bar {
    fn began(&self, path: &str) {
        self.bar.set_message(path.to_owned());
    }

    fn took(&self, path: &str, bytes: u64) -> Result<()> {
        if self.quiet { Ok(()) } else { print(&format!("{path}  {}\n", human(bytes))) }
    }

    fn kept(&self, path: &str, why: &str) {
        self.warn(&format!("tierfs: {path}: {why}"));
    }

    fn failed(&self, source: &str, error: &Error) {
        self.warn(&format!("tierfs: {source}: {error}"));
    }
}
