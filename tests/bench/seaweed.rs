//! An object storage on this machine: one SeaweedFS, and programs that know how to reach it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::Result;
use crate::place::{Place, missing};

/// The server's program, of the environment of the tests.
pub const PROGRAM: &str = "target/venv/bin/weed";
const PATIENCE: Duration = Duration::from_secs(30);
const KEY: &str = "bench";
const SECRET: &str = "secret-of-the-benchmark";

/// The server; dropping it kills it.
pub struct Seaweed {
    process: Child,
    /// The port of its S3 interface.
    pub port: u16,
    filer: [u16; 2],
}

impl Seaweed {
    /// Starts it with its files in the directory of the run.
    pub fn start(place: &Place) -> Result<Seaweed> {
        let program = fs::canonicalize(PROGRAM)
            .map_err(|_| missing(&format!("{PROGRAM} is not there (scripts/setup.sh)")))?;
        let folder = place.new_directory("weed")?;
        let keys = format!(
            "{{\"identities\": [{{\"name\": \"bench\", \"credentials\": [{{\"accessKey\": \"{KEY}\", \"secretKey\": \"{SECRET}\"}}], \
             \"actions\": [\"Admin\", \"Read\", \"Write\", \"List\"]}}]}}"
        );
        fs::write(folder.join("keys.json"), keys)?;
        let ports = free_ports(8)?;
        let mut command = Command::new(program);
        command.args([
            "-logdir=.",
            "server",
            "-dir=.",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-master.telemetry=false",
        ]);
        command.args(["-filer", "-s3", "-s3.config=keys.json", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
        command.args(["-master.volumeSizeLimitMB=1024", "-volume.max=200"]);
        for (name, ports) in ["master", "volume", "filer", "s3"].into_iter().zip(ports.chunks(2)) {
            command.arg(format!("-{name}.port={}", ports[0]));
            command.arg(format!("-{name}.port.grpc={}", ports[1]));
        }
        let log = fs::File::create(folder.join("log"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).current_dir(&folder);
        let server = Seaweed { process: command.spawn()?, port: ports[6], filer: [ports[4], ports[5]] };
        let until = Instant::now() + PATIENCE;
        while !server.is_ready() {
            if Instant::now() > until {
                return Err("SeaweedFS does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let mut answer = Vec::new();
        stream.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").is_ok()
            && stream.read_to_end(&mut answer).is_ok()
            && answer.starts_with(b"HTTP/1.")
    }

    /// The address of its filer, for `weed mount`.
    pub fn filer(&self) -> String {
        format!("127.0.0.1:{}.{}", self.filer[0], self.filer[1])
    }

    /// Gives a program of tierfs the keys, and the endpoint at this port.
    pub fn keys<'a>(&self, command: &'a mut Command, port: u16) -> &'a mut Command {
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.env("AWS_ENDPOINT", format!("http://127.0.0.1:{port}"));
        command.env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1")
    }

    /// Gives rclone the keys of the remote `w`.
    pub fn rclone_keys<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        for (name, value) in [
            ("TYPE", "s3"),
            ("PROVIDER", "SeaweedFS"),
            ("ACCESS_KEY_ID", KEY),
            ("SECRET_ACCESS_KEY", SECRET),
            ("ENDPOINT", &endpoint),
            ("REGION", "us-east-1"),
            ("FORCE_PATH_STYLE", "true"),
        ] {
            command.env(format!("RCLONE_CONFIG_W_{name}"), value);
        }
        command.env("RCLONE_CONFIG", "/dev/null")
    }

    /// Writes the keys as s3fs wants them.
    pub fn s3fs_keys(&self, path: &Path) -> Result<()> {
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        Ok(writeln!(file, "{KEY}:{SECRET}")?)
    }
}

impl Drop for Seaweed {
    fn drop(&mut self) {
        self.process.kill().and_then(|()| self.process.wait()).map(drop).unwrap_or_default();
    }
}

/// Free ports, all different.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let bound = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<std::io::Result<Vec<_>>>()?;
    Ok(bound
        .iter()
        .map(|listener| listener.local_addr().map(|at| at.port()))
        .collect::<std::io::Result<_>>()?)
}

/// A link to the server. It counts the bytes that pass.
pub struct Link {
    /// Its port.
    pub port: u16,
    /// Bytes that the server sent.
    pub received: Arc<AtomicU64>,
    /// New connections are closed at once.
    pub is_cut: Arc<AtomicBool>,
}

/// Each round trip over a link that is far takes this much longer.
pub const DELAY: Duration = Duration::from_millis(100);
/// Bytes a second of a narrow link: 1 Gbit/s.
pub const NARROW: f64 = 125e6;

const BURST: Duration = Duration::from_millis(2);

/// The bytes of all connections of a link take turns.
struct Pace {
    /// Seconds that a byte takes.
    byte_takes: f64,
    free: Mutex<Instant>,
}

impl Pace {
    /// Waits until `bytes` have passed.
    fn wait(&self, bytes: usize) {
        let passed = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            // A thread that slept too long catches up.
            *free =
                (*free).max(Instant::now() - BURST) + Duration::from_secs_f64(bytes as f64 * self.byte_takes);
            *free
        };
        std::thread::sleep(passed.saturating_duration_since(Instant::now()));
    }
}

impl Link {
    /// A way to the server at a port on which each request takes `DELAY` longer, until the process ends.
    pub fn far(target: u16) -> Result<Link> {
        Link::to(target, DELAY, 0.0)
    }

    /// A way to the server at a port, until the process ends.
    pub fn plain(target: u16) -> Result<Link> {
        Link::to(target, Duration::ZERO, 0.0)
    }

    /// A way to the server at a port that passes `NARROW` bytes a second, until the process ends.
    pub fn narrow(target: u16) -> Result<Link> {
        Link::to(target, Duration::ZERO, 1.0 / NARROW)
    }

    fn to(target: u16, delay: Duration, byte_takes: f64) -> Result<Link> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (port, received) = (listener.local_addr()?.port(), Arc::new(AtomicU64::new(0)));
        let counted = received.clone();
        let is_cut = Arc::new(AtomicBool::new(false));
        let cut = is_cut.clone();
        let pace = Arc::new(Pace { byte_takes, free: Mutex::new(Instant::now()) });
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if cut.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let (Ok(to_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                let (counted, pace) = (counted.clone(), pace.clone());
                std::thread::spawn(move || pass(client, server, |_| std::thread::sleep(delay)));
                let passes = move |bytes: usize| {
                    counted.fetch_add(bytes as u64, Ordering::Relaxed);
                    pace.wait(bytes);
                };
                std::thread::spawn(move || pass(from_server, to_client, passes));
            }
        });
        Ok(Link { port, received, is_cut })
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, passes: impl Fn(usize)) {
    let mut part = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut part) {
        passes(count);
        if count == 0 || to.write_all(&part[..count]).is_err() {
            break;
        }
    }
    to.shutdown(std::net::Shutdown::Write).unwrap_or_default();
}

/// `tierfs-bench get URL KEY...`: reads objects with the client of tierfs, 16 at a time, and prints the seconds, the
/// processor's seconds and the bytes.
pub fn get(arguments: &[String]) -> Result<()> {
    const STREAMS: usize = 16;
    let (url, below) = (arguments.first().ok_or("no URL")?, arguments.get(1).ok_or("no key")?);
    let client = tierfs::remote::client::Client::open(url)?;
    let listed = client.list(below, None)?;
    let (next, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let before = cpu_of(std::process::id())?;
    let read = || -> Result<()> {
        while let Some(object) = listed.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let found = client.get(&object.key, object.len)?.ok_or("an object is gone")?;
            bytes.fetch_add(found.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..STREAMS).map(|_| scope.spawn(read)).collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader panicked")?)
    })?;
    let cpu = cpu_of(std::process::id())? - before;
    println!("{} {cpu} {}", begun.elapsed().as_secs_f64(), bytes.load(Ordering::Relaxed));
    Ok(())
}

/// Seconds of processor time that a process and its living children have used: JuiceFS reads in a child.
pub fn cpu_of(process: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(") ").ok_or("no stat")?.1.split(' ').collect();
    let ticks = |at: usize| -> Result<f64> { Ok(fields.get(at).ok_or("no field")?.parse()?) };
    // Of fields 14 and 15 of proc_pid_stat(5); a tick is a hundredth of a second on every Linux.
    let mut seconds = (ticks(11)? + ticks(12)?) / 100.0;
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        for child in fs::read_to_string(thread?.path().join("children"))?.split_whitespace() {
            seconds += cpu_of(child.parse()?)?;
        }
    }
    Ok(seconds)
}

/// The path of a program that a row needs.
pub fn installed(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let venv = fs::canonicalize("target/venv/bin").unwrap_or_default();
    let found =
        std::env::split_paths(&path).chain([venv]).map(|folder| folder.join(name)).find(|path| path.exists());
    found.ok_or_else(|| missing(&format!("{name} is not installed (scripts/setup.sh bench)")))
}
