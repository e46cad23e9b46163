//! Sets extended attributes.

use std::sync::Arc;

use crate::control::attributes::{Attribute, attribute};
use crate::control::files::note_event;
use crate::control::jobs::{Job, Jobs};
use crate::control::quota::ROOT_USER;
use crate::engine::{self, Counted, Evict, Moved, REFUSED, Reconstruct, Setting};
use crate::format::log::catalog::NodeType;
use crate::model::{Dtype, Error, ErrorKind, MoveTo, Progress, Result, Shape};
use crate::open;
use crate::store::{EventKind, State};
use crate::vfs::{FileView, Vfs};

/// The duration of setting an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acts {
    /// Short: appends a batch to the log.
    AtOnce,
    /// Long: reads and writes blocks. Must not block other requests.
    Slowly,
}

/// Sets an attribute.
#[derive(Clone, Copy)]
pub struct Set {
    /// The duration.
    pub acts: Acts,
    set: fn(&Arc<Vfs>, &Jobs, &FileView, &str) -> Result<()>,
}

const fn at_once(set: fn(&Arc<Vfs>, &Jobs, &FileView, &str) -> Result<()>) -> Set {
    Set { acts: Acts::AtOnce, set }
}

pub(super) const DTYPE: Set = at_once(|vfs, _, view, text| {
    let dtype = Dtype::from_name(text).ok_or_else(|| invalid_value("dtype", text))?;
    set_tensor(vfs, view, Some(dtype), None)
});
pub(super) const SHAPE: Set = at_once(|vfs, _, view, text| {
    let shape = Shape::parse(text).ok_or_else(|| invalid_value("shape", text))?;
    set_tensor(vfs, view, None, Some(shape))
});
pub(super) const LOSSY: Set = at_once(|_, _, view, text| set_inherited(view, &engine::LOSSY, text));
pub(super) const POLICY: Set = at_once(|_, _, view, text| set_inherited(view, &engine::POLICY, text));
pub(super) const ENCODER: Set = at_once(|_, _, view, text| set_inherited(view, &engine::ENCODER, text));
pub(super) const LIST: Set = at_once(|_, _, view, text| match view.node.entry.node_type {
    NodeType::Directory => set_inherited(view, &engine::LIST, text),
    _ => Err(Error::invalid("list is a setting of directories")),
});
pub(super) const WRITES: Set = at_once(|_, _, view, text| set_inherited(view, &engine::WRITES, text));
pub(super) const RECONSTRUCT: Set = Set {
    acts: Acts::Slowly,
    set: |_, _, view, text| {
        let to = Reconstruct::parse(text)?;
        engine::set_reconstruct(&view.collection, view.node.entry.id, to)
    },
};
pub(super) const TIER: Set = Set { acts: Acts::Slowly, set: set_tier };
pub(super) const EVICT: Set = Set { acts: Acts::Slowly, set: evict };

pub(super) const PIN: Set = Set { acts: Acts::Slowly, set: set_pin };

/// Sets an attribute of a file or directory for the caller `user`. Records the reason of a refusal in
/// the attribute `why` of the file. Queues kernel invalidations, also when it fails.
///
/// # Errors
/// `Denied` for a read-only attribute.
pub fn set(
    vfs: &Arc<Vfs>,
    jobs: &Jobs,
    view: &FileView,
    user: u32,
    (name, value): (&[u8], &[u8]),
) -> Result<()> {
    let attribute = attribute(name)?;
    let done = check_place(vfs, view, user).and_then(|()| done(vfs, jobs, view, attribute, value));
    let (cause, asked) = (format!("{}, user {user}", attribute.name), String::from_utf8_lossy(value));
    note_event(view.collection.event_log(), &view.path(), &cause, &asked, &done);
    done
}

/// Refuses directories that names of tensors make. Lets only its owner, root and the owner of the mount set attributes of a directory, because they
/// apply to everything below it, which other users may own. For files the kernel has checked the write
/// permission.
fn check_place(vfs: &Vfs, view: &FileView, user: u32) -> Result<()> {
    let entry = &view.node.entry;
    if State::is_computed(entry.id) {
        let text = "set it on the container, on one of its tensors, or on the directory of the container";
        return Err(Error::new(ErrorKind::Denied, text));
    }
    if entry.node_type != NodeType::Directory || [ROOT_USER, vfs.owner().0, entry.uid].contains(&user) {
        return Ok(());
    }
    let text = "attributes of a directory apply to everything below it, so only its owner may set them";
    Err(Error::new(ErrorKind::Denied, text))
}

fn done(vfs: &Arc<Vfs>, jobs: &Jobs, view: &FileView, attribute: &Attribute, value: &[u8]) -> Result<()> {
    let Some(set) = &attribute.set else {
        return Err(Error::new(ErrorKind::Denied, format!("{} can only be read", attribute.name)));
    };
    view.collection.check_writable()?;
    let text = std::str::from_utf8(value).map_err(|_| Error::invalid("the value is not valid UTF-8"))?;
    (set.set)(vfs, jobs, view, text.trim_end_matches('\n')).inspect_err(|error| {
        let why = format!("{}={text}{REFUSED}{error}", attribute.name);
        if let Err(error) = engine::note_why(&view.collection, view.node.entry.id, &why) {
            log::warn!("{}: cannot record the reason of a refusal: {error}", view.path());
        }
    })
}

/// Sets the element type or shape of a file. Its forms then have other headers.
fn set_tensor(vfs: &Vfs, view: &FileView, dtype: Option<Dtype>, shape: Option<Shape>) -> Result<()> {
    let node = view.node.entry.id;
    open::set_tensor(&view.collection, node, dtype, shape)?;
    vfs.queue_invalidation(vfs.invalidate_nodes(&view.collection, [node]));
    Ok(())
}

fn set_inherited(view: &FileView, setting: &Setting, text: &str) -> Result<()> {
    engine::set_setting(&view.collection, view.node.entry.id, setting, text)
}

fn set_tier(vfs: &Arc<Vfs>, jobs: &Jobs, view: &FileView, text: &str) -> Result<()> {
    let to = MoveTo::parse(text)?;
    vfs.flush_all(&view.collection)?;
    let bytes = vfs.engine().check_tier(&view.collection, view.node.entry.id, to)?;
    let (view, vfs) = (view.clone(), vfs.clone());
    let act = move |progress: &dyn Progress, (vfs, view): &(Arc<Vfs>, FileView), moved: &mut Moved| {
        vfs.engine().set_tier(&view.collection, view.node.entry.id, to, progress, moved)
    };
    do_or_queue(jobs, (vfs, view), format!("tier={text}"), bytes, Box::new(act))
}

fn evict(vfs: &Arc<Vfs>, jobs: &Jobs, view: &FileView, text: &str) -> Result<()> {
    let what = Evict::from_name(text).ok_or_else(|| invalid_value("evict", text))?;
    // Lineage parents may be in other collections.
    vfs.flush_everything()?;
    let (view, vfs) = (view.clone(), vfs.clone());
    let act = move |progress: &dyn Progress, (vfs, view): &(Arc<Vfs>, FileView), moved: &mut Moved| {
        vfs.engine().evict(&view.collection, view.node.entry.id, what, progress, moved)
    };
    do_or_queue(jobs, (vfs, view), format!("evict={text}"), 0, Box::new(act))
}

fn set_pin(vfs: &Arc<Vfs>, jobs: &Jobs, view: &FileView, text: &str) -> Result<()> {
    let is_pin = match text {
        "0" => false,
        "1" => true,
        _ => return Err(invalid_value("pin", text)),
    };
    vfs.flush_all(&view.collection)?;
    let (vfs, of) = (vfs.clone(), view.clone());
    let act = move |progress: &dyn Progress| {
        let (engine, node) = (vfs.engine(), of.node.entry.id);
        let done = if is_pin {
            engine.pin(&of.collection, node, progress)?
        } else {
            engine.unpin(&of.collection, node)?
        };
        Ok(format!("{} files, {} bytes copied", done.files, done.bytes))
    };
    if view.node.entry.node_type != NodeType::Directory {
        return act(&Counted::default()).map(|_| ());
    }
    jobs.push(Job::new(format!("pin={text}"), view.path(), 0), act);
    Ok(())
}

/// Changes the stored bytes of tensors.
type Act = dyn Fn(&dyn Progress, &(Arc<Vfs>, FileView), &mut Moved) -> Result<()> + Send;

/// Acts on a file at once; queues a job for a directory.
fn do_or_queue(
    jobs: &Jobs,
    place: (Arc<Vfs>, FileView),
    what: String,
    bytes: u64,
    act: Box<Act>,
) -> Result<()> {
    let asked = what.clone();
    let is_directory = place.1.node.entry.node_type == NodeType::Directory;
    let job = Job::new(what, place.1.path(), bytes);
    let work = move |progress: &dyn Progress| {
        let mut moved = Moved::default();
        let done = act(progress, &place, &mut moved);
        // A failed or cancelled move may have moved some tensors.
        let (vfs, view) = &place;
        vfs.queue_invalidation(vfs.invalidate_nodes(&view.collection, moved.nodes));
        done?;
        let left = moved.left.first().map(|(_, why)| format!("; {} left: {why}", moved.left.len()));
        let note = format!("{} blocks{}", moved.blocks, left.unwrap_or_default());
        view.collection.event_log().tell(EventKind::Migration, &view.path(), &asked, &note);
        Ok(note)
    };
    if !is_directory {
        return work(&Counted::default()).map(|_| ());
    }
    jobs.push(job, work);
    Ok(())
}

fn invalid_value(name: &str, text: &str) -> Error {
    Error::invalid(format!("invalid value {text:?} of {name}"))
}
