//! Files that are copied in: their content is recognized, and it survives a killed daemon.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};

use support::{
    Fixture, Random, assert_same, container_of, minilm, npy_file, python_line, safetensors_file, script,
    tensors_of, text, wait_until,
};

#[test]
fn a_model_that_was_copied_in_survives_a_kill_whole() {
    let mut fixture = Fixture::new();
    let source = minilm().join("model.safetensors");
    fs::copy(&source, fixture.path("model.safetensors")).unwrap();
    fixture.crash();
    let bytes = fs::read(&source).unwrap();
    assert_same(&fixture.read("model.safetensors"), &bytes, "the container");
    for (name, data) in tensors_of(&bytes) {
        assert_same(&fixture.read(&name), &data, &name);
    }
    assert_eq!(fixture.data_files(), 1);
    fixture.remount();
    assert_same(&fixture.read("model.safetensors"), &bytes, "the container after a check");
}

#[test]
fn a_file_is_recognized_by_the_first_of_its_names_that_its_bytes_fit() {
    let mut fixture = Fixture::new();
    fs::write(fixture.path("weights"), b"no container").unwrap();
    for name in ["m.bin", "m.npy", "m.safetensors"] {
        fs::hard_link(fixture.path("weights"), fixture.path(name)).unwrap();
    }
    for (seed, name) in [(1, "m.safetensors"), (2, "weights"), (3, "m.bin"), (4, "m.npy")] {
        let bytes = container_of(&mut Random(seed), &[("a", 30_000), ("b", 9)]);
        fs::write(fixture.path(name), &bytes).unwrap();
        for _ in 0..2 {
            for (tensor, data) in tensors_of(&bytes) {
                assert_same(&fixture.read(&tensor), &data, &tensor);
            }
            assert_same(&fixture.read("weights"), &bytes, "the first name");
            assert_same(&fixture.read("m.safetensors"), &bytes, "another name");
            fixture.remount();
        }
    }
}

#[test]
fn a_model_directory_that_was_unpacked_survives_a_kill_whole() {
    let mut fixture = Fixture::new();
    symlink(minilm(), fixture.place.path("minilm")).unwrap();
    let archive = fixture.place.path("minilm.tar");
    script(&fixture.place.path(""), "tar chf minilm.tar minilm").ok();
    let unpack = format!("tar xf {}", archive.display());
    script(&fixture.path(""), &unpack).ok();
    fixture.crash();
    script(&fixture.path(""), &format!("tar df {}", archive.display())).ok();
    for (name, data) in tensors_of(&fs::read(minilm().join("model.safetensors")).unwrap()) {
        assert_same(&fixture.read(&format!("minilm/{name}")), &data, &name);
    }
    let names = fs::read_dir(fixture.path("minilm/1_Pooling")).unwrap().count();
    assert_eq!(names, fs::read_dir(minilm().join("1_Pooling")).unwrap().count());
}

#[test]
fn a_sharded_set_shows_the_tensors_of_all_its_shards() {
    use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
    let mut fixture = Fixture::new();
    let mut random = Random(3);
    let mut all = Vec::new();
    let mut map = serde_json::Map::new();
    for shard in 0..3 {
        let file = format!("model-{:05}-of-00003.safetensors", shard + 1);
        let data: Vec<(String, Vec<u8>)> =
            (0..4).map(|n| (format!("layers.{shard}.w{n}"), random.bytes(2 * 100 * (n + 57)))).collect();
        let views = data.iter().enumerate().map(|(n, (name, bytes))| {
            (name.clone(), TensorView::new(Dtype::BF16, vec![n + 57, 100], bytes).unwrap())
        });
        serialize_to_file(views, None, &fixture.place.path(&file)).unwrap();
        map.extend(data.iter().map(|(name, _)| (name.clone(), file.clone().into())));
        all.extend(data);
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
    fixture.place.write("model.safetensors.index.json", &index);
    script(&fixture.place.path(""), &format!("cp model* {}", fixture.path("").display())).ok();
    fixture.crash();
    for (name, data) in &all {
        assert_same(&fixture.read(name), data, name);
    }
    assert_eq!(text(&fixture.read("model.safetensors.index.json")), index);
    let folder = fixture.place.path("");
    script(&folder, &format!("for f in model*; do cmp $f {}/$f; done", fixture.path("").display())).ok();
}

#[test]
fn an_array_that_numpy_saved_shares_its_bytes_with_its_tensor() {
    let mut fixture = Fixture::new();
    let lines = "import sys, numpy as np
d = sys.argv[1]
np.save(d + '/x.npy', np.arange(300000, dtype='<f4').reshape(300, 1000))
m = np.memmap(d + '/.tensors/x', dtype='<f4', mode='r+', shape=(300, 1000))
m[7] = -1
m[299, 999] = 42
m.flush()
del m
a = np.load(d + '/x.npy')
assert (a[7] == -1).all() and a[299, 999] == 42 and a[8, 0] == 8000, a
b = np.load(d + '/x.npy', mmap_mode='r+')
b[0] = 5
b.flush()
del b
assert (np.fromfile(d + '/.tensors/x', dtype='<f4')[:1000] == 5).all()
";
    python_line(lines, [fixture.path("")]);
    let checks = "import sys, numpy as np
a = np.load(sys.argv[1] + '/x.npy')
w = np.arange(300000, dtype='<f4').reshape(300, 1000)
w[7] = -1; w[299, 999] = 42; w[0] = 5
assert (a == w).all()
assert (np.fromfile(sys.argv[1] + '/.tensors/x', dtype='<f4').reshape(300, 1000) == w).all()
";
    fixture.crash();
    python_line(checks, [fixture.path("")]);
    fixture.remount();
    python_line(checks, [fixture.path("")]);
}

#[test]
fn a_file_is_recognized_when_it_is_renamed_to_its_final_name() {
    let mut fixture = Fixture::new();
    let mut random = Random(5);
    let bytes = container_of(&mut random, &[("w", 20_000), ("v", 5)]);
    // Temporary names of rsync and of hub downloaders, and a file small enough for a slot.
    for (folder, temporary, size) in
        [("a", ".model.safetensors.Xk3fQz", 0), ("b", "0a1b.incomplete", 0), ("c", "t", 1)]
    {
        let small = container_of(&mut random, &[("w", 30), ("v", 5)]);
        let bytes = if size == 0 { &bytes } else { &small };
        fs::create_dir(fixture.path(folder)).unwrap();
        let from = fixture.path(&format!("{folder}/{temporary}"));
        fs::write(&from, bytes).unwrap();
        assert!(!fixture.path(&format!("{folder}/w")).exists());
        fs::rename(&from, fixture.path(&format!("{folder}/model.safetensors"))).unwrap();
        wait_until("the tensors", || fixture.path(&format!("{folder}/w")).exists());
        let tensors = tensors_of(bytes);
        for (name, data) in &tensors {
            assert_same(&fixture.read(&format!("{folder}/{name}")), data, name);
        }
        fixture.crash();
        assert_same(&fixture.read(&format!("{folder}/model.safetensors")), bytes, folder);
        for (name, data) in &tensors {
            assert_same(&fixture.read(&format!("{folder}/{name}")), data, name);
        }
    }
}

#[test]
fn a_save_by_rename_replaces_a_file_and_keeps_open_readers_on_the_old_one() {
    let mut fixture = Fixture::new();
    let mut random = Random(6);
    for (round, size) in [100, 40_000, 17].into_iter().enumerate() {
        let old = random.bytes(size);
        fs::write(fixture.path("notes.txt"), &old).unwrap();
        let reader = fs::File::open(fixture.path("notes.txt")).unwrap();
        let new = random.bytes(size * 2 + round);
        fs::write(fixture.path(".notes.txt.swp"), &new).unwrap();
        fs::rename(fixture.path(".notes.txt.swp"), fixture.path("notes.txt")).unwrap();
        assert_same(&fixture.read("notes.txt"), &new, "the new file");
        let mut found = vec![0; old.len()];
        reader.read_exact_at(&mut found, 0).unwrap();
        assert_same(&found, &old, "the file that was open");
        drop(reader);
        fixture.crash();
        assert_same(&fixture.read("notes.txt"), &new, "the new file after a crash");
    }
    script(&fixture.path(""), "printf 'a\\nb\\n' > e.txt; printf ',s/b/longer/\\nw\\nq\\n' | ed -s e.txt")
        .ok();
    assert_eq!(text(&fixture.read("e.txt")), "a\nlonger\n");
}

#[test]
fn a_file_that_breaks_its_format_stays_plain_and_says_why() {
    let mut fixture = Fixture::new();
    let mut random = Random(7);
    let mut broken = container_of(&mut random, &[("w", 9000)]);
    broken.truncate(broken.len() - 1);
    let overlapping = safetensors_file(
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
        &[0; 12],
    );
    for (name, bytes) in [
        ("short.safetensors", b"abc".to_vec()),
        ("broken.safetensors", broken),
        ("overlapping.safetensors", overlapping),
        ("y.npy", random.bytes(50_000)),
    ] {
        fs::write(fixture.path(name), &bytes).unwrap();
        assert_same(&fixture.read(name), &bytes, name);
        assert!(fixture.attribute(name, "why").contains("plain"), "{name}");
    }
    assert!(!fixture.path("w").exists() && !fixture.path("y").exists() && !fixture.path("a").exists());
    fixture.remount();
    assert!(fixture.attribute("y.npy", "why").contains("plain"));
    fs::write(fixture.path("y.npy"), npy_file(&random.floats(9))).unwrap();
    assert_eq!(fixture.read("y").len(), 36);
    assert!(rustix::fs::getxattr(fixture.path("y.npy"), "user.tierfs.why", &mut [0u8; 64]).is_err());
}

#[test]
fn a_file_that_gets_the_name_of_a_container_by_a_rename_says_why_it_stays_plain() {
    let mut fixture = Fixture::new();
    let mut random = Random(8);
    let whole = container_of(&mut random, &[("w", 9000)]);
    let cases = [
        ("short.safetensors", b"abc".to_vec()),
        ("cut.safetensors", whole[..whole.len() - 1].to_vec()),
        ("page.safetensors", b"<!doctype html><p>Log in".to_vec()),
        ("y.npy", random.bytes(50_000)),
        ("m.gguf", random.bytes(5000)),
        ("z.npz", random.bytes(5000)),
        ("b.cgeb", random.bytes(5000)),
    ];
    fs::create_dir(fixture.path("written")).unwrap();
    fs::create_dir(fixture.path("renamed")).unwrap();
    for (name, bytes) in &cases {
        fs::write(fixture.path(&format!("written/{name}")), bytes).unwrap();
        fs::write(fixture.path("renamed/x.tmp"), bytes).unwrap();
        fs::rename(fixture.path("renamed/x.tmp"), fixture.path(&format!("renamed/{name}"))).unwrap();
    }
    for round in 0..2 {
        for (name, bytes) in &cases {
            let why = fixture.attribute(&format!("written/{name}"), "why");
            assert!(why.contains("kept as a plain file"), "{name}: {why}");
            let renamed = format!("renamed/{name}");
            assert_eq!(fixture.attribute(&renamed, "why"), why, "{renamed}, round {round}");
            assert_same(&fixture.read(&renamed), bytes, &renamed);
        }
        fixture.crash();
    }
    // Another name, and bytes that fit it.
    fs::rename(fixture.path("renamed/y.npy"), fixture.path("renamed/y.gguf")).unwrap();
    assert_eq!(fixture.attribute("renamed/y.gguf", "why"), fixture.attribute("renamed/m.gguf", "why"));
    fs::write(fixture.path("renamed/cut.safetensors"), &whole).unwrap();
    assert_eq!(
        support::try_get(&fixture.path("renamed/cut.safetensors"), "why"),
        Err(rustix::io::Errno::NODATA)
    );
    fs::write(fixture.path("renamed/none"), b"").unwrap();
    fs::rename(fixture.path("renamed/none"), fixture.path("renamed/none.npy")).unwrap();
    assert_eq!(support::try_get(&fixture.path("renamed/none.npy"), "why"), Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_tensor_of_a_type_that_is_not_shown_hides_no_others_and_is_written_and_cast_around() {
    let mut fixture = Fixture::new();
    let mut random = Random(5);
    let header = serde_json::json!({
        "odd": { "dtype": "F8_E4M3FNUZ", "shape": [7], "data_offsets": [0, 7] },
        "w": { "dtype": "F32", "shape": [3000], "data_offsets": [7, 12007] },
        "complex": { "dtype": "C64", "shape": [2, 2], "data_offsets": [12007, 12039] },
        "six": { "dtype": "F6_E2M3", "shape": [4], "data_offsets": [12039, 12042] },
        "none": { "dtype": "F6_E3M2", "shape": [0], "data_offsets": [12042, 12042] },
    });
    let mut bytes = safetensors_file(&header.to_string(), &random.bytes(12042));
    let start = bytes.len() - 12042;
    let path = fixture.path("m.safetensors");
    fs::write(&path, &bytes).unwrap();
    let check = |fixture: &Fixture, bytes: &[u8]| {
        assert_same(&fixture.read("m.safetensors"), bytes, "the container");
        assert_eq!(support::names(&fixture.path(".tensors")), ["complex", "w"]);
        assert_same(&fixture.read(".tensors/w"), &bytes[start + 7..start + 12007], "w");
        assert_eq!(fixture.attribute(".tensors/complex", "dtype"), "c64");
        let why = fixture.attribute("m.safetensors", "why");
        assert!(why.contains("odd: element type F8_E4M3FNUZ") && why.contains("six"), "{why}");
        let cast = fixture.read(".as/f16/m.safetensors");
        let cast = safetensors::SafeTensors::deserialize(&cast).unwrap();
        assert_eq!(cast.len(), 5);
        assert_eq!(cast.tensor("w").unwrap().data().len(), 6000);
        let source = safetensors::SafeTensors::deserialize(bytes).unwrap();
        for name in ["odd", "complex", "six", "none"] {
            let (found, wanted) = (cast.tensor(name).unwrap(), source.tensor(name).unwrap());
            assert_eq!((found.dtype(), found.shape()), (wanted.dtype(), wanted.shape()));
            assert_same(found.data(), wanted.data(), name);
        }
    };
    check(&fixture, &bytes);
    let open = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (at, len) in [(start + 2, 3), (start + 3000, 500), (start + 12038, 4), (start + 5, 4)] {
        let data = random.bytes(len);
        open.write_all_at(&data, at as u64).unwrap();
        bytes[at..at + len].copy_from_slice(&data);
    }
    drop(open);
    check(&fixture, &bytes);
    fixture.crash();
    check(&fixture, &bytes);
    let tensor = fs::OpenOptions::new().write(true).open(fixture.path(".tensors/w")).unwrap();
    tensor.write_all_at(&[1; 9], 40).unwrap();
    bytes[start + 47..start + 56].fill(1);
    drop(tensor);
    fixture.remount();
    check(&fixture, &bytes);
    fixture.check();
}
