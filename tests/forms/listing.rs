//! Forms of read-only mounts and of mounts that list fewer names.

use std::fs;

use crate::with_many_types;
use support::{assert_same, files_below, names};

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
