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
//! To add a form: a variant of `Form` in `kind.rs`, at the end of `Form::ALL`. Numbers are parts of inode numbers and
//! of pins, at most 14; 12 is `INDEX_NUMBER`, so `Form::number` and `Form::from_number` must skip it; 15 is
//! `MERGED_NUMBER`, of the forms in `merged/`, which a name in the path makes. Then
//! `Form::name`, `Form::shows`, `is_shown` in `names.rs`, an arm in `plan.rs`, perhaps a `Part` in `recipe.rs`.

mod batch;
mod checkpoint;
mod form_pins;
mod gguf;
mod kind;
mod merged;
mod names;
mod plan;
mod recipe;
mod safetensors;
mod sums;
mod weights;

pub use form_pins::{PinnedForms, pin_of};
pub use kind::{Form, INDEX_NUMBER, MERGED_NAME, MERGED_NUMBER, Shows};
pub use merged::{Adapter, AdapterFiles, Merge, files_in, fits, plan as plan_merged};
pub use names::{Item, find, lists_tensors, names};
pub use plan::{plan, published};
pub use recipe::Recipe;
pub use weights::{is_config, name_in_cast, names_of_codes, objects_beside, why_stored};
