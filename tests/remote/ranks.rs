//! Ranks of tensor parallelism and single experts of a model on a remote and in a clone read as those of the store.

use std::fs;
use std::path::{Path, PathBuf};

use support::{Mounted, Place, Random, answer, files_below, safetensors_file, tierfs};

/// The tensors of a model with joined experts: the end of the name, the shape.
const TENSORS: [(&str, &[usize]); 5] = [
    ("self_attn.q_proj.weight", &[64, 32]),
    ("self_attn.k_proj.weight", &[16, 32]),
    ("self_attn.o_proj.weight", &[32, 64]),
    ("mlp.experts.gate_up_proj", &[4, 32, 48]),
    ("mlp.gate.weight", &[4, 32]),
];

fn model(place: &Place) -> PathBuf {
    let mut at = 0;
    let entry = |(name, shape): &(&str, &[usize])| {
        let begin = at;
        at += shape.iter().product::<usize>() * 4;
        format!(
            r#""model.layers.0.{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{at}]}}"#
        )
    };
    let entries: Vec<String> = TENSORS.iter().map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let config =
        r#"{"model_type":"qwen3_moe","num_attention_heads":8,"num_key_value_heads":2,"num_experts":4}"#;
    place.write("model/config.json", config);
    let file = place.write("model/model.safetensors", safetensors_file(&header, &Random(6).floats(at / 4)));
    file.parent().unwrap().to_owned()
}

/// The files of all ranks of four and of two, and of all experts, by their names below `.as`.
fn shown(mounted: &Mounted) -> Vec<(String, Vec<u8>)> {
    let forms = mounted.path("acme/m/.as");
    let ranks =
        (0..4).map(|rank| format!("tp/{rank}-of-4")).chain((0..2).map(|rank| format!("tp/{rank}-of-2")));
    let folders = ranks.flat_map(|rank| [format!("{rank}/.tensors"), rank]).chain(["experts".to_owned()]);
    let mut found = Vec::new();
    for folder in folders {
        for name in files_below(&forms.join(&folder)) {
            let bytes = fs::read(forms.join(&folder).join(&name)).unwrap();
            found.push((format!("{folder}/{}", name.display()), bytes));
        }
    }
    found
}

#[test]
fn ranks_and_experts_read_the_same_from_a_remote_and_in_a_clone_that_is_written_to() {
    let place = Place::new();
    place.import("acme/m", &[&model(&place)], &[]);
    let local = place.mount(&["--read-only"]);
    let wanted = shown(&local);
    assert!(wanted.len() > 40, "{}", wanted.len());
    local.unmount();
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    answer(tierfs().arg("push").arg(place.store()).args(["acme/m", &url, "--create"])).ok();

    let cache = place.path("cache");
    let options = ["--cache", cache.to_str().unwrap()];
    let remote = place.mount_store_by(&mut tierfs(), PathBuf::from(&url), "remote", &options);
    assert!(shown(&remote) == wanted, "the remote");
    remote.unmount();

    let other = Place::new();
    support::run([Path::new("init"), &other.store()]).ok();
    answer(tierfs().args(["clone", &url, "acme/m"]).arg(other.store())).ok();
    let cloned = other.mount(&[]);
    answer(tierfs().arg("evict").arg(cloned.path("acme/m"))).ok();
    assert!(shown(&cloned) == wanted, "the clone");
    // With heads of its own each rank has another part of the keys.
    let config = cloned.path("acme/m/config.json");
    let text = fs::read_to_string(&config).unwrap().replace("heads\":2", "heads\":8");
    fs::write(&config, text).unwrap();
    let part = cloned.path("acme/m/.as/tp/1-of-4/.tensors/model.layers.0.self_attn.k_proj.weight");
    let whole = fs::read(cloned.path("acme/m/.tensors/model.layers.0.self_attn.k_proj.weight")).unwrap();
    assert!(fs::read(part).unwrap() == whole[whole.len() / 4..whole.len() / 2]);
    cloned.unmount();
    support::fsck(&other.store());
}
