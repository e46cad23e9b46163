//! A real object storage: SeaweedFS, which the test starts on loopback.

use std::fs;
use std::path::PathBuf;

use support::{Place, assert_same, minilm, tierfs};

use crate::server::{KEYS, READER, Server, URL, WRITER};

/// Mounts a variant. `moved` is the model as a local move would leave it.
fn compare_in_tier(place: &Place, server: &Server, moved: &std::path::Path) {
    let (cache, mut command) = (place.path("cache in q5"), tierfs());
    server.credentials(&mut command, READER);
    let options = ["--tier", "q5", "--cache", cache.to_str().unwrap()];
    let mounted = place.mount_store_by(&mut command, PathBuf::from(URL), "in q5", &options);
    let found = fs::read(mounted.path("acme/minilm/model.safetensors")).unwrap();
    assert_same(&found, &fs::read(moved).unwrap(), "the variant");
    mounted.unmount();
}

#[test]
fn a_model_pushed_to_a_bucket_is_mounted_with_read_only_keys_and_read_again_without_a_request() {
    let place = Place::new();
    let Some(server) = Server::start(&place) else { return };
    place.write("empty", b"");
    support::run([std::path::Path::new("init"), &place.store()]).ok();
    place.import("acme/minilm", &[&minilm()], &[]);
    let store = place.store();
    let push = ["push", store.to_str().unwrap(), "acme/minilm", URL, "--create"];
    // A bucket is made by the first PUT.
    let text = server.run(WRITER, &push).ok();
    assert!(text.starts_with("pushed snapshot 1 of acme/minilm"), "{text}");
    assert!(server.run(WRITER, &push).ok().starts_with("nothing new"));
    let text = server.run(WRITER, &[&push[..], &["--variants", "q5"]].concat()).ok();
    assert!(text.starts_with("pushed snapshot 2"), "{text}");
    let without = [&push[..], &["--variants", "none"]].concat();
    let refused = server.run(READER, &without).failed(1, &["s3://models/demo"]);
    let examined = server.run(READER, &["doctor", URL]).ok();
    assert!(examined.contains("these keys may only read") && examined.contains("MB/s by 32"), "{examined}");

    let (cache, mut command) = (place.path("cache"), tierfs());
    server.credentials(&mut command, READER);
    let options = ["--cache", cache.to_str().unwrap()];
    let mounted = place.mount_store_by(&mut command, PathBuf::from(URL), "remote", &options);
    let local = place.mount(&["--read-only"]);
    let files = support::files_below(&local.path("acme/minilm"));
    assert!(files.iter().any(|path| path.ends_with("model.safetensors")), "{files:?}");
    let compare = |what: &str| {
        for below in &files {
            let wanted = fs::read(local.path("acme/minilm").join(below)).unwrap();
            let found = fs::read(mounted.path("acme/minilm").join(below)).unwrap();
            assert_same(&found, &wanted, &format!("{what}: {}", below.display()));
        }
        for (name, bytes) in
            support::tensors_of(&fs::read(local.path("acme/minilm/model.safetensors")).unwrap())
        {
            let path = mounted.path("acme/minilm/.tensors/model.safetensors").join(name);
            assert_same(&fs::read(&path).unwrap(), &bytes, &format!("{what}: {}", path.display()));
        }
    };
    compare("cold");
    compare_in_tier(&place, &server, &local.path("acme/minilm/.as/q5/model.safetensors"));
    // Nothing answers requests any more.
    drop(server);
    compare("again");
    let before = mounted.counter("passthrough_opens");
    let large = fs::read(mounted.path("acme/minilm/model.safetensors")).unwrap();
    assert!(large.len() > 20 << 20);
    assert_eq!(mounted.counter("passthrough_opens"), before + 1, "the kernel reads the cached file itself");
    // No credential appears where others can read it.
    let controls = ["config", "events", "status", "stats.json", "metrics", "jobs"];
    let mut texts: Vec<String> = controls
        .iter()
        .map(|name| fs::read_to_string(mounted.path(".ctl").join(name)).unwrap())
        .chain([refused, examined, fs::read_to_string(place.path("remote.log")).unwrap()])
        .collect();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        texts.push(String::from_utf8_lossy(&line).into_owned());
    }
    for text in texts {
        assert!(KEYS.iter().all(|(_, key, secret)| !text.contains(key) && !text.contains(secret)), "{text}");
    }
    local.unmount();
    mounted.unmount();
}
