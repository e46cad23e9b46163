//! The summary of a request that changes how tensors are stored.

use std::fmt;

use crate::engine::select::Target;
use crate::model::{Aim, Kept, Rows, Tier, human, human_part};
use crate::store::Collection;

/// Rows of a tensor that a request takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TakenRows {
    pub rows: Rows,
    /// The number of all rows.
    pub of: u64,
}

impl fmt::Display for TakenRows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rows {} of {}", self.rows, self.of)
    }
}

/// The number of tensors that a request changed, and the reasons why it did not change the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// The tier or encoding that the request aims at; the tier `Absent` for an eviction.
    pub aim: Option<Aim>,
    /// The rows that it takes, where these are not all.
    pub rows: Option<TakenRows>,
    /// Tensors of the file or directory.
    pub tensors: u64,
    /// Tensors that the request has to change.
    pub planned: u64,
    /// Tensors that it has changed.
    pub moved: u64,
    /// Tensors that were stored in this way before.
    pub there: u64,
    /// Tensors that were refused while others moved.
    pub refused: u64,
    /// Tensors that the request leaves unchanged, by reason.
    pub kept: Kept,
    /// Logical bytes of the tensors.
    pub bytes: u64,
    /// Bytes of their payloads.
    pub stored: u64,
    /// Bytes of blocks that left data files which other files share, so that no space was freed.
    pub shared: u64,
}

impl Summary {
    /// Counts a tensor with its bytes.
    pub(super) fn count(&mut self, target: &Target) {
        self.tensors += 1;
        self.add_bytes(target);
    }

    /// Measures the bytes anew.
    pub(super) fn measure(&mut self, collection: &Collection, targets: &[Target]) {
        (self.bytes, self.stored) = (0, 0);
        targets.iter().for_each(|target| self.add_bytes(target));
        let objects = targets.iter().flat_map(|target| &target.objects);
        self.shared = objects.map(|object| collection.bytes_left_to_others(object)).sum();
    }

    fn add_bytes(&mut self, target: &Target) {
        self.bytes += target.bytes();
        self.stored += target.objects.iter().map(|object| object.stored()).sum::<u64>();
    }

    /// `37 of 104 tensors now q5, 23.0 of 86.7 MiB stored; 67 kept exact: ...`, for the tensors that the
    /// request has changed.
    pub fn text(&self) -> String {
        let aim = self.aim.unwrap_or(Aim::Tier(Tier::Exact));
        let mut parts = Vec::new();
        if self.moved > 0 {
            let all = self.tensors;
            let now = match self.rows {
                Some(rows) => format!("{rows} now {aim}"),
                None => format!("{} of {all} {} now {aim}", self.moved + self.there, tensors(all)),
            };
            parts.push(format!("{now}, {} stored", human_part(self.stored, self.bytes)));
        } else if self.planned == 0 {
            parts.push(self.nothing(aim));
        } else {
            parts.push("nothing was changed".to_owned());
        }
        let rest = self.planned.saturating_sub(self.moved);
        if rest > 0 {
            parts.push(format!("{rest} not changed"));
        }
        if self.refused > 0 {
            parts.push(format!("{} refused", self.refused));
        }
        if self.moved > 0 && self.shared > 0 {
            parts.push(format!(
                "{} take their space as before, since other files share them",
                human(self.shared)
            ));
        }
        if self.kept.sum() > 0 {
            match aim {
                Aim::Tier(Tier::Exact) => {}
                Aim::Tier(_) | Aim::Again(_) => parts.push(self.kept.text()),
                Aim::Pack | Aim::Unpack => parts.push(self.kept.text_as("left as they are")),
            }
        }
        parts.join("; ")
    }

    /// As [`text`](Self::text), for a request that was only checked.
    pub fn would_text(&self) -> String {
        let done = Summary { moved: self.planned, ..*self }.text();
        match self.planned {
            0 => done,
            _ => format!("would change {} {}: {done}", self.planned, tensors(self.planned)),
        }
    }

    fn nothing(&self, aim: Aim) -> String {
        match (self.tensors, self.there) {
            (0, _) => "nothing to do: no tensors were found".to_owned(),
            (_, 0) if self.refused == 0 && aim.keeps_bytes() => "nothing to do".to_owned(),
            (1, 0) if self.refused == 0 => format!("nothing to do: the tensor cannot be {aim}"),
            (all, 0) if self.refused == 0 => format!("nothing to do: none of the {all} tensors can be {aim}"),
            (_, 0) => "nothing was changed".to_owned(),
            (all, there) if matches!(aim, Aim::Again(_)) => {
                format!("nothing to do: {there} of {all} tensors are {aim}, without an exact source")
            }
            (all, there) if all == there && all > 1 => {
                format!("nothing to do: all {all} tensors are {aim} already")
            }
            (1, _) => match self.rows {
                Some(rows) => format!("nothing to do: {rows} are {aim} already"),
                None => format!("nothing to do: it is {aim} already"),
            },
            (all, there) => format!("nothing to do: {there} of {all} tensors are {aim} already"),
        }
    }

    /// The same as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "tier": self.aim.map(Aim::name),
            "rows": self.rows.map(|taken| [taken.rows.first, taken.rows.end]),
            "tensors": self.tensors,
            "planned": self.planned,
            "moved": self.moved,
            "already": self.there,
            "refused": self.refused,
            "kept": {
                "keep_list": self.kept.by_keep_list,
                "beside_codes": self.kept.beside_codes,
                "too_small": self.kept.too_small,
                "not_float": self.kept.not_float,
                "quantized": self.kept.quantized,
                "not_packed": self.kept.not_packed,
                "not_smaller": self.kept.not_smaller,
                "checksummed": self.kept.checksummed,
                "views": self.kept.views,
            },
            "bytes": self.bytes,
            "bytes_stored": self.stored,
            "bytes_shared": self.shared,
        })
    }
}

fn tensors(count: u64) -> &'static str {
    if count == 1 { "tensor" } else { "tensors" }
}

#[cfg(test)]
mod tests {
    use super::Summary;
    use crate::model::{Aim, Kept, Tier};

    #[test]
    fn a_summary_counts_what_was_and_was_not_changed() {
        let kept = Kept { by_keep_list: 12, too_small: 54, not_float: 1, ..Kept::default() };
        let (bytes, stored) = (90_868_376, 24_117_248);
        let aim = Some(Aim::Tier(Tier::Q5));
        let done =
            Summary { aim, tensors: 104, planned: 37, moved: 37, kept, bytes, stored, ..Summary::default() };
        assert_eq!(
            done.text(),
            "37 of 104 tensors now q5, 23.0 of 86.7 MiB stored; \
             67 kept exact: 12 by the keep list, 54 too small (\":all\" takes them), 1 not float"
        );
        let cancelled = Summary { moved: 30, kept: Kept::default(), ..done };
        assert_eq!(cancelled.text(), "30 of 104 tensors now q5, 23.0 of 86.7 MiB stored; 7 not changed");
        let there = Summary { planned: 0, moved: 0, there: 104, kept: Kept::default(), ..done };
        assert_eq!(there.text(), "nothing to do: all 104 tensors are q5 already");
        let quantized = Kept { quantized: 104, ..Kept::default() };
        let none = Summary { planned: 0, moved: 0, kept: quantized, ..done };
        assert_eq!(
            none.text(),
            "nothing to do: none of the 104 tensors can be q5; 104 kept exact: 104 quantized already"
        );
        let empty = Summary { aim, ..Summary::default() };
        assert_eq!(empty.text(), "nothing to do: no tensors were found");
    }
}
