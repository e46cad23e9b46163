//! A small server with the protocol of S3, and the faults of servers that people use: ones that ignore or refuse conditions,
//! answer ranges with whole objects, or list without end.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use parking_lot::Mutex;
use support::{Acceptor, repository};

use crate::http_request::HttpRequest;

/// An answer to `If-None-Match: *`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conditions {
    Kept,
    /// An object that exists is replaced.
    Ignored,
    /// 501.
    Refused,
}

/// An answer to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranges {
    Answered,
    /// The right part with the status 200.
    WithStatus200,
    /// The whole object.
    Ignored,
}

/// An answer to a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Listings {
    Right,
    /// Each page says that another follows, and has the same keys.
    Repeated,
    /// Each page says that another follows, and has no keys.
    Empty,
}

/// The behaviour of a server.
#[derive(Clone, Debug)]
pub struct Behaviour {
    pub conditions: Conditions,
    pub ranges: Ranges,
    pub listings: Listings,
    pub compares_e_tags: bool,
    /// Every request gets this answer: its status line, its headers, its body.
    pub always: Option<(&'static str, &'static str, &'static str)>,
}

pub const GOOD: Behaviour = Behaviour {
    conditions: Conditions::Kept,
    ranges: Ranges::Answered,
    listings: Listings::Right,
    compares_e_tags: true,
    always: None,
};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path and the query.
    pub target: String,
    pub host: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The key with which it is signed.
    pub fn key(&self) -> &str {
        let (_, rest) = self.header("authorization").split_once("Credential=").unwrap_or_default();
        rest.split('/').next().unwrap_or_default()
    }
}

pub struct Imitation {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

struct Shared {
    behaviour: Behaviour,
    /// Whether the name of the bucket is a part of the host.
    by_host: bool,
    objects: Mutex<BTreeMap<String, Vec<u8>>>,
    requests: Mutex<Vec<Request>>,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl Imitation {
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    pub fn new(behaviour: Behaviour) -> Imitation {
        Imitation::start(behaviour, false, None)
    }

    /// One that finds the bucket in the name of the host.
    pub fn by_host() -> Imitation {
        Imitation::start(GOOD, true, None)
    }

    /// One that speaks TLS, with a certificate of the authority `authority.pem` of the tests.
    pub fn with_tls(behaviour: Behaviour) -> Imitation {
        use rustls::pki_types::pem::PemObject;
        use rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let certificate = CertificateDer::from_pem_file(repository("tests/golden/tls/server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(repository("tests/golden/tls/server.key")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.unwrap().with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
        Imitation::start(behaviour, false, Some(Arc::new(config)))
    }

    fn start(behaviour: Behaviour, by_host: bool, tls: Option<Arc<rustls::ServerConfig>>) -> Imitation {
        let shared = Arc::new(Shared {
            behaviour,
            by_host,
            objects: Mutex::default(),
            requests: Mutex::default(),
            tls,
        });
        let serving = shared.clone();
        // A connection that breaks ends alone.
        let acceptor = Acceptor::start(move |client| drop(serving.connection(client)));
        Imitation { acceptor, shared }
    }

    /// Another server with the same objects.
    pub fn with(&self, behaviour: Behaviour) -> Imitation {
        let other = Imitation::new(behaviour);
        other.shared.objects.lock().clone_from(&self.shared.objects.lock());
        other
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().clone()
    }

    /// The keys of the objects, with the bucket in front.
    pub fn keys(&self) -> Vec<String> {
        self.shared.objects.lock().keys().cloned().collect()
    }
}

impl Shared {
    fn connection(&self, mut client: TcpStream) -> io::Result<()> {
        match &self.tls {
            None => self.serve(&mut client),
            Some(config) => {
                let connection = rustls::ServerConnection::new(config.clone()).map_err(io::Error::other)?;
                let mut stream = rustls::StreamOwned::new(connection, client);
                self.serve(&mut stream)?;
                stream.conn.send_close_notify();
                stream.flush()
            }
        }
    }

    fn serve(&self, client: &mut (impl Read + Write)) -> io::Result<()> {
        let Some(HttpRequest { method, target, headers, body }) = HttpRequest::read(client)? else {
            return Ok(());
        };
        // A proxy is asked by the whole address.
        let target = match target.strip_prefix("http://") {
            Some(rest) => rest.find('/').map_or("/".to_owned(), |at| rest[at..].to_owned()),
            None => target,
        };
        let host = headers.get("host").cloned().unwrap_or_default();
        let request = Request { method, target, host, headers, body };
        self.requests.lock().push(request.clone());
        let (status, more, body) = self.answer(&request);
        let sent = if request.method == "HEAD" { &[][..] } else { &body };
        write!(
            client,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nLast-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\n\
             {more}Connection: close\r\n\r\n",
            body.len()
        )?;
        client.write_all(sent)?;
        client.flush()
    }

    /// The status line, headers and the body of an answer.
    fn answer(&self, request: &Request) -> (String, String, Vec<u8>) {
        if let Some((status, headers, body)) = self.behaviour.always {
            return (status.to_owned(), headers.to_owned(), body.into());
        }
        let refused = |status: &str, code: &str| {
            let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
            (status.to_owned(), String::new(), body.into_bytes())
        };
        let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
        let bucket = request.host.split('.').next().unwrap_or_default();
        let path =
            if self.by_host { format!("{bucket}{path}") } else { path.trim_start_matches('/').to_owned() };
        let mut objects = self.objects.lock();
        match request.method.as_str() {
            "PUT" => {
                let has_condition = request.header("if-none-match") == "*";
                match self.behaviour.conditions {
                    Conditions::Refused if has_condition => {
                        return refused("501 Not Implemented", "NotImplemented");
                    }
                    Conditions::Kept if has_condition && objects.contains_key(&path) => {
                        return refused("412 Precondition Failed", "PreconditionFailed");
                    }
                    _ => {}
                }
                let e_tag = e_tag(&request.body);
                objects.insert(path, request.body.clone());
                ("200 OK".to_owned(), e_tag, Vec::new())
            }
            "POST" => {
                let body = String::from_utf8_lossy(&request.body).into_owned();
                let keys = body.split("<Key>").skip(1).filter_map(|part| part.split('<').next());
                keys.for_each(|key| drop(objects.remove(&format!("{}/{key}", path.trim_end_matches('/')))));
                ("200 OK".to_owned(), String::new(), b"<DeleteResult></DeleteResult>".to_vec())
            }
            "GET" if query.contains("list-type=2") => {
                ("200 OK".to_owned(), String::new(), self.listed(&objects, path.trim_end_matches('/'), query))
            }
            _ => {
                let Some(bytes) = objects.get(&path) else { return refused("404 Not Found", "NoSuchKey") };
                let e_tag = e_tag(bytes);
                let wanted = request.header("if-match");
                if self.behaviour.compares_e_tags && !wanted.is_empty() && !e_tag.contains(wanted) {
                    return refused("412 Precondition Failed", "PreconditionFailed");
                }
                let range =
                    request.header("range").strip_prefix("bytes=").and_then(|range| range.split_once('-'));
                let range = range.and_then(|(first, last)| {
                    Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
                });
                let Some((first, last)) = range.filter(|_| self.behaviour.ranges != Ranges::Ignored) else {
                    return ("200 OK".to_owned(), e_tag, bytes.clone());
                };
                let last = last.min(bytes.len().saturating_sub(1));
                let Some(part) = bytes.get(first..=last) else {
                    return refused("416 Range Not Satisfiable", "InvalidRange");
                };
                let is_200 = self.behaviour.ranges == Ranges::WithStatus200;
                let status = if is_200 { "200 OK" } else { "206 Partial Content" };
                let more = format!("{e_tag}Content-Range: bytes {first}-{last}/{}\r\n", bytes.len());
                (status.to_owned(), more, part.to_vec())
            }
        }
    }

    fn listed(&self, objects: &BTreeMap<String, Vec<u8>>, bucket: &str, query: &str) -> Vec<u8> {
        let parameter = |name: &str| {
            let found = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_default().replace("%2F", "/")
        };
        let (prefix, after, delimiter) =
            (parameter("prefix"), parameter("start-after"), parameter("delimiter"));
        let keys = objects.iter().filter_map(|(path, bytes)| {
            let key = path.strip_prefix(bucket)?.strip_prefix('/')?;
            (key.starts_with(&prefix) && *key > *after).then_some((key, bytes.len()))
        });
        let (mut found, mut common) = (String::new(), std::collections::BTreeSet::new());
        for (key, len) in keys {
            match key[prefix.len()..].split_once('/').filter(|_| !delimiter.is_empty()) {
                Some((first, _)) => drop(common.insert(format!("{prefix}{first}/"))),
                None => found.push_str(&format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified><Size>{len}</Size></Contents>"
                )),
            }
        }
        for prefix in common {
            found.push_str(&format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>"));
        }
        let next = match self.behaviour.listings {
            Listings::Right => "<IsTruncated>false</IsTruncated>",
            _ => "<IsTruncated>true</IsTruncated><NextContinuationToken>next</NextContinuationToken>",
        };
        if self.behaviour.listings == Listings::Empty {
            found.clear();
        }
        format!("<?xml version=\"1.0\"?><ListBucketResult>{next}{found}</ListBucketResult>").into_bytes()
    }
}

fn e_tag(bytes: &[u8]) -> String {
    format!("ETag: \"{}\"\r\n", &blake3::hash(bytes).to_hex()[..32])
}
