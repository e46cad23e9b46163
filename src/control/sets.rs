//! Sets extended attributes.

use std::sync::Arc;

use crate::control::attributes::{Attribute, attribute};
use crate::control::context::Mounted;
use crate::control::context::ROOT_USER;
use crate::control::files::{By, note_event};
use crate::control::foreseen::{Foreseen, POLICY_PLAN};
use crate::control::jobs::{Job, Report};
use crate::control::refusals::Asker;
use crate::engine::{
    self, Consent, Evict, EvictRequest, MoveRequest, Moved, Reconstruct, Setting, SourceCheck, Sources,
};
use crate::format::log::catalog::NodeType;
use crate::ingest::checked_value;
use crate::model::{Dtype, Error, ErrorKind, Progress, Result, Shape, Silent, Threshold, human, parse_tags};
use crate::store::{self, Event, EventKind, State};
use crate::vfs::open;
use crate::vfs::{FileView, Ino, Vfs};

/// The duration of setting an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acts {
    /// Short: appends a batch to the log.
    AtOnce,
    /// Long: reads and writes blocks. Must not block other requests.
    Slowly,
}

/// A request to set an attribute: the file or directory, and the user who asks.
#[derive(Clone)]
pub struct Asked {
    pub mounted: Arc<Mounted>,
    /// The file or directory.
    pub view: FileView,
    pub ino: Ino,
    pub user: u32,
}

impl Asked {
    fn vfs(&self) -> &Arc<Vfs> {
        &self.mounted.vfs
    }

    fn is_directory(&self) -> bool {
        self.view.node.entry.node_type == NodeType::Directory
    }

    fn node(&self) -> crate::model::EntryId {
        self.view.node.entry.id
    }

    fn asker(&self) -> Asker {
        Asker { ino: self.ino, user: self.user }
    }

    fn note(&self, request: &str, error: &Error) {
        self.mounted.refusals.note(self.asker(), &self.view.path(), request, error);
    }

    /// Does work as a job that is called `request`: at once for a file, queued for a directory.
    fn work(
        self,
        request: String,
        work: impl FnOnce(&Asked, &dyn Progress, &mut Report) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let job = Job::new(request.clone(), self.view.path(), self.user, 0);
        let mounted = self.mounted.clone();
        if !self.is_directory() {
            return mounted.jobs.run(job, move |progress, report| work(&self, progress, report));
        }
        mounted.jobs.push(job, move |progress, report| {
            let done = work(&self, progress, report);
            if let Err(error) = &done {
                self.note(&request, error);
            }
            done
        });
        Ok(())
    }
}

#[derive(Clone, Copy)]
pub struct Set {
    pub acts: Acts,
    set: fn(&Asked, &str) -> Result<()>,
}

pub(super) const fn at_once(set: fn(&Asked, &str) -> Result<()>) -> Set {
    Set { acts: Acts::AtOnce, set }
}

pub(super) const DTYPE: Set = at_once(|asked, text| {
    if asked.is_directory() {
        return set_arrival(asked, store::DTYPE, text);
    }
    let dtype = Dtype::from_name(text)
        .ok_or_else(|| invalid_value("dtype", text, "a type such as f32, bf16 or i8"))?;
    set_tensor(asked, Some(dtype), None)
});
pub(super) const SHAPE: Set = at_once(|asked, text| {
    let shape = Shape::parse(text).ok_or_else(|| invalid_value("shape", text, "sizes such as 4096x11008"))?;
    set_tensor(asked, None, Some(shape))
});
pub(super) const LOSSY: Set = at_once(|asked, text| set_inherited(asked, &engine::LOSSY, text));
pub(super) const POLICY: Set = at_once(|asked, text| set_inherited(asked, &engine::POLICY, text));
pub(super) const UNIT: Set = at_once(|asked, text| set_inherited(asked, &engine::UNIT, text));
pub(super) const CACHE: Set = at_once(|asked, text| set_inherited(asked, &engine::CACHE, text));
pub(super) const PACK: Set = at_once(|asked, text| set_inherited(asked, &engine::PACK, text));
pub(super) const ARRIVE: Set = at_once(|asked, text| set_arrival(asked, store::ARRIVE, text));
pub(super) const ROW: Set = at_once(|asked, text| set_arrival(asked, store::ROW, text));
pub(super) const HEAD_DIM: Set = at_once(|asked, text| set_arrival(asked, store::HEAD_DIM, text));
pub(super) const BLOCK_BYTES: Set = at_once(|asked, text| set_arrival(asked, store::BLOCK_BYTES, text));
pub(super) const TAIL: Set = at_once(|asked, text| set_arrival(asked, store::TAIL, text));
pub(super) const BACK: Set = at_once(|asked, text| set_arrival(asked, store::BACK, text));
pub(super) const ENCODER: Set = at_once(|asked, text| set_inherited(asked, &engine::ENCODER, text));
pub(super) const LIST: Set = at_once(|asked, text| set_of_directory(asked, &engine::LIST, text));
pub(super) const PLAIN: Set = at_once(|asked, text| set_of_directory(asked, &engine::PLAIN, text));
pub(super) const TAGS: Set =
    at_once(|asked, text| open::set_tags(&asked.view.collection, asked.node(), &parse_tags(text)?));
pub(super) const WRITES: Set = at_once(|asked, text| set_inherited(asked, &engine::WRITES, text));
pub(super) const RECONSTRUCT: Set = Set {
    acts: Acts::Slowly,
    set: |asked, text| {
        let to = Reconstruct::parse(text)?;
        engine::set_reconstruct(&asked.view.collection, asked.node(), to)
    },
};
pub(super) const TIER: Set = Set { acts: Acts::Slowly, set: set_tier };
pub(super) const PLAN: Set = Set { acts: Acts::Slowly, set: plan };
pub(super) const EVICT: Set = Set { acts: Acts::Slowly, set: evict };

pub(super) const PIN: Set = Set { acts: Acts::Slowly, set: set_pin };

/// Sets an attribute of a file or directory. Keeps the reason of a refusal. Queues kernel
/// invalidations, also when it fails.
///
/// # Errors
/// `Denied` for a read-only attribute.
pub fn set(asked: &Asked, name: &[u8], value: &[u8]) -> Result<()> {
    let attribute = attribute(name)?;
    let text = String::from_utf8_lossy(value);
    let request = format!("{}={}", attribute.name, text.trim_end_matches('\n'));
    asked.mounted.refusals.clear(asked.asker());
    let done = check_place(asked).and_then(|()| done(asked, attribute, value));
    if let Err(error) = &done {
        asked.note(&request, error);
    }
    let by = By { request: attribute.name, user: asked.user };
    note_event(asked.view.collection.event_log(), &asked.view.path(), by, &text, &done);
    done
}

/// Refuses directories that names of tensors make. Lets only its owner, root and the owner of the mount
/// set attributes of a directory, because they apply to everything below it, which other users may own.
/// For files the kernel has checked the write permission.
fn check_place(asked: &Asked) -> Result<()> {
    if State::is_computed(asked.node()) {
        let text = "set it on the container, on one of its tensors, or on the directory of the container";
        return Err(Error::new(ErrorKind::Denied, text));
    }
    let owners = [ROOT_USER, asked.vfs().owner().uid, asked.view.node.entry.uid];
    if !asked.is_directory() || owners.contains(&asked.user) {
        return Ok(());
    }
    let text = "attributes of a directory apply to everything below it, so only its owner may set them";
    Err(Error::new(ErrorKind::Denied, text))
}

fn done(asked: &Asked, attribute: &Attribute, value: &[u8]) -> Result<()> {
    let Some(set) = &attribute.set else {
        return Err(Error::new(ErrorKind::Denied, format!("{} can only be read", attribute.name)));
    };
    asked.view.collection.check_writable()?;
    let text = std::str::from_utf8(value).map_err(|_| Error::invalid("the value is not valid UTF-8"))?;
    (set.set)(asked, text.trim_end_matches('\n'))
}

/// Sets the element type or shape of a file. Its forms then have other headers.
fn set_tensor(asked: &Asked, dtype: Option<Dtype>, shape: Option<Shape>) -> Result<()> {
    let changes = open::set_tensor(&asked.view.collection, asked.node(), dtype, shape)?;
    let vfs = asked.vfs();
    vfs.queue_invalidation(vfs.invalidate_nodes(&asked.view.collection, changes.nodes));
    Ok(())
}

fn set_inherited(asked: &Asked, setting: &Setting, text: &str) -> Result<()> {
    engine::set_setting(&asked.view.collection, asked.node(), setting, text)
}

/// Sets a setting for what arrives in a directory.
fn set_arrival(asked: &Asked, key: &str, text: &str) -> Result<()> {
    if asked.is_directory() {
        let value = checked_value(key, text)?;
        return engine::set_arrival(&asked.view.collection, asked.node(), key, &value);
    }
    let text =
        "is a setting of directories, for the files that arrive there; set it on the directory of this file";
    Err(Error::invalid(format!("{key} {text}")))
}

pub(super) fn set_threshold(asked: &Asked, threshold: &Threshold, text: &str) -> Result<()> {
    engine::set_threshold(&asked.view.collection, asked.node(), threshold, text)
}

fn set_of_directory(asked: &Asked, setting: &Setting, text: &str) -> Result<()> {
    if asked.is_directory() {
        return set_inherited(asked, setting, text);
    }
    let name = setting.name;
    Err(Error::invalid(format!("{name} is a setting of directories; set it on the directory of this file")))
}

fn set_tier(asked: &Asked, text: &str) -> Result<()> {
    let request = MoveRequest::parse(text)?;
    asked.vfs().flush_all(&asked.view.collection)?;
    if asked.is_directory() {
        // The request is only queued, so what the log tells is refused now.
        let check = SourceCheck { sources: Sources::Logged, progress: &Silent };
        asked.vfs().engine().check_tier(&asked.view.collection, asked.node(), request, check)?;
    }
    change(asked, format!("tier={text}"), move |asked, progress, moved| {
        asked.vfs().engine().set_tier(&asked.view.collection, asked.node(), request, progress, moved)
    })
}

/// Checks a move as [`set_tier`] does, and changes nothing. The job's result describes the move.
fn plan(asked: &Asked, text: &str) -> Result<()> {
    if text == POLICY_PLAN {
        return foresee(asked);
    }
    let request = MoveRequest::parse(text)?;
    asked.vfs().flush_all(&asked.view.collection)?;
    let job = Job::new(format!("plan={text}"), asked.view.path(), asked.user, 0);
    asked.mounted.jobs.run(job, |progress, report| {
        let (engine, collection) = (asked.vfs().engine(), &asked.view.collection);
        let check = SourceCheck { sources: Sources::Read, progress };
        let moved = engine.check_tier(collection, asked.node(), request, check)?;
        *report = Report { text: moved.summary.would_text(), result: moved.summary.to_json() };
        Ok(())
    })
}

/// Describes the moves of the policy in a day without a use of any tensor.
fn foresee(asked: &Asked) -> Result<()> {
    asked.vfs().flush_all(&asked.view.collection)?;
    let job = Job::new(format!("plan={POLICY_PLAN}"), asked.view.path(), asked.user, 0);
    asked.mounted.jobs.run(job, |_, report| {
        let foreseen = Foreseen::below(asked.vfs(), &asked.view.collection, asked.node())?;
        *report = Report { text: foreseen.text(), result: foreseen.json() };
        Ok(())
    })
}

fn evict(asked: &Asked, text: &str) -> Result<()> {
    let (name, consent) = Consent::split(text);
    let what = Evict::from_name(name).ok_or_else(|| invalid_value("evict", text, "cache, 1 or discard"))?;
    // Lineage parents may be in other collections.
    asked.vfs().flush_everything()?;
    change(asked, format!("evict={text}"), move |asked, progress, moved| {
        let (collection, node) = (&asked.view.collection, asked.node());
        let request = EvictRequest { what, consent, user: Some(asked.user) };
        asked.vfs().engine().evict(collection, node, request, progress, moved)
    })
}

fn set_pin(asked: &Asked, text: &str) -> Result<()> {
    let is_pin = match text {
        "0" => false,
        "1" => true,
        _ => return Err(invalid_value("pin", text, "0 or 1")),
    };
    asked.vfs().flush_all(&asked.view.collection)?;
    asked.clone().work(format!("pin={text}"), move |asked, progress, report| {
        let (engine, collection, node) = (asked.vfs().engine(), &asked.view.collection, asked.node());
        let done =
            if is_pin { engine.pin(collection, node, progress)? } else { engine.unpin(collection, node)? };
        let files = if done.files == 1 { "file" } else { "files" };
        report.text = match (done.files, is_pin) {
            (0, true) => "nothing to do: every file is pinned already".to_owned(),
            (0, false) => "nothing to do: no file is pinned".to_owned(),
            (count, true) => format!("{count} {files} pinned, {} copied", human(done.bytes)),
            (count, false) => format!("{count} {files} unpinned"),
        };
        report.result = serde_json::json!({ "files": done.files, "bytes": done.bytes });
        Ok(())
    })
}

/// Changes the stored bytes of tensors as a job.
fn change(
    asked: &Asked,
    request: String,
    act: impl FnOnce(&Asked, &dyn Progress, &mut Moved) -> Result<()> + Send + 'static,
) -> Result<()> {
    let cause = request.clone();
    asked.clone().work(request, move |asked, progress, report| {
        let mut moved = Moved::default();
        let done = act(asked, progress, &mut moved);
        // A failed or cancelled request may have changed some tensors.
        let (vfs, view) = (asked.vfs(), &asked.view);
        vfs.queue_invalidation(vfs.invalidate_nodes(&view.collection, moved.nodes));
        report.text = match (moved.to_remote, moved.summary.aim) {
            (Some(bytes), None) => format!("{} evicted to the remote", human(bytes)),
            (_, Some(_)) => moved.summary.text(),
            (None, None) => "cached pages dropped".to_owned(),
        };
        report.result = moved.summary.to_json();
        if let (Some(bytes), Some(fields)) = (moved.to_remote, report.result.as_object_mut()) {
            fields.insert("bytes_to_remote".to_owned(), bytes.into());
        }
        done?;
        if !moved.left.is_empty() {
            let left = Error::refused(moved.left);
            report.text = format!("{} ({left})", report.text);
            asked.note(&cause, &left);
        }
        let event = Event {
            kind: EventKind::Migration,
            path: &view.path(),
            cause: &cause,
            text: &report.text,
            user: Some(asked.user),
            step: None,
        };
        view.collection.event_log().note(&event);
        Ok(())
    })
}

fn invalid_value(name: &str, text: &str, valid: &str) -> Error {
    Error::invalid(format!("{name} is {valid}, not {}", shown(text)))
}

/// A value from outside in a message.
fn shown(text: &str) -> String {
    if text.is_empty() { "empty".to_owned() } else { crate::model::beginning(text, 100).to_owned() }
}
