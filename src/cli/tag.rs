//! `tierfs tag`.

use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::output::{print, print_json};
use crate::cli::common::remote::no_snapshot;
use crate::model::Result;
use crate::remote::client::Client;
use crate::remote::place::remote::Remote;
use crate::remote::place::tags::{Move, remove_tag, set_tag, tags};
use crate::remote::push::request::parse_place;

/// Give a snapshot of a remote a name, which keeps it from being collected as garbage.
///
/// Without NAME, lists the tags of the collection.
///
/// Example: tierfs tag s3://models/prefix acme/llama=3 v1.0
#[derive(clap::Args)]
pub(super) struct Args {
    /// The remote: s3://BUCKET/PREFIX or file:///DIRECTORY
    remote: String,
    /// TENANT/COLLECTION, for its newest snapshot; with =N at the end for snapshot N
    collection: String,
    /// The tag to set
    name: Option<String>,
    /// Move a tag that another snapshot has
    #[arg(long, requires = "name", conflicts_with = "remove")]
    force: bool,
    /// Remove the tag
    #[arg(long, requires = "name")]
    remove: bool,
    /// Print JSON: an array of tags, or an object
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        // Names of collections may have equals signs too.
        let numbered = self.collection.rsplit_once('=');
        let numbered = numbered.and_then(|(place, number)| Some((place, number.parse::<u64>().ok()?)));
        let (place, number) =
            numbered.map_or((self.collection.as_str(), None), |(place, number)| (place, Some(number)));
        let shown = place;
        let place = parse_place(place)?;
        let place = place.borrowed();
        let remote = Remote::open(Client::open(&self.remote)?)?;
        let Some(name) = &self.name else {
            let tags = tags(&remote, place)?;
            if tags.is_empty() && remote.newest(place.tenant, place.name)?.is_none() {
                return Err(no_snapshot(&remote, shown)?);
            }
            if self.json {
                let rows = tags.iter().map(|(tag, number)| json!({ "tag": tag, "snapshot": number }));
                print_json(&rows.collect::<Vec<_>>().into())?;
            } else {
                print(&tags.iter().map(|(tag, number)| format!("{number:>6} {tag}\n")).collect::<String>())?;
            }
            return Ok(Outcome::Succeeded);
        };
        if self.remove {
            remove_tag(&remote, place, name)?;
            return self.report(None, &format!("removed the tag {name} of {shown}"));
        }
        let newest = || match remote.newest(place.tenant, place.name)? {
            Some(number) => Ok(number),
            None => Err(no_snapshot(&remote, shown)?),
        };
        let number = number.map_or_else(newest, Ok)?;
        let moves = if self.force { Move::Allowed } else { Move::Refused };
        set_tag(&remote, place, name, number, moves)?;
        self.report(Some(number), &format!("{name} is snapshot {number} of {shown}"))
    }

    fn report(&self, number: Option<u64>, text: &str) -> Result<Outcome> {
        if self.json {
            print_json(&json!({ "tag": self.name, "snapshot": number }))?;
        } else {
            print(&format!("{text}\n"))?;
        }
        Ok(Outcome::Succeeded)
    }
}
