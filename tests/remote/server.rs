//! SeaweedFS on loopback: one process that is all servers, or a cluster of processes.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use support::{Answer, Place, answer, repository, tierfs, wait_until};

pub const WRITER: usize = 0;
pub const READER: usize = 1;
pub const URL: &str = "s3://models/demo";
pub const KEYS: [(&str, &str, &str); 2] =
    [("writer", "WRITERKEY", "secret-of-the-writer"), ("reader", "READERKEY", "secret-of-the-reader")];

/// A process of the server. Dropping it kills it.
struct Process(Child);

impl Process {
    fn signal(&self, signal: i32) {
        // SAFETY: kill takes two numbers and touches no memory of this process.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Where a kind of server listens: for HTTP and for gRPC.
#[derive(Clone, Copy)]
struct Ports {
    http: u16,
    grpc: u16,
}

impl Ports {
    /// The address of it as other servers want it.
    fn address(self) -> String {
        format!("127.0.0.1:{}.{}", self.http, self.grpc)
    }
}

/// Different free ports.
fn free_ports<const COUNT: usize>() -> [Ports; COUNT] {
    // All are bound at the same time, so that they differ.
    let bound = [(); COUNT].map(|()| [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap()));
    bound.map(|pair| {
        let [http, grpc] = pair.map(|listener| listener.local_addr().unwrap().port());
        Ports { http, grpc }
    })
}

/// The program of all servers; `None` where it is not installed.
fn program() -> Option<PathBuf> {
    let program = repository("target/venv/bin/weed");
    if !program.exists() {
        eprintln!("skipped: {} is missing; make setup installs SeaweedFS", program.display());
        return None;
    }
    Some(program)
}

fn start(place: &Place, name: &str, arguments: &[String]) -> Process {
    let folder = place.path("weed").join(name);
    fs::create_dir_all(&folder).unwrap();
    let log =
        fs::OpenOptions::new().create(true).append(true).open(place.path(format!("{name}.log"))).unwrap();
    let mut command = Command::new(program().unwrap());
    command
        .arg("-logdir=.")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .current_dir(folder);
    Process(command.spawn().unwrap())
}

/// The keys of one who may write and of one who may only read.
fn write_keys(place: &Place) -> PathBuf {
    let identities = KEYS.map(|(name, key, secret)| {
        let actions = match name {
            "writer" => "\"Admin\", \"Read\", \"Write\", \"List\"",
            _ => "\"Read\", \"List\"",
        };
        format!(
            "{{\"name\": \"{name}\", \"credentials\": [{{\"accessKey\": \"{key}\", \"secretKey\": \"{secret}\"}}], \"actions\": [{actions}]}}"
        )
    });
    place.write("keys.json", format!("{{\"identities\": [{}]}}", identities.join(", ")))
}

/// Sends a request to a server. Returns its answer, which is empty if the server gives none.
fn http(port: u16, request: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return answer };
    if stream.write_all(request).is_ok() {
        // A server that is killed meanwhile has no answer.
        drop(stream.read_to_end(&mut answer));
    }
    answer
}

fn is_ready(port: u16) -> bool {
    http(port, b"GET /healthz HTTP/1.0\r\n\r\n").starts_with(b"HTTP/1.")
}

fn credentials(command: &mut Command, who: usize, port: u16) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", KEYS[who].1).env("AWS_SECRET_ACCESS_KEY", KEYS[who].2);
    command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{port}"));
    command.env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1")
}

/// `tierfs` with the environment of a user and these arguments.
fn run(who: usize, port: u16, arguments: &[&str]) -> Answer {
    answer(credentials(tierfs().args(arguments), who, port))
}

/// All servers in one process.
pub struct Server {
    _process: Process,
    pub port: u16,
}

impl Server {
    /// Starts it with its files below the place. `None` where SeaweedFS is not installed.
    pub fn start(place: &Place) -> Option<Server> {
        program()?;
        let ports = free_ports::<4>();
        let mut arguments = words(
            "server -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false -filer -s3 \
             -s3.port.iceberg=0 -s3.port.lance=0 -master.volumeSizeLimitMB=256 -volume.max=20 -dir=.",
        );
        arguments.push(format!("-s3.config={}", write_keys(place).display()));
        for (name, ports) in ["master", "volume", "filer", "s3"].into_iter().zip(ports) {
            arguments.push(format!("-{name}.port={}", ports.http));
            // Their default is the port and 10,000, which may pass 65,535.
            arguments.push(format!("-{name}.port.grpc={}", ports.grpc));
        }
        let port = ports[3].http;
        let server = Server { _process: start(place, "server", &arguments), port };
        wait_until("SeaweedFS answers", || is_ready(port));
        Some(server)
    }

    pub fn credentials<'a>(&self, command: &'a mut Command, who: usize) -> &'a mut Command {
        credentials(command, who, self.port)
    }

    pub fn run(&self, who: usize, arguments: &[&str]) -> Answer {
        run(who, self.port, arguments)
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A master, three volume servers, a filer and an S3 gateway. Each object has a second copy on another volume server.
pub struct Cluster<'a> {
    place: &'a Place,
    ports: [Ports; 6],
    /// In the order of `NAMES`; `None` while one is down.
    processes: [Option<Process>; 6],
}

const NAMES: [&str; 6] = ["master", "volume1", "volume2", "volume3", "filer", "gateway"];
/// The place of the gateway in `NAMES`.
pub const GATEWAY: usize = 5;
/// The places of the volume servers.
pub const VOLUMES: [usize; 3] = [1, 2, 3];
const FILER: usize = 4;

impl Cluster<'_> {
    /// Starts it with its files below the place. `None` where SeaweedFS is not installed.
    pub fn start(place: &Place) -> Option<Cluster<'_>> {
        program()?;
        write_keys(place);
        let mut cluster = Cluster { place, ports: free_ports(), processes: [const { None }; 6] };
        (0..NAMES.len()).for_each(|server| cluster.restart(server));
        cluster.wait();
        Some(cluster)
    }

    /// Waits until objects with a second copy can be written.
    fn wait(&self) {
        let assigns = || {
            let answer = http(self.ports[0].http, b"GET /dir/assign?replication=001 HTTP/1.0\r\n\r\n");
            String::from_utf8_lossy(&answer).contains("\"fid\"")
        };
        wait_until("the cluster is up", || assigns() && is_ready(self.port()));
    }

    /// The port of the gateway.
    pub fn port(&self) -> u16 {
        self.ports[GATEWAY].http
    }

    pub fn credentials<'a>(&self, command: &'a mut Command, who: usize, port: u16) -> &'a mut Command {
        credentials(command, who, port)
    }

    pub fn run(&self, who: usize, arguments: &[&str]) -> Answer {
        run(who, self.port(), arguments)
    }

    pub fn kill(&mut self, server: usize) {
        self.processes[server] = None;
    }

    /// Stops a server, which then answers nothing and keeps its connections.
    pub fn pause(&self, server: usize) {
        self.processes[server].as_ref().unwrap().signal(libc::SIGSTOP);
    }

    pub fn resume(&self, server: usize) {
        self.processes[server].as_ref().unwrap().signal(libc::SIGCONT);
    }

    /// Starts a server, or starts it again.
    pub fn restart(&mut self, server: usize) {
        let Ports { http, grpc } = self.ports[server];
        let master = self.ports[0].address();
        let mut arguments = words(match server {
            0 => {
                "master -ip=127.0.0.1 -mdir=. -defaultReplication=001 -volumeSizeLimitMB=128 -telemetry=false"
            }
            FILER => "filer -ip=127.0.0.1 -defaultStoreDir=. -defaultReplicaPlacement=001",
            GATEWAY => "s3 -port.iceberg=0 -port.lance=0",
            _ => "volume -ip=127.0.0.1 -dir=. -max=20",
        });
        arguments.extend([
            "-ip.bind=127.0.0.1".to_owned(),
            format!("-port={http}"),
            format!("-port.grpc={grpc}"),
        ]);
        match server {
            0 => {}
            GATEWAY => arguments.extend([
                format!("-filer={}", self.ports[FILER].address()),
                format!("-config={}", self.place.path("keys.json").display()),
            ]),
            _ => arguments.push(format!("-master={master}")),
        }
        self.processes[server] = Some(start(self.place, NAMES[server], &arguments));
        if server == GATEWAY {
            wait_until("the gateway answers", || is_ready(http));
        }
    }

    /// The paths of the pieces in the filer, and their bytes.
    pub fn pieces(&self) -> Vec<(String, u64)> {
        let listed = |path: &str| -> Vec<serde_json::Value> {
            let request = format!("GET {path}/?limit=1000 HTTP/1.0\r\nAccept: application/json\r\n\r\n");
            let answer = http(self.ports[FILER].http, request.as_bytes());
            let body = answer.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
            let listed: serde_json::Value = serde_json::from_slice(&answer[body..]).unwrap();
            listed["Entries"].as_array().cloned().unwrap_or_default()
        };
        let path = |entry: &serde_json::Value| entry["FullPath"].as_str().unwrap().to_owned();
        let folders = listed("/buckets/models/demo/piece");
        let pieces = folders.iter().flat_map(|folder| listed(&path(folder)));
        pieces.map(|piece| (path(&piece), piece["FileSize"].as_u64().unwrap())).collect()
    }

    /// Reads an object past the gateway.
    pub fn object(&self, path: &str) -> Vec<u8> {
        let answer = http(self.ports[FILER].http, format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
        let body = answer.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
        answer[body..].to_vec()
    }

    /// Replaces an object past the gateway.
    pub fn overwrite(&self, path: &str, bytes: &[u8]) {
        let head = format!("PUT {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", bytes.len());
        let answer = http(self.ports[FILER].http, &[head.as_bytes(), bytes].concat());
        assert!(answer.starts_with(b"HTTP/1.0 201"), "{}", String::from_utf8_lossy(&answer));
    }
}
