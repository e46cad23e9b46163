//! Imports in place from the web: files stay on sites, hubs and in registries, and read as there or as an error.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use support::{
    Answer, Mounted, Place, Random, answer, assert_same, container_of, tensors_of, tierfs, wait_until,
};

use super::hub::{Hub, oid};
use super::registries::{MODELPACK, digest};
use super::{Reply, Request, Server};

const ID: &str = "acme/llama";

/// A store with files of the web.
struct Stand {
    place: Place,
    variables: Vec<(&'static str, String)>,
}

impl Stand {
    fn new(variables: Vec<(&'static str, String)>) -> Stand {
        let place = Place::new();
        answer(tierfs().arg("init").arg(place.store())).ok();
        Stand { place, variables }
    }

    fn import(&self, url: &str) -> Answer {
        let mut command = tierfs();
        command.env("HOME", self.place.path("home")).envs(self.variables.iter().cloned());
        answer(command.arg("import").arg(self.place.store()).args(["acme/m", url, "--in-place"]))
    }

    fn mount(&self, cache: &str) -> Mounted {
        let mut command = tierfs();
        command.env("HOME", self.place.path("home")).envs(self.variables.iter().cloned());
        let cache = if cache == "none" { PathBuf::from(cache) } else { self.place.path(cache) };
        let options = ["--cache", cache.to_str().unwrap(), "--timeout", "2"];
        self.place.mount_store_by(&mut command, self.place.store(), "local", &options)
    }

    /// Imports a source of a model and a small file, and compares them: cold, again, and by another mount with the same
    /// cache. `requests` counts those for bytes.
    #[track_caller]
    fn reads_as(&self, url: &str, model: &[u8], small: &[u8], requests: impl Fn() -> usize) {
        self.import(url).ok();
        let before = requests();
        let mounted = self.mount("cache");
        assert_eq!(requests(), before, "a mount asks for nothing");
        same(&mounted, model, small);
        let asked = requests();
        assert!(asked > before, "bytes lie in the store");
        same(&mounted, model, small);
        mounted.unmount();
        let mounted = self.mount("cache");
        same(&mounted, model, small);
        mounted.unmount();
        assert_eq!(requests(), asked, "requests of a warm cache");
        support::fsck(&self.place.store());
    }
}

#[track_caller]
fn same(mounted: &Mounted, model: &[u8], small: &[u8]) {
    let below = mounted.mountpoint.join("acme/m");
    assert_same(&fs::read(below.join("model.safetensors")).unwrap(), model, "the model");
    assert_same(&fs::read(below.join("sub/config.json")).unwrap(), small, "the small file");
    for (name, bytes) in tensors_of(model) {
        assert_same(&fs::read(below.join(".tensors").join(&name)).unwrap(), &bytes, &name);
    }
}

/// The error of a read of the small file, and its explanation, which names the place.
#[track_caller]
fn refused(mounted: &Mounted, errno: i32, words: &[&str]) {
    let path = mounted.path("acme/m/sub/config.json");
    let error = fs::read(&path).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno), "{error}");
    let why = support::get(&path, "why");
    assert!(words.iter().all(|word| why.contains(word)), "{words:?}: {why}");
}

fn model(seed: u64) -> Vec<u8> {
    container_of(&mut Random(seed), &[("a", 700_000), ("b", 90_000)])
}

/// A site whose files a test replaces.
#[derive(Default)]
struct Site {
    files: BTreeMap<String, Vec<u8>>,
    /// The status of answers to requests for files.
    status: Option<u16>,
}

impl Site {
    fn reply(&self, request: &Request) -> Reply {
        let name = request.path.strip_prefix("/acme/m/").unwrap_or("?");
        if name.is_empty() || name == "sub/" {
            let here = self.files.keys().filter_map(|path| path.strip_prefix(name));
            let entries = here.map(|rest| match rest.split_once('/') {
                Some((directory, _)) => format!("<a href=\"{directory}/\">x</a>\n"),
                None => format!("<a href=\"{rest}\">x</a>\n"),
            });
            return Reply::new(200, entries.collect::<String>()).with("Content-Type", "text/html");
        }
        match (self.status, self.files.get(name)) {
            (Some(status), _) => Reply::new(status, ""),
            (None, None) => Reply::new(404, ""),
            (None, Some(bytes)) => Reply::bytes(request, bytes).with("ETag", format!("\"{}\"", oid(bytes))),
        }
    }
}

#[test]
fn files_of_a_site_stay_there_and_one_that_changes_is_an_error_that_names_it() {
    let model = model(7);
    let site = Arc::new(Mutex::new(Site::default()));
    site.lock().files.insert("model.safetensors".to_owned(), model.clone());
    site.lock().files.insert("sub/config.json".to_owned(), b"{}".to_vec());
    let serving = site.clone();
    let server = Server::start(move |request| serving.lock().reply(request));
    let url = format!("http://127.0.0.1:{}/acme/m/", server.port());
    let stand = Stand::new(Vec::new());
    stand.reads_as(&url, &model, b"{}", || server.requests().len());
    let place = url.trim_end_matches('/');
    for (status, errno) in [
        (401, libc::EACCES),
        (403, libc::EACCES),
        (404, libc::ESTALE),
        (410, libc::ESTALE),
        (416, libc::ESTALE),
    ] {
        let mounted = stand.mount("none");
        site.lock().status = Some(status);
        refused(&mounted, errno, &[place, "sub/config.json"]);
        site.lock().status = None;
        let path = mounted.path("acme/m/sub/config.json");
        wait_until("the site answers again", || fs::read(&path).is_ok_and(|bytes| bytes == b"{}"));
        mounted.unmount();
    }
    for content in [&b"[]"[..], b"longer", b"1"] {
        site.lock().files.insert("sub/config.json".to_owned(), content.to_vec());
        let mounted = stand.mount("none");
        refused(&mounted, libc::ESTALE, &[place, "sub/config.json"]);
        stand.import(&url).ok();
        same(&mounted, &model, content);
        mounted.unmount();
    }
    support::fsck(&stand.place.store());
}

#[test]
fn files_of_a_hub_stay_at_their_commit_until_they_are_imported_again() {
    let (hub, old, new) = (Hub::start(), model(8), model(9));
    hub.commit(ID, "main", &[("model.safetensors", &old), ("sub/config.json", b"{1}")]);
    let stand = Stand::new(vec![("HF_ENDPOINT", hub.endpoint())]);
    let url = format!("hf://{ID}");
    let requests = || hub.requests().len() + hub.requests_of_files().len();
    stand.reads_as(&url, &old, b"{1}", requests);
    // The branch moves, and the files are those of the commit, whoever asks.
    hub.commit(ID, "main", &[("model.safetensors", &new), ("sub/config.json", b"{2}")]);
    let mounted = stand.mount("none");
    same(&mounted, &old, b"{1}");
    stand.import(&url).ok();
    same(&mounted, &new, b"{2}");
    mounted.unmount();
    // The host of large files refuses, the hub refuses, and then the repository is gone.
    let mounted = stand.mount("none");
    let large = mounted.path("acme/m/model.safetensors");
    hub.state.lock().has_expired = true;
    let error = fs::read(&large).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EACCES), "{error}");
    hub.state.lock().has_expired = false;
    wait_until("the host answers again", || fs::read(&large).is_ok_and(|bytes| bytes == new));
    hub.state.lock().repositories.get_mut(ID).unwrap().is_private = true;
    refused(&mounted, libc::EACCES, &[&url, "sub/config.json"]);
    hub.state.lock().repositories.clear();
    hub.fail("/acme/llama/resolve/", Reply::new(404, ""));
    refused(&mounted, libc::ESTALE, &[&url, "sub/config.json"]);
    mounted.unmount();
}

#[test]
fn other_bytes_than_those_with_the_sha256_of_the_hub_end_as_an_error() {
    let (hub, model) = (Hub::start(), model(10));
    let commit = hub.commit(ID, "main", &[("model.safetensors", &model), ("sub/config.json", b"{}")]);
    let stand = Stand::new(vec![("HF_ENDPOINT", hub.endpoint())]);
    stand.import(&format!("hf://{ID}")).ok();
    let mut wrong = model.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let other = Server::start(move |request| Reply::bytes(request, &wrong));
    hub.fail(
        &format!("/{ID}/resolve/{commit}/model"),
        Reply::to(format!("http://127.0.0.1:{}/x", other.port())),
    );
    let mounted = stand.mount("cache");
    let path = mounted.path("acme/m/model.safetensors");
    // The first reader may have its bytes before all are there.
    wait_until("reads fail", || {
        let read = fs::File::open(&path).and_then(|file| {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
            fs::read(&path)
        });
        read.is_err_and(|error| error.raw_os_error() == Some(libc::EIO))
    });
    mounted.unmount();
}

#[test]
fn layers_of_a_registry_stay_there_as_files_and_as_members_of_archives() {
    let (place, model) = (Place::new(), model(11));
    place.write("kit/model.safetensors", &model);
    place.write("kit/sub/config.json", b"{}");
    assert!(
        support::shell(&place.path("kit"), "tar -cf ../layer.tar model.safetensors sub/config.json")
            .status
            .success()
    );
    let archive = fs::read(place.path("layer.tar")).unwrap();
    let raw = format!("{MODELPACK}.weight.v1.raw");
    let file = |path: &str, bytes: &[u8]| {
        json!({"mediaType": raw, "digest": digest(bytes), "size": bytes.len(),
            "annotations": {"org.cncf.model.filepath": path}})
    };
    let of_files = json!([file("model.safetensors", &model), file("sub/config.json", b"{}")]);
    let of_archive = json!([{"mediaType": format!("{MODELPACK}.weight.v1.tar"), "digest": digest(&archive),
        "size": archive.len()}]);
    for layers in [of_files, of_archive] {
        let blobs = [model.clone(), b"{}".to_vec(), archive.clone()].map(|bytes| (digest(&bytes), bytes));
        let gone = Arc::new(Mutex::new(None));
        let answers = gone.clone();
        let server = Server::start(move |request| {
            if request.path == "/v2/acme/m/manifests/v1" {
                return Reply::json(&json!({"schemaVersion": 2, "layers": layers}));
            }
            if let Some(status) = *answers.lock() {
                return Reply::new(status, "");
            }
            let blob = blobs.iter().find(|(name, _)| request.path.ends_with(name));
            blob.map_or_else(|| Reply::new(404, ""), |(_, bytes)| Reply::bytes(request, bytes))
        });
        let url = format!("oci://127.0.0.1:{}/acme/m:v1", server.port());
        let stand = Stand::new(vec![("DOCKER_CONFIG", "/nonexistent".to_owned())]);
        stand.reads_as(&url, &model, b"{}", || server.requests().len());
        for (status, errno) in [(403, libc::EACCES), (404, libc::ESTALE), (416, libc::ESTALE)] {
            let mounted = stand.mount("none");
            *gone.lock() = Some(status);
            refused(&mounted, errno, &[&url]);
            *gone.lock() = None;
            let path = mounted.path("acme/m/sub/config.json");
            wait_until("the registry answers again", || fs::read(&path).is_ok_and(|bytes| bytes == b"{}"));
            mounted.unmount();
        }
    }
}
