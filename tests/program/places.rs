//! Each command takes a place in each form: a path in a mount, a store and a name in it, the mount point and a name.

use std::fs;
use std::path::Path;

use support::{Place, Random, container_of, shell_output};

/// The forms of the place of `t/c` of a store `store` that is mounted on `mnt`.
const FORMS: [&str; 4] = ["mnt/t/c", "store t/c", "mnt t/c", "store/t/c"];

/// Commands, with `@` for the place of a collection and `@/FILE` for a file in it.
const COMMANDS: [&str; 20] = [
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
    "doctor %",
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
                "rm" => assert!(!place.path("mnt/t/c").exists(), "{text}"),
                _ => {}
            }
        }
    }
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
