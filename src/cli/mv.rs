//! `tierfs mv`.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::mounts::mount_for;
use crate::cli::common::open_store::open_engine;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::ingest::parse_collection;
use crate::model::{CollectionName, Error, ErrorKind, OwnedCollectionName, Result, check_label};

/// Rename a collection or a tenant, or give a collection to another tenant.
///
/// Files keep their owners, tiers and inode numbers; nothing is copied. The other tenant's quota must have
/// room. On a mount, mv(1) does the same. Refused while a file of the collection is open, a job works in it, or
/// differences tie it to another collection.
///
/// Example: tierfs mv /srv/tensors acme/llama acme/llama-2
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, or its mount point; a path in a mount names both
    store: PathBuf,
    /// The present name: TENANT/COLLECTION or TENANT
    #[arg(value_name = "FROM", value_parser = parse_name)]
    from: Name,
    /// The new name, of the same form
    #[arg(value_name = "TO", value_parser = parse_name)]
    to: Name,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// A tenant, or a collection.
#[derive(Clone, Debug)]
struct Name {
    tenant: String,
    collection: Option<String>,
}

fn parse_name(text: &str) -> Result<Name> {
    let text = text.trim_end_matches('/');
    if text.contains('/') {
        let OwnedCollectionName { tenant, name: collection } = parse_collection(text)?;
        return Ok(Name { tenant, collection: Some(collection) });
    }
    check_label(text).map_err(|wrong| Error::invalid(format!("{text}: {wrong}")))?;
    Ok(Name { tenant: text.to_owned(), collection: None })
}

impl Name {
    fn path(&self) -> String {
        match &self.collection {
            Some(collection) => format!("{}/{collection}", self.tenant),
            None => self.tenant.clone(),
        }
    }
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (from, to) = (self.from.path(), self.to.path());
        if self.from.collection.is_some() != self.to.collection.is_some() {
            let text = format!("{from} and {to} must both be collections, or both tenants");
            return Err(Error::invalid(text));
        }
        match mount_for(&self.store)? {
            Some(mounted) => {
                let place = mounted.mountpoint.join(&from);
                let tenant = mounted.mountpoint.join(&self.to.tenant);
                if self.to.collection.is_some() && !tenant.exists() {
                    let (name, tenant) = (&self.to.tenant, tenant.display());
                    let text = format!("there is no tenant {name}; to make it: mkdir {tenant}");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
                let before = refusal::last_number(&place);
                if let Err(error) = rename(&place, &mounted.mountpoint.join(&to)) {
                    let typed = Typed { words: "mv", path: &place };
                    return Refusal::of(&mounted, &typed, before, error).report(&place, self.json);
                }
            }
            None => {
                let store = open_engine(&self.store, "renames a collection")?.store;
                let renamed = match (&self.from.collection, &self.to.collection) {
                    (Some(old), Some(new)) => store.rename_collection(
                        CollectionName::new(&self.from.tenant, old),
                        CollectionName::new(&self.to.tenant, new),
                    ),
                    _ => store.rename_tenant(&self.from.tenant, &self.to.tenant),
                };
                renamed.map_err(|error| refusal::with_mount(error, &self.store))?;
            }
        }
        if self.json {
            print_json(&json!({ "from": from, "to": to }))?;
        } else {
            print(&format!("{from}: now {to}\n"))?;
        }
        Ok(Outcome::Succeeded)
    }
}

fn rename(from: &Path, to: &Path) -> std::result::Result<(), Errno> {
    fs::rename(from, to).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
