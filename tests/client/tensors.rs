//! Tensors by all their names, against the source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use half::{bf16, f16};
use support::{Mounted, Place, Random, assert_same, imported, npy_file, safetensors_file, set, tensors_of};
use tierfs_client::{Dtype, Element, ErrorKind, Tensor, tensors};

/// The bytes of a tensor by every way to read it.
#[track_caller]
pub fn read_all<T: Element>(tensor: &Tensor) -> Vec<u8> {
    let mut bytes = vec![0; tensor.nbytes()];
    tensor.read_bytes_into(&mut bytes).unwrap();
    let values: Vec<T> = tensor.read().unwrap();
    assert_eq!(size_of_val(values.as_slice()), bytes.len());
    let mut again = values.clone();
    tensor.read_into(&mut again).unwrap();
    // SAFETY: nobody writes to the file.
    let mapping = unsafe { tensor.map().unwrap() };
    assert_same(mapping.bytes(), &bytes, "the mapping");
    let of_values =
        |values: &[T]| values.iter().flat_map(|value| value.as_bytes().to_vec()).collect::<Vec<u8>>();
    assert_same(&of_values(&values), &bytes, "the values");
    assert_same(&of_values(&again), &bytes, "the values, read again");
    assert_same(&of_values(mapping.as_slice().unwrap()), &bytes, "the mapped values");
    assert_eq!((mapping.dtype(), mapping.shape()), (tensor.dtype(), tensor.shape()));
    bytes
}

#[test]
fn tensors_read_the_same_by_each_of_their_names() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    let folder = mounted.mountpoint.join("demo/model");
    let wanted = tensors_of(&fs::read(source.join("model.safetensors")).unwrap());
    let (of_directory, of_container) =
        (tensors(&folder).unwrap(), tensors(folder.join("model.safetensors")).unwrap());
    let of_npy = tensors(folder.join("x.npy")).unwrap();
    assert_eq!(of_directory.len(), wanted.len() + 1);
    assert_eq!(of_container.len(), wanted.len());
    assert!(of_npy.keys().eq(["x"]));
    for (name, bytes) in &wanted {
        let below = [".tensors", ".tensors/model.safetensors", "."].map(|at| folder.join(at).join(name));
        let opened = below.map(|path| Tensor::open(path).unwrap());
        for tensor in opened.iter().chain([&of_directory[name], &of_container[name]]) {
            assert_eq!(
                (tensor.dtype(), tensor.shape()),
                (Dtype::F32, [bytes.len() / 4].as_slice()),
                "{name}"
            );
            assert_eq!((tensor.size(), tensor.nbytes()), (bytes.len() / 4, bytes.len()));
            assert_eq!(tensor.tier().unwrap(), "exact");
            assert_eq!(tensor.error().unwrap().unwrap().max, 0.0);
            assert_same(&read_all::<f32>(tensor), bytes, name);
        }
    }
    let x = fs::read(source.join("x.npy")).unwrap();
    for path in ["x.npy", ".tensors/x", ".tensors/x.npy/x", "x"] {
        let tensor = Tensor::open(folder.join(path)).unwrap();
        assert_eq!(tensor.shape(), [9000], "{path}");
        assert_same(&read_all::<f32>(&tensor), &x[x.len() - 36_000..], path);
    }
    std::os::unix::fs::symlink("model.safetensors", folder.join("link")).unwrap();
    assert_eq!(tensors(folder.join("link")).unwrap(), of_container);
    mounted.unmount();
}

const TYPES: [(&str, &str, &[usize]); 12] = [
    ("F64", "f64", &[3, 5]),
    ("F32", "f32", &[]),
    ("F16", "f16", &[2, 4, 8]),
    ("BF16", "bf16", &[7]),
    ("I64", "i64", &[1, 1, 1, 1, 1, 1, 1, 9]),
    ("U32", "u32", &[4]),
    ("I16", "i16", &[6, 2]),
    ("I8", "i8", &[300]),
    ("U8", "u8", &[0, 3]),
    ("BOOL", "bool", &[5]),
    ("F8_E4M3", "f8_e4m3", &[16, 16]),
    ("C64", "c64", &[3]),
];

/// A safetensors file with a tensor of each type, named as its type, and the bytes of each.
fn of_all_types() -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut header, mut data, mut parts) = (serde_json::Map::new(), Vec::new(), Vec::new());
    let mut random = Random(3);
    for (named, name, shape) in TYPES {
        let size = Dtype::from_name(name).unwrap().bytes_of(shape.iter().product()).unwrap();
        let bytes = random.bytes(size);
        let offsets = [data.len(), data.len() + size];
        let entry = serde_json::json!({ "dtype": named, "shape": shape, "data_offsets": offsets });
        header.insert(name.to_owned(), entry);
        data.extend_from_slice(&bytes);
        parts.push(bytes);
    }
    (safetensors_file(&serde_json::Value::Object(header).to_string(), &data), parts)
}

#[track_caller]
fn read_as(tensor: &Tensor) -> Vec<u8> {
    match tensor.dtype() {
        Dtype::F64 => read_all::<f64>(tensor),
        Dtype::F32 => read_all::<f32>(tensor),
        Dtype::F16 => read_all::<f16>(tensor),
        Dtype::Bf16 => read_all::<bf16>(tensor),
        Dtype::I64 => read_all::<i64>(tensor),
        Dtype::U32 => read_all::<u32>(tensor),
        Dtype::I16 => read_all::<i16>(tensor),
        Dtype::I8 => read_all::<i8>(tensor),
        Dtype::C64 => read_all::<[f32; 2]>(tensor),
        _ => read_all::<u8>(tensor),
    }
}

#[test]
fn elements_of_every_type_are_read_and_mapped() {
    let place = Place::new();
    let (file, parts) = of_all_types();
    let source = place.write("all.safetensors", file);
    place.import("demo/m", &[&source], &[]);
    let mounted = place.mount(&["--read-only"]);
    for ((_, name, shape), bytes) in TYPES.iter().zip(&parts) {
        let tensor = Tensor::open(mounted.mountpoint.join("demo/m/.tensors").join(name)).unwrap();
        assert_eq!((tensor.dtype().name(), tensor.shape()), (*name, *shape));
        assert_same(&read_as(&tensor), bytes, name);
        let is_f64 = tensor.dtype() == Dtype::F64;
        assert_eq!(tensor.read::<f64>().is_ok(), is_f64);
        assert!(is_f64 || tensor.read::<f64>().unwrap_err().kind() == ErrorKind::WrongType);
        assert!(is_f64 || tensor.read_into::<f64>(&mut []).unwrap_err().kind() == ErrorKind::WrongType);
        let mut long = vec![0; bytes.len() + 1];
        assert_eq!(tensor.read_bytes_into(&mut long).unwrap_err().kind(), ErrorKind::WrongLength);
    }
    mounted.unmount();
}

/// A tensor of a form, with its type and values as f32.
fn in_form(mounted: &Mounted, path: &str) -> (Dtype, Vec<f32>) {
    let tensor = Tensor::open(mounted.mountpoint.join("demo/m").join(path)).unwrap();
    let values = match tensor.dtype() {
        Dtype::F32 => tensor.read().unwrap(),
        Dtype::F16 => tensor.read::<f16>().unwrap().into_iter().map(f16::to_f32).collect(),
        Dtype::Bf16 => tensor.read::<bf16>().unwrap().into_iter().map(bf16::to_f32).collect(),
        other => panic!("{path}: {other}"),
    };
    read_as(&tensor);
    (tensor.dtype(), values)
}

#[test]
fn tensors_of_forms_have_the_type_and_shape_that_they_have_there() {
    let place = Place::new();
    let values: Vec<f32> = (0..65_536).map(|number| (number as f32).sin()).collect();
    let halves: Vec<u8> = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    let header = r#"{"w":{"dtype":"BF16","shape":[256,256],"data_offsets":[0,131072]},"n":{"dtype":"I8","shape":[3],"data_offsets":[131072,131075]}}"#;
    let source =
        place.write("model.safetensors", safetensors_file(header, &[&halves[..], &[1, 2, 3]].concat()));
    let floats: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let array = place.write("x.npy", npy_file(&floats));
    place.import("demo/m", &[&source, &array], &[]);
    let mounted = place.mount(&[]);
    let rounded: Vec<f32> = values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
    for path in [".as/f32/.tensors/w", ".as/f32/w", ".as/npy/w.npy"] {
        let wanted = if path.contains("npy") { Dtype::Bf16 } else { Dtype::F32 };
        assert!(in_form(&mounted, path) == (wanted, rounded.clone()), "{path}");
    }
    let (dtype, halves) = in_form(&mounted, ".as/f16/x.npy");
    assert_eq!(dtype, Dtype::F16);
    assert!(halves.iter().zip(&values).all(|(half, value)| *half == f16::from_f32(*value).to_f32()));
    let w = Tensor::open(mounted.mountpoint.join("demo/m/.tensors/w")).unwrap();
    let cast = w.cast(Dtype::F32).unwrap();
    assert_eq!(cast.shape(), [256, 256]);
    assert!(cast.read::<f32>().unwrap() == rounded);
    assert_eq!(cast.tier().unwrap_err().kind(), ErrorKind::NoAttribute);
    assert_eq!(cast.cast(Dtype::F16).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(w.cast(Dtype::F64).unwrap_err().kind(), ErrorKind::Unsupported);
    let n = Tensor::open(mounted.mountpoint.join("demo/m/n")).unwrap().cast(Dtype::F32).unwrap();
    assert_eq!((n.dtype(), n.read::<i8>().unwrap()), (Dtype::I8, vec![1, 2, 3]));
    // As the tensor reads after a move.
    let (dtype, what_if) = in_form(&mounted, ".as/q8/.tensors/w");
    assert_eq!(dtype, Dtype::Bf16);
    w.set_tier("q8", tierfs_client::Consent::Given).unwrap();
    assert!(what_if != rounded && in_form(&mounted, ".tensors/w") == (Dtype::Bf16, what_if));
    mounted.unmount();
}

/// A directory that is mounted a second time. Dropping it unmounts that.
struct Bound(PathBuf);

impl Bound {
    fn new(from: &Path, to: PathBuf) -> Bound {
        fs::create_dir(&to).unwrap();
        assert!(Command::new("mount").arg("--bind").args([from, &to]).status().unwrap().success());
        Bound(to)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        // The test says more if this fails: the mount point stays.
        let _status = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn tensors_are_cast_below_a_collection_that_is_mounted_elsewhere() {
    // Only root mounts directories.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--read-only"]);
    let folder = mounted.mountpoint.join("demo/model");
    for (from, names) in [
        (folder.clone(), [".tensors/w", "model.safetensors"]),
        (mounted.mountpoint.join("demo"), ["model/.tensors/w", "model/model.safetensors"]),
    ] {
        let bound = Bound::new(&from, place.path("bound"));
        let (name, _) = tensors(bound.0.join(names[1])).unwrap().pop_first().unwrap();
        let tensor = Tensor::open(bound.0.join(names[0]).with_file_name(&name)).unwrap();
        let cast = tensor.cast(Dtype::Bf16).unwrap();
        assert!(cast.path().starts_with(&bound.0), "{cast:?}");
        let wanted = Tensor::open(folder.join(".as/bf16/.tensors").join(&name)).unwrap();
        assert!(cast.read::<bf16>().unwrap() == wanted.read::<bf16>().unwrap());
        assert_eq!(cast.cast(Dtype::F16).unwrap_err().kind(), ErrorKind::Unsupported);
        drop(bound);
        fs::remove_dir(place.path("bound")).unwrap();
    }
    // The directory of the collection is out of sight.
    let bound = Bound::new(&folder.join(".tensors"), place.path("bound"));
    let (_, tensor) = tensors(&folder).unwrap().pop_first().unwrap();
    let name = tensor.path().strip_prefix(folder.join(".tensors")).unwrap();
    let tensor = Tensor::open(bound.0.join(name)).unwrap();
    assert_eq!(tensor.cast(Dtype::Bf16).unwrap_err().kind(), ErrorKind::NotMounted);
    drop(bound);
    mounted.unmount();
}

#[test]
fn weights_of_quantized_models_have_their_plain_names_and_shapes_in_a_cast() {
    let place = Place::new();
    // 32 codes of 4 bits, each 2, with scales of 1: two groups of 16, and one of the whole.
    let parts = [
        ("w_packed", "U8", vec![1, 16], [0x44; 16].to_vec()),
        ("w_scale", "F8_E4M3", vec![1, 2], vec![0x38; 2]),
        ("w_global_scale", "F32", vec![1], 1_f32.to_le_bytes().to_vec()),
        ("bias", "F16", vec![2], f16::ONE.to_le_bytes().repeat(2)),
    ];
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in parts {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
        header.insert(name.to_owned(), entry);
        data.extend(bytes);
    }
    let file = safetensors_file(&serde_json::Value::Object(header).to_string(), &data);
    let source = place.write("model.safetensors", file);
    place.import("demo/m", &[&source], &[]);
    let mounted = place.mount(&["--read-only"]);
    let form = mounted.mountpoint.join("demo/m/.as/f32");
    for found in [tensors(form.join("model.safetensors")).unwrap(), tensors(&form).unwrap()] {
        assert!(found.keys().eq(["bias", "w"]), "{found:?}");
        assert_eq!((found["w"].dtype(), found["w"].shape()), (Dtype::F32, [1, 32].as_slice()));
        assert_eq!(found["w"].read::<f32>().unwrap(), [2.0; 32]);
        assert_eq!(found["bias"].read::<f32>().unwrap(), [1.0; 2]);
    }
    mounted.unmount();
}

#[test]
fn the_names_and_blocks_of_element_types_are_those_of_the_daemon() {
    let daemon = tierfs::model::Dtype::ALL.iter().map(|dtype| (dtype.name(), dtype.block()));
    let client = Dtype::ALL.iter().map(|dtype| {
        let (elements, bytes) = dtype.block();
        (dtype.name(), (elements as u64, bytes as u64))
    });
    assert!(daemon.eq(client));
}

#[test]
fn a_file_with_a_type_and_a_copy_that_kept_it_are_tensors() {
    let mut fixture = support::Fixture::new();
    let bytes = Random(5).floats(600);
    fs::write(fixture.path("raw"), &bytes).unwrap();
    let open = |path: &Path| Tensor::open(path).map_err(|error| error.kind());
    assert_eq!(open(&fixture.path("raw")), Err(ErrorKind::NotATensor));
    set(&fixture.path("raw"), "dtype", "f32").unwrap();
    set(&fixture.path("raw"), "shape", "20x30").unwrap();
    let tensor = open(&fixture.path("raw")).unwrap();
    assert_eq!(tensor.shape(), [20, 30]);
    assert_same(&read_all::<f32>(&tensor), &bytes, "the tensor");
    let copy = fixture.place.path("copy");
    let copied =
        std::process::Command::new("cp").arg("-a").args([&fixture.path("raw"), &copy]).status().unwrap();
    assert!(copied.success());
    let copied = open(&copy).unwrap();
    assert_eq!((copied.dtype(), copied.shape()), (Dtype::F32, [20, 30].as_slice()));
    assert_same(&read_all::<f32>(&copied), &bytes, "the copy");
    assert_eq!(copied.tier().unwrap_err().kind(), ErrorKind::NoAttribute);
    assert_eq!(copied.cast(Dtype::F16).unwrap_err().kind(), ErrorKind::NotMounted);
    fixture.unmount();
}
