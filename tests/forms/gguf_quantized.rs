//! GGUF of quantized models of the hub: their scales, and the files that say how to read their codes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use support::{Place, get, names, set_mode};

use crate::gguf_model::make;

const WEIGHT: &str = "model.layers.0.self_attn.q_proj";

/// A tensor of a container.
#[derive(Clone)]
struct Tensor {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

type Tensors = BTreeMap<String, Tensor>;

fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let all = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, TensorView<'_>)| {
        (name, Tensor { dtype: view.dtype(), shape: view.shape().into(), bytes: view.data().into() })
    };
    all.tensors().into_iter().map(tensor).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, tensor)| {
        let Tensor { dtype, shape, bytes } = tensor;
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).map_err(drop).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Codes of 8 bits, of 64 rows and columns.
fn codes() -> Tensor {
    Tensor {
        dtype: Dtype::I8,
        shape: vec![64, 64],
        bytes: (0..64 * 64).map(|at| (at * 37 % 251) as u8).collect(),
    }
}

/// A scale for each of 64 rows.
fn scales(scale: f32) -> Tensor {
    let bytes = (0..64_u8).flat_map(|row| (scale * (1.0 + f32::from(row))).to_le_bytes()).collect();
    Tensor { dtype: Dtype::F32, shape: vec![64], bytes }
}

/// A qwen2 below a folder, with these tensors in place of the matrix of queries of its first layer.
fn model(folder: &Path, parts: &[(&str, Tensor)]) -> PathBuf {
    let folder = folder.join("qwen2");
    make("qwen2", &folder);
    let container = folder.join("model.safetensors");
    let mut tensors = read(&container);
    tensors.remove(&format!("{WEIGHT}.weight")).unwrap();
    tensors.extend(parts.iter().map(|(part, tensor)| (format!("{WEIGHT}{part}"), tensor.clone())));
    write(&container, &tensors);
    folder
}

fn container(folder: &Path, name: &str, tensors: &[(&str, Tensor)]) {
    let tensors = tensors.iter().map(|(part, tensor)| (format!("{WEIGHT}{part}"), tensor.clone()));
    write(&folder.join(name), &tensors.collect());
}

#[test]
fn scales_come_from_the_containers_of_the_model_only() {
    let place = Place::new();
    let source = place.path("source");
    let own = [(".weight", codes()), (".SCB", scales(0.5))];
    model(&source.join("alone"), &own);
    // The other file comes first.
    let beside = model(&source.join("beside"), &own);
    container(&beside, "a.safetensors", &[(".SCB", scales(3.0))]);
    // A file that only its owner may read is no source of scales.
    let without = model(&source.join("without"), &own[..1]);
    container(&without, "a.safetensors", &[(".SCB", scales(3.0))]);
    container(&without, "model_b.safetensors", &[(".SCB", scales(3.0))]);
    // Shards by their names, then those of an index.
    for (name, is_indexed) in [("shards", false), ("index", true)] {
        let folder = model(&source.join(name), &own);
        let mut first = read(&folder.join("model.safetensors"));
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        let scales = format!("{WEIGHT}.SCB");
        let second: Tensors = first.remove_entry(&scales).into_iter().collect();
        let files = match is_indexed {
            true => ["model-1.safetensors", "model-2.safetensors"],
            false => ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"],
        };
        write(&folder.join(files[0]), &first);
        write(&folder.join(files[1]), &second);
        if is_indexed {
            let file = |name: &String| if *name == scales { files[1] } else { files[0] };
            let map: BTreeMap<&String, &str> =
                first.keys().chain(second.keys()).map(|name| (name, file(name))).collect();
            let index = serde_json::json!({"metadata": {}, "weight_map": map});
            fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        }
    }
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    set_mode(&mounted.path("t/c/without/qwen2/a.safetensors"), 0o600);
    let form = mounted.path("t/c/.as/gguf");
    let shown = |name: &str| fs::read(form.join(name).join("qwen2/model.gguf")).unwrap();
    let alone = shown("alone");
    for name in ["beside", "shards", "index"] {
        assert!(shown(name) == alone, "{name}");
    }
    assert!(!names(&form.join("without/qwen2")).contains(&"model.gguf".to_owned()));
    let why = get(&form.join("without/qwen2"), "why");
    assert!(why.contains(WEIGHT) && why.contains("not decoded"), "{why}");
    mounted.unmount();
}

#[test]
fn a_model_follows_the_files_and_tensors_that_say_how_codes_are_read() {
    let place = Place::new();
    let source = place.path("source");
    let words = |rows: usize, columns: usize| {
        let bytes = (0..rows * columns).flat_map(|at| (at as u32).wrapping_mul(0x9e37_79b1).to_le_bytes());
        Tensor { dtype: Dtype::I32, shape: vec![rows, columns], bytes: bytes.collect() }
    };
    let halves = (0..64_u8).flat_map(|at| half::f16::from_f32(f32::from(at)).to_le_bytes()).collect();
    let halves = Tensor { dtype: Dtype::F16, shape: vec![1, 64], bytes: halves };
    model(
        &source.join("words"),
        &[(".qweight", words(8, 64)), (".qzeros", words(1, 8)), (".scales", halves)],
    );
    let format = Tensor { dtype: Dtype::U8, shape: Vec::new(), bytes: vec![0] };
    model(&source.join("format"), &[(".weight", codes()), (".SCB", scales(0.5)), (".weight_format", format)]);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    let file = |name: &str| mounted.path("t/c/.as/gguf").join(name).join("qwen2/model.gguf");
    let first = fs::read(file("words")).unwrap();
    for name in ["quantize_config.json", "quant_config.json"] {
        let config = mounted.path("t/c/words/qwen2").join(name);
        fs::write(&config, r#"{"bits": 4, "checkpoint_format": "gptq_v2"}"#).unwrap();
        assert!(fs::read(file("words")).unwrap() != first, "{name}");
        fs::write(&config, r#"{"bits": 4, "checkpoint_format": "gptq"}"#).unwrap();
        assert!(fs::read(file("words")).unwrap() == first, "{name} changed back");
        fs::write(&config, r#"{"bits": 4, "checkpoint_format": "gptq_v2"}"#).unwrap();
        assert!(fs::read(file("words")).unwrap() != first, "{name} again");
        fs::remove_file(&config).unwrap();
        assert!(fs::read(file("words")).unwrap() == first, "{name} removed");
    }
    // A tensor of one byte.
    let first = fs::read(file("format")).unwrap();
    let tensor = mounted.path("t/c/format/qwen2/.tensors").join(format!("{WEIGHT}.weight_format"));
    let set =
        |value: u8| fs::File::options().write(true).open(&tensor).unwrap().write_all_at(&[value], 0).unwrap();
    set(1);
    assert!(fs::read(file("format")).is_err());
    set(0);
    assert!(fs::read(file("format")).unwrap() == first);
    mounted.unmount();
}
