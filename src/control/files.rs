//! The tables of control files, with the text that a read of each shows and the action of a write to it.

use crate::control::context::{Context, Mounted, no_file};
#[cfg(feature = "mount")]
use crate::control::import;
use crate::control::maintenance::{COMPACT, SCRUB};
#[cfg(feature = "remote")]
use crate::control::push;
use crate::control::refusals::Asker;
use crate::control::text::{Make, Text};
use crate::control::{
    actions, blocks, foreseen, hot_tensors, join, maintenance, metrics, prefetch, quota, status,
};
use crate::model::{Error, ErrorKind, READ_BITS, Result};
use crate::store::{Event, EventKind, Events};
use crate::vfs::{Control, ControlView, Controls, Invalidation, Located, Scope, Shape};

/// Most bytes of a text that one write may have. The kernel splits much longer writes, and a part of
/// a text must not act.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Produces the text that a read returns.
enum Show {
    Text(fn(&Context) -> Result<String>),
    /// Produced while it is read, because it may be long.
    Lines(fn(&Context) -> Result<Make>),
}
/// Carries out a written text, with white space at its ends removed: completely, or not at all if it
/// fails. Fails with `Invalid` for an unknown text.
type Act = fn(&Context, &str) -> Result<Invalidation>;

/// A control file, or a tree of them.
pub struct File {
    pub name: &'static str,
    /// The text that a read shows, and the action of a write.
    pub help: &'static str,
    /// A file, or a tree with one control file for each file of the collection.
    pub shape: Shape,
    /// Whether only the owner of the mount may read it.
    pub is_private: bool,
    /// Whether poll(2) waits until the list of jobs has changed since the file was opened.
    pub tells_of_jobs: bool,
    show: Option<Show>,
    act: Option<Act>,
}

const fn shown(name: &'static str, help: &'static str, show: fn(&Context) -> Result<String>) -> File {
    File {
        name,
        help,
        shape: Shape::File,
        is_private: false,
        tells_of_jobs: false,
        show: Some(Show::Text(show)),
        act: None,
    }
}

/// A file that can be read and written.
const fn acting(
    name: &'static str,
    help: &'static str,
    show: fn(&Context) -> Result<String>,
    act: Act,
) -> File {
    File { act: Some(act), ..shown(name, help, show) }
}

const fn tree(name: &'static str, help: &'static str, lines: fn(&Context) -> Result<Make>) -> File {
    let shown = shown(name, help, |_| Ok(String::new()));
    File { shape: Shape::Tree, show: Some(Show::Lines(lines)), ..shown }
}

/// The files of the mount's `.ctl`. Append new ones: positions are part of inode numbers.
pub const MOUNT_FILES: &[File] = &[
    shown("status", "summary of the store, as text", status::of_mount),
    shown("stats.json", "counters, as JSON", status::stats),
    File {
        show: None,
        act: Some(actions::sync),
        ..shown("sync", "write anything to make all earlier writes durable", actions::config)
    },
    File {
        act: Some(actions::jobs),
        tells_of_jobs: true,
        ..shown(
            "jobs",
            "jobs that wait, run or have ended, one per line; poll(2) waits for a change; write cancel N to \
             cancel job N",
            |context| Ok(context.mounted.jobs.text(actions::jobs_of(context))),
        )
    },
    shown("config", "settings in effect, as TOML", actions::config),
    shown("metrics", "counters, as OpenMetrics text", metrics::shown),
    File {
        shape: Shape::Growing,
        is_private: true,
        show: None,
        ..shown("events", "events, one JSON object per line", actions::config)
    },
    acting(
        "compact",
        "write start or stop to compact data files, tier files and logs; shows the last results",
        |context| maintenance::of_mount(context, &COMPACT),
        |context, text| maintenance::act_on_all(context, &COMPACT, text),
    ),
    acting(
        "scrub",
        "write start or stop to verify every stored checksum; shows the last results",
        |context| maintenance::of_mount(context, &SCRUB),
        |context, text| maintenance::act_on_all(context, &SCRUB, text),
    ),
    #[cfg(feature = "mount")]
    File {
        show: None,
        act: Some(import::start),
        ..shown(
            "import",
            "write the options of tierfs import as one line of JSON; a job runs the import",
            actions::config,
        )
    },
    File {
        tells_of_jobs: true,
        ..shown("jobs.json", "the same as jobs, as JSON", |context| {
            Ok(context.mounted.jobs.json(actions::jobs_of(context)))
        })
    },
    shown("hottest.json", "the tensors with the highest scores, as JSON", hot_tensors::json),
    #[cfg(feature = "remote")]
    File {
        show: None,
        act: Some(push::start),
        ..shown(
            "push",
            "write the options of tierfs push as one line of JSON; a job pushes the collection",
            actions::config,
        )
    },
    File {
        is_private: true,
        ..shown(
            "refresh",
            "of a mounted remote: reading it shows the newest snapshots from now on, and which changed",
            actions::refresh,
        )
    },
    File {
        is_private: true,
        ..shown(
            "coldest.json",
            "the moves of the policy in a day without a use, in order, as JSON",
            foreseen::coldest,
        )
    },
];

const QUOTA_HELP: &str = "usage and limits; write bytes=10G stored=1G files=1000, or none for no limit";

/// The files of a tenant's `.ctl`; at most 15.
pub const TENANT_FILES: &[File] = &[
    shown("status", "summary of the tenant, as text", status::of_tenant),
    acting("quota", QUOTA_HELP, quota::of_tenant, quota::set_of_tenant),
    File {
        show: None,
        act: Some(actions::remove),
        ..shown(
            "remove",
            "write the name of a collection to remove it with everything in it",
            status::of_tenant,
        )
    },
];

/// The files of a collection's `.ctl`.
pub const COLLECTION_FILES: &[File] = &[
    shown("status", "summary of the collection, as text", status::of_collection),
    shown("tiers", "tensors, blocks and bytes by tier", status::tiers),
    acting(
        "policy",
        "how tiers move: manual, auto, auto:TIER, or cache:SIZE (a size limit)",
        actions::policy,
        actions::set_policy,
    ),
    tree("blocks", "one line per block or hole: its location, tier and encoding", blocks::table),
    tree("verify", "verifies every stored checksum; ends with ok or corrupt N of M", blocks::verify),
    File { is_private: true, ..tree("extents", "location of the bytes on disk, as JSON", blocks::extents) },
    acting(
        "compact",
        "write start or stop to compact data files, tier files and the log; shows the last result",
        |context| maintenance::shown(context, &COMPACT),
        |context, text| maintenance::act(context, &COMPACT, text),
    ),
    acting(
        "scrub",
        "write start or stop to verify every stored checksum; shows the last result",
        |context| maintenance::shown(context, &SCRUB),
        |context, text| maintenance::act(context, &SCRUB, text),
    ),
    acting("quota", QUOTA_HELP, quota::of_collection, quota::set_of_collection),
    acting(
        "prefetch",
        "write names of files or directories to verify them and read them ahead; shows the last result",
        prefetch::shown,
        prefetch::start,
    ),
    File {
        show: None,
        act: Some(join::start),
        ..shown(
            "join",
            "write a line of JSON with name and sources to make a file of the bytes of these files",
            status::of_collection,
        )
    },
];

fn table(scope: &Scope) -> &'static [File] {
    match scope {
        Scope::Mount => MOUNT_FILES,
        Scope::Tenant(_) => TENANT_FILES,
        Scope::Collection(_) => COLLECTION_FILES,
    }
}

/// The rows that listings and stat(2) need, built once per mount.
pub fn controls() -> Controls {
    let rows = |files: &'static [File]| -> &'static [Control] {
        Vec::leak(files.iter().map(File::control).collect())
    };
    Controls { mount: rows(MOUNT_FILES), tenant: rows(TENANT_FILES), collection: rows(COLLECTION_FILES) }
}

impl File {
    fn control(&self) -> Control {
        let mode = match (&self.act, self.is_private) {
            // Each user sees and cancels only their own jobs.
            (Some(_), _) if self.tells_of_jobs => 0o666,
            (Some(_), _) => 0o600,
            (None, true) => 0o400,
            (None, false) => READ_BITS,
        };
        Control { name: self.name, shape: self.shape, mode, is_private: self.is_private }
    }

    /// Whether it is a directory with a control file for each file of the collection.
    pub fn is_tree(&self) -> bool {
        self.shape == Shape::Tree
    }

    /// Whether it can be written.
    pub fn acts(&self) -> bool {
        self.act.is_some()
    }

    /// Whether it can be read.
    pub fn shows(&self) -> bool {
        self.show.is_some() || self.shape == Shape::Growing
    }
}

/// The row of a control file. Fails with `IsDirectory` for a control directory.
pub fn file_of(view: &ControlView) -> Result<&'static File> {
    let directory = || Error::new(ErrorKind::IsDirectory, "is a directory of control files");
    let place = (view.place as usize).checked_sub(1).ok_or_else(directory)?;
    let file = table(&view.scope).get(place).ok_or_else(no_file)?;
    let is_file = file.shape != Shape::Tree || view.mirrors_file();
    if is_file { Ok(file) } else { Err(directory()) }
}

/// The current text of a control file; empty for a write-only one. This call, and reads of the text, may
/// take as long as reading the files that the text describes.
pub fn show(mounted: &Mounted, view: &ControlView, user: u32) -> Result<Text> {
    let context = Context { mounted, view, user };
    match &file_of(view)?.show {
        Some(Show::Text(show)) => Ok(Text::whole(show(&context)?)),
        Some(Show::Lines(lines)) => Text::made(lines(&context)?),
        None => Ok(Text::whole(String::new())),
    }
}

/// Carries out a text that was written to a control file. Returns what the kernel must invalidate. Fails
/// with `Denied` for a read-only file, with `Invalid` for an unknown text.
pub fn act(mounted: &Mounted, view: &ControlView, user: u32, text: &[u8]) -> Result<Invalidation> {
    let file = file_of(view)?;
    let done = done(&Context { mounted, view, user }, file, text);
    let asker = Asker { ino: mounted.vfs.ino(&Located::Control(view.clone()))?, user };
    let shown = String::from_utf8_lossy(text);
    match &done {
        Ok(_) => mounted.refusals.clear(asker),
        Err(error) => mounted.refusals.note(asker, &view.path(), &shown, error),
    }
    let by = By { request: &format!(".ctl/{}", file.name), user };
    note_event(mounted.store().events(), &view.path(), by, &String::from_utf8_lossy(text), &done);
    done
}

/// Records the event of a request, or of its refusal.
pub(super) fn note_event<T>(events: &Events, path: &str, by: By<'_>, asked: &str, done: &Result<T>) {
    let (cause, user) = (format!("{}, user {}", by.request, by.user), Some(by.user));
    let (kind, text) = match done {
        Ok(_) => (EventKind::Control, asked.trim().to_owned()),
        Err(error) => (EventKind::Refusal, error.to_string()),
    };
    events.note(&Event { kind, path, cause: &cause, text: &text, user, step: None });
}

/// A request and the user who made it.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub request: &'a str,
    pub user: u32,
}

fn done(context: &Context, file: &File, text: &[u8]) -> Result<Invalidation> {
    let act = file.act.ok_or_else(|| read_only(file))?;
    if text.len() > TEXT_BYTES_MAX {
        let most = TEXT_BYTES_MAX;
        return Err(Error::invalid(format!("{}: a write of more than {most} bytes", file.name)));
    }
    let text = std::str::from_utf8(text).map_err(|_| Error::invalid(format!("{}: not text", file.name)))?;
    act(context, text.trim())
}

/// The error of a write to a read-only file.
pub fn read_only(file: &File) -> Error {
    Error::new(ErrorKind::Denied, format!("{} can only be read", file.name))
}

#[cfg(test)]
mod tests {
    use super::{COLLECTION_FILES, MOUNT_FILES, TENANT_FILES};

    #[test]
    fn control_file_names_are_unique_and_every_file_shows_or_acts() {
        for files in [MOUNT_FILES, TENANT_FILES, COLLECTION_FILES] {
            for (place, file) in files.iter().enumerate() {
                assert!(file.shows() || file.acts(), "{}", file.name);
                assert!(files[..place].iter().all(|other| other.name != file.name), "{}", file.name);
            }
        }
        assert!(TENANT_FILES.len() < 16 && COLLECTION_FILES.len() < 14);
    }
}
