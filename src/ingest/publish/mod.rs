//! Commits objects, nodes and names: names last.

pub(in crate::ingest) mod commit;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod compare;
pub(in crate::ingest) mod drafts;
pub(in crate::ingest) mod join;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod links;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod mend;
pub(in crate::ingest) mod names;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod removal;
#[cfg(feature = "mount")]
pub(in crate::ingest) mod tags;
