//! A server of a directory as a bucket, for readers, whose answers fail at random.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Acceptor, Random};

/// Fewer than this many of a hundred answers are refusals, and as many end early.
const FAULTS: usize = 5;

/// Answers GETs of the objects below a directory, and listings of them. Dropping it ends it.
pub struct Bucket {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    seed: u64,
    requests: AtomicU64,
    faults: AtomicU64,
}

impl Bucket {
    /// A server of the directory, which has a directory for each bucket. `seed` decides which answers fail.
    pub fn of(directory: &Path, seed: u64) -> Bucket {
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            seed,
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let serving = shared.clone();
        // A connection that breaks ends alone.
        let acceptor = Acceptor::start(move |client| drop(serving.serve(client)));
        Bucket { acceptor, shared }
    }

    /// The environment of a program that uses it.
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.acceptor.port());
        let all = [
            ("AWS_ENDPOINT", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    /// Its port on this machine.
    pub fn port(&self) -> u16 {
        self.acceptor.port()
    }

    /// The requests so far, and those that failed on purpose.
    pub fn counts(&self) -> (u64, u64) {
        (self.shared.requests.load(Ordering::Relaxed), self.shared.faults.load(Ordering::Relaxed))
    }
}

impl Shared {
    /// One request of a connection.
    fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            client.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let dice = Random(self.seed.wrapping_add(number.wrapping_mul(1_000_003))).below(100);
        if dice < 2 * FAULTS {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        if dice < FAULTS {
            return answer(&mut client, "503 Slow Down", "", b"", 0);
        }
        let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        if let Some((bucket, query)) = path.split_once('?') {
            let listed = self.listed(bucket, query);
            return answer(&mut client, "200 OK", "", listed.as_bytes(), listed.len() as u64);
        }
        let Ok(file) = File::open(self.directory.join(path)) else {
            return answer(&mut client, "404 Not Found", "", b"", 0);
        };
        let bytes = file.metadata()?.len();
        let range = head.lines().find_map(|line| {
            let (name, range) = line.split_once(": ")?;
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse().unwrap_or(u64::MAX).min(bytes.saturating_sub(1));
            name.eq_ignore_ascii_case("range").then_some((first.parse().ok()?, last))
        });
        let (first, len) = range.map_or((0, bytes), |(first, last): (u64, u64)| (first, last + 1 - first));
        let (status, more) = match range {
            Some((first, last)) => {
                ("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{bytes}\r\n"))
            }
            None => ("200 OK", String::new()),
        };
        let mut body = vec![0; len as usize];
        file.read_exact_at(&mut body, first)?;
        let sent = if dice < 2 * FAULTS { body.len() / 2 } else { body.len() };
        answer(&mut client, status, &more, &body[..sent], len)
    }
}

impl Shared {
    /// The answer to ListObjectsV2: all objects with a prefix, those after a key only.
    fn listed(&self, bucket: &str, query: &str) -> String {
        let parameter = |name: &str| {
            let found = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            decoded(found.unwrap_or_default())
        };
        let (prefix, after) = (parameter("prefix"), parameter("start-after"));
        let directory = self.directory.join(bucket.trim_end_matches('/'));
        let mut keys: Vec<String> =
            crate::files_below(&directory).iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        keys.sort_unstable();
        let wanted = keys.iter().filter(|key| key.starts_with(&prefix) && **key > after);
        let object = |key: &String| {
            let bytes = directory.join(key).metadata().map_or(0, |file| file.len());
            format!(
                "<Contents><Key>{key}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified>\
                 <ETag>&quot;1&quot;</ETag><Size>{bytes}</Size></Contents>"
            )
        };
        let objects: String = wanted.map(object).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><IsTruncated>false</IsTruncated>\
             {objects}</ListBucketResult>"
        )
    }
}

/// A value of a query, in which other bytes are `%XX`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn answer(client: &mut TcpStream, status: &str, more: &str, body: &[u8], len: u64) -> io::Result<()> {
    write!(
        client,
        "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nETag: \"1\"\r\n{more}\
         Last-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n"
    )?;
    client.write_all(body)
}
