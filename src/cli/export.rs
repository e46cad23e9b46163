//! `tierfs export`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::cli::Outcome;
use crate::cli::shared::folder::{Draft, Folder};
use crate::cli::shared::output::{human, print};
use crate::cli::shared::tree::Tree;
use crate::model::{Error, ErrorKind, Result};
use crate::vfs::{Attr, FORMS_NAME, Ino, Kind, Located, Shown, Vfs};
use crate::view::{Form, Shows};

/// Reads from an offset until the buffer is full or the file ends. Returns the number of bytes.
type Read = dyn Fn(u64, &mut [u8]) -> Result<usize>;

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Copy a file or a collection out of a store.
///
/// Exporting a collection copies its containers, plain files and tensors that are not in a container,
/// so that every byte is copied once. A file appears under its name only when it is complete. Symbolic
/// links are copied as links. Links that exist below the destination are replaced, never followed.
///
/// With --as, exports the files that a mount shows in .as/FORM of the collection. PATH still names the
/// file by its name in the collection: with npy, `w` is written as `w.npy`.
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
    /// A directory, created if it does not exist; for a single file, also its new name
    destination: PathBuf,
    /// Convert to this form
    #[arg(long = "as", value_name = "FORM", value_parser = form_parser())]
    form: Option<Form>,
}

fn form_parser() -> impl TypedValueParser<Value = Form> {
    PossibleValuesParser::new(Form::ALL.map(Form::name)).try_map(|name| {
        let form = Form::from_name(name.as_bytes());
        form.ok_or_else(|| Error::invalid("unknown form"))
    })
}

/// The path of a file or directory below `.as/FORM`.
fn path_in_form(path: &str, form: Form) -> Result<String> {
    let mut names = path.trim_matches('/').splitn(3, '/');
    let (Some(tenant), Some(collection)) = (names.next(), names.next()) else {
        let text = format!("{path:?}: --as needs a collection; name TENANT/COLLECTION or a path below it");
        return Err(Error::invalid(text));
    };
    let below = names.next().map(|below| format!("/{below}")).unwrap_or_default();
    Ok(format!("{tenant}/{collection}/{FORMS_NAME}/{}{below}", form.name()))
}

/// Looks up a path. In a form a file may have a suffix that it lacks in its collection, which is tried
/// first.
fn found(vfs: &Vfs, path: &[u8], form: Option<Form>) -> Result<(Vec<u8>, Ino, Located)> {
    let here = |path: Vec<u8>| {
        let (ino, located) = vfs.walk(&path)?;
        Ok((path, ino, located))
    };
    let Some(form) = form else { return here(path.to_vec()) };
    if let Shows::Wrapped(suffix) = form.shows() {
        match here([path, suffix.as_bytes()].concat()) {
            Ok(found) if vfs.attr(found.1, &found.2).kind != Kind::Directory => return Ok(found),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                return Err(error);
            }
            _ => {}
        }
    }
    here(path.to_vec()).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let text = format!(
                "{error}: it is not in the collection, or the form {} does not include it",
                form.name()
            );
            Error::new(ErrorKind::NotFound, text)
        }
        _ => error,
    })
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let path = match self.form {
            Some(form) => path_in_form(&self.path, form)?,
            None => self.path.clone(),
        };
        let tree = Tree::open(&self.store, Some(&path), Shown::Containers)?;
        let Tree::Store { vfs, below } = &tree else {
            let text = format!("{} is mounted; copy {} with cp instead", self.store.display(), tree.place());
            return Err(Error::new(ErrorKind::Busy, text));
        };
        let (path, ino, located) = found(vfs, below, self.form)?;
        let mut sum = (0, 0);
        let attr = vfs.attr(ino, &located);
        if attr.kind == Kind::Directory {
            let failed = |error| Error::io(self.destination.display(), error);
            fs::create_dir_all(&self.destination).map_err(failed)?;
            all_below(vfs, ino, Folder::open(&self.destination)?, &mut sum)?;
        } else {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let mut folder = self.destination.as_path();
            let mut name = OsStr::from_bytes(name);
            if !self.destination.is_dir() {
                // The destination is the file's new name. An existing file there is replaced.
                name = folder.file_name().unwrap_or(name);
                folder = folder.parent().unwrap_or(folder);
            }
            let folder = if folder.as_os_str().is_empty() { ".".as_ref() } else { folder };
            entry(vfs, &located, &attr, (&Folder::open(folder)?, name), &mut sum)?;
        }
        print(&format!("{} files, {}\n", sum.0, human(sum.1)))?;
        Ok(Outcome::Succeeded)
    }
}

/// A directory whose copy is in progress.
struct Copying {
    ino: Ino,
    to: Folder,
    /// The names that remain to be copied.
    names: std::vec::IntoIter<Vec<u8>>,
}

impl Copying {
    fn new(vfs: &Vfs, ino: Ino, to: Folder) -> Result<Copying> {
        let mut names = Vec::new();
        vfs.list(ino, 0, &mut |listed| {
            if !matches!(listed.name.as_slice(), b"." | b"..") {
                names.push(listed.name);
            }
            true
        })?;
        Ok(Copying { ino, to, names: names.into_iter() })
    }
}

/// Copies everything below a directory. Iterates instead of recursing because a user may have created
/// a very deep tree.
fn all_below(vfs: &Vfs, ino: Ino, to: Folder, sum: &mut (u64, u64)) -> Result<()> {
    let mut open = vec![Copying::new(vfs, ino, to)?];
    while let Some(at) = open.last_mut() {
        let Some(name) = at.names.next() else {
            open.pop();
            continue;
        };
        let (ino, located) = vfs.lookup(at.ino, &name)?;
        let attr = vfs.attr(ino, &located);
        let name = OsString::from_vec(name);
        match attr.kind {
            Kind::Directory => {
                let to = at.to.enter(&name)?;
                open.push(Copying::new(vfs, ino, to)?);
            }
            _ => entry(vfs, &located, &attr, (&at.to, &name), sum)?,
        }
    }
    Ok(())
}

fn entry(
    vfs: &Vfs,
    located: &Located,
    attr: &Attr,
    (folder, name): (&Folder, &OsStr),
    sum: &mut (u64, u64),
) -> Result<()> {
    if attr.kind == Kind::Symlink {
        let target = vfs.read_link(attr.ino)?;
        return folder.draft_link(OsStr::from_bytes(&target))?.name(name);
    }
    let read: Box<Read> = match located {
        Located::Node(view) => {
            let open_file = vfs.open(view)?;
            Box::new(move |at, out| open_file.read(at, out))
        }
        Located::Form(view) => {
            let stream = vfs.open_form(view, &vfs.recipe(view)?)?;
            Box::new(move |at, out| stream.read(at, out))
        }
        _ => return Err(Error::invalid("only files and directories of a collection can be exported")),
    };
    let (draft, file) = folder.draft_file()?;
    sum.1 += write(&read, attr, (draft, file), name)?;
    sum.0 += 1;
    Ok(())
}

/// Writes all bytes to a draft, syncs it and then gives it its name. Returns the number of bytes.
fn write(read: &Read, attr: &Attr, (draft, mut file): (Draft<'_>, File), name: &OsStr) -> Result<u64> {
    let failed = |error| Error::io(draft.path().display(), error);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut at = 0;
    loop {
        let count = read(at, &mut chunk)?;
        let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
        file.write_all(bytes).map_err(failed)?;
        at += count as u64;
    }
    file.set_permissions(fs::Permissions::from_mode(attr.mode & 0o777)).map_err(failed)?;
    let times = fs::FileTimes::new().set_accessed(time(attr.atime)).set_modified(time(attr.mtime));
    file.set_times(times).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    draft.name(name)?;
    Ok(at)
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}
