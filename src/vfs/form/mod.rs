//! Other forms of the same tensors: `.as/<form>/`. Gives the names of a form, the size of each file and its bytes as a
//! stream. Forms are not stored.
//!
//! A file of a form is planned from the state of the log: literal headers, objects, and the conversion of each. The
//! size follows from the plan without decoding anything.
//!
//! 1. A lookup yields a form and a node (`FormView`); `find` in `names.rs` maps the name to the node. The inode number
//!    combines both.
//! 2. `plan` in `plan.rs` makes a `Recipe` (`recipe.rs`): literal headers, objects, and how each is shown. Only headers
//!    of safetensors and GGUF files are read.
//! 3. `fs/answer/forms.rs` opens the file on a thread of its own: it flushes the files concerned, plans, and opens the
//!    objects. `OpenedForms` notes that the kernel may cache pages of the file.
//! 4. A read plans anew if the node has changed. Casts (`stream/cast.rs`), moves (`engine/move_preview.rs`) and records
//!    (`batch.rs`) are segments that are computed from the objects below.
//! 5. After each change of a node `vfs/tree/invalidate.rs` adds the forms of it that were opened to the inodes that the
//!    kernel must invalidate.
//!
//! To add a form: a variant of `Form` in `kind.rs`, at the end of `Form::ALL`. Then `Form::name`, `Form::shows`,
//! `is_shown` in `names.rs`, an arm in `plan.rs`, perhaps a `Part` in `recipe.rs`. The first forms have numbers, which
//! are parts of inode numbers and of pins, at most 14; 12 is `INDEX_NUMBER`. Each mount numbers the others itself
//! (`vfs/tree/form_numbers.rs`), and their files cannot be pinned. `values.rs` has forms with parameters.

mod adapters;
mod batch;
mod checkpoint;
mod experts;
mod form_pins;
mod gguf;
mod gguf_model;
mod kind;
mod names;
mod pieces;
mod plan;
mod rank_models;
mod recipe;
mod rows;
mod safetensors;
mod split;
mod sums;
mod symbolic_links;
mod values;
mod vectors;
mod weights;

pub use adapters::{
    Adapter, AdapterFiles, AdapterNodes, KeptRefusal, OpenAdapter, files_in, fits, plan as plan_merged,
};
pub use form_pins::{PinnedForms, has_other_sources, pin_of};
pub use gguf_model::{
    anchors_of, find as model_in, inputs, is_shown as is_model_shown, name as model_name,
    size as size_of_model, why_none, why_of_config,
};
pub use kind::{Form, MERGED_NAME, RowFormat, RowsOf, Shows};
pub use names::{Item, find, hides, link_target, lists_tensors, names, why_hidden};
pub use plan::{plan, published};
pub use rank_models::forget_closed;
pub use recipe::Recipe;
pub use rows::Members;
pub use split::{config_objects, why_not_split};
pub use values::{family_above, has_values, hides_tensors, name_shown, tensor_shown, value_named, values};
pub use weights::{is_config, names_of_codes, objects_beside, why_stored};
