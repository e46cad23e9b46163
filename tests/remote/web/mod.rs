//! Sources on the web: sites, hubs and registries, on servers of others where they are installed, and on imitations that do
//! what those do not: refuse, redirect, repeat themselves, change what was there.

mod hub;
mod hubs;
mod in_place;
mod many;
mod mounted;
mod registries;
mod sites;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use support::{Acceptor, Place, repository, wait_until};

use crate::http_request::HttpRequest;

/// A request as it arrived.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// The path, decoded.
    pub path: String,
    /// The path and the query, as they were sent.
    pub target: String,
    headers: BTreeMap<String, String>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let (_, query) = self.target.split_once('?')?;
        let value = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        value.map(decoded)
    }
}

/// A text without `%41`.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Reply {
        Reply { status, headers: Vec::new(), body: body.into() }
    }

    pub fn json(value: &serde_json::Value) -> Reply {
        Reply::new(200, value.to_string()).with("Content-Type", "application/json; charset=utf-8")
    }

    pub fn to(address: impl Into<String>) -> Reply {
        Reply::new(302, "").with("Location", address)
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Reply {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// Bytes, or the range of them that is asked for.
    pub fn bytes(request: &Request, bytes: &[u8]) -> Reply {
        let range = request.header("range").strip_prefix("bytes=").and_then(|range| range.split_once('-'));
        let Some((first, last)) = range else { return Reply::new(200, bytes) };
        let first: usize = first.parse().unwrap();
        let last = last.parse().unwrap_or(usize::MAX).min(bytes.len().saturating_sub(1));
        match bytes.get(first..=last) {
            Some(part) => {
                let sent = format!("bytes {first}-{last}/{}", bytes.len());
                Reply::new(206, part).with("Content-Range", sent)
            }
            None => Reply::new(416, ""),
        }
    }
}

/// A server whose answers a function makes.
pub struct Server {
    acceptor: Acceptor,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(serve: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let (requests, serve) = (Arc::<Mutex<Vec<Request>>>::default(), Arc::new(serve));
        let noted = requests.clone();
        // A connection that breaks ends alone.
        let acceptor = Acceptor::start(move |client| drop(answer_to(client, &*serve, &noted)));
        Server { acceptor, requests }
    }

    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }
}

fn answer_to(
    mut client: TcpStream,
    serve: &(dyn Fn(&Request) -> Reply + Send + Sync),
    noted: &Mutex<Vec<Request>>,
) -> io::Result<()> {
    let Some(HttpRequest { method, target, headers, body }) = HttpRequest::read(&mut client)? else {
        return Ok(());
    };
    let path = decoded(target.split('?').next().unwrap_or_default());
    let body = String::from_utf8_lossy(&body).into_owned();
    let request = Request { method, path, target, headers, body };
    noted.lock().push(request.clone());
    let reply = serve(&request);
    let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", reply.status);
    if !reply.headers.iter().any(|(name, _)| name == "Content-Length" || name == "Transfer-Encoding") {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    client.write_all((head + "\r\n").as_bytes())?;
    if request.method != "HEAD" {
        client.write_all(&reply.body)?;
    }
    client.flush()
}

/// A program that serves. Dropping it kills it.
pub struct Process {
    child: Child,
    pub port: u16,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Process {
    /// Starts a program that listens on the port that `command` is given, and waits until it does.
    pub fn start(command: impl FnOnce(u16) -> Command) -> Process {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = command(port);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let process = Process { child, port };
        wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        process
    }
}

/// A server of Debian that `make setup` unpacks, or that is installed; `None` where it is missing.
pub fn server(path: &str) -> Option<PathBuf> {
    let found = [repository("target/servers").join(path), PathBuf::from("/").join(path)];
    let found = found.into_iter().find(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: {path} is missing; make setup fetches it");
    }
    found
}

/// nginx, with lists of the files below a directory.
pub fn nginx(place: &Place, files: &str, options: &str) -> Option<Process> {
    let program = server("usr/sbin/nginx")?;
    let directory = place.path("nginx");
    std::fs::create_dir_all(&directory).unwrap();
    let root = place.path(files);
    let process = Process::start(|port| {
        let config = format!(
            "daemon off; master_process off; pid {pid}; error_log stderr;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {d}; proxy_temp_path {d}; fastcgi_temp_path {d};\n\
             uwsgi_temp_path {d}; scgi_temp_path {d};\n\
             server {{ listen 127.0.0.1:{port}; root {root}; autoindex on; {options} }} }}\n",
            pid = directory.join("pid").display(),
            d = directory.display(),
            root = root.display(),
        );
        let path = place.write(&format!("nginx-{port}.conf"), config);
        let mut command = Command::new(program);
        command.arg("-c").arg(path).arg("-p").arg(&directory).args(["-e", "stderr"]);
        command
    });
    Some(process)
}
