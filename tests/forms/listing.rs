//! Forms of read-only mounts and of mounts that list fewer names.

use std::fs;

use crate::with_many_types;
use support::{
    Place, Random, assert_same, container_of, files_below, get, names, npy_file, run, set, try_get,
};

#[test]
fn forms_of_a_read_only_mount_equal_those_of_a_writable_mount() {
    let (place, folder) = with_many_types();
    place.import("t/c", &[&folder], &[]);
    let read = |options: &[&str]| {
        let mounted = place.mount(options);
        let forms = mounted.path("t/c/.as");
        let found: Vec<_> = files_below(&forms)
            .into_iter()
            .map(|name| (name.clone(), fs::read(forms.join(name)).unwrap()))
            .collect();
        if options.contains(&"--read-only") {
            let error = fs::write(forms.join("f16/scalar"), b"x").unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        }
        mounted.unmount();
        found
    };
    let (one, other) = (read(&["--list", "both"]), read(&["--list", "both", "--read-only"]));
    assert!(one.len() > 300, "{}", one.len());
    assert_eq!(one.len(), other.len());
    for ((name, one), (other_name, other)) in one.iter().zip(&other) {
        assert_eq!(name, other_name);
        assert_same(other, one, &name.display().to_string());
    }
}

#[test]
fn names_that_a_mount_hides_are_hidden_in_forms_and_open_by_name() {
    let (place, folder) = with_many_types();
    fs::write(folder.join("notes.txt"), "some text").unwrap();
    place.import("t/c", &[&folder], &[]);
    for (shown, has, has_not, sub) in [
        ("files", "model.safetensors", "scalar", &["array.npy"][..]),
        ("both", "scalar", "none", &["array", "array.npy"]),
    ] {
        let mounted = place.mount(&["--read-only", "--list", shown]);
        let forms = mounted.path("t/c/.as");
        for form in ["f32", "f16", "bf16", "q8", "q3"] {
            let listed = names(&forms.join(form));
            assert_eq!(listed, names(&mounted.path("t/c")), "{form} of {shown}");
            assert!(listed.contains(&has.to_owned()), "{form} of {shown}");
            assert!(listed.contains(&"notes.txt".to_owned()), "{form} of {shown}");
            assert!(!listed.contains(&has_not.to_owned()), "{form} of {shown}");
            assert_eq!(names(&forms.join(form).join("sub")), sub, "{form} of {shown}");
            for name in ["scalar", "model.safetensors", "sub/array", "sub/array.npy"] {
                assert!(
                    !fs::read(forms.join(form).join(name)).unwrap().is_empty(),
                    "{form}/{name} of {shown}"
                );
            }
        }
        // Forms of tensors contain no containers.
        assert!(names(&forms.join("npy")).contains(&"scalar.npy".to_owned()), "{shown}");
        assert_eq!(names(&forms.join("safetensors/sub")), ["array.safetensors"], "{shown}");
        mounted.unmount();
    }
}

#[test]
fn plain_files_take_no_names_of_tensors_where_a_form_has_a_suffix() {
    let place = Place::new();
    let mut random = Random(5);
    let tensors = [("a", 9), ("deep/b", 7), ("norm", 8), ("sub/c", 3)];
    place.write("model/m.safetensors", container_of(&mut random, &tensors));
    place.write("model/norm", b"not the tensor");
    place.write("model/a", random.floats(16));
    place.write("model/deep", b"not the directory");
    place.write("model/sub/x.npy", npy_file(&random.floats(4)));
    place.import("t/c", &[&place.path("model")], &[]);
    let mounted = place.mount(&[]);
    let (forms, tensors) = (mounted.path("t/c/.as"), mounted.path("t/c/.tensors"));
    assert_eq!(names(&forms.join("npy")), ["a.npy", "deep", "norm.npy", "sub"]);
    assert_eq!(names(&forms.join("npy/sub")), ["c.npy", "x.npy"]);
    assert_eq!(
        names(&forms.join("safetensors")),
        ["_all.safetensors", "a.safetensors", "deep", "norm.safetensors", "sub"]
    );
    for name in ["norm", "deep/b", "sub/c"] {
        let array = fs::read(forms.join(format!("npy/{name}.npy"))).unwrap();
        assert_same(&array[4096..], &fs::read(tensors.join(name)).unwrap(), name);
    }
    assert_eq!(fs::read(forms.join("f16/norm")).unwrap(), b"not the tensor");
    assert_eq!(try_get(&forms.join("safetensors"), "why"), Err(rustix::io::Errno::NODATA));
    let out = place.path("out");
    run(["export", "--as", "npy"].map(AsRef::as_ref).into_iter().chain([
        place.store().as_os_str(),
        "t/c".as_ref(),
        out.as_os_str(),
    ]))
    .ok();
    assert_eq!(names(&out), ["a.npy", "deep", "norm.npy", "sub"]);
    // A file that is a tensor has the name.
    assert_eq!(fs::read(forms.join("npy/a.npy")).unwrap().len(), 4096 + 36);
    set(&mounted.path("t/c/a"), "dtype", "f32").unwrap();
    assert_eq!(names(&forms.join("npy")), ["a.npy", "deep", "norm.npy", "sub"]);
    assert_eq!(fs::read(forms.join("npy/a.npy")).unwrap().len(), 4096 + 64);
    let why = get(&forms.join("safetensors"), "why");
    assert!(why.ends_with("below .tensors: a"), "{why}");
    assert_eq!(fs::read(forms.join("npy/.tensors/a.npy")).unwrap().len(), 4096 + 36);
}

#[test]
fn a_listing_reads_few_attributes_of_each_file() {
    let (place, _) = support::imported(&[]);
    let mounted = place.mount(&[]);
    let read = || mounted.stats()["operations"]["getxattr"].as_u64().unwrap();
    for arguments in [&["ls"][..], &["ls", "--tensors", "--json"]] {
        let before = read();
        let listed = run(arguments.iter().map(AsRef::as_ref).chain([mounted.path("demo/model").as_os_str()]));
        let lines = listed.ok().lines().count() as u64;
        assert!(lines > 4 && read() - before <= 4 * 6, "{lines}");
    }
}
