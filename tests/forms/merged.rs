//! Bases with adapters, against the sums that docs/manual/forms.md defines, in NumPy, and against what PEFT merged.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use support::{Mapping, Place, Random, assert_same, get, python, repository, set, try_get, wait_until};

/// The cases that PEFT made, each with the type of its base.
const CASES: [(&str, &str); 7] = [
    ("plain", "bf16"),
    ("patterns", "f16"),
    ("embedding", "f32"),
    ("transposed", "bf16"),
    ("convolution", "f32"),
    ("bias", "f16"),
    ("pickle", "bf16"),
];

fn golden() -> PathBuf {
    repository("tests/golden/merged")
}

pub fn compare(base: &Path, adapter: &Path, shown: &Path) {
    let arguments = ["compare".as_ref(), base.as_os_str(), adapter.as_os_str(), shown.as_os_str()];
    python("merged.py", arguments);
}

/// A store with the base in two shards and its adapters, each a collection of `t`.
pub fn with_made(options: &[&str]) -> (Place, PathBuf) {
    let place = Place::new();
    let folder = place.path("made");
    python("merged.py", ["make".as_ref(), folder.as_os_str()]);
    place.import("t/base", &[&folder.join("base")], options);
    for adapter in ADAPTERS {
        place.import(&format!("t/{adapter}"), &[&folder.join(adapter)], &[]);
    }
    (place, folder)
}

const ADAPTERS: [&str; 4] = ["inner", "sixteen", "tokens", "wide"];

pub fn names_in(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn adapters_that_peft_saved_are_merged_as_peft_merges_them() {
    let place = Place::new();
    for dtype in ["bf16", "f16", "f32"] {
        let base = format!("base-{dtype}");
        place.import(&format!("t/{base}"), &[&golden().join(base)], &[]);
    }
    for adapter in CASES.iter().map(|(case, _)| *case).chain(["dora", "loha", "pissa"]) {
        place.import(&format!("t/{adapter}"), &[&golden().join(adapter)], &[]);
    }
    let mounted = place.mount(&["--read-only"]);
    for (case, dtype) in CASES {
        let base = mounted.path(format!("t/base-{dtype}"));
        let merged = base.join(".as/merged");
        let mut wanted: Vec<&str> = CASES.iter().map(|(case, _)| *case).collect();
        wanted.sort_unstable();
        assert_eq!(names_in(&merged), wanted);
        let shown = merged.join(case);
        let file = golden().join(format!("{case}.safetensors"));
        let stored = golden().join(format!("base-{dtype}/model.safetensors"));
        let own = shown.join("model.safetensors");
        let arguments = ["peft".as_ref(), file.as_os_str(), own.as_os_str(), stored.as_os_str()];
        python("merged.py", arguments);
        if case != "pickle" {
            compare(&golden().join(format!("base-{dtype}")), &golden().join(case), &shown);
        }
        assert_eq!(names_in(&shown), ["config.json", "model.safetensors"]);
        assert_same(
            &fs::read(shown.join("config.json")).unwrap(),
            &fs::read(golden().join(format!("base-{dtype}/config.json"))).unwrap(),
            "the configuration",
        );
        assert!(try_get(&own, "why").is_err() && try_get(&shown, "why").is_err(), "{case}");
    }
    for (case, reason) in [("dora", "DoRA"), ("loha", "LOHA"), ("pissa", "pissa")] {
        let shown = mounted.path("t/base-bf16/.as/merged").join(case);
        for path in [shown.clone(), shown.join("model.safetensors")] {
            let why = get(&path, "why");
            assert!(why.contains(reason), "{case}: {why}");
        }
        let error = fs::read(shown.join("model.safetensors")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP), "{case}");
        fs::read(shown.join("config.json")).unwrap();
    }
    mounted.unmount();
}

#[test]
fn shards_of_a_base_in_any_tier_are_summed_bit_for_bit() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"], &["--tier", "q8"]] {
        let (place, folder) = with_made(options);
        let mounted = place.mount(&["--read-only"]);
        let base = mounted.path("t/base");
        let merged = base.join(".as/merged");
        assert_eq!(names_in(&merged), ADAPTERS);
        for adapter in ADAPTERS {
            let shown = merged.join(adapter);
            compare(&base, &folder.join(adapter), &shown);
            assert_same(
                &fs::read(shown.join("model.safetensors.index.json")).unwrap(),
                &fs::read(folder.join("base/model.safetensors.index.json")).unwrap(),
                "the index",
            );
        }
        let own = merged.join("wide/model-00002-of-00002.safetensors");
        let whole = fs::read(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().len(), whole.len() as u64);
        assert_same(Mapping::of(&own, libc::MAP_SHARED).bytes(), &whole, "mapped");
        let open = fs::File::open(&own).unwrap();
        let mut random = Random(11);
        for _ in 0..200 {
            let at = random.below(whole.len());
            let mut found = vec![0; random.below((whole.len() - at).min(9000)) + 1];
            found.truncate(whole.len() - at);
            open.read_exact_at(&mut found, at as u64).unwrap();
            assert_same(&found, &whole[at..at + found.len()], "a range");
        }
        let tensor = fs::read(merged.join("wide/.tensors/model.layers.1.q_proj.weight")).unwrap();
        assert!(whole.windows(tensor.len()).any(|part| part == tensor), "the tensor as a file");
        drop(open);
        mounted.unmount();
    }
}

#[test]
fn a_merged_file_follows_its_adapter_and_its_base() {
    let (place, folder) = with_made(&[]);
    let mounted = place.mount(&[]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/sixteen"));
    let shown = base.join(".as/merged/sixteen");
    let file = shown.join("model-00001-of-00002.safetensors");
    let mapping = Mapping::of(&file, libc::MAP_SHARED);
    let before = mapping.bytes().to_vec();
    // A tensor of the adapter, then its configuration, then a tensor of the base.
    let name = "base_model.model.model.layers.0.q_proj.lora_B.weight";
    let changes: [(PathBuf, u64, Vec<u8>); 2] = [
        (adapter.join(".tensors").join(name), 64, 3.5_f32.to_le_bytes().to_vec()),
        (base.join(".tensors/model.layers.0.k_proj.weight"), 20, vec![0, 0x3c, 0, 0x40]),
    ];
    for (path, at, bytes) in changes {
        let tensor = OpenOptions::new().write(true).open(&path).unwrap();
        tensor.write_all_at(&bytes, at).unwrap();
        tensor.sync_all().unwrap();
        compare(&base, &adapter, &shown);
        assert_same(mapping.bytes(), &fs::read(&file).unwrap(), "the mapping");
    }
    let config = fs::read_to_string(adapter.join("adapter_config.json")).unwrap();
    fs::write(adapter.join("adapter_config.json"), config.replace("\"lora_alpha\": 32", "\"lora_alpha\": 5"))
        .unwrap();
    compare(&base, &adapter, &shown);
    assert_same(mapping.bytes(), &fs::read(&file).unwrap(), "the mapping");
    assert!(mapping.bytes() != before);
    // The whole container is written over, then replaced by another file.
    let weights = fs::read(folder.join("sixteen/adapter_model.safetensors")).unwrap();
    fs::write(adapter.join("adapter_model.safetensors"), &weights).unwrap();
    compare(&base, &adapter, &shown);
    let old = mapping.bytes().to_vec();
    fs::copy(folder.join("wide/adapter_model.safetensors"), adapter.join("new")).unwrap();
    fs::rename(adapter.join("new"), adapter.join("adapter_model.safetensors")).unwrap();
    wait_until("the other adapter is shown", || fs::read(&file).unwrap() != old);
    compare(&base, &adapter, &shown);
    assert_same(mapping.bytes(), &old, "a file that is open keeps its adapter");
    // A copy in memory of the whole file follows too.
    set(&base.join("model-00001-of-00002.safetensors"), "cache", "decoded").unwrap();
    for _ in 0..3 {
        fs::read(&file).unwrap();
    }
    compare(&base, &adapter, &shown);
    fs::write(adapter.join("adapter_config.json"), &config).unwrap();
    compare(&base, &adapter, &shown);
    assert_eq!(set(&file, "pin", "1"), Err(Errno::PERM));
    fs::remove_file(adapter.join("adapter_config.json")).unwrap();
    wait_until("the adapter is gone", || fs::metadata(&shown).is_err());
    let error = fs::metadata(base.join(".as/merged/none")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    drop(mapping);
    mounted.unmount();
}

#[test]
fn an_adapter_is_found_in_its_tenant_alone_and_keeps_its_permissions() {
    let (place, folder) = with_made(&[]);
    place.import("other/secret", &[&folder.join("sixteen")], &[]);
    let mounted = place.mount(&[]);
    let base = mounted.path("t/base");
    let merged = base.join(".as/merged");
    for name in ["secret", "other:secret", "../other/secret", "base", "sixteen:none"] {
        let error = fs::metadata(merged.join(name)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{name}");
    }
    // A directory of a collection, also of the base itself, whose adapter is not shown beside the sum.
    fs::create_dir_all(base.join("adapters/one")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder.join("sixteen").join(file), base.join("adapters/one").join(file)).unwrap();
    }
    let shown = merged.join("base:adapters:one");
    compare(&folder.join("base"), &folder.join("sixteen"), &shown);
    assert_eq!(names_in(&shown.join("adapters/one")), Vec::<String>::new());
    assert_eq!(names_in(&merged.join("inner/adapters/one")).len(), 2);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = merged.join("sixteen/model-00001-of-00002.safetensors");
    assert_eq!((mode(&merged.join("sixteen")), mode(&file)), (0o555, 0o444));
    let adapter = mounted.path("t/sixteen");
    fs::set_permissions(adapter.join("adapter_model.safetensors"), PermissionsExt::from_mode(0o600)).unwrap();
    wait_until("the mode follows", || mode(&file) == 0o400);
    assert_eq!(mode(&merged.join("sixteen")), 0o500);
    assert!(names_in(&merged).contains(&"sixteen".to_owned()));
    fs::set_permissions(adapter.join("adapter_model.safetensors"), PermissionsExt::from_mode(0o644)).unwrap();
    fs::set_permissions(&adapter, PermissionsExt::from_mode(0o750)).unwrap();
    wait_until("the mode follows", || mode(&file) == 0o440);
    assert!(!names_in(&merged).contains(&"sixteen".to_owned()));
    mounted.unmount();
}

#[test]
fn the_kernel_knows_an_adapter_that_is_not_open_to_all_until_it_forgets_it() {
    let (place, _) = with_made(&[]);
    let mounted = place.mount(&[]);
    fs::set_permissions(mounted.path("t/sixteen"), PermissionsExt::from_mode(0o700)).unwrap();
    let open = fs::File::open(mounted.path("t/base/.as/merged/sixteen")).unwrap();
    // Numbers that the kernel does not know are free after 10 s.
    std::thread::sleep(std::time::Duration::from_secs(12));
    assert!(open.metadata().unwrap().is_dir());
    drop(open);
    mounted.unmount();
}

#[test]
fn an_adapter_that_does_not_fit_shows_no_sum_and_says_why() {
    let place = Place::new();
    place.import("t/base", &[&golden().join("base-bf16")], &[]);
    let mounted = place.mount(&[]);
    let merged = mounted.path("t/base/.as/merged");
    let adapter = mounted.path("t/adapter");
    fs::create_dir(&adapter).unwrap();
    let script = r#"
import os, sys, json, numpy as np
from safetensors.numpy import save_file
folder, shapes, names = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
save_file({n: np.ones(s, "<f4") for n, s in zip(names, shapes)}, folder + "/adapter_model.safetensors")
os.chmod(folder + "/adapter_model.safetensors", 0o644)
json.dump({"peft_type": "LORA"}, open(folder + "/adapter_config.json", "w"))
"#;
    let prefix = "base_model.model.layers";
    for (shapes, names, reason) in [
        ("[[2, 24], [40, 2]]", [".0.q_proj.lora_A.weight", ".0.q_proj.lora_B.weight"], None),
        ("[[2, 24], [39, 2]]", [".0.q_proj.lora_A.weight", ".0.q_proj.lora_B.weight"], Some("shape")),
        ("[[2, 24], [40, 3]]", [".0.q_proj.lora_A.weight", ".0.q_proj.lora_B.weight"], Some("shape")),
        ("[[2, 24], [40, 2]]", [".0.q_proj.lora_A.weight", ".1.q_proj.lora_B.weight"], Some("one matrix")),
        (
            "[[2, 24], [40, 2]]",
            [".7.q_proj.lora_A.weight", ".7.q_proj.lora_B.weight"],
            Some("layers.7.q_proj"),
        ),
        ("[[40], [40]]", [".0.q_proj.bias", ".0.q_proj.weight"], Some("another shape")),
        ("[[2, 24], [40, 2]]", [".0.q_proj.lora_A.weight", ".0.q_proj.lora_X"], Some("lora_X")),
    ] {
        let names: Vec<String> = names.iter().map(|name| format!("{prefix}{name}")).collect();
        let names = format!("{names:?}");
        support::python_line(script, [adapter.as_os_str(), OsStr::new(shapes), OsStr::new(&names)]);
        let shown = merged.join("adapter");
        let read = fs::read(shown.join("model.safetensors"));
        match reason {
            None => {
                read.unwrap();
                assert_eq!(names_in(&merged), ["adapter"]);
            }
            Some(reason) => {
                assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP), "{names}");
                let why = get(&shown, "why");
                assert!(why.contains(reason), "{names}: {why}");
                assert!(names_in(&merged).is_empty(), "{names}");
            }
        }
    }
    mounted.unmount();
}
