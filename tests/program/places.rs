//! Each command takes a place in each form: a path in a mount, a store and a name in it, the mount point and a name.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;

use support::{Place, Random, container_of, npy_file, shell_output};

/// The forms of the place of `t/c` of a store `store` that is mounted on `mnt`.
const FORMS: [&str; 5] = ["mnt/t/c", "store t/c/", "store t/c", "mnt t/c", "store/t/c"];

/// Commands, with `@` for the place of a collection and `@/FILE` for a file in it.
const COMMANDS: [&str; 31] = [
    "ls @",
    "stat @",
    "du @",
    "get @",
    "export @ out",
    "export @/m.safetensors out-file",
    "import @ plain.txt",
    "push @ file://DIR/bucket --create",
    "pin @/m.safetensors",
    "unpin @/m.safetensors",
    "set lossy=allow @",
    "tier q8 @",
    "tier q5 --json @/m.safetensors",
    "tier --lossy exact @",
    "pack @",
    "unpack @",
    "prefetch @",
    "evict --discard --lossy @/m.safetensors",
    "verify @",
    "verify --json @/m.safetensors",
    "log @",
    "events @",
    "status %",
    "jobs %",
    "top --once %",
    "doctor %",
    "log %",
    "scrub %",
    "compact %",
    "report % -o report.html",
    "rm @",
];

/// The words of a command for one of the forms.
fn in_form(command: &str, form: &str, directory: &Path) -> String {
    let root = form.split([' ', '/']).next().unwrap();
    command.replace('@', form).replace('%', root).replace("DIR", directory.to_str().unwrap())
}

#[test]
fn each_command_takes_each_form_of_a_place() {
    for form in FORMS {
        let place = Place::new();
        let directory = place.path("");
        place.write("m.safetensors", container_of(&mut Random(7), &[("a", 50_000), ("b", 2000)]));
        place.write("plain.txt", b"hello");
        fs::create_dir_all(place.path("bucket")).unwrap();
        let (code, text) = shell_output(&directory, "tierfs import store t/c m.safetensors");
        assert_eq!(code, 0, "{text}");
        let _mounted = place.mount(&[]);
        for command in COMMANDS {
            let command = format!("tierfs {}", in_form(command, form, &directory));
            let (code, text) = shell_output(&directory, &command);
            assert_eq!(code, 0, "{command}: {text}");
            match command.split(' ').nth(1).unwrap() {
                "export" if command.ends_with("out") => {
                    let exported = fs::read(place.path("out/m.safetensors")).unwrap();
                    assert_eq!(exported, fs::read(place.path("m.safetensors")).unwrap());
                }
                "import" => assert_eq!(fs::read(place.path("mnt/t/c/plain.txt")).unwrap(), b"hello"),
                "push" => assert!(place.path("bucket/head/t/c").exists(), "{text}"),
                "events" => assert!(text.contains("\"import\""), "{text}"),
                "rm" => assert!(!place.path("mnt/t/c").exists(), "{text}"),
                _ => {}
            }
        }
    }
}

/// A store with a container at `t/c`, and the container itself.
fn imported() -> Place {
    let place = Place::new();
    place.write("m.safetensors", container_of(&mut Random(7), &[("a", 50_000), ("b", 2000)]));
    let (code, text) = shell_output(&place.path(""), "tierfs import store t/c m.safetensors");
    assert_eq!(code, 0, "{text}");
    place
}

#[test]
fn two_places_are_compared_in_each_form_that_is_one_word() {
    let place = imported();
    let directory = place.path("");
    let _mounted = place.mount(&[]);
    for form in ["mnt/t/c", "store/t/c"] {
        for command in [format!("diff {form}/m.safetensors m.safetensors"), format!("diff {form} mnt/t/c")] {
            let (code, text) = shell_output(&directory, &format!("tierfs {command}"));
            assert!(code == 0 && text.ends_with(" same, 0 different\n"), "{command}: {text}");
        }
    }
}

/// The rows of `tierfs diff --json a b`: name, state, largest difference.
fn differences(place: &Place) -> Vec<(String, String, serde_json::Value)> {
    let (_, text) = shell_output(&place.path(""), "tierfs diff --json a b");
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |row: &serde_json::Value, name: &str| row[name].as_str().unwrap().to_owned();
    let rows = found["rows"].as_array().unwrap().iter();
    rows.map(|row| (text(row, "name"), text(row, "state"), row["max"].clone())).collect()
}

#[test]
fn a_file_and_a_tensor_of_one_name_are_compared_apart() {
    let place = Place::new();
    for (side, seed) in [("a", 1), ("b", 2)] {
        place.write(&format!("{side}/m.safetensors"), container_of(&mut Random(seed), &[("vocab", 40)]));
        place.write(&format!("{side}/vocab"), "the same");
    }
    let rows = differences(&place);
    let states: Vec<_> = rows.iter().map(|(name, state, _)| (name.as_str(), state.as_str())).collect();
    assert_eq!(states, [("vocab", "same"), ("vocab", "values")]);
}

#[test]
fn names_that_look_alike_as_text_are_compared_apart() {
    let place = Place::new();
    for (side, first) in [("a", "1"), ("b", "9")] {
        fs::create_dir_all(place.path(side)).unwrap();
        for (name, text) in [(b"\xfe", first), (b"\xff", "2")] {
            fs::write(place.path(side).join(OsStr::from_bytes(name)), text).unwrap();
        }
    }
    let null = serde_json::Value::Null;
    let rows = differences(&place);
    assert_eq!(rows[0], ("\\xfe".to_owned(), "bytes".to_owned(), null));
    assert_eq!(rows[1], ("\\xff".to_owned(), "same".to_owned(), 0.0.into()));
}

#[test]
fn a_tensor_of_a_container_is_compared_with_the_file_of_the_tensor_on_a_mount() {
    let place = Place::new();
    place.write("a/m.safetensors", container_of(&mut Random(7), &[("w", 40)]));
    let (code, text) = shell_output(&place.path(""), "tierfs import store t/c a");
    assert_eq!(code, 0, "{text}");
    let mounted = place.mount(&[]);
    fs::create_dir(place.path("b")).unwrap();
    symlink(mounted.path("t/c/.tensors/w"), place.path("b/w")).unwrap();
    assert_eq!(differences(&place), [("w".to_owned(), "same".to_owned(), 0.0.into())]);
}

#[test]
fn an_infinite_difference_is_told_from_one_that_has_no_size() {
    let place = Place::new();
    let floats = |last: f32| [1.0_f32, last].map(f32::to_le_bytes).concat();
    for (name, [one, other]) in [("nan", [2.0, f32::NAN]), ("infinity", [2.0, f32::INFINITY])] {
        place.write(&format!("a/{name}.npy"), npy_file(&floats(one)));
        place.write(&format!("b/{name}.npy"), npy_file(&floats(other)));
    }
    place.write("a/other.npy", npy_file(&floats(0.0)));
    place.write("b/other.npy", npy_file(&[0; 4]));
    let max: Vec<_> = differences(&place).into_iter().map(|(_, _, max)| max).collect();
    assert_eq!(max, ["inf".into(), "inf".into(), serde_json::Value::Null]);
}

#[test]
fn a_link_to_a_place_on_a_mount_stands_for_that_place() {
    let place = imported();
    let directory = place.path("");
    let _mounted = place.mount(&[]);
    symlink("mnt/t/c", place.path("collection")).unwrap();
    symlink("mnt/t/c/m.safetensors", place.path("file")).unwrap();
    symlink("mnt", place.path("root")).unwrap();
    for (command, wanted) in [
        ("ls collection", "m.safetensors"),
        ("ls root/t", "c/"),
        ("stat file", "exact"),
        ("set lossy=allow collection", "lossy=allow"),
        ("tier q8 file", "q8"),
        ("pin file", "pinned"),
        ("unpin collection", "unpinned"),
        ("verify collection", "ok"),
        ("verify file", "ok"),
        ("prefetch file", "1 file, "),
        ("status root", "store"),
        ("jobs root", ""),
        ("export collection out", "1 file, "),
        ("umount root", ""),
    ] {
        let (code, text) = shell_output(&directory, &format!("tierfs {command}"));
        assert!(code == 0 && text.contains(wanted), "{command}: {code} {text}");
    }
    let (code, _) = shell_output(&directory, "mountpoint -q mnt");
    assert_ne!(code, 0, "the link names the mount point");
}

/// Commands without a place in a store, or whose forms have a test of their own.
const OTHERS: [&str; 20] = [
    "init",
    "mount",
    "index",
    "clone",
    "pull",
    "tag",
    "gc",
    "cache",
    "umount",
    "csi",
    "diff",
    "join",
    "mv",
    "cancel",
    "fsck",
    "gpu-read",
    "cgeb",
    "bench",
    "completions",
    "man",
];

#[test]
fn each_command_is_one_of_those_whose_forms_are_tried_or_of_the_others() {
    let (code, help) = shell_output(Path::new("/"), "tierfs --help");
    assert_eq!(code, 0);
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    names.retain(|name| *name != "help");
    let mut known: Vec<&str> = COMMANDS.iter().filter_map(|command| command.split(' ').next()).collect();
    known.extend(OTHERS);
    known.sort_unstable();
    known.dedup();
    names.sort_unstable();
    assert_eq!(names, known);
}

#[test]
fn a_collection_is_renamed_by_paths_and_by_names() {
    let place = Place::new();
    let directory = place.path("");
    place.write("plain.txt", b"hello");
    let (code, text) = shell_output(&directory, "tierfs import store t/c plain.txt");
    assert_eq!(code, 0, "{text}");
    let _mounted = place.mount(&[]);
    for (command, name) in [
        ("mv mnt/t/c mnt/t/d", "d"),
        ("mv mnt/t/d t/e", "e"),
        ("mv store t/e t/f", "f"),
        ("mv mnt t/f t/g", "g"),
        ("mv store t/g/ t/h/", "h"),
    ] {
        let (code, text) = shell_output(&directory, &format!("tierfs {command}"));
        assert_eq!(code, 0, "{command}: {text}");
        assert!(place.path("mnt/t").join(name).join("plain.txt").exists(), "{command}: {text}");
    }
}
