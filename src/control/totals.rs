//! Totals of a store, tenant or collection: files, bytes by tier, problems.

use std::collections::{BTreeMap, HashSet};

use crate::control::context::{Context, Mounted};
use crate::control::measure::{Tally, tally};
use crate::control::visibility::Visibility;
use crate::engine::IMPORT_AGAIN;
use crate::model::{ErrorKind, Result, Tier};
use crate::store::{Collection, Store, Unreadable};

/// Most files with corrupt blocks of a collection that are named.
const UNREADABLE_MAX: usize = 100;
/// The collections of a remote that are opened for its totals, the first ones that it lists: a remote decides how many it has.
const OPENED_MAX: u64 = 100;

/// Totals of a store, tenant or collection.
#[derive(Default)]
pub(super) struct Totals {
    pub tenants: u64,
    pub collections: u64,
    /// Collections of a remote that are not open, and that the other numbers leave out.
    pub unopened: u64,
    /// Collections of a remote that were listed.
    listed: u64,
    pub files: u64,
    /// Bytes of the logs, as of opening each collection.
    pub log_bytes: u64,
    /// Bytes of the copies of pinned files.
    pub pinned: u64,
    /// Blocks and bytes by tier.
    pub tiers: BTreeMap<Tier, Tally>,
    /// The number of deltas of each block that has any.
    pub chains: Vec<u64>,
    pub problems: Vec<Problem>,
    /// Each collection that can be opened.
    pub shares: Vec<Share>,
}

/// Why blocks of a file cannot be read, and what helps.
pub(super) fn why_unreadable(Unreadable { corrupt, why }: &Unreadable) -> String {
    match corrupt {
        0 => why.clone(),
        1 => format!("a block is corrupt: {why}; {IMPORT_AGAIN}"),
        corrupt => format!("{corrupt} blocks are corrupt, one of them: {why}; {IMPORT_AGAIN}"),
    }
}

/// A problem of a collection.
pub(super) struct Problem {
    place: Visibility,
    text: String,
}

/// The totals of one collection, which hold as long as it does not change.
struct Counted {
    place: Visibility,
    path: String,
    files: u64,
    log_bytes: u64,
    pinned: u64,
    tiers: BTreeMap<Tier, Tally>,
    chains: Vec<u64>,
}

impl Counted {
    fn of(collection: &Collection) -> Counted {
        let place = Visibility::of(collection);
        let state = collection.state();
        let copies = state.pins().filter_map(|(_, copy)| copy);
        Counted {
            place,
            path: collection.path(),
            files: state.nodes().filter(|node| node.file().is_some()).count() as u64,
            log_bytes: collection.log_bytes(),
            pinned: copies.map(|copy| copy.bytes).sum(),
            tiers: tally(state.objects()),
            chains: state.objects().flat_map(|object| object.delta_counts()).collect(),
        }
    }
}

/// The totals of one collection.
pub(super) struct Share {
    place: Visibility,
    /// Its path in the mount.
    pub path: String,
    pub files: u64,
    pub problems: u64,
    /// Blocks and bytes by tier.
    pub tiers: BTreeMap<Tier, Tally>,
}

impl Share {
    /// The bytes that its files read as.
    pub fn logical(&self) -> u64 {
        self.tiers.values().map(|tally| tally.logical).sum()
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

    pub fn add_tenant(&mut self, store: &Store, tenant: &str) -> Result<()> {
        self.tenants += 1;
        let (is_remote, open) = (store.shows_snapshots(), store.open_collections());
        let of_tenant = open.iter().filter(|collection| collection.tenant() == tenant);
        let open: HashSet<String> = of_tenant.map(|collection| collection.name().to_owned()).collect();
        let mut names = store.collections(tenant)?;
        names.retain(|name| {
            self.listed += u64::from(is_remote);
            let is_left_out = self.listed > OPENED_MAX && !open.contains(name);
            self.unopened += u64::from(is_left_out);
            !is_left_out
        });
        let found = |name: &str| match store.closed_summary::<Counted>(tenant, name) {
            Some(counted) => Ok(Err(counted)),
            None => store.collection(tenant, name).map(Ok),
        };
        for (_, found) in store.each(names, found) {
            match found {
                // Such a collection has no problems.
                Ok(Err(counted)) => self.count(&counted, 0),
                Ok(Ok(collection)) => self.add(&collection),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let place = Visibility::unopened(tenant);
                    self.problems.push(Problem { place, text: error.to_string() });
                }
            }
        }
        Ok(())
    }

    pub fn add(&mut self, collection: &Collection) {
        let counted = collection.summarized(|| Counted::of(collection));
        let path = &counted.path;
        let poisoned = collection.poisoned().map(|reason| format!("{path} takes no more writes: {reason}"));
        let damaged =
            collection.damage().map(|damage| format!("{path} is damaged and read-only: {}", damage.reason));
        let events = collection.events().iter().map(|event| format!("{path}: {event}"));
        let mut unreadable: BTreeMap<String, Unreadable> = BTreeMap::new();
        for (object, found) in collection.unreadable().into_iter().filter(|(_, found)| found.corrupt > 0) {
            let of_file = unreadable.entry(collection.place_of(&object).path);
            of_file.and_modify(|file| file.corrupt += found.corrupt).or_insert(found);
        }
        let others = unreadable.len().saturating_sub(UNREADABLE_MAX);
        let others = (others > 0).then(|| format!("{path}: {others} more files have corrupt blocks"));
        let unreadable = unreadable.iter().take(UNREADABLE_MAX);
        let unreadable = unreadable.map(|(path, found)| format!("{path}: {}", why_unreadable(found)));
        let unreadable = unreadable.chain(others);
        let before = self.problems.len();
        let unrecorded = collection.all_unrecorded();
        let unrecorded = unrecorded.into_iter().map(|(path, why)| format!("{path}: {why}"));
        let texts = poisoned.into_iter().chain(damaged).chain(events).chain(unrecorded).chain(unreadable);
        self.problems.extend(texts.map(|text| Problem { place: counted.place.clone(), text }));
        let problems = (self.problems.len() - before) as u64;
        self.count(&counted, problems);
    }

    fn count(&mut self, counted: &Counted, problems: u64) {
        let Counted { place, path, files, log_bytes, pinned, tiers, chains } = counted;
        self.collections += 1;
        self.files += files;
        self.log_bytes += log_bytes;
        self.pinned += pinned;
        self.chains.extend(chains);
        for (tier, found) in tiers {
            self.tiers.entry(*tier).or_default().add(*found);
        }
        let (place, path, tiers) = (place.clone(), path.clone(), tiers.clone());
        self.shares.push(Share { place, path, files: *files, problems, tiers });
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
        let visible =
            self.problems.iter().filter(|problem| problem.place.is_visible_to(context.mounted, context.user));
        let mut visible: Vec<String> = visible.map(|problem| problem.text.clone()).collect();
        match self.problems.len() - visible.len() {
            0 => {}
            more => visible.push(format!("{more} more problems in collections that you may not list")),
        }
        visible
    }

    /// The collections that a user may see.
    pub fn visible_shares(&self, mounted: &Mounted, user: u32) -> impl Iterator<Item = &Share> {
        self.shares.iter().filter(move |share| share.place.is_visible_to(mounted, user))
    }

    /// [`visible_problems`](Self::visible_problems) as text, one line per problem.
    pub fn problems(&self, context: &Context) -> String {
        self.visible_problems(context).iter().map(|problem| format!("! {problem}\n")).collect()
    }
}
