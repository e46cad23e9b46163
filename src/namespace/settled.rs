//! What was written to open files goes to the log.

use std::sync::Arc;

use crate::edit::{self, Changes, Live};
use crate::model::Result;
use crate::namespace::Forget;
use crate::namespace::tree::{FileView, Namespace};
use crate::store::Collection;

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
        let written = live.is_changed().then(|| live.node());
        let mut changes = self.with_room(|| settle(live))?;
        changes.nodes.extend(written.filter(|_| live.may_be_stale()));
        Ok(self.forget(live.collection(), changes, written))
    }

    /// Whether something was written to a file that the log does not say yet.
    pub fn is_written_to(&self, view: &FileView) -> bool {
        let number = view.collection.state().number();
        self.live.get(number, view.node.entry.id).is_some_and(|live| live.is_changed())
    }

    /// What was written to the open files of a collection goes to the log.
    /// What the kernel must forget is owed.
    pub fn settle_all(&self, collection: &Arc<Collection>) -> Result<()> {
        let mut all = self.live.all();
        all.retain(|live| Arc::ptr_eq(live.collection(), collection));
        all.iter().try_for_each(|live| self.settle_owing(live))
    }

    /// What files are whose first name is another now, and nobody has looked at them since.
    /// What the kernel must forget is owed.
    pub fn finish_renames(&self, collection: &Arc<Collection>) {
        let changes = edit::finish_renames(collection, &self.live, self.verify);
        self.owe(self.forget(collection, changes, None));
    }

    /// What was written to an open file goes to the log. What the kernel must forget is owed
    /// before anybody else can find the file settled: who closes it pays what is owed.
    pub fn settle_owing(&self, live: &Live) -> Result<()> {
        let _telling = live.telling();
        self.settle(live).map(|forget| self.owe(forget))
    }
}
