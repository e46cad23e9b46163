//! Other forms of the same bytes: `.as/<form>/`. What stands where in a form, how long it
//! is, and its bytes as a stream. Nothing of a form is stored.
//!
//! A form is planned from what the log says: literal headers, objects, and how each is
//! shown. Sizes are known from the plan; nothing is decoded for them.

mod batch;
mod form;
mod names;
mod pinned;
mod plan;
mod recipe;
mod sums;

pub use form::{Form, INDEX_NUMBER, Shows};
pub use names::{Item, find, names};
pub use pinned::{PinnedForms, pin_of};
pub use plan::plan;
pub use recipe::Recipe;
