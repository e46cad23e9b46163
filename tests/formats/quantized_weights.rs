//! Tensors of quantized models are decoded only where their tables can be read in one way.

use std::collections::BTreeMap;

use tierfs::format::files::quantization_config::Config;
use tierfs::format::files::safetensors::{Role, Tensors};
use tierfs::model::{Dtype, Shape};

const STORED: &str = "stored";
const PLAIN: &str = "plain";
const HIDDEN: &str = "hidden";
const WEIGHT: &str = "weight";

/// The role of the first of these tensors; those with bytes can be read.
fn role(config: &str, tensors: &[(&str, Dtype, &[u64], &[u8])]) -> &'static str {
    let known: BTreeMap<&str, (Dtype, Shape, &[u8])> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, (*dtype, Shape::new(shape).unwrap(), *bytes)))
        .collect();
    let config = Config::parse(config.as_bytes());
    let all = |name: &str| known.get(name).map(|(dtype, shape, _)| (*dtype, shape.clone()));
    let read = |name: &str| known.get(name).map(|(.., bytes)| bytes.to_vec());
    let found = Tensors { all: &all, read: &read, config: &|| &config }.role(tensors[0].0);
    match found {
        Role::Plain => PLAIN,
        Role::Weight(_) => WEIGHT,
        Role::Hidden => HIDDEN,
        Role::Stored => STORED,
    }
}

fn numbers(numbers: &[i32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[test]
fn groups_of_columns_are_stated_or_certain() {
    use Dtype::{F8E4M3, F16, F32, I8, I32, U8};
    let int4 = [("l.weight_packed", I32, &[4, 24][..], &[][..]), ("l.weight_scale", F16, &[4, 2], &[])];
    let group = |size: u64| format!(r#"{{"quantization_config":{{"bits":4,"group_size":{size}}}}}"#);
    // 192 columns of two groups: 96 each, whatever is said, since groups divide the columns.
    assert_eq!(role("{}", &int4), WEIGHT);
    assert_eq!(role(&group(96), &int4), WEIGHT);
    let blocks = [("l.weight", F8E4M3, &[128, 192][..], &[][..]), ("l.weight_scale_inv", F32, &[1, 2], &[])];
    // Blocks of floats may end with a part of one: 96, or 128 and a half.
    assert_eq!(role("{}", &blocks), STORED);
    assert_eq!(role(r#"{"quantization_config":{"weight_block_size":[128,128]}}"#, &blocks), WEIGHT);
    assert_eq!(role(&group(96), &blocks), WEIGHT);
    // A table of two dimensions for a tensor of three.
    let experts = [("e.weight", F8E4M3, &[1, 4, 64][..], &[][..]), ("e.weight_scale", F32, &[1, 4], &[])];
    assert_eq!(role("{}", &experts), STORED);
    // Bytes are powers of two for blocks of 32 floats only.
    let powers = [("l.weight", I8, &[4, 64][..], &[][..]), ("l.weight_scale", U8, &[4, 2], &[])];
    assert_eq!(role("{}", &powers), STORED);
    let both = [
        ("l.weight", F8E4M3, &[4, 64][..], &[][..]),
        ("l.weight_scale", F32, &[1], &[]),
        ("l.weight_scale_inv", F32, &[1], &[]),
    ];
    assert_eq!(role("{}", &both), STORED);
    let mixed = r#"{"a":{"quantization_config":{"bits":4}},"b":{"quantization_config":{"bits":8}}}"#;
    assert_eq!(role(mixed, &int4), STORED);
}

#[test]
fn floats_without_scales_are_codes_only_where_the_configuration_says_so() {
    use Dtype::{F8E4M3, F8E5M2};
    for (config, wanted) in [("{}", PLAIN), (r#"{"quantization_config":{"quant_method":"fp8"}}"#, STORED)] {
        for dtype in [F8E4M3, F8E5M2] {
            assert_eq!(role(config, &[("l.weight", dtype, &[8, 8], &[])]), wanted, "{dtype:?} {config}");
        }
        assert_eq!(role(config, &[("l.weight", F8E4M3, &[8], &[])]), PLAIN);
        assert_eq!(role(config, &[("l.table", F8E4M3, &[8, 8], &[])]), PLAIN);
    }
}

#[test]
fn fp4_has_groups_of_16_or_32_that_divide_its_columns() {
    use Dtype::{F4, F8E4M3, F32, U8};
    let odd = [
        ("a.weight_packed", U8, &[2, 8499][..], &[][..]),
        ("a.weight_scale", F8E4M3, &[2, 1000], &[]),
        ("a.weight_global_scale", F32, &[1], &[]),
    ];
    assert_eq!(role(r#"{"quantization_config":{"weight_block_size":[1,17]}}"#, &odd), STORED);
    let columns = [("a.weight_packed", F4, &[2, 33][..], &[][..]), ("a.weight_scale", U8, &[2, 1], &[])];
    assert_eq!(role("{}", &columns), STORED);
    let right = [("a.weight_packed", U8, &[2, 32][..], &[][..]), ("a.weight_scale", U8, &[2, 2], &[])];
    assert_eq!(role("{}", &right), WEIGHT);
}

#[test]
fn an_order_that_is_not_understood_keeps_codes_as_they_are() {
    use Dtype::{F16, I32, I64};
    let order = numbers(&[0, 1].repeat(64));
    let none = numbers(&[-1; 128]);
    let broken = numbers(&[&[-1][..], &[0; 127]].concat());
    let with = |dtype, shape: &'static [u64], bytes: &[u8]| {
        let tensors = [
            ("l.weight_packed", I32, &[4, 16][..], &[][..]),
            ("l.weight_scale", F16, &[4, 2], &[]),
            ("l.weight_g_idx", dtype, shape, bytes),
        ];
        role("{}", &tensors)
    };
    assert_eq!(with(I32, &[128], &order), WEIGHT);
    assert_eq!(with(I32, &[128], &none), WEIGHT);
    assert_eq!(with(I32, &[0], &[]), WEIGHT);
    assert_eq!(with(I32, &[128], &broken), STORED);
    assert_eq!(with(I64, &[128], &order), STORED);
    assert_eq!(with(I32, &[128, 1], &order), STORED);
    let gptq = |zeros: &'static [u64], listed: (Dtype, &'static [u64])| {
        let tensors = [
            ("l.qweight", I32, &[16, 100][..], &[][..]),
            ("l.qzeros", I32, zeros, &[]),
            ("l.scales", F16, &[2, 100], &[]),
            ("l.g_idx", listed.0, listed.1, &[]),
        ];
        role("{}", &tensors)
    };
    assert_eq!(gptq(&[2, 13], (I32, &[128])), WEIGHT);
    assert_eq!(gptq(&[2, 14], (I32, &[128])), STORED);
    assert_eq!(gptq(&[2, 13], (I64, &[128])), STORED);
}

#[test]
fn codes_in_the_bytes_of_floats_and_codes_of_one_name_stay() {
    use Dtype::{Bf16, F16, F32, I32, U8};
    let state = [
        ("w.weight", Bf16, &[32, 1][..], &[][..]),
        ("w.weight.absmax", F32, &[2], &[]),
        ("w.weight.quant_map", F32, &[16], &[]),
        ("w.weight.quant_state.bitsandbytes__nf4", U8, &[2], b"{}"),
    ];
    assert_eq!(role("{}", &state), STORED);
    assert_eq!(role("{}", &state[..3]), PLAIN);
    let two = [
        ("a.weight_packed", I32, &[4, 16][..], &[][..]),
        ("a.weight_scale", F16, &[4, 1], &[]),
        ("a.qweight", I32, &[4, 16], &[]),
    ];
    assert_eq!(role("{}", &two), STORED);
    assert_eq!(role("{}", &two[..2]), WEIGHT);
    assert_eq!(role("{}", &[two[1], two[0]]), HIDDEN);
}
