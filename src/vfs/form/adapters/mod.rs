//! The form `merged`: a base with the adapter of another directory added, `.as/merged/ADAPTER/`.
//!
//! 1. `vfs/tree/merges.rs` finds the directory that a name leads to. [`AdapterFiles`] are the value of the form.
//! 2. [`Adapter::open`] (`adapter.rs`) reads the configuration and the names of the adapter's tensors: which tensor of the
//!    base changes how. It reads no weights.
//! 3. `base_model.rs` compares the names and shapes with all tensors of a directory of the base; `layouts.rs` says which
//!    weights are transposed.
//! 4. [`plan`] (`merge_plan.rs`) checks each tensor and makes the recipe: the stored file, with another part for each
//!    tensor that changes. Header and size stay.
//! 5. `stream/low_rank.rs` adds the product when a range is read, by `codec/low_rank.rs`, which states the order of the sum.

mod adapter;
mod adapter_files;
mod base_model;
mod kept_refusal;
mod known_fits;
mod known_models;
mod layouts;
mod matrix_sizes;
mod merge_plan;
mod merged_tensor;

pub use adapter::{Adapter, AdapterNodes, OpenAdapter};
pub use adapter_files::{AdapterFiles, files_in};
pub use kept_refusal::KeptRefusal;
pub use merge_plan::{fits, plan};
pub(super) use merged_tensor::MergedTensor;
