//! `tierfs export`.

use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::Done;
use crate::cli::output::{human, print};
use crate::cli::tree::Tree;
use crate::model::{Error, ErrorKind, Result};
use crate::namespace::{Attr, FORMS_NAME, Ino, Kind, Located, Namespace, Shown};
use crate::view::{Form, Shows};

/// Reads from an offset on until a buffer is full or the file ends; how many bytes.
type Read = dyn Fn(u64, &mut [u8]) -> Result<usize>;

/// Bytes that are copied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Copy a file or a collection out of a store.
///
/// Of a collection: containers, plain files and tensors that are files of their own, so that every
/// byte is copied once. A file appears under its name only when it is whole.
///
/// With --as, what the mount shows in .as/FORM of the collection. There a file is found by its name
/// in the collection: in npy, `w` is written as `w.npy`.
///
/// Example: tierfs export /srv/tensors acme/llama ./llama
///
/// Example: tierfs export --as f16 /srv/tensors acme/llama/model.safetensors ./half
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store
    store: PathBuf,
    /// TENANT/COLLECTION, or a path below it
    path: String,
    /// A directory, made if it is not there; for one file also the file's new name
    destination: PathBuf,
    /// In another form of the same bytes
    #[arg(long = "as", value_name = "FORM", value_parser = form_parser())]
    form: Option<Form>,
}

fn form_parser() -> impl TypedValueParser<Value = Form> {
    PossibleValuesParser::new(Form::ALL.map(Form::name)).try_map(|name| {
        let form = Form::from_name(name.as_bytes());
        form.ok_or_else(|| Error::invalid("no form"))
    })
}

/// Where a path is found in a form.
fn path_in_form(path: &str, form: Form) -> Result<String> {
    let mut names = path.trim_matches('/').splitn(3, '/');
    let (Some(tenant), Some(collection)) = (names.next(), names.next()) else {
        let text = format!("{path:?}: forms are those of a collection; say TENANT/COLLECTION or more");
        return Err(Error::invalid(text));
    };
    let below = names.next().map(|below| format!("/{below}")).unwrap_or_default();
    Ok(format!("{tenant}/{collection}/{FORMS_NAME}/{}{below}", form.name()))
}

/// A path, or one in a form, where a file may have another name than in its collection.
fn found(namespace: &Namespace, path: &[u8], form: Option<Form>) -> Result<(Vec<u8>, Ino, Located)> {
    let here = |path: Vec<u8>| {
        let (ino, located) = namespace.walk(&path)?;
        Ok((path, ino, located))
    };
    let Some(form) = form else { return here(path.to_vec()) };
    if let Shows::Wrapped(suffix) = form.shows() {
        match here([path, suffix.as_bytes()].concat()) {
            Ok(found) if namespace.attr(found.1, &found.2).kind != Kind::Directory => return Ok(found),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                return Err(error);
            }
            _ => {}
        }
    }
    here(path.to_vec()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let text = format!("{error}: not in the collection, or the form {} leaves it out", form.name());
            Error::new(ErrorKind::NotFound, text)
        }
        _ => error,
    })
}

impl Args {
    pub fn run(self) -> Result<Done> {
        let path = match self.form {
            Some(form) => path_in_form(&self.path, form)?,
            None => self.path.clone(),
        };
        let tree = Tree::open(&self.store, Some(&path), Shown::Containers)?;
        let Tree::Store { namespace, below } = &tree else {
            let text = format!("{} is mounted: copy {} with cp", self.store.display(), tree.place());
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let (path, ino, located) = found(namespace, below, self.form)?;
        let mut sum = (0, 0);
        let attr = namespace.attr(ino, &located);
        if attr.kind == Kind::Directory {
            directory(namespace, ino, &self.destination, &mut sum)?;
        } else {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
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
    if attr.kind == Kind::Symlink {
        let link = namespace.read_link(attr.ino)?;
        return std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&link), target).map_err(failed);
    }
    let read: Box<Read> = match located {
        Located::Node(view) => {
            let live = namespace.open(view)?;
            Box::new(move |at, out| live.read(at, out))
        }
        Located::Form(view) => {
            let stream = namespace.open_form(view, &namespace.recipe(view)?)?;
            Box::new(move |at, out| stream.read(at, out))
        }
        _ => return Err(Error::invalid("only what is in a collection can be copied")),
    };
    let mut draft = target.as_os_str().to_owned();
    draft.push(".tierfs-partial");
    let draft = PathBuf::from(draft);
    match write(&read, attr, &draft, target) {
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
fn write(read: &Read, attr: &Attr, draft: &Path, target: &Path) -> Result<u64> {
    let failed = |error| Error::io(target.display(), error);
    let mut file = fs::File::create(draft).map_err(failed)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = read(at, &mut chunk)?;
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
