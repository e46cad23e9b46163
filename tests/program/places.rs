//! Each command takes a place in each form: a path in a mount, a store and a name in it, the mount point and a name.

use std::fs;
use std::path::Path;

use support::{Place, Random, container_of, shell_output};

/// The forms of the place of `t/c` of a store `store` that is mounted on `mnt`.
const FORMS: [&str; 4] = ["mnt/t/c", "store t/c", "mnt t/c", "store/t/c"];

/// Commands, with `@` for the place of a collection and `@/FILE` for a file in it.
const COMMANDS: [&str; 28] = [
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

#[test]
fn two_places_are_compared_in_each_form_that_is_one_word() {
    let place = Place::new();
    let directory = place.path("");
    place.write("m.safetensors", container_of(&mut Random(7), &[("a", 50_000), ("b", 2000)]));
    let (code, text) = shell_output(&directory, "tierfs import store t/c m.safetensors");
    assert_eq!(code, 0, "{text}");
    let _mounted = place.mount(&[]);
    for form in ["mnt/t/c", "store/t/c"] {
        for command in [format!("diff {form}/m.safetensors m.safetensors"), format!("diff {form} mnt/t/c")] {
            let (code, text) = shell_output(&directory, &format!("tierfs {command}"));
            assert!(code == 0 && text.ends_with(" same, 0 different\n"), "{command}: {text}");
        }
    }
}

/// Commands without a place in a store, or whose forms have a test of their own.
const OTHERS: [&str; 23] = [
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
    "status",
    "top",
    "jobs",
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
    ] {
        let (code, text) = shell_output(&directory, &format!("tierfs {command}"));
        assert_eq!(code, 0, "{command}: {text}");
        assert!(place.path("mnt/t").join(name).join("plain.txt").exists(), "{command}: {text}");
    }
}
