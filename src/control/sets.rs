//! What setting an extended attribute does.

use std::sync::Arc;

use crate::control::attributes::{Attribute, attribute};
use crate::control::files::tell;
use crate::control::jobs::{Job, Jobs};
use crate::edit;
use crate::engine::{self, Counted, Evict, Moved, REFUSED, Reconstruct, Setting};
use crate::format::catalog::What;
use crate::ingest::{MoveTo, Progress};
use crate::model::{Dtype, Error, ErrorKind, Result, Shape};
use crate::namespace::{FileView, Forget, Namespace};
use crate::store::events::EventKind;

/// How long setting an attribute takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acts {
    /// A batch is appended.
    AtOnce,
    /// Blocks are read and written: others must be answered meanwhile.
    Slowly,
}

/// What sets an attribute.
#[derive(Clone, Copy)]
pub struct Set {
    /// How long it takes.
    pub acts: Acts,
    set: fn(&Arc<Namespace>, &Jobs, &FileView, &str) -> Result<Forget>,
}

const fn at_once(set: fn(&Arc<Namespace>, &Jobs, &FileView, &str) -> Result<Forget>) -> Set {
    Set { acts: Acts::AtOnce, set }
}

pub(super) const DTYPE: Set = at_once(|_, _, view, text| {
    let dtype = Dtype::from_name(text).ok_or_else(|| wrong("dtype", text))?;
    edit::set_tensor(&view.collection, view.node.entry.id, Some(dtype), None).map(|()| Forget::default())
});
pub(super) const SHAPE: Set = at_once(|_, _, view, text| {
    let shape = Shape::parse(text).ok_or_else(|| wrong("shape", text))?;
    edit::set_tensor(&view.collection, view.node.entry.id, None, Some(shape)).map(|()| Forget::default())
});
pub(super) const LOSSY: Set = at_once(|_, _, view, text| set_kept(view, &engine::LOSSY, text));
pub(super) const POLICY: Set = at_once(|_, _, view, text| set_kept(view, &engine::POLICY, text));
pub(super) const ENCODER: Set = at_once(|_, _, view, text| set_kept(view, &engine::ENCODER, text));
pub(super) const WRITES: Set = at_once(|_, _, view, text| set_kept(view, &engine::WRITES, text));
pub(super) const RECONSTRUCT: Set = Set {
    acts: Acts::Slowly,
    set: |_, _, view, text| {
        let to = Reconstruct::parse(text)?;
        engine::set_reconstruct(&view.collection, view.node.entry.id, to).map(|()| Forget::default())
    },
};
pub(super) const TIER: Set = Set { acts: Acts::Slowly, set: set_tier };
pub(super) const EVICT: Set = Set { acts: Acts::Slowly, set: evict };

pub(super) const PIN: Set = Set { acts: Acts::Slowly, set: set_pin };

/// Sets an attribute of a file or a directory. `Denied` for one that can only be read.
/// A refusal leaves its reason in `why` of a file. `user` is who asks. What the kernel must
/// forget.
pub fn set(
    namespace: &Arc<Namespace>,
    jobs: &Jobs,
    view: &FileView,
    user: u32,
    (name, value): (&[u8], &[u8]),
) -> Result<Forget> {
    let attribute = attribute(name)?;
    let done = done(namespace, jobs, view, attribute, value);
    let (cause, asked) = (format!("{}, user {user}", attribute.name), String::from_utf8_lossy(value));
    tell(view.collection.event_log(), &view.path(), &cause, &asked, &done);
    done
}

fn done(
    namespace: &Arc<Namespace>,
    jobs: &Jobs,
    view: &FileView,
    attribute: &Attribute,
    value: &[u8],
) -> Result<Forget> {
    let Some(set) = &attribute.set else {
        return Err(Error::new(ErrorKind::Denied, format!("{} can only be read", attribute.name)));
    };
    view.collection.check_writable()?;
    let text = std::str::from_utf8(value).map_err(|_| Error::invalid("a value that is not text"))?;
    (set.set)(namespace, jobs, view, text.trim_end_matches('\n')).inspect_err(|error| {
        let why = format!("{}={text}{REFUSED}{error}", attribute.name);
        if let Err(error) = engine::note_why(&view.collection, view.node.entry.id, &why) {
            log::warn!("{}: the reason of a refusal is not kept: {error}", view.path());
        }
    })
}

fn set_kept(view: &FileView, setting: &Setting, text: &str) -> Result<Forget> {
    engine::set_setting(&view.collection, view.node.entry.id, setting, text).map(|()| Forget::default())
}

fn set_tier(namespace: &Arc<Namespace>, jobs: &Jobs, view: &FileView, text: &str) -> Result<Forget> {
    let to = MoveTo::parse(text)?;
    let written = namespace.settle_all(&view.collection)?;
    namespace.owe(written.clone());
    let bytes = namespace.engine().check_tier(&view.collection, view.node.entry.id, to)?;
    let (view, namespace) = (view.clone(), namespace.clone());
    let act = move |progress: &dyn Progress, (namespace, view): &(Arc<Namespace>, FileView)| {
        namespace.engine().set_tier(&view.collection, view.node.entry.id, to, progress)
    };
    do_or_queue(jobs, (namespace, view), format!("tier={text}"), bytes, written, act)
}

fn evict(namespace: &Arc<Namespace>, jobs: &Jobs, view: &FileView, text: &str) -> Result<Forget> {
    let what = Evict::from_name(text).ok_or_else(|| wrong("evict", text))?;
    let mut written = Forget::default();
    // Lineage parents may be in other collections.
    for forget in namespace.settle_everything()? {
        written.nodes.extend(forget.nodes);
    }
    namespace.owe(written.clone());
    let (view, namespace) = (view.clone(), namespace.clone());
    let act = move |progress: &dyn Progress, (namespace, view): &(Arc<Namespace>, FileView)| {
        namespace.engine().evict(&view.collection, view.node.entry.id, what, progress)
    };
    do_or_queue(jobs, (namespace, view), format!("evict={text}"), 0, written, act)
}

fn set_pin(namespace: &Arc<Namespace>, jobs: &Jobs, view: &FileView, text: &str) -> Result<Forget> {
    let is_pin = match text {
        "0" => false,
        "1" => true,
        _ => return Err(wrong("pin", text)),
    };
    let written = namespace.settle_all(&view.collection)?;
    namespace.owe(written.clone());
    let (namespace, of) = (namespace.clone(), view.clone());
    let act = move |progress: &dyn Progress| {
        let (engine, node) = (namespace.engine(), of.node.entry.id);
        let done = match is_pin {
            true => engine.pin(&of.collection, node, progress)?,
            false => engine.unpin(&of.collection, node)?,
        };
        let note = format!("{} files, {} bytes copied", done.files, done.bytes);
        Ok((Forget::default(), note))
    };
    if view.node.entry.what != What::Directory {
        return act(&Counted::default()).map(|_| written);
    }
    jobs.push(Job::new(format!("pin={text}"), view.path(), 0), act);
    Ok(written)
}

/// On a file it is done on return; on a directory it is queued.
fn do_or_queue(
    jobs: &Jobs,
    place: (Arc<Namespace>, FileView),
    what: String,
    bytes: u64,
    mut forget: Forget,
    act: impl Fn(&dyn Progress, &(Arc<Namespace>, FileView)) -> Result<Moved> + Send + 'static,
) -> Result<Forget> {
    let changed = |place: &(Arc<Namespace>, FileView), moved: Moved| {
        place.0.forget_nodes(&place.1.collection, moved.nodes)
    };
    if place.1.node.entry.what != What::Directory {
        let moved = act(&Counted::default(), &place).inspect_err(|_| owe_all(&place))?;
        tell_moved(&place.1, &what, &format!("{} blocks", moved.blocks));
        forget.nodes.extend(changed(&place, moved).nodes);
        return Ok(forget);
    }
    let asked = what.clone();
    let job = Job::new(what, place.1.path(), bytes);
    jobs.push(job, move |progress| {
        let moved = act(progress, &place).inspect_err(|_| owe_all(&place))?;
        let left = moved.left.first().map(|(_, why)| format!("{} left: {why}", moved.left.len()));
        let blocks = moved.blocks;
        let note = left.map_or(format!("{blocks} blocks"), |left| format!("{blocks} blocks; {left}"));
        tell_moved(&place.1, &asked, &note);
        Ok((changed(&place, moved), note))
    });
    Ok(forget)
}

/// What failed or was told to stop may have moved some: the kernel forgets the pages of all.
fn owe_all((namespace, view): &(Arc<Namespace>, FileView)) {
    let targets = engine::targets(&view.collection, view.node.entry.id).unwrap_or_default();
    let mut nodes: Vec<_> = targets.iter().map(|target| target.node).collect();
    {
        let state = view.collection.state();
        let file = |node: &_| state.node(*node).and_then(|node| node.file()).and_then(|file| file.container);
        let containers: Vec<_> = nodes.iter().filter_map(file).collect();
        nodes.extend(containers);
    }
    nodes.push(view.node.entry.id);
    namespace.owe(namespace.forget_nodes(&view.collection, nodes));
}

fn tell_moved(view: &FileView, asked: &str, note: &str) {
    view.collection.event_log().tell(EventKind::Migration, &view.path(), asked, note);
}

fn wrong(name: &str, text: &str) -> Error {
    Error::invalid(format!("{text:?} is no {name}"))
}
