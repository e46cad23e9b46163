//! `pin`, the only attribute of files in forms.

use std::sync::Arc;

use crate::control::attributes::attribute;
use crate::engine::Counted;
use crate::model::{Error, ErrorKind, Result};
use crate::store::Pin;
use crate::vfs::{FormView, Vfs};
use crate::view;

/// The value of an attribute of a file in a form. Fails with `Absent` for all but `pin`.
pub fn form_attribute(view: &FormView, name: &[u8]) -> Result<String> {
    check_name(name)?;
    let pin = pin_of(view)?;
    let is_pinned = view.collection.state().pins_of(pin.node).any(|known| known == pin);
    Ok(u8::from(is_pinned).to_string())
}

/// Pins or unpins a file in a form. The change is durable on return. Kernel invalidations are queued.
pub fn set_form_attribute(vfs: &Arc<Vfs>, view: &FormView, name: &[u8], value: &[u8]) -> Result<()> {
    check_name(name)?;
    let pin = pin_of(view)?;
    let engine = vfs.engine();
    match value.strip_suffix(b"\n").unwrap_or(value) {
        b"1" => {
            vfs.flush_for_form(view)?;
            engine.pin_form(&view.collection, pin, &Counted::default()).map(|_| ())
        }
        b"0" => engine.unpin_form(&view.collection, pin).map(|_| ()),
        _ => Err(Error::invalid("invalid value of pin; expected 0 or 1")),
    }
}

fn check_name(name: &[u8]) -> Result<()> {
    match attribute(name)?.name {
        "pin" => Ok(()),
        other => {
            let text = format!("{other} is an attribute of the file itself; files in forms have only pin");
            Err(Error::new(ErrorKind::Absent, text))
        }
    }
}

fn pin_of(view: &FormView) -> Result<Pin> {
    let (form, item) =
        view.of.as_ref().ok_or_else(|| Error::new(ErrorKind::Absent, "not a file in a form"))?;
    view::pin_of(&view.collection, *form, item)
}
