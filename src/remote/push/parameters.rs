//! The parameters of a push.

use std::sync::Arc;

use crate::format::snapshot::manifest::OwnerAndMode;
use crate::model::{OwnedCollectionName, Result};
use crate::remote::place::signatures::Signer;
use crate::store::Recode;

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
    /// A message for those who list snapshots.
    pub message: String,
    /// Pieces sent at the same time.
    pub jobs: usize,
    /// A random number that tells this push from others.
    pub push: u128,
    /// The present time, in nanoseconds since 1970.
    pub created_at: u64,
    /// Whether nobody else pushes: then the remote need not support conditional PUT.
    pub is_single_writer: bool,
    /// Other collections of the remote whose pieces are named again instead of being sent.
    pub dedup_with: Vec<OwnedCollectionName>,
    pub variants: Variants,
    /// Whether to put the state over a snapshot that somebody else has pushed.
    pub is_forced: bool,
    /// Signs the snapshot.
    pub signer: Option<Arc<Signer>>,
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
