//! `hf://`: what a client of others takes, the source takes too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{Place, Random, answer, assert_same, container_of, python_command};
use tierfs::remote::client::version::Version;
use tierfs::remote::source::{Source, SourceObject, open};

use super::hub::{Hub, TOKEN, oid, sha256};
use super::{Reply, Server};

const ID: &str = "acme/llama";
const URL: &str = "hf://acme/llama";

/// Sets variables, before a source is opened. Each test is a process.
pub fn environment(variables: &[(&str, &str)]) {
    for (name, value) in variables {
        // SAFETY: no other thread of this process reads the environment yet.
        unsafe { std::env::set_var(name, value) };
    }
}

fn opened(hub: &Hub, url: &str) -> Arc<dyn Source> {
    environment(&[("HF_ENDPOINT", &hub.endpoint()), ("HOME", "/nonexistent")]);
    open(url).unwrap()
}

/// The bytes of an object, read in three parts.
pub fn read(source: &dyn Source, object: &SourceObject) -> Vec<u8> {
    let cuts = [0, object.bytes / 3, object.bytes / 2, object.bytes];
    let parts = cuts.windows(2).filter(|cut| cut[0] < cut[1]);
    parts
        .flat_map(|cut| source.client().get_version(&object.at, cut[0]..cut[1], &object.pin()).unwrap())
        .collect()
}

pub fn by_key(mut objects: Vec<SourceObject>) -> Vec<SourceObject> {
    objects.sort_by(|one, next| one.key.cmp(&next.key));
    objects
}

/// The text of the error of a listing, which must come soon.
#[track_caller]
pub fn refusal(source: &dyn Source) -> String {
    let begun = Instant::now();
    let text = source.list("").unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}: {text}", begun.elapsed());
    assert!(!text.contains(TOKEN) && !text.contains("did not answer"), "{text}");
    text
}

fn model() -> Vec<u8> {
    container_of(&mut Random(3), &[("a", 300_000), ("b", 90_000)])
}

#[test]
fn the_client_of_the_hub_takes_the_imitation_and_gets_the_same_files() {
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    let commit =
        hub.commit(ID, "main", &[("model.safetensors", &model), ("a/b/config.json", b"{}"), ("empty", b"")]);
    let code = "import sys, huggingface_hub as h\n\
                files = sorted((f.path, f.size) for f in h.HfApi().list_repo_tree('acme/llama', recursive=True) if hasattr(f, 'size'))\n\
                print(files)\n\
                print(h.snapshot_download('acme/llama', local_dir=sys.argv[1]))\n\
                print(h.HfApi().model_info('acme/llama').sha)\n\
                try:\n    h.hf_hub_download('acme/llama', 'absent')\n\
                except h.errors.EntryNotFoundError: print('no entry')\n\
                try:\n    h.HfApi().model_info('acme/none')\n\
                except h.errors.RepositoryNotFoundError: print('no repository')\n";
    let out = place.path("downloaded");
    let mut command = python_command();
    command
        .args(["-c", code])
        .arg(&out)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HOME", place.path("home"));
    command
        .env("HF_HUB_DISABLE_XET", "1")
        .env("HF_HUB_DISABLE_TELEMETRY", "1")
        .env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
    let printed = answer(&mut command).ok();
    for wanted in [&*commit, "no entry", "no repository", &format!("('model.safetensors', {})", model.len())]
    {
        assert!(printed.contains(wanted), "{wanted}: {printed}");
    }
    let source = opened(&hub, URL);
    let objects = by_key(source.list("").unwrap());
    assert_eq!(
        objects.iter().map(|object| &*object.key).collect::<Vec<_>>(),
        ["a/b/config.json", "empty", "model.safetensors"]
    );
    for object in &objects {
        assert_same(&read(&*source, object), &std::fs::read(out.join(&object.key)).unwrap(), &object.key);
    }
}

#[test]
fn a_listing_has_sizes_digests_and_the_time_of_the_commit() {
    let (hub, model) = (Hub::start(), model());
    let commit = hub.commit(
        ID,
        "main",
        &[("model.safetensors", &model), ("sub/x/config.json", b"{}"), ("sub/y", b"y")],
    );
    let source = opened(&hub, URL);
    let objects = by_key(source.list("").unwrap());
    let found = &objects[0];
    assert_eq!((&*found.key, found.bytes), ("model.safetensors", model.len() as u64));
    assert_eq!(Some(found.version.clone()), Version::of_sha256(&sha256(&model)));
    assert_eq!(
        found.sha256.map(|digest| digest.iter().map(|byte| format!("{byte:02x}")).collect()),
        Some(sha256(&model))
    );
    assert_eq!(found.at, format!("{commit}/model.safetensors"));
    assert_eq!(found.modified, 1_795_395_723);
    assert_eq!((objects[1].sha256, &objects[1].version), (None, &Version::ETag(oid(b"{}"))));
    let level = source.level("").unwrap();
    assert_eq!((level.directories, level.objects.len()), (vec!["sub".to_owned()], 1));
    let level = source.level("sub").unwrap();
    assert_eq!((level.directories, level.objects.len()), (vec!["x".to_owned()], 1));
    assert_eq!(level.objects[0].key, "sub/y");
    // A directory of a repository, at a commit.
    let source = opened(&hub, &format!("{URL}@{commit}/sub"));
    let objects = by_key(source.list("").unwrap());
    assert_eq!(objects.iter().map(|object| &*object.key).collect::<Vec<_>>(), ["x/config.json", "y"]);
    assert_eq!(read(&*source, &objects[0]), b"{}");
    let asked = hub.requests();
    assert!(
        asked.iter().rev().take(2).all(|request| !request.path.contains("/revision/")),
        "a commit is not asked for"
    );
}

#[test]
fn an_open_file_keeps_its_bytes_when_the_branch_moves() {
    let (hub, old, new) = (Hub::start(), model(), vec![7; 5000]);
    hub.commit(ID, "main", &[("model.safetensors", &old), ("config.json", b"old")]);
    let source = opened(&hub, URL);
    let before = by_key(source.list("").unwrap());
    hub.commit(ID, "main", &[("model.safetensors", &new), ("config.json", b"new!")]);
    let after = by_key(source.list("").unwrap());
    assert_same(&read(&*source, &before[1]), &old, "of the first commit");
    assert_same(&read(&*source, &after[1]), &new, "of the second commit");
    assert_eq!((read(&*source, &before[0]), read(&*source, &after[0])), (b"old".to_vec(), b"new!".to_vec()));
}

#[test]
fn the_token_is_sent_to_the_hub_alone_and_never_shown() {
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    hub.commit(ID, "main", &[("model.safetensors", &model)]);
    hub.state.lock().repositories.get_mut(ID).unwrap().is_private = true;
    let error = refusal(&*opened(&hub, URL));
    assert!(
        error.contains("private or gated") && error.contains("set HF_TOKEN, or run hf auth login"),
        "{error}"
    );
    environment(&[("HF_TOKEN", "hf_wrong")]);
    let error = refusal(&*opened(&hub, URL));
    assert!(error.contains("the token of HF_TOKEN") && !error.contains("hf_wrong"), "{error}");
    // The file where the client of the hub keeps it ends with a newline.
    place.write("hf/token", format!("{TOKEN}\n"));
    environment(&[("HF_TOKEN", ""), ("HF_HOME", place.path("hf").to_str().unwrap())]);
    let source = opened(&hub, URL);
    let object = source.list("").unwrap().remove(0);
    assert_same(&read(&*source, &object), &model, "a private file");
    assert!(hub.requests_of_files().len() >= 3);
    for request in hub.requests_of_files() {
        assert_eq!(request.header("authorization"), "", "{request:?}");
    }
    let resolved = hub.requests().iter().filter(|request| request.path.contains("/resolve/")).count();
    assert_eq!(resolved, 1, "the address is kept");
    // The address holds for a while only. A new one is asked for, and refused again.
    hub.state.lock().has_expired = true;
    let failed = source.client().get_version(&object.at, 0..10, &object.pin()).unwrap_err();
    assert!(!failed.to_string().contains("signature"), "{failed}");
    let resolved = hub.requests().iter().filter(|request| request.path.contains("/resolve/")).count();
    assert_eq!(resolved, 2);
}

#[test]
fn names_that_are_not_there_and_gated_ones_say_what_to_do() {
    let hub = Hub::start();
    let commit = hub.commit(ID, "main", &[("config.json", b"{}")]);
    assert!(commit.len() == 40);
    environment(&[("HF_TOKEN", TOKEN)]);
    for (url, wanted) in [
        ("hf://acme/none", "has no models acme/none; check the name"),
        ("hf://acme/llama@v9", "acme/llama has no such revision"),
        ("hf://acme/llama@0000000000000000000000000000000000000000", "acme/llama has no such revision"),
        ("hf://datasets/acme/llama", "has no datasets acme/llama"),
    ] {
        let error = refusal(&*opened(&hub, url));
        assert!(error.contains(wanted), "{error}");
    }
    environment(&[("HF_TOKEN", "")]);
    hub.fail("/api/", Reply::new(403, "{}").with("X-Error-Code", "GatedRepo"));
    let error = refusal(&*opened(&hub, URL));
    assert!(error.contains("is gated: ask for access at") && error.contains("set HF_TOKEN"), "{error}");
}

#[test]
fn a_hub_that_wants_a_pause_is_named_at_once_and_a_short_one_is_kept() {
    let hub = Hub::start();
    hub.commit(ID, "main", &[("config.json", b"{}")]);
    for reply in [
        Reply::new(429, "").with("Retry-After", "300"),
        Reply::new(429, "").with("RateLimit", "\"api\";r=0;t=300"),
        Reply::new(503, "").with("Retry-After", "Fri, 31 Dec 2100 00:00:00 GMT"),
    ] {
        hub.fail("/api/", reply);
        let error = refusal(&*opened(&hub, URL));
        assert!(error.contains("wants a pause of") && error.contains("HF_TOKEN"), "{error}");
    }
    hub.state.lock().faults.clear();
    hub.fail("/api/", Reply::new(429, "").with("Retry-After", "1"));
    let source = opened(&hub, URL);
    let state = hub.state.clone();
    let recovers = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        state.lock().faults.clear();
    });
    let begun = Instant::now();
    assert_eq!(source.list("").unwrap().len(), 1);
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    recovers.join().unwrap();
}

#[test]
fn lists_and_redirects_without_end_are_refused() {
    let hub = Hub::start();
    let commit = hub.commit(ID, "main", &[("config.json", b"{}"), ("a", b"a"), ("b", b"b")]);
    let tree = format!("/api/models/{ID}/tree/{commit}");
    let address = |path: &str| format!("{}{path}", hub.endpoint());
    let entry = json!([{"type": "file", "oid": "0".repeat(40), "size": 1, "path": "x"}]);
    let next = |to: String| Reply::json(&entry).with("Link", format!("<{to}>; rel=\"next\""));
    for (reply, wanted) in [
        // The same page again, another address each time.
        (next(address(&format!("{tree}?cursor=again"))), "its listing never ends"),
        (next("https://elsewhere.invalid/next".to_owned()), "the next page of the hub's list is elsewhere"),
        (Reply::to(address(&tree)), "redirects without end"),
        (Reply::to("file:///etc/passwd"), "to an address that is not HTTP"),
        (Reply::new(200, "<html>"), "is no JSON"),
        (Reply::new(200, vec![b' '; 5 << 20]), "has more than 4 MiB"),
        (Reply::json(&json!([{"type": "file", "path": "x", "size": 1}])), "without its size or its digest"),
        (
            Reply::json(&json!([{"type": "file", "path": "x", "lfs": {"oid": "short", "size": 1}}])),
            "without its size",
        ),
    ] {
        hub.fail(&tree, reply);
        let error = refusal(&*opened(&hub, URL));
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    // A list that calls itself chunked has no length, and no end.
    let endless =
        Server::start(|_| Reply::new(200, vec![b'['; 64 << 20]).with("Transfer-Encoding", "identity"));
    environment(&[("HF_ENDPOINT", &format!("http://127.0.0.1:{}", endless.port()))]);
    let error = refusal(&*open(URL).unwrap());
    assert!(error.contains("has more than 4 MiB"), "{error}");
}

#[test]
fn wrong_answers_to_a_range_are_no_bytes() {
    let (hub, model) = (Hub::start(), model());
    let commit = hub.commit(ID, "main", &[("model.safetensors", &model)]);
    let source = opened(&hub, URL);
    let object = source.list("").unwrap().remove(0);
    let len = model.len();
    let part = |range: &str| Reply::new(206, &model[..10]).with("Content-Range", range);
    for (reply, wanted) in [
        (Reply::new(200, model.clone()), "status 200"),
        (part(&format!("bytes 1-10/{len}")), "other bytes than the range"),
        (part(&format!("bytes 0-8/{len}")), "other bytes than the range"),
        (part("bytes 0-9/*"), "other bytes than the range"),
        (Reply::new(206, &model[..10]), "other bytes than the range"),
        (part("bytes 0-9/10"), "was replaced"),
        (part(&format!("bytes 0-9/{len}")).with("Content-Encoding", "gzip"), "compresses"),
        (
            Reply::new(206, &model[..20]).with("Content-Range", format!("bytes 0-9/{len}")),
            "more than was asked for",
        ),
    ] {
        hub.fail(&format!("/{ID}/resolve/{commit}/"), reply);
        let begun = Instant::now();
        let error = source.client().get_version(&object.at, 0..10, &object.pin()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }
}

#[test]
fn names_of_a_hub_that_lead_elsewhere_are_not_asked_for() {
    let hub = Hub::start();
    let commit = hub.commit(ID, "main", &[("config.json", b"{}")]);
    let names = ["../../api/whoami", "a//b", "/etc/passwd", ".", "a/../b", "x\u{0}y"];
    let entries: Vec<_> = names
        .iter()
        .map(|name| json!({"type": "file", "oid": "0".repeat(40), "size": 1, "path": name}))
        .collect();
    hub.fail(&format!("/api/models/{ID}/tree/{commit}"), Reply::json(&entries.into()));
    let source = opened(&hub, URL);
    let asked = hub.requests().len();
    let objects = source.list("").unwrap();
    for object in &objects {
        assert!(source.client().get_version(&object.at, 0..1, &object.pin()).is_err(), "{object:?}");
    }
    assert!(
        hub.requests()[asked..].iter().all(|request| request.path.starts_with("/api/models/acme/llama/"))
    );
}
