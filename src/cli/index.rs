//! `tierfs index`.

use crate::cli::Outcome;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::process::own_owner;
use crate::cli::common::remote::{PublishArgs, SignArgs, describes};
use crate::model::{Error, OwnedCollectionName, Result};
use crate::remote::client::Client;
use crate::remote::index::collections::collection_of;
use crate::remote::place::remote::Remote;
use crate::remote::place::tags::{Move, set_tag};
use crate::remote::push::index::{IndexParameters, publish_index};
use crate::remote::push::parameters::{Caption, May};
use crate::remote::push::request::parse_place;
use crate::remote::source;
use crate::store::disk::files::random_id;
use crate::store::{Reads, now_seconds};

/// Publish the objects of a bucket as a snapshot of a remote, without a copy of their bytes.
///
/// Mounts of the remote then show the files and tensors of the objects, and read from these; they need no listing of the
/// bucket, and credentials that may read it. An object that is replaced later fails its reads (ESTALE) until it is
/// published again. All objects below the URL become one collection.
///
/// Example: tierfs index s3://bucket/models/llama s3://remote/prefix --create
#[derive(clap::Args)]
pub(super) struct Args {
    /// The objects: s3://BUCKET/PREFIX or file:///DIRECTORY
    source: String,
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    remote: String,
    /// Name of the collection [default: the last two directories of the source]
    #[arg(long = "as", value_name = "TENANT/COLLECTION")]
    named: Option<String>,
    /// Read all bytes once, so that every later read is compared with their BLAKE3
    #[arg(long)]
    checksum: bool,
    #[command(flatten)]
    publish: PublishArgs,
    /// Put the snapshot over one that is no index of these objects
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    signs: SignArgs,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let source = source::open(&self.source)?;
        let place: OwnedCollectionName = match &self.named {
            Some(named) => parse_place(named)?,
            None => collection_of(&*source),
        };
        let client = Client::open(&self.remote)?;
        let remote = if self.publish.create {
            let id = random_id().map_err(|error| Error::io("reading /dev/urandom", error))?;
            Remote::open_or_create(client, id, now_seconds() as i64)?
        } else {
            Remote::open(client)?
        };
        let describe = describes(own_owner());
        let parameters = IndexParameters {
            describe: &*describe,
            reads: if self.checksum { Reads::All } else { Reads::Headers },
            caption: Caption { message: self.publish.message, tag: self.publish.tag.clone() },
            may: May {
                create: self.publish.create,
                single_writer: self.publish.single_writer,
                force: self.force,
            },
            signer: self.signs.signer()?,
        };
        let done = publish_index(&remote, &*source, place.borrowed(), parameters)?;
        if let Some(tag) = &self.publish.tag {
            set_tag(&remote, place.borrowed(), tag, done.number, Move::Refused)?;
        }
        match self.json {
            true => print_json(&done.to_json(place.borrowed()))?,
            false => print(&format!("{}\n", done.text(place.borrowed())))?,
        }
        Ok(Outcome::Succeeded)
    }
}
