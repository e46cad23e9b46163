//! Tenants that are renamed or removed, and others of their names, while programs use them by directory descriptors.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, statat};
use rustix::io::Errno;

use support::{
    Mounted, Place, Random, container_of, get, kill_daemon, names, refused, replace, run, scale, script,
    shell, text,
};

fn number(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// The bytes of a file below an open directory.
fn read_at(directory: impl AsFd, name: &str) -> Result<String, Errno> {
    let mut read = String::new();
    let file = openat(directory, name, OFlags::RDONLY, Mode::empty())?;
    File::from(file).read_to_string(&mut read).unwrap();
    Ok(read)
}

fn write_at(directory: impl AsFd, name: &str, bytes: &str) -> Result<(), Errno> {
    let file = openat(directory, name, OFlags::WRONLY | OFlags::CREATE, Mode::RUSR)?;
    File::from(file).write_all(bytes.as_bytes()).unwrap();
    Ok(())
}

/// Makes a tenant with a file.
fn make(mounted: &Mounted, tenant: &str, bytes: &str) {
    fs::create_dir_all(mounted.path(tenant).join("c")).unwrap();
    fs::write(mounted.path(tenant).join("c/f"), bytes).unwrap();
}

#[test]
fn a_tenant_with_the_old_name_of_another_gets_what_is_written_below_its_name() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    make(&mounted, "a", "old");
    let (open, first) = (File::open(mounted.path("a")).unwrap(), number(&mounted.path("a")));
    fs::rename(mounted.path("a"), mounted.path("b")).unwrap();
    assert_eq!(number(&mounted.path("b")), first);
    assert!(!mounted.path("a").exists());
    fs::create_dir(mounted.path("a")).unwrap();
    assert_ne!(number(&mounted.path("a")), first);
    assert_eq!((names(&mounted.path("a")), names(&mounted.path("b"))), (vec![], vec!["c".to_owned()]));
    assert!(!mounted.path("a/c").exists());
    // As cp -r does.
    make(&mounted, "a", "new");
    assert_eq!(fs::read_to_string(mounted.path("b/c/f")).unwrap(), "old");
    assert_eq!(fs::read_to_string(mounted.path("a/c/f")).unwrap(), "new");
    // A program that works in the renamed tenant stays there.
    assert_eq!(open.metadata().unwrap().ino(), first);
    assert_eq!(read_at(&open, "c/f").unwrap(), "old");
    mkdirat(&open, "d", Mode::RWXU).unwrap();
    write_at(&open, "d/g", "late").unwrap();
    assert_eq!(fs::read_to_string(mounted.path("b/d/g")).unwrap(), "late");
    assert_eq!(names(&mounted.path("a")), ["c"]);
    let limits = fs::read_to_string(mounted.path("b/.ctl/quota")).unwrap();
    assert_eq!(read_at(&open, ".ctl/quota").unwrap(), limits);
    assert_ne!(number(&mounted.path("a/.ctl/quota")), number(&mounted.path("b/.ctl/quota")));
    drop(open);
    let numbers = ["a", "b", "a/c", "b/c"].map(|name| number(&mounted.path(name)));
    mounted.unmount();
    let mounted = place.mount(&[]);
    assert_eq!(numbers, ["a", "b", "a/c", "b/c"].map(|name| number(&mounted.path(name))));
}

#[test]
fn a_tenant_with_the_name_of_a_removed_one_is_another() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    fs::create_dir(mounted.path("a")).unwrap();
    let open = File::open(mounted.path("a")).unwrap();
    let first = number(&mounted.path("a"));
    fs::remove_dir(mounted.path("a")).unwrap();
    make(&mounted, "a", "new");
    assert_ne!(number(&mounted.path("a")), first);
    assert_eq!(fs::read_to_string(mounted.path("a/c/f")).unwrap(), "new");
    assert_eq!(mkdirat(&open, "d", Mode::RWXU), Err(Errno::NOENT));
    assert!(read_at(&open, "c/f").is_err());
}

#[test]
fn a_shell_in_a_renamed_tenant_stays_in_it() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    make(&mounted, "a", "old");
    let script = "cd a && mv ../a ../b && mkdir -p ../a/c && echo new > ../a/c/f && mkdir x && echo here > x/y && cat c/f && /bin/pwd";
    let shown = shell(&mounted.mountpoint, script);
    assert_eq!(text(&shown.stdout), format!("old{}\n", mounted.path("b").display()));
    assert_eq!(fs::read_to_string(mounted.path("b/x/y")).unwrap(), "here\n");
    assert_eq!(names(&mounted.path("a")), ["c"]);
}

#[test]
fn a_tenant_without_a_recorded_number_keeps_the_one_that_it_had_when_it_is_renamed() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    make(&mounted, "a", "old");
    mounted.unmount();
    fs::remove_file(place.store().join("a/.tenant.toml")).unwrap();
    let mounted = place.mount(&[]);
    let (open, first) = (File::open(mounted.path("a")).unwrap(), number(&mounted.path("a")));
    fs::rename(mounted.path("a"), mounted.path("b")).unwrap();
    make(&mounted, "a", "new");
    assert_eq!((number(&mounted.path("b")), read_at(&open, "c/f")), (first, Ok("old".to_owned())));
    mkdirat(&open, "d", Mode::RWXU).unwrap();
    assert_eq!(names(&mounted.path("a")), ["c"]);
}

#[test]
fn the_next_daemon_knows_renamed_tenants_that_programs_have_open() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "--keep-device"]);
    make(&mounted, "a", "old");
    let open = File::open(mounted.path("a")).unwrap();
    fs::rename(mounted.path("a"), mounted.path("b")).unwrap();
    make(&mounted, "a", "new");
    for next in [replace as fn(&Mounted), kill_daemon] {
        next(&mounted);
        assert_eq!(read_at(&open, "c/f").unwrap(), "old");
        statat(&open, "none", AtFlags::empty()).unwrap_err();
        write_at(&open, "c/g", "later").unwrap();
        assert_eq!(names(&mounted.path("a/c")), ["f"]);
    }
    drop(open);
    mounted.unmount();
}

#[test]
fn programs_that_make_directories_make_tenants_and_collections() {
    let place = Place::new();
    let model = container_of(&mut Random(3), &[("a", 50_000), ("b", 70)]);
    for path in ["in/m.safetensors", "tree/two/m/m.safetensors", "tree/three/m/m.safetensors"] {
        place.write(path, &model);
    }
    let mounted = place.mount(&["--create"]);
    script(&place.path(""), "cp in/m.safetensors mnt/one/m/").failed(1, &["No such file or directory"]);
    script(&place.path(""), "test -d mnt/one || ls -d mnt/*").failed(2, &["mnt/*"]);
    script(
        &place.path(""),
        "set -e; mkdir -p mnt/one/m; cp in/m.safetensors mnt/one/m/
         cp -r tree/two mnt/; (cd tree; cp --parents three/m/m.safetensors ../mnt/)
         install -D in/m.safetensors mnt/four/m/m.safetensors; cp -r in mnt/four/",
    )
    .ok();
    assert_eq!(names(&mounted.mountpoint), ["four", "one", "three", "two"]);
    for path in ["one/m", "two/m", "three/m", "four/m", "four/in"] {
        assert!(fs::read(mounted.mountpoint.join(path).join("m.safetensors")).unwrap() == model, "{path}");
        assert_eq!(fs::metadata(mounted.mountpoint.join(path).join(".tensors/a")).unwrap().len(), 200_000);
    }
}

#[test]
fn in_a_store_with_explicit_directories_commands_alone_make_tenants_and_collections() {
    let place = Place::new();
    run(["init".as_ref(), place.store().as_os_str()]).ok();
    let settings = place.store().join("tierfs.toml");
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains("mkdir = \"auto\""));
    fs::write(&settings, text.replace("mkdir = \"auto\"", "mkdir = \"explicit\"")).unwrap();
    let mounted = place.mount(&[]);
    let refused_in = |directory: &Path, name: &str| {
        refused(fs::create_dir(directory.join(name)), libc::EPERM);
        assert!(get(directory, "why").contains("mkdir = \"explicit\""), "{}", get(directory, "why"));
    };
    refused_in(&mounted.mountpoint, "a");
    place.import("a/c", &[&place.write("f", "x")], &[]);
    refused_in(&mounted.path("a"), "d");
    refused(fs::create_dir(mounted.path("a/c")), libc::EEXIST);
    fs::create_dir_all(mounted.path("a/c/deep/er")).unwrap();
    fs::rename(mounted.path("a/c"), mounted.path("a/d")).unwrap();
    fs::rename(mounted.path("a"), mounted.path("b")).unwrap();
    assert_eq!(fs::read_to_string(mounted.path("b/d/f")).unwrap(), "x");
    assert_eq!(names(&mounted.path("b/d")), ["deep", "f"]);
    mounted.unmount();
}

/// A model: the tenants by name, each with the text of its file, beside the mount.
#[test]
fn random_renames_removals_and_new_tenants_of_four_names_agree_with_a_model() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let (mut random, mut model) = (Random(11), BTreeMap::<String, String>::new());
    let mut open: Vec<(File, Option<String>)> = Vec::new();
    for round in 0..150 * scale() {
        let [one, other] = [0, 1].map(|_| format!("t{}", random.below(4)));
        let path = |name: &str| mounted.path(name);
        match (random.below(6), model.contains_key(&one), model.contains_key(&other)) {
            (0 | 1, true, false) => {
                fs::rename(path(&one), path(&other)).unwrap();
                let text = model.remove(&one).unwrap();
                model.insert(other, text);
            }
            (2, true, _) => {
                fs::remove_dir_all(path(&one)).unwrap();
                let text = model.remove(&one);
                open.iter_mut().filter(|(_, of)| *of == text).for_each(|(_, of)| *of = None);
            }
            (3 | 4, false, _) => {
                make(&mounted, &one, &round.to_string());
                model.insert(one, round.to_string());
            }
            (5, true, _) => open.push((File::open(path(&one)).unwrap(), model.get(&one).cloned())),
            _ => continue,
        }
        for (name, text) in &model {
            assert_eq!(fs::read_to_string(path(name).join("c/f")).ok().as_ref(), Some(text), "{round}");
        }
        assert_eq!(names(&mounted.mountpoint), model.keys().cloned().collect::<Vec<_>>(), "{round}");
        for (directory, text) in &open {
            assert_eq!(read_at(directory, "c/f").ok(), *text, "{round}");
        }
        open.drain(..open.len().saturating_sub(6));
    }
}
