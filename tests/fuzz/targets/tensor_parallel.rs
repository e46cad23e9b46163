//! The configuration of a model that ranks share. Whatever it says, the ranks have each index of a tensor, and each expert
//! once.

use std::ops::Range;

use tierfs::format::files::tensor_parallel::{Config, Model, Rank, Share};
use tierfs::model::Shape;

/// The tensors of the model.
const TENSORS: [(&str, &[u64]); 18] = [
    ("model.embed_tokens.weight", &[24, 12]),
    ("model.layers.0.self_attn.q_proj.weight", &[24, 12]),
    ("model.layers.0.self_attn.k_proj.weight", &[12, 12]),
    ("model.layers.0.self_attn.o_proj.weight", &[12, 24]),
    ("model.layers.0.self_attn.qkv_proj.weight", &[48, 12]),
    ("model.layers.0.attn.c_attn.weight", &[36, 12]),
    ("model.layers.0.self_attention.query_key_value.bias", &[36]),
    ("model.layers.0.attention.wqkv.weight", &[48, 12]),
    ("model.layers.0.mlp.gate_up_proj.weight", &[48, 12]),
    ("model.layers.0.mlp.dense_h_to_4h.weight", &[48, 12]),
    ("model.layers.0.mlp.down_proj.qweight", &[24, 12]),
    ("model.layers.0.mlp.down_proj.scales", &[6, 12]),
    ("model.layers.0.mlp.down_proj.g_idx", &[24]),
    ("model.layers.0.mlp.up_proj.weight_shape", &[2]),
    ("model.layers.0.mlp.experts.0.up_proj.weight", &[4, 4]),
    ("model.layers.0.mlp.experts.1.up_proj.weight", &[4, 4]),
    ("model.layers.0.mlp.experts.18446744073709551615.up_proj.weight", &[4, 4]),
    ("model.layers.0.mlp.experts.gate_up_proj", &[12, 4, 4]),
];

pub fn check(bytes: &[u8]) {
    let config = Config::parse(bytes);
    let shape = |name: &str| {
        let (_, sizes) = TENSORS.iter().find(|(known, _)| *known == name)?;
        Shape::new(sizes)
    };
    let model = Model { config: &config, shape: &shape };
    for (name, sizes) in TENSORS {
        for ranks in [1, 2, 3, 4, 24, 96] {
            let shape = Shape::new(sizes).unwrap_or_default();
            let shares = (0..ranks).map(|rank| model.share(Rank { rank, ranks }, name, &shape));
            let shares: Vec<Result<Share, String>> = shares.collect();
            let is_shared = model.is_shared(ranks, name, &shape);
            let what = format!("{name}, {ranks} ranks: {config:?}");
            if shares.iter().any(Result::is_err) || is_shared.is_err() {
                let same = shares.iter().all(|share| share.as_ref().err() == is_shared.as_ref().err());
                assert!(same, "{what}: {shares:?}");
                continue;
            }
            let shares: Vec<Share> = shares.into_iter().flatten().collect();
            let whole = shares.iter().filter(|share| **share == Share::Whole).count();
            if is_shared == Ok(false) {
                assert_eq!(whole, shares.len(), "{what}");
            } else if shares.contains(&Share::Absent) {
                let absent = shares.iter().filter(|share| **share == Share::Absent).count();
                assert_eq!((whole, absent), (1, shares.len() - 1), "{what}");
            } else {
                all_indices(sizes, &shares, &what);
            }
        }
    }
}

/// The slices are in order, and together all indices of their dimension.
fn all_indices(sizes: &[u64], shares: &[Share], what: &str) {
    let mut all: Vec<Range<u64>> = Vec::new();
    let mut size = None;
    for share in shares {
        let Share::Slice { dimension, ranges } = share else { continue };
        size = Some(sizes[*dimension]);
        let mut end = 0;
        for range in ranges {
            assert!(end <= range.start && range.start <= range.end, "{what}: {ranges:?}");
            end = range.end;
        }
        all.extend(ranges.iter().cloned());
    }
    let Some(size) = size else { return };
    all.sort_by_key(|range| range.start);
    let end = all.iter().fold(0, |end, range| {
        assert!(range.start <= end, "{what}: {all:?}");
        end.max(range.end)
    });
    assert_eq!(end, size, "{what}");
}
