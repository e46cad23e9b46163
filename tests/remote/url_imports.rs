//! Imports from URLs into mounted stores, compared with the files that lie there.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use support::{Manners, Mounted, answer, put, tierfs, wait_until};

use crate::sources::{Stand, same_trees};

const LLAMA: &str = "s3://bucket/models/llama";

/// The store of a stand, mounted by a daemon with the credentials of the bucket.
fn mounted(stand: &Stand) -> Mounted {
    let store = stand.place.store();
    support::run([Path::new("init"), &store]).ok();
    mounted_again(stand)
}

fn mounted_again(stand: &Stand) -> Mounted {
    stand.place.mount_store_by(&mut stand.command(), stand.place.store(), "local", &[])
}

/// A program without the credentials of the bucket.
fn without_credentials(arguments: &[&str]) -> support::Answer {
    answer(tierfs().env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_ENDPOINT").args(arguments))
}

#[test]
fn a_daemon_imports_a_url_with_its_own_credentials() {
    let stand = Stand::with_models();
    let local = mounted(&stand);
    let store = stand.place.store();
    let store = store.to_str().unwrap();
    let text = without_credentials(&["import", store, "acme/llama", LLAMA, "--tag", "base"]).ok();
    assert!(text.contains("acme/llama: 4 files"), "{text}");
    assert_eq!(same_trees(&local.mountpoint.join("acme/llama"), &stand.object("llama")), 4);
    assert_eq!(support::get(&local.mountpoint.join("acme/llama/model.safetensors"), "tags"), "base");
    let jobs = fs::read_to_string(local.path(".ctl/jobs")).unwrap();
    assert!(jobs.contains("import:") && jobs.contains(" acme/llama done in "), "{jobs}");
    // The same import again reads no object, a replaced one is replaced, and one that is gone is removed.
    stand.replace("llama/config.json", b"{\"new\": 1}");
    fs::remove_file(stand.object("llama/sub/vector.npy")).unwrap();
    let text = without_credentials(&["import", store, "acme/llama", LLAMA, "--delete"]).ok();
    assert!(text.contains("2 files unchanged; removed 1 file"), "{text}");
    assert_eq!(same_trees(&local.mountpoint.join("acme/llama"), &stand.object("llama")), 3);
    let text = without_credentials(&["import", store, "acme/q8", LLAMA, "--tier", "q8:all"]).ok();
    assert!(text.contains("acme/q8: 3 files"), "{text}");
    assert_eq!(support::get(&local.mountpoint.join("acme/q8/a"), "tier"), "q8");
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn a_daemon_refuses_a_url_as_it_refuses_a_path_and_makes_nothing() {
    let stand = Stand::with_models();
    let local = mounted(&stand);
    let store = stand.place.store();
    let store = store.to_str().unwrap();
    let import = |more: &[&str]| without_credentials(&[&["import", store], more].concat());
    import(&["acme/none", "s3://bucket/models/none"]).failed(1, &["acme/none: ", "has no objects"]);
    import(&["acme/x", LLAMA, "--shard-of", "w"]).failed(1, &["without --shard-of"]);
    let itself = format!("file://{}", local.mountpoint.display());
    import(&["acme/itself", &itself]).failed(1, &["lies on the tierfs mounted on"]);
    import(&["acme/dry", LLAMA, "--dry-run"]).ok();
    assert!(!local.mountpoint.join("acme").exists());
    import(&["acme/small", "s3://bucket/models/llama/sub"]).ok();
    put(&local.path("acme/.ctl/quota"), "bytes=100K").unwrap();
    import(&["acme/llama", LLAMA]).failed(1, &["acme/llama: ", "the quota of acme is"]);
    assert!(!local.mountpoint.join("acme/llama").exists());
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn a_listing_that_does_not_end_is_cancelled_and_holds_up_no_file() {
    let stand = Stand::with_models();
    let local = mounted(&stand);
    let store = stand.place.store();
    let store = store.to_str().unwrap();
    without_credentials(&["import", store, "acme/llama", LLAMA]).ok();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}/models/", silent.local_addr().unwrap().port());
    let text = without_credentials(&["import", store, "acme/silent", &url, "--detach"]).ok();
    let number = text.trim().rsplit(' ').next().unwrap().to_owned();
    let jobs = || fs::read_to_string(local.path(".ctl/jobs")).unwrap();
    wait_until("the listing", || jobs().contains(" acme/silent running"));
    assert_eq!(same_trees(&local.mountpoint.join("acme/llama"), &stand.object("llama")), 4);
    put(&local.path(".ctl/jobs"), &format!("cancel {number}")).unwrap();
    wait_until("its end", || jobs().contains(" acme/silent cancelled"));
    let found: Vec<PathBuf> =
        fs::read_dir(local.path("acme")).unwrap().map(|one| one.unwrap().path()).collect();
    assert!(!found.contains(&local.path("acme/silent")), "{found:?}");
    local.unmount();
    support::fsck(&stand.place.store());
}

#[test]
fn a_server_that_hangs_holds_up_only_readers_of_its_objects() {
    let stand = Stand::with_models();
    for number in 0..8 {
        stand.write(&format!("many/{number}.bin"), vec![number; 100_000]);
    }
    let store = stand.place.store();
    support::run([Path::new("init"), &store]).ok();
    let cache = stand.place.path("cache");
    let options = ["--cache", cache.to_str().unwrap(), "--threads", "2"];
    let local = stand.place.mount_store_by(&mut stand.command(), stand.place.store(), "local", &options);
    let store = store.to_str().unwrap();
    without_credentials(&["import", store, "acme/llama", LLAMA]).ok();
    without_credentials(&["import", store, "acme/many", "s3://bucket/models/many", "--in-place"]).ok();
    stand.bucket.behave(Manners { hangs: true, ..Manners::default() });
    let readers: Vec<_> = (0..8)
        .map(|number| {
            let path = local.path(format!("acme/many/{number}.bin"));
            std::thread::spawn(move || fs::read(path).unwrap())
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    // More readers wait than threads read requests.
    let (done, finished) = channel();
    let (shown, wanted) = (local.mountpoint.join("acme/llama"), stand.object("llama"));
    let other = std::thread::spawn(move || {
        assert_eq!(same_trees(&shown, &wanted), 4);
        fs::write(shown.join("new"), b"text").unwrap();
        fs::rename(shown.join("new"), shown.join("config.json")).unwrap();
        assert_eq!(fs::read(shown.join("config.json")).unwrap(), b"text");
        done.send(()).unwrap();
    });
    let in_time = finished.recv_timeout(Duration::from_secs(10));
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    stand.bucket.behave(Manners::default());
    in_time.unwrap();
    other.join().unwrap();
    for (number, reader) in readers.into_iter().enumerate() {
        assert!(reader.join().unwrap() == vec![number as u8; 100_000], "{number}");
    }
    local.unmount();
}
