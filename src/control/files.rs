//! The one table of control files: what each shows when it is read, and does when it is
//! written.

use std::sync::Arc;

#[cfg(feature = "mount")]
use crate::control::import;
use crate::control::mounted::Mounted;
use crate::control::text::{Make, Text};
use crate::control::{actions, blocks, compact, metrics, policy, prefetch, quota, scrub, status, tiers};
use crate::model::{Error, ErrorKind, Result};
use crate::store::Collection;
use crate::store::{EventKind, Events};
use crate::vfs::{Control, ControlView, Controls, FileView, Invalidation, Scope, Shape};

/// Bytes of a text that is written at once. The kernel cuts what is much longer, and a part
/// of a text must not act.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// What a control file is asked about.
pub struct Context<'a> {
    /// The mount.
    pub mounted: &'a Mounted,
    /// The file.
    pub view: &'a ControlView,
    /// Who asks.
    pub user: u32,
}

impl Context<'_> {
    /// The collection that the file belongs to.
    pub fn collection(&self) -> Result<&Arc<Collection>> {
        match &self.view.scope {
            Scope::Collection(collection) => Ok(collection),
            _ => Err(no_file()),
        }
    }

    /// In a tree: the file of the collection that it stands for.
    pub fn file(&self) -> Result<FileView> {
        self.view.file().ok_or_else(no_file)
    }
}

/// What reading shows.
enum Show {
    Text(fn(&Context) -> Result<String>),
    /// Made as it is read: it may be long.
    Lines(fn(&Context) -> Result<Make>),
}
/// What writing a text does: all of it or, where it fails, nothing. White space around the
/// text is gone; `Invalid` for a text that it does not take.
type Act = fn(&Context, &str) -> Result<Invalidation>;

/// A control file, or a tree of them.
pub struct File {
    /// Its name.
    pub name: &'static str,
    /// What reading it shows, and writing to it does.
    pub help: &'static str,
    /// A file, or a tree with one for each file of the collection.
    pub shape: Shape,
    /// Whether only who runs the mount may read it.
    pub is_private: bool,
    show: Option<Show>,
    act: Option<Act>,
}

const fn shown(name: &'static str, help: &'static str, show: fn(&Context) -> Result<String>) -> File {
    File { name, help, shape: Shape::File, is_private: false, show: Some(Show::Text(show)), act: None }
}

/// A file that acts, and shows something too.
const fn acting(
    name: &'static str,
    help: &'static str,
    show: fn(&Context) -> Result<String>,
    act: Act,
) -> File {
    File { act: Some(act), ..shown(name, help, show) }
}

const fn tree(name: &'static str, help: &'static str, lines: fn(&Context) -> Result<Make>) -> File {
    File { name, help, shape: Shape::Tree, is_private: false, show: Some(Show::Lines(lines)), act: None }
}

/// The files of the mount's `.ctl`. New ones go to the end: places are inode numbers.
pub const MOUNT_FILES: &[File] = &[
    shown("status", "what the store holds, for people", status::of_mount),
    shown("stats.json", "counters, as JSON", status::stats),
    File {
        show: None,
        act: Some(actions::sync),
        ..shown("sync", "write anything: all that was written is durable then", actions::config)
    },
    File {
        act: Some(actions::jobs),
        ..shown("jobs", "running and last jobs, a line each; write cancel N", |context| {
            Ok(context.mounted.jobs.text())
        })
    },
    shown("config", "settings in effect, as TOML", actions::config),
    shown("metrics", "counters, as Prometheus text", metrics::text),
    File {
        shape: Shape::Growing,
        is_private: true,
        show: None,
        ..shown("events", "what happened, a line of JSON each", actions::config)
    },
    acting(
        "compact",
        "start, stop: files are made whole again, tier files and logs short; the last result",
        compact::of_mount,
        compact::act_on_all,
    ),
    acting(
        "scrub",
        "start, stop: every stored checksum is checked; what the last scrubs have found",
        scrub::of_mount,
        scrub::act_on_all,
    ),
    #[cfg(feature = "mount")]
    File {
        show: None,
        act: Some(import::start),
        ..shown("import", "a line of JSON with the options of tierfs import; a job does it", actions::config)
    },
];

const QUOTA_HELP: &str = "what is used, and limits; write bytes=10G stored=1G files=1000, none for no limit";

/// The files of a tenant's `.ctl`; at most 15.
pub const TENANT_FILES: &[File] = &[
    shown("status", "what the tenant holds, for people", status::of_tenant),
    acting("quota", QUOTA_HELP, quota::of_tenant, quota::set_of_tenant),
];

/// The files of a collection's `.ctl`.
pub const COLLECTION_FILES: &[File] = &[
    shown("status", "what the collection holds, for people", status::of_collection),
    shown("tiers", "tensors, blocks and bytes by tier", tiers::table),
    acting("policy", "the setting policy: manual, auto, or cache BYTES: a quota", policy::shown, policy::set),
    tree("blocks", "a line a block, or for all of a hole: where it lies and how", blocks::table),
    tree("verify", "checks every stored checksum: ends with ok, or corrupt N of M", blocks::verify),
    File { is_private: true, ..tree("extents", "where the bytes lie on the disk, as JSON", blocks::extents) },
    acting(
        "compact",
        "start, stop: files are made whole again, tier files and the log short; the last result",
        compact::shown,
        compact::act,
    ),
    acting(
        "scrub",
        "start, stop: every stored checksum is checked; what the last scrub has found",
        scrub::shown,
        scrub::act,
    ),
    acting("quota", QUOTA_HELP, quota::of_collection, quota::set_of_collection),
    acting(
        "prefetch",
        "names of files or directories: checked and read ahead, so that the kernel can read them",
        prefetch::shown,
        prefetch::start,
    ),
];

fn table(scope: &Scope) -> &'static [File] {
    match scope {
        Scope::Mount => MOUNT_FILES,
        Scope::Tenant(_) => TENANT_FILES,
        Scope::Collection(_) => COLLECTION_FILES,
    }
}

/// What listings and stat show of the tables, made once a mount.
pub fn controls() -> Controls {
    let rows = |files: &'static [File]| -> &'static [Control] {
        Vec::leak(files.iter().map(File::control).collect())
    };
    Controls { mount: rows(MOUNT_FILES), tenant: rows(TENANT_FILES), collection: rows(COLLECTION_FILES) }
}

impl File {
    fn control(&self) -> Control {
        let mode = match (&self.act, self.is_private) {
            (Some(_), _) => 0o600,
            (None, true) => 0o400,
            (None, false) => 0o444,
        };
        Control { name: self.name, shape: self.shape, mode, is_private: self.is_private }
    }

    /// Whether writing to it does something.
    pub fn acts(&self) -> bool {
        self.act.is_some()
    }

    /// Whether reading it shows something.
    pub fn shows(&self) -> bool {
        self.show.is_some() || self.shape == Shape::Growing
    }
}

/// The row of a control file. `IsDirectory` for a control directory.
pub fn file_of(view: &ControlView) -> Result<&'static File> {
    let directory = || Error::new(ErrorKind::IsDirectory, "a directory of control files");
    let place = (view.place as usize).checked_sub(1).ok_or_else(directory)?;
    let file = table(&view.scope).get(place).ok_or_else(no_file)?;
    let is_file = file.shape != Shape::Tree || view.node.as_ref().is_some_and(|node| node.file().is_some());
    if is_file { Ok(file) } else { Err(directory()) }
}

/// What a control file shows now; nothing where it only acts. May take as long as reading
/// what it is about, and so may reading the text.
pub fn show(mounted: &Mounted, view: &ControlView, user: u32) -> Result<Text> {
    let context = Context { mounted, view, user };
    match &file_of(view)?.show {
        Some(Show::Text(show)) => Ok(Text::whole(show(&context)?)),
        Some(Show::Lines(lines)) => Text::made(lines(&context)?),
        None => Ok(Text::whole(String::new())),
    }
}

/// Does what a text that is written to a control file asks for; what the kernel must forget
/// then. `Denied` for a file that only shows, `Invalid` for a text that it does not take.
pub fn act(mounted: &Mounted, view: &ControlView, user: u32, text: &[u8]) -> Result<Invalidation> {
    let file = file_of(view)?;
    let done = done(&Context { mounted, view, user }, file, text);
    let cause = format!(".ctl/{}, user {user}", file.name);
    tell(mounted.store().events(), &view.path(), &cause, &String::from_utf8_lossy(text), &done);
    done
}

/// Tells that something was asked for, and whether it was done.
pub(super) fn tell<T>(events: &Events, path: &str, cause: &str, asked: &str, done: &Result<T>) {
    match done {
        Ok(_) => events.tell(EventKind::Control, path, cause, asked.trim()),
        Err(error) => events.tell(EventKind::Refusal, path, cause, &error.to_string()),
    }
}

fn done(context: &Context, file: &File, text: &[u8]) -> Result<Invalidation> {
    let act = file.act.ok_or_else(|| read_only(file))?;
    if text.len() > TEXT_BYTES_MAX {
        let most = TEXT_BYTES_MAX;
        return Err(Error::invalid(format!("{}: more than {most} bytes at once", file.name)));
    }
    let text = std::str::from_utf8(text).map_err(|_| Error::invalid(format!("{}: not text", file.name)))?;
    act(context, text.trim())
}

/// The refusal to write to a file that only shows.
pub fn read_only(file: &File) -> Error {
    Error::new(ErrorKind::Denied, format!("{} can only be read", file.name))
}

fn no_file() -> Error {
    Error::new(ErrorKind::NotFound, "there is no such control file")
}

#[cfg(test)]
mod tests {
    use super::{COLLECTION_FILES, MOUNT_FILES, TENANT_FILES};

    #[test]
    fn names_are_told_apart_and_every_file_shows_or_acts() {
        for files in [MOUNT_FILES, TENANT_FILES, COLLECTION_FILES] {
            for (place, file) in files.iter().enumerate() {
                assert!(file.shows() || file.acts(), "{}", file.name);
                assert!(files[..place].iter().all(|other| other.name != file.name), "{}", file.name);
            }
        }
        assert!(TENANT_FILES.len() < 16);
    }
}
