//! `tierfs export`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::cli::Outcome;
use crate::cli::common::folder::{Draft, Folder};
use crate::cli::common::interrupt::Interrupt;
use crate::cli::common::output::{complain, files_text, human, print};
use crate::cli::common::tree::Tree;
use crate::format::files::tensor_parallel::Rank;
use crate::model::{Error, ErrorKind, Result};
use crate::store::disk::without_zeros;
use crate::vfs::form::{Form, MERGED_NAME, Shows};
use crate::vfs::{Attr, FORMS_NAME, Ino, Kind, Located, Vfs};

/// Reads from an offset until the buffer is full or the file ends. Returns the number of bytes.
type Read<'a> = dyn Fn(u64, &mut [u8]) -> Result<usize> + 'a;

/// Bytes copied at a time.
const CHUNK_BYTES: usize = 4 << 20;

/// Copy a file or a collection out of a store.
///
/// Exporting a collection copies the listed files, so that every byte is copied once. A file appears
/// under its name only when it is complete. Symbolic links are copied as links. Links that exist below
/// the destination are replaced, never followed. A mounted store is read through its mount. Ctrl-C leaves the finished
/// files; a later export into the directory removes the partial files that a killed one has left, unless locks do not work
/// there.
///
/// With --as, exports the files that a mount shows in .as/FORM of the collection. PATH still names the
/// file by its name in the collection: with npy, `w` is written as `w.npy`.
///
/// Example: tierfs export /srv/tensors acme/llama ./llama
///
/// With --adapter, exports the files that a mount shows in .as/merged/ADAPTER: the model with the adapter added.
///
/// Example: tierfs export --as f16 /srv/tensors acme/llama/model.safetensors ./half
///
/// Example: tierfs export --adapter my-lora /srv/tensors acme/llama ./merged
///
/// Example: tierfs export --as tp/0-of-2 /srv/tensors acme/llama ./rank0
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or a remote; a path in a mount names both
    store: PathBuf,
    /// TENANT/COLLECTION, or a path below it
    path: String,
    /// A directory, created if it does not exist; for a single file, also its new name
    destination: PathBuf,
    /// Convert to this form
    #[arg(long = "as", value_name = "FORM", value_parser = FormParser)]
    form: Option<Wanted>,
    /// Add this adapter of the tenant: a collection, or COLLECTION:DIRECTORY
    #[arg(long, value_name = "ADAPTER", conflicts_with = "form")]
    adapter: Option<String>,
}

/// The directory below `.as` whose files are copied.
#[derive(Clone)]
enum Wanted {
    Form(Form),
    /// The form with this adapter, by its name.
    Adapter(String),
}

/// Parses the name of a form, `tp/R-of-N` or `merged/ADAPTER`.
#[derive(Clone)]
struct FormParser;

/// The names of the most forms that an error lists.
const LISTED_MAX: usize = 16;

/// The name of a form in the help. A form with a parameter has no name without one.
fn name_in_help(form: Form) -> &'static str {
    match form {
        Form::Ranks => "tp/R-of-N",
        Form::Merges => "merged/ADAPTER",
        form => form.name(),
    }
}

impl FormParser {
    fn names(&self) -> PossibleValuesParser {
        PossibleValuesParser::new(Form::ALL.map(name_in_help))
    }
}

impl TypedValueParser for FormParser {
    type Value = Wanted;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> std::result::Result<Wanted, clap::Error> {
        let rank = || value.as_bytes().strip_prefix(b"tp/").and_then(Rank::from_name).map(Form::Rank);
        if let Some(form) = Form::from_name(value.as_bytes()).or_else(rank) {
            return Ok(Wanted::Form(form));
        }
        let adapter = value.to_str().and_then(|value| value.strip_prefix(MERGED_NAME)?.strip_prefix('/'));
        if let Some(adapter) = adapter.filter(|adapter| !adapter.is_empty()) {
            return Ok(Wanted::Adapter(adapter.to_owned()));
        }
        let none = |_| Err(Error::invalid("R and N stand for numbers, as in tp/0-of-2"));
        self.names().try_map(none).parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let values: Vec<PossibleValue> = self.names().possible_values()?.collect();
        Some(Box::new(values.into_iter()))
    }
}

/// The error for the directory of a form that has a directory for each value of a parameter. It lists these.
fn not_one_form(form: Form, directory: &Source<'_>) -> Error {
    let names = match directory.names() {
        Ok(names) => names,
        Err(error) => return error,
    };
    let listed = names.iter().take(LISTED_MAX).map(|name| {
        let name = String::from_utf8_lossy(name);
        format!("{}/{name}", form.name())
    });
    let listed: Vec<String> = listed.collect();
    let more = match names.len() - listed.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let known = match listed.is_empty() {
        true => "this collection has none".to_owned(),
        false => format!("this collection has {}{more}", listed.join(", ")),
    };
    Error::invalid(format!("--as {} needs the form {}; {known}", form.name(), name_in_help(form)))
}

/// The path of a file or directory below `.as/FORM`.
fn path_in_form(path: &str, form: &str) -> Result<String> {
    let mut names = path.trim_matches('/').splitn(3, '/');
    let (Some(tenant), Some(collection)) = (names.next(), names.next()) else {
        let text = format!("{path:?}: a form needs a collection; name TENANT/COLLECTION or a path below it");
        return Err(Error::invalid(text));
    };
    let below = names.next().map(|below| format!("/{below}")).unwrap_or_default();
    Ok(format!("{tenant}/{collection}/{FORMS_NAME}/{form}{below}"))
}

/// Looks up a path. In a form a file may have a suffix that it lacks in its collection, which is tried
/// first. Returns the name too.
fn found<'a>(root: &Source<'a>, path: &[u8], form: Option<Form>) -> Result<(Vec<u8>, Source<'a>)> {
    let here = |path: &[u8]| {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        names.clone().try_fold(root.clone(), |at, name| at.child(name)).map(|found| {
            let name = names.next_back().unwrap_or_default();
            (name.to_vec(), found)
        })
    };
    let Some(form) = form else { return here(path) };
    if let Shows::Wrapped(suffix) = form.shows() {
        match here(&[path, suffix.as_bytes()].concat()) {
            Ok(found) if found.1.kind != Kind::Directory => return Ok(found),
            Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotDirectory) => {
                return Err(error);
            }
            _ => {}
        }
    }
    here(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let text = format!(
                "{error}: it is not in the collection, or the form {} does not include it",
                form.path()
            );
            Error::new(ErrorKind::NotFound, text)
        }
        _ => error,
    })
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (form, adapter) = match (self.form, self.adapter) {
            (Some(Wanted::Form(form)), _) => (Some(form), None),
            (Some(Wanted::Adapter(adapter)), _) => (None, Some(adapter)),
            (None, adapter) => (None, adapter),
        };
        let family = form.filter(|form| matches!(form, Form::Ranks | Form::Merges));
        let path = match (form, adapter) {
            (Some(form), _) if family.is_some() => {
                let names: Vec<&str> = self.path.trim_matches('/').splitn(3, '/').take(2).collect();
                path_in_form(&names.join("/"), form.name())?
            }
            (Some(form), _) => path_in_form(&self.path, &form.path())?,
            (None, Some(adapter)) => path_in_form(&self.path, &format!("{MERGED_NAME}/{adapter}"))?,
            (None, None) => self.path,
        };
        let tree = Tree::open(&self.store, Some(&path))?;
        let (root, path) = match &tree {
            Tree::Store { vfs, below } => (Source::stored(vfs, Ino::ROOT, Located::Root), below.clone()),
            Tree::Mount(place) => {
                // Links on the way to the mount point are followed, none below it.
                let names = path.split('/').filter(|name| !name.is_empty()).count();
                let root = place.ancestors().nth(names).unwrap_or(place);
                (Source::mounted(root.to_owned())?, path.into_bytes())
            }
        };
        let (name, source) = found(&root, &path, form)?;
        if let Some(family) = family {
            return Err(not_one_form(family, &source));
        }
        let mut copy = Copy { sum: Sum::default(), interrupt: Interrupt::listen()? };
        let copied = copy.to(&self.destination, source, &name);
        let text = copy.sum.text();
        match copied {
            Err(error) if error.kind() == ErrorKind::Interrupted => {
                complain(&format!("tierfs: cancelled: {text}"));
                return Ok(Outcome::Failed);
            }
            copied => copied?,
        }
        print(&format!("{text}\n"))?;
        Ok(Outcome::Succeeded)
    }
}

/// A file or directory to copy, with its attributes.
#[derive(Clone)]
struct Source<'a> {
    kind: Kind,
    mode: u32,
    /// In nanoseconds since 1970.
    atime: i64,
    mtime: i64,
    place: Place<'a>,
}

#[derive(Clone)]
enum Place<'a> {
    /// Of an unmounted store.
    Store(&'a Vfs, Ino, Located),
    /// Of a mount: the open file or directory, and its path for messages.
    Mount(Arc<OwnedFd>, PathBuf),
    /// A symbolic link of a mount, with its target.
    Link(Vec<u8>),
}

impl<'a> Source<'a> {
    fn stored(vfs: &'a Vfs, ino: Ino, located: Located) -> Source<'a> {
        let Attr { kind, mode, atime, mtime, .. } = vfs.attr(ino, &located);
        Source { kind, mode, atime, mtime, place: Place::Store(vfs, ino, located) }
    }

    /// The directory that a store is mounted on.
    fn mounted(path: PathBuf) -> Result<Source<'a>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        Source::opened(opened.map_err(|error| Error::io(path.display(), error.into()))?, path)
    }

    fn opened(file: OwnedFd, path: PathBuf) -> Result<Source<'a>> {
        let found = rustix::fs::fstat(&file).map_err(|error| Error::io(path.display(), error.into()))?;
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let nanoseconds = |seconds: i64, rest| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Ok(Source {
            kind: if is_directory { Kind::Directory } else { Kind::File },
            mode: found.st_mode,
            atime: nanoseconds(found.st_atime, found.st_atime_nsec as i64),
            mtime: nanoseconds(found.st_mtime, found.st_mtime_nsec as i64),
            place: Place::Mount(Arc::new(file), path),
        })
    }

    /// The entry of a name in the directory. A symbolic link is not followed, even one that replaces the entry
    /// meanwhile.
    fn child(&self, name: &[u8]) -> Result<Source<'a>> {
        match &self.place {
            Place::Store(vfs, ino, _) => {
                let (ino, located) = vfs.lookup(*ino, name)?;
                Ok(Source::stored(vfs, ino, located))
            }
            Place::Mount(directory, path) => {
                let (name, path) = (OsStr::from_bytes(name), path.join(OsStr::from_bytes(name)));
                let failed = |error: Errno| Error::io(path.display(), error.into());
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                match rustix::fs::openat(directory, name, flags, Mode::empty()) {
                    Ok(file) => Source::opened(file, path),
                    Err(Errno::LOOP) => {
                        let target = rustix::fs::readlinkat(directory, name, Vec::new()).map_err(failed)?;
                        let place = Place::Link(target.into_bytes());
                        Ok(Source { kind: Kind::Symlink, mode: 0, atime: 0, mtime: 0, place })
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            Place::Link(_) => {
                Err(Error::new(ErrorKind::NotDirectory, "it is a symbolic link, not a directory"))
            }
        }
    }

    /// The names in the directory.
    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        match &self.place {
            Place::Store(vfs, ino, _) => vfs.list(*ino, 0, &mut |listed| {
                names.push(listed.name);
                true
            })?,
            Place::Mount(directory, path) => {
                let failed = |error: Errno| Error::io(path.display(), error.into());
                for entry in rustix::fs::Dir::read_from(directory).map_err(failed)? {
                    names.push(entry.map_err(failed)?.file_name().to_bytes().to_vec());
                }
            }
            Place::Link(_) => {}
        }
        names.retain(|name| !matches!(name.as_slice(), b"." | b".."));
        Ok(names)
    }

    fn reader(&self) -> Result<Box<Read<'_>>> {
        Ok(match &self.place {
            Place::Store(vfs, _, Located::Node(view)) => {
                let open_file = vfs.open(view)?;
                Box::new(move |at, out| open_file.read(at, out))
            }
            Place::Store(vfs, _, Located::Form(view)) => {
                let stream = vfs.open_form(view, &vfs.recipe(view)?)?;
                Box::new(move |at, out| stream.read(at, out))
            }
            Place::Mount(file, path) => Box::new(move |at, out: &mut [u8]| {
                rustix::io::pread(file, out, at).map_err(|error| Error::io(path.display(), error.into()))
            }),
            _ => return Err(Error::invalid("only files and directories of a collection can be exported")),
        })
    }

    /// The target of a symbolic link.
    fn link(&self) -> Result<Vec<u8>> {
        match &self.place {
            Place::Store(vfs, ino, _) => vfs.read_link(*ino),
            Place::Link(target) => Ok(target.clone()),
            Place::Mount(..) => Err(Error::invalid("not a symbolic link")),
        }
    }
}

/// The files that were copied.
#[derive(Default)]
struct Sum {
    files: u64,
    bytes: u64,
}

impl Sum {
    fn text(&self) -> String {
        format!("{}, {}", files_text(self.files), human(self.bytes))
    }
}

/// A copy in progress. Its methods fail with `Interrupted` after Ctrl-C.
struct Copy {
    sum: Sum,
    interrupt: Interrupt,
}

impl Copy {
    fn check(&self) -> Result<()> {
        match self.interrupt.is_pressed() {
            true => Err(Error::new(ErrorKind::Interrupted, "the export was cancelled")),
            false => Ok(()),
        }
    }

    /// Copies a file or a directory to the destination that the user has named.
    fn to(&mut self, destination: &Path, source: Source<'_>, name: &[u8]) -> Result<()> {
        if source.kind == Kind::Directory {
            let failed = |error| Error::io(destination.display(), error);
            fs::create_dir_all(destination).map_err(failed)?;
            self.all_below(source, Folder::open(destination)?)
        } else {
            let mut folder = destination;
            let mut name = OsStr::from_bytes(name);
            if destination.as_os_str().as_bytes().ends_with(b"/") {
                fs::create_dir_all(destination).map_err(|error| Error::io(destination.display(), error))?;
            }
            if !destination.is_dir() {
                // The destination is the file's new name. An existing file there is replaced.
                name = folder.file_name().unwrap_or(name);
                folder = folder.parent().unwrap_or(folder);
            }
            let folder = if folder.as_os_str().is_empty() { ".".as_ref() } else { folder };
            let folder = Folder::open(folder)?;
            self.entry(&source, &folder, name)?;
            folder.remove_left_drafts();
            Ok(())
        }
    }

    /// Copies everything below a directory. Iterates instead of recursing because a user may have created
    /// a very deep tree.
    fn all_below(&mut self, from: Source<'_>, to: Folder) -> Result<()> {
        let names = from.names()?.into_iter();
        let mut open = vec![(from, to, names)];
        while let Some((from, to, names)) = open.last_mut() {
            let Some(name) = names.next() else {
                to.remove_left_drafts();
                open.pop();
                continue;
            };
            let source = from.child(&name)?;
            let name = OsStr::from_bytes(&name);
            if source.kind == Kind::Directory {
                let below = to.enter(name)?;
                let names = source.names()?.into_iter();
                open.push((source, below, names));
            } else {
                self.entry(&source, to, name)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, source: &Source<'_>, folder: &Folder, name: &OsStr) -> Result<()> {
        self.check()?;
        if source.kind == Kind::Symlink {
            return folder.draft_link(OsStr::from_bytes(&source.link()?))?.name(name);
        }
        let reader = source.reader()?;
        let (draft, file) = folder.draft_file()?;
        self.sum.bytes += self.write(source, &*reader, draft, &file, name)?;
        self.sum.files += 1;
        Ok(())
    }

    /// Writes all bytes to a draft, with holes for long zeros, syncs it and then gives it its name. Returns the number of
    /// bytes.
    fn write(
        &self,
        source: &Source<'_>,
        read: &Read<'_>,
        draft: Draft<'_>,
        file: &File,
        name: &OsStr,
    ) -> Result<u64> {
        let failed = |error| Error::io(draft.path().display(), error);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            self.check()?;
            let count = read(at, &mut chunk)?;
            let Some(bytes) = chunk.get(..count).filter(|bytes| !bytes.is_empty()) else { break };
            for (from, stretch) in without_zeros(bytes) {
                file.write_all_at(stretch, at + from).map_err(failed)?;
            }
            at += count as u64;
        }
        file.set_len(at).map_err(failed)?;
        file.set_permissions(fs::Permissions::from_mode(source.mode & 0o777)).map_err(failed)?;
        let times = fs::FileTimes::new().set_accessed(time(source.atime)).set_modified(time(source.mtime));
        file.set_times(times).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        draft.name(name)?;
        Ok(at)
    }
}

fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}
