//! What was written goes to the log, and what the kernel must forget after a change.

use std::sync::Arc;

use crate::edit::{Changes, Live};
use crate::model::{EntryId, ErrorKind, Result};
use crate::namespace::ino::{Ino, Place};
use crate::namespace::tree::Namespace;
use crate::store::Collection;

/// What the kernel must forget.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Forget {
    /// Inodes whose bytes or attributes changed without the kernel.
    pub nodes: Vec<Ino>,
}

impl Forget {
    /// With one more inode.
    pub fn and(mut self, also: Option<Ino>) -> Forget {
        self.nodes.extend(also);
        self
    }

    /// Whether there is nothing to forget.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Namespace {
    /// What was written to an open file goes to the log.
    pub fn settle(&self, live: &Live) -> Result<Forget> {
        self.settled(live, Live::settle)
    }

    /// What was written to a file that a program has closed goes to the log.
    pub fn settle_closed(&self, live: &Live) -> Result<Forget> {
        self.settled(live, Live::settle_closed)
    }

    fn settled(&self, live: &Live, settle: fn(&Live) -> Result<Changes>) -> Result<Forget> {
        let changes = settle(live).or_else(|error| match error.kind() {
            ErrorKind::Full if self.let_go_unnamed() => settle(live),
            _ => Err(error),
        })?;
        Ok(self.forget(live.collection(), changes))
    }

    /// What was written to the open files of a collection goes to the log.
    /// What the kernel must forget is owed.
    pub fn settle_all(&self, collection: &Arc<Collection>) -> Result<()> {
        for live in self.live.all().iter().filter(|live| Arc::ptr_eq(live.collection(), collection)) {
            self.owe(self.settle(live)?);
        }
        Ok(())
    }

    /// Notes what the kernel must forget whether or not the request comes to its end.
    pub fn owe(&self, forget: Forget) {
        self.owed.lock().nodes.extend(forget.nodes);
    }

    /// What the kernel must forget, of requests that could not say so themselves.
    pub fn take_owed(&self) -> Forget {
        std::mem::take(&mut *self.owed.lock())
    }

    /// What the kernel must forget of nodes whose bytes changed.
    pub fn forget_nodes(&self, collection: &Collection, nodes: impl IntoIterator<Item = EntryId>) -> Forget {
        self.forget(collection, Changes { nodes: nodes.into_iter().collect(), names: Vec::new() })
    }

    /// What the kernel must forget of what changed: with a batch the index beside it.
    pub(super) fn forget(&self, collection: &Collection, changes: Changes) -> Forget {
        let number = collection.state().number();
        let ino = |node| Ino::of(Place::Node { collection: number, node });
        let indexes: Vec<EntryId> = {
            let state = collection.state();
            changes.nodes.iter().filter_map(|node| state.index_beside(*node)).collect()
        };
        // Of names that went the kernel asks anyway; their directories changed.
        let above = changes.names.into_iter().map(|(parent, _)| parent);
        Forget { nodes: changes.nodes.into_iter().chain(indexes).chain(above).filter_map(ino).collect() }
    }
}
