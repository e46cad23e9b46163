//! Names: which file gets a name, and which entry replaces another.

use std::collections::HashSet;
use std::sync::Arc;

use safetensors::Dtype;
use tierfs::format::log::catalog::{Entry, NodeEntry, NodeType};
use tierfs::ingest::{Options, Target, import_file};
use tierfs::model::{EntryId, ErrorKind};
use tierfs::store::Collection;
use tierfs::store::ROOT;
use tierfs::store::Settings;
use tierfs::store::Touched;
use tierfs::store::disk::Disk;
use tierfs::store::disk::memory::MemoryDisk;

use crate::fixture::{
    STORE, Tensor, create, file, files, find, import, npy_file, on_each_disk, open, origin, paths, read,
    safetensors_file, tensor,
};

fn bytes(name: &str, fill: u8, count: usize) -> Tensor {
    tensor(name, Dtype::U8, &[count], vec![fill; count])
}

fn memory() -> (Arc<dyn Disk>, Arc<Collection>) {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    let collection = create(&disk);
    (disk, collection)
}

fn taken(collection: &Collection, path: &str) -> HashSet<String> {
    let node = find(collection, path).unwrap().entry.id;
    collection.state().taken_names(node).into_iter().collect()
}

#[test]
fn invalid_names_are_escaped_and_keep_their_bytes() {
    let (disk, collection) = memory();
    let long = "x".repeat(300);
    let names = ["a", "a/b", "../../etc/passwd", "/abs", "c//d", ".ctl/x", "nul\0", "50%", "e/./f%", &long];
    let tensors: Vec<Tensor> =
        names.iter().enumerate().map(|(place, name)| bytes(name, place as u8 + 1, place + 1)).collect();
    import(&collection, "d/m.safetensors", &safetensors_file(&tensors), &Options::default()).unwrap();
    let open_file = paths(&collection);
    drop(collection);
    let collection = open(&disk).unwrap();
    assert!(collection.damage().is_none());
    assert_eq!(paths(&collection), open_file);
    assert!(taken(&collection, "d/m.safetensors").is_empty());
    for (path, place) in [
        ("a", 0),
        ("a%2Fb", 1),
        ("%2E%2E/%2E%2E/etc/passwd", 2),
        ("%2F/abs", 3),
        ("c/%2F/d", 4),
        ("%2Ectl/x", 5),
        ("nul%00", 6),
        ("50%", 7),
        ("e/%2E/f%25", 8),
    ] {
        let right = vec![place as u8 + 1; place + 1];
        assert_eq!(read(&collection, &format!("d/{path}")).unwrap(), right, "{path}");
    }
    let shortened = open_file.iter().find(|path| path.starts_with("d/xxx")).unwrap();
    assert_eq!(shortened.len(), "d/".len() + 200 + 2 + 32);
    assert_eq!(read(&collection, shortened).unwrap(), vec![10; 10]);
}

#[test]
fn the_container_that_sorts_first_has_a_name_and_the_others_are_below_their_own() {
    let (disk, collection) = memory();
    let first = safetensors_file(&[bytes("w", 1, 10), bytes("only", 2, 5)]);
    let second = safetensors_file(&[bytes("w", 3, 20), bytes("other", 4, 5), bytes("only/x", 5, 6)]);
    // The order of arrival does not matter.
    import(&collection, "m.fp16.safetensors", &second, &Options::default()).unwrap();
    assert_eq!(read(&collection, "w").unwrap(), [3; 20]);
    let report = import(&collection, "z.safetensors", &first, &Options::default()).unwrap();
    assert_eq!(report.tensors, 2);
    drop(collection);
    let collection = open(&disk).unwrap();
    for place in ["", ".tensors/"] {
        assert_eq!(read(&collection, &format!("{place}w")).unwrap(), [1; 10]);
        assert_eq!(read(&collection, &format!("{place}only")).unwrap(), [2; 5]);
        assert_eq!(read(&collection, &format!("{place}other")).unwrap(), [4; 5]);
    }
    assert_eq!(read(&collection, ".tensors/m.fp16.safetensors/w").unwrap(), [3; 20]);
    assert_eq!(read(&collection, ".tensors/m.fp16.safetensors/only/x").unwrap(), [5; 6]);
    assert_eq!(read(&collection, ".tensors/z.safetensors/w").unwrap(), [1; 10]);
    assert!(find(&collection, ".tensors/z.safetensors/other").is_none());
    assert!(taken(&collection, "z.safetensors").is_empty());
    assert_eq!(taken(&collection, "m.fp16.safetensors"), ["w".to_owned(), "only/x".to_owned()].into());
    assert_eq!(
        paths(&collection),
        [
            ".tensors/m.fp16.safetensors/only/x",
            ".tensors/m.fp16.safetensors/w",
            "m.fp16.safetensors",
            "only",
            "other",
            "w",
            "z.safetensors"
        ]
    );
    assert!(read(&collection, "z.safetensors").unwrap() == first);
    assert!(read(&collection, "m.fp16.safetensors").unwrap() == second);
}

#[test]
fn a_new_import_replaces_the_old_file_its_tensors_and_its_objects() {
    on_each_disk(|disk| {
        let collection = create(&disk);
        let old = safetensors_file(&[bytes("w", 1, 30_000), bytes("gone", 2, 5)]);
        let new = safetensors_file(&[bytes("w", 3, 40_000), bytes("come", 4, 7)]);
        import(&collection, "m.safetensors", &old, &Options::default()).unwrap();
        let before = collection.state().objects().count();
        let id = find(&collection, "m.safetensors").unwrap().entry.id;
        import(&collection, "m.safetensors", &new, &Options::default()).unwrap();
        let check = |collection: &Arc<Collection>| {
            assert_eq!(paths(collection), ["come", "m.safetensors", "w"]);
            assert!(read(collection, "m.safetensors").unwrap() == new);
            assert_eq!(read(collection, "w").unwrap(), vec![3; 40_000]);
            assert_eq!(collection.state().objects().count(), before);
            assert_eq!(collection.state().nodes().count(), 4);
            assert!(collection.state().node(id).is_none());
        };
        check(&collection);
        drop(collection);
        let collection = open(&disk).unwrap();
        check(&collection);
        // One data file: that of the new container.
        assert_eq!(files(&disk, "t/c/data").len(), 1);
    });
}

#[test]
fn a_name_that_a_directory_has_is_refused_and_that_of_a_tensor_is_taken() {
    let (disk, collection) = memory();
    let container = safetensors_file(&[bytes("w", 1, 10), bytes("d/x", 2, 5), bytes("e/x", 3, 6)]);
    import(&collection, "m.safetensors", &container, &Options::default()).unwrap();
    import(&collection, "plain", b"p", &Options::default()).unwrap();
    import(&collection, "sub/file", b"s", &Options::default()).unwrap();
    let before = paths(&collection);
    let error = import(&collection, "sub", b"other", &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert!(error.to_string().contains("sub"), "{error}");
    let error = import(&collection, "plain/x", b"other", &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(paths(&collection), before);
    for path in ["w", "d", "e/x"] {
        import(&collection, path, b"other", &Options::default()).unwrap();
    }
    for collection in [collection, open(&disk).unwrap()] {
        assert!(read(&collection, "m.safetensors").unwrap() == container);
        for path in ["w", "d", "e/x"] {
            assert_eq!(read(&collection, path).unwrap(), b"other", "{path}");
        }
        assert_eq!(read(&collection, ".tensors/w").unwrap(), [1; 10]);
        assert_eq!(read(&collection, ".tensors/d/x").unwrap(), [2; 5]);
        assert_eq!(read(&collection, ".tensors/e/x").unwrap(), [3; 6]);
    }
}

#[test]
fn tensors_have_the_paths_that_no_entry_has_below_directories_that_are_there() {
    let (disk, collection) = memory();
    let outer = safetensors_file(&[bytes("d/w", 1, 10), bytes("d/x/y", 2, 5), bytes("d/only", 3, 6)]);
    let inner = safetensors_file(&[bytes("w", 4, 7), bytes("x/z", 5, 8)]);
    import(&collection, "m.safetensors", &outer, &Options::default()).unwrap();
    import(&collection, "d/n.safetensors", &inner, &Options::default()).unwrap();
    import(&collection, "d/x/file", b"file", &Options::default()).unwrap();
    for collection in [collection, open(&disk).unwrap()] {
        // The nearest directory wins.
        assert_eq!(read(&collection, "d/w").unwrap(), [4; 7]);
        assert_eq!(read(&collection, "d/only").unwrap(), [3; 6]);
        assert_eq!(read(&collection, "d/x/y").unwrap(), [2; 5]);
        assert_eq!(read(&collection, "d/x/z").unwrap(), [5; 8]);
        assert_eq!(read(&collection, "d/x/file").unwrap(), b"file");
        assert_eq!(read(&collection, ".tensors/d/w").unwrap(), [1; 10]);
        assert!(find(&collection, "d/.tensors/only").is_none());
        let directory = find(&collection, "d").unwrap().entry.id;
        let state = collection.state();
        let listed = |with_tensors| {
            let (mut names, mut after) = (Vec::new(), 0);
            while let Some((last, name, _)) = state.listed(directory, after, with_tensors, 1).unwrap().pop() {
                names.push(String::from_utf8(name.to_vec()).unwrap());
                after = last;
            }
            names
        };
        assert_eq!(listed(false), ["n.safetensors", "x"]);
        assert_eq!(listed(true), ["only", "w", "n.safetensors", "x"]);
    }
}

#[test]
fn impossible_names_are_refused_before_anything_is_written() {
    let (disk, collection) = memory();
    for (directories, name) in [
        (vec![b"..".to_vec()], b"x".to_vec()),
        (vec![b"".to_vec()], b"x".to_vec()),
        (vec![b"a/b".to_vec()], b"x".to_vec()),
        (vec![vec![b'd'; 256]], b"x".to_vec()),
        (Vec::new(), vec![0xff; 256]),
        (Vec::new(), vec![0xff, b'/']),
    ] {
        let place = format!("{directories:?} {name:?}");
        let target = Target { directories, name };
        let (settings, options) = (Settings::new(STORE), Options::default());
        let progress = tierfs::model::Silent;
        let done = import_file(&collection, &settings, &target, &file(b"x"), &origin(), &options, &progress);
        assert_eq!(done.err().map(|error| error.kind()), Some(ErrorKind::Invalid), "{place}");
    }
    assert_eq!(paths(&collection), [""; 0]);
    drop(collection);
    let collection = open(&disk).unwrap();
    assert!(collection.damage().is_none());
    assert_eq!(collection.state().objects().count(), 0);
}

fn link(collection: &Collection, name: &str, node: EntryId) {
    let commit = collection.commit(Touched::default(), |batch, state| {
        let entry = EntryId(state.last_entry() + 1);
        batch.entry(Entry::Name { parent: ROOT, entry, name: name.as_bytes().into(), node });
        Ok(())
    });
    commit.unwrap();
}

#[test]
fn replacing_one_of_two_names_leaves_the_file_under_the_other() {
    let (disk, collection) = memory();
    let array = npy_file("<f4", "(10,)", &[5; 40]);
    import(&collection, "x.npy", &array, &Options::default()).unwrap();
    link(&collection, "second.npy", find(&collection, "x.npy").unwrap().entry.id);
    import(&collection, "second.npy", &npy_file("|u1", "(3,)", &[1; 3]), &Options::default()).unwrap();
    assert_eq!(paths(&collection), ["second", "second.npy", "x", "x.npy"]);
    link(&collection, "third", find(&collection, "x.npy").unwrap().entry.id);
    import(&collection, "x.npy", &npy_file("|u1", "(4,)", &[2; 4]), &Options::default()).unwrap();
    for collection in [collection, open(&disk).unwrap()] {
        assert!(read(&collection, "third").unwrap() == array);
        assert_eq!(read(&collection, "x").unwrap(), [2; 4]);
        assert_eq!(read(&collection, "second").unwrap(), [1; 3]);
    }
}

#[test]
fn an_import_replaces_a_symbolic_link_of_the_same_name() {
    let (disk, collection) = memory();
    let commit = collection.commit(Touched::default(), |batch, state| {
        let id = EntryId(state.last_entry() + 1);
        batch.entry(Entry::Node(Box::new(NodeEntry {
            id,
            mode: 0o777,
            uid: 0,
            gid: 0,
            atime: 0,
            mtime: 0,
            ctime: 0,
            created_at: 0,
            node_type: NodeType::Symlink(b"elsewhere".to_vec()),
        })));
        batch.entry(Entry::Name { parent: ROOT, entry: id, name: b"l".as_slice().into(), node: id });
        Ok(())
    });
    commit.unwrap();
    import(&collection, "l", b"file", &Options::default()).unwrap();
    for collection in [collection, open(&disk).unwrap()] {
        assert_eq!(read(&collection, "l").unwrap(), b"file");
        assert_eq!(collection.state().nodes().count(), 2);
    }
}

#[test]
fn a_container_of_very_many_tensors_is_named_quickly() {
    let (_, collection) = memory();
    let tensors: Vec<Tensor> = (0..20_000).map(|n| bytes(&format!("l/{}/{n}", n % 100), 1, 1)).collect();
    let container = safetensors_file(&tensors);
    let started = std::time::Instant::now();
    import(&collection, "m.safetensors", &container, &Options::default()).unwrap();
    // Comparing each name with all others would take minutes.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert!(read(&collection, "m.safetensors").unwrap() == container);
}

#[test]
fn names_that_were_directories_of_the_container_before_are_tensors_quickly() {
    let (disk, collection) = memory();
    let of = |suffix: &str| {
        safetensors_file(&(0..15_000).map(|n| bytes(&format!("{n}{suffix}"), 1, 1)).collect::<Vec<_>>())
    };
    let started = std::time::Instant::now();
    import(&collection, "m.safetensors", &of("/x"), &Options::default()).unwrap();
    let report = import(&collection, "m.safetensors", &of(""), &Options::default()).unwrap();
    // Comparing each new name with all removed ones would take minutes.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert_eq!(report.tensors, 15_000);
    let report = import(&collection, "m.safetensors", &of("/x"), &Options::default()).unwrap();
    assert_eq!(report.tensors, 15_000);
    let before = paths(&collection);
    assert_eq!(before.len(), 15_001);
    drop(collection);
    assert_eq!(paths(&open(&disk).unwrap()), before);
}

#[test]
fn a_replaced_container_has_the_names_of_its_new_tensors_only() {
    let (_, collection) = memory();
    let first = safetensors_file(&[bytes("a/b/c", 1, 1), bytes("d/e", 2, 1)]);
    import(&collection, "m.safetensors", &first, &Options::default()).unwrap();
    let second = safetensors_file(&[bytes("a/b/x", 1, 2), bytes("d", 3, 1)]);
    import(&collection, "m.safetensors", &second, &Options::default()).unwrap();
    assert_eq!(paths(&collection), ["a/b/x", "d", "m.safetensors"]);
    assert_eq!(read(&collection, "d").unwrap(), [3]);
    assert!(find(&collection, ".tensors/a/b/c").is_none());
}
