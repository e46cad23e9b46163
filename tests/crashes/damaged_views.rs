//! Repairs of a collection with views, whose elements lie in other tensors: a view reads its elements, or is an error, or
//! is gone with its container. It never becomes a file of other bytes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Fixture, Place, files_below, repository, run, shell};

fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x5a], at).unwrap();
}

type Contents = BTreeMap<String, Vec<u8>>;

fn copy(from: &Path, to: &Path) {
    let copied = shell(Path::new("/"), &format!("cp -a {} {}", from.display(), to.display()));
    assert!(copied.status.success(), "{copied:?}");
}

/// The tensors that can be read.
fn tensors(fixture: &Fixture) -> Contents {
    let folder = fixture.path(".tensors");
    let Ok(_) = fs::read_dir(&folder) else { return Contents::new() };
    let names = files_below(&folder);
    let read =
        |name: &std::path::PathBuf| Some((name.display().to_string(), fs::read(folder.join(name)).ok()?));
    names.iter().filter_map(read).collect()
}

#[test]
fn a_damaged_log_loses_views_with_their_container_and_shows_no_other_bytes() {
    let place = Place::new();
    let source = place.path("m.pt");
    fs::copy(repository("tests/golden/models/strided.pt"), &source).unwrap();
    place.import("demo/m", &[&source], &[]);
    let intact = place.path("intact");
    copy(&place.store(), &intact);
    let mut fixture = Fixture::unmounted(place);
    fixture.mount();
    let wanted = tensors(&fixture);
    assert!(wanted.len() > 8);
    let bytes = fs::metadata(intact.join("demo/m/meta.log")).unwrap().len();
    let (mut with_all, mut with_none) = (0, 0);
    for at in (64..bytes).step_by(211) {
        fixture.while_unmounted(|store| {
            fs::remove_dir_all(store).unwrap();
            copy(&intact, store);
            flip(&store.join("demo/m/meta.log"), at);
            let repaired = run(["fsck".as_ref(), "--repair".as_ref(), store.as_os_str()]);
            assert!(matches!(repaired.code, Some(0 | 3)), "byte {at}: {repaired:?}");
            run(["fsck".as_ref(), store.as_os_str()]).ok();
        });
        let found = tensors(&fixture);
        for (name, bytes) in &found {
            assert!(wanted[name] == *bytes, "byte {at}: {name} has other bytes");
        }
        with_all += usize::from(found.len() == wanted.len());
        with_none += usize::from(found.is_empty());
        let files = files_below(&fixture.path(""));
        let is_empty =
            |name: &&std::path::PathBuf| fs::metadata(fixture.path("").join(name)).unwrap().len() == 0;
        // One tensor has no elements.
        let empty: Vec<_> = files.iter().filter(is_empty).collect();
        assert!(empty.len() <= 1, "byte {at}: {empty:?}");
    }
    assert!(with_all > 0 && with_none > 0, "{with_all} and {with_none}");
}
