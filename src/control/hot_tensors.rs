//! The control file `hottest.json`: the tensors with the highest scores.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::control::context::Context;
use crate::control::measure::Measure;
use crate::control::visibility::Visibility;
use crate::engine::Heat;
use crate::model::{EntryId, Result};
use crate::store::Collection;
use crate::vfs::FileView;

/// The most tensors to list.
const SHOWN_MAX: usize = 50;

/// The place of a tensor among the others: its score, access count and number. Scores are not negative, so
/// their bits have the order of their values.
type Rank = (u64, u32, usize, EntryId);

/// The tensors with accesses and the highest scores, in open collections that the caller may see.
pub(super) fn json(context: &Context) -> Result<String> {
    let mounted = context.mounted;
    let mut collections = mounted.store().open_collections();
    collections.retain(|found| Visibility::of(found).is_visible_to(mounted, context.user));
    collections.sort_by_key(|collection| collection.path());
    let mut best: BinaryHeap<Reverse<Rank>> = BinaryHeap::new();
    for (place, collection) in collections.iter().enumerate() {
        let state = collection.state();
        for node in state.nodes() {
            let Some(file) = node.file().filter(|file| file.tensor.is_some()) else { continue };
            let objects: Vec<_> =
                file.objects.iter().filter_map(|id| state.object(*id)).map(Arc::clone).collect();
            let heat = Heat::of(collection, &state, node, &objects);
            if heat.count == 0 {
                continue;
            }
            best.push(Reverse((heat.score.max(0.0).to_bits(), heat.count, place, node.entry.id)));
            if best.len() > SHOWN_MAX {
                best.pop();
            }
        }
    }
    let mut found: Vec<Rank> = best.into_iter().map(|Reverse(rank)| rank).collect();
    found.sort_by(|one, other| other.cmp(one));
    let rows: Vec<Value> = found.iter().filter_map(|rank| row(collections.get(rank.2)?, rank)).collect();
    Ok(format!("{:#}\n", Value::from(rows)))
}

/// A line of the list; `None` if the tensor went meanwhile.
fn row(collection: &Arc<Collection>, rank: &Rank) -> Option<Value> {
    let (score, accesses, _, id) = *rank;
    let node = Arc::clone(collection.state().node(id)?);
    let view = FileView { collection: Arc::clone(collection), node };
    let measure = Measure::of(&view).ok()?;
    let sum = measure.sum();
    Some(json!({
        "path": view.path(),
        "tier": measure.tier(),
        "tiers": measure.shares(),
        "accesses": accesses,
        "score": (f64::from_bits(score) * 1000.0).round() / 1000.0,
        "bytes": sum.logical,
        "bytes_stored": sum.stored,
    }))
}
