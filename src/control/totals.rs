//! Totals of a store, tenant or collection: files, bytes by tier, problems.

use std::collections::BTreeMap;

use crate::control::context::Context;
use crate::control::measure::{Tally, tally};
use crate::control::quota::runs_mount;
use crate::model::{ErrorKind, Result, Tier};
use crate::store::ROOT;
use crate::store::{Collection, Store};

/// Mode bits that let the owner list and enter a directory.
const OWNER_LISTS: u32 = 0o500;
/// Mode bits that let any other user do so, whatever the user's groups.
const OTHERS_LIST: u32 = 0o055;

/// Totals of a store, tenant or collection.
#[derive(Default)]
pub(super) struct Totals {
    /// Number of tenants.
    pub tenants: u64,
    /// Number of collections.
    pub collections: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of the logs, as of opening each collection.
    pub log_bytes: u64,
    /// Bytes of the copies of pinned files.
    pub pinned: u64,
    /// Blocks and bytes by tier.
    pub tiers: BTreeMap<Tier, Tally>,
    /// The number of deltas of each block that has any.
    pub chains: Vec<u64>,
    /// The problems.
    pub problems: Vec<Problem>,
}

/// A problem of a collection.
pub(super) struct Problem {
    tenant: String,
    /// Owner and mode of the collection; `None` if it cannot be opened.
    collection: Option<(u32, u32)>,
    text: String,
}

impl Problem {
    fn of(collection: &Collection, text: String) -> Problem {
        let root = collection.state().node(ROOT).map(|node| (node.entry.uid, node.entry.mode));
        Problem { tenant: collection.tenant().to_owned(), collection: root, text }
    }

    /// Whether the caller may see it. It names a collection, so the caller must be allowed to list that.
    fn is_visible_to(&self, context: &Context) -> bool {
        let user = context.user;
        let lists = |owner: u32, mode: u32| {
            let bits = if owner == user { OWNER_LISTS } else { OTHERS_LIST };
            mode & bits == bits
        };
        let owner = context.mounted.vfs.tenant_owner(&self.tenant).0;
        let mode = context.mounted.store().tenant(&self.tenant).entry().mode;
        let is_open = || match self.collection {
            Some((has, of)) => has == user || lists(owner, mode) && lists(has, of),
            None => false,
        };
        runs_mount(context) || owner == user || is_open()
    }
}

impl Totals {
    /// The totals of a store.
    pub fn of(store: &Store) -> Result<Totals> {
        let mut totals = Totals::default();
        for tenant in store.tenants()? {
            totals.add_tenant(store, &tenant)?;
        }
        Ok(totals)
    }

    /// Adds a tenant.
    pub fn add_tenant(&mut self, store: &Store, tenant: &str) -> Result<()> {
        self.tenants += 1;
        for name in store.collections(tenant)? {
            match store.collection(tenant, &name) {
                Ok(collection) => self.add(&collection),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let (tenant, text) = (tenant.to_owned(), error.to_string());
                    self.problems.push(Problem { tenant, collection: None, text });
                }
            }
        }
        Ok(())
    }

    /// Adds a collection.
    pub fn add(&mut self, collection: &Collection) {
        let state = collection.state();
        self.collections += 1;
        self.files += state.nodes().filter(|node| node.file().is_some()).count() as u64;
        self.log_bytes += collection.log_bytes();
        self.pinned += state.pins().filter_map(|(_, copy)| copy).map(|copy| copy.bytes).sum::<u64>();
        for object in state.objects() {
            self.chains.extend(object.delta_counts());
        }
        for (tier, found) in tally(state.objects()) {
            self.tiers.entry(tier).or_default().add(found);
        }
        let path = collection.path();
        let poisoned = collection.poisoned().map(|reason| format!("{path} takes no more writes: {reason}"));
        let damaged =
            collection.damage().map(|damage| format!("{path} is damaged and read-only: {}", damage.reason));
        let events = collection.events().iter().map(|event| format!("{path}: {event}"));
        let texts = poisoned.into_iter().chain(damaged).chain(events);
        self.problems.extend(texts.map(|text| Problem::of(collection, text)));
    }

    /// A table of blocks and bytes, one line per tier.
    pub fn table(&self) -> String {
        let mut text =
            format!("{:<8}{:>12}{:>20}{:>20}\n", "tier", "blocks", "logical bytes", "stored bytes");
        for (tier, tally) in &self.tiers {
            let Tally { blocks, logical, stored } = tally;
            text.push_str(&format!("{:<8}{blocks:>12}{logical:>20}{stored:>20}\n", tier.name()));
        }
        text
    }

    /// The problems that the caller may see, then the number of the others.
    pub fn visible_problems(&self, context: &Context) -> Vec<String> {
        let visible = self.problems.iter().filter(|problem| problem.is_visible_to(context));
        let mut visible: Vec<String> = visible.map(|problem| problem.text.clone()).collect();
        match self.problems.len() - visible.len() {
            0 => {}
            more => visible.push(format!("{more} more problems in collections that you may not list")),
        }
        visible
    }

    /// [`visible_problems`](Self::visible_problems) as text, one line per problem.
    pub fn problems(&self, context: &Context) -> String {
        self.visible_problems(context).iter().map(|problem| format!("! {problem}\n")).collect()
    }
}
