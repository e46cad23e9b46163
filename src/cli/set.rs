//! `tierfs set`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cli::common::request::{How, Request, make_all};
use crate::cli::{Outcome, misused};
use crate::control::ATTRIBUTES;
use crate::model::Result;

/// Change settings of files, directories, collections, tenants or mounts.
///
/// Settings of a directory apply to everything below it. Those of a tenant or mount point are set on each
/// of its present collections. The keys: shape, tier, evict (cache, 1, discard), lossy (deny, allow, allow:TIER), pin (0, 1), reconstruct
/// (none, delta, factor, origin, remote), policy (manual, auto, auto:TIER, cache:SIZE), unit (tensor, block), pack (none, ladder), cache (auto, kernel,
/// decoded, none), encoder (best, least, absmax), writes (exact, delta), arrive (exact, packed,
/// TIER), dtype, row, head_dim, block_bytes, tail (rows) and back (q8, or q8,q3@ROWS) of directories for what arrives, list (files, both), plain (off, on),
/// tags (words with commas between), and down_below, up_above, hold, idle, ema_share, delta_changed, delta_norm, delta_chain
/// and free_min of the policy and of deltas.
///
/// Example: tierfs set lossy=allow policy=auto /mnt/acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// One or more KEY=VALUE, then one or more paths; a word that exists as a path and names no key begins the paths
    #[arg(required = true, num_args = 2.., value_name = "KEY=VALUE... PATH")]
    words: Vec<OsString>,
    #[command(flatten)]
    how: How,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (mut pairs, mut paths) = (Vec::new(), Vec::new());
        for word in &self.words {
            let pair = word.to_str().filter(|_| paths.is_empty()).and_then(|text| text.split_once('='));
            match pair {
                Some((key, value)) if keys().any(|known| known == key) => {
                    pairs.push((key, value, format!("set {key}={value}")));
                }
                // Names of files have such signs too.
                Some((key, _)) if !Path::new(word).exists() => {
                    let known = keys().collect::<Vec<_>>().join(", ");
                    return misused(&format!("unknown setting {key}; the settings are {known}"));
                }
                _ => paths.push(PathBuf::from(word)),
            }
        }
        if pairs.is_empty() {
            return misused("name at least one setting, as in lossy=allow, before the paths");
        }
        if paths.is_empty() {
            return misused("name at least one path after the settings");
        }
        let requests: Vec<Request> =
            pairs.iter().map(|(name, value, words)| Request { name, value, words }).collect();
        make_all(&requests, &paths, &self.how)
    }
}

/// The keys that can be set.
fn keys() -> impl Iterator<Item = &'static str> {
    let set = ATTRIBUTES.iter().filter(|attribute| attribute.set.is_some() && attribute.name != "plan");
    set.map(|attribute| attribute.name)
}
