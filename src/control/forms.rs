//! Attributes of files in forms: `pin`, and `dtype` and `shape` of tensors.

use crate::control::attributes::{PREFIX, attribute, refusal_attribute};
use crate::control::context::Mounted;
use crate::control::jobs::Job;
use crate::control::refusals::{Asker, Refusals};
use crate::control::totals::why_unreadable;
use crate::format::log::catalog::{Content, NodeType, TensorEntry};
use crate::model::{Error, ErrorKind, Result, human};
use crate::store::Pin;
use crate::vfs::form::{self, Shows};
use crate::vfs::{FormView, Vfs};

/// The value of an attribute of a file in a form. Fails with `Absent` for all but `pin`, `dtype` and `shape` of a tensor,
/// and `why` where there is something to say.
pub fn form_attribute(
    refusals: &Refusals,
    asker: Asker,
    vfs: &Vfs,
    view: &FormView,
    name: &[u8],
) -> Result<String> {
    match attribute(name)?.name {
        "why" => {
            let unreadable =
                view.of.as_ref().and_then(|(_, item)| view.collection.unreadable_in(item.node()?.entry.id));
            let unreadable = unreadable.map(|found| why_unreadable(&found));
            let stored = why_stored(view).or_else(|| why_as_stored(view));
            let of = view.of.as_ref();
            let split = of.and_then(|(form, item)| form::why_not_split(&view.collection, *form, item));
            let computed = why_computed(vfs, view)?;
            let model = why_no_model(view);
            let merged = vfs.why_not_merged(view);
            let rows = vfs.why_no_rows(view);
            let hidden = why_hidden(view);
            let lines =
                [refusals.text(asker), unreadable, computed, stored, model, split, merged, rows, hidden];
            let lines: Vec<String> = lines.into_iter().flatten().collect();
            let none = || Error::new(ErrorKind::Absent, "no request was refused");
            return if lines.is_empty() { Err(none()) } else { Ok(lines.join("\n")) };
        }
        "refusal" => return refusal_attribute(refusals, asker, name),
        "dtype" | "shape" if let Some(tensor) = tensor_shown(view) => {
            let is_shape = attribute(name)?.name == "shape";
            return Ok(if is_shape { tensor.shape.to_string() } else { tensor.dtype.name().to_owned() });
        }
        _ => {}
    }
    check_name(name)?;
    // A file that cannot be pinned has no such attribute.
    let pin = pin_of(view).map_err(|error| Error::new(ErrorKind::Absent, error.to_string()))?;
    let is_pinned = view.collection.state().pins_of(pin.node).any(|known| known == pin);
    Ok(u8::from(is_pinned).to_string())
}

/// The tensor that a file is.
fn tensor_shown(view: &FormView) -> Option<TensorEntry> {
    let (form, item) = view.of.as_ref()?;
    form::tensor_shown(&view.collection, *form, item)
}

/// Which tensors a cast shows as they are stored.
fn why_stored(view: &FormView) -> Option<String> {
    let (form, item) = view.of.as_ref()?;
    if !matches!(form.shows(), Shows::Cast(_)) {
        return None;
    }
    form::why_stored(&view.collection, item.node()?)
}

/// Why a directory of a model has no GGUF file.
fn why_no_model(view: &FormView) -> Option<String> {
    let (form, item) = view.of.as_ref()?;
    let node = item.node().filter(|node| node.entry.node_type == NodeType::Directory)?;
    form::why_none(&view.collection, *form, node.entry.id)
}

/// Which tensors a directory of a form lacks.
fn why_hidden(view: &FormView) -> Option<String> {
    let (form, item) = view.of.as_ref()?;
    form::why_hidden(*form, &view.collection.state(), item.node()?)
}

/// On a remote, why a form that shows a move is computed: its bytes cost those of the collection.
fn why_computed(vfs: &Vfs, view: &FormView) -> Result<Option<String>> {
    let Some(Shows::Moved(tier)) = view.of.as_ref().map(|(form, _)| form.shows()) else { return Ok(None) };
    if view.collection.published()?.is_empty() || vfs.published(view)?.is_some() {
        return Ok(None);
    }
    Ok(Some(format!(
        "the snapshot has no variant {tier}: these bytes are computed from the exact ones, which are fetched for it; tierfs push with --variants {tier} publishes it"
    )))
}

/// Why a cast leaves some tensors of a file as they are stored.
fn why_as_stored(view: &FormView) -> Option<String> {
    let (form, item) = view.of.as_ref()?;
    let Shows::Cast(to) = form.shows() else { return None };
    let node = &item.node()?.entry;
    let state = view.collection.state();
    let layouts = state.layouts_of_weights(node.id)?;
    let file = state.node(node.id)?.file()?;
    // Casts decode what safetensors files have, and change no bytes of other containers.
    let container = state.node(file.container?)?.file()?;
    if container.content == Content::Safetensors {
        return None;
    }
    Some(format!(
        "shown as it is stored, since it is a part of quantized weights ({layouts}): cast to {to} it would give wrong numbers"
    ))
}

/// Pins or unpins a file in a form. The change is durable on return. Kernel invalidations are queued.
pub fn set_form_attribute(
    mounted: &Mounted,
    view: &FormView,
    asker: Asker,
    name: &[u8],
    value: &[u8],
) -> Result<()> {
    mounted.refusals.clear(asker);
    let set = set_pin(mounted, view, asker.user, name, value);
    if let Err(error) = &set {
        let name = String::from_utf8_lossy(name.strip_prefix(PREFIX.as_bytes()).unwrap_or(name)).into_owned();
        let request = format!("{name}={}", String::from_utf8_lossy(value));
        mounted.refusals.note(asker, &view.path(), &request, error);
    }
    set
}

fn set_pin(mounted: &Mounted, view: &FormView, user: u32, name: &[u8], value: &[u8]) -> Result<()> {
    check_name(name)?;
    let pin = pin_of(view)?;
    let (vfs, engine) = (&mounted.vfs, mounted.vfs.engine());
    let job = |request: &str| Job::new(request.to_owned(), view.path(), user, 0);
    match value.strip_suffix(b"\n").unwrap_or(value) {
        b"1" => {
            vfs.flush_for_form(view)?;
            mounted.jobs.run(job("pin=1"), |progress, report| {
                let pinned = engine.pin_form(&view.collection, pin, progress)?;
                report.text = format!("1 file pinned, {} copied", human(pinned.bytes));
                Ok(())
            })
        }
        b"0" => mounted.jobs.run(job("pin=0"), |_, report| {
            engine.unpin_form(&view.collection, pin)?;
            report.text = "1 file unpinned".to_owned();
            Ok(())
        }),
        _ => Err(Error::invalid("pin is 0 or 1")),
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match attribute(name)?.name {
        "pin" => Ok(()),
        other => {
            let text = format!(
                "{other} is an attribute of the file itself; files in forms have pin, and tensors dtype and shape"
            );
            Err(Error::new(ErrorKind::Absent, text))
        }
    }
}

fn pin_of(view: &FormView) -> Result<Pin> {
    let (form, item) =
        view.of.as_ref().ok_or_else(|| Error::new(ErrorKind::Absent, "not a file in a form"))?;
    form::pin_of(&view.collection, *form, item)
}
