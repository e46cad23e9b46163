//! `tierfs rm`.

use std::fs;
use std::path::PathBuf;

use rustix::io::Errno;
use serde_json::json;

use crate::cli::common::mounts::{Mounted, mount_for};
use crate::cli::common::open_store::open_engine;
use crate::cli::common::output::{files_text, human, print, print_json};
use crate::cli::common::refusal::{self, Refusal, Typed};
use crate::cli::{Outcome, misused};
use crate::ingest::parse_collection;
use crate::model::{Error, ErrorKind, OwnedCollectionName, Result};
use crate::store::version_name;

/// Remove a collection with everything in it, from a store or a remote.
///
/// In a remote, a new snapshot says that the collection was removed: mounts that look for newer snapshots stop showing it, and
/// tierfs gc removes the older ones after its grace. Until then tierfs push --revert brings one back.
///
/// Source files that were imported in place stay. The daemon removes from a mounted store, while nobody
/// has a file of the collection open. Refuses a collection to which others are stored as
/// differences. With --at, removes one version of a collection of a store (tierfs log) and leaves the rest.
///
/// Example: tierfs rm /srv/tensors acme/llama
///
/// Example: tierfs rm /srv/tensors run/policy --at 3
///
/// Example: tierfs rm s3://models/prefix acme/llama
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store, its mount point, or a remote; a path in a mount names both
    store: PathBuf,
    /// The collection to remove
    #[arg(value_name = "TENANT/COLLECTION", value_parser = parse_collection)]
    collection: OwnedCollectionName,
    /// Remove only the version with this number
    #[arg(long, value_name = "N")]
    at: Option<u64>,
    /// Remove the tags of a collection of a remote too, which keep its snapshots
    #[cfg(feature = "remote")]
    #[arg(long)]
    force: bool,
    /// Write to a remote without conditional PUT, while nobody else pushes to it
    #[cfg(feature = "remote")]
    #[arg(long)]
    single_writer: bool,
    #[cfg(feature = "remote")]
    #[command(flatten)]
    signs: crate::cli::common::remote::SignArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        #[cfg(feature = "remote")]
        match crate::cli::common::remote::url(&self.store) {
            Some(_) if self.at.is_some() => {
                return misused("--at is an option of a store; tierfs gc removes snapshots of a remote");
            }
            Some(url) => return self.remove_published(url),
            None if self.force
                || self.single_writer
                || self.signs.sign.is_some()
                || self.signs.sign_with.is_some() =>
            {
                return misused(
                    "--force, --single-writer, --sign and --sign-with are options of a remote, such as s3://BUCKET/PREFIX",
                );
            }
            None => {}
        }
        if let Some(number) = self.at {
            return self.remove_version(number);
        }
        let OwnedCollectionName { tenant, name } = &self.collection;
        let path = self.collection.to_string();
        let (files, stored) = match mount_for(&self.store)? {
            Some(mounted) => match remove_by_daemon(&mounted, tenant, name)? {
                Ok(removed) => removed,
                Err(refusal) => {
                    return refusal.report(&mounted.mountpoint.join(&path), self.json);
                }
            },
            None => {
                let engine = open_engine(&self.store, "removes a collection")?;
                let used = engine.store.collection(tenant, name)?.meter().used();
                let removed = engine.store.remove_collection_with_content(tenant, name);
                removed.map_err(|error| refusal::with_mount(error, &self.store))?;
                engine.store.events().removed(&path, rustix::process::getuid().as_raw());
                (used.files, used.stored)
            }
        };
        if self.json {
            print_json(&json!({ "collection": path, "files": files, "bytes_stored": stored }))?;
        } else {
            print(&format!("{path}: removed, {}, {} stored\n", files_text(files), human(stored)))?;
        }
        Ok(Outcome::Succeeded)
    }
}

impl Args {
    fn remove_version(&self, number: u64) -> Result<Outcome> {
        let OwnedCollectionName { tenant, name } = &self.collection;
        let path = self.collection.to_string();
        match mount_for(&self.store)? {
            Some(mounted) => {
                if let Err(refusal) = write_to_remove(&mounted, tenant, &version_name(name, number)) {
                    return refusal.report(&mounted.mountpoint.join(&path), self.json);
                }
            }
            None => {
                let engine = open_engine(&self.store, "removes a version")?;
                let removed = engine.store.remove_version(self.collection.borrowed(), number);
                removed.map_err(|error| refusal::with_mount(error, &self.store))?;
                let user = rustix::process::getuid().as_raw();
                engine.store.events().removed(&format!("{tenant}/{}", version_name(name, number)), user);
            }
        }
        if self.json {
            print_json(&json!({ "collection": path, "version": number }))?;
        } else {
            print(&format!("{path}: version {number} removed\n"))?;
        }
        Ok(Outcome::Succeeded)
    }
}

#[cfg(feature = "remote")]
impl Args {
    fn remove_published(&self, url: &str) -> Result<Outcome> {
        use crate::remote::client::Client;
        use crate::remote::place::remote::Remote;
        use crate::remote::push::history::{How, Writers, remove};

        let client = Client::open(url)?;
        let (client, writers) = match self.single_writer {
            true => (client.for_single_writer(), Writers::One),
            false => (client, Writers::Many),
        };
        let remote = Remote::open(client)?;
        let (path, signer) = (&self.collection, self.signs.signer()?);
        let how = How { writers, signer: signer.as_ref() };
        let number = remove(&remote, path.borrowed(), self.force, how)?;
        if self.json {
            print_json(&json!({ "collection": path.to_string(), "snapshot": number }))?;
        } else {
            print(&format!(
                "{path}: removed by snapshot {number}; tierfs gc gives back the bytes after its grace\n"
            ))?;
        }
        Ok(Outcome::Succeeded)
    }
}

/// Has the daemon remove a collection. Returns its number of files and its stored bytes.
fn remove_by_daemon(
    mounted: &Mounted,
    tenant: &str,
    name: &str,
) -> Result<std::result::Result<(u64, u64), Refusal>> {
    let quota = mounted.mountpoint.join(tenant).join(name).join(".ctl/quota");
    let used = fs::read_to_string(&quota).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let text = format!("there is no collection {tenant}/{name}; tierfs ls lists them");
            Error::new(ErrorKind::NotFound, text)
        }
        _ => Error::io(mounted.mountpoint.join(tenant).join(name).display(), error),
    })?;
    let number = |key: &str| {
        let line = used.lines().find_map(|line| line.strip_prefix(key));
        line.and_then(|rest| rest.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    Ok(write_to_remove(mounted, tenant, name).map(|()| (number("files"), number("stored bytes"))))
}

/// Writes a name to the control file of a tenant that removes what it names.
fn write_to_remove(mounted: &Mounted, tenant: &str, name: &str) -> std::result::Result<(), Refusal> {
    let control = mounted.mountpoint.join(tenant).join(".ctl/remove");
    let before = refusal::last_number(&control);
    fs::write(&control, name).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let typed = Typed { words: "rm", path: &control };
        Refusal::of(mounted, &typed, before, errno)
    })
}
