//! `tierfs import`.

use std::collections::HashMap;
use std::fs;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::output::{human, print, print_json};
use crate::cli::walk::{Found, files};
use crate::cli::{Done, init, mounts};
use crate::ingest::{
    Blocking, MoveTo, Options, Origin, Progress, Report, Target, import_file, import_shards,
};
use crate::model::{Encoder, Error, ErrorKind, Result, check_label};
use crate::store::disk::files::{FileDisk, open_source};
use crate::store::{Access, Collection, Store};

/// Take files into a collection: .safetensors and .npy with their tensors, others as they are.
///
/// A directory's content goes to the collection as it lies in the directory; symbolic links are
/// followed. A file that is there already is replaced, whole. On an error nothing of that file
/// appears, and the others are taken in.
///
/// Example: tierfs import /srv/tensors acme/llama ~/models/llama --tier q8
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store; made if it is not there
    store: PathBuf,
    /// The collection, as TENANT/COLLECTION; made if it is not there
    #[arg(value_name = "TENANT/COLLECTION", value_parser = parse_collection)]
    collection: (String, String),
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Keep float matrices in this tier: exact, q8, q7, q5, q3 or q3x; with :all every float tensor
    #[arg(long, value_name = "TIER[:all]", value_parser = |text: &str| MoveTo::parse(text))]
    tier: Option<MoveTo>,
    /// How scales are chosen: best (least squared error) or absmax
    #[arg(long, default_value = "best", value_parser = parse_encoder)]
    encoder: Encoder,
    /// The paths are the shards, in this order, of one tensor of this name
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tier", "manifest"])]
    shard_of: Option<String>,
    /// Copy nothing: the bytes stay in the files, which must not change from now on
    #[arg(long, conflicts_with_all = ["tier", "shard_of"])]
    in_place: bool,
    /// Bytes of a block, 4096 to 131072
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text).and_then(Blocking::bytes), conflicts_with = "head_dim")]
    block_bytes: Option<Blocking>,
    /// Blocks of whole positions of N elements: for caches of keys and values
    #[arg(long, value_name = "N", value_parser = |text: &str| number(text).and_then(Blocking::head_dim))]
    head_dim: Option<Blocking>,
    /// Take in only what has the SHA-256 that this file, in the form of sha256sum, says
    #[arg(long, value_name = "SHA256SUMS")]
    manifest: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

fn parse_collection(text: &str) -> Result<(String, String)> {
    let (tenant, name) = text
        .split_once('/')
        .ok_or_else(|| Error::invalid(format!("{text:?} is not of the form TENANT/COLLECTION")))?;
    for label in [tenant, name] {
        check_label(label).map_err(|wrong| Error::invalid(format!("{label:?}: {wrong}")))?;
    }
    Ok((tenant.to_owned(), name.to_owned()))
}

fn parse_encoder(text: &str) -> Result<Encoder> {
    Encoder::from_name(text).ok_or_else(|| Error::invalid(format!("{text:?} is neither best nor absmax")))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| Error::invalid(format!("{text:?} is no number")))
}

impl Args {
    pub fn run(self) -> Result<Done> {
        let (tenant, name) = (&self.collection.0, &self.collection.1);
        let found = match self.shard_of {
            Some(_) => Vec::new(),
            None => files(&self.paths)?,
        };
        let sums = self.manifest.as_deref().map(Manifest::read).transpose()?;
        let store = open(&self.store)?;
        let options = Options {
            tier: self.tier,
            encoder: self.encoder,
            blocking: self.block_bytes.or(self.head_dim).unwrap_or_default(),
            in_place: None,
        };
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let collection = store.collection_made(tenant, name, owner)?;
        let mut sum = Sum::default();
        if let Some(tensor) = &self.shard_of {
            sum.add(self.shards(&collection, tensor, &options)?);
        }
        let bytes = found.iter().map(|found| found.bytes).sum();
        let bar = Bar::new(bytes, self.json);
        for found in &found {
            bar.name(found);
            let options = match self.in_place {
                true => in_place(&self.store, &found.source, &options),
                false => Ok(options.clone()),
            };
            match options.and_then(|options| one(&store, &collection, found, sums.as_ref(), &options, &bar)) {
                Ok(report) => {
                    sum.add(report);
                    bar.say(&format!("{}  {}", found.target.path(), human(report.bytes)))?;
                }
                Err(error) => {
                    sum.failed.push((found.source.display().to_string(), error.to_string()));
                    bar.warn(&format!("tierfs: {}: {error}", found.source.display()));
                    // The store itself takes no more.
                    if matches!(error.kind(), ErrorKind::Full | ErrorKind::ReadOnly) {
                        break;
                    }
                }
            }
        }
        bar.finish();
        self.report(&collection, &sum)
    }

    fn shards(&self, collection: &Arc<Collection>, tensor: &str, options: &Options) -> Result<Report> {
        let mut sources = Vec::new();
        let mut bytes = 0;
        for path in &self.paths {
            mounts::refuse_own_mount("source", path)?;
            let metadata = fs::metadata(path).map_err(|error| Error::io(path.display(), error))?;
            if !metadata.is_file() {
                return Err(Error::invalid(format!("{} is no file", path.display())));
            }
            sources.push(open_source(path).map_err(|error| Error::io(path.display(), error))?);
            bytes += metadata.len();
        }
        let first = self.paths.first().ok_or_else(|| Error::invalid("no shards"))?;
        let metadata = fs::metadata(first).map_err(|error| Error::io(first.display(), error))?;
        let mut parts: Vec<Vec<u8>> = tensor.split('/').map(|part| part.as_bytes().to_vec()).collect();
        if parts.iter().any(|part| matches!(part.as_slice(), b"" | b"." | b"..")) {
            return Err(Error::invalid(format!("{tensor:?} is no path below a collection")));
        }
        let name = parts.pop().unwrap_or_default();
        let target = Target { directories: parts, name };
        let bar = Bar::new(bytes, self.json);
        let report = import_shards(collection, &target, &sources, &origin(&metadata, None), options, &bar);
        bar.finish();
        report
    }

    fn report(&self, collection: &Collection, sum: &Sum) -> Result<Done> {
        let Sum { files, tensors, bytes, stored, failed } = sum;
        if self.json {
            let failed: Vec<_> = failed
                .iter()
                .map(|(path, error)| serde_json::json!({ "path": path, "error": error }))
                .collect();
            print_json(&serde_json::json!({
                "collection": collection.path(),
                "files": files,
                "tensors": tensors,
                "bytes": bytes,
                "bytes_stored": stored,
                "failed": failed,
            }))?;
        } else {
            let (bytes, stored) = (human(*bytes), human(*stored));
            let path = collection.path();
            print(&format!("{path}: {files} files with {tensors} tensors, {bytes}, stored in {stored}\n"))?;
        }
        Ok(if failed.is_empty() { Done::Well } else { Done::Failed })
    }
}

#[derive(Default)]
struct Sum {
    files: u64,
    tensors: u64,
    bytes: u64,
    stored: u64,
    failed: Vec<(String, String)>,
}

impl Sum {
    fn add(&mut self, report: Report) {
        self.files += 1;
        self.tensors += report.tensors;
        self.bytes += report.bytes;
        self.stored += report.stored;
    }
}

/// Opens a store to write, made if it is not there.
fn open(path: &Path) -> Result<Store> {
    mounts::refuse_own_mount("store", path)?;
    let disk = FileDisk::new(path);
    if !Store::exists(&disk) {
        init::create(path)?;
    }
    let note = format!("process {}, which imports", std::process::id());
    Store::open(Arc::new(disk), Access::Write, &note).map_err(|error| mounts::with_mounts(error, path))
}

fn one(
    store: &Store,
    collection: &Arc<Collection>,
    found: &Found,
    sums: Option<&Manifest>,
    options: &Options,
    bar: &Bar,
) -> Result<Report> {
    mounts::refuse_own_mount("source", &found.source)?;
    let sha256 = sums.map(|sums| sums.find(&found.target)).transpose()?;
    let failed = |error| Error::io("opening it", error);
    let source = open_source(&found.source).map_err(failed)?;
    let metadata = fs::metadata(&found.source).map_err(failed)?;
    let origin = origin(&metadata, sha256);
    import_file(collection, store.settings(), &found.target, &source, &origin, options, bar)
}

/// The options for a source that stays where it is: outside the store, and on no tierfs.
fn in_place(store: &Path, source: &Path, options: &Options) -> Result<Options> {
    let real = |path: &Path| fs::canonicalize(path).map_err(|error| Error::io(path.display(), error));
    // Before anything is asked of it: what lies on a tierfs is not.
    mounts::refuse_own_mount("source", source)?;
    let path = real(source)?;
    mounts::refuse_own_mount("source", &path)?;
    if path.starts_with(real(store)?) {
        let text = format!("{} lies in the store itself; import it from elsewhere", path.display());
        return Err(Error::invalid(text));
    }
    Ok(Options { in_place: Some(path.into_os_string().into_vec()), ..options.clone() })
}

fn origin(metadata: &fs::Metadata, sha256: Option<[u8; 32]>) -> Origin {
    Origin {
        mode: metadata.mode(),
        owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        mtime: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        sha256,
    }
}

/// Digests by paths, as sha256sum writes them.
struct Manifest(HashMap<String, [u8; 32]>);

impl Manifest {
    fn read(path: &Path) -> Result<Manifest> {
        let text = fs::read_to_string(path).map_err(|error| Error::io(path.display(), error))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let sums = lines.map(|(place, line)| {
            manifest_line(line).ok_or_else(|| {
                Error::invalid(format!("{}, line {}: not as sha256sum writes it", path.display(), place + 1))
            })
        });
        Ok(Manifest(sums.collect::<Result<_>>()?))
    }

    fn find(&self, target: &Target) -> Result<[u8; 32]> {
        let path = target.path();
        self.0.get(&path).copied().ok_or_else(|| Error::invalid(format!("the manifest does not name {path}")))
    }
}

fn manifest_line(line: &str) -> Option<(String, [u8; 32])> {
    let (hex, name) = line.split_once([' ', '\t'])?;
    let name = name.trim_start_matches([' ', '*']).trim_start_matches("./");
    if hex.len() != 64 || !hex.is_ascii() || name.is_empty() {
        return None;
    }
    let mut digest = [0; 32];
    for (place, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(place * 2..place * 2 + 2)?, 16).ok()?;
    }
    Some((name.to_owned(), digest))
}

/// A bar on a terminal, lines elsewhere.
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

    fn name(&self, found: &Found) {
        self.bar.set_message(found.target.path());
    }

    fn say(&self, line: &str) -> Result<()> {
        if self.quiet { Ok(()) } else { print(&format!("{line}\n")) }
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

#[cfg(test)]
mod tests {
    use super::manifest_line;

    #[test]
    fn lines_of_sha256sum_are_read_and_others_refused() {
        let hex = "ab".repeat(32);
        for (line, name) in [
            (format!("{hex}  model.safetensors"), "model.safetensors"),
            (format!("{hex} *./sub/a b.npy"), "sub/a b.npy"),
        ] {
            assert_eq!(manifest_line(&line), Some((name.to_owned(), [0xab; 32])), "{line}");
        }
        for line in [
            hex.clone(),
            format!("{hex}  "),
            format!("{}  x", "g".repeat(64)),
            format!("{}  x", "a".repeat(63)),
        ] {
            assert_eq!(manifest_line(&line), None, "{line}");
        }
    }
}
