//! Names: who gets one, what replaces what.

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

fn why(collection: &Collection, path: &str) -> String {
    find(collection, path).unwrap().file().unwrap().why.to_string()
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
    assert_eq!(why(&collection, "d/m.safetensors"), "");
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
fn the_first_owner_keeps_a_name_and_the_import_reports_the_other() {
    let (disk, collection) = memory();
    let first = safetensors_file(&[bytes("w", 1, 10), bytes("only", 2, 5)]);
    let second = safetensors_file(&[bytes("w", 3, 20), bytes("other", 4, 5), bytes("only/x", 5, 6)]);
    import(&collection, "1.safetensors", &first, &Options::default()).unwrap();
    let report = import(&collection, "2.safetensors", &second, &Options::default()).unwrap();
    assert_eq!(report.tensors, 1);
    drop(collection);
    let collection = open(&disk).unwrap();
    assert_eq!(read(&collection, "w").unwrap(), [1; 10]);
    assert_eq!(read(&collection, "other").unwrap(), [4; 5]);
    assert_eq!(why(&collection, "1.safetensors"), "");
    let said = why(&collection, "2.safetensors");
    let listed = said.rsplit(": ").next().unwrap();
    assert_eq!(listed.split(", ").collect::<HashSet<_>>(), ["w", "only/x"].into(), "{said}");
    assert!(read(&collection, "1.safetensors").unwrap() == first);
    assert!(read(&collection, "2.safetensors").unwrap() == second);
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
fn the_name_of_a_directory_or_a_tensor_is_refused_and_nothing_changes() {
    let (disk, collection) = memory();
    let container = safetensors_file(&[bytes("w", 1, 10), bytes("d/x", 2, 5)]);
    import(&collection, "m.safetensors", &container, &Options::default()).unwrap();
    import(&collection, "plain", b"p", &Options::default()).unwrap();
    let before = paths(&collection);
    for path in ["w", "d", "d/x"] {
        let error = import(&collection, path, b"other", &Options::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Exists, "{path}: {error}");
        assert!(error.to_string().contains(path), "{error}");
    }
    let error = import(&collection, "plain/x", b"other", &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    for collection in [collection, open(&disk).unwrap()] {
        assert_eq!(paths(&collection), before);
        assert!(read(&collection, "m.safetensors").unwrap() == container);
        assert_eq!(read(&collection, "w").unwrap(), [1; 10]);
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
fn names_of_implied_directories_of_the_old_container_are_reused_quickly() {
    let (disk, collection) = memory();
    let of = |suffix: &str| {
        safetensors_file(&(0..15_000).map(|n| bytes(&format!("{n}{suffix}"), 1, 1)).collect::<Vec<_>>())
    };
    let started = std::time::Instant::now();
    import(&collection, "m.safetensors", &of("/x"), &Options::default()).unwrap();
    let report = import(&collection, "m.safetensors", &of(""), &Options::default()).unwrap();
    // Looking at all names that go for each that comes would take minutes.
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    assert_eq!(report.tensors, 15_000);
    let report = import(&collection, "m.safetensors", &of("/x"), &Options::default()).unwrap();
    assert_eq!(report.tensors, 15_000);
    let open_file = paths(&collection);
    assert_eq!(open_file.len(), 30_001);
    drop(collection);
    assert_eq!(paths(&open(&disk).unwrap()), open_file);
}

#[test]
fn a_directory_that_gains_another_name_is_not_replaced_by_a_tensor() {
    let (_, collection) = memory();
    let first = safetensors_file(&[bytes("a/b/c", 1, 1), bytes("d/e", 2, 1)]);
    import(&collection, "m.safetensors", &first, &Options::default()).unwrap();
    // The directories go but for the name that comes first: what has a tensor below it stays a directory.
    let second = safetensors_file(&[bytes("a/b/x", 1, 2), bytes("d", 3, 1)]);
    import(&collection, "m.safetensors", &second, &Options::default()).unwrap();
    assert_eq!(paths(&collection), ["a", "a/b", "a/b/x", "d", "m.safetensors"]);
    assert_eq!(read(&collection, "d").unwrap(), [3]);
}

#[test]
fn the_report_of_names_with_other_owners_is_short() {
    let (_, collection) = memory();
    let of =
        |fill| safetensors_file(&(0..3000).map(|n| bytes(&format!("{n:0200}"), fill, 1)).collect::<Vec<_>>());
    import(&collection, "1.safetensors", &of(1), &Options::default()).unwrap();
    import(&collection, "2.safetensors", &of(2), &Options::default()).unwrap();
    let said = why(&collection, "2.safetensors");
    assert!(said.len() < 5000 && said.ends_with(" more"), "{said}");
}
