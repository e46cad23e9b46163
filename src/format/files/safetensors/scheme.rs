//! Tells the layout in which a quantized model keeps its weights, by the names, types and shapes of its tensors.
//!
//! | layout | tensors of a weight w |
//! |---|---|
//! | GPTQ | w.qweight i32 \[in * bits / 32, out\], w.qzeros i32 \[groups, out * bits / 32\], w.scales \[groups, out\] |
//! | AWQ | w.qweight i32 \[in, out * bits / 32\], w.qzeros i32 \[groups, out * bits / 32\], w.scales \[groups, out\] |
//! | compressed-tensors | w.weight_packed i32 or u8, w.weight_scale |
//! | FP8 | w f8, w_scale or w_scale_inv; w.weight f8, w.scale_weight |
//! | NVFP4 of ModelOpt | w.weight u8, w.weight_scale f8_e4m3, w.weight_scale_2 |
//! | MXFP4 of gpt-oss | w_blocks u8, w_scales u8 |
//! | bitsandbytes | w.weight u8, w.weight.quant_state.bitsandbytes__KIND; w.weight i8, w.SCB |
//! | others | the rows of [`BESIDE`] |
//!
//! Source: the loaders of <https://github.com/vllm-project/vllm> and of the libraries that these are named for.
//!
//! `codes.rs` asks less: which tensors are codes rather than numbers, or scales of them, in a layout of these or another.

use std::collections::{BTreeMap, HashMap};

use crate::model::{Dtype, Shape};

/// Layouts whose codes have a name with the first suffix, beside a tensor with the second.
const BESIDE: [(&str, &str, &str); 16] = [
    (".weight", ".SCB", "bitsandbytes int8"),
    (".weight", ".scales", "mlx"),
    (".W_q", ".scale", "hqq"),
    (".B", ".s", "marlin"),
    (".B_24", ".s", "marlin, 2:4 sparse"),
    (".codes", ".codebooks", "aqlm"),
    ("._weight_qdata", "._weight_scale", "torchao"),
    ("._weight_qdata", "._weight_scale_and_zero", "torchao"),
    (":qdata", ":scale", "torchao"),
    (".q_weight", ".q_scale", "exl2"),
    (".trellis", ".suh", "exl3"),
    ("._data", "._scale", "quanto"),
    (".weight", ".weight_scales", "eetq"),
    (".Qidxs", ".SU", "quip#"),
    (".indices", ".centroids", "vptq"),
    (".indices", ".centroids.weight", "vptq"),
];

/// The layouts of a model's quantized weights, each with the number of weights; `None` if it has none.
pub fn scheme<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a Shape)>) -> Option<String> {
    let all: HashMap<&str, (Dtype, &[u64])> =
        tensors.map(|(name, dtype, shape)| (name, (dtype, shape.dimensions()))).collect();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for (name, (dtype, sizes)) in &all {
        if let Some(layout) = layout(&all, name, *dtype, sizes) {
            *found.entry(layout).or_default() += 1;
        }
    }
    let of = |(layout, count): (&String, &u64)| {
        format!("{layout}: {count} weight{}", if *count == 1 { "" } else { "s" })
    };
    let texts: Vec<String> = found.iter().map(of).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// The layout of the weight whose main tensor this is.
fn layout(all: &HashMap<&str, (Dtype, &[u64])>, name: &str, dtype: Dtype, sizes: &[u64]) -> Option<String> {
    let beside = |base: &str, suffix: &str| all.get(&*format!("{base}{suffix}")).copied();
    if let Some(base) = name.strip_suffix(".qweight") {
        let (scales, zeros) = (beside(base, ".scales")?, beside(base, ".qzeros")?);
        return by_words(dtype, sizes, scales.1, zeros.1);
    }
    if let Some(base) = name.strip_suffix(".weight_packed") {
        let (scale, _) = beside(base, ".weight_scale")?;
        return Some(match (dtype, scale) {
            (Dtype::U8, Dtype::F8E4M3) => "compressed-tensors nvfp4".to_owned(),
            (Dtype::U8, Dtype::U8 | Dtype::F8E8M0) => "compressed-tensors mxfp4".to_owned(),
            _ => "compressed-tensors packed".to_owned(),
        });
    }
    if let Some(base) = name.strip_suffix("_blocks") {
        let (scale, _) = beside(base, "_scales")?;
        return ((dtype, scale) == (Dtype::U8, Dtype::U8)).then(|| "mxfp4".to_owned());
    }
    let is_code = !matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 | Dtype::Bool);
    let is_beside = |(codes, scales, _): &&(&str, &str, &str)| {
        name.strip_suffix(codes).is_some_and(|base| beside(base, scales).is_some())
    };
    if let Some((.., layout)) = BESIDE.iter().find(is_beside).filter(|_| is_code) {
        return Some((*layout).to_owned());
    }
    if let Some((base, kind)) = name.split_once(".quant_state.bitsandbytes__") {
        return all.contains_key(base).then(|| format!("bitsandbytes {kind}"));
    }
    let base = name.strip_suffix(".weight");
    let scale = beside(name, "_scale").or_else(|| beside(name, "_scale_inv"));
    let scale = scale.or_else(|| beside(base?, ".scale_weight"));
    match (dtype, scale) {
        (Dtype::F8E4M3 | Dtype::F8E5M2, Some((_, scales))) => {
            Some(format!("fp8 ({dtype}), {}", granularity(sizes, scales)))
        }
        // Scales of other weights may be 8-bit floats too.
        (Dtype::F8E4M3 | Dtype::F8E5M2, None) if sizes.len() > 1 && !is_scale(name) => {
            Some(format!("fp8 ({dtype}), no scales"))
        }
        (Dtype::I8, Some((_, scales))) => Some(format!("int8, {}", granularity(sizes, scales))),
        (Dtype::U8, Some((Dtype::F8E4M3, _))) if beside(base?, ".weight_scale_2").is_some() => {
            Some("nvfp4".to_owned())
        }
        (Dtype::F4, _) => Some("fp4".to_owned()),
        _ => None,
    }
}

fn is_scale(name: &str) -> bool {
    name.rsplit('.').next().is_some_and(|last| last.contains("scale"))
}

/// GPTQ packs the rows of a weight into words, AWQ its columns.
fn by_words(dtype: Dtype, words: &[u64], scales: &[u64], zeros: &[u64]) -> Option<String> {
    let ([rows, columns], [groups, out], [_, zeros]) = (words, scales, zeros) else { return None };
    if dtype != Dtype::I32 || *out == 0 || *groups == 0 {
        return None;
    }
    let bits = zeros.checked_mul(32)? / out;
    let (kind, inner) = if columns == out {
        ("gptq", rows.checked_mul(32)?.checked_div(bits)?)
    } else if columns == zeros {
        ("awq", *rows)
    } else {
        return None;
    };
    Some(format!("{kind}, {bits} bits, groups of {}", inner.div_ceil(*groups)))
}

fn granularity(sizes: &[u64], scales: &[u64]) -> &'static str {
    match (scales.iter().product::<u64>(), sizes.first()) {
        (1, _) => "a scale each",
        (scales, Some(rows)) if scales == *rows => "a scale a row",
        _ => "scales of blocks",
    }
}

#[cfg(test)]
mod tests {
    use super::scheme;
    use crate::model::{Dtype, Shape};

    type Tensors<'a> = &'a [(&'a str, Dtype, &'a [u64])];

    fn shaped<'a>(tensors: Tensors<'a>) -> Vec<(&'a str, Dtype, Shape)> {
        tensors.iter().map(|(name, dtype, sizes)| (*name, *dtype, Shape::new(sizes).unwrap())).collect()
    }

    #[test]
    fn layouts_of_quantized_weights_are_told_by_their_tensors() {
        use Dtype::{Bf16, F4, F8E4M3, F16, F32, I8, I32, U8};
        let cases: [(Tensors<'_>, Option<&str>); 19] = [
            (
                &[
                    ("q.qweight", I32, &[512, 1024]),
                    ("q.qzeros", I32, &[32, 128]),
                    ("q.scales", F16, &[32, 1024]),
                ],
                Some("gptq, 4 bits, groups of 128: 1 weight"),
            ),
            (
                &[
                    ("q.qweight", I32, &[4096, 128]),
                    ("q.qzeros", I32, &[32, 128]),
                    ("q.scales", F16, &[32, 1024]),
                ],
                Some("awq, 4 bits, groups of 128: 1 weight"),
            ),
            (&[("q.qweight", I32, &[0, 0]), ("q.qzeros", I32, &[0, 0]), ("q.scales", F16, &[0, 0])], None),
            (
                &[
                    ("q.weight_packed", I32, &[8, 4]),
                    ("q.weight_scale", Bf16, &[8, 1]),
                    ("q.weight_shape", I32, &[2]),
                ],
                Some("compressed-tensors packed: 1 weight"),
            ),
            (
                &[("q.weight_packed", U8, &[8, 4]), ("q.weight_scale", F8E4M3, &[8, 1])],
                Some("compressed-tensors nvfp4: 1 weight"),
            ),
            (
                &[
                    ("a.weight", F8E4M3, &[8, 4]),
                    ("a.weight_scale", F32, &[]),
                    ("b.weight", F8E4M3, &[8, 4]),
                    ("b.weight_scale", F32, &[8, 1]),
                ],
                Some("fp8 (f8_e4m3), a scale a row: 1 weight; fp8 (f8_e4m3), a scale each: 1 weight"),
            ),
            (
                &[("a.weight", F8E4M3, &[256, 256]), ("a.weight_scale_inv", F32, &[2, 2])],
                Some("fp8 (f8_e4m3), scales of blocks: 1 weight"),
            ),
            (
                &[("a.weight", I8, &[8, 4]), ("a.weight_scale", F32, &[8, 1])],
                Some("int8, a scale a row: 1 weight"),
            ),
            (
                &[
                    ("a.weight", U8, &[8, 4]),
                    ("a.weight_scale", F8E4M3, &[8, 1]),
                    ("a.weight_scale_2", F32, &[]),
                ],
                Some("nvfp4: 1 weight"),
            ),
            (&[("mlp_blocks", U8, &[8, 4]), ("mlp_scales", U8, &[8])], Some("mxfp4: 1 weight")),
            (
                &[
                    ("a", F4, &[8, 4]),
                    ("b.weight", U8, &[9, 1]),
                    ("b.weight.quant_state.bitsandbytes__nf4", U8, &[70]),
                ],
                Some("bitsandbytes nf4: 1 weight; fp4: 1 weight"),
            ),
            (&[("a.weight", F16, &[8, 4]), ("a.scales", F16, &[4])], None),
            (&[("a.weight", I8, &[8, 4]), ("a.SCB", F32, &[8])], Some("bitsandbytes int8: 1 weight")),
            (&[("a.weight", Dtype::U32, &[8, 4]), ("a.scales", F16, &[8, 1])], Some("mlx: 1 weight")),
            (&[("a.W_q", U8, &[8, 4]), ("a.scale", F16, &[8, 1])], Some("hqq: 1 weight")),
            (&[("a.B", I32, &[8, 4]), ("a.s", F16, &[8, 4])], Some("marlin: 1 weight")),
            (
                &[("a.indices", I32, &[1, 8, 4]), ("a.centroids.weight", F16, &[1, 32])],
                Some("vptq: 1 weight"),
            ),
            (&[("a.codes", I8, &[8, 4, 1]), ("a.codebooks", F16, &[1, 256, 1, 8])], Some("aqlm: 1 weight")),
            (
                &[("a._weight_qdata", F8E4M3, &[8, 4]), ("a._weight_scale", F32, &[8])],
                Some("torchao: 1 weight"),
            ),
        ];
        for (tensors, wanted) in cases {
            let tensors = shaped(tensors);
            let found = scheme(tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, shape)));
            assert_eq!(found.as_deref(), wanted);
        }
    }
}
