//! A real object storage: SeaweedFS, which the test starts on loopback.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use support::{Place, answer, assert_same, minilm, repository, tierfs, wait_until};

const KEYS: [(&str, &str, &str); 2] =
    [("writer", "WRITERKEY", "secret-of-the-writer"), ("reader", "READERKEY", "secret-of-the-reader")];

/// A running server. Dropping it kills it.
struct Server {
    process: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Server {
    /// Starts a server with its files below the place. `None` where SeaweedFS is not installed.
    fn start(place: &Place) -> Option<Server> {
        let program = repository("target/venv/bin/weed");
        if !program.exists() {
            eprintln!("skipped: {} is missing; make setup installs SeaweedFS", program.display());
            return None;
        }
        fs::create_dir(place.path("weed")).unwrap();
        let actions = |name: &str| match name {
            "writer" => "\"Admin\", \"Read\", \"Write\", \"List\"",
            _ => "\"Read\", \"List\"",
        };
        let identities = KEYS.map(|(name, key, secret)| {
            format!(
                "{{\"name\": \"{name}\", \"credentials\": [{{\"accessKey\": \"{key}\", \"secretKey\": \"{secret}\"}}], \"actions\": [{}]}}",
                actions(name)
            )
        });
        place.write("keys.json", format!("{{\"identities\": [{}]}}", identities.join(", ")));
        let [master, volume, filer, port] = [(); 4].map(|()| free_port());
        let mut command = Command::new(program);
        command.arg("server").arg(format!("-dir={}", place.path("weed").display()));
        command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-filer", "-s3"]);
        command.arg(format!("-s3.config={}", place.path("keys.json").display()));
        command.args([
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.volumeSizeLimitMB=256",
            "-volume.max=20",
        ]);
        for (name, number) in [("master", master), ("volume", volume), ("filer", filer), ("s3", port)] {
            command.arg(format!("-{name}.port={number}"));
            // Their default is the port and 10,000, which may pass 65,535.
            command.arg(format!("-{name}.port.grpc={}", free_port()));
        }
        let log = fs::File::create(place.path("weed.log")).unwrap();
        command.stdout(Stdio::null()).stderr(log).current_dir(place.path("weed"));
        let server = Server { process: command.spawn().unwrap(), port };
        wait_until("SeaweedFS answers", || server.answers());
        Some(server)
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut answer = Vec::new();
        let request = b"GET /healthz HTTP/1.0\r\n\r\n";
        stream.write_all(request).is_ok()
            && stream.read_to_end(&mut answer).is_ok()
            && answer.starts_with(b"HTTP/1.")
    }

    fn credentials<'a>(&self, command: &'a mut Command, who: usize) -> &'a mut Command {
        command.env("AWS_ACCESS_KEY_ID", KEYS[who].1).env("AWS_SECRET_ACCESS_KEY", KEYS[who].2);
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{}", self.port));
        command.env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1")
    }

    fn run(&self, who: usize, arguments: &[&str]) -> support::Answer {
        answer(self.credentials(tierfs().args(arguments), who))
    }
}

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

const WRITER: usize = 0;
const READER: usize = 1;
const URL: &str = "s3://models/demo";

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
    let refused = server.run(READER, &push).failed(1, &["s3://models/demo"]);
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
