//! `tierfs clone` and `tierfs pull`.

use std::path::PathBuf;

use crate::cli::Outcome;
use crate::cli::common::mounts;
use crate::cli::common::open_store::open_store;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::process::own_owner;
use crate::model::{CollectionName, Error, Result};
use crate::remote::client::Client;
use crate::remote::clone::{Changes, ClonedFrom, Made, clone, pull};
use crate::remote::place::at::At;
use crate::remote::place::remote::Remote;
use crate::remote::place::signatures::Trust;
use crate::remote::push::request::{parse_place, parse_two_places};
use crate::store::{Access, Store};

/// Make a collection of a store from a snapshot of a remote; its bytes are fetched when they are read.
///
/// The clone can be written to and pushed again. `tierfs evict` gives back the space of bytes that the remote
/// has. The store must not be mounted. Credentials come from the environment, later from that of the daemon
/// that mounts the store (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT).
///
/// Example: tierfs clone s3://models/prefix acme/llama /srv/tensors
#[derive(clap::Args)]
pub(super) struct Clone {
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    remote: String,
    /// TENANT/COLLECTION in the remote; with =TENANT/COLLECTION its names in the store
    collection: String,
    /// The store, which exists
    store: PathBuf,
    /// Clone this snapshot instead of the newest: its number, a tag, or the BLAKE3 of its manifest
    #[arg(long, value_name = "N|TAG|BLAKE3")]
    at: Option<String>,
    /// Refuse a snapshot that this key has not signed: a public ed25519 key in PEM, perhaps with @UUID of the only remote that
    /// it is for; again for further keys
    #[arg(long, value_name = "KEYFILE")]
    trust: Vec<PathBuf>,
    /// A text by which a program knows the clones that it has made
    #[arg(long, value_name = "TEXT", hide = true)]
    mark: Option<String>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Bring a clone to the newest snapshot of its collection.
///
/// A clone that was changed since it was cloned, pulled or pushed is refused: push it under another name, or
/// discard the changes with --theirs. Pieces of the new snapshot that are here stay. The store must not be
/// mounted.
///
/// Example: tierfs pull /srv/tensors acme/llama
#[derive(clap::Args)]
pub(super) struct Pull {
    /// The store
    store: PathBuf,
    /// TENANT/COLLECTION in the store
    collection: String,
    /// Get this snapshot instead of the newest: its number, a tag, or the BLAKE3 of its manifest
    #[arg(long, value_name = "N|TAG|BLAKE3")]
    at: Option<String>,
    /// Refuse a snapshot that this key has not signed, as for tierfs clone
    #[arg(long, value_name = "KEYFILE")]
    trust: Vec<PathBuf>,
    /// Discard all changes of the clone
    #[arg(long)]
    theirs: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Clone {
    pub fn run(self) -> Result<Outcome> {
        let (from, to) = parse_two_places(&self.collection)?;
        let url = absolute(&self.remote);
        let remote = Remote::open(Client::open(&url)?)?;
        let store = open(&self.store)?;
        let (at, trust) = (wanted(self.at.as_deref()), Trust::wanted(&self.trust, &remote)?);
        let (collection, trust) = (from.borrowed(), trust.as_ref());
        let mark = self.mark.as_deref();
        let from = ClonedFrom { remote: &remote, url: &url, collection, at: &at, trust, mark };
        let made = clone(&store, from, to.borrowed(), own_owner())?;
        report(&made, to.borrowed(), self.json)
    }
}

impl Pull {
    pub fn run(self) -> Result<Outcome> {
        let place = parse_place(&self.collection)?;
        let place = place.borrowed();
        let store = open(&self.store)?;
        let no_clone = || Error::invalid(format!("{place} is not a clone; tierfs clone makes one"));
        let source = store.clone_source(place.tenant, place.name)?.ok_or_else(no_clone)?;
        let remote = Remote::open(Client::open(&source.url)?)?;
        let changes = if self.theirs { Changes::Discard } else { Changes::Refuse };
        let (at, trust) = (wanted(self.at.as_deref()), Trust::wanted(&self.trust, &remote)?);
        let made = pull(&store, &remote, place, &at, trust.as_ref(), changes)?;
        report(&made, place, self.json)
    }
}

fn open(path: &std::path::Path) -> Result<Store> {
    mounts::refuse_own_mount(path)?;
    let note = format!("process {}, which makes a clone in it", std::process::id());
    open_store(path, Access::Write, &note)
}

fn wanted(at: Option<&str>) -> At {
    at.map_or(At::Newest, At::parse)
}

/// The URL, for processes with other working directories.
pub(super) fn absolute(url: &str) -> String {
    let path = url.strip_prefix("file://").and_then(|path| std::path::absolute(path).ok());
    path.map_or_else(|| url.to_owned(), |path| format!("file://{}", path.display()))
}

fn report(made: &Made, place: CollectionName<'_>, json: bool) -> Result<Outcome> {
    if json { print_json(&made.to_json(place)) } else { print(&format!("{}\n", made.text(place))) }?;
    Ok(Outcome::Succeeded)
}
