//! What is held, summed up: files, bytes by tier, problems.

use std::collections::BTreeMap;

use crate::control::measure::{Tally, tally};
use crate::model::{ErrorKind, Result, Tier};
use crate::store::{Collection, Store};

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
    pub problems: Vec<String>,
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
                Err(error) => self.problems.push(error.to_string()),
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
        if let Some(reason) = collection.poisoned() {
            self.problems.push(format!("{} takes no more writes: {reason}", collection.path()));
        }
        if let Some(damage) = collection.damage() {
            self.problems.push(format!("{} is damaged and read-only: {}", collection.path(), damage.reason));
        }
        self.problems
            .extend(collection.events().iter().map(|event| format!("{}: {event}", collection.path())));
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

    /// What is wrong, a line each.
    pub fn problems(&self) -> String {
        self.problems.iter().map(|problem| format!("! {problem}\n")).collect()
    }
}
