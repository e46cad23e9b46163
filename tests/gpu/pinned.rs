//! The routes of pinned files, batches and forms: their copies.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tierfs::gpu::route::plan;

use crate::routes::{ALL, assert_lies_there, physical, why};
use support::set;
use support::{Mounted, Place, Random, container_of, imported, wait_until};

/// The list of extents of a file of `collection`.
fn extents(mounted: &Mounted, collection: &str, file: &str) -> Value {
    let text = fs::read(mounted.path(collection).join(".ctl/extents").join(file)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Pins a file, whose bytes then lie in its copy; the copy.
#[track_caller]
fn pinned(path: &Path) -> PathBuf {
    set(path, "pin", "1").unwrap();
    let (copy, _) = physical(path, ALL);
    assert!(copy.parent().unwrap().ends_with("pinned"), "{}", copy.display());
    assert_lies_there(path, ALL);
    let len = fs::metadata(path).unwrap().len();
    for (offset, part) in [(1, 1), (len - 1, 1), (len / 2, len / 3)] {
        assert_lies_there(path, tierfs::gpu::Span { offset, len: Some(part) });
    }
    copy
}

#[test]
fn the_route_of_a_pinned_tensor_of_a_lower_tier_is_its_copy_until_it_is_unpinned() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    assert!(why(&tensor, ALL).contains("codes of tier q8"));
    let copy = pinned(&tensor);
    let list = extents(&mounted, "demo/model", "x");
    let bytes = fs::metadata(&tensor).unwrap().len();
    let wanted = serde_json::json!([{
        "file": copy.to_str().unwrap(), "file_offset": 0, "logical_offset": 0, "length": bytes,
        "logical_length": bytes, "tier": "exact", "verified": true,
    }]);
    assert_eq!(list, wanted);
    set(&tensor, "pin", "0").unwrap();
    assert!(why(&tensor, ALL).contains("codes of tier q8"));
    // Another copy has another number.
    assert_ne!(pinned(&tensor), copy);
}

#[test]
fn tensors_of_a_pinned_container_lie_in_its_copy() {
    let place = Place::new();
    let tensors = [("a", 50_000), ("b", 70_001), ("c", 3)];
    let model = place.write("m.safetensors", container_of(&mut Random(5), &tensors));
    place.import("t/c", &[&model], &["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let copy = pinned(&mounted.path("t/c/m.safetensors"));
    let mut end = fs::metadata(mounted.path("t/c/m.safetensors")).unwrap().len();
    for (name, elements) in tensors.iter().rev() {
        end -= 4 * *elements as u64;
        let path = mounted.path("t/c/.tensors").join(name);
        assert_eq!(physical(&path, ALL), (copy.clone(), end), "{name}");
        assert_lies_there(&path, ALL);
    }
}

#[test]
fn the_route_of_a_pinned_batch_is_its_copy() {
    let place = Place::new();
    let batch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/batch.cgeb");
    place.import("t/c", &[&batch], &[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/batch.cgeb");
    assert!(why(&path, ALL).contains("assembled from several tensors"));
    let copy = pinned(&path);
    assert_eq!(fs::read(&copy).unwrap(), fs::read(&batch).unwrap());
    assert_eq!(fs::read(mounted.path("t/c/.ctl/verify/batch.cgeb")).unwrap(), b"ok\n");
}

#[test]
fn the_route_of_a_pinned_form_is_its_copy() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let batch = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/batch.cgeb");
    place.import("demo/batch", &[&batch], &[]);
    let mounted = place.mount(&[]);
    for form in ["safetensors/x.safetensors", "npy/x.npy", "bf16/model.safetensors", "f16/deep/er/b", "q5/x"]
    {
        let path = mounted.path("demo/model/.as").join(form);
        assert!(why(&path, ALL).contains("not on the disk; pin it"), "{form}");
        pinned(&path);
        // The file that the form shows has no part in that.
        let source = form.rsplit('/').next().unwrap().split('.').next().unwrap();
        if source == "x" {
            assert!(why(&mounted.path("demo/model/x"), ALL).contains("codes of tier q8"));
        }
        assert_eq!(
            fs::read_to_string(mounted.path("demo/model/.ctl/verify/.as").join(form)).unwrap(),
            "ok\n"
        );
    }
    let whole = mounted.path("demo/model/.as/safetensors/_all.safetensors");
    assert!(why(&whole, ALL).contains("not on the disk"));
}

#[test]
fn extents_mirror_the_forms_whose_files_can_be_pinned() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let names = |path: &str| {
        let mut names: Vec<String> = fs::read_dir(mounted.path("demo/model").join(path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert!(!names(".ctl/extents").contains(&".as".to_owned()));
    let forms = ["bf16", "cgeb", "f16", "f32", "npy", "q3", "q5", "q7", "q8", "safetensors"];
    for tree in [".ctl/extents/.as", ".ctl/verify/.as"] {
        assert_eq!(names(tree), forms);
        for form in forms {
            let mut shown = names(&format!(".as/{form}"));
            shown.retain(|name| name != "_all.safetensors");
            assert_eq!(names(&format!("{tree}/{form}")), shown);
        }
        assert_eq!(names(&format!("{tree}/bf16/sub")), ["vocab.txt"]);
        for gone in ["tp", "sha256", "safetensors/_all.safetensors", "npy/none.npy", "bf16/x/y", ".as"] {
            assert!(fs::metadata(mounted.path("demo/model").join(tree).join(gone)).is_err(), "{tree}/{gone}");
        }
    }
    assert!(fs::metadata(mounted.path("demo/model/.ctl/blocks/.as")).is_err());
    let file = fs::metadata(mounted.path("demo/model/.ctl/extents/.as/npy/x.npy")).unwrap();
    assert_eq!((file.mode(), file.is_file()), (0o100_400, true));
    assert_eq!(extents(&mounted, "demo/model", ".as/npy/x.npy"), serde_json::json!([]));
    // Above it lies the directory of its form, then the directory of forms, then the tree.
    let inode = |path: &str| fs::metadata(mounted.path("demo/model").join(path)).unwrap().ino();
    for (below, above) in [(".as/npy/deep", ".as/npy"), (".as/npy", ".as"), (".as", "")] {
        let (below, above) = (format!(".ctl/extents/{below}/.."), format!(".ctl/extents/{above}"));
        assert_eq!(inode(&below), inode(&above), "{below}");
    }
}

#[test]
fn a_change_of_a_pinned_file_leads_to_another_copy_and_never_to_old_bytes() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    let form = mounted.path("demo/model/.as/safetensors/x.safetensors");
    let (copies, plans) =
        ([&tensor, &form].map(|path| pinned(path)), [&tensor, &form].map(|path| plan(path, ALL)));
    assert!(set(&tensor, "evict", "discard").is_err());
    fs::OpenOptions::new().write(true).open(&tensor).unwrap().write_at(&[1; 4096], 8192).unwrap();
    for ((path, copy), before) in [&tensor, &form].into_iter().zip(copies).zip(plans) {
        // Until the copies are made again, the daemon is asked.
        let now = plan(path, ALL).unwrap();
        assert_ne!(&now, before.as_ref().unwrap());
        let is_copied = || !format!("{:?}", plan(path, ALL).unwrap().route).contains("Host");
        wait_until(&format!("a new copy of {}", path.display()), is_copied);
        assert_lies_there(path, ALL);
        assert_ne!(physical(path, ALL).0, copy);
    }
}

#[test]
fn a_copy_is_a_route_only_after_it_was_compared_since_the_mount() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    for file in ["x", ".as/npy/x.npy"] {
        pinned(&mounted.path("demo/model").join(file));
    }
    mounted.unmount();
    let mounted = place.mount(&[]);
    let copies = ["x", ".as/npy/x.npy"].map(|file| {
        assert_eq!(extents(&mounted, "demo/model", file)[0]["verified"], false, "{file}");
        let (copy, _) = physical(&mounted.path("demo/model").join(file), ALL);
        assert_eq!(extents(&mounted, "demo/model", file)[0]["verified"], true, "{file}");
        copy
    });
    mounted.unmount();
    for copy in &copies {
        fs::OpenOptions::new().write(true).open(copy).unwrap().write_at(b"damage", 20_000).unwrap();
    }
    let mounted = place.mount(&[]);
    for file in ["x", ".as/npy/x.npy"] {
        let path = mounted.path("demo/model").join(file);
        let said = fs::read_to_string(mounted.path("demo/model/.ctl/verify").join(file)).unwrap();
        assert!(said.contains("the pinned copy") && said.contains("corrupt 1 of"), "{said}");
        // The copy may have been made again by now. A damaged copy must not be read by cuFile.
        if let Ok(plan) = plan(&path, ALL)
            && let tierfs::gpu::Route::CuFile { path: physical, .. } = plan.route
        {
            assert!(!copies.contains(&physical));
            assert_lies_there(&path, ALL);
        }
    }
}

#[test]
fn scales_that_a_cast_needs_keep_its_copy_from_being_a_route() {
    let place = Place::new();
    let codes: Vec<u8> = (0..64 * 64).map(|code| if code % 128 > 120 { 0 } else { code as u8 }).collect();
    let header = r#"{"w.weight":{"dtype":"F8_E4M3","shape":[64,64],"data_offsets":[0,4096]},"w.weight_scale":{"dtype":"F32","shape":[1],"data_offsets":[4096,4100]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&codes);
    file.extend_from_slice(&2.0_f32.to_le_bytes());
    place.write("m/model.safetensors", file);
    place.write("m/config.json", br#"{"quantization_config":{"quant_method":"fp8"}}"#);
    place.import("t/c", &[&place.path("m")], &[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("t/c/.as/bf16/.tensors/w.weight");
    assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
    set(&path, "pin", "1").unwrap();
    assert!(why(&path, ALL).contains("not on the disk"));
}
