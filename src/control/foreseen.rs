//! The moves that the policy would make in a day without a use: the value `policy` of `plan`, and `coldest.json`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::control::context::Context;
use crate::engine::{self, ForeseenMove, targets};
use crate::model::{EntryId, Result, human};
use crate::store::Collection;
use crate::vfs::Vfs;

/// The value of `plan` that asks for the moves of the policy.
pub const POLICY_PLAN: &str = "policy";
const DAY: u64 = 86_400;
/// The moves that a text lists.
const LISTED_MAX: usize = 1000;

/// Moves of the policy in a day.
pub(super) struct Foreseen(Vec<ForeseenMove>);

impl Foreseen {
    /// Those of a file or of all below a directory.
    pub fn below(vfs: &Vfs, collection: &Arc<Collection>, node: EntryId) -> Result<Foreseen> {
        let below: HashSet<EntryId> = targets(collection, node)?.iter().map(|target| target.node).collect();
        // The store is looked at only if the policy moves one of these.
        let is_moved = |node: &EntryId| engine::is_moved_by_policy(&collection.state(), *node);
        if !below.iter().any(is_moved) {
            return Ok(Foreseen(Vec::new()));
        }
        let mut moves = vfs.engine().foreseen_moves(vfs.free_bytes(), DAY)?;
        moves.retain(|step| Arc::ptr_eq(&step.collection, collection) && below.contains(&step.node));
        Ok(Foreseen(moves))
    }

    /// A line for people.
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "the policy would move nothing in a day without a use".to_owned();
        }
        // The first step of a tensor says its bytes now, the last one those after the day.
        let mut seen = HashSet::new();
        let first = self.0.iter().filter(|step| seen.insert(step.key));
        let before: u64 = first.map(|step| step.bytes[0]).sum();
        let mut seen = HashSet::new();
        let last = self.0.iter().rev().filter(|step| seen.insert(step.key));
        let after: u64 = last.map(|step| step.bytes[1]).sum();
        let nodes: HashSet<EntryId> = self.0.iter().map(|step| step.node).collect();
        let (steps, tensors) = (self.0.len(), nodes.len());
        let plural =
            |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        format!(
            "in a day without a use: {} of {}, from {} to {}",
            plural(steps, "move", "moves"),
            plural(tensors, "tensor", "tensors"),
            human(before),
            human(after)
        )
    }

    /// The moves in order, the first 1,000.
    pub fn json(&self) -> Value {
        let row = |step: &ForeseenMove| {
            let [bytes, bytes_after] = step.bytes;
            json!({
                "path": format!("{}/{}", step.collection.path(), step.path),
                "rows": step.rows.map(|rows| [rows.first, rows.end]),
                "after_seconds": step.after,
                "from": step.from.to_string(),
                "to": step.to.to_string(),
                "bytes": bytes,
                "bytes_after": bytes_after,
                "why": step.why,
            })
        };
        self.0.iter().take(LISTED_MAX).map(row).collect()
    }
}

/// The text of `coldest.json`.
pub(super) fn coldest(context: &Context) -> Result<String> {
    let vfs = &context.mounted.vfs;
    let moves = vfs.engine().foreseen_moves(vfs.free_bytes(), DAY)?;
    Ok(format!("{:#}\n", Foreseen(moves).json()))
}
