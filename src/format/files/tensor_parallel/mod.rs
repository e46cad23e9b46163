//! The part of each tensor of a model that a rank of tensor parallelism has, by the names of the tensors.
//!
//! A *column-parallel* matrix `[out, in]` is cut by rows, and its bias too; a *row-parallel* one by columns, and its bias
//! stays whole. The ranks share experts out as wholes. `table.rs` has the names, `config.rs` the numbers of heads and
//! experts. Heads are never cut. Ranks that outnumber the heads of keys and values share one of these heads, as in vLLM.
//!
//! | tensors of a matrix `m` | dimension of `out` | of `in` |
//! |---|---|---|
//! | `m.weight`, `m.weight_packed`, `m.weight_scale`, `m.weight_scale_inv`, `m.weight_zero_point` | 0 | 1 |
//! | `m.bias`, `m.SCB`; `m` itself | 0 | |
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

use crate::format::files::tensor_parallel::table::{Expert, Place, Rule, Unit};
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
}

/// A tensor that belongs to a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// The matrix `[out, in]` itself.
    Weight,
    /// The matrix, with several elements of a row packed into one.
    Packed,
    /// A value for each block of the matrix.
    Scale,
    /// A value a row.
    Bias,
    /// Codes `[in, out]`.
    Turned,
    /// A value for each block of those codes.
    TurnedScale,
    /// A value a column.
    Column,
    Sizes,
    /// Of an adapter, or one value.
    Other,
}

/// The tensors of a matrix by the last part of their names.
const PARTS: [(&str, Part); 15] = [
    ("weight", Part::Weight),
    ("bias", Part::Bias),
    ("", Part::Bias),
    // The scales of rows of bitsandbytes.
    ("SCB", Part::Bias),
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
            Some(Place::Expert(expert)) => self.share_of_expert(rank, expert).map_err(why),
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

    /// Whether so many ranks share a tensor out. Otherwise each of them has all of it.
    ///
    /// # Errors
    /// As those of [`Model::share`], which are the same for each of so many ranks.
    pub fn is_shared(&self, ranks: u16, name: &str, shape: &Shape) -> Result<bool, String> {
        let share = self.share(Rank { rank: 0, ranks }, name, shape)?;
        // The first ranks may have all experts that are there.
        let is_expert = || {
            let place = table::find(name, shape.dimensions().len(), &self.config.model_type);
            matches!(place, Some(Place::Expert(_)))
        };
        Ok(share != Share::Whole || is_expert())
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

    fn share_of_expert(&self, Rank { rank, ranks }: Rank, expert: Expert<'_>) -> Result<Share, String> {
        let index = expert.index;
        let experts = match self.config.experts {
            Some(experts) => experts,
            None => self.count_experts(expert).ok_or("experts without a last number")?,
        };
        let each = share_out(experts, ranks, "experts")?;
        if index >= experts {
            return Err(format!("config.json has {experts} experts"));
        }
        Ok(if index / each.max(1) == u64::from(rank) { Share::Whole } else { Share::Absent })
    }

    /// The number of experts that have a tensor of this name. They are numbered without gaps. `None` for more than can be
    /// counted.
    fn count_experts(&self, Expert { before, index, after }: Expert<'_>) -> Option<u64> {
        let is_there = |index: u64| (self.shape)(&format!("{before}{index}{after}")).is_some();
        let (mut last, mut step) = (index, 1_u64);
        let mut end = last.saturating_add(step);
        while end > last && is_there(end) {
            last = end;
            step = step.saturating_mul(2);
            end = last.saturating_add(step);
        }
        while end - last > 1 {
            let middle = last + (end - last) / 2;
            if is_there(middle) {
                last = middle;
            } else {
                end = middle;
            }
        }
        last.checked_add(1)
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
        // Less than the size, because the rank is less than the number of ranks.
        let begin = each * u64::from(rank);
        Ok(Share::Slice { dimension: 0, ranges: one(begin..begin + each) })
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
            Rule::Unknown => {
                let kind = &self.config.model_type;
                return Err(format!("the order of its rows is not known for the model_type {kind:?}"));
            }
        };
        let none = || "config.json lacks the numbers of heads".to_owned();
        let sizes: Option<Vec<u64>> = units.iter().map(|unit| self.weight_of(*unit)).collect();
        let sizes = sizes.ok_or_else(none)?;
        let sum = sizes.iter().try_fold(0_u64, |sum, size| sum.checked_add(*size));
        let sum = sum.ok_or("config.json has more heads than can be counted")?;
        if sum == 0 || !size.is_multiple_of(sum) {
            return Err(format!("{size} rows that join {} matrices", units.len()));
        }
        let mut begin = 0;
        let mut ranges = Ranges::new();
        for (unit, count) in units.iter().zip(sizes) {
            // At most the size, because the counts make up the sum.
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
        // Less than the end, because the place is less than the number of parts.
        let begin = of.start + each * place;
        Ok(begin..begin + each)
    }
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Config, Model, Rank, Share};
    use crate::model::Shape;

    /// The share of a rank, as text: `0: 1..2 3..4`.
    fn share(config: &str, tensors: &[(&str, &[u64])], at: usize, rank: &str) -> Result<String, String> {
        let shapes: HashMap<&str, Shape> =
            tensors.iter().map(|(name, sizes)| (*name, Shape::new(sizes).unwrap())).collect();
        let (name, _) = tensors[at];
        let config = Config::parse(config.as_bytes());
        let model = Model { config: &config, shape: &|name| shapes.get(name).cloned() };
        let rank = Rank::from_name(rank.as_bytes()).unwrap();
        Ok(match model.share(rank, name, &shapes[name])? {
            Share::Whole => "whole".to_owned(),
            Share::Absent => "absent".to_owned(),
            Share::Sizes { place } => format!("sizes {place}"),
            Share::Slice { dimension, ranges } => {
                let ranges: Vec<String> = ranges.iter().map(|range| format!("{range:?}")).collect();
                format!("{dimension}: {}", ranges.join(" "))
            }
        })
    }

    #[test]
    fn names_of_ranks_are_read_in_one_way_only() {
        for name in ["0-of-1", "1-of-2", "1023-of-1024"] {
            assert_eq!(Rank::from_name(name.as_bytes()).unwrap().to_string(), name);
        }
        for name in
            ["", "0-of-0", "1-of-1", "0-of-1025", "+0-of-2", "00-of-2", "0-of-2\n", "0_of_2", "0-of-70000"]
        {
            assert_eq!(Rank::from_name(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn heads_are_cut_as_wholes_and_shared_where_they_are_few() {
        let config = r#"{"num_attention_heads":8,"num_key_value_heads":2,"model_type":"llama"}"#;
        let of = |name: &str, sizes: &[u64], rank: &str| {
            share(config, &[(&format!("model.layers.3.self_attn.{name}"), sizes)], 0, rank)
        };
        assert_eq!(of("q_proj.weight", &[64, 5], "1-of-4").unwrap(), "0: 16..32");
        assert_eq!(of("k_proj.weight", &[16, 5], "1-of-2").unwrap(), "0: 8..16");
        assert_eq!(of("k_proj.weight", &[16, 5], "1-of-4").unwrap(), "0: 0..8");
        assert_eq!(of("v_proj.bias", &[16], "6-of-8").unwrap(), "0: 8..16");
        assert_eq!(of("o_proj.weight", &[5, 64], "7-of-8").unwrap(), "1: 56..64");
        assert_eq!(of("o_proj.bias", &[5], "7-of-8").unwrap(), "whole");
        assert_eq!(of("q_proj.lora_A.weight", &[4, 5], "7-of-8").unwrap(), "whole");
        assert!(
            of("q_proj.weight", &[64, 5], "1-of-16").unwrap_err().contains("cannot share 8 attention heads")
        );
        assert!(of("k_proj.weight", &[15, 5], "1-of-4").unwrap_err().contains("a dimension of 15"));
        let three = config.replace(":2", ":3");
        let why = share(&three, &[("layers.0.self_attn.k_proj.weight", &[12, 2])], 0, "0-of-2").unwrap_err();
        assert_eq!(why, "layers.0.self_attn.k_proj.weight: 2 ranks cannot share 3 heads of keys and values");
    }

    #[test]
    fn each_of_the_matrices_in_one_is_cut() {
        let config =
            r#"{"text_config":{"num_attention_heads":4,"num_key_value_heads":2},"model_type":"phi3"}"#;
        let of = |name: &str, sizes: &[u64], rank: &str| share(config, &[(name, sizes)], 0, rank);
        let qkv = "model.layers.0.self_attn.qkv_proj.weight";
        assert_eq!(of(qkv, &[16, 3], "1-of-2").unwrap(), "0: 4..8 10..12 14..16");
        assert_eq!(of(qkv, &[16, 3], "3-of-4").unwrap(), "0: 6..8 10..12 14..16");
        let gates = "model.layers.0.mlp.gate_up_proj.weight";
        assert_eq!(of(gates, &[8, 3], "1-of-4").unwrap(), "0: 1..2 5..6");
        assert!(of(gates, &[7, 3], "1-of-4").is_err());
        assert!(of("model.layers.0.mlp.gate_up_proj.qweight", &[8, 16], "0-of-2").is_err());
        assert!(share("{}", &[(qkv, &[16, 3])], 0, "0-of-2").is_err());
    }

    #[test]
    fn experts_are_shared_out_also_without_a_configuration() {
        let names: Vec<String> =
            (0..12).map(|index| format!("layers.0.mlp.experts.{index}.up_proj.weight")).collect();
        let tensors: Vec<(&str, &[u64])> = names.iter().map(|name| (name.as_str(), &[4, 4][..])).collect();
        for (config, is_known) in [("{}", false), (r#"{"num_experts":24}"#, true)] {
            let of = |at, rank: &str| share(config, &tensors, at, rank).unwrap();
            let all = if is_known { 24 } else { 12 };
            for ranks in [1, 2, 3, 4, 6, 12] {
                for (at, rank) in (0..12).flat_map(|at| (0..ranks).map(move |rank| (at, rank))) {
                    let wanted = if at * ranks / all == rank { "whole" } else { "absent" };
                    assert_eq!(of(at, &format!("{rank}-of-{ranks}")), wanted);
                }
            }
        }
        assert!(share("{}", &tensors, 3, "0-of-5").is_err());
        assert!(share(r#"{"num_experts":2}"#, &tensors, 3, "0-of-2").is_err());
        let stacked = |sizes: &[u64], rank: &str| {
            share(r#"{"num_experts":4}"#, &[("layers.0.mlp.experts.gate_up_proj", sizes)], 0, rank)
        };
        assert_eq!(stacked(&[4, 2, 2], "1-of-2").unwrap(), "0: 2..4");
        assert_eq!(stacked(&[12, 2], "1-of-2").unwrap(), "0: 6..12");
        assert_eq!(stacked(&[1], "1-of-2").unwrap(), "whole");
        assert!(stacked(&[6, 2], "1-of-2").is_err());
    }

    #[test]
    fn tensors_are_shared_by_all_of_a_number_of_ranks_or_by_none() {
        let config = Config::parse(br#"{"num_experts":8,"num_attention_heads":4}"#);
        let is_shared = |ranks, name: &str| {
            let (shape, of) = (Shape::new(&[8, 4]).unwrap(), |_: &str| None);
            Model { config: &config, shape: &of }.is_shared(ranks, name, &shape)
        };
        for (name, ranks, wanted) in [
            ("layers.0.mlp.experts.0.up_proj.weight", 4, Some(true)),
            ("layers.0.mlp.experts.7.up_proj.weight", 1, Some(true)),
            ("layers.0.mlp.experts.0.up_proj.weight", 3, None),
            ("layers.0.mlp.experts.8.up_proj.weight", 4, None),
            ("layers.0.mlp.up_proj.weight", 4, Some(true)),
            ("layers.0.self_attn.q_proj.weight", 8, None),
            ("layers.0.norm.weight", 3, Some(false)),
        ] {
            assert_eq!(is_shared(ranks, name).ok(), wanted, "{name} {ranks}");
        }
    }

    #[test]
    fn numbers_of_experts_and_heads_that_cannot_be_counted_are_refused() {
        let last = format!("layers.0.mlp.experts.{}.up_proj.weight", u64::MAX);
        let before = format!("layers.0.mlp.experts.{}.up_proj.weight", u64::MAX - 1);
        let tensors: [(&str, &[u64]); 2] = [(&last, &[4, 4]), (&before, &[4, 4])];
        for at in [0, 1] {
            for rank in ["0-of-1", "1-of-3"] {
                let why = share("{}", &tensors, at, rank).unwrap_err();
                assert!(why.ends_with("experts without a last number"), "{why}");
            }
        }
        let most = u64::MAX;
        let config =
            format!(r#"{{"model_type":"phi3","num_attention_heads":{most},"num_key_value_heads":{most}}}"#);
        let qkv: [(&str, &[u64]); 1] = [("layers.0.self_attn.qkv_proj.weight", &[16, 3])];
        let why = share(&config, &qkv, 0, "0-of-1").unwrap_err();
        assert!(why.ends_with("more heads than can be counted"), "{why}");
    }

    #[test]
    fn scales_are_cut_only_where_their_blocks_end() {
        let name = "layers.0.mlp.up_proj";
        let of = |weight: &[u64], scale: &[u64], rank: &str| {
            let (codes, scales) = (format!("{name}.weight"), format!("{name}.weight_scale_inv"));
            share("{}", &[(&scales, scale), (&codes, weight)], 0, rank)
        };
        assert_eq!(of(&[512, 100], &[4, 1], "1-of-2").unwrap(), "0: 2..4");
        assert_eq!(of(&[512, 100], &[1, 1], "1-of-2").unwrap(), "whole");
        assert_eq!(of(&[512, 100], &[512, 1], "1-of-2").unwrap(), "0: 256..512");
        assert!(of(&[1000, 100], &[8, 1], "1-of-2").is_err());
        assert!(of(&[512, 100], &[4, 1], "1-of-8").is_err());
        assert!(share("{}", &[("layers.0.mlp.up_proj.weight_scale", &[4, 4])], 0, "1-of-2").is_err());
        assert!(share("{}", &[("layers.0.mlp.up_proj.W_q", &[4, 4])], 0, "1-of-2").is_err());
        assert_eq!(share("{}", &[("layers.0.mlp.up_proj.input_scale", &[1])], 0, "1-of-2").unwrap(), "whole");
        let bits = r#"{"quantization_config":{"bits":3}}"#;
        assert!(share(bits, &[("layers.0.mlp.up_proj.qweight", &[12, 64])], 0, "1-of-2").is_err());
        let order = r#"{"quantization_config":{"desc_act":true}}"#;
        assert_eq!(share(order, &[("layers.0.mlp.w2.scales", &[8, 64])], 0, "1-of-2").unwrap(), "whole");
        assert_eq!(share("{}", &[("layers.0.mlp.w2.weight_shape", &[2])], 0, "1-of-2").unwrap(), "sizes 1");
    }

    #[test]
    fn configurations_of_any_bytes_are_read() {
        for json in
            ["", "[]", "{", r#"{"num_attention_heads":-1}"#, r#"{"num_attention_heads":0}"#, "{\"moe\":1}"]
        {
            assert_eq!(Config::parse(json.as_bytes()), Config::default(), "{json}");
        }
        let falcon = r#"{"model_type":"falcon","num_attention_heads":8,"num_kv_heads":2,"new_decoder_architecture":true}"#;
        let known = Config::parse(falcon.as_bytes());
        assert_eq!((known.model_type.as_str(), known.kv_heads), ("falcon_groups", Some(2)));
        let known = Config::parse(falcon.replace("true", "false").as_bytes());
        assert_eq!((known.model_type.as_str(), known.kv_heads), ("falcon_one", Some(1)));
        for (json, kind, kv_heads) in [
            (r#"{"model_type":"gpt_bigcode","n_head":8}"#, "gpt_bigcode", 1),
            (r#"{"model_type":"gpt_bigcode","n_head":8,"multi_query":false}"#, "gpt_bigcode_heads", 8),
            (
                r#"{"model_type":"chatglm","n_head":8,"multi_query_attention":true,"multi_query_group_num":2}"#,
                "chatglm",
                2,
            ),
            (r#"{"model_type":"chatglm","n_head":8,"ffn_hidden_size":64}"#, "chatglm_heads", 8),
            (r#"{"model_type":"chatglm","n_head":8,"inner_hidden_size":64}"#, "chatglm_first", 8),
            (r#"{"model_type":"chatglm","n_head":8}"#, "chatglm_other", 8),
        ] {
            let known = Config::parse(json.as_bytes());
            assert_eq!((known.model_type.as_str(), known.kv_heads), (kind, Some(kv_heads)), "{json}");
        }
        let mistral = r#"{"n_heads":8,"n_kv_heads":4,"moe":{"num_experts":16}}"#;
        let known = Config::parse(mistral.as_bytes());
        assert_eq!((known.heads, known.kv_heads, known.experts), (Some(8), Some(4), Some(16)));
        let dbrx = r#"{"n_heads":8,"attn_config":{"kv_n_heads":2},"ffn_config":{"moe_num_experts":4}}"#;
        let known = Config::parse(dbrx.as_bytes());
        assert_eq!((known.heads, known.kv_heads, known.experts), (Some(8), Some(2), Some(4)));
    }
}
