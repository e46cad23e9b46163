//! What is held, summed up: files, bytes by tier, problems.

use std::collections::BTreeMap;

use crate::control::files::Context;
use crate::control::measure::{Tally, tally};
use crate::control::quota::runs_mount;
use crate::model::{ErrorKind, Result, Tier};
use crate::store::ROOT;
use crate::store::{Collection, Store};

/// The bits of a mode that let a directory's owner list and enter it.
const OWNER_LISTS: u32 = 0o500;
/// Those that let everybody else do so, whatever groups they are in.
const OTHERS_LIST: u32 = 0o055;

/// What a store holds.
#[derive(Default)]
pub(super) struct Held {
    /// Tenants.
    pub tenants: u64,
    /// Collections.
    pub collections: u64,
    /// Files.
    pub files: u64,
    /// Bytes of their logs when they were opened.
    pub log_bytes: u64,
    /// Bytes of the copies of pinned files.
    pub pinned: u64,
    /// Blocks and bytes by tier.
    pub tiers: BTreeMap<Tier, Tally>,
    /// The links of each chain of deltas.
    pub chains: Vec<u64>,
    /// What is wrong.
    pub problems: Vec<Problem>,
}

/// Something that is wrong with a collection.
pub(super) struct Problem {
    tenant: String,
    /// Who has the collection, and its mode; unknown of one that does not open.
    collection: Option<(u32, u32)>,
    text: String,
}

impl Problem {
    fn of(collection: &Collection, text: String) -> Problem {
        let root = collection.state().node(ROOT).map(|node| (node.entry.uid, node.entry.mode));
        Problem { tenant: collection.tenant().to_owned(), collection: root, text }
    }

    /// Whether it is told to who asks: it names a collection, which not everybody may list.
    fn is_told(&self, context: &Context) -> bool {
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

impl Held {
    /// All of a store.
    pub fn of(store: &Store) -> Result<Held> {
        let mut held = Held::default();
        for tenant in store.tenants()? {
            held.add_tenant(store, &tenant)?;
        }
        Ok(held)
    }

    /// Adds what a tenant holds.
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

    /// Adds what a collection holds.
    pub fn add(&mut self, collection: &Collection) {
        let state = collection.state();
        self.collections += 1;
        self.files += state.nodes().filter(|node| node.file().is_some()).count() as u64;
        self.log_bytes += collection.log_bytes();
        self.pinned += state.pins().filter_map(|(_, copy)| copy).map(|copy| copy.bytes).sum::<u64>();
        for object in state.objects() {
            self.chains.extend(object.chain_lens());
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

    /// Blocks and bytes by tier, a line each.
    pub fn table(&self) -> String {
        let mut text =
            format!("{:<8}{:>12}{:>20}{:>20}\n", "tier", "blocks", "logical bytes", "stored bytes");
        for (tier, tally) in &self.tiers {
            let Tally { blocks, logical, stored } = tally;
            text.push_str(&format!("{:<8}{blocks:>12}{logical:>20}{stored:>20}\n", tier.name()));
        }
        text
    }

    /// What is wrong, as far as who asks may know of it; how much more there is.
    pub fn told(&self, context: &Context) -> Vec<String> {
        let told = self.problems.iter().filter(|problem| problem.is_told(context));
        let mut told: Vec<String> = told.map(|problem| problem.text.clone()).collect();
        match self.problems.len() - told.len() {
            0 => {}
            more => told.push(format!("{more} more problems in collections that you may not list")),
        }
        told
    }

    /// The same, a line each.
    pub fn problems(&self, context: &Context) -> String {
        self.told(context).iter().map(|problem| format!("! {problem}\n")).collect()
    }
}
