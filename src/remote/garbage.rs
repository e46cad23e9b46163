//! Plans of collections of garbage.
//!
//! A plan is a text: the line `tierfs garbage 1`, then a line for each piece that the sweep may remove
//! (`piece/...`). Pushes that begin while there is a plan name none of its pieces, and store them again under
//! the next generation.

use crate::format::snapshot::keys::{self, PieceName};
use crate::model::{Error, Result};
use crate::remote::place::Remote;

const FIRST_LINE: &str = "tierfs garbage 1";
/// A plan has at most this many bytes.
const PLAN_BYTES_MAX: u64 = 256 << 20;

/// A plan.
pub struct Plan {
    generation: u32,
    candidates: Vec<PieceName>,
}

impl Plan {
    /// Its generation.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// The pieces that the sweep may remove.
    pub fn candidates(&self) -> impl Iterator<Item = PieceName> + '_ {
        self.candidates.iter().copied()
    }

    fn parse(generation: u32, text: &str) -> Result<Plan> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return Err(Error::unsupported("a plan that this program does not know"));
        }
        let candidates = lines.map(|line| {
            keys::parse_piece(line).ok_or_else(|| Error::corrupt("a plan names something that is no piece"))
        });
        Ok(Plan { generation, candidates: candidates.collect::<Result<_>>()? })
    }
}

/// The plans of a remote.
pub fn plans(remote: &Remote) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for listed in remote.client().list(keys::GARBAGE.trim_end_matches('/'), None)? {
        let Some(number) = listed.key.strip_prefix(keys::GARBAGE).and_then(keys::number) else { continue };
        let generation = u32::try_from(number)
            .map_err(|_| Error::corrupt(format!("{} has a wrong number", listed.key)))?;
        // It was swept since it was listed.
        let Some(bytes) = remote.client().get(&listed.key, PLAN_BYTES_MAX)? else { continue };
        let plan = Plan::parse(generation, &String::from_utf8_lossy(&bytes));
        plans.push(plan.map_err(|error| error.at(&listed.key))?);
    }
    Ok(plans)
}
