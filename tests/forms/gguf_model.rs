//! GGUF of models of the hub, against the files that the converter of llama.cpp makes: `tests/golden/gguf_models/make.py`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use support::{
    Mapping, Place, Random, assert_same, get, names, refused, repository, run, safetensors_file, set,
    set_mode, wait_until,
};

const MODELS: [&str; 8] = ["bert", "gemma3", "llama3", "llama_hf", "mistral", "nomic_bert", "qwen2", "qwen3"];
const FORMS: [(&str, &str); 3] = [("gguf", "auto"), ("gguf-q8_0", "q8_0"), ("gguf-q4_0", "q4_0")];

fn golden(name: &str) -> PathBuf {
    repository("tests/golden/gguf_models").join(name)
}

/// The size and the SHA-256 of the converter's file.
fn expected(model: &str, kind: &str) -> (u64, String) {
    let all = fs::read_to_string(golden("golden.txt")).unwrap();
    let line = all.lines().find_map(|line| line.strip_prefix(&format!("{model} {kind} "))).unwrap();
    let (size, digest) = line.split_once(' ').unwrap();
    (size.parse().unwrap(), digest.to_owned())
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a tensor, by the formula of `make.py`.
fn values(name: &str, dtype: &str, count: usize) -> Vec<u8> {
    let seed =
        name.bytes().fold(0x811c_9dc5_u32, |seed, byte| (seed ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let number = |at: usize, bits: u32| {
        let mut mixed = (at as u32).wrapping_mul(0x9e37_79b1).wrapping_add(seed);
        mixed ^= mixed >> 15;
        mixed = mixed.wrapping_mul(0x85eb_ca77);
        mixed ^= mixed >> 13;
        i64::from(mixed >> (32 - bits)) - (1 << (bits - 1))
    };
    let float = |at: usize, bits: u32| (number(at, bits) as f64 / f64::from(1_u32 << (bits + 3))) as f32;
    let all = 0..count;
    match dtype {
        "f32" => all.flat_map(|at| float(at, 24).to_le_bytes()).collect(),
        "f16" => all.flat_map(|at| half::f16::from_f32(float(at, 11)).to_le_bytes()).collect(),
        "bf16" => all.flat_map(|at| half::bf16::from_f32(float(at, 8)).to_le_bytes()).collect(),
        _ => all.flat_map(|at| number(at, 8).to_le_bytes()).collect(),
    }
}

/// The name of a tensor, its type, and its sizes.
type Described<'a> = (&'a str, &'a str, Vec<usize>);

/// Copies the small files of a model, and makes its containers.
pub(crate) fn make(model: &str, into: &Path) {
    copy(&golden(model), into);
    let list = fs::read_to_string(golden(model).join("tensors.txt")).unwrap();
    let mut shards: BTreeMap<&str, Vec<Described<'_>>> = BTreeMap::new();
    for line in list.lines() {
        let parts: Vec<&str> = line.split(' ').collect();
        let sizes = parts[3].split('x').map(|size| size.parse().unwrap()).collect();
        shards.entry(parts[0]).or_default().push((parts[1], parts[2], sizes));
    }
    let mut map = BTreeMap::new();
    for (shard, tensors) in &shards {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, sizes) in tensors {
            let bytes = values(name, dtype, sizes.iter().product());
            let offsets = [data.len(), data.len() + bytes.len()];
            let entry =
                serde_json::json!({"dtype": dtype.to_uppercase(), "shape": sizes, "data_offsets": offsets});
            header.insert((*name).to_owned(), entry);
            data.extend(bytes);
            map.insert((*name).to_owned(), (*shard).to_owned());
        }
        let header = serde_json::to_string(&header).unwrap();
        fs::write(into.join(shard), safetensors_file(&header, &data)).unwrap();
    }
    if shards.len() > 1 {
        let index = serde_json::json!({"metadata": {}, "weight_map": map});
        fs::write(into.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

fn copy(from: &Path, into: &Path) {
    fs::create_dir_all(into).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let to = into.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false if entry.file_name() == "tensors.txt" => {}
            false => {
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
}

/// A collection `t/c` with these models.
fn with_models(models: &[&str], options: &[&str]) -> Place {
    let place = Place::new();
    let source = place.path("source");
    models.iter().for_each(|model| make(model, &source.join(model)));
    place.import("t/c", &[&source], options);
    place
}

#[test]
fn each_file_equals_that_of_the_converter() {
    let place = with_models(&MODELS, &["--block-bytes", "4096"]);
    let mounted = place.mount(&[]);
    for (form, kind) in FORMS {
        let forms = mounted.path("t/c/.as").join(form);
        assert_eq!(names(&forms), MODELS);
        for model in MODELS {
            let file = forms.join(model).join("model.gguf");
            let (size, wanted) = expected(model, kind);
            let listed = names(&forms.join(model));
            assert!(listed.contains(&"model.gguf".to_owned()), "{model}: {listed:?}");
            assert_eq!(fs::metadata(&file).unwrap().len(), size, "{model} {kind}");
            let bytes = fs::read(&file).unwrap();
            assert_eq!(digest(&bytes), wanted, "{model} {kind}");
        }
    }
    mounted.unmount();
}

#[test]
fn an_export_of_a_model_equals_the_mounted_file() {
    let place = with_models(&["bert"], &[]);
    let to = place.path("to");
    let (store, folder) = (place.store(), to.as_os_str());
    run([
        "export".as_ref(),
        "--as".as_ref(),
        "gguf-q8_0".as_ref(),
        store.as_os_str(),
        "t/c".as_ref(),
        folder,
    ])
    .ok();
    assert_eq!(digest(&fs::read(to.join("bert/model.gguf")).unwrap()), expected("bert", "q8_0").1);
}

#[test]
fn ranges_and_mappings_of_a_model_have_the_bytes_of_the_whole() {
    let place = with_models(&["llama3"], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    for (form, _) in FORMS {
        let file = mounted.path("t/c/.as").join(form).join("llama3/model.gguf");
        let whole = fs::read(&file).unwrap();
        assert_same(&fs::read(&file).unwrap(), &whole, "read again");
        assert_same(Mapping::of(&file, libc::MAP_SHARED).bytes(), &whole, "mapped");
        let open = fs::File::open(&file).unwrap();
        let mut random = Random(5);
        for _ in 0..200 {
            let at = random.below(whole.len());
            let mut found = vec![0; random.below((whole.len() - at).min(9000)) + 1];
            open.read_exact_at(&mut found, at as u64).unwrap();
            assert_same(&found, &whole[at..at + found.len()], "a range");
        }
    }
    mounted.unmount();
}

#[test]
fn a_model_follows_changes_of_each_of_its_files() {
    let place = with_models(&["llama3"], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    let (folder, form) = (mounted.path("t/c/llama3"), mounted.path("t/c/.as/gguf/llama3"));
    let file = form.join("model.gguf");
    let (_, wanted) = expected("llama3", "auto");
    let digest_now = || digest(&fs::read(&file).unwrap());
    assert_eq!((digest_now(), digest_now()), (wanted.clone(), wanted.clone()));
    // A tensor, written in place and back.
    let shard = folder.join("model-00002-of-00002.safetensors");
    let exact = fs::read(&shard).unwrap();
    let mut other = exact.clone();
    other.iter_mut().rev().take(100).for_each(|byte| *byte ^= 1);
    fs::write(&shard, &other).unwrap();
    assert!(digest_now() != wanted, "the old tensor");
    fs::write(&shard, &exact).unwrap();
    assert_eq!(digest_now(), wanted);
    // Each small file, replaced, removed and put back; an open file follows it too.
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        let exact = fs::read(folder.join(name)).unwrap();
        let open = fs::File::open(&file).unwrap();
        let text = String::from_utf8(exact.clone()).unwrap();
        let changed = match name {
            "config.json" => text.replace("131072", "1024"),
            "tokenizer.json" => text.replace("<|eot_id|>", "<|other|>"),
            "tokenizer_config.json" => text.replace("message['role']", "message['name']"),
            _ => text.replace("0.6", "0.25"),
        };
        assert!(changed != text, "{name}");
        fs::write(folder.join("new"), &changed).unwrap();
        fs::rename(folder.join("new"), folder.join(name)).unwrap();
        assert!(digest_now() != wanted, "{name} changed");
        drop(open);
        fs::remove_file(folder.join(name)).unwrap();
        match name {
            "config.json" | "tokenizer.json" => assert!(fs::read(&file).is_err(), "{name} removed"),
            _ => assert!(digest_now() != wanted, "{name} removed"),
        }
        fs::write(folder.join(name), &exact).unwrap();
        assert_eq!(digest_now(), wanted, "{name}");
    }
    // The header has the name of the directory.
    fs::rename(&folder, mounted.path("t/c/other")).unwrap();
    let renamed = fs::read(mounted.path("t/c/.as/gguf/other/model.gguf")).unwrap();
    assert!(digest(&renamed) != wanted && renamed.windows(5).any(|part| part == b"Other"));
    mounted.unmount();
}

#[test]
fn a_model_that_is_encoded_is_made_of_the_values_that_it_reads_as() {
    let place = with_models(&["qwen2"], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("t/c/qwen2");
    let container = folder.join("model.safetensors");
    set(&container, "lossy", "allow").unwrap();
    set(&container, "tier", "q8:all").unwrap();
    let now = fs::read(&container).unwrap();
    let file = mounted.path("t/c/.as/gguf/qwen2/model.gguf");
    let (size, wanted) = expected("qwen2", "auto");
    let encoded = fs::read(&file).unwrap();
    assert_eq!(encoded.len() as u64, size);
    assert!(digest(&encoded) != wanted, "the exact values");
    // A plain copy of what the model reads as gives the same file.
    let copy = mounted.path("t/c/copies/qwen2");
    fs::create_dir_all(&copy).unwrap();
    for name in names(&folder) {
        if folder.join(&name).is_file() {
            fs::write(copy.join(&name), fs::read(folder.join(&name)).unwrap()).unwrap();
        }
    }
    assert_same(&fs::read(copy.join("model.safetensors")).unwrap(), &now, "the copy");
    assert_same(
        &fs::read(mounted.path("t/c/.as/gguf/copies/qwen2/model.gguf")).unwrap(),
        &encoded,
        "its file",
    );
    // Absent tensors change nothing about the size.
    set(&container, "evict", "discard").unwrap();
    assert_eq!(fs::metadata(&file).unwrap().len(), size);
    assert_eq!(fs::read(&file).map_err(|error| error.raw_os_error()), Err(Some(libc::ENODATA)));
    mounted.unmount();
}

#[test]
fn a_model_is_for_those_who_may_read_all_of_its_files_and_cannot_be_pinned() {
    let place = with_models(&["bert", "llama3", "qwen2"], &[]);
    let mounted = place.mount(&[]);
    let file = |model: &str| mounted.path("t/c/.as/gguf").join(model).join("model.gguf");
    // Each model is looked at once, since the kernel keeps modes in forms for a second.
    let mode = |model: &str| {
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(file(model)).unwrap().permissions()) & 0o777
    };
    assert_eq!(mode("bert"), 0o444);
    set_mode(&mounted.path("t/c/llama3/model-00002-of-00002.safetensors"), 0o640);
    assert_eq!(mode("llama3"), 0o440);
    set_mode(&mounted.path("t/c/qwen2/tokenizer.json"), 0o600);
    assert_eq!(mode("qwen2"), 0o400);
    assert!(set(&file("bert"), "pin", "1").is_err());
    refused(fs::write(file("bert"), b"x"), libc::EROFS);
    mounted.unmount();
}

#[test]
fn a_model_is_for_those_who_may_enter_the_directory_of_its_pooling() {
    let place = with_models(&["bert"], &[]);
    let mounted = place.mount(&[]);
    let file = mounted.path("t/c/.as/gguf/bert/model.gguf");
    let mode =
        || std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions()) & 0o777;
    assert_eq!(mode(), 0o444);
    for (directory, wanted) in [(0o750, 0o440), (0o711, 0o444), (0o700, 0o400)] {
        set_mode(&mounted.path("t/c/bert/1_Pooling"), directory);
        wait_until("the mode follows", || mode() == wanted);
    }
    // The model does not depend on other files beside the configuration of the pooling.
    let written_at = || fs::metadata(&file).unwrap().modified().unwrap();
    let before = written_at();
    fs::write(mounted.path("t/c/bert/1_Pooling/notes"), b"x").unwrap();
    set_mode(&mounted.path("t/c/bert/1_Pooling"), 0o755);
    wait_until("the mode follows", || mode() == 0o444);
    assert_eq!(written_at(), before);
    mounted.unmount();
}

#[test]
fn models_that_do_not_fit_a_table_are_not_shown_and_why_names_the_reason() {
    let place = Place::new();
    let source = place.path("source");
    let config = |folder: &Path, change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let path = folder.join("config.json");
        let mut all = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut all);
        fs::write(path, serde_json::to_vec(&all).unwrap()).unwrap();
    };
    let set_to = |folder: &Path, key: &str, value: serde_json::Value| {
        config(folder, &|all| drop(all.insert(key.to_owned(), value.clone())));
    };
    let write = |folder: &Path, name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).unwrap();
    let deep = [b"{\"normalizer\": ".to_vec(), b"[".repeat(200_000)].concat();
    type Change<'a> = (&'a str, &'a str, &'a dyn Fn(&Path), &'a str);
    let changes: [Change<'_>; 14] = [
        (
            "class",
            "qwen2",
            &|at| set_to(at, "architectures", serde_json::json!(["OddForCausalLM"])),
            "OddForCausalLM",
        ),
        ("none", "qwen2", &|at| config(at, &|all| drop(all.remove("architectures"))), "architecture"),
        ("broken", "qwen2", &|at| write(at, "config.json", b"{\"a\": "), "config.json"),
        ("list", "qwen2", &|at| write(at, "config.json", b"[]"), "config.json"),
        ("layers", "qwen2", &|at| set_to(at, "num_hidden_layers", 4_000_000_000_u64.into()), "layers"),
        ("more", "qwen2", &|at| set_to(at, "num_hidden_layers", 3.into()), "model.layers.2"),
        ("fewer", "qwen2", &|at| set_to(at, "num_hidden_layers", 1.into()), "has no place"),
        ("heads", "llama3", &|at| set_to(at, "num_attention_heads", 0.into()), "heads"),
        ("wide", "llama3", &|at| set_to(at, "hidden_size", 128.into()), "shape"),
        ("tokens", "qwen2", &|at| set_to(at, "vocab_size", 4_000_000_000_u64.into()), "tokens"),
        ("deep", "qwen2", &|at| write(at, "tokenizer.json", &deep), "tokenizer.json"),
        (
            "kind",
            "qwen2",
            &|at| drop(fs::copy(golden("bert/tokenizer.json"), at.join("tokenizer.json"))),
            "WordPiece",
        ),
        (
            "words",
            "qwen2",
            &|at| {
                let text = fs::read_to_string(at.join("tokenizer.json")).unwrap();
                write(at, "tokenizer.json", text.replace("\\\\p{N}", "\\\\p{Nd}").as_bytes());
            },
            "rule",
        ),
        ("pieces", "mistral", &|at| write(at, "tokenizer.model", &[0xff; 40]), "tokenizer.model"),
    ];
    for (name, model, change, _) in changes {
        make(model, &source.join(name));
        change(&source.join(name));
    }
    // Containers alone, and a configuration alone.
    make("bert", &source.join("alone"));
    fs::remove_file(source.join("alone/config.json")).unwrap();
    make("bert", &source.join("empty"));
    fs::remove_file(source.join("empty/model.safetensors")).unwrap();
    // A shard that the index names is missing.
    make("llama3", &source.join("shards"));
    fs::remove_file(source.join("shards/model-00002-of-00002.safetensors")).unwrap();
    make("llama3", &source.join("both"));
    set_to(&source.join("both"), "architectures", serde_json::json!(["OddForCausalLM"]));
    fs::remove_file(source.join("both/model-00002-of-00002.safetensors")).unwrap();
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let form = mounted.path("t/c/.as/gguf");
    for (name, _, _, reason) in changes {
        assert!(!names(&form.join(name)).contains(&"model.gguf".to_owned()), "{name}");
        refused(fs::metadata(form.join(name).join("model.gguf")), libc::ENOENT);
        let why = get(&form.join(name), "why");
        assert!(why.contains(reason), "{name}: {why}");
        let why = get(&mounted.path("t/c").join(name).join("config.json"), "why");
        assert!(why.contains(reason), "{name}: {why}");
    }
    assert!(get(&form.join("shards"), "why").contains("model-00002-of-00002.safetensors"));
    assert!(get(&form.join("empty"), "why").contains("model*.safetensors"));
    // The configuration counts before the containers.
    assert!(get(&form.join("both"), "why").contains("OddForCausalLM"));
    for name in ["alone", "empty", "shards", "both"] {
        assert!(!form.join(name).join("model.gguf").exists(), "{name}");
    }
    mounted.unmount();
}

#[test]
fn a_directory_with_too_many_containers_says_so() {
    let place = Place::new();
    let source = place.path("source");
    make("bert", &source.join("bert"));
    fs::write(source.join("bert/model-0.safetensors"), safetensors_file("{}", &[])).unwrap();
    place.import("t/c", &[&source], &[]);
    let mounted = place.mount(&[]);
    let (folder, form) = (mounted.path("t/c/bert"), mounted.path("t/c/.as/gguf/bert"));
    let link = |number: usize| {
        let name = format!("model-{number}.safetensors");
        fs::hard_link(folder.join("model-0.safetensors"), folder.join(name)).unwrap();
    };
    (1..4095).for_each(link);
    assert!(names(&form).contains(&"model.gguf".to_owned()));
    link(4095);
    assert!(!names(&form).contains(&"model.gguf".to_owned()));
    let why = get(&form, "why");
    assert!(why.contains("4096"), "{why}");
    mounted.unmount();
}
