//! Adapters that others made on purpose or by mistake: the layout of square weights, ambiguous names, permissions, links.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use support::{Mounted, Place, get, python_line, safetensors_file, wait_until};

use crate::merged::{compare, names_in, with_made};

/// Makes a base of `{file: {tensor: shape}}` and an adapter of `{module: [inputs, outputs]}`, or checks a file against both.
const SCRIPT: &str = r#"
import json, os, sys, numpy as np
from safetensors.numpy import load_file, save_file
what, base, adapter, *more = sys.argv[1:]
if what == "make":
    files, config, modules, flag = map(json.loads, more)
    rng = np.random.default_rng(3)
    normal = lambda shape: rng.standard_normal(shape).astype("<f4")
    for name, tensors in files.items():
        save_file({n: normal(s) for n, s in tensors.items()}, f"{base}/{name}.safetensors")
        os.chmod(f"{base}/{name}.safetensors", 0o644)
    json.dump(config, open(base + "/config.json", "w"))
    made = {}
    for module, (inputs, outputs) in modules.items():
        made[f"base_model.model.{module}.lora_A.weight"] = normal((2, inputs))
        made[f"base_model.model.{module}.lora_B.weight"] = normal((outputs, 2))
    save_file(made, adapter + "/adapter_model.safetensors")
    os.chmod(adapter + "/adapter_model.safetensors", 0o644)
    json.dump({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "fan_in_fan_out": flag}, open(adapter + "/adapter_config.json", "w"))
else:
    shown, is_transposed = more[0], json.loads(more[1])
    stored, changed, parts = load_file(base), load_file(shown), load_file(adapter + "/adapter_model.safetensors")
    for module, transposed in is_transposed.items():
        a, b = (parts[f"base_model.model.{module}.lora_{x}.weight"] for x in "AB")
        product = 2 * (b @ a).T if transposed else 2 * (b @ a)
        wanted = stored[module + ".weight"] + product
        if not np.allclose(changed[module + ".weight"], wanted, atol=1e-5):
            sys.exit(f"{module}: another sum")
"#;

struct Model<'a> {
    files: &'a str,
    config: &'a str,
    modules: &'a str,
    flag: bool,
}

impl Model<'_> {
    fn make(&self, base: &Path, adapter: &Path) {
        let flag = self.flag.to_string();
        let texts = [self.files, self.config, self.modules, &flag];
        let begin = ["make".as_ref(), base.as_os_str(), adapter.as_os_str()];
        python_line(SCRIPT, begin.into_iter().chain(texts.map(OsStr::new)));
    }
}

fn mounted_with(place: &Place, names: &[&str]) -> Mounted {
    let mounted = place.mount(&["--create"]);
    fs::create_dir(mounted.path("t")).unwrap();
    names.iter().for_each(|name| fs::create_dir(mounted.path("t").join(name)).unwrap());
    mounted
}

#[test]
fn square_weights_lie_as_the_modules_of_their_model_say() {
    let gpt2 = r#"{"model_type": "gpt2"}"#;
    let both = r#"{"model_type": "vision-encoder-decoder", "decoder": {"model_type": "gpt2"}}"#;
    let towers = r#"{"model": {"enc.query.weight": [8, 8], "enc.query.bias": [8], "enc.dense.weight": [16, 8], "enc.dense.bias": [16],
        "dec.c_attn.weight": [8, 24], "dec.c_attn.bias": [24]}}"#;
    let cases = [
        // A module that is not square tells about the one that is.
        (
            r#"{"model": {"q.weight": [16, 8], "k.weight": [8, 8], "k.bias": [8]}}"#,
            "{}",
            r#"{"q": [8, 16], "k": [8, 8]}"#,
            true,
            Some(r#"{"q": false, "k": false}"#),
        ),
        // Without a bias it is no Conv1D.
        (r#"{"model": {"o.weight": [8, 8]}}"#, "{}", r#"{"o": [8, 8]}"#, true, Some(r#"{"o": false}"#)),
        // Another module of the same name, in another shard.
        (
            r#"{"one": {"attn.c_proj.weight": [8, 8], "attn.c_proj.bias": [8]}, "two": {"mlp.c_proj.weight": [32, 8], "mlp.c_proj.bias": [8]}}"#,
            "{}",
            r#"{"attn.c_proj": [8, 8]}"#,
            false,
            Some(r#"{"attn.c_proj": true}"#),
        ),
        (
            r#"{"model": {"attn.c_proj.weight": [8, 8], "attn.c_proj.bias": [8]}}"#,
            gpt2,
            r#"{"attn.c_proj": [8, 8]}"#,
            false,
            Some(r#"{"attn.c_proj": true}"#),
        ),
        (
            towers,
            both,
            r#"{"enc.query": [8, 8], "dec.c_attn": [8, 24]}"#,
            true,
            Some(r#"{"enc.query": false, "dec.c_attn": true}"#),
        ),
        (towers, r#"{"model_type": "made"}"#, r#"{"enc.query": [8, 8], "dec.c_attn": [8, 24]}"#, true, None),
    ];
    let place = Place::new();
    let mounted = mounted_with(&place, &["base", "adapter"]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/adapter"));
    for (files, config, modules, flag, transposed) in cases {
        for file in names_in(&base) {
            fs::remove_file(base.join(file)).unwrap();
        }
        Model { files, config, modules, flag }.make(&base, &adapter);
        let first = if files.contains("\"one\"") { "one.safetensors" } else { "model.safetensors" };
        let shown = base.join(".as/merged/adapter").join(first);
        let Some(transposed) = transposed else {
            assert_eq!(fs::read(&shown).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP), "{modules}");
            let why = get(&shown, "why");
            assert!(why.contains("enc.query.weight: a square weight"), "{why}");
            continue;
        };
        let stored = base.join(first);
        let paths = [stored.as_os_str(), adapter.as_os_str(), shown.as_os_str()];
        python_line(SCRIPT, [OsStr::new("check")].into_iter().chain(paths).chain([OsStr::new(transposed)]));
    }
    mounted.unmount();
}

#[test]
fn an_adapter_whose_names_fit_two_towers_is_refused_in_every_file() {
    let place = Place::new();
    let mounted = mounted_with(&place, &["base", "adapter"]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/adapter"));
    let files = r#"{"one": {"text.layers.0.q.weight": [4, 8]}, "two": {"vision.layers.0.q.weight": [4, 8], "x": [3]}}"#;
    let model = Model { files, config: "{}", modules: r#"{"layers.0.q": [8, 4]}"#, flag: false };
    model.make(&base, &adapter);
    let merged = base.join(".as/merged");
    for file in ["one.safetensors", "two.safetensors"] {
        let shown = merged.join("adapter").join(file);
        assert_eq!(fs::read(&shown).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP), "{file}");
        let why = get(&shown, "why");
        assert!(why.contains("\"text.\"") && why.contains("\"vision.\""), "{why}");
    }
    assert!(names_in(&merged).is_empty());
    // With one of them the adapter fits.
    fs::remove_file(base.join("two.safetensors")).unwrap();
    fs::read(merged.join("adapter/one.safetensors")).unwrap();
    assert_eq!(names_in(&merged), ["adapter"]);
    mounted.unmount();
}

#[test]
fn a_class_reads_a_sum_only_if_all_of_its_users_may_read_base_and_adapter() {
    let (place, _) = with_made(&[]);
    let mounted = place.mount(&[]);
    let weights = mounted.path("t/sixteen/adapter_model.safetensors");
    let shown = mounted.path("t/base/.as/merged/sixteen/model-00001-of-00002.safetensors");
    // Users of the adapter's group, or its owner, may not read it; they are among the others of the base.
    for (owner, mode, wanted) in
        [(0, 0o644, 0o444), (1234, 0o604, 0), (1234, 0o044, 0o400), (1234, 0o644, 0o444), (1234, 0o640, 0)]
    {
        chown(&weights, Some(owner), Some(owner)).unwrap();
        fs::set_permissions(&weights, PermissionsExt::from_mode(mode)).unwrap();
        let found = || fs::metadata(&shown).unwrap().mode() & 0o777;
        wait_until("the mode follows", || found() == wanted);
    }
    mounted.unmount();
}

#[test]
fn an_adapter_below_a_closed_directory_is_found_by_those_who_may_enter_it() {
    let (place, folder) = with_made(&[]);
    let mounted = place.mount(&["--allow-other"]);
    let base = mounted.path("t/base");
    fs::create_dir_all(base.join("private/one")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder.join("sixteen").join(file), base.join("private/one").join(file)).unwrap();
    }
    let shown = base.join(".as/merged/base:private:one");
    chown(base.join("private"), Some(0), Some(2000)).unwrap();
    fs::set_permissions(base.join("private"), PermissionsExt::from_mode(0o750)).unwrap();
    fs::metadata(&shown).unwrap();
    for (by, is_found) in [
        ("1234 1234 0", false),
        ("1234 2000 0", true),
        ("1234 1234 2000", true),
        ("0 0 0", true),
        ("1234 1234 0", false),
    ] {
        let [user, group, more] = by.split(' ').collect::<Vec<_>>()[..] else { panic!("three numbers") };
        let more = if more == "0" { "--clear-groups".to_owned() } else { format!("--groups={more}") };
        let ids = [format!("--reuid={user}"), format!("--regid={group}"), more];
        let status = Command::new("setpriv").args(ids).arg("stat").arg(&shown).output().unwrap().status;
        assert_eq!(status.success(), is_found, "{by}");
    }
    fs::set_permissions(base.join("private"), PermissionsExt::from_mode(0o755)).unwrap();
    let status = Command::new("setpriv")
        .args(["--reuid=1234", "--clear-groups", "stat"])
        .arg(&shown)
        .output()
        .unwrap()
        .status;
    assert!(status.success());
    mounted.unmount();
}

#[test]
fn an_adapter_in_the_layout_of_a_hubs_cache_is_found_through_its_links() {
    let (place, folder) = with_made(&[]);
    let mounted = place.mount(&[]);
    let base = mounted.path("t/base");
    let hub = mounted.path("t/hub");
    for repository in [&hub, &base] {
        fs::create_dir_all(repository.join("blobs")).unwrap();
        fs::create_dir_all(repository.join("snapshots/rev")).unwrap();
        for (blob, name) in [("aa", "adapter_config.json"), ("bb", "adapter_model.safetensors")] {
            fs::copy(folder.join("sixteen").join(name), repository.join("blobs").join(blob)).unwrap();
            symlink(format!("../../blobs/{blob}"), repository.join("snapshots/rev").join(name)).unwrap();
        }
    }
    let merged = base.join(".as/merged");
    for name in ["hub:snapshots:rev", "base:snapshots:rev"] {
        wait_until("the blob is recognized", || names_in(&merged).contains(&name.to_owned()));
        compare(&folder.join("base"), &folder.join("sixteen"), &merged.join(name));
    }
    // The adapter is not shown beside its sum, neither are links to it.
    let own = merged.join("base:snapshots:rev");
    assert!(names_in(&own.join("blobs")).is_empty() && names_in(&own.join("snapshots/rev")).is_empty());
    let file = merged.join("hub:snapshots:rev/model-00001-of-00002.safetensors");
    fs::set_permissions(hub.join("blobs"), PermissionsExt::from_mode(0o700)).unwrap();
    wait_until("the mode follows", || fs::metadata(&file).unwrap().mode() & 0o777 == 0o400);
    fs::remove_file(hub.join("blobs/bb")).unwrap();
    wait_until("the adapter is gone", || fs::metadata(&file).is_err());
    mounted.unmount();
}

#[test]
fn a_configuration_with_many_patterns_is_refused_at_once() {
    let place = Place::new();
    let mounted = mounted_with(&place, &["base", "adapter"]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/adapter"));
    let modules: Vec<String> =
        (0..4000).map(|at| format!("\"layers.{:05}.q\": [1, 1]", 90_000 + at)).collect();
    let modules = format!("{{{}}}", modules.join(","));
    Model { files: r#"{"model": {"x": [3]}}"#, config: "{}", modules: &modules, flag: false }
        .make(&base, &adapter);
    let patterns: Vec<String> = (0..40_000).map(|at| format!("\"layers.{at:05}.q\":1")).collect();
    let json = format!("{{\"peft_type\": \"LORA\", \"alpha_pattern\": {{{}}}}}", patterns.join(","));
    fs::write(adapter.join("adapter_config.json"), json).unwrap();
    let file = base.join(".as/merged/adapter/model.safetensors");
    let begin = Instant::now();
    for _ in 0..40 {
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    }
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    let why = get(&file, "why");
    assert!(why.contains("40000 patterns for 4000 modules"), "{why}");
    mounted.unmount();
}

/// A safetensors file with tensors of one element.
fn of_one_element(names: impl Iterator<Item = String>) -> Vec<u8> {
    let entry = r#"{"dtype": "F32", "shape": [1], "data_offsets": "#;
    let entries =
        names.enumerate().map(|(at, name)| format!("\"{name}\": {entry}[{}, {}]}}", 4 * at, 4 * at + 4));
    let entries: Vec<String> = entries.collect();
    safetensors_file(&format!("{{{}}}", entries.join(",")), &vec![0; 4 * entries.len()])
}

#[test]
fn an_adapter_whose_names_fit_thousands_of_modules_is_refused_at_once() {
    const COUNT: usize = 16_384;
    let place = Place::new();
    let mounted = mounted_with(&place, &["base", "adapter"]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/adapter"));
    let names = |end: &'static str| (0..COUNT).map(move |at| format!("tower_of_a_model_{at}.{end}"));
    fs::write(base.join("one.safetensors"), of_one_element(names("lm_head.weight"))).unwrap();
    fs::write(base.join("two.safetensors"), of_one_element(names("other"))).unwrap();
    let own = ["base_model.model.lm_head.weight".to_owned()];
    fs::write(adapter.join("adapter_model.safetensors"), of_one_element(own.into_iter())).unwrap();
    fs::write(adapter.join("adapter_config.json"), r#"{"peft_type": "LORA"}"#).unwrap();
    let file = base.join(".as/merged/adapter/two.safetensors");
    wait_until("the containers are recognized", || get(&file, "why").contains("\"tower_of_a_model_0.\""));
    let begin = Instant::now();
    for _ in 0..10 {
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
    }
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    // The order of the ways does not depend on the order of a hash table.
    let why = get(&file, "why");
    assert!(why.contains("\"tower_of_a_model_0.\"") && why.contains("\"tower_of_a_model_1.\""), "{why}");
    mounted.unmount();
}

#[test]
fn a_link_to_an_adapter_has_a_path_of_few_parts() {
    let (place, folder) = with_made(&[]);
    let mounted = place.mount(&[]);
    let merged = mounted.path("t/base/.as/merged");
    let hub = mounted.path("t/hub");
    fs::create_dir_all(hub.join("real")).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(folder.join("sixteen").join(file), hub.join("real").join(file)).unwrap();
    }
    symlink("real", hub.join("now")).unwrap();
    for (name, path) in [
        ("few", "./".repeat(10)),
        ("many", "./".repeat(40)),
        ("more", "/".repeat(2000)),
        ("last", "../now/".into()),
    ] {
        fs::create_dir(hub.join(name)).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            let path = if name == "last" { path.clone() } else { format!("../real/{path}") };
            symlink(format!("{path}{file}"), hub.join(name).join(file)).unwrap();
        }
    }
    wait_until("the adapter is recognized", || names_in(&merged).contains(&"hub:real".to_owned()));
    let found: Vec<String> = names_in(&merged).into_iter().filter(|name| name.starts_with("hub:")).collect();
    assert_eq!(found, ["hub:few", "hub:last", "hub:real"]);
    mounted.unmount();
}

#[test]
fn the_reason_of_an_adapter_that_fits_no_directory_is_that_of_the_first() {
    const DIRECTORIES: usize = 8;
    let place = Place::new();
    let mounted = mounted_with(&place, &["base", "adapter"]);
    let (base, adapter) = (mounted.path("t/base"), mounted.path("t/adapter"));
    let names: Vec<String> = (0..DIRECTORIES).map(|at| format!("lm_{at}.weight")).collect();
    // Directories are walked from the last one.
    for (at, name) in names.iter().rev().enumerate() {
        let directory = base.join(format!("{at}"));
        fs::create_dir(&directory).unwrap();
        let name = name.clone();
        fs::write(directory.join("model.safetensors"), of_one_element([name].into_iter())).unwrap();
    }
    let own = names.iter().map(|name| format!("base_model.model.{name}"));
    fs::write(adapter.join("adapter_model.safetensors"), of_one_element(own)).unwrap();
    fs::write(adapter.join("adapter_config.json"), r#"{"peft_type": "LORA"}"#).unwrap();
    let merged = base.join(".as/merged/adapter");
    // The directory that is walked first has the first of the names, and lacks the second.
    wait_until("the containers are recognized", || {
        get(&merged, "why").contains("the base has no tensor \"lm_1.weight\"")
    });
    mounted.unmount();
}

#[test]
fn a_sum_stays_while_the_collection_of_its_adapter_is_closed_and_opened_again() {
    let (place, folder) = with_made(&[]);
    for number in 0..4 {
        place.import(&format!("t/other{number}"), &[&folder.join("inner")], &[]);
    }
    let path = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with("idle_memory_max"));
    let lines: Vec<&str> = ["idle_memory_max = 1"].into_iter().chain(lines).collect();
    fs::write(&path, lines.join("\n")).unwrap();
    let mounted = place.mount(&[]);
    let shown = mounted.path("t/base/.as/merged/wide/model-00002-of-00002.safetensors");
    let bytes = fs::metadata(mounted.path("t/base/model-00002-of-00002.safetensors")).unwrap().len();
    let end = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|threads| {
        for number in 0..4 {
            let other = mounted.path(format!("t/other{number}/adapter_config.json"));
            threads.spawn(move || {
                while Instant::now() < end {
                    fs::read(&other).unwrap();
                }
            });
        }
        let mut count = 0;
        while Instant::now() < end {
            let file = fs::File::open(&shown).unwrap_or_else(|error| panic!("open {count}: {error}"));
            assert_eq!(file.metadata().unwrap().len(), bytes, "open {count}");
            count += 1;
        }
    });
    compare(&folder.join("base"), &folder.join("wide"), shown.parent().unwrap());
    mounted.unmount();
}
