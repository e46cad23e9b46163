//! Directories with several quantized models, and models whose configuration goes away.

use std::fs;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, get, safetensors_file, set_mode};

/// Codes of 8 bits, and their scale in another file.
fn write_model(folder: &Path, name: &str, scale: f32) {
    let codes = r#"{"w":{"dtype":"I8","shape":[2,4],"data_offsets":[0,8]}}"#;
    let scales = r#"{"w_scale":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let index = format!(
        r#"{{"metadata":{{"total_size":12}},"weight_map":{{"w":"{name}1.safetensors","w_scale":"{name}2.safetensors"}}}}"#
    );
    for (file, bytes) in [
        (format!("{name}1.safetensors"), safetensors_file(codes, &[1, 2, 3, 4, 5, 6, 7, 255])),
        (format!("{name}2.safetensors"), safetensors_file(scales, &scale.to_le_bytes())),
        (format!("{name}.safetensors.index.json"), index.into_bytes()),
    ] {
        fs::write(folder.join(file), bytes).unwrap();
    }
}

fn mounted(place: &Place, folder: &Path) -> Mounted {
    place.import("t/c", &[folder], &[]);
    place.mount(&[])
}

fn made(place: &Place) -> PathBuf {
    let folder = place.path("models");
    fs::create_dir(&folder).unwrap();
    folder
}

/// The only tensor of a safetensors file: its name, and its numbers if they are f32.
fn only(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = read.tensors();
    assert_eq!(tensors.len(), 1, "{:?}", read.names());
    let (name, tensor) = tensors.pop().unwrap();
    assert_eq!(tensor.dtype(), safetensors::Dtype::F32, "{name}");
    (name, floats(tensor.data()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

#[test]
fn each_of_two_models_of_a_directory_has_its_own_scales() {
    let place = Place::new();
    let folder = made(&place);
    write_model(&folder, "a", 2.0);
    write_model(&folder, "b", 0.5);
    fs::write(folder.join("config.json"), r#"{"quantization_config":{"quant_method":"fp8"}}"#).unwrap();
    let mounted = mounted(&place, &folder);
    let form = mounted.path("t/c/.as/f32");
    for (name, scale) in [("a", 2.0), ("b", 0.5)] {
        let wanted: Vec<f32> = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -1.0].map(|code: f32| code * scale).into();
        assert_eq!(only(&form.join(format!("{name}1.safetensors"))), ("w".to_owned(), wanted.clone()));
        let tensor = fs::read(form.join(format!(".tensors/{name}1.safetensors/w"))).unwrap();
        assert_eq!(floats(&tensor), wanted, "{name}: the tensor");
        let index = fs::read_to_string(form.join(format!("{name}.safetensors.index.json"))).unwrap();
        let index: serde_json::Value = serde_json::from_str(&index).unwrap();
        let file = format!("{name}1.safetensors");
        assert_eq!(index["weight_map"], serde_json::json!({ "w": file }));
        assert_eq!(index["metadata"]["total_size"], 32);
    }
    let config = fs::read_to_string(form.join("config.json")).unwrap();
    assert!(!config.contains("quantization_config"), "{config}");
    mounted.unmount();
}

/// The peak of the daemon's memory, in KiB.
fn peak(mounted: &Mounted) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", mounted.daemon().unwrap())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn many_shards_beside_another_model_take_memory_for_their_tensors_once() {
    const SHARDS: usize = 100;
    const TENSORS: usize = 60;
    let place = Place::new();
    let folder = made(&place);
    let shard = |number: usize| format!("s-{:05}-of-{SHARDS:05}.safetensors", number + 1);
    let entry = |name: &str, dtype: &str, shape: &str, at: usize, bytes: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{}]}}"#, at + bytes)
    };
    let name = |shard: usize, tensor: usize| format!("model.layers.{shard}.experts.{tensor}.w");
    let (mut map, mut others) = (Vec::new(), Vec::new());
    for number in 0..SHARDS {
        let (mut entries, mut bytes) = (Vec::new(), Vec::new());
        for tensor in 0..TENSORS {
            // The scale lies in another shard than the codes.
            let (codes, scale) = (name(number, tensor), name((number + 1) % SHARDS, tensor) + "_scale");
            entries.push(entry(&scale, "F32", "[1]", bytes.len(), 4));
            bytes.extend(2_f32.to_le_bytes());
            entries.push(entry(&codes, "I8", "[2,2]", bytes.len(), 4));
            bytes.extend([1, 2, 3, 255]);
            others.push(entry(&scale, "F32", "[1]", others.len() * 4, 4));
            map.extend([codes, scale].map(|name| format!(r#""{name}":"{}""#, shard(number))));
        }
        let header = format!("{{{}}}", entries.join(","));
        fs::write(folder.join(shard(number)), safetensors_file(&header, &bytes)).unwrap();
    }
    let header = format!("{{{}}}", others.join(","));
    let floats_of_others = 9_f32.to_le_bytes().repeat(others.len());
    fs::write(folder.join("a.safetensors"), safetensors_file(&header, &floats_of_others)).unwrap();
    let index = format!(r#"{{"metadata":{{}},"weight_map":{{{}}}}}"#, map.join(","));
    fs::write(folder.join("s.safetensors.index.json"), index).unwrap();
    let mounted = mounted(&place, &folder);
    let form = mounted.path("t/c/.as/f32");
    let before = peak(&mounted);
    let index = fs::read_to_string(form.join("s.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["weight_map"].as_object().unwrap().len(), SHARDS * TENSORS);
    let grown = peak(&mounted) - before;
    assert!(grown < 60 << 10, "{grown} KiB");
    let read = fs::read(form.join(shard(3))).unwrap();
    let read = safetensors::SafeTensors::deserialize(&read).unwrap();
    assert_eq!(floats(read.tensor(&name(3, 7)).unwrap().data()), [2.0, 4.0, 6.0, -2.0]);
    mounted.unmount();
}

#[test]
fn a_name_leads_to_the_codes_that_are_shown_under_it_whatever_other_codes_are_beside_them() {
    let place = Place::new();
    let folder = made(&place);
    let alone = r#"{"x_packed":{"dtype":"I32","shape":[1,2],"data_offsets":[0,8]}}"#;
    let blocks = r#"{"x_blocks":{"dtype":"U8","shape":[2,1,16],"data_offsets":[0,32]},"x_scales":{"dtype":"U8","shape":[2,1],"data_offsets":[32,34]}}"#;
    fs::write(folder.join("a.safetensors"), safetensors_file(alone, &[0; 8])).unwrap();
    let data: Vec<u8> = (0..32).map(|_| 0x22).chain([127, 128]).collect();
    fs::write(folder.join("b.safetensors"), safetensors_file(blocks, &data)).unwrap();
    let mounted = mounted(&place, &folder);
    let shown = fs::read(mounted.path("t/c/.as/f32/.tensors/x")).unwrap();
    assert_eq!(floats(&shown), [1.0, 2.0].repeat(32));
    let names = support::names(&mounted.path("t/c/.as/f32/.tensors"));
    assert!(names.contains(&"x".to_owned()), "{names:?}");
    mounted.unmount();
}

#[test]
fn forms_follow_a_configuration_and_scales_that_are_removed_or_renamed() {
    // Quantized in two ways, so that codes stay as they are stored.
    const TWO: &str =
        r#"{"quantization_config":{"weight_block_size":[1,1]},"b":{"quantization_config":{"bits":3}}}"#;
    let place = Place::new();
    let folder = made(&place);
    write_model(&folder, "a", 2.0);
    let mounted = mounted(&place, &folder);
    let (own, form) = (mounted.path("t/c"), mounted.path("t/c/.as/f32"));
    let (container, weight) = (form.join("a1.safetensors"), form.join(".tensors/a1.safetensors/w"));
    let read = || (fs::read(&container).unwrap(), fs::read(&weight).unwrap());
    let decoded = read();
    for is_removed in [true, false] {
        fs::write(own.join("config.json"), TWO).unwrap();
        let stored = read();
        assert!(stored.0 != decoded.0 && stored.1.len() == 8, "{}", stored.1.len());
        assert!(get(&container, "why").contains("as they are stored"));
        if is_removed {
            fs::remove_file(own.join("config.json")).unwrap();
        } else {
            fs::rename(own.join("config.json"), own.join("config.old")).unwrap();
        }
        assert!(read() == decoded, "without a configuration; removed: {is_removed}");
    }
    fs::rename(own.join("a2.safetensors"), own.join("other.safetensors")).unwrap();
    assert_eq!(read().1, [1, 2, 3, 4, 5, 6, 7, 255], "codes without scales");
    fs::rename(own.join("other.safetensors"), own.join("a2.safetensors")).unwrap();
    assert!(read() == decoded, "with their scales again");
    mounted.unmount();
}

#[test]
fn a_weight_is_for_those_who_may_read_its_scales() {
    let place = Place::new();
    let folder = made(&place);
    write_model(&folder, "a", 2.0);
    write_model(&folder, "b", 2.0);
    let mounted = mounted(&place, &folder);
    set_mode(&mounted.path("t/c/a2.safetensors"), 0o600);
    for (name, mode) in [("a", 0o400), ("b", 0o444)] {
        for file in [format!("{name}1.safetensors"), format!(".tensors/{name}1.safetensors/w")] {
            let found = fs::metadata(mounted.path("t/c/.as/f32").join(&file)).unwrap().permissions();
            assert_eq!(std::os::unix::fs::PermissionsExt::mode(&found) & 0o777, mode, "{file}");
        }
    }
    mounted.unmount();
}
