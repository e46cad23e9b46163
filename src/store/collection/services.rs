//! Services that the collections of a store share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::store::clock::Ticks;
use crate::store::collection::lineage::Lineage;
use crate::store::collection::open_object::Rebuild;
use crate::store::events::Events;
use crate::store::link_candidates::Sharing;

/// Called when names change. The writer's locks are held during the call.
type NameWatcher = Box<dyn Fn() + Send + Sync>;

/// The services that a store gives to each collection that it opens.
#[derive(Clone, Default)]
pub(in crate::store) struct Services {
    ticks: Ticks,
    /// Provides other sources of blocks, once it is set.
    rebuilder: Arc<OnceLock<Arc<dyn Rebuild>>>,
    lineage: Arc<Lineage>,
    name_watcher: Arc<OnceLock<NameWatcher>>,
    events: Arc<Events>,
    /// Whether exact tensors are packed where no setting says it.
    packs: bool,
    sharing: Arc<Sharing>,
    /// Number of collections that were opened.
    opened: Arc<AtomicU64>,
}

impl Services {
    /// New services with this clock. `packs` is whether exact tensors are packed by default.
    pub fn new(ticks: Ticks, packs: bool, sharing: Sharing) -> Services {
        Services { ticks, packs, sharing: Arc::new(sharing), ..Services::default() }
    }

    /// These services, with the dependencies between objects that others have.
    pub fn with_lineage_of(self, others: &Services) -> Services {
        Services { lineage: others.lineage.clone(), ..self }
    }

    /// The number of collections that were opened.
    #[inline]
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Counts a collection that was opened.
    pub fn note_opening(&self) {
        self.opened.fetch_add(1, Ordering::Relaxed);
    }

    /// The data files that new files may share.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// The clock, and the ticks that accesses are counted in.
    pub fn ticks(&self) -> &Ticks {
        &self.ticks
    }

    /// Sets the clock for collections that are not open yet.
    pub fn set_ticks(&mut self, ticks: Ticks) {
        self.ticks = ticks;
    }

    /// The provider of other sources of blocks, if it is set.
    #[inline]
    pub fn rebuilder(&self) -> Option<&Arc<dyn Rebuild>> {
        self.rebuilder.get()
    }

    /// Sets the provider of other sources of blocks. Only the first call has an effect.
    pub fn set_rebuilder(&self, rebuilder: Arc<dyn Rebuild>) {
        self.rebuilder.get_or_init(|| rebuilder);
    }

    /// The dependencies between objects.
    pub fn lineage(&self) -> &Arc<Lineage> {
        &self.lineage
    }

    /// The event log.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Whether exact tensors are packed where no setting says it.
    pub fn packs(&self) -> bool {
        self.packs
    }

    /// Sets the function that is called when names change. Only the first call has an effect.
    pub fn watch_names(&self, tell: impl Fn() + Send + Sync + 'static) {
        self.name_watcher.get_or_init(|| Box::new(tell));
    }

    /// Notifies that names lead elsewhere or nowhere.
    pub fn invalidate_all_names(&self) {
        if let Some(tell) = self.name_watcher.get() {
            tell();
        }
    }
}
