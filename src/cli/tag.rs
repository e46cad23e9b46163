//! `tierfs tag`.

use serde_json::json;

use crate::cli::Outcome;
use crate::cli::common::output::{print, print_json};
use crate::model::{Error, ErrorKind, Result};
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
    remote: String,
    /// TENANT/COLLECTION, for its newest snapshot; with =N for snapshot N
    collection: String,
    /// The tag to set
    name: Option<String>,
    /// Move a tag that another snapshot has
    #[arg(long, requires = "name", conflicts_with = "remove")]
    force: bool,
    /// Remove the tag
    #[arg(long, requires = "name")]
    remove: bool,
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let (place, number) = match self.collection.split_once('=') {
            Some((place, number)) => {
                let wrong = |_| {
                    Error::invalid(format!(
                        "{number:?} is not the number of a snapshot; tierfs log lists them"
                    ))
                };
                (place, Some(number.parse::<u64>().map_err(wrong)?))
            }
            None => (self.collection.as_str(), None),
        };
        let shown = place;
        let place = parse_place(place)?;
        let place = place.borrowed();
        let remote = Remote::open(Client::open(&self.remote)?)?;
        let Some(name) = &self.name else {
            let tags = tags(&remote, place)?;
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
        let newest = || {
            let none = || Error::new(ErrorKind::NotFound, format!("{} has no {shown}", remote.place()));
            remote.newest(place.tenant, place.name)?.ok_or_else(none)
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
