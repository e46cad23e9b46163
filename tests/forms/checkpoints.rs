//! The form `safetensors` of PyTorch directories: files by the names that loaders ask for, without a pickle.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use support::{Place, assert_same, names, repository};

fn golden(name: &str) -> PathBuf {
    repository("tests/golden/models").join(name)
}

/// The tensors that PyTorch loads from a file, by name: the bytes in hexadecimal digits.
fn loaded(name: &str) -> BTreeMap<String, String> {
    let mut all: serde_json::Value =
        serde_json::from_slice(&fs::read(golden("models.json")).unwrap()).unwrap();
    let tensors: Vec<(String, String, String, String)> = serde_json::from_value(all[name].take()).unwrap();
    tensors.into_iter().map(|(name, _, _, bytes)| (name, bytes)).collect()
}

/// The tensors of a safetensors file by name, which says that they are of PyTorch.
#[track_caller]
fn read(path: &Path) -> BTreeMap<String, String> {
    let bytes = fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(header.metadata().as_ref().and_then(|all| all.get("format")).map(String::as_str), Some("pt"));
    let hex = |data: &[u8]| data.iter().map(|byte| format!("{byte:02x}")).collect();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensors().into_iter().map(|(name, tensor)| (name, hex(tensor.data()))).collect()
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A pickle that writes a file where a program loads it.
fn pickle_that_writes(marker: &Path) -> Vec<u8> {
    let command = format!("touch {}", marker.display());
    [&b"\x80\x02cos\nsystem\nX"[..], &(command.len() as u32).to_le_bytes(), command.as_bytes(), b"\x85R."]
        .concat()
}

#[test]
fn a_directory_with_a_checkpoint_has_the_files_that_loaders_ask_for() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    let marker = place.path("was-run");
    for (name, bytes) in [
        ("pytorch_model.bin", fs::read(golden("strided.pt")).unwrap()),
        ("tied.bin", fs::read(golden("tied.bin")).unwrap()),
        ("tied.pt", fs::read(golden("only.pt")).unwrap()),
        ("config.json", b"{\"model_type\": \"demo\"}".to_vec()),
        ("vocab.txt", b"one\ntwo\n".to_vec()),
        ("training_args.bin", pickle_that_writes(&marker)),
        ("1_Pooling/config.json", b"{}".to_vec()),
    ] {
        fs::write(folder.join(name), bytes).unwrap();
    }
    place.import("t/imported", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let copied = mounted.path("t/copied");
    support::script(Path::new("/"), &format!("cp -r {} {}", folder.display(), copied.display())).ok();
    for collection in ["imported", "copied"] {
        let form = mounted.path(format!("t/{collection}/.as/safetensors"));
        let mut listed = names(&form);
        listed.retain(|name| !name.starts_with('.'));
        let wanted = [
            "1_Pooling",
            "_all.safetensors",
            "config.json",
            "model.safetensors",
            "tied.pt.safetensors",
            "tied.safetensors",
            "vocab.txt",
        ];
        assert_eq!(listed, wanted, "{collection}");
        assert_eq!(read(&form.join("model.safetensors")), loaded("strided.pt"));
        assert_eq!(read(&form.join("tied.safetensors")), loaded("tied.bin"));
        assert_eq!(read(&form.join("tied.pt.safetensors")), loaded("only.pt"));
        for name in ["config.json", "vocab.txt", "1_Pooling/config.json"] {
            assert_same(&fs::read(form.join(name)).unwrap(), &fs::read(folder.join(name)).unwrap(), name);
        }
        for name in [
            "pytorch_model.bin",
            "training_args.bin",
            "training_args.safetensors",
            "pytorch_model.safetensors",
        ] {
            assert!(!form.join(name).exists(), "{name}");
        }
        // The tensors are files too, as in every form.
        assert!(names(&form.join(".tensors")).contains(&"cube.safetensors".to_owned()));
        assert!(form.join("cube.safetensors").exists());
        let whole = read(&form.join("_all.safetensors"));
        assert!(loaded("strided.pt").iter().all(|(name, bytes)| whole.get(name) == Some(bytes)));
        // Attributes and sizes are there before anything is read.
        let size = fs::metadata(form.join("model.safetensors")).unwrap().len();
        assert_eq!(size, fs::read(form.join("model.safetensors")).unwrap().len() as u64);
    }
    assert!(!marker.exists());
    mounted.unmount();
}

#[test]
fn the_index_of_checkpoints_names_their_safetensors_files() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    let shards =
        [("pytorch_model-00001-of-00002.bin", "state.pt"), ("pytorch_model-00002-of-00002.bin", "tied.bin")];
    let mut map = serde_json::Map::new();
    for (shard, from) in shards {
        fs::copy(golden(from), folder.join(shard)).unwrap();
        map.extend(loaded(from).into_keys().map(|tensor| (tensor, shard.into())));
    }
    let index = serde_json::json!({"metadata": {"total_size": 4321, "more": [1]}, "weight_map": map});
    fs::write(folder.join("pytorch_model.bin.index.json"), index.to_string()).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
    place.import("t/m", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let form = mounted.path("t/m/.as/safetensors");
    let mut listed = names(&form);
    listed.retain(|name| !name.starts_with('.'));
    assert_eq!(
        listed,
        [
            "_all.safetensors",
            "config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ]
    );
    let shown = json(&form.join("model.safetensors.index.json"));
    assert_eq!(shown["metadata"]["total_size"], 4321);
    let shown = shown["weight_map"].as_object().unwrap().clone();
    assert_eq!(shown.len(), map.len());
    for (tensor, shard) in &shown {
        assert!(read(&form.join(shard.as_str().unwrap())).contains_key(tensor), "{tensor}");
        let own = map[tensor].as_str().unwrap();
        assert_eq!(shard.as_str().unwrap(), own.replace("pytorch_", "").replace(".bin", ".safetensors"));
    }
    // A later write to the index is shown.
    let index = serde_json::json!({"weight_map": {"a": "pytorch_model-00002-of-00002.bin"}});
    fs::write(mounted.path("t/m/pytorch_model.bin.index.json"), index.to_string()).unwrap();
    let shown = json(&form.join("model.safetensors.index.json"));
    assert_eq!(shown["weight_map"], serde_json::json!({"a": "model-00002-of-00002.safetensors"}));
    mounted.unmount();
}

#[test]
fn a_file_by_the_name_that_loaders_ask_for_comes_first() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    fs::copy(golden("state.pt"), folder.join("pytorch_model.bin")).unwrap();
    let own = support::safetensors_file(&support::header_of(&[("w", 4)]), &[3; 16]);
    fs::write(folder.join("model.safetensors"), &own).unwrap();
    place.import("t/m", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let form = mounted.path("t/m/.as/safetensors");
    assert_same(&fs::read(form.join("model.safetensors")).unwrap(), &own, "the file itself");
    assert_eq!(read(&form.join("pytorch_model.bin.safetensors")), loaded("state.pt"));
    // A collection without checkpoints has tensors only.
    fs::remove_file(mounted.path("t/m/pytorch_model.bin")).unwrap();
    assert!(!form.join("model.safetensors").exists());
    assert!(names(&form).contains(&"w.safetensors".to_owned()));
    mounted.unmount();
}

#[test]
fn a_pickle_that_runs_a_command_runs_nothing() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    let marker = place.path("was-run");
    fs::write(folder.join("pytorch_model.bin"), pickle_that_writes(&marker)).unwrap();
    fs::copy(golden("tied.bin"), folder.join("other.bin")).unwrap();
    place.import("t/m", &[&folder], &[]);
    let mounted = place.mount(&[]);
    let form = mounted.path("t/m/.as/safetensors");
    assert!(!form.join("model.safetensors").exists() && !form.join("pytorch_model.bin").exists());
    assert_eq!(read(&form.join("other.safetensors")), loaded("tied.bin"));
    assert!(!marker.exists());
    mounted.unmount();
}

#[test]
fn links_to_checkpoints_lead_to_the_names_that_the_form_shows() {
    let place = Place::new();
    let folder = place.path("hub/models--a--b");
    let (blobs, snapshot) = (folder.join("blobs"), folder.join("snapshots/abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let link = |name: &str, digest: char, bytes: &[u8]| {
        let blob = digest.to_string().repeat(40);
        fs::write(blobs.join(&blob), bytes).unwrap();
        std::os::unix::fs::symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
    };
    let index = r#"{"metadata":{"total_size":9},"weight_map":{"w":"pytorch_model.bin"}}"#;
    link("config.json", 'c', b"{}");
    link("pytorch_model.bin", 'e', &fs::read(golden("strided.pt")).unwrap());
    link("pytorch_model.bin.index.json", 'd', index.as_bytes());
    let marker = place.path("was-run");
    link("training_args.bin", 'f', &pickle_that_writes(&marker));
    fs::write(place.path("in"), b"").unwrap();
    place.import("t/c", &[&place.path("in")], &[]);
    let mounted = place.mount(&[]);
    let own = mounted.path("t/c");
    support::script(Path::new("/"), &format!("cp -a {} {}", place.path("hub").display(), own.display())).ok();
    // A link to a link, and one that leads nowhere.
    std::os::unix::fs::symlink("hub/models--a--b/snapshots/abc/pytorch_model.bin", own.join("other.bin"))
        .unwrap();
    std::os::unix::fs::symlink("nothing", own.join("broken.txt")).unwrap();
    // A listing resolves all links, so a long path is not followed.
    let around = format!("{}hub/models--a--b/snapshots/abc/pytorch_model.bin", "hub/../".repeat(40));
    std::os::unix::fs::symlink(around, own.join("around.bin")).unwrap();
    let form = mounted.path("t/c/.as/safetensors");
    let shown = form.join("hub/models--a--b/snapshots/abc");
    assert_eq!(names(&shown), ["config.json", "model.safetensors", "model.safetensors.index.json"]);
    assert_eq!(read(&shown.join("model.safetensors")), loaded("strided.pt"));
    let target = fs::read_link(shown.join("model.safetensors")).unwrap();
    assert_eq!(target, Path::new(&format!("../../blobs/{}.safetensors", "e".repeat(40))));
    let length = fs::symlink_metadata(shown.join("model.safetensors")).unwrap().len();
    assert_eq!(length as usize, target.as_os_str().len());
    assert_eq!(json(&shown.join("model.safetensors.index.json"))["weight_map"]["w"], "model.safetensors");
    assert_eq!(fs::read(shown.join("config.json")).unwrap(), b"{}");
    assert_eq!(read(&form.join("other.safetensors")), loaded("strided.pt"));
    assert!(fs::symlink_metadata(form.join("broken.txt")).is_ok());
    for hidden in ["pytorch_model.bin", "training_args.bin", "training_args.safetensors"] {
        assert!(fs::symlink_metadata(shown.join(hidden)).is_err(), "{hidden}");
    }
    for hidden in ["other.bin", "around.bin", "around.safetensors"] {
        assert!(fs::symlink_metadata(form.join(hidden)).is_err(), "{hidden}");
    }
    mounted.unmount();
}
