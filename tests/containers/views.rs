//! Tensors of checkpoints whose elements lie apart, or belong to others too: they read as their contiguous values, follow
//! every change of the bytes below them, and are never encoded themselves (`tests/golden/models.py`).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use support::{Fixture, Mapping, Place, answer, assert_same, get, set, tierfs};

use crate::archives::golden;

/// The view of the tensor `cube` of 5 x 6 x 7 elements of 4 bytes that permutes its dimensions by (2, 0, 1).
fn permuted(cube: &[u8]) -> Vec<u8> {
    let element = |last: usize, first: usize, middle: usize| (first * 6 + middle) * 7 + last;
    let places = (0..7).flat_map(|last| {
        (0..5).flat_map(move |first| (0..6).map(move |middle| element(last, first, middle)))
    });
    places.flat_map(|place| cube[place * 4..][..4].to_vec()).collect()
}

fn tensor(name: &str) -> String {
    format!(".tensors/{name}")
}

fn with_views() -> Fixture {
    let fixture = Fixture::new();
    fs::copy(golden("strided.pt"), fixture.path("m.pt")).unwrap();
    fixture
}

#[track_caller]
fn check(fixture: &Fixture) {
    let cube = fixture.read(&tensor("cube"));
    assert_same(&fixture.read(&tensor("permuted")), &permuted(&cube), "permuted");
    assert_same(&fixture.read(&tensor("one")), &cube[((2 * 6 + 3) * 7 + 4) * 4..][..4], "one");
    let mapping = Mapping::of(&fixture.path(&tensor("permuted")), libc::MAP_SHARED);
    assert_same(&mapping.bytes()[..840], &permuted(&cube), "a mapping");
    let file = fs::File::open(fixture.path(&tensor("permuted"))).unwrap();
    for (at, len) in [(0, 1), (3, 10), (401, 399), (838, 2)] {
        let mut part = vec![0; len];
        file.read_exact_at(&mut part, at as u64).unwrap();
        assert_same(&part, &permuted(&cube)[at..at + len], "a part");
    }
}

#[test]
fn views_follow_writes_to_the_container_and_to_the_tensors_below_them() {
    let mut fixture = with_views();
    check(&fixture);
    let before = fixture.read("m.pt");
    let cube = fixture.read(&tensor("cube"));
    let at = before.windows(cube.len()).position(|window| window == cube).unwrap();
    for (name, at) in [(tensor("cube"), 8), ("m.pt".to_owned(), at + 400)] {
        let file = fs::OpenOptions::new().write(true).open(fixture.path(&name)).unwrap();
        file.write_all_at(&[7; 120], at as u64).unwrap();
        drop(file);
        check(&fixture);
        assert_ne!(fixture.read(&tensor("cube")), cube);
    }
    fixture.crash();
    check(&fixture);
    fixture.check();
}

#[test]
fn a_view_takes_no_write_no_tier_and_no_other_size() {
    let fixture = with_views();
    let path = fixture.path(&tensor("permuted"));
    let open = || fs::OpenOptions::new().write(true).open(&path);
    let written = open().and_then(|file| file.write_all_at(b"x", 0));
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EPERM));
    let cut = open().and_then(|file| file.set_len(4));
    assert_eq!(cut.unwrap_err().raw_os_error(), Some(libc::EPERM));
    set(&fixture.path("m.pt"), "lossy", "allow").unwrap();
    assert_eq!(set(&path, "tier", "q8"), Err(Errno::PERM));
    assert!(get(&path, "why").contains("move its container"), "{}", get(&path, "why"));
    check(&fixture);
}

#[test]
fn a_move_of_the_container_rounds_what_views_show() {
    let mut fixture = with_views();
    let exact = fixture.read(&tensor("permuted"));
    let preview = fixture.read(".as/q8/.tensors/permuted");
    assert_same(&preview, &exact, "a preview without :all leaves so small a tensor exact");
    set(&fixture.path("m.pt"), "lossy", "allow").unwrap();
    set(&fixture.path("m.pt"), "tier", "q8:all").unwrap();
    assert_eq!(fixture.attribute(&tensor("cube"), "tier"), "q8");
    assert_ne!(fixture.read(&tensor("permuted")), exact);
    check(&fixture);
    fixture.remount();
    check(&fixture);
    fixture.mounted().job(".ctl/compact", "start");
    check(&fixture);
    fixture.check();
}

#[test]
fn pins_of_views_follow_their_bytes() {
    let fixture = with_views();
    let pinned = [fixture.path(&tensor("permuted")), fixture.path(".as/npy/.tensors/permuted.npy")];
    for path in &pinned {
        set(path, "pin", "1").unwrap();
    }
    let ends = |cube: &[u8]| {
        for path in &pinned {
            let read = fs::read(path).unwrap();
            assert_same(&read[read.len() - 840..], &permuted(cube), &path.display().to_string());
        }
    };
    let cube = fixture.read(&tensor("cube"));
    ends(&cube);
    fs::OpenOptions::new()
        .write(true)
        .open(fixture.path(&tensor("cube")))
        .and_then(|file| file.write_all_at(&[9; 99], 77))
        .unwrap();
    ends(&fixture.read(&tensor("cube")));
}

/// The tensors of a safetensors file, as the format's crate reads them: the type, the shape and the bytes.
fn read_safetensors(path: &Path) -> BTreeMap<String, (String, String, Vec<u8>)> {
    let bytes = fs::read(path).unwrap();
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let shown = |tensor: safetensors::tensor::TensorView<'_>| {
        let sizes: Vec<String> = tensor.shape().iter().map(usize::to_string).collect();
        (tensor.dtype().to_string().to_lowercase(), sizes.join("x"), tensor.data().to_vec())
    };
    read.tensors().into_iter().map(|(name, tensor)| (name, shown(tensor))).collect()
}

#[test]
fn forms_have_views_and_an_import_in_a_tier_keeps_them() {
    let place = Place::new();
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    fs::copy(golden("strided.pt"), folder.join("m.pt")).unwrap();
    place.import("t/exact", &[&folder], &[]);
    place.import("t/child", &[&folder], &["--parent", "t/exact"]);
    let text = answer(
        tierfs().arg("import").arg(place.store()).args(["t/q8"]).arg(&folder).args(["--tier", "q8:all"]),
    )
    .ok();
    assert!(text.contains("11 with elements of others or apart"), "{text}");
    let again = place.try_import("t/q8", &[&folder], &["--tier", "q8:all"]).ok();
    assert!(again.contains("unchanged"), "{again}");
    let mounted = place.mount(&[]);
    for collection in ["exact", "child", "q8"] {
        let at = mounted.path(format!("t/{collection}"));
        let whole = read_safetensors(&at.join(".as/safetensors/_all.safetensors"));
        let loaded = crate::archives::loaded("strided.pt");
        assert_eq!(whole.len(), loaded.len());
        for (name, dtype, shape, hex) in loaded {
            let shown = fs::read(at.join(".tensors").join(&name)).unwrap();
            let wanted = (dtype, shape, shown.clone());
            assert!(whole[&name] == wanted, "{collection}: {name} in _all.safetensors");
            let one = at.join(format!(".as/safetensors/.tensors/{name}.safetensors"));
            assert!(read_safetensors(&one)[&name] == wanted, "{collection}: {name}.safetensors");
            if collection != "q8" {
                let found: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(found, hex, "{collection}: {name}");
            }
        }
        let cast = fs::read(at.join(".as/f32/.tensors/query")).unwrap();
        let bf16 = fs::read(at.join(".tensors/query")).unwrap();
        let wide: Vec<u8> = bf16.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]).collect();
        assert_same(&cast, &wide, "query as f32");
    }
    mounted.unmount();
    support::fsck(&place.store());
}

/// A large transposed matrix, which a daemon with decoded copies keeps whole.
#[test]
fn a_large_view_reads_the_same_again_and_again() {
    let place = Place::new();
    let path: PathBuf = place.path("large.pt");
    crate::archives::transposed(&path, 700, 900);
    place.import("t/m", &[&path], &[]);
    let mounted = place.mount(&[]);
    let (matrix, turned) = (mounted.path("t/m/.tensors/matrix"), mounted.path("t/m/.tensors/turned"));
    let matrix = fs::read(matrix).unwrap();
    let wanted: Vec<u8> = (0..900)
        .flat_map(|column| (0..700).map(move |row| (row * 900 + column) * 4))
        .flat_map(|at| matrix[at..at + 4].to_vec())
        .collect();
    for _ in 0..3 {
        assert_same(&fs::read(&turned).unwrap(), &wanted, "turned");
    }
    mounted.unmount();
}

/// The peak of the daemon's memory, in KiB.
fn peak(fixture: &Fixture) -> u64 {
    let process = fixture.mounted().daemon().unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_write_below_many_views_takes_no_memory_for_each_pair_of_them() {
    const VIEWS: usize = 20_000;
    let fixture = Fixture::new();
    let path = fixture.path("m.pt");
    crate::archives::windows(&path, VIEWS);
    let names = fs::read_dir(fixture.path(".tensors")).unwrap().count();
    assert_eq!(names, VIEWS + 1);
    let read = |place: usize| fixture.read(&tensor(&format!("w{place:05}")));
    let number = |bytes: &[u8], place: usize| f32::from_le_bytes(bytes[place * 4..][..4].try_into().unwrap());
    assert_eq!((number(&read(VIEWS - 1), 3), read(0).len()), (VIEWS as f32 + 4.0, 32));
    let before = peak(&fixture);
    let bytes = fs::read(&path).unwrap();
    let at = bytes.windows(32).rposition(|window| window == &fixture.read(".tensors/all")[4..36]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&9_f32.to_le_bytes(), at as u64).unwrap();
    drop(file);
    assert_eq!((number(&read(1), 0), number(&read(0), 2)), (9.0, 9.0));
    let grown = peak(&fixture) - before;
    assert!(grown < 200 << 10, "{grown} KiB for {VIEWS} views");
    fixture.check();
}

#[test]
fn views_go_with_every_name_of_their_container_and_outlive_them_while_they_are_open() {
    let mut fixture = with_views();
    fs::create_dir(fixture.path("sub")).unwrap();
    fs::hard_link(fixture.path("m.pt"), fixture.path("sub/linked.pt")).unwrap();
    fs::rename(fixture.path("m.pt"), fixture.path("other.pt")).unwrap();
    check(&fixture);
    let cube = fixture.read(&tensor("cube"));
    assert_same(&fixture.read("sub/.tensors/permuted"), &permuted(&cube), "of the link");
    fs::remove_file(fixture.path("other.pt")).unwrap();
    assert!(fs::read(fixture.path(&tensor("permuted"))).is_err());
    let at = fixture.path("sub/.tensors/permuted");
    let (open, mapping) = (fs::File::open(&at).unwrap(), Mapping::of(&at, libc::MAP_SHARED));
    fixture.mounted().job(".ctl/compact", "start");
    let file = fs::OpenOptions::new().write(true).open(fixture.path("sub/.tensors/cube")).unwrap();
    file.write_all_at(&[3; 100], 12).unwrap();
    drop(file);
    let cube = fixture.read("sub/.tensors/cube");
    fs::remove_file(fixture.path("sub/linked.pt")).unwrap();
    fs::write(fixture.path("filler"), vec![1; 100_000]).unwrap();
    let mut read = vec![0; 840];
    open.read_exact_at(&mut read, 0).unwrap();
    assert_same(&read, &permuted(&cube), "a descriptor after the last name");
    assert_same(&mapping.bytes()[..840], &permuted(&cube), "a mapping after the last name");
    drop((open, mapping));
    fixture.crash();
    fixture.check();
}

#[test]
fn a_view_whose_elements_are_cut_off_is_busy_and_other_strides_show_in_files_that_are_opened_later() {
    let fixture = Fixture::new();
    let path = fixture.path("m.pt");
    crate::archives::transposed(&path, 70, 90);
    let matrix = fixture.read(&tensor("matrix"));
    let turned = |rows: usize, columns: usize| -> Vec<u8> {
        let places = (0..columns).flat_map(|column| (0..rows).map(move |row| (row * columns + column) * 4));
        places.flat_map(|at| matrix[at..at + 4].to_vec()).collect()
    };
    assert_same(&fixture.read(&tensor("turned")), &turned(70, 90), "turned");
    // The same bytes in the same place, with other strides.
    let place = Place::new();
    let other = place.path("other.pt");
    crate::archives::transposed(&other, 90, 70);
    let bytes = fs::read(&other).unwrap();
    assert_eq!(bytes.len() as u64, fs::metadata(&path).unwrap().len());
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
    drop(file);
    for _ in 0..3 {
        assert_same(&fixture.read(&tensor("turned")), &turned(90, 70), "turned otherwise");
    }
    let open = fs::File::open(fixture.path(&tensor("turned"))).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(9000).unwrap();
    // The kernel keeps pages of what was read until the file is closed.
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let error = open.read_exact_at(&mut [0; 100], 20_000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
    drop((file, open));
    assert!(fs::metadata(fixture.path(&tensor("turned"))).is_err());
    fixture.check();
}

#[test]
fn a_view_reads_tensors_that_are_evicted_and_made_again() {
    let place = Place::new();
    let (base, child) = (place.path("base/m.pt"), place.path("child/m.pt"));
    for path in [&base, &child] {
        fs::create_dir(path.parent().unwrap()).unwrap();
        crate::archives::transposed(path, 300, 200);
    }
    // A few numbers differ.
    let bytes = fs::read(&child).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&child).unwrap();
    file.write_all_at(&[1; 40], bytes.len() as u64 / 2).unwrap();
    drop(file);
    place.import("t/base", &[&base], &[]);
    place.import("t/child", &[&child], &["--parent", "t/base"]);
    let mounted = place.mount(&[]);
    let at = |name: &str| mounted.path(Path::new("t/child/.tensors").join(name));
    let wanted = fs::read(at("turned")).unwrap();
    let matrix = fs::read(at("matrix")).unwrap();
    set(&mounted.path("t/child"), "reconstruct", "delta").unwrap();
    set(&at("matrix"), "evict", "1").unwrap();
    assert_eq!(get(&at("matrix"), "tier"), "absent");
    assert_same(&fs::read(at("matrix")).unwrap(), &matrix, "matrix");
    assert_same(&fs::read(at("turned")).unwrap(), &wanted, "turned");
    set(&at("turned"), "pin", "1").unwrap();
    assert_same(&fs::read(at("turned")).unwrap(), &wanted, "a pinned view of absent bytes");
    set(&at("turned"), "pin", "0").unwrap();
    set(&mounted.path("t/child"), "lossy", "allow").unwrap();
    set(&at("matrix"), "evict", "discard").unwrap();
    let error = fs::read(at("turned")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENODATA), "{error}");
    mounted.unmount();
    support::fsck(&place.store());
}
