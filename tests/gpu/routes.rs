//! The routes of files on a real mount.

use std::fs;
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tierfs::gpu::route::{Route, Span, plan};
use tierfs::model::ErrorKind;

use support::{Place, Random, assert_same, container_of, imported, run};

/// The physical file, and the offset of the bytes in it.
#[track_caller]
pub fn physical(path: &Path, span: Span) -> (PathBuf, u64) {
    match plan(path, span).unwrap().route {
        Route::CuFile { path, offset } => (path, offset),
        Route::Host { why } => panic!("{}: {why}", path.display()),
    }
}

/// The reason why a file goes through the host.
#[track_caller]
pub fn why(path: &Path, span: Span) -> String {
    match plan(path, span).unwrap().route {
        Route::CuFile { path: physical, .. } => panic!("{} lies in {}", path.display(), physical.display()),
        Route::Host { why } => why,
    }
}

/// The bytes at the place that a route names equal those that any program reads of that part.
#[track_caller]
pub fn assert_lies_there(path: &Path, span: Span) {
    let (physical, offset) = physical(path, span);
    let whole = fs::read(path).unwrap();
    let len = span.len.unwrap_or(whole.len() as u64 - span.offset) as usize;
    let mut there = vec![0; len];
    fs::File::open(physical).unwrap().read_exact_at(&mut there, offset).unwrap();
    assert_same(&there, &whole[span.offset as usize..][..len], &format!("{} {span:?}", path.display()));
}

pub const ALL: Span = Span { offset: 0, len: None };

#[test]
fn the_route_of_exact_files_and_tensors_is_their_data_file() {
    let (place, source) = imported(&[]);
    let mounted = place.mount(&[]);
    for name in ["model.safetensors", "x.npy", "x", "sub/vocab.txt"] {
        let path = mounted.path("demo/model").join(name);
        let (physical, _) = physical(&path, ALL);
        assert!(physical.starts_with(place.store()), "{}", physical.display());
        assert_lies_there(&path, ALL);
        let len = fs::metadata(&path).unwrap().len();
        for (offset, part) in [(1, 1), (len - 1, 1), (len / 2, len / 3)] {
            assert_lies_there(&path, Span { offset, len: Some(part) });
        }
    }
    // A small file lies in a slot.
    assert!(why(&mounted.path("demo/model/config.json"), ALL).contains("used again"));
    let whole = mounted.path("demo/model/sub/vocab.txt");
    assert_eq!(fs::read(&whole).unwrap(), fs::read(source.join("sub/vocab.txt")).unwrap());
}

#[test]
fn the_route_of_a_file_in_place_is_its_source_until_the_source_changes() {
    let place = Place::new();
    let model = place.write("m.safetensors", container_of(&mut Random(5), &[("a", 50_000), ("b", 70_000)]));
    place.import("t/c", &[&model], &["--in-place"]);
    let mounted = place.mount(&[]);
    let (file, tensor) = (mounted.path("t/c/m.safetensors"), mounted.path("t/c/b"));
    assert_eq!(physical(&file, ALL), (fs::canonicalize(&model).unwrap(), 0));
    assert_lies_there(&tensor, ALL);
    fs::OpenOptions::new().write(true).open(&model).unwrap().write_at(b"changed", 100_000).unwrap();
    assert!(why(&tensor, ALL).contains("was touched"));
    assert!(why(&file, ALL).contains("checksums are wrong"));
}

#[test]
fn encoded_and_computed_files_are_routed_through_the_host_with_a_reason() {
    let (place, _) = imported(&["--tier", "q8:all"]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    assert!(why(&tensor, ALL).contains("codes of tier q8"));
    assert!(why(&mounted.path("demo/model/model.safetensors"), ALL).contains("codes"));
    // The header of the container is exact.
    assert_lies_there(&mounted.path("demo/model/model.safetensors"), Span { offset: 0, len: Some(8) });
    assert!(why(&mounted.path("demo/model/empty"), ALL).contains("nothing"));
    assert!(why(&tensor, Span { offset: 5, len: Some(0) }).contains("nothing"));
    assert!(why(&mounted.path("demo/model/.as/npy/x.npy"), ALL).contains("not on the disk"));
    assert!(why(&mounted.path(".ctl/status"), ALL).contains("nothing"));
}

#[test]
fn the_route_of_a_file_leads_to_bytes_written_before_its_close() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/sub/vocab.txt");
    let mut writer = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_lies_there(&path, ALL);
    writer.seek(std::io::SeekFrom::Start(10)).unwrap();
    writer.write_all(b"written over").unwrap();
    // It lies in two places now, or in one; neither is stale.
    if let Route::CuFile { .. } = plan(&path, ALL).unwrap().route {
        assert_lies_there(&path, ALL);
    }
    writer.seek(std::io::SeekFrom::End(0)).unwrap();
    writer.write_all(&[7; 5000]).unwrap();
    assert_eq!(plan(&path, ALL).unwrap().len, 105_003);
}

#[test]
fn a_route_is_found_again_after_the_tensor_has_moved() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let tensor = mounted.path("demo/model/x");
    let before = plan(&tensor, ALL).unwrap();
    rustix::fs::setxattr(&tensor, "user.tierfs.lossy", b"allow", rustix::fs::XattrFlags::empty()).unwrap();
    run(["tier".as_ref(), "q5".as_ref(), tensor.as_os_str()]).ok();
    assert_ne!(plan(&tensor, ALL).unwrap(), before);
    assert!(why(&tensor, ALL).contains("q5"));
}

#[test]
fn a_read_only_mount_has_routes() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&["--read-only"]);
    assert_lies_there(&mounted.path("demo/model/model.safetensors"), ALL);
}

#[test]
fn a_damaged_file_is_routed_through_the_daemon() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let path = mounted.path("demo/model/sub/vocab.txt");
    let (physical, offset) = physical(&path, ALL);
    mounted.unmount();
    fs::OpenOptions::new().write(true).open(physical).unwrap().write_at(b"damage", offset + 50_000).unwrap();
    let mounted = place.mount(&[]);
    assert!(why(&mounted.path("demo/model/sub/vocab.txt"), ALL).contains("checksums are wrong"));
}

#[test]
fn the_route_of_a_file_outside_tierfs_is_the_file_itself() {
    let place = Place::new();
    let file = place.write("f", [1, 2, 3, 4]);
    let real = fs::canonicalize(&file).unwrap();
    assert_eq!(physical(&file, Span { offset: 3, len: None }), (real.clone(), 3));
    std::os::unix::fs::symlink(&file, place.path("link")).unwrap();
    assert_eq!(physical(&place.path("link"), ALL), (real, 0));
    assert!(why(&place.write("empty", []), ALL).contains("nothing"));
}

#[test]
fn directories_missing_files_and_ranges_past_the_end_are_errors() {
    let (place, _) = imported(&[]);
    let mounted = place.mount(&[]);
    let kind = |path: &Path, span| plan(path, span).unwrap_err().kind();
    for directory in ["", "demo", "demo/model", "demo/model/.ctl", "demo/model/sub"] {
        assert_eq!(kind(&mounted.path(directory), ALL), ErrorKind::IsDirectory, "{directory}");
    }
    assert_eq!(kind(&mounted.path("demo/model/none"), ALL), ErrorKind::NotFound);
    assert_eq!(kind(Path::new("/dev/null"), ALL), ErrorKind::Invalid);
    let past = Span { offset: 100_000, len: Some(4) };
    assert_eq!(kind(&mounted.path("demo/model/sub/vocab.txt"), past), ErrorKind::Invalid);
}
