//! The shards that an imported index names and that are not in the collection.

use crate::ingest::find::target::Target;
use crate::ingest::publish::compare::node_at;
use crate::model::quoted_name;
use crate::store::Collection;

/// Missing shards that a note names.
const SHOWN_MAX: usize = 5;

/// The note about the missing shards of an index. `None` if none is missing.
pub(in crate::ingest) fn note_of_missing(collection: &Collection, index: &Target) -> Option<String> {
    let missing = {
        let state = collection.state();
        node_at(&state, index).map(|node| state.missing_shards(node)).unwrap_or_default()
    };
    let shown: Vec<&str> = missing.iter().take(SHOWN_MAX).map(|name| quoted_name(name)).collect();
    match missing.len() - shown.len() {
        _ if missing.is_empty() => None,
        0 => Some(format!("it names shards that are missing: {}", shown.join(", "))),
        more => Some(format!("it names shards that are missing: {} and {more} more", shown.join(", "))),
    }
}
