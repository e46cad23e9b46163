//! Weights of quantized models in casts, against loops in float64.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use support::{Mapping, Place, Random, assert_same, get, python, set};

fn made(place: &Place) -> PathBuf {
    let folder = place.path("made/model");
    python("scaled_codes.py", ["make".as_ref(), folder.as_os_str()]);
    folder
}

fn compare(source: &std::path::Path, form: PathBuf, to: &str) {
    python("scaled_codes.py", ["compare".as_ref(), source.as_os_str(), form.as_os_str(), to.as_ref()]);
}

#[test]
fn weights_of_all_schemes_are_shown_as_floats_under_their_plain_names() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        let place = Place::new();
        let source = made(&place);
        place.import("t/c", &[&source], options);
        let mounted = place.mount(&["--read-only"]);
        let forms = mounted.path("t/c/.as");
        for to in ["f32", "f16", "bf16"] {
            compare(&source, forms.join(to), to);
        }
        let why = get(&forms.join("bf16/stored/model.safetensors"), "why");
        assert!(why.contains("marlin.B and 1 more"), "{why}");
        let cast = forms.join("bf16/model.safetensors");
        let size = fs::metadata(&cast).unwrap().len();
        let whole = fs::read(&cast).unwrap();
        assert_eq!(whole.len() as u64, size);
        assert_same(Mapping::of(&cast, libc::MAP_SHARED).bytes(), &whole, "mapped");
        let open = fs::File::open(&cast).unwrap();
        let mut random = Random(11);
        for _ in 0..200 {
            let at = random.below(whole.len());
            let mut found = vec![0; random.below((whole.len() - at).min(5000)) + 1];
            open.read_exact_at(&mut found, at as u64).unwrap();
            assert_same(&found, &whole[at..at + found.len()], "a range");
        }
        drop(open);
        mounted.unmount();
    }
}

#[test]
fn a_weight_follows_writes_to_its_scales_and_has_its_size_while_its_codes_are_absent() {
    let place = Place::new();
    let source = made(&place);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let (tensors, form) = (mounted.path("t/c/.tensors"), mounted.path("t/c/.as/f32"));
    let (weight, container) = (form.join(".tensors/fp8.one.weight"), form.join("model.safetensors"));
    let before = fs::read(&weight).unwrap();
    let whole = fs::read(&container).unwrap();
    let scale =
        fs::OpenOptions::new().read(true).write(true).open(tensors.join("fp8.one.weight_scale")).unwrap();
    let mut bytes = [0; 4];
    scale.read_exact_at(&mut bytes, 0).unwrap();
    scale.write_all_at(&(f32::from_le_bytes(bytes) * 2.0).to_le_bytes(), 0).unwrap();
    scale.sync_all().unwrap();
    let doubled: Vec<u8> = before
        .as_chunks()
        .0
        .iter()
        .flat_map(|bytes| (f32::from_le_bytes(*bytes) * 2.0).to_le_bytes())
        .collect();
    assert_same(&fs::read(&weight).unwrap(), &doubled, "the weight");
    assert!(fs::read(&container).unwrap() != whole);
    let codes = tensors.join("fp8.one.weight");
    set(&codes, "lossy", "allow").unwrap();
    set(&codes, "evict", "discard").unwrap();
    assert_eq!(fs::metadata(&weight).unwrap().len(), before.len() as u64);
    assert_eq!(fs::read(&weight).map_err(|error| error.raw_os_error()), Err(Some(libc::ENODATA)));
}

#[test]
fn a_weight_follows_its_scales_in_another_shard_and_the_configuration() {
    let place = Place::new();
    let source = made(&place);
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    let (shards, form) = (mounted.path("t/c/shards"), mounted.path("t/c/.as/f32/shards"));
    let weight = form.join(".tensors/model-00001-of-00002.safetensors/a.weight");
    let container = form.join("model-00001-of-00002.safetensors");
    let read = || (fs::read(&weight).unwrap(), fs::read(&container).unwrap());
    let before = read();
    assert!(before == read());
    let scales = shards.join("model-00002-of-00002.safetensors");
    let mut bytes = fs::read(&scales).unwrap();
    let exact = bytes.clone();
    bytes.iter_mut().rev().take(400).for_each(|byte| *byte = 0);
    // Written over in place, and replaced.
    fs::write(&scales, &bytes).unwrap();
    let zeros = read();
    assert!(zeros.0 != before.0 && zeros.1 != before.1, "old scales");
    fs::write(shards.join("new"), &exact).unwrap();
    fs::rename(shards.join("new"), &scales).unwrap();
    assert!(read() == before, "new scales");
    // The configuration of the model, when it comes and changes.
    let other =
        r#"{"quantization_config":{"weight_block_size":[1,1],"a":0},"b":{"quantization_config":{"bits":3}}}"#;
    fs::write(shards.join("config.json"), other).unwrap();
    assert!(get(&container, "why").contains("as they are stored"), "codes that are quantized in two ways");
    assert!(fs::read(&container).unwrap() != before.1);
    fs::write(shards.join("config.json"), "{}").unwrap();
    assert!(read() == before, "the configuration");
    mounted.unmount();
}
