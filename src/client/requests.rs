//! Requests to the daemon about files and directories of a mount: attributes that are set.

use std::path::Path;

use crate::attributes;
use crate::error::Result;

/// Whether a request may give up the last exact copy of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Consent {
    /// The setting `lossy` decides, which is `deny` unless somebody has set it.
    #[default]
    AsSet,
    /// It may, for this request.
    Given,
}

/// The bytes to evict.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Evict {
    /// Pages in the kernel's cache, and decoded copies in memory.
    Cache,
    /// Stored bytes that can be reconstructed.
    Stored,
    /// All stored bytes, for good.
    Discard(Consent),
}

/// Moves the tensors of a file to a tier: `exact`, `q8`, `q7`, `q5`, `q3` or `q3x`; of a container those that model
/// quantizers usually touch, or with `:all` behind the tier every float tensor. Returns at the end of the move.
///
/// Of a directory, a collection for example, the request is checked and queued: `MOUNTPOINT/.ctl/jobs` shows it.
///
/// # Errors
/// [`ErrorKind::Refused`](crate::ErrorKind::Refused) with the daemon's reason, for example that the move would give up
/// the last exact copy; [`ErrorKind::NotMounted`](crate::ErrorKind::NotMounted).
///
/// ```no_run
/// use tierfs_client::{Consent, set_tier};
///
/// set_tier("/mnt/acme/llama/model.safetensors", "q8", Consent::Given)?;
/// # Ok::<(), tierfs_client::Error>(())
/// ```
pub fn set_tier(path: impl AsRef<Path>, tier: &str, consent: Consent) -> Result<()> {
    attributes::set(path.as_ref(), "tier", &format!("{tier}{}", suffix(consent)))
}

/// Keeps files contiguous, with their present bytes and in their tier: a file, or all below a directory, as a job that
/// is queued. Of a file of a form, keeps a copy of its present bytes.
///
/// # Errors
/// Those of [`set_tier`].
pub fn pin(path: impl AsRef<Path>) -> Result<()> {
    attributes::set(path.as_ref(), "pin", "1")
}

/// Unpins files, and removes their copies.
///
/// # Errors
/// Those of [`set_tier`].
pub fn unpin(path: impl AsRef<Path>) -> Result<()> {
    attributes::set(path.as_ref(), "pin", "0")
}

/// Drops cached pages, or stored bytes: of a file, or of all below a directory, as a job that is queued.
///
/// # Errors
/// Those of [`set_tier`].
pub fn evict(path: impl AsRef<Path>, evict: Evict) -> Result<()> {
    let value = match evict {
        Evict::Cache => "cache",
        Evict::Stored => "1",
        Evict::Discard(Consent::AsSet) => "discard",
        Evict::Discard(Consent::Given) => "discard:lossy",
    };
    attributes::set(path.as_ref(), "evict", value)
}

fn suffix(consent: Consent) -> &'static str {
    match consent {
        Consent::AsSet => "",
        Consent::Given => ":lossy",
    }
}
