//! Other forms of the same tensors: `.as/<form>/`. Gives the names of a form, the size of each file and its bytes as a
//! stream. Forms are not stored.
//!
//! A file of a form is planned from the state of the log: literal headers, objects, and the conversion of each. The size
//! follows from the plan without decoding anything.

mod batch;
mod form_pins;
mod gguf;
mod kind;
mod names;
mod plan;
mod recipe;
mod safetensors;
mod sums;
mod weights;

pub use form_pins::{PinnedForms, pin_of};
pub use kind::{Form, INDEX_NUMBER, Shows};
pub use names::{Item, find, names};
pub use plan::{plan, published};
pub use recipe::Recipe;
pub use weights::{name_in_cast, names_of_codes, why_stored};
