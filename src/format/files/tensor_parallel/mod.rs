//! The part of each tensor of a model that a rank of tensor parallelism has, by the names of the tensors.
//!
//! A *column-parallel* matrix `[out, in]` is cut by rows, and its bias too; a *row-parallel* one by columns, and its bias
//! stays whole. The ranks share experts out as wholes. `table.rs` has the names, `config.rs` the numbers of heads and
//! experts. Heads are never cut. Ranks that outnumber the heads of keys and values share one of these heads, as in vLLM.
//!
//! | tensors of a matrix `m` | dimension of `out` | of `in` |
//! |---|---|---|
//! | `m.weight`, `m.weight_packed`, `m.weight_scale`, `m.weight_scale_inv`, `m.weight_zero_point` | 0 | 1 |
//! | `m.bias`; `m` itself | 0 | |
//! | `m.qweight`, `m.qzeros`, `m.scales` | 1 | 0 |
//! | `m.g_idx`, `m.weight_g_idx` | | 0 |
//!
//! A dimension of scales is shorter than that of the matrix: one index is a block of the matrix. It is cut only where
//! blocks end.

mod config;
mod table;

use std::fmt;
use std::ops::Range;

use smallvec::SmallVec;

use crate::format::files::tensor_parallel::table::{Place, Rule, Unit};
use crate::model::Shape;

pub use config::Config;

/// The most ranks.
pub const RANKS_MAX: u16 = 1024;

/// One of several ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Rank {
    /// Its number, below `ranks`.
    pub rank: u16,
    /// The number of ranks, from 1 to [`RANKS_MAX`].
    pub ranks: u16,
}

impl Rank {
    /// The rank with a name, `R-of-N` without leading zeros.
    pub fn from_name(name: &[u8]) -> Option<Rank> {
        let (rank, ranks) = std::str::from_utf8(name).ok()?.split_once("-of-")?;
        let rank = Rank { rank: rank.parse().ok()?, ranks: ranks.parse().ok()? };
        let is_valid = (1..=RANKS_MAX).contains(&rank.ranks) && rank.rank < rank.ranks;
        (is_valid && rank.to_string().as_bytes() == name).then_some(rank)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-of-{}", self.rank, self.ranks)
    }
}

/// The indices of a dimension that a rank has, in order. A matrix that joins several has a range of each.
pub type Ranges = SmallVec<[Range<u64>; 3]>;

/// The part of a tensor that a rank has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Share {
    /// All of it.
    Whole,
    /// Other ranks have the expert that it belongs to.
    Absent,
    /// These indices of a dimension.
    Slice {
        /// The dimension.
        dimension: usize,
        /// Its indices.
        ranges: Ranges,
    },
    /// The tensor lists the sizes of a weight. The rank has another size in one place.
    Sizes {
        /// The place.
        place: usize,
    },
}

/// The model whose tensors are shared.
pub struct Model<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// The shape of each of its tensors.
    pub shape: &'a dyn Fn(&str) -> Option<Shape>,
    /// One more than the highest number of an expert in a name. For a configuration without their number.
    pub experts: &'a dyn Fn() -> u64,
}

/// A tensor that belongs to a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The matrix `[out, in]` itself.
    Weight,
    /// The same with several elements of a row in one.
    Packed,
    /// The same for blocks of it.
    Scale,
    /// A value a row.
    Bias,
    /// Codes `[in, out]`.
    Turned,
    /// The same for blocks of it.
    TurnedScale,
    /// A value a column.
    Column,
    Sizes,
    /// Of an adapter, or one value.
    Other,
}

/// The tensors of a matrix by the last part of their names.
const PARTS: [(&str, Part); 14] = [
    ("weight", Part::Weight),
    ("bias", Part::Bias),
    ("", Part::Bias),
    ("weight_packed", Part::Packed),
    ("weight_scale", Part::Scale),
    ("weight_scale_inv", Part::Scale),
    ("weight_zero_point", Part::Scale),
    ("qweight", Part::Turned),
    ("scales", Part::TurnedScale),
    ("qzeros", Part::TurnedScale),
    ("g_idx", Part::Column),
    ("weight_g_idx", Part::Column),
    ("weight_shape", Part::Sizes),
    ("weight_global_scale", Part::Other),
];

impl Model<'_> {
    /// The part of a tensor that a rank has.
    ///
    /// # Errors
    /// The reason why so many ranks cannot share it.
    pub fn share(&self, rank: Rank, name: &str, shape: &Shape) -> Result<Share, String> {
        let why = |text: String| format!("{name}: {text}");
        match table::find(name, shape.dimensions().len(), &self.config.model_type) {
            None => Ok(Share::Whole),
            Some(Place::Expert(index)) => self.share_of_expert(rank, index).map_err(why),
            Some(Place::Experts) => self.share_of_experts(rank, shape).map_err(why),
            Some(Place::Matrix { rule, stem, part }) => {
                let part = PARTS.iter().find(|(name, _)| *name == part).map(|(_, part)| *part);
                let is_other = shape.elements() <= 1 || part == Some(Part::Other);
                match part.filter(|_| !is_other) {
                    Some(part) => self.share_of(Matrix { rule, stem, part }, rank, shape).map_err(why),
                    None if is_other || table::is_of_adapter(name) => Ok(Share::Whole),
                    None => Err(why("a part of a weight of a layout that is not split".to_owned())),
                }
            }
        }
    }

    /// The size of a dimension of a matrix in a rank, from the whole size.
    ///
    /// # Errors
    /// As those of [`Model::share`].
    pub fn size_in(&self, rank: Rank, name: &str, whole: u64) -> Result<u64, String> {
        let Some(Place::Matrix { rule, .. }) = table::find(name, 1, &self.config.model_type) else {
            return Ok(whole);
        };
        let ranges = self.ranges(rule, rank, whole).map_err(|text| format!("{name}: {text}"))?;
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    fn share_of_expert(&self, Rank { rank, ranks }: Rank, index: u64) -> Result<Share, String> {
        let experts = self.config.experts.unwrap_or_else(|| (self.experts)());
        let each = share_out(experts, ranks, "experts")?;
        if index >= experts {
            return Err(format!("config.json has {experts} experts"));
        }
        Ok(if index / each.max(1) == u64::from(rank) { Share::Whole } else { Share::Absent })
    }

    fn share_of_experts(&self, Rank { rank, ranks }: Rank, shape: &Shape) -> Result<Share, String> {
        let Some(size) = shape.dimensions().first().copied() else { return Ok(Share::Whole) };
        // Some models stack the rows of all experts in one dimension.
        let experts = self.config.experts.unwrap_or(size);
        if size == 1 && experts != 1 {
            return Ok(Share::Whole);
        }
        share_out(experts, ranks, "experts")?;
        if !size.is_multiple_of(experts) {
            return Err(format!("a dimension of {size} for {experts} experts"));
        }
        let each = share_out(size, ranks, "rows")?;
        let begin = each * u64::from(rank);
        Ok(Share::Slice { dimension: 0, ranges: Ranges::from_iter([begin..begin + each]) })
    }

    fn share_of(&self, matrix: Matrix<'_>, rank: Rank, shape: &Shape) -> Result<Share, String> {
        let Matrix { rule, part, .. } = matrix;
        let is_row_parallel = matches!(rule, Rule::Row(_));
        let dimension = match (part, is_row_parallel) {
            (Part::Weight | Part::Packed | Part::Scale | Part::Bias, false) => 0,
            (Part::Weight | Part::Packed | Part::Scale, true) => 1,
            (Part::Turned | Part::TurnedScale, false) => 1,
            (Part::Turned | Part::TurnedScale | Part::Column, true) => 0,
            (Part::Sizes, _) => return Ok(Share::Sizes { place: usize::from(is_row_parallel) }),
            (Part::Bias, true) | (Part::Column, false) | (Part::Other, _) => return Ok(Share::Whole),
        };
        let Some(size) = shape.dimensions().get(dimension).copied() else { return Ok(Share::Whole) };
        let is_scale = matches!(part, Part::Scale | Part::TurnedScale);
        // One scale for the whole dimension, or scales that any column may use.
        if is_scale && (size == 1 || is_row_parallel && self.config.has_act_order) {
            return Ok(Share::Whole);
        }
        let is_packed = matches!(part, Part::Packed | Part::Turned | Part::TurnedScale);
        if is_packed && self.config.bits.is_some_and(|bits| !bits.is_power_of_two()) {
            return Err("codes that do not lie in whole words".to_owned());
        }
        if is_scale {
            self.check_blocks(matrix, dimension, size)?;
        }
        let ranges = self.ranges(rule, rank, size)?;
        if dimension > 0 && ranges.len() > 1 {
            return Err("several matrices in one, side by side".to_owned());
        }
        Ok(Share::Slice { dimension, ranges })
    }

    /// Fails where the blocks that have a scale each are of several sizes: the last one may be shorter.
    fn check_blocks(&self, matrix: Matrix<'_>, dimension: usize, size: u64) -> Result<(), String> {
        let names: &[&str] =
            if matrix.part == Part::Scale { &["weight", "weight_packed"] } else { &["qweight"] };
        let codes = names.iter().find_map(|name| (self.shape)(&format!("{}.{name}", matrix.stem)));
        let whole = codes.and_then(|codes| codes.dimensions().get(dimension).copied());
        let whole = whole.ok_or("scales without their codes")?;
        let (long, short) = (whole.max(size), whole.min(size));
        if short == 0 || !long.is_multiple_of(short) || !(long / short).is_power_of_two() {
            return Err(format!("{size} blocks of scales for a dimension of {whole}"));
        }
        Ok(())
    }

    /// The indices that a rank has of a dimension of a matrix.
    fn ranges(&self, rule: Rule, rank: Rank, size: u64) -> Result<Ranges, String> {
        let units = match rule {
            Rule::Column(unit) | Rule::Row(unit) => return self.range(unit, rank, 0..size).map(one),
            Rule::Joined(units) => units,
        };
        let none = || "config.json lacks the numbers of heads".to_owned();
        let sizes: Option<Vec<u64>> = units.iter().map(|unit| self.weight_of(*unit)).collect();
        let sizes = sizes.ok_or_else(none)?;
        let sum = sizes.iter().sum::<u64>();
        if sum == 0 || !size.is_multiple_of(sum) {
            return Err(format!("{size} rows that join {} matrices", units.len()));
        }
        let mut begin = 0;
        let mut ranges = Ranges::new();
        for (unit, count) in units.iter().zip(sizes) {
            let end = begin + size / sum * count;
            ranges.push(self.range(*unit, rank, begin..end)?);
            begin = end;
        }
        Ok(ranges)
    }

    /// The size of one of several joined matrices in relation to the others.
    fn weight_of(&self, unit: Unit) -> Option<u64> {
        match unit {
            Unit::Any => Some(1),
            Unit::Heads => self.config.heads,
            Unit::KvHeads | Unit::Groups => self.config.kv_heads,
        }
    }

    /// The indices that a rank has of those of a matrix.
    fn range(&self, unit: Unit, rank: Rank, of: Range<u64>) -> Result<Range<u64>, String> {
        let (number, ranks) = (u64::from(rank.rank), u64::from(rank.ranks));
        let size = of.end - of.start;
        let (parts, place) = match (unit, self.weight_of(unit)) {
            (Unit::Heads, Some(heads)) => {
                share_out(heads, rank.ranks, "attention heads")?;
                (ranks, number)
            }
            (Unit::KvHeads, Some(heads)) if heads > 0 && heads < ranks && ranks.is_multiple_of(heads) => {
                (heads, number / (ranks / heads))
            }
            (Unit::KvHeads | Unit::Groups, Some(heads)) => {
                share_out(heads, rank.ranks, "heads of keys and values")?;
                (ranks, number)
            }
            _ => (ranks, number),
        };
        if !size.is_multiple_of(parts) {
            return Err(format!("{ranks} ranks cannot share a dimension of {size}"));
        }
        let each = size / parts;
        let begin = of.start + each * place;
        Ok(begin..begin + each)
    }
}

/// One more than the highest number of an expert in names of tensors, 0 without any.
pub fn experts_in<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    let expert = |name| match table::find(name, 1, "") {
        Some(Place::Expert(index)) => index.saturating_add(1),
        _ => 0,
    };
    names.map(expert).max().unwrap_or_default()
}

/// A tensor of a matrix, with the name of the matrix and the rule for it.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    rule: Rule,
    stem: &'a str,
    part: Part,
}

fn one(range: Range<u64>) -> Ranges {
    Ranges::from_iter([range])
}

/// The share of each rank in some things.
fn share_out(count: u64, ranks: u16, things: &str) -> Result<u64, String> {
    let ranks = u64::from(ranks);
    if count == 0 || !count.is_multiple_of(ranks) {
        return Err(format!("{ranks} ranks cannot share {count} {things}"));
    }
    Ok(count / ranks)
}
