//! The parameters of a push.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::format::snapshot::manifest::OwnerAndMode;
use crate::model::{OwnedCollectionName, Result};
use crate::remote::place::signatures::Signer;
use crate::remote::read::cache::Cache;
use crate::store::Recode;

/// Values of [`DifferenceLimits::percent_max`].
pub const DIFFERENCE_PERCENT: RangeInclusive<u8> = 1..=90;
/// Pieces that are sent at the same time, unless a request says otherwise.
pub const JOBS: usize = 8;

/// The collection that is published, and how.
#[derive(Clone)]
pub struct Parameters {
    /// The tenant in the remote.
    pub tenant: String,
    /// The collection in the remote.
    pub collection: String,
    /// The owner of the tenant.
    pub tenant_owner: OwnerAndMode,
    pub caption: Caption,
    /// Pieces sent at the same time.
    pub jobs: usize,
    /// A random number that tells this push from others.
    pub push: u128,
    /// The present time, in nanoseconds since 1970.
    pub created_at: u64,
    pub may: May,
    /// Other collections of the remote whose pieces are named again instead of being sent.
    pub dedup_with: Vec<OwnedCollectionName>,
    pub variants: Variants,
    pub keyframes: Keyframes<Arc<Cache>>,
    /// Signs the snapshot.
    pub signer: Option<Arc<Signer>>,
}

/// The texts by which people find a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Caption {
    /// A message for those who list snapshots.
    pub message: String,
    /// A tag that the snapshot will get.
    pub tag: Option<String>,
}

/// The liberties of a push.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct May {
    /// Create the remote if it does not exist.
    pub create: bool,
    /// Write without conditions: nobody else pushes, and the remote need not support them.
    pub single_writer: bool,
    /// Put the state over a snapshot that somebody else has pushed.
    pub force: bool,
}

/// The differences that a push sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keyframes<C> {
    pub limits: DifferenceLimits,
    /// Keeps keyframes on this machine: a cache, or its directory.
    pub cache: Option<C>,
}

impl<C> Default for Keyframes<C> {
    fn default() -> Keyframes<C> {
        Keyframes { limits: DifferenceLimits::default(), cache: None }
    }
}

/// When a piece that has changed is sent as its difference from an earlier snapshot, the keyframe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DifferenceLimits {
    /// How many pushes after its keyframe a piece may be a difference; 0 for none.
    pub pushes_max: u64,
    /// The most bytes that a difference takes, in hundredths of those of its piece.
    pub percent_max: u8,
}

impl Default for DifferenceLimits {
    fn default() -> DifferenceLimits {
        DifferenceLimits { pushes_max: 16, percent_max: 25 }
    }
}

/// The variants to publish beside the collection.
#[derive(Clone)]
pub enum Variants {
    /// Those that the newest snapshot has, each made by its name.
    AsBefore(MakeByName),
    /// These. No two have the same name.
    These(Vec<Arc<dyn Recode>>),
}

/// Makes the variant of a name.
pub type MakeByName = Arc<dyn Fn(&str) -> Result<Arc<dyn Recode>> + Send + Sync>;
