//! `.as/experts`: each expert of a tensor as a file.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

use support::{Mapping, Place, Random, assert_same, errno, get, names, run, safetensors_file, set, try_get};

const NAME: &str = "model.layers.0.mlp.experts.gate_up_proj";

/// A file with a tensor of twelve experts of 48 x 50 floats, their biases, and others.
fn with_experts(place: &Place) -> std::path::PathBuf {
    let header = format!(
        r#"{{"{NAME}":{{"dtype":"F32","shape":[12,48,50],"data_offsets":[0,115200]}},
            "{NAME}_bias":{{"dtype":"F32","shape":[12,7],"data_offsets":[115200,115536]}},
            "deep/cube":{{"dtype":"BF16","shape":[2,2,2],"data_offsets":[115536,115552]}},
            "matrix":{{"dtype":"F32","shape":[2,4],"data_offsets":[115552,115584]}}}}"#
    );
    place.write("model/model.safetensors", safetensors_file(&header, &Random(4).floats(28896)))
}

#[test]
fn each_expert_is_a_range_of_its_tensor() {
    for options in [&[][..], &["--in-place"], &["--block-bytes", "4096"], &["--tier", "q8:all"]] {
        let place = Place::new();
        let source = with_experts(&place);
        place.import("t/c", &[source.parent().unwrap()], options);
        let mounted = place.mount(&[]);
        let collection = mounted.path("t/c");
        let experts = collection.join(".as/experts");
        assert_eq!(names(&experts), ["deep", NAME, &format!("{NAME}_bias")]);
        for name in [NAME, &format!("{NAME}_bias"), "deep/cube"] {
            let whole = fs::read(collection.join(".tensors").join(name)).unwrap();
            let count = if name == "deep/cube" { 2 } else { 12 };
            for folder in [experts.join(name), experts.join(".tensors").join(name)] {
                let mut listed: Vec<usize> =
                    names(&folder).iter().map(|name| name.parse().unwrap()).collect();
                listed.sort_unstable();
                assert_eq!(listed, (0..count).collect::<Vec<_>>());
                for (index, wanted) in whole.chunks(whole.len() / count).enumerate() {
                    let path = folder.join(index.to_string());
                    assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64);
                    assert_same(&fs::read(&path).unwrap(), wanted, name);
                    assert_same(Mapping::of(&path, libc::MAP_SHARED).bytes(), wanted, name);
                }
            }
        }
        for none in ["12", "00", "-1", "a", "4294967296", "1/2"] {
            let found = errno(fs::metadata(experts.join(NAME).join(none)));
            assert!(matches!(found, libc::ENOENT | libc::ENOTDIR), "{none}: {found}");
        }
        for none in ["matrix", "model.safetensors", "deep/cube/2"] {
            assert_eq!(errno(fs::metadata(experts.join(none))), libc::ENOENT, "{none}");
        }
        mounted.unmount();
    }
}

#[test]
fn an_expert_follows_its_tensor_and_takes_no_writes() {
    let place = Place::new();
    let source = with_experts(&place);
    place.import("t/c", &[source.parent().unwrap()], &[]);
    let mounted = place.mount(&["--decoded-cache", "64M"]);
    let tensor = mounted.path("t/c/.tensors").join(NAME);
    let folder = mounted.path("t/c/.as/experts").join(NAME);
    let expert = folder.join("7");
    let whole = fs::read(&tensor).unwrap();
    let own = whole.len() / 12;
    assert_same(&fs::read(&expert).unwrap(), &whole[7 * own..8 * own], "before");
    let map = Mapping::of(&expert, libc::MAP_SHARED);
    assert_same(map.bytes(), &whole[7 * own..8 * own], "mapped");
    let open = fs::OpenOptions::new().write(true).open(&tensor).unwrap();
    open.write_all_at(&[1; 100], (7 * own + 5) as u64).unwrap();
    open.write_all_at(&[2; 100], (8 * own) as u64).unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read(&expert).unwrap()[5..105], [1; 100]);
    assert_eq!(fs::read(folder.join("8")).unwrap()[..100], [2; 100]);
    assert_eq!(map.bytes()[5..105], [1; 100]);
    drop((map, open));
    assert_eq!(errno(fs::OpenOptions::new().write(true).open(&expert)), libc::EROFS);
    let made = errno(fs::write(folder.join("12"), b"x"));
    assert!(matches!(made, libc::EROFS | libc::EPERM), "{made}");
    assert_eq!(set(&expert, "pin", "1"), Err(rustix::io::Errno::PERM));
    for path in [&expert, expert.parent().unwrap()] {
        assert_eq!(try_get(path, "pin"), Err(rustix::io::Errno::NODATA));
        run(["ls".as_ref(), path.as_os_str()]).ok();
    }
    run(["stat".as_ref(), expert.as_os_str()]).ok();
    assert_eq!((get(&expert, "dtype"), get(&expert, "shape")), ("f32".to_owned(), "48x50".to_owned()));
    let directory = fs::metadata(&folder).unwrap();
    assert!(directory.is_dir());
    assert_eq!(directory.mode() & 0o222, 0);
    assert_ne!(fs::metadata(&expert).unwrap().ino(), fs::metadata(folder.join("8")).unwrap().ino());
    assert_eq!(fs::canonicalize(folder.join("..")).unwrap(), mounted.path("t/c/.as/experts"));
    mounted.unmount();
}
