//! `tierfs push`.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::cli::Outcome;
use crate::cli::init::random_id;
use crate::cli::shared::interrupt::Interrupt;
use crate::cli::shared::mounts;
use crate::cli::shared::output::{human, print, print_json};
use crate::format::snapshot::manifest::Owner;
use crate::model::{Error, Progress, Result};
use crate::remote::client::Client;
use crate::remote::place::Remote;
use crate::remote::push::{JOBS, Pushed, Request, push};
use crate::store::disk::files::FileDisk;
use crate::store::{Access, Store, now_nanoseconds};

/// Publish a collection in an object storage, where other machines can mount it.
///
/// A push sends what the remote does not have and then creates a snapshot, all of it or nothing. A push
/// that was interrupted is repeated, and finds what it sent. The store must not be mounted meanwhile.
/// Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
/// AWS_ENDPOINT).
///
/// Example: tierfs push /srv/tensors acme/llama s3://models/prefix --create
#[derive(clap::Args)]
pub(super) struct Args {
    /// The store
    store: PathBuf,
    /// TENANT/COLLECTION; with =TENANT/COLLECTION its names in the remote
    collection: String,
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    remote: String,
    /// Make the remote if there is none
    #[arg(long)]
    create: bool,
    /// A message for those who list snapshots
    #[arg(long, default_value = "")]
    message: String,
    /// Push without conditional PUT, where the object storage lacks it. Nobody else may push meanwhile
    #[arg(long)]
    single_writer: bool,
    /// Name the pieces of this collection of the remote again instead of sending them
    #[arg(long, value_name = "TENANT/COLLECTION")]
    dedup_with: Vec<String>,
    /// Pieces sent at the same time; each takes up to 16 MiB of memory
    #[arg(long, value_name = "N", default_value_t = JOBS as u16, value_parser = clap::value_parser!(u16).range(1..=128))]
    jobs: u16,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Cancels the push when the user presses Ctrl-C.
struct Cancelling(Interrupt);

impl Progress for Cancelling {
    fn advance(&self, _bytes: u64) {}

    fn is_cancelled(&self) -> bool {
        self.0.is_pressed()
    }
}

fn place(text: &str) -> Result<(String, String)> {
    let parts = text.split_once('/').filter(|(tenant, name)| !tenant.is_empty() && !name.is_empty());
    let wrong = || Error::invalid(format!("{text:?} is no TENANT/COLLECTION"));
    parts
        .filter(|(_, name)| !name.contains('/'))
        .map(|(tenant, name)| (tenant.to_owned(), name.to_owned()))
        .ok_or_else(wrong)
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (local, named) = self.collection.split_once('=').unwrap_or((&self.collection, &self.collection));
        let (local, named) = (place(local)?, place(named)?);
        let dedup_with = self.dedup_with.iter().map(|text| place(text)).collect::<Result<_>>()?;
        let client = Client::open(&self.remote)?;
        mounts::refuse_own_mount("store", &self.store)?;
        let note = format!("process {}, which pushes from it", std::process::id());
        let store = Store::open(Arc::new(FileDisk::new(&self.store)), Access::Write, &note);
        let store = store.map_err(|error| mounts::with_mounts(error, &self.store))?;
        let collection = store.collection(&local.0, &local.1)?;
        let now = now_nanoseconds();
        let remote = match self.create {
            true => Remote::open_or_create(client, random_id()?, now / 1_000_000_000)?,
            false => Remote::open(client)?,
        };
        let entry = store.tenant(&local.0).entry();
        // As a mount by this user shows it.
        let own = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let owner = entry.owner.unwrap_or_else(own);
        let request = Request {
            tenant: named.0,
            collection: named.1,
            tenant_owner: Owner { uid: owner.0, gid: owner.1, mode: entry.mode },
            message: self.message.clone(),
            jobs: usize::from(self.jobs),
            push: random_id()?.0,
            created_at: u64::try_from(now).unwrap_or(0),
            is_single_writer: self.single_writer,
            dedup_with,
        };
        let pushed = push(&remote, &collection, &request, &Cancelling(Interrupt::listen()?))?;
        self.report(&request, &pushed)?;
        Ok(Outcome::Succeeded)
    }

    fn report(&self, request: &Request, pushed: &Pushed) -> Result<()> {
        let name = format!("{}/{}", request.tenant, request.collection);
        if self.json {
            return print_json(&json!({
                "collection": name,
                "snapshot": pushed.number,
                "unchanged": pushed.is_unchanged,
                "pieces": pushed.pieces,
                "bytes": pushed.bytes,
                "pieces_sent": pushed.pieces_sent,
                "bytes_sent": pushed.bytes_sent,
            }));
        }
        let what = if pushed.is_unchanged { "nothing new, still" } else { "pushed" };
        print(&format!(
            "{what} snapshot {} of {name}: {} in {} pieces, {} sent in {}\n",
            pushed.number,
            human(pushed.bytes),
            pushed.pieces,
            human(pushed.bytes_sent),
            pushed.pieces_sent,
        ))
    }
}
