//! Weights of compressed-tensors, and the ends of the range of their scales, against what the package reads
//! (`tests/golden/compressed.py`).

use std::fs;

use safetensors::{Dtype, SafeTensors};
use support::{Place, repository};

/// The bytes of elements with one NaN for all.
fn values(bytes: &[u8], dtype: Dtype) -> Vec<u32> {
    let of = |value: f32| if value.is_nan() { u32::MAX } else { value.to_bits() };
    match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|value| of(f32::from_le_bytes(*value))).collect(),
        _ => bytes.as_chunks().0.iter().map(|value| of(half::bf16::from_le_bytes(*value).to_f32())).collect(),
    }
}

#[test]
fn weights_are_what_compressed_tensors_reads_bit_for_bit() {
    let golden = repository("tests/golden/compressed");
    let place = Place::new();
    let model = place.path("model");
    fs::create_dir(&model).unwrap();
    for name in ["model.safetensors", "config.json"] {
        fs::copy(golden.join(name), model.join(name)).unwrap();
    }
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&["--read-only"]);
    let form = |to: &str| fs::read(mounted.path("t/c/.as").join(to).join("model.safetensors")).unwrap();
    let (bf16, f32) = (form("bf16"), form("f32"));
    let (bf16, f32) = (SafeTensors::deserialize(&bf16).unwrap(), SafeTensors::deserialize(&f32).unwrap());
    let wanted = fs::read(golden.join("wanted.safetensors")).unwrap();
    let wanted = SafeTensors::deserialize(&wanted).unwrap();
    assert!(wanted.len() > 16);
    assert_eq!((bf16.len(), f32.len()), (wanted.len(), wanted.len()));
    for (name, weight) in wanted.tensors() {
        let form = if weight.dtype() == Dtype::F32 { &f32 } else { &bf16 };
        let found = form.tensor(&name).unwrap();
        assert_eq!((found.dtype(), found.shape()), (weight.dtype(), weight.shape()), "{name}");
        let (found, wanted) = (values(found.data(), weight.dtype()), values(weight.data(), weight.dtype()));
        let other = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(other, None, "{name}: the first value that differs");
    }
    let config = fs::read_to_string(mounted.path("t/c/.as/bf16/config.json")).unwrap();
    assert!(!config.contains("quantization_config"), "{config}");
    mounted.unmount();
}
