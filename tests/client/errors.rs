//! Refusals: of files that are not tensors, of damaged files, and of attributes with impossible values.

use std::fs;
use std::os::unix::fs::FileExt;

use support::{Place, Random, container_of, imported, set};
use tierfs_client::{Consent, Embeddings, ErrorKind, Tensor, pin, set_tier, tensors};

#[test]
fn files_that_are_no_tensors_say_so() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&["--read-only"]);
    let folder = mounted.mountpoint.join("demo/model");
    let kind = |path: &str| Tensor::open(folder.join(path)).unwrap_err().kind();
    for path in [
        "model.safetensors",
        "config.json",
        "empty",
        "sub",
        "",
        ".tensors",
        ".tensors/deep",
        "../../.ctl/status",
    ] {
        assert_eq!(kind(path), ErrorKind::NotATensor, "{path:?}");
    }
    for path in ["nothing-here", ".tensors/c", "config.json/w"] {
        assert_eq!(kind(path), ErrorKind::NotFound, "{path}");
    }
    assert_eq!(tensors(folder.join("config.json")).unwrap_err().kind(), ErrorKind::NotATensor);
    assert_eq!(tensors(folder.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(tensors(source.join("model.safetensors")).unwrap_err().kind(), ErrorKind::NotATensor);
    assert!(tensors(folder.join("sub")).unwrap().is_empty());
    for path in ["config.json", "empty", "x.npy"] {
        assert_eq!(Embeddings::read(folder.join(path)).unwrap_err().kind(), ErrorKind::Invalid, "{path}");
    }
    // A request to a mount that is only read, and one to another file system.
    let refused = set_tier(folder.join("model.safetensors"), "q8", Consent::Given).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert_eq!(pin(source.join("x.npy")).unwrap_err().kind(), ErrorKind::NotMounted);
    assert_eq!(pin(&mounted.mountpoint).unwrap_err().kind(), ErrorKind::NotMounted);
    assert_eq!(pin(folder.join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(support::try_get(&source.join("x.npy"), "pin"), Err(rustix::io::Errno::NODATA));
    mounted.unmount();
}

#[test]
fn corrupt_bytes_are_errors_with_the_reason_of_the_mount() {
    let place = Place::new();
    let source = place.write("model.safetensors", container_of(&mut Random(4), &[("a", 500_000)]));
    place.import("demo/m", &[&source], &[]);
    let data = fs::read_dir(place.store().join("demo/m/data")).unwrap().next().unwrap().unwrap().path();
    let file = fs::OpenOptions::new().read(true).write(true).open(data).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1_000_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1_000_000).unwrap();
    let mounted = place.mount(&[]);
    let tensor = Tensor::open(mounted.mountpoint.join("demo/m/.tensors/a")).unwrap();
    for tensor in [tensor.clone(), tensor.cast(tierfs_client::Dtype::Bf16).unwrap()] {
        let mut bytes = vec![0; tensor.nbytes()];
        let error = tensor.read_bytes_into(&mut bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::IO.raw_os_error()));
        let text = error.to_string();
        assert!(text.contains("Input/output error") && text.contains("payload crc"), "{text}");
    }
    // The other pages are there.
    // SAFETY: nobody writes to the file.
    let mapping = unsafe { tensor.map().unwrap() };
    assert_eq!(mapping.row::<f32>(0).unwrap().len(), 1);
    drop(mapping);
    drop(mounted);
}

#[test]
fn hostile_attributes_of_another_file_system_are_errors() {
    let place = Place::new();
    let path = place.write("w", [0; 16]);
    let kind = |dtype: &str, shape: &str| {
        set(&path, "dtype", dtype).unwrap();
        set(&path, "shape", shape).unwrap();
        Tensor::open(&path).map_err(|error| error.kind())
    };
    assert_eq!(kind("f32", "2x2").unwrap().read::<f32>().unwrap(), [0.0; 4]);
    assert_eq!(kind("f32", ""), Err(ErrorKind::Invalid));
    assert_eq!(kind("f32", "4611686018427387904x4"), Err(ErrorKind::Invalid));
    assert_eq!(kind("f64", "2305843009213693954"), Err(ErrorKind::Invalid));
    assert_eq!(kind("f32", &"1x".repeat(1000)), Err(ErrorKind::Invalid));
    assert_eq!(kind("", "16"), Err(ErrorKind::Unsupported));
    assert_eq!(kind(&"f".repeat(2000), "16"), Err(ErrorKind::Unsupported));
    let name = "user.tierfs.dtype";
    rustix::fs::setxattr(&path, name, b"f32\xff", rustix::fs::XattrFlags::empty()).unwrap();
    assert_eq!(Tensor::open(&path).unwrap_err().kind(), ErrorKind::Invalid);
    let tensor = kind("u8", "16").unwrap();
    set(&path, "error", "max=1e9").unwrap();
    assert_eq!(tensor.error().unwrap_err().kind(), ErrorKind::Invalid);
    // A pipe without a writer, and a cut file.
    let pipe = place.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(Tensor::open(&pipe).unwrap_err().kind(), ErrorKind::NotATensor);
    assert_eq!(Embeddings::read(&pipe).unwrap_err().kind(), ErrorKind::Invalid);
    fs::File::options().write(true).open(&path).unwrap().set_len(15).unwrap();
    assert_eq!(tensor.read::<u8>().unwrap_err().kind(), ErrorKind::Changed);
}

#[test]
fn a_tensor_whose_name_leads_to_another_file_has_changed() {
    let place = Place::new();
    let npy = |descr: &str| {
        let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}\n");
        let length = u16::try_from(text.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\x00".as_slice(), &length, text.as_bytes(), &[0; 8]].concat()
    };
    let path = place.write("w.npy", npy("<f4"));
    let tensor = Tensor::open(&path).unwrap();
    assert_eq!(tensor.read::<f32>().unwrap(), [0.0; 2]);
    let assert_changed = || {
        assert_eq!(tensor.read::<f32>().unwrap_err().kind(), ErrorKind::Changed);
        // SAFETY: nothing is mapped.
        assert_eq!(unsafe { tensor.map() }.unwrap_err().kind(), ErrorKind::Changed);
    };
    // Another type, and one that is not read; a header that is cut off; another file.
    for (bytes, kind) in [
        (npy("<i4"), None),
        (npy(">f4"), Some(ErrorKind::Unsupported)),
        (npy("<f4")[..20].to_vec(), Some(ErrorKind::Invalid)),
        (b"other".to_vec(), Some(ErrorKind::NotATensor)),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(Tensor::open(&path).err().map(|error| error.kind()), kind);
        assert_changed();
    }
    // A pipe without a writer, a socket and a directory.
    fs::remove_file(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_changed();
    fs::remove_file(&path).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    assert_changed();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_changed();
}
