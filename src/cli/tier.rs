//! `tierfs tier`.

use std::path::{Path, PathBuf};

use crate::cli::common::request::{How, Request, make_all};
use crate::cli::{Outcome, misused};
use crate::control::POLICY_PLAN;
use crate::model::{Error, MoveTo, Result, Rows};

/// Move tensors to a precision tier.
///
/// On a container or directory, moves the tensors that model quantizers usually touch; with :all after
/// the tier, every float tensor. A collection, a tenant or a mount point stands for all files in it.
/// Precision is given up only where lossy is allow, an exact source remains, or --lossy says so.
///
/// A tier is named after the bits of its codes. With scales it takes 8.5 (q8), 7.5 (q7), 5.5 (q5), 5
/// (q3x) or 3.5 (q3) bits an element.
///
/// --rows moves a part of one tensor; the rest keeps its tiers, and its tier is mixed then.
///
/// Example: tierfs tier q5 /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// exact, q8, q7, q5, q3 or q3x; append :all to move every float tensor; with --dry-run also policy, for what
    /// policy=auto would move in a day without a use
    #[arg(value_parser = parse_tier)]
    tier: String,
    /// Files, directories, collections, tenants or mount points; or a mounted store, and names in it
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Allow the loss of the last exact copy, for this request only
    #[arg(long)]
    lossy: bool,
    /// Encode tensors that are in the tier already anew, from their exact sources and with their present
    /// encoder; those without an exact source stay
    #[arg(long)]
    again: bool,
    /// Move these rows of one tensor only, FIRST:END without END; rounded inward to whole stretches of 64 blocks
    #[arg(long, value_name = "FIRST:END", value_parser = Rows::parse)]
    rows: Option<Rows>,
    /// Check the move and print what it would do; change nothing
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    #[command(flatten)]
    how: How,
}

fn parse_tier(text: &str) -> Result<String> {
    if text == POLICY_PLAN {
        return Ok(text.to_owned());
    }
    MoveTo::parse_tier(text).map(|_| text.to_owned()).map_err(|error| match Path::new(text).exists() {
        true => Error::invalid(format!("the tier comes before the paths: tierfs tier TIER {text}")),
        false => error,
    })
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let again = if self.again { ":again" } else { "" };
        let tier = format!("{}{again}", self.tier);
        let [rows, option] = ["@", " --rows "].map(|begin| match &self.rows {
            Some(rows) => format!("{begin}{rows}"),
            None => String::new(),
        });
        if tier != POLICY_PLAN {
            MoveTo::parse(&tier)?;
        } else if !self.dry_run || self.lossy || self.rows.is_some() {
            let text = "policy is not a tier; tierfs set policy=auto moves by policy, tier policy --dry-run shows the moves";
            return misused(text);
        }
        let value = format!("{tier}{rows}{}", if self.lossy { ":lossy" } else { "" });
        let words = format!("tier {tier}{option}{}", if self.dry_run { " --dry-run" } else { "" });
        let name = if self.dry_run { "plan" } else { "tier" };
        make_all(&[Request { name, value: &value, words: &words }], &self.paths, &self.how)
    }
}
