//! PyTorch checkpoints, NumPy archives and ONNX models: imported and copied in, with the tensors that their own
//! libraries load (`tests/golden/models.py`).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::{Fixture, Place, assert_same, get, python_line, repository, set, tierfs};

const FILES: [&str; 11] = [
    "state.pt",
    "old.pt",
    "training.ckpt",
    "types.pth",
    "only.pt",
    "tied.bin",
    "model.onnx",
    "transposed.pt",
    "overlapping.pt",
    "complex.pt",
    "strided.pt",
];

pub fn golden(name: &str) -> PathBuf {
    repository("tests/golden/models").join(name)
}

/// Name, element type, shape and bytes in hexadecimal digits of each tensor.
pub fn loaded(name: &str) -> Vec<(String, String, String, String)> {
    let mut all: serde_json::Value =
        serde_json::from_slice(&fs::read(golden("models.json")).unwrap()).unwrap();
    serde_json::from_value(all[name].take()).unwrap()
}

/// Makes a checkpoint as `torch.save` writes it, of tensors of f32 of one storage, which counts from 0. The tensors are a
/// Python expression: by name their offset, sizes and strides.
fn saved(path: &Path, count: usize, tensors: &str) {
    const SCRIPT: &str = r#"
import array, struct, sys, zipfile
path, count, tensors = sys.argv[1], int(sys.argv[2]), eval(sys.argv[3])
text = lambda value: b"X" + struct.pack("<I", len(value)) + value.encode()
number = lambda value: b"J" + struct.pack("<i", value)
numbers = lambda values: b"(" + b"".join(map(number, values)) + b"t"
storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(count) + b"tQ"
tensor = lambda offset, sizes, strides: (b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset)
    + numbers(sizes) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR")
entries = b"".join(text(name) + tensor(*found) for name, found in tensors.items())
with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
    archive.writestr("x/data.pkl", b"\x80\x02}(" + entries + b"u.")
    archive.writestr("x/version", "3")
    archive.writestr("x/data/0", array.array("f", range(count)).tobytes())
"#;
    python_line(SCRIPT, [path.as_os_str(), count.to_string().as_ref(), tensors.as_ref()]);
}

/// A checkpoint with a matrix of f32 and the transposed matrix of the same storage.
pub fn transposed(path: &Path, rows: usize, columns: usize) {
    let matrix = format!("(0, ({rows}, {columns}), ({columns}, 1))");
    let turned = format!("(0, ({columns}, {rows}), (1, {columns}))");
    saved(path, rows * columns, &format!("{{'matrix': {matrix}, 'turned': {turned}}}"));
}

/// A checkpoint with a tensor of f32, and windows of 4 x 2 of its elements: one from each.
pub fn windows(path: &Path, count: usize) {
    let windows = format!("{{f'w{{at:05}}': (at, (4, 2), (1, 4)) for at in range({count})}}");
    let all = count + 8;
    saved(path, all, &format!("{{'all': (0, ({all},), (1,)), **{windows}}}"));
}

/// The file in a directory of a mount, and the files of its tensors.
fn compare(folder: &Path, name: &str) {
    assert_same(&fs::read(folder.join(name)).unwrap(), &fs::read(golden(name)).unwrap(), name);
    for (tensor, dtype, shape, hex) in loaded(name) {
        let path = folder.join(".tensors").join(name).join(&tensor);
        let found: String = fs::read(&path).unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, hex, "{name}: {tensor}");
        let shown = (get(&path, "dtype"), get(&path, "shape"));
        assert_eq!(shown, (dtype, shape), "{name}: {tensor}");
    }
}

#[test]
fn checkpoints_and_models_show_the_tensors_that_their_libraries_load() {
    let mut fixture = Fixture::new();
    for name in FILES {
        fs::copy(golden(name), fixture.path(name)).unwrap();
        compare(&fixture.path(""), name);
    }
    fixture.crash();
    FILES.into_iter().for_each(|name| compare(&fixture.path(""), name));
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"]] {
        let place = Place::new();
        let sources = FILES.map(golden);
        place.import("demo/m", &sources.each_ref().map(PathBuf::as_path), options);
        let mounted = place.mount(&[]);
        FILES.into_iter().for_each(|name| compare(&mounted.path("demo/m"), name));
        mounted.unmount();
    }
}

#[test]
fn files_that_only_python_can_load_stay_plain_and_say_why() {
    let fixture = Fixture::new();
    for (name, words) in [("class.pt", "__main__.Net"), ("scripted.pt", "scripted model")] {
        fs::copy(golden(name), fixture.path(name)).unwrap();
        assert_same(&fixture.read(name), &fs::read(golden(name)).unwrap(), name);
        let why = fixture.attribute(name, "why");
        assert!(why.contains("kept as a plain file") && why.contains(words), "{why}");
    }
    fs::write(fixture.path("keras.h5"), b"\x89HDF\r\n\x1a\n and more").unwrap();
    assert!(fixture.attribute("keras.h5", "why").contains("an HDF5 file"));
    // Other programs write files that end with .bin too.
    fs::write(fixture.path("any.bin"), b"anything").unwrap();
    fs::OpenOptions::new().append(true).open(fixture.path("any.bin")).unwrap().write_at(b" more", 8).unwrap();
    assert_eq!(fixture.read("any.bin"), b"anything more");
    assert_eq!(support::try_get(&fixture.path("any.bin"), "why"), Err(rustix::io::Errno::NODATA));
    assert!(!fixture.path(".tensors/any.bin").exists());
}

#[test]
fn a_damaged_archive_is_not_imported_and_stays_plain_when_copied_in() {
    let fixture = Fixture::new();
    let place = Place::new();
    let bytes = fs::read(golden("state.pt")).unwrap();
    for (name, bytes) in
        [("cut.pt", &bytes[..bytes.len() / 2]), ("cut.onnx", &fs::read(golden("model.onnx")).unwrap()[..700])]
    {
        let path = place.write(name, bytes);
        support::answer(tierfs().arg("import").arg(place.path("store")).arg("t/c").arg(path))
            .failed(1, &["cut off"]);
        fs::write(fixture.path(name), bytes).unwrap();
        assert!(fixture.attribute(name, "why").contains("kept as a plain file"));
        assert_same(&fixture.read(name), bytes, name);
    }
}

#[test]
fn float_tensors_of_checkpoints_and_models_move_between_tiers() {
    for (name, tensor) in
        [("state.pt", "first.weight"), ("model.onnx", "w"), ("training.ckpt", "model/last.weight")]
    {
        let fixture = Fixture::new();
        fs::copy(golden(name), fixture.path(name)).unwrap();
        let before = fixture.read(name);
        let exact = fixture.read(tensor);
        set(&fixture.path(name), "lossy", "allow").unwrap();
        set(&fixture.path(tensor), "tier", "q8").unwrap();
        assert_eq!(fixture.attribute(tensor, "tier"), "q8");
        let (after, rounded) = (fixture.read(name), fixture.read(tensor));
        assert_ne!(rounded, exact);
        let at = before.windows(exact.len()).position(|window| window == exact).unwrap();
        assert_same(&after[at..at + exact.len()], &rounded, "the range of the tensor");
        assert_same(&after[..at], &before[..at], "before it");
        assert_same(&after[at + exact.len()..], &before[at + exact.len()..], "after it");
        fixture_write(&fixture, tensor, &exact);
        assert_same(&fixture.read(name), &before, "written again");
    }
}

fn fixture_write(fixture: &Fixture, name: &str, bytes: &[u8]) {
    fs::OpenOptions::new().write(true).open(fixture.path(name)).unwrap().write_all_at(bytes, 0).unwrap();
}

#[test]
fn an_import_in_a_tier_encodes_tensors_of_checkpoints() {
    let place = Place::new();
    place.import("demo/m", &[&golden("state.pt")], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    for (tensor, ..) in loaded("state.pt") {
        assert_eq!(get(&mounted.path("demo/m").join(&tensor), "tier"), "q8", "{tensor}");
    }
}

#[test]
fn a_sharded_checkpoint_shows_the_tensors_of_all_its_shards() {
    let fixture = Fixture::new();
    for (source, name) in
        [("state.pt", "pytorch_model-00001-of-00002.bin"), ("tied.bin", "pytorch_model-00002-of-00002.bin")]
    {
        fs::copy(golden(source), fixture.path(name)).unwrap();
    }
    fs::write(fixture.path("pytorch_model.bin.index.json"), b"{\"weight_map\": {}}").unwrap();
    for (tensor, _, _, hex) in loaded("state.pt").into_iter().chain(loaded("tied.bin").into_iter().take(1)) {
        assert_eq!(fixture.read(&tensor).len(), hex.len() / 2, "{tensor}");
    }
    assert_eq!(fixture.read("pytorch_model.bin.index.json"), b"{\"weight_map\": {}}");
}

/// The tensors beside an archive equal the arrays that NumPy loads from it.
const SAME: &str = "import sys, os, numpy as np
folder, count = sys.argv[1], 0
for name, array in np.load(folder + '/x.npz').items():
    path = f'{folder}/.tensors/x.npz/{name}'
    kind = os.getxattr(path, 'user.tierfs.dtype').decode()
    shape = os.getxattr(path, 'user.tierfs.shape').decode()
    assert shape == 'x'.join(map(str, array.shape)), shape
    assert open(path, 'rb').read() == array.tobytes(), name
    count += 1
assert count == 4
";

const MAKE: &str = "import sys, numpy as np
rng = np.random.default_rng(1)
save = np.savez_compressed if sys.argv[2] == 'packed' else np.savez
save(sys.argv[1], w=rng.standard_normal((300, 500)).astype('f4'), i=np.arange(7), s=np.float64(2), **{'a/b': np.ones((2, 0))})
";

#[test]
fn arrays_of_a_numpy_archive_are_tensors_and_stay_exact() {
    let fixture = Fixture::new();
    let source = fixture.place.path("x.npz");
    python_line(MAKE, [source.as_os_str(), "stored".as_ref()]);
    fs::copy(&source, fixture.path("x.npz")).unwrap();
    assert_same(&fixture.read("x.npz"), &fs::read(&source).unwrap(), "the archive");
    python_line(SAME, [fixture.path("")]);
    // NumPy compares the checksum of each array, which a move would not fit.
    set(&fixture.path("x.npz"), "lossy", "allow").unwrap();
    let refused = set(&fixture.path("w"), "tier", "q8").unwrap_err();
    assert_eq!(refused, rustix::io::Errno::PERM);
    assert!(fixture.attribute("w", "why").contains("checksum"));
    set(&fixture.path("x.npz"), "tier", "q8:all").ok();
    python_line(SAME, [fixture.path("")]);
    let place = Place::new();
    place.import("demo/m", &[&source], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    python_line(SAME, [mounted.path("demo/m")]);
    assert_eq!(get(&mounted.path("demo/m/w"), "tier"), "exact");
}

#[test]
fn a_quantized_safetensors_file_names_its_scheme_and_reads_as_it_is() {
    let fixture = Fixture::new();
    let header = serde_json::json!({
        "q.qweight": { "dtype": "I32", "shape": [16, 64], "data_offsets": [0, 4096] },
        "q.qzeros": { "dtype": "I32", "shape": [1, 8], "data_offsets": [4096, 4128] },
        "q.scales": { "dtype": "F16", "shape": [1, 64], "data_offsets": [4128, 4256] },
        "v.weight": { "dtype": "F8_E4M3", "shape": [4, 4], "data_offsets": [4256, 4272] },
        "v.weight_scale": { "dtype": "F32", "shape": [], "data_offsets": [4272, 4276] },
        "f.weight": { "dtype": "F4", "shape": [2, 4], "data_offsets": [4276, 4280] },
    });
    let data = support::Random(8).bytes(4280);
    let bytes = support::safetensors_file(&header.to_string(), &data);
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    assert_same(&fixture.read("m.safetensors"), &bytes, "the container");
    assert_same(&fixture.read("q.qweight"), &data[..4096], "the packed words");
    assert_same(&fixture.read("f.weight"), &data[4276..], "the packed floats");
    let wanted =
        "fp4: 1 weight; fp8 (f8_e4m3), a scale each: 1 weight; gptq, 4 bits, groups of 128: 1 weight";
    assert_eq!(fixture.attribute("m.safetensors", "scheme"), wanted);
    let printed = support::answer(tierfs().arg("stat").arg(fixture.path("m.safetensors"))).ok();
    assert!(printed.contains(wanted), "{printed}");
}

#[test]
fn a_compressed_numpy_archive_stays_plain_and_says_why() {
    let fixture = Fixture::new();
    let source = fixture.place.path("x.npz");
    python_line(MAKE, [source.as_os_str(), "packed".as_ref()]);
    fs::copy(&source, fixture.path("x.npz")).unwrap();
    assert_same(&fixture.read("x.npz"), &fs::read(&source).unwrap(), "the archive");
    assert!(fixture.attribute("x.npz", "why").contains("numpy.savez"));
}
