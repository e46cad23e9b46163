//! Mounts of sources on the web by the program: files are those of the source, tensors too, and mistakes are named soon.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;
use support::{
    Answer, Mounted, Place, Random, answer, assert_same, container_of, tensors_of, tierfs, wait_until,
};

use super::hub::{Hub, TOKEN};
use super::registries::{MODELPACK, Registry, digest, named};
use super::{Reply, Server, nginx};

const ID: &str = "acme/llama";

/// A mount of a source, with its cache below the place.
fn mount(place: &Place, url: &str, variables: &[(&str, &str)], options: &[&str]) -> Mounted {
    let cache = place.path("cache");
    let options = [&["--cache", cache.to_str().unwrap()], options].concat();
    let mut command = tierfs();
    command.env("HOME", place.path("home")).envs(variables.iter().copied());
    place.mount_store_by(&mut command, PathBuf::from(url), "mounted", &options)
}

fn model() -> Vec<u8> {
    container_of(&mut Random(7), &[("a", 700_000), ("b", 90_000)])
}

#[track_caller]
fn same_model(mounted: &Mounted, directory: &str, model: &[u8]) {
    let file = format!("{directory}/model.safetensors");
    assert_same(&fs::read(mounted.path(&file)).unwrap(), model, "the model");
    let tensors = tensors_of(model);
    assert_eq!(tensors.len(), 2);
    for (name, bytes) in tensors {
        let found =
            fs::read(mounted.mountpoint.join(directory).join(".tensors/model.safetensors").join(&name))
                .unwrap();
        assert_same(&found, &bytes, &name);
    }
}

#[test]
fn a_mounted_repository_of_the_hub_shows_its_files_and_follows_its_branch() {
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    hub.commit(ID, "main", &[("model.safetensors", &model), ("sub/config.json", b"{}"), ("empty", b"")]);
    hub.state.lock().repositories.get_mut(ID).unwrap().is_private = true;
    let endpoint = hub.endpoint();
    let variables = [("HF_ENDPOINT", &*endpoint), ("HF_TOKEN", TOKEN)];
    let mounted = mount(&place, "hf://acme/llama", &variables, &["--follow", "0.2"]);
    same_model(&mounted, ID, &model);
    assert_eq!(fs::read(mounted.path("acme/llama/sub/config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(mounted.path("acme/llama/empty")).unwrap(), b"");
    // The branch moves. An open file keeps its bytes, a new open has the new ones.
    let path = mounted.mountpoint.join("acme/llama/sub/config.json");
    let mut open = fs::File::open(&path).unwrap();
    let asked = hub.requests_of_files().len();
    hub.commit(ID, "main", &[("model.safetensors", &model), ("sub/config.json", b"{\"new\": 1}")]);
    wait_until("the new commit is shown", || fs::read(&path).is_ok_and(|bytes| bytes == b"{\"new\": 1}"));
    let mut old = Vec::new();
    open.seek(SeekFrom::Start(0)).unwrap();
    open.read_to_end(&mut old).unwrap();
    assert_eq!(old, b"{}");
    drop(open);
    // The model is the same in both commits: its header is read, and no piece is fetched again.
    same_model(&mounted, ID, &model);
    assert_eq!(hub.requests_of_files().len(), asked + 1);
    for request in hub.requests_of_files() {
        assert_eq!(request.header("authorization"), "");
    }
    let log = mounted.log();
    assert!(!log.contains(TOKEN), "{log}");
    mounted.unmount();
}

#[test]
fn a_whole_file_with_another_sha256_than_the_hub_says_is_an_error() {
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    let commit = hub.commit(ID, "main", &[("model.safetensors", &model)]);
    // The same length, and one byte differs.
    let mut wrong = model.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let other = Server::start(move |request| Reply::bytes(request, &wrong));
    hub.fail(&format!("/{ID}/resolve/{commit}/"), Reply::to(format!("http://127.0.0.1:{}/x", other.port())));
    let mounted = mount(&place, "hf://acme/llama", &[("HF_ENDPOINT", &hub.endpoint())], &[]);
    let path = mounted.path("acme/llama/model.safetensors");
    // The first reader may have its bytes before all are there.
    drop(fs::read(&path));
    let events = || fs::read_to_string(mounted.path(".ctl/events")).unwrap();
    wait_until("an event tells of it", || events().contains("SHA-256"));
    let read = || {
        let mut file = fs::File::options().read(true).open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_to_end(&mut Vec::new())
    };
    wait_until("reads fail", || read().is_err_and(|error| error.raw_os_error() == Some(5)));
    mounted.unmount();
}

#[test]
fn a_mounted_artifact_of_a_registry_shows_its_files() {
    let place = Place::new();
    let Some(registry) = Registry::start(&place, "") else { return };
    let model = model();
    let raw = format!("{MODELPACK}.weight.v1.raw");
    let layers = vec![
        named(registry.blob("acme/llama", &raw, &model), "model.safetensors"),
        named(registry.blob("acme/llama", &raw, b"{}"), "sub/config.json"),
    ];
    registry.manifest("acme/llama", "v1", layers);
    let mounted = mount(&place, &registry.url("acme/llama:v1"), &[], &[]);
    same_model(&mounted, ID, &model);
    assert_eq!(fs::read(mounted.path("acme/llama/sub/config.json")).unwrap(), b"{}");
    mounted.unmount();
    // The same file in an archive.
    let directory = place.path("kit");
    place.write("kit/model.safetensors", &model);
    assert!(support::shell(&directory, "tar -cf ../layer.tar .").status.success());
    let archive = fs::read(place.path("layer.tar")).unwrap();
    let layer = registry.blob("acme/kit", "application/vnd.kitops.modelkit.model.v1.tar", &archive);
    registry.manifest("acme/kit", "v1", vec![layer]);
    fs::remove_dir_all(place.path("cache")).unwrap();
    let mounted = mount(&place, &registry.url("acme/kit:v1"), &[], &[]);
    same_model(&mounted, "acme/kit", &model);
    mounted.unmount();
}

#[test]
fn members_of_archives_in_a_registry_read_as_the_files_that_were_packed() {
    let (place, model) = (Place::new(), model());
    let random = &mut Random(12);
    let others = [("empty", 0), ("one", 1), ("sub/block", 512), ("sub/deep/odd.bin", 70_001)];
    for (name, len) in others {
        place.write(&format!("kit/{name}"), random.bytes(len));
    }
    place.write("kit/model.safetensors", &model);
    let kinds =
        [format!("{MODELPACK}.weight.v1.tar"), "application/vnd.kitops.modelkit.model.v1.tar".to_owned()];
    for (kind, format) in kinds.iter().zip(["pax", "gnu"]) {
        let line = format!("tar --format={format} -cf ../layer.tar .");
        assert!(support::shell(&place.path("kit"), &line).status.success());
        let archive = fs::read(place.path("layer.tar")).unwrap();
        let name = digest(&archive);
        let layers = json!([{"mediaType": kind, "digest": name, "size": archive.len()}]);
        let server = Server::start(move |request| match &*request.path {
            "/v2/acme/kit/manifests/v1" => Reply::json(&json!({"schemaVersion": 2, "layers": layers})),
            path if path.ends_with(&name) => Reply::bytes(request, &archive),
            _ => Reply::new(404, ""),
        });
        let url = format!("oci://127.0.0.1:{}/acme/kit:v1", server.port());
        for cache in [place.path(format).to_str().unwrap(), "none"] {
            let mut command = tierfs();
            command.env("HOME", place.path("home"));
            let mounted =
                place.mount_store_by(&mut command, PathBuf::from(&url), "mounted", &["--cache", cache]);
            same_model(&mounted, "acme/kit", &model);
            for (name, _) in others {
                let found = fs::read(mounted.path("acme/kit").join(name)).unwrap();
                assert_same(&found, &fs::read(place.path("kit").join(name)).unwrap(), name);
            }
            assert_eq!(support::names(&mounted.path("acme/kit/sub")), ["block", "deep"]);
            mounted.unmount();
        }
    }
}

#[test]
fn a_mounted_site_shows_its_files_and_a_replaced_one_is_stale() {
    let (place, model) = (Place::new(), model());
    place.write("files/models/llama/model.safetensors", &model);
    place.write("files/models/llama/sub dir/config & more.json", b"{}");
    place.write("files/models/other/x.bin", b"x");
    let Some(nginx) = nginx(&place, "files", "") else { return };
    let url = format!("http://127.0.0.1:{}/models/", nginx.port);
    let mounted = mount(&place, &url, &[], &["--follow", "0.2"]);
    let mut names = support::names(&mounted.path("models"));
    names.sort();
    assert_eq!(names, ["llama", "other"]);
    same_model(&mounted, "models/llama", &model);
    assert_eq!(fs::read(mounted.path("models/llama/sub dir/config & more.json")).unwrap(), b"{}");
    let path = mounted.path("models/other/x.bin");
    assert_eq!(fs::read(&path).unwrap(), b"x");
    place.write("files/models/other/x.bin", b"longer than before");
    wait_until("the new version is shown", || {
        fs::read(&path).is_ok_and(|bytes| bytes == b"longer than before")
    });
    mounted.unmount();
}

/// The answer of `tierfs ls` of a source, which must come in time.
#[track_caller]
fn ls(place: &Place, url: &str, variables: &[(&str, &str)]) -> Answer {
    let begun = Instant::now();
    let mut command: Command = tierfs();
    command.env("HOME", place.path("home")).envs(variables.iter().copied()).args(["ls", url]);
    let done = answer(&mut command);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}: {done:?}", begun.elapsed());
    done
}

#[test]
fn mistakes_are_named_by_the_program_soon() {
    let (place, hub) = (Place::new(), Hub::start());
    hub.commit(ID, "main", &[("config.json", b"{}")]);
    hub.state.lock().repositories.get_mut(ID).unwrap().is_private = true;
    let endpoint = hub.endpoint();
    let variables = [("HF_ENDPOINT", &*endpoint)];
    let error = ls(&place, "hf://acme/llama", &variables).failed(1, &["set HF_TOKEN", "acme/llama"]);
    assert!(!error.contains("did not answer"), "{error}");
    ls(&place, "hf://acme/llama", &[variables[0], ("HF_TOKEN", "hf_other")]).failed(1, &["HF_TOKEN"]);
    ls(&place, "hf://acme/lla ma", &variables).failed(1, &["write hf://OWNER/MODEL"]);
    ls(&place, "oci://registry.invalid", &[]).failed(1, &["write oci://HOST/NAME:TAG"]);
    ls(&place, "oci://no-such-host.invalid/m:v1", &[]).failed(1, &["has no address"]);
    ls(&place, "https://user:word@host/x/", &[]).failed(1, &["credentials are not allowed in a URL"]);
    ls(&place, "hf://acme/llama", &[("HF_ENDPOINT", "hub.local")])
        .failed(1, &["HF_ENDPOINT", "no URL of HTTP"]);
    let plain = Server::start(|_| Reply::new(200, "<html>Welcome</html>"));
    ls(&place, &format!("https://127.0.0.1:{}/x/", plain.port()), &[]).failed(1, &["does not speak TLS"]);
    ls(&place, &format!("http://127.0.0.1:{}/x/", plain.port()), &[]).failed(1, &["no list of files"]);
    let layer = json!([{"mediaType": "x", "digest": digest(b"x"), "size": 1}]);
    let busy = Server::start(move |request| match request.path.contains("/manifests/") {
        true => Reply::new(429, layer.to_string()).with("Retry-After", "120"),
        false => Reply::new(404, ""),
    });
    ls(&place, &format!("oci://127.0.0.1:{}/m:v1", busy.port()), &[]).failed(1, &["wants a pause of 120 s"]);
    // Such a source is only read.
    answer(tierfs().arg("init").arg(place.store())).ok();
    place.import("acme/m", &[&place.write("in/x.bin", b"x")], &[]);
    let mut command = tierfs();
    command.envs(variables).env("HF_TOKEN", TOKEN).arg("push").arg(place.store());
    answer(command.args(["acme/m", "hf://acme/llama", "--create"])).failed(1, &["hf://acme/llama"]);
}

#[test]
fn a_source_is_exported_as_its_files() {
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    hub.commit(ID, "main", &[("model.safetensors", &model), ("sub/config.json", b"{}")]);
    let out = place.path("out");
    let mut command = tierfs();
    command.env("HF_ENDPOINT", hub.endpoint()).env("HOME", place.path("home"));
    answer(command.args(["export", "hf://acme/llama", "acme/llama"]).arg(&out)).ok();
    assert_same(&fs::read(out.join("model.safetensors")).unwrap(), &model, "exported");
    assert_eq!(fs::read(Path::new(&out).join("sub/config.json")).unwrap(), b"{}");
}

#[test]
fn a_repository_is_imported_and_published_as_an_index() {
    let (place, hub, model) =
        (Place::new(), Hub::start(), container_of(&mut Random(8), &[("a", 9000), ("b", 4000)]));
    let commit = hub.commit(ID, "main", &[("model.safetensors", &model), ("sub/config.json", b"{}")]);
    let program = || {
        let mut command = tierfs();
        command.env("HF_ENDPOINT", hub.endpoint()).env("HOME", place.path("home"));
        command
    };
    answer(tierfs().arg("init").arg(place.store())).ok();
    answer(program().arg("import").arg(place.store()).args(["acme/m", "hf://acme/llama"])).ok();
    let out = place.path("out");
    answer(tierfs().arg("export").arg(place.store()).arg("acme/m").arg(&out)).ok();
    assert_same(&fs::read(out.join("model.safetensors")).unwrap(), &model, "imported");
    // An index has the commit, so it shows the same files when the branch has moved.
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    answer(program().args(["index", "hf://acme/llama", &url, "--create"])).ok();
    hub.commit(ID, "main", &[("model.safetensors", b"another")]);
    let endpoint = hub.endpoint();
    let mounted = mount(&place, &url, &[("HF_ENDPOINT", &endpoint)], &[]);
    same_model(&mounted, ID, &model);
    mounted.unmount();
    // Other bytes than those with the SHA-256 of the list are not imported.
    let mut wrong = model.clone();
    *wrong.last_mut().unwrap() ^= 1;
    let other = Server::start(move |request| Reply::bytes(request, &wrong));
    hub.fail(&format!("/{ID}/resolve/{commit}/"), Reply::to(format!("http://127.0.0.1:{}/x", other.port())));
    let pinned = format!("hf://acme/llama@{commit}");
    let mut command = program();
    let done = answer(command.arg("import").arg(place.store()).args(["acme/wrong", &pinned]));
    assert!(done.code != Some(0) && format!("{done:?}").to_lowercase().contains("sha256"), "{done:?}");
}

#[test]
fn an_import_of_another_commit_replaces_files_of_the_same_length() {
    let (place, hub) = (Place::new(), Hub::start());
    let [one, other] = [1, 2].map(|seed| container_of(&mut Random(seed), &[("a", 9000)]));
    let same = container_of(&mut Random(3), &[("b", 900)]);
    let files =
        |model, config| [("model.safetensors", model), ("same.safetensors", &*same), ("c.json", config)];
    let commits = [(&*one, &b"{1}"[..]), (&*other, b"{2}")];
    let commits =
        commits.map(|(model, config)| (hub.commit(ID, "main", &files(model, config)), model, config));
    answer(tierfs().arg("init").arg(place.store())).ok();
    for (commit, model, config) in &commits {
        let out = place.path(commit);
        let url = format!("hf://{ID}@{commit}");
        let import = || {
            let mut command = tierfs();
            command.env("HF_ENDPOINT", hub.endpoint()).env("HOME", place.path("home"));
            answer(command.arg("import").arg(place.store()).args(["acme/m", &url])).ok();
        };
        import();
        let read = hub.requests().len();
        import();
        let again = hub.requests().split_off(read);
        assert!(!again.iter().any(|request| request.path.contains("/resolve/")), "{again:?}");
        answer(tierfs().arg("export").arg(place.store()).arg("acme/m").arg(&out)).ok();
        assert_same(&fs::read(out.join("model.safetensors")).unwrap(), model, "imported");
        assert_same(&fs::read(out.join("same.safetensors")).unwrap(), &same, "imported");
        assert_eq!(fs::read(out.join("c.json")).unwrap(), *config);
    }
}

#[test]
fn a_whole_file_is_compared_again_where_the_cache_does_not_say_that_it_was() {
    const COMPARED: &str = "user.tierfs.sha256";
    let (place, hub, model) = (Place::new(), Hub::start(), model());
    hub.commit(ID, "main", &[("model.safetensors", &model)]);
    let variables = [("HF_ENDPOINT", &*hub.endpoint())];
    let noted = || -> Vec<PathBuf> {
        let files = support::files_below(&place.path("cache")).into_iter();
        let paths = files.map(|name| place.path("cache").join(name));
        paths.filter(|path| rustix::fs::getxattr(path, COMPARED, &mut [0; 32]).is_ok()).collect()
    };
    for _ in 0..2 {
        let mounted = mount(&place, "hf://acme/llama", &variables, &[]);
        same_model(&mounted, ID, &model);
        wait_until("the file was compared", || {
            drop(fs::read(mounted.path("acme/llama/model.safetensors")));
            noted().len() == 1
        });
        mounted.unmount();
        for path in noted() {
            rustix::fs::removexattr(&path, COMPARED).unwrap();
        }
    }
}

#[test]
fn a_length_that_no_disk_has_is_refused() {
    let place = Place::new();
    let server = Server::start(move |request| match &*request.path {
        "/acme/m/" => Reply::new(200, "<a href=\"large\">x</a>"),
        _ => Reply::new(200, "").with("ETag", "\"a\"").with("Content-Length", (1_u64 << 60).to_string()),
    });
    let url = format!("http://127.0.0.1:{}/acme/m/", server.port());
    let remote = format!("file://{}", place.path("remote").display());
    fs::create_dir(place.path("remote")).unwrap();
    let done = answer(tierfs().args(["index", &url, &remote, "--create"]));
    assert!(done.code == Some(1) && format!("{done:?}").contains("more than 16 TiB"), "{done:?}");
}
