//! Tells, by names, types and shapes, which tensors of a file are codes of quantized weights, and which are scales, zero
//! points or codebooks of codes. `scheme.rs` names the layouts; layouts that it does not know are told here too.

use std::collections::HashSet;

use crate::model::{Dtype, Shape};

/// Words in the last part of the names of codes.
const OF_CODES: [&str; 8] = ["weight", "qweight", "packed", "codes", "qdata", "kernel", "qidxs", "trellis"];
/// The same of tensors that stand beside codes.
const OF_SCALES: [&str; 14] = [
    "scale",
    "scales",
    "zero",
    "zeros",
    "qzeros",
    "zp",
    "absmax",
    "scb",
    "codebook",
    "codebooks",
    "centroids",
    "qscale",
    "qscales",
    "lut",
];
/// Words that are in the names of scales of weights only, also in files without codes.
const OF_WEIGHT_SCALES: [&str; 7] = ["scales", "qscale", "qscales", "absmax", "scb", "qzeros", "inv"];
/// Words beside `scale` that tell the scale of a weight, of an activation or of a cache from a layer's parameter.
const SCALED: [&str; 12] =
    ["weight", "weights", "input", "output", "act", "activation", "global", "k", "v", "q", "kv", "prob"];
/// Words of tensors that are looked up by codes.
const OF_CODEBOOKS: [&str; 4] = ["codebook", "codebooks", "centroids", "lut"];
/// Names of integers that are not codes beside scales. Of these, `indices` beside a codebook are codes.
const OF_INDEXES: [&str; 13] = [
    "mask",
    "index",
    "indices",
    "idx",
    "id",
    "ids",
    "position",
    "positions",
    "shape",
    "label",
    "labels",
    "token",
    "tokens",
];
const SEPARATORS: [char; 4] = ['.', '/', ':', '_'];

/// Whether a file has tensors that are codes: matrices of small integers that are called weights or codes, or stand
/// beside scales. Errors of the floats beside codes multiply through whole weights. Buffers of i64 do not count as codes.
pub fn has_codes<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a Shape)>) -> bool {
    let tensors: Vec<Tensor<'_>> =
        tensors.map(|(name, dtype, shape)| Tensor::new(name, dtype, shape)).collect();
    let bases = Bases::new(&tensors);
    tensors.iter().any(|tensor| tensor.is_integers && tensor.codes(&bases).is_some())
}

/// Which tensors of a file are parts of quantized weights: codes, and the floats that turn them into numbers. Their own
/// numbers mean nothing without the others, so no cast changes them. A matrix of 8-bit floats is codes only in a file
/// with scales of such matrices.
pub fn parts_of_weights<'a>(tensors: impl Iterator<Item = (&'a str, Dtype, &'a Shape)>) -> Vec<bool> {
    let tensors: Vec<Tensor<'_>> =
        tensors.map(|(name, dtype, shape)| Tensor::new(name, dtype, shape)).collect();
    let bases = Bases::new(&tensors);
    let codes: Vec<Option<Codes>> = tensors.iter().map(|tensor| tensor.codes(&bases)).collect();
    // The scales of one matrix of 8-bit floats may be in another file of a model whose files were cut by their size.
    let has_scaled_floats =
        codes.iter().zip(&tensors).any(|(codes, tensor)| codes.is_some() && tensor.is_float8);
    let has_codes = codes.iter().any(Option::is_some);
    let mut modules: HashSet<&str> = HashSet::new();
    for (tensor, codes) in tensors.iter().zip(&codes) {
        match codes {
            Some(Codes::OfModule) => modules.extend([tensor.above(), tensor.name]),
            Some(Codes::Alone) => modules.extend([tensor.name]),
            None => {}
        }
    }
    modules.remove("");
    let is_part = |(tensor, codes): (&Tensor<'_>, &Option<Codes>)| {
        codes.is_some()
            || tensor.is_float8 && has_scaled_floats
            || tensor.is_scale_of_weight()
            || has_codes
                && (tensor.scale_at.is_some()
                    || tensor.dtype == Dtype::F8E8M0
                    || !tensor.is_bias() && modules.contains(tensor.above()))
    };
    tensors.iter().zip(&codes).map(is_part).collect()
}

/// How the names show that a tensor is codes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Codes {
    /// The scales are named for the tensor, so the module that it is in may have others.
    Alone,
    /// All floats of the module belong to the codes, but for the bias.
    OfModule,
}

/// A tensor, with what its name tells.
struct Tensor<'a> {
    name: &'a str,
    /// The name, without `.weight` where that says nothing.
    told: &'a str,
    /// Where the last part of the name begins.
    last: usize,
    /// Where the word of a scale begins, if the last part has one.
    scale_at: Option<usize>,
    dtype: Dtype,
    is_integers: bool,
    is_float8: bool,
}

impl<'a> Tensor<'a> {
    fn new(name: &'a str, dtype: Dtype, shape: &Shape) -> Tensor<'a> {
        use Dtype::{F4, F8E4M3, F8E5M2, I8, I16, I32, U8, U16, U32};
        let is_matrix = shape.dimensions().len() > 1;
        let told = name.strip_suffix(".weight").filter(|told| told.ends_with("centroids")).unwrap_or(name);
        let last = told.rfind(['.', '/', ':']).map_or(0, |at| at + 1);
        let is_alone = |word: &str| word == "s" && name.len() == last + 1;
        let scale = words(told, last).find(|(_, word)| is_one_of(word, &OF_SCALES) || is_alone(word));
        Tensor {
            name,
            told,
            last,
            scale_at: scale.map(|(at, _)| at),
            dtype,
            is_integers: is_matrix && matches!(dtype, F4 | I8 | I16 | I32 | U8 | U16 | U32),
            is_float8: is_matrix && matches!(dtype, F8E4M3 | F8E5M2),
        }
    }

    /// The name without its last part.
    fn above(&self) -> &'a str {
        before(self.name, self.last)
    }

    /// How it is known for codes, in a file with scales of these bases.
    fn codes(&self, bases: &Bases<'_>) -> Option<Codes> {
        let is_lookup = self.is_integers && self.has(&["indices"]) && bases.codebooks.contains(self.above());
        if is_lookup {
            return Some(Codes::OfModule);
        }
        if !self.is_integers && !self.is_float8
            || self.has(&OF_INDEXES)
            || self.is_float8 && self.scale_at.is_some()
        {
            return None;
        }
        let bases = &bases.scales;
        let stem = self.name.rsplit_once('_').map_or(self.name, |(stem, _)| stem);
        if [self.name, stem].iter().any(|base| bases.contains(base)) {
            return Some(Codes::Alone);
        }
        let is_of_module = bases.contains(self.above()) || self.is_integers && self.has(&OF_CODES);
        is_of_module.then_some(Codes::OfModule)
    }

    /// Whether the last part of its name has one of these words.
    fn has(&self, list: &[&str]) -> bool {
        words(self.told, self.last).any(|(_, word)| is_one_of(word, list))
    }

    fn is_bias(&self) -> bool {
        words(self.told, self.last).last().is_some_and(|(_, word)| word == "bias")
    }

    /// Whether its name is that of the scales of a weight, in any file.
    fn is_scale_of_weight(&self) -> bool {
        self.scale_at.is_some() && (self.has(&OF_WEIGHT_SCALES) || self.has(&["scale"]) && self.has(&SCALED))
    }
}

/// The names that scales and codebooks are named for: the module, and what stands before the word of the scale.
struct Bases<'a> {
    scales: HashSet<&'a str>,
    codebooks: HashSet<&'a str>,
}

impl<'a> Bases<'a> {
    fn new(tensors: &[Tensor<'a>]) -> Bases<'a> {
        let named = tensors.iter().filter_map(|tensor| Some((tensor, tensor.scale_at?)));
        let scales = named.flat_map(|(tensor, at)| [tensor.above(), before(tensor.name, at)]);
        let codebooks = tensors.iter().filter(|tensor| tensor.has(&OF_CODEBOOKS)).map(Tensor::above);
        Bases {
            scales: scales.filter(|base| !base.is_empty()).collect(),
            codebooks: codebooks.filter(|base| !base.is_empty()).collect(),
        }
    }
}

fn before(name: &str, at: usize) -> &str {
    name.get(..at).unwrap_or_default().trim_end_matches(SEPARATORS)
}

/// The words of a name from a place on, each with its place.
fn words(name: &str, from: usize) -> impl Iterator<Item = (usize, &str)> {
    let mut at = from;
    name.get(from..).unwrap_or_default().split(['_', '-']).map(move |word| {
        let begin = at;
        at += word.len() + 1;
        (begin, word)
    })
}

fn is_one_of(word: &str, list: &[&str]) -> bool {
    list.iter().any(|known| known.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::{has_codes, parts_of_weights};
    use crate::model::{Dtype, Shape};

    type Tensors<'a> = &'a [(&'a str, Dtype, &'a [u64])];

    fn shaped<'a>(tensors: Tensors<'a>) -> Vec<(&'a str, Dtype, Shape)> {
        tensors.iter().map(|(name, dtype, sizes)| (*name, *dtype, Shape::new(sizes).unwrap())).collect()
    }

    #[test]
    fn matrices_of_integers_beside_scales_or_in_the_place_of_weights_are_codes() {
        use Dtype::{Bf16, Bool, F8E4M3, F16, F32, I8, I16, I32, I64, U8, U32};
        let codes: &[Tensors<'_>] = &[
            &[("l.qweight", I32, &[512, 1024]), ("l.scales", F16, &[32, 1024])],
            &[("l.B", I32, &[8, 4]), ("l.s", F16, &[8, 4]), ("l.workspace", I32, &[16])],
            &[("l.W_q", U8, &[8, 4]), ("l.scale", F16, &[8, 1]), ("l.zero", F16, &[8, 1])],
            &[("l.codes", I8, &[8, 4, 1]), ("l.codebooks", F16, &[1, 256, 1, 8])],
            &[("l.codes", I16, &[8, 4, 1])],
            &[("l.weight", I8, &[8, 4]), ("l.SCB", F32, &[8])],
            &[("l.weight", U32, &[8, 4]), ("l.scales", F16, &[8, 1]), ("l.biases", F16, &[8, 1])],
            &[("l._weight_qdata", I8, &[8, 4]), ("l._weight_scale", F32, &[8])],
            &[("l.weight:qdata", U8, &[8, 4]), ("l.weight:scale", F32, &[8])],
            &[("e.gate_up_proj_blocks", U8, &[4, 4, 16]), ("e.gate_up_proj_scales", U8, &[4, 4])],
            &[("MatMul_0_quantized", U8, &[8, 4]), ("MatMul_0_scale", F32, &[]), ("a", F32, &[8, 4])],
            &[("l.trellis", I16, &[8, 4]), ("l.scale", F32, &[8])],
            &[("l.indices", I32, &[1, 8, 4]), ("l.centroids.weight", F16, &[1, 32])],
            &[("l.w", Dtype::F4, &[8, 4]), ("l.weight_scale", F8E4M3, &[8, 1])],
        ];
        for tensors in codes {
            let tensors = shaped(tensors);
            assert!(
                has_codes(tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, shape))),
                "{tensors:?}"
            );
        }
        let numbers: &[Tensors<'_>] = &[
            &[("embeddings.position_ids", I64, &[1, 512]), ("l.weight", F32, &[8, 4])],
            &[("bn.num_batches_tracked", I64, &[]), ("bn.weight", F32, &[8])],
            &[("h.0.attn.bias", U8, &[1, 1, 8, 8]), ("h.0.attn.masked_bias", F32, &[])],
            &[("h.0.attn.bias", Bool, &[1, 1, 8, 8]), ("h.0.attn.c_attn.weight", F32, &[8, 8])],
            &[("attn.relative_position_index", I64, &[49, 49]), ("attn.logit_scale", F32, &[3, 1, 1])],
            &[("attn.relative_position_index", I32, &[49, 49]), ("attn.logit_scale", F32, &[3, 1, 1])],
            &[("l.weight_mask", U8, &[8, 4]), ("l.weight_orig", F32, &[8, 4])],
            &[("ids", I32, &[8, 4]), ("embeddings", F32, &[8, 4]), ("scale", F32, &[])],
            &[("logit_scale", F32, &[]), ("images", U8, &[8, 4]), ("l.weight", F16, &[8, 4])],
            &[
                ("l.weight", F8E4M3, &[8, 4]),
                ("l.weight_scale_inv", F32, &[1, 1]),
                ("e.weight", Bf16, &[8, 4]),
            ],
            &[("l.weight_shape", I64, &[2]), ("l.weight", F16, &[8, 4])],
        ];
        for tensors in numbers {
            let tensors = shaped(tensors);
            assert!(
                !has_codes(tensors.iter().map(|(name, dtype, shape)| (*name, *dtype, shape))),
                "{tensors:?}"
            );
        }
    }

    #[test]
    fn codes_and_the_floats_that_scale_them_are_parts_of_weights() {
        use Dtype::{Bf16, F8E4M3, F8E8M0, F16, F32, I8, I16, I32, I64, U8, U32};
        // Each file with the names of the tensors that a cast may change.
        let cases: &[(Tensors<'_>, &[&str])] = &[
            (
                &[
                    ("l.qweight", I32, &[512, 1024]),
                    ("l.qzeros", I32, &[32, 128]),
                    ("l.scales", F16, &[32, 1024]),
                    ("l.g_idx", I32, &[4096]),
                    ("l.bias", F16, &[1024]),
                    ("norm.weight", F16, &[4096]),
                ],
                &["l.bias", "norm.weight"],
            ),
            (&[("l.B", I32, &[8, 4]), ("l.s", F16, &[8, 4]), ("m.s", F16, &[8, 4])], &[]),
            (
                &[
                    ("l.W_q", U8, &[8, 4]),
                    ("l.scale", F16, &[8, 1]),
                    ("l.zero", F16, &[8, 1]),
                    ("l.bias", F16, &[8]),
                ],
                &["l.bias"],
            ),
            (
                &[
                    ("l.codes", I16, &[8, 4, 1]),
                    ("l.codebooks", F16, &[1, 256, 1, 8]),
                    ("l.scales", F16, &[8, 1]),
                ],
                &[],
            ),
            (&[("l.weight", I8, &[8, 4]), ("l.SCB", F32, &[8]), ("l.bias", F16, &[8])], &["l.bias"]),
            (
                &[
                    ("l.weight", U32, &[8, 4]),
                    ("l.scales", F16, &[8, 1]),
                    ("l.biases", F16, &[8, 1]),
                    ("l.bias", F16, &[8]),
                ],
                &["l.bias"],
            ),
            (
                &[
                    ("l.weight", U8, &[64, 1]),
                    ("l.weight.absmax", F32, &[2]),
                    ("l.weight.quant_map", F32, &[16]),
                    ("l.weight.nested_quant_map", F32, &[256]),
                    ("l.bias", F16, &[8]),
                ],
                &["l.bias"],
            ),
            (
                &[
                    ("e.gate_up_proj_blocks", U8, &[4, 4, 16]),
                    ("e.gate_up_proj_scales", U8, &[4, 4]),
                    ("e.gate_up_proj_bias", Bf16, &[4, 4]),
                    ("r.weight", Bf16, &[4, 4]),
                ],
                &["e.gate_up_proj_bias", "r.weight"],
            ),
            (
                &[
                    ("l.weight", F8E4M3, &[8, 4]),
                    ("l.weight_scale_inv", F32, &[1, 1]),
                    // Its scales are in another file.
                    ("m.weight", F8E4M3, &[8, 4]),
                    ("a.k_scale", F32, &[]),
                    ("e.weight", Bf16, &[8, 4]),
                ],
                &["e.weight"],
            ),
            (
                &[("l.weight", F8E4M3, &[8, 4]), ("l.scale_weight", F32, &[]), ("l.scale_input", F32, &[])],
                &[],
            ),
            (
                &[
                    ("l.weight_packed", U8, &[8, 4]),
                    ("l.weight_scale", F8E4M3, &[8, 1]),
                    ("l.weight_global_scale", F32, &[1]),
                    ("l.input_global_scale", F32, &[1]),
                    ("n.weight", F32, &[8]),
                ],
                &["n.weight"],
            ),
            (&[("l.weight_packed", U8, &[8, 4]), ("l.weight_scale", F8E8M0, &[8, 1])], &[]),
            (&[("l.indices", I32, &[1, 8, 4]), ("l.centroids.weight", F16, &[1, 32])], &[]),
            (
                &[
                    ("l.weight._data", I8, &[8, 4]),
                    ("l.weight._scale", F32, &[8, 1]),
                    ("l.weight._shift", F32, &[8]),
                ],
                &[],
            ),
            (&[("l._weight_qdata", I8, &[8, 4]), ("l._weight_scale_and_zero", Bf16, &[8, 2])], &[]),
            (
                &[("MatMul_0_quantized", U8, &[8, 4]), ("MatMul_0_scale", F32, &[]), ("a", F32, &[8, 4])],
                &["a"],
            ),
            // Scales whose codes are in another file.
            (
                &[("l.weight_scale_inv", F32, &[8, 4]), ("l.scales", F16, &[8, 4]), ("l.w", F16, &[8, 4])],
                &["l.w"],
            ),
            // Numbers.
            (
                &[
                    ("l.weight", F8E4M3, &[8, 4]),
                    ("n.query_norm.scale", Bf16, &[8]),
                    ("logit_scale", F32, &[]),
                    ("block.ls1.scale", F32, &[8]),
                    ("f8_e8m0", F8E8M0, &[8, 4]),
                    ("position_ids", I64, &[1, 4]),
                    ("s", F32, &[8, 4]),
                ],
                &[
                    "l.weight",
                    "n.query_norm.scale",
                    "logit_scale",
                    "block.ls1.scale",
                    "f8_e8m0",
                    "position_ids",
                    "s",
                ],
            ),
        ];
        for (tensors, numbers) in cases {
            let shapes = shaped(tensors);
            let parts = parts_of_weights(shapes.iter().map(|(name, dtype, shape)| (*name, *dtype, shape)));
            let names = tensors.iter().map(|(name, ..)| *name);
            let found: Vec<&str> =
                names.zip(parts).filter(|(_, is_part)| !is_part).map(|(name, _)| name).collect();
            assert_eq!(&found, numbers, "{tensors:?}");
        }
    }
}
