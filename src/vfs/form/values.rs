//! Forms with a parameter. The directory of such a form has a directory or a file for each value, and each value is a
//! form of its own, with numbers that the mount gives it (`vfs/tree/form_numbers.rs`).
//!
//! | directory | values | what a value shows |
//! |---|---|---|
//! | `.as/tp` | `Form::Rank` | the collection |
//! | `.as/merged` | `Form::Merged`, which `vfs/tree/merges.rs` looks up and lists | the collection |
//! | a tensor in `.as/experts` | `Form::Expert` | the tensor |
//! | a directory in `.as/npy`, beside its files | `Form::Rows`, which `vfs/tree/rows.rs` looks up | the directory |
//!
//! To add one: a variant for the directory at the end of `Form::ALL` and one for the values, `Form::value`, and an arm
//! in each function here.

use std::sync::Arc;

use crate::format::log::catalog::TensorEntry;
use crate::model::{EntryId, Result};
use crate::store::{Collection, Node, ROOT};
use crate::vfs::form::experts;
use crate::vfs::form::kind::{Form, Shows};
use crate::vfs::form::names::Item;
use crate::vfs::form::split;
use crate::vfs::form::weights;

/// Whether an item of a form is a directory of values.
pub fn has_values(form: Form, item: &Item) -> bool {
    match form {
        Form::Ranks | Form::Merges => true,
        Form::Experts => item.node().is_some_and(|node| node.file().is_some()),
        _ => false,
    }
}

/// The value with a name in the directory that shows a node. Fails if files that decide it cannot be read.
pub fn value_named(
    collection: &Arc<Collection>,
    form: Form,
    node: &Node,
    name: &[u8],
) -> Result<Option<Form>> {
    Ok(match form {
        Form::Ranks => split::rank_named(collection, name)?.map(Form::Rank),
        Form::Experts => experts::named(node, name).map(Form::Expert),
        _ => None,
    })
}

/// The values that the directory lists. Fails as [`value_named`] does.
pub fn values(collection: &Arc<Collection>, form: Form, node: &Node) -> Result<Vec<Form>> {
    Ok(match form {
        Form::Ranks => split::ranks(collection)?.into_iter().map(Form::Rank).collect(),
        Form::Experts => (0..experts::of(node)).map(Form::Expert).collect(),
        _ => Vec::new(),
    })
}

/// The form of the directory above a node in a form, if it is a directory of values that shows the same node.
pub fn family_above(form: Form, node: EntryId) -> Option<Form> {
    match form {
        Form::Rank(_) if node == ROOT => Some(Form::Ranks),
        Form::Merged(_) if node == ROOT => Some(Form::Merges),
        Form::Expert(_) => Some(Form::Experts),
        Form::Rows(_) => Some(Form::Npy),
        _ => None,
    }
}

/// The tensor that a file of a form is, with the type and shape that it has there. `None` for a file with a header.
pub fn tensor_shown(collection: &Arc<Collection>, form: Form, item: &Item) -> Option<TensorEntry> {
    let node = collection.state().node(item.node()?.entry.id)?.clone();
    let tensor = node.file()?.tensor.as_ref()?;
    match form.shows() {
        Shows::Cast(to) => weights::tensor_in_cast(collection, &node, tensor, to),
        Shows::Moved(_) | Shows::Merged => Some(tensor.clone()),
        Shows::Split(rank) => split::tensor_in(collection, &node, tensor, rank),
        Shows::Part => experts::one_of(tensor),
        Shows::Wrapped(_) | Shows::Digests | Shows::Model(_) | Shows::Values | Shows::Rows => None,
    }
}

/// Whether a form hides tensors that `find` and `names` give, or gives them other names.
pub fn hides_tensors(form: Form) -> bool {
    matches!(form.shows(), Shows::Cast(_) | Shows::Split(_))
}

/// The name of a tensor in such a form, where its name is `name`. `None` for one that the form hides.
pub fn name_shown(collection: &Arc<Collection>, form: Form, node: &Node, name: &[u8]) -> Option<Vec<u8>> {
    match form {
        Form::Rank(rank) => split::is_there(collection, node, rank).then(|| name.to_vec()),
        _ => weights::name_in_cast(collection, node, name),
    }
}
