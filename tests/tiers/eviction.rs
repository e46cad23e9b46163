//! Tensors that are evicted.

use std::fs;

use rustix::io::Errno;

use support::{Place, Random, container_of, get, refused_set, run, set, wait_until};

#[test]
fn a_discarded_tensor_is_absent_and_fails_to_open_until_it_is_rewritten() {
    let place = Place::new();
    let source = container_of(&mut Random(5), &[("w", 100_000), ("v", 3000)]);
    let model = place.write("m.safetensors", &source);
    place.import("t/c", &[&model], &[]);
    let mounted = place.mount(&[]);
    let (container, w) = (mounted.path("t/c/m.safetensors"), mounted.path("t/c/w"));
    let v = fs::read(mounted.path("t/c/v")).unwrap();
    assert!(refused_set(&w, "evict", "discard", Errno::PERM).contains("lossy"));
    assert!(refused_set(&w, "evict", "1", Errno::INVAL).contains("reconstruct"));
    assert!(refused_set(&w, "evict", "please", Errno::INVAL).contains("evict"));
    assert_eq!(fs::read(&container).unwrap(), source);
    set(&w, "evict", "cache").unwrap();
    assert_eq!(fs::read(&container).unwrap(), source);
    set(&w, "lossy", "allow").unwrap();
    set(&w, "evict", "discard").unwrap();
    assert_eq!((get(&w, "tier"), get(&w, "bytes_stored")), ("absent".to_owned(), "0".to_owned()));
    assert_eq!(get(&w, "error"), "absent");
    assert_eq!(get(&mounted.path("t/c/v"), "error"), "max=0e0 rms=0e0");
    let why = get(&w, "why");
    let user = rustix::process::getuid().as_raw();
    assert!(why.starts_with("its bytes were discarded at 2"), "{why}");
    assert!(why.ends_with(&format!(" UTC by user {user}")), "{why}");
    for path in [&w, &container] {
        assert_eq!(fs::read(path).unwrap_err().raw_os_error(), Some(Errno::NODATA.raw_os_error()));
        assert!(fs::metadata(path).unwrap().len() > 0);
    }
    assert_eq!(fs::read(mounted.path("t/c/v")).unwrap(), v);
    assert!(refused_set(&w, "tier", "q8", Errno::NODATA).contains("absent"));
    // The pages of the data file are released.
    let used = |path: &std::path::Path| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(path).unwrap().blocks() * 512
    };
    let data = fs::read_dir(place.store().join("t/c/data")).unwrap().next().unwrap().unwrap().path();
    // The daemon learns of a close only afterwards.
    wait_until("pages that are given back", || used(&data) < 40_000);
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    let (container, w) = (mounted.path("t/c/m.safetensors"), mounted.path("t/c/w"));
    assert_eq!(fs::read(&w).unwrap_err().raw_os_error(), Some(Errno::NODATA.raw_os_error()));
    assert_eq!((get(&w, "error"), get(&w, "why")), ("absent".to_owned(), why));
    let file = fs::OpenOptions::new().write(true).open(&w).unwrap();
    let bytes = &source[source.len() - 412_000..source.len() - 12_000];
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    drop(file);
    assert_eq!(fs::read(&container).unwrap(), source);
    assert_eq!(get(&w, "tier"), "exact");
}
