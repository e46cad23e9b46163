//! Plain names of tensors, beside their container: they are only read, and never take what a program writes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use support::{
    Fixture, Mounted, Place, Random, assert_same, container_of, events, get, mknod, names, npy_file, refused,
    script, set, tensors_of, truncate, utimens,
};

/// A mounted store with the imported collection `t/c`: a container, and another one in a directory.
fn placed() -> (Place, Mounted, Vec<u8>) {
    let place = Place::new();
    let bytes = container_of(&mut Random(1), &[("w", 20_000), ("blk/0/q", 501), ("sub/r", 9)]);
    place.write("source/m.safetensors", &bytes);
    place.write("source/config.json", b"{}");
    place.write("source/sub/x.npy", npy_file(&Random(2).floats(30)));
    place.import("t/c", &[&place.path("source")], &[]);
    let mounted = place.mount(&["--allow-other"]);
    (place, mounted, bytes)
}

fn check_plain(mounted: &Mounted, bytes: &[u8], tensors: &[&str]) {
    for (tensor, data) in tensors_of(bytes).iter().filter(|(name, _)| tensors.contains(&name.as_str())) {
        assert_same(&fs::read(mounted.path("t/c").join(tensor)).unwrap(), data, tensor);
    }
}

#[test]
fn the_plain_names_of_an_import_are_read_and_get_attributes_and_are_never_written() {
    let (_place, mounted, bytes) = placed();
    let at = |name: &str| mounted.path("t/c").join(name);
    assert_eq!(get(&at(""), "plain"), "on");
    assert_eq!(get(&at("sub"), "plain"), "on");
    check_plain(&mounted, &bytes, &["w", "blk/0/q", "sub/r"]);
    let found = fs::metadata(at(".tensors/w")).unwrap();
    let plain = fs::metadata(at("w")).unwrap();
    assert_eq!((plain.ino(), plain.len(), plain.mode()), (found.ino(), found.len(), found.mode()));
    for options in [
        OpenOptions::new().write(true),
        OpenOptions::new().read(true).write(true),
        OpenOptions::new().append(true),
        OpenOptions::new().write(true).create(true),
        OpenOptions::new().write(true).create(true).truncate(true),
    ] {
        refused(options.open(at("w")), libc::EACCES);
    }
    let why = get(&at("w"), "why");
    assert_eq!(
        why,
        "open to write refused: a tensor is only read by its plain name; write to t/c/.tensors/w"
    );
    refused(truncate(&at("blk/0/q"), 4), libc::EACCES);
    assert!(get(&at("blk/0/q"), "why").contains("t/c/.tensors/blk/0/q"));
    refused(utimens(&at("w"), (5, 0), (5, 0)), libc::EACCES);
    refused(fs::set_permissions(at("w"), PermissionsExt::from_mode(0o600)), libc::EACCES);
    refused(File::create_new(at("w")), libc::EEXIST);
    refused(fs::create_dir(at("w")), libc::EEXIST);
    refused(symlink("m.safetensors", at("w")), libc::EEXIST);
    refused(fs::remove_file(at("w")), libc::EPERM);
    refused(fs::rename(at("w"), at("v")), libc::EPERM);
    refused(fs::hard_link(at("w"), at("v")), libc::EPERM);
    refused(fs::remove_dir(at("blk")), libc::EPERM);
    assert_eq!(get(&at(""), "plain"), "on");
    check_plain(&mounted, &bytes, &["w", "blk/0/q", "sub/r"]);
    set(&at("w"), "pin", "1").unwrap();
    assert_eq!(get(&at(".tensors/w"), "pin"), "1");
    set(&at("w"), "pin", "0").unwrap();
    set(&at("w"), "tier", "q8:lossy").unwrap();
    assert_eq!(get(&at(".tensors/w"), "tier"), "q8");
    // A descriptor that was opened to read stays so.
    let file = File::open(at("w")).unwrap();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    assert!(OpenOptions::new().write(true).open(again).is_err());
}

#[test]
fn a_write_to_a_tensor_is_read_by_its_plain_name_after_the_close() {
    let (_place, mounted, bytes) = placed();
    let at = |name: &str| mounted.path("t/c").join(name);
    let mut wanted = tensors_of(&bytes).into_iter().find(|(name, _)| name == "w").unwrap().1;
    let reader = File::open(at("w")).unwrap();
    for round in 0..3_u8 {
        assert_same(&fs::read(at("w")).unwrap(), &wanted, "w");
        wanted[..4].copy_from_slice(&[round, 0, 128, 63]);
        let tensor = OpenOptions::new().write(true).open(at(".tensors/w")).unwrap();
        tensor.write_all_at(&wanted[..4], 0).unwrap();
        drop(tensor);
        assert_same(&fs::read(at("w")).unwrap(), &wanted, "w");
        let mut begin = [0; 4];
        reader.read_exact_at(&mut begin, 0).unwrap();
        assert_eq!(begin, wanted[..4]);
        // By the container.
        wanted[4..8].copy_from_slice(&[round, 0, 128, 191]);
        let container = OpenOptions::new().write(true).open(at("m.safetensors")).unwrap();
        let place =
            bytes.windows(8).position(|window| window == &fs::read(at("w")).unwrap()[8..16]).unwrap() - 8;
        container.write_all_at(&wanted[4..8], place as u64 + 4).unwrap();
        drop(container);
        assert_same(&fs::read(at("w")).unwrap(), &wanted, "w");
        reader.read_exact_at(&mut begin, 4).unwrap();
        assert_eq!(begin, wanted[4..8]);
    }
}

#[test]
fn the_first_name_that_a_program_makes_ends_the_plain_names_of_that_directory() {
    let (place, mut mounted, bytes) = placed();
    let path = |mounted: &Mounted, name: &str| mounted.path("t/c").join(name);
    let gone = |mounted: &Mounted, name: &str| refused(fs::metadata(path(mounted, name)), libc::ENOENT);
    check_plain(&mounted, &bytes, &["w", "blk/0/q", "sub/r"]);
    let inside = fs::read_dir(path(&mounted, "blk/0")).unwrap();
    // In a directory below.
    fs::write(path(&mounted, "sub/r.txt"), b"new").unwrap();
    for name in ["sub/r", "sub/x"] {
        gone(&mounted, name);
    }
    fs::write(path(&mounted, "sub/r"), b"mine").unwrap();
    assert_eq!(get(&path(&mounted, "sub"), "plain"), "off");
    assert_eq!(get(&path(&mounted, ""), "plain"), "on");
    check_plain(&mounted, &bytes, &["w", "blk/0/q"]);
    // Above, and by another process.
    script(
        &path(&mounted, ""),
        "cat w > /dev/null && mv config.json config.old && ! test -e w && echo new > w",
    )
    .ok();
    drop(inside);
    let told = events(&mounted, "control");
    let told: Vec<&str> = told.iter().filter_map(|event| event["path"].as_str()).collect();
    assert_eq!(told, ["t/c/sub", "t/c"]);
    for _ in 0..2 {
        for name in ["blk", "blk/0/q"] {
            gone(&mounted, name);
        }
        assert_eq!(fs::read(path(&mounted, "w")).unwrap(), b"new\n");
        assert_eq!(fs::read(path(&mounted, "sub/r")).unwrap(), b"mine");
        assert_eq!(get(&path(&mounted, ""), "plain"), "off");
        for (tensor, data) in tensors_of(&bytes) {
            assert_same(&fs::read(path(&mounted, ".tensors").join(&tensor)).unwrap(), &data, &tensor);
        }
        mounted.unmount();
        mounted = place.mount(&["--allow-other"]);
    }
    // An import leaves the setting as it is, and a person brings the names back. Entries keep theirs.
    place.import("t/c", &[&place.path("source")], &[]);
    gone(&mounted, "blk/0/q");
    set(&path(&mounted, ""), "plain", "on").unwrap();
    check_plain(&mounted, &bytes, &["blk/0/q"]);
    assert_eq!(fs::read(path(&mounted, "w")).unwrap(), b"new\n");
    gone(&mounted, "sub/x");
    // A file at the place of a directory of tensors makes that directory.
    fs::write(path(&mounted, "blk/0/new"), b"new").unwrap();
    assert_eq!(names(&path(&mounted, "blk/0")), ["new"]);
    gone(&mounted, "blk/0/q");
    assert!(set(&path(&mounted, "w"), "plain", "on").is_err());
    assert!(set(&path(&mounted, ""), "plain", "1").is_err());
}

#[test]
fn every_call_that_makes_a_name_ends_plain_names() {
    for make in [
        "echo > new",
        "mkdir new",
        "ln -s x new",
        "ln config.json new",
        "mknod new p || touch new",
        "mv m.safetensors w",
        "mv config.json blk",
        "mv sub/x.npy x.npy",
    ] {
        let (_place, mounted, _) = placed();
        let at = |name: &str| mounted.path("t/c").join(name);
        fs::metadata(at("w")).unwrap();
        fs::metadata(at("blk/0/q")).unwrap();
        script(&at(""), make).ok();
        assert_eq!(get(&at(""), "plain"), "off", "{make}");
        assert!(!at("w").exists() || make.ends_with(" w"), "{make}");
        refused(fs::metadata(at("blk/0/q")), libc::ENOENT);
    }
}

#[test]
fn a_collection_that_moves_or_is_removed_needs_no_plain_names() {
    let (place, mounted, bytes) = placed();
    // Removing names makes none, and a directory that moves takes the setting of its new place.
    fs::remove_file(mounted.path("t/c/config.json")).unwrap();
    check_plain(&mounted, &bytes, &["w"]);
    fs::metadata(mounted.path("t/c").join("sub/x")).unwrap();
    place.import("t/c", &[&place.path("source/config.json")], &[]);
    assert_eq!(get(&mounted.path("t/c"), "plain"), "on");
    // An import into a collection that a program made shows none.
    fs::create_dir(mounted.path("t/made")).unwrap();
    place.import("t/made", &[&place.path("source")], &[]);
    assert_eq!(get(&mounted.path("t/made"), "plain"), "off");
    refused(fs::metadata(mounted.path("t/made").join("w")), libc::ENOENT);
    assert_eq!(fs::metadata(mounted.path("t/made/.tensors/w")).unwrap().len(), 80_000);
    fs::create_dir(mounted.path("t/c").join("new")).unwrap();
    refused(fs::metadata(mounted.path("t/c").join("sub/x")), libc::ENOENT);
    script(&mounted.path("t"), "rm -r c").ok();
}

#[test]
fn a_file_beside_an_array_of_its_stem_is_made_in_every_way() {
    let mut fixture = Fixture::new();
    let array = npy_file(&Random(3).floats(1000));
    type Make = fn(&Path) -> io::Result<()>;
    let makes: &[(&str, Make)] = &[
        ("truncated", |path| File::create(path)?.write_all(b"text")),
        ("new", |path| File::create_new(path)?.write_all(b"text")),
        ("appended", |path| OpenOptions::new().append(true).create(true).open(path)?.write_all(b"text")),
        ("in place", |path| {
            OpenOptions::new().write(true).create(true).truncate(false).open(path)?.write_all(b"text")
        }),
        ("made", |path| {
            mknod(path, libc::S_IFREG | 0o644)?;
            OpenOptions::new().write(true).open(path)?.write_all(b"text")
        }),
        ("renamed", |path| {
            let other = path.with_extension("part");
            fs::write(&other, b"text")?;
            fs::rename(other, path)
        }),
        ("linked", |path| {
            let other = path.with_extension("part");
            fs::write(&other, b"text")?;
            fs::hard_link(&other, path)?;
            fs::remove_file(other)
        }),
    ];
    for (number, (name, make)) in makes.iter().enumerate() {
        let folder = fixture.path("").join(format!("d{number}"));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("loss.npy"), &array).unwrap();
        assert!(folder.join(".tensors/loss").exists() && !folder.join("loss").exists());
        make(&folder.join("loss")).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(fs::read(folder.join("loss")).unwrap(), b"text", "{name}");
        assert_same(&fs::read(folder.join("loss.npy")).unwrap(), &array, name);
        assert_eq!(names(&folder), ["loss", "loss.npy"]);
    }
    let folder = fixture.path("").join("e");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.npy"), &array).unwrap();
    fs::create_dir(folder.join("a")).unwrap();
    fs::write(folder.join("b.npy"), &array).unwrap();
    symlink("a", folder.join("b")).unwrap();
    fixture.remount();
    assert_eq!(names(&fixture.path("e")), ["a", "a.npy", "b", "b.npy"]);
    fixture.check();
}

/// An entry of a tree.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Entry {
    Directory,
    Link(PathBuf),
    File(Vec<u8>),
}

const STEMS: [&str; 5] = ["a", "b", "labels", "w", "0"];

/// A random tree whose containers have tensors with the names of other entries.
fn tree(random: &mut Random) -> BTreeMap<PathBuf, Entry> {
    let mut tree = BTreeMap::new();
    let mut directories = vec![PathBuf::new()];
    for _ in 0..10 + random.below(15) {
        let above = directories[random.below(directories.len())].clone();
        let stem = STEMS[random.below(STEMS.len())];
        let (name, entry) = match random.below(6) {
            0 | 1 => (stem.to_owned(), Entry::Directory),
            2 => (stem.to_owned(), Entry::Link("a".into())),
            3 => {
                let count = random.below(6000);
                (stem.to_owned(), Entry::File(random.bytes(count)))
            }
            4 => {
                let count = 1 + random.below(3000);
                (format!("{stem}.npy"), Entry::File(npy_file(&random.floats(count))))
            }
            _ => {
                let paths: Vec<String> = (0..1 + random.below(4))
                    .map(|_| {
                        let parts = (0..=random.below(3)).map(|_| STEMS[random.below(STEMS.len())]);
                        parts.collect::<Vec<_>>().join("/")
                    })
                    .collect::<std::collections::BTreeSet<_>>()
                    .into_iter()
                    .collect();
                let tensors: Vec<(&str, usize)> =
                    paths.iter().map(|path| (path.as_str(), 1 + random.below(2000))).collect();
                (format!("{stem}.safetensors"), Entry::File(container_of(random, &tensors)))
            }
        };
        let path = above.join(name);
        if tree.contains_key(&path) {
            continue;
        }
        if entry == Entry::Directory {
            directories.push(path.clone());
        }
        tree.insert(path, entry);
    }
    tree
}

fn write(path: &Path, bytes: &[u8], random: &mut Random) -> io::Result<()> {
    let mut file = match random.below(5) {
        0 => File::create_new(path)?,
        1 => File::create(path)?,
        2 => OpenOptions::new().write(true).create(true).truncate(false).open(path)?,
        3 => OpenOptions::new().append(true).create(true).open(path)?,
        _ => {
            let part = path.with_file_name(".part");
            fs::write(&part, bytes)?;
            return fs::rename(part, path);
        }
    };
    let middle = random.below(bytes.len() + 1);
    file.write_all(&bytes[..middle])?;
    file.write_all(&bytes[middle..])
}

/// The entries below a directory.
fn found(at: &Path) -> BTreeMap<PathBuf, Entry> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![at.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            let entry = if kind.is_dir() {
                waiting.push(path.clone());
                Entry::Directory
            } else if kind.is_symlink() {
                Entry::Link(fs::read_link(&path).unwrap())
            } else {
                let mut bytes = Vec::new();
                File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
                Entry::File(bytes)
            };
            found.insert(path.strip_prefix(at).unwrap().to_owned(), entry);
        }
    }
    found
}

#[track_caller]
fn check_tree(at: &Path, tree: &BTreeMap<PathBuf, Entry>, context: &str) {
    let found = found(at);
    assert_eq!(found.keys().collect::<Vec<_>>(), tree.keys().collect::<Vec<_>>(), "{context}");
    for (path, entry) in tree {
        let there = &found[path];
        assert!(there == entry, "{context}: {} differs", path.display());
    }
}

#[test]
fn every_tree_arrives_in_every_order_of_its_names() {
    let mut fixture = Fixture::new();
    let mut trees = Vec::new();
    for seed in 0..30 * u64::from(support::scale()) {
        let mut random = Random(seed);
        let tree = tree(&mut random);
        let folder = format!("d{seed}");
        let at = fixture.path("").join(&folder);
        fs::create_dir(&at).unwrap();
        let mut waiting: Vec<&PathBuf> = tree.keys().collect();
        while !waiting.is_empty() {
            let path = waiting.swap_remove(random.below(waiting.len()));
            let (place, context) = (at.join(path), format!("seed {seed}: {}", path.display()));
            // Nobody has the name yet, except a directory that something in it has needed.
            let above = place.parent().unwrap();
            fs::create_dir_all(above).unwrap_or_else(|error| panic!("{context}: {error}"));
            let made = match &tree[path] {
                Entry::Directory => fs::create_dir_all(&place),
                Entry::Link(target) => symlink(target, &place),
                Entry::File(bytes) => write(&place, bytes, &mut random),
            };
            made.unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        check_tree(&at, &tree, &format!("seed {seed}"));
        trees.push((folder, tree));
    }
    fixture.remount();
    for (folder, tree) in &trees {
        check_tree(&fixture.path(folder), tree, folder);
    }
    fixture.check();
}

#[test]
fn tools_copy_trees_whose_arrays_have_the_names_of_other_entries() {
    let fixture = Fixture::new();
    let (source, to) = (fixture.place.path("source"), fixture.path(""));
    fs::create_dir(&source).unwrap();
    let mut tree = BTreeMap::new();
    for seed in [5, 6, 7] {
        for (path, entry) in self::tree(&mut Random(seed)) {
            let (path, name) =
                (Path::new(&format!("{seed}")).join(&path), source.join(format!("{seed}")).join(&path));
            fs::create_dir_all(name.parent().unwrap()).unwrap();
            match &entry {
                Entry::Directory => fs::create_dir_all(&name).unwrap(),
                Entry::Link(target) => symlink(target, &name).unwrap(),
                Entry::File(bytes) => fs::write(&name, bytes).unwrap(),
            }
            tree.insert(path, entry);
        }
        tree.insert(format!("{seed}").into(), Entry::Directory);
    }
    let from = source.display();
    let identity = "git -c user.name=a -c user.email=a@b";
    for (number, copy) in [
        format!("cp -a {from}/. to"),
        format!("cp -r {from}/* to"),
        format!("tar -C {from} -cf - . | tar -C to -xf -"),
        format!("cd {from} && find . -depth -print0 | sort -rz | tar --no-recursion --null -T - -cf - | tar -C $OLDPWD/to -xf -"),
        format!("rsync -a {from}/ to/"),
        format!("rsync -a --inplace {from}/ to/"),
        format!("rsync -a --delay-updates {from}/ to/"),
        format!("rsync -a --inplace --append-verify {from}/ to/"),
        format!("rsync -a --whole-file --inplace --ignore-times {from}/ to/ && rsync -a --inplace -c {from}/ to/"),
        format!("python3 -c \"import shutil; shutil.copytree('{from}', 'to', symlinks=True, dirs_exist_ok=True)\""),
    ]
    .iter()
    .enumerate()
    {
        let folder = to.join(format!("copy{number}"));
        fs::create_dir_all(folder.join("to")).unwrap();
        script(&folder, copy).ok();
        check_tree(&folder.join("to"), &tree, copy);
    }
    // Git keeps no empty directories.
    let repository = format!("{identity} init -q . && {identity} add -A && {identity} commit -qm x");
    script(&source, &repository).ok();
    script(&to, &format!("git clone -q {from} clone && cd clone && test -z \"$(git status --porcelain)\""))
        .ok();
    fixture.check();
}
