//! `oci://`: Debian's docker-registry, and an imitation that wants tokens.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use support::{Place, Random, assert_same, container_of, shell};
use tierfs::remote::source::open;

use super::hub::sha256;
use super::hubs::{by_key, environment, read, refusal};
use super::{Process, Reply, Server, server};

const USER: &str = "reader";
const WORD: &str = "word of the reader";
/// `USER:WORD` in base64, as docker keeps it.
const AUTH: &str = "cmVhZGVyOndvcmQgb2YgdGhlIHJlYWRlcg==";
/// The bcrypt of the word.
const HTPASSWD: &str = "reader:$2b$05$abcdefghijklmnopqrstuuvBiwDBXOPNKp7kdsVVh2j5T7uSxGcwO\n";

const OCI: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const KITOPS: &str = "application/vnd.kitops.modelkit";
pub const MODELPACK: &str = "application/vnd.cncf.model";

/// docker-registry with its blobs below the place.
pub struct Registry {
    process: Process,
    /// The header of requests that write.
    authorization: String,
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", sha256(bytes))
}

impl Registry {
    pub fn start(place: &Place, options: &str) -> Option<Registry> {
        let program = server("usr/bin/docker-registry")?;
        let blobs = place.path("blobs");
        let process = Process::start(|port| {
            let config = format!(
                "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
                 http:\n  addr: 127.0.0.1:{port}\n{options}",
                blobs.display()
            );
            let path = place.write("registry.yml", config);
            let mut command = Command::new(program);
            command.arg("serve").arg(path);
            command
        });
        let authorization =
            if options.is_empty() { String::new() } else { format!("Authorization: Basic {AUTH}\r\n") };
        Some(Registry { process, authorization })
    }

    fn send(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.process.port)).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\nContent-Type: {kind}\r\n{}\
             Content-Length: {}\r\n\r\n",
            self.process.port,
            self.authorization,
            body.len()
        );
        stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
        answer
    }

    /// Stores a blob; its descriptor.
    pub fn blob(&self, name: &str, kind: &str, bytes: &[u8]) -> Value {
        let begun = self.send("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"");
        let place = begun.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap();
        let path = &place[place.find("/v2/").unwrap()..];
        self.send("PUT", &format!("{path}&digest={}", digest(bytes)), "application/octet-stream", bytes);
        json!({"mediaType": kind, "digest": digest(bytes), "size": bytes.len()})
    }

    /// Stores a manifest of layers; its descriptor.
    pub fn manifest(&self, name: &str, tag: &str, layers: Vec<Value>) -> Value {
        let config = self.blob(name, &format!("{MODELPACK}.config.v1+json"), b"{}");
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI, "config": config, "layers": layers,
            "artifactType": format!("{MODELPACK}.manifest.v1+json"),
            "annotations": {"org.opencontainers.image.created": "2026-11-23T01:02:03Z"}});
        self.put(name, tag, OCI, &manifest)
    }

    fn put(&self, name: &str, tag: &str, kind: &str, manifest: &Value) -> Value {
        let bytes = manifest.to_string();
        self.send("PUT", &format!("/v2/{name}/manifests/{tag}"), kind, bytes.as_bytes());
        json!({"mediaType": kind, "digest": digest(bytes.as_bytes()), "size": bytes.len()})
    }

    pub fn url(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/{rest}", self.process.port)
    }
}

/// A layer with the path of its file.
pub fn named(mut layer: Value, path: &str) -> Value {
    layer["annotations"] = json!({"org.cncf.model.filepath": path});
    layer
}

fn model() -> Vec<u8> {
    container_of(&mut Random(4), &[("a", 200_000), ("b", 1000)])
}

#[test]
fn an_artifact_of_modelpack_shows_its_files() {
    let place = Place::new();
    let Some(registry) = Registry::start(&place, "") else { return };
    let (model, raw) = (model(), format!("{MODELPACK}.weight.v1.raw"));
    let layers = vec![
        named(registry.blob("acme/llama", &raw, &model), "model.safetensors"),
        named(
            registry.blob("acme/llama", &format!("{MODELPACK}.weight.config.v1.raw"), b"{}"),
            "conf/config.json",
        ),
        registry.blob("acme/llama", "application/octet-stream", b"without a name"),
    ];
    let found = registry.manifest("acme/llama", "v1", layers.clone());
    let pinned = registry.url(&format!("acme/llama@{}", found["digest"].as_str().unwrap()));
    for url in [registry.url("acme/llama:v1"), pinned.clone()] {
        let source = open(&url).unwrap();
        let objects = by_key(source.list("").unwrap());
        let nameless = &sha256(b"without a name")[..12];
        let mut wanted = vec![nameless, "conf/config.json", "model.safetensors"];
        wanted.sort_unstable();
        assert_eq!(objects.iter().map(|object| &*object.key).collect::<Vec<_>>(), wanted);
        let object = objects.iter().find(|object| object.key == "model.safetensors").unwrap();
        assert_same(&read(&*source, object), &model, "the model");
        assert_eq!(object.sha256.map(|digest| digest.to_vec()), Some(hex(&sha256(&model))));
        assert_eq!(object.modified, 1_795_395_723);
        let level = source.level("").unwrap();
        assert_eq!((level.directories, level.objects.len()), (vec!["conf".to_owned()], 2));
        assert_eq!(source.level("conf").unwrap().objects[0].key, "conf/config.json");
        assert_eq!(source.list("conf").unwrap().len(), 1);
    }
    // A tag moves. An open file keeps its bytes, a list has the new ones, a digest the old ones.
    let source = open(&registry.url("acme/llama:v1")).unwrap();
    let before = source.list("").unwrap();
    let before = before.iter().find(|object| object.key == "model.safetensors").unwrap();
    registry.manifest(
        "acme/llama",
        "v1",
        vec![named(registry.blob("acme/llama", &raw, b"new"), "model.safetensors")],
    );
    let after = source.list("").unwrap();
    assert_eq!((after.len(), read(&*source, &after[0])), (1, b"new".to_vec()));
    assert_same(&read(&*source, before), &model, "the open file");
    assert_eq!(open(&pinned).unwrap().list("").unwrap().len(), 3);
    for (rest, wanted) in [
        ("acme/llama:v9", "has no acme/llama with the tag or digest v9"),
        ("acme/none:v1", "has no acme/none with the tag or digest v1"),
        (&format!("acme/llama@sha256:{}", "0".repeat(64)), "with the tag or digest sha256:0000"),
    ] {
        let error = refusal(&*open(&registry.url(rest)).unwrap());
        assert!(error.contains(wanted), "{error}");
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn an_artifact_of_kitops_shows_the_files_in_its_archives() {
    let place = Place::new();
    let Some(registry) = Registry::start(&place, "") else { return };
    let model = model();
    let long = format!("{}/{}.json", "directory".repeat(12), "name".repeat(30));
    let files: Vec<(&str, Vec<u8>)> = vec![
        ("model.safetensors", model.clone()),
        ("empty", Vec::new()),
        (&long, b"a long name".to_vec()),
        ("\u{e4}\u{4e16}.txt", b"unicode".to_vec()),
        ("sub/block", vec![5; 512]),
    ];
    for (name, bytes) in &files {
        place.write(&format!("files/{name}"), bytes);
    }
    std::os::unix::fs::symlink("/etc/passwd", place.path("files/link")).unwrap();
    for format in ["gnu", "pax", "ustar"] {
        let mut wanted = files.clone();
        if format == "ustar" {
            // It has no place for the long name.
            wanted.retain(|(name, _)| *name != long);
        }
        let without =
            if format == "ustar" { format!("--exclude=./{}", "directory".repeat(12)) } else { String::new() };
        let made = shell(
            place.path("files").as_path(),
            &format!("tar --format={format} {without} -cf ../layer.tar ."),
        );
        assert!(made.status.success(), "{made:?}");
        let archive = fs::read(place.path("layer.tar")).unwrap();
        let layers = vec![
            registry.blob("acme/kit", &format!("{KITOPS}.model.v1.tar"), &archive),
            registry.blob("acme/kit", &format!("{KITOPS}.dataset.v1.tar+gzip"), b"compressed"),
        ];
        registry.manifest("acme/kit", format, layers);
        let source = open(&registry.url(&format!("acme/kit:{format}"))).unwrap();
        let mut objects = source.list("").unwrap();
        objects.retain(|object| !object.key.ends_with(".tar.gz"));
        assert_eq!(objects.len(), wanted.len(), "{objects:?}");
        for (name, bytes) in &wanted {
            let object = objects.iter().find(|object| object.key == *name).unwrap();
            assert_eq!(object.bytes, bytes.len() as u64);
            assert_same(&read(&*source, object), bytes, name);
        }
    }
    let objects = open(&registry.url("acme/kit:gnu")).unwrap().list("").unwrap();
    let compressed = format!("{}.tar.gz", &sha256(b"compressed")[..12]);
    assert!(objects.iter().any(|object| object.key == compressed && object.bytes == 10));
}

#[test]
fn a_list_of_manifests_is_followed_where_it_has_one() {
    let place = Place::new();
    let Some(registry) = Registry::start(&place, "") else { return };
    let layer = |text: &str| {
        vec![named(registry.blob("acme/m", "application/octet-stream", text.as_bytes()), "file")]
    };
    let (one, two) =
        (registry.manifest("acme/m", "one", layer("1")), registry.manifest("acme/m", "two", layer("2")));
    let index =
        |manifests: Vec<&Value>| json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    registry.put("acme/m", "single", INDEX, &index(vec![&one]));
    registry.put("acme/m", "several", INDEX, &index(vec![&one, &two]));
    let source = open(&registry.url("acme/m:single")).unwrap();
    assert_eq!(read(&*source, &source.list("").unwrap()[0]), b"1");
    let error = refusal(&*open(&registry.url("acme/m:several")).unwrap());
    assert!(error.contains("a list of 2 manifests; name one of them by its digest"), "{error}");
}

fn docker_config(place: &Place, config: &Value) {
    place.write("docker/config.json", config.to_string());
    environment(&[("DOCKER_CONFIG", place.path("docker").to_str().unwrap())]);
}

#[test]
fn credentials_are_those_of_docker() {
    let place = Place::new();
    let htpasswd = place.write("htpasswd", HTPASSWD);
    let options = format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", htpasswd.display());
    let Some(registry) = Registry::start(&place, &options) else { return };
    let layer = registry.blob("acme/m", "application/octet-stream", b"bytes of the layer");
    registry.manifest("acme/m", "v1", vec![named(layer, "file")]);
    let (url, host) = (registry.url("acme/m:v1"), format!("127.0.0.1:{}", registry.process.port));
    docker_config(&place, &json!({}));
    let error = refusal(&*open(&url).unwrap());
    assert!(
        error.contains(&format!("run docker login {host}")) && error.contains("docker/config.json"),
        "{error}"
    );
    docker_config(&place, &json!({"auths": {(&*host): {"username": USER, "password": "wrong"}}}));
    let error = refusal(&*open(&url).unwrap());
    assert!(error.contains("run docker login") && !error.contains("wrong"), "{error}");
    let reads = || {
        let source = open(&url).unwrap();
        assert_eq!(read(&*source, &source.list("").unwrap()[0]), b"bytes of the layer");
    };
    docker_config(&place, &json!({"auths": {(&*host): {"auth": AUTH}}}));
    reads();
    docker_config(&place, &json!({"auths": {(&*host): {"username": USER, "password": WORD}}}));
    reads();
    // A program of this host counts before the one of all others.
    let program = place.write(
        "bin/docker-credential-test",
        format!("#!/bin/sh\nread host\n[ \"$1 $host\" = \"get {host}\" ] && echo '{{\"Username\": \"{USER}\", \"Secret\": \"{WORD}\"}}'\n"),
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", program.parent().map(Path::display).unwrap(), std::env::var("PATH").unwrap());
    environment(&[("PATH", &path)]);
    docker_config(&place, &json!({"credsStore": "absent", "credHelpers": {(&*host): "test"}}));
    reads();
    docker_config(&place, &json!({"credsStore": "test"}));
    reads();
    docker_config(&place, &json!({"credsStore": "absent"}));
    let error = refusal(&*open(&url).unwrap());
    assert!(error.contains("docker-credential-absent"), "{error}");
}

/// An imitation of a registry that wants tokens, with one artifact of one layer. Blobs lie on another host.
struct Imitation {
    registry: Server,
    tokens: Server,
    blobs: Server,
    given: Arc<AtomicU64>,
}

impl Imitation {
    /// `lasts`: the seconds for which a token is valid.
    fn start(layer: Vec<u8>, kind: &str, lasts: u64) -> Imitation {
        let given = Arc::new(AtomicU64::new(0));
        let (counted, current) = (given.clone(), given.clone());
        let tokens = Server::start(move |request| {
            let is_refresh = request.method == "POST" && request.body.contains("refresh_token=of-a-helper");
            let is_known = request.header("authorization") == format!("Basic {AUTH}");
            let asks = format!("{} {}", request.target, request.body);
            if !(is_refresh || is_known)
                || !asks.contains("service=reg.test")
                || !asks.contains("repository%3Aacme%2Fm%3Apull")
            {
                return Reply::new(401, "");
            }
            let token = format!("token-{}", counted.fetch_add(1, Ordering::Relaxed) + 1);
            Reply::json(&json!({"token": token, "expires_in": lasts}))
        });
        let (digest, bytes) = (digest(&layer), layer.len());
        let blobs = Server::start(move |request| Reply::bytes(request, &layer));
        let (token_port, blob_port) = (tokens.port(), blobs.port());
        let layers = json!([{"mediaType": kind, "digest": digest, "size": bytes,
            "annotations": {"org.opencontainers.image.title": "file"}}]);
        let registry = Server::start(move |request| {
            let valid = format!("Bearer token-{}", current.load(Ordering::Relaxed));
            if request.header("authorization") != valid || valid.ends_with("-0") {
                let wants = format!(
                    "Bearer realm=\"http://127.0.0.1:{token_port}/token\",service=\"reg.test\",scope=\"repository:acme/m:pull\""
                );
                return Reply::new(401, "").with("WWW-Authenticate", wants);
            }
            match &*request.path {
                "/v2/acme/m/manifests/v1" => Reply::json(&json!({"schemaVersion": 2, "layers": layers})),
                path if path.ends_with(&digest) => {
                    Reply::to(format!("http://127.0.0.1:{blob_port}/blob?signature=x"))
                }
                "/v2/acme/m/manifests/lie" => Reply::json(&json!({"layers": []}))
                    .with("Docker-Content-Digest", format!("sha256:{}", "0".repeat(64))),
                path if path.contains("/manifests/sha256:") => Reply::json(&json!({"layers": []})),
                _ => Reply::new(404, ""),
            }
        });
        Imitation { registry, tokens, blobs, given }
    }

    fn url(&self, rest: &str) -> String {
        format!("oci://127.0.0.1:{}/acme/m{rest}", self.registry.port())
    }

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.registry.port())
    }
}

#[test]
fn a_token_is_asked_for_and_renewed_and_other_hosts_do_not_get_it() {
    let place = Place::new();
    let layer = Random(6).bytes(300_000);
    let server = Imitation::start(layer.clone(), "application/octet-stream", 3600);
    docker_config(&place, &json!({}));
    let error = refusal(&*open(&server.url(":v1")).unwrap());
    assert!(error.contains("run docker login"), "{error}");
    docker_config(&place, &json!({"auths": {(&*server.host()): {"auth": AUTH}}}));
    let source = open(&server.url(":v1")).unwrap();
    let object = source.list("").unwrap().remove(0);
    assert_same(&read(&*source, &object), &layer, "a layer");
    assert_eq!(server.given.load(Ordering::Relaxed), 1, "one token for all requests");
    // The registry takes the token back.
    server.given.fetch_add(1, Ordering::Relaxed);
    assert_same(&read(&*source, &object), &layer, "with another token");
    for request in server.blobs.requests() {
        assert_eq!(request.header("authorization"), "", "{request:?}");
    }
    // A refresh token of a program.
    docker_config(&place, &json!({"auths": {(&*server.host()): {"identitytoken": "of-a-helper"}}}));
    let source = open(&server.url(":v1")).unwrap();
    assert_same(&read(&*source, &source.list("").unwrap()[0]), &layer, "by a refresh token");
    assert!(server.tokens.requests().iter().any(|request| request.method == "POST"));
}

#[test]
fn a_manifest_with_another_digest_is_refused() {
    let place = Place::new();
    let server = Imitation::start(b"layer".to_vec(), "application/octet-stream", 3600);
    docker_config(&place, &json!({"auths": {(&*server.host()): {"auth": AUTH}}}));
    for rest in [":lie", &format!("@sha256:{}", "1".repeat(64))] {
        let error = refusal(&*open(&server.url(rest)).unwrap());
        assert!(error.contains("which is not the one that was asked for or said"), "{error}");
    }
}

#[test]
fn answers_of_registries_that_make_no_sense_are_refused() {
    for (reply, wanted) in [
        (
            Reply::new(401, "").with("WWW-Authenticate", "Bearer realm=\"ftp://x/token\""),
            "sends to \"ftp://x/token\" for a token",
        ),
        (Reply::new(401, "").with("WWW-Authenticate", "Digest"), "run docker login"),
        (Reply::new(403, ""), "run docker login"),
        (Reply::new(429, "").with("Retry-After", "3600"), "wants a pause of 3600 s"),
        (Reply::new(200, vec![b' '; 5 << 20]), "has more than 4 MiB"),
        (Reply::new(200, "{}"), "has no layers"),
        (
            Reply::new(200, "{\"layers\": [{\"digest\": \"sha512:ab\", \"size\": 1}]}"),
            "another digest than SHA-256",
        ),
        (Reply::new(200, "{\"manifests\": []}"), "a list of 0 manifests"),
        (Reply::to("/v2/acme/m/manifests/v1"), "redirects without end"),
        (Reply::to("https://127.0.0.1:1/v2"), "did not"),
    ] {
        let server = Server::start(move |_| reply.clone());
        environment(&[("DOCKER_CONFIG", "/nonexistent")]);
        let source = open(&format!("oci://127.0.0.1:{}/acme/m:v1", server.port())).unwrap();
        if wanted != "did not" {
            let error = refusal(&*source);
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }
}

#[test]
fn archives_that_lie_are_refused_soon() {
    let place = Place::new();
    let archive = |name: &str, size: u64, kind: u8| {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        [&header[..], &[0; 2048]].concat()
    };
    for (layer, wanted) in [
        (archive("file", 1 << 32, b'0'), Some("the archive ends within")),
        (archive("long", 1 << 32, b'x'), Some("")),
        (vec![1; 4096], Some("is no archive of tar")),
        (archive("../../escape", 10, b'0'), None),
        (archive("/", 10, b'0'), None),
        (Vec::new(), None),
    ] {
        let server = Imitation::start(layer, "application/vnd.kitops.modelkit.model.v1.tar", 3600);
        docker_config(&place, &json!({"auths": {(&*server.host()): {"auth": AUTH}}}));
        let source = open(&server.url(":v1")).unwrap();
        let begun = Instant::now();
        match wanted {
            Some(wanted) => assert!(refusal(&*source).contains(wanted)),
            None => assert!(source.list("").unwrap().is_empty()),
        }
        assert!(begun.elapsed().as_secs() < 3);
    }
}

#[test]
fn a_refresh_token_stays_with_the_server_of_tokens() {
    let place = Place::new();
    let other = Server::start(|_| Reply::json(&json!({"token": "t"})));
    let elsewhere = format!("http://127.0.0.1:{}/token", other.port());
    let tokens = Server::start(move |_| Reply { status: 307, ..Reply::to(elsewhere.clone()) });
    let realm = format!("Bearer realm=\"http://127.0.0.1:{}/token\",service=\"s\"", tokens.port());
    let registry = Server::start(move |_| Reply::new(401, "").with("WWW-Authenticate", realm.clone()));
    let host = format!("127.0.0.1:{}", registry.port());
    docker_config(&place, &json!({"auths": {(&*host): {"identitytoken": "of-a-helper"}}}));
    let error = refusal(&*open(&format!("oci://{host}/acme/m:v1")).unwrap());
    assert!(error.contains("redirects a token to another server"), "{error}");
    assert_eq!((tokens.requests().len(), other.requests().len()), (1, 0));
}

#[test]
fn an_archive_of_many_long_members_is_read_by_its_headers() {
    let (place, len, count) = (Place::new(), 200 << 10, 300);
    let mut archive = tar::Builder::new(Vec::new());
    for index in 0..count {
        let mut header = tar::Header::new_gnu();
        header.set_size(len);
        header.set_mode(0o644);
        archive.append_data(&mut header, format!("{index}.bin"), std::io::repeat(7).take(len)).unwrap();
    }
    let layer = archive.into_inner().unwrap();
    let server = Imitation::start(layer, "application/vnd.kitops.modelkit.model.v1.tar", 3600);
    docker_config(&place, &json!({"auths": {(&*server.host()): {"auth": AUTH}}}));
    assert_eq!(open(&server.url(":v1")).unwrap().list("").unwrap().len(), count);
    let asked = |request: &super::Request| {
        let (first, last) = request.header("range").strip_prefix("bytes=")?.split_once('-')?;
        Some(last.parse::<u64>().ok()? + 1 - first.parse::<u64>().ok()?)
    };
    let bytes: u64 = server.blobs.requests().iter().filter_map(asked).sum();
    assert!(bytes < 4 << 20, "{bytes}");
}
