//! The attributes that imported files get from their sources.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::ingest::bytes::options::Origin;
use crate::ingest::find::walk::{Found, mtime};
use crate::model::{Error, Owner, PERMISSIONS, Result};
use crate::store::now_nanoseconds;

/// Permission bits of files that lie elsewhere.
const MODE_ELSEWHERE: u32 = 0o644;

/// Attributes of entries that an import creates now.
pub(super) fn now(owner: Owner) -> Origin {
    let now = now_nanoseconds();
    Origin { mode: 0o777, owner, atime: now, mtime: now, sha256: None }
}

/// The attributes of the file that a source becomes.
pub(super) fn origin_of(found: &Found, owner: Owner, sha256: Option<[u8; 32]>) -> Result<Origin> {
    if let Some(given) = &found.elsewhere {
        return Ok(Origin {
            mode: MODE_ELSEWHERE,
            mtime: found.mtime,
            sha256: sha256.or(given.sha256),
            ..now(owner)
        });
    }
    let metadata = fs::metadata(&found.source).map_err(|error| Error::io("reading it", error))?;
    Ok(origin(&metadata, owner, sha256))
}

/// The attributes that a file of this machine has.
pub(super) fn origin(metadata: &fs::Metadata, owner: Owner, sha256: Option<[u8; 32]>) -> Origin {
    Origin {
        mode: metadata.mode() & PERMISSIONS,
        owner,
        atime: metadata.atime().saturating_mul(1_000_000_000).saturating_add(metadata.atime_nsec()),
        mtime: mtime(metadata),
        sha256,
    }
}
