//! A server of a directory as a bucket, for readers, whose answers fail at random. A file that was replaced has another
//! ETag.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::{Acceptor, Random};

/// Fewer than this many of a hundred answers are refusals, and as many end early.
const FAULTS: usize = 5;

/// How a bucket answers.
#[derive(Clone, Debug, Default)]
pub struct Manners {
    /// Of a hundred answers so many are refusals (503), and as many end early.
    pub faults: usize,
    /// Of a hundred answers with a range of an object, so many have another range.
    pub wrong_ranges: usize,
    /// Of a hundred such answers, so many have the whole object with status 200.
    pub whole: usize,
    /// It answers with the present object, whichever the request names.
    pub ignores_if_match: bool,
    /// Requests for objects get this status line.
    pub status: Option<&'static str>,
    /// The second answer with a range of an object has other bytes.
    pub changes: bool,
    /// It answers nothing until it behaves otherwise.
    pub hangs: bool,
    /// Keys that every listing has beside those of files, below its prefix.
    pub listed_too: Vec<String>,
}

/// Answers GETs of the objects below a directory, and listings of them. Dropping it ends it.
pub struct Bucket {
    acceptor: Acceptor,
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    seed: u64,
    manners: Mutex<Manners>,
    /// Ranges of objects that were sent while it `changes`.
    sent: Mutex<HashSet<(String, u64, u64)>>,
    requests: AtomicU64,
    faults: AtomicU64,
}

impl Bucket {
    /// A server of the directory, which has a directory for each bucket. `seed` decides which answers fail.
    pub fn of(directory: &Path, seed: u64) -> Bucket {
        Bucket::with(directory, seed, Manners { faults: FAULTS, ..Manners::default() })
    }

    /// The same with other manners.
    pub fn with(directory: &Path, seed: u64, manners: Manners) -> Bucket {
        let shared = Arc::new(Shared {
            directory: directory.to_owned(),
            seed,
            manners: Mutex::new(manners),
            sent: Mutex::default(),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
        });
        let serving = shared.clone();
        // A connection that breaks ends alone.
        let acceptor = Acceptor::start(move |client| drop(serving.serve(client)));
        Bucket { acceptor, shared }
    }

    /// Changes how it answers from now on.
    pub fn behave(&self, manners: Manners) {
        *self.shared.manners.lock().unwrap() = manners;
    }

    /// The environment of a program that uses it, by `s3://`, `gs://` or `az://`.
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.acceptor.port());
        let all = [
            ("GOOGLE_BASE_URL", endpoint.as_str()),
            ("GOOGLE_SKIP_SIGNATURE", "true"),
            ("AZURE_STORAGE_ENDPOINT", endpoint.as_str()),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_SKIP_SIGNATURE", "true"),
            ("AZURE_ALLOW_HTTP", "true"),
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
        let dice =
            |salt: u64| Random(self.seed.wrapping_add((number + salt).wrapping_mul(1_000_003))).below(100);
        let mut manners = self.manners.lock().unwrap().clone();
        while manners.hangs {
            std::thread::sleep(Duration::from_millis(20));
            manners = self.manners.lock().unwrap().clone();
        }
        let fault = dice(0);
        if fault < 2 * manners.faults {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        if fault < manners.faults {
            return answer(&mut client, "503 Slow Down", "", b"", 0);
        }
        let path = head.split(' ').nth(1).unwrap_or_default().trim_start_matches('/');
        if let Some((bucket, query)) = path.split_once('?') {
            let listed = self.listed(bucket, query, &manners.listed_too);
            let listed = if query.contains("comp=list") { listed.to_azure() } else { listed.to_s3() };
            return answer(&mut client, "200 OK", "", listed.as_bytes(), listed.len() as u64);
        }
        if let Some(status) = manners.status {
            return answer(&mut client, status, "", b"", 0);
        }
        let Ok(file) = File::open(self.directory.join(decoded(path))) else {
            return answer(&mut client, "404 Not Found", "", b"", 0);
        };
        let (bytes, e_tag) = (file.metadata()?.len(), e_tag(&file.metadata()?));
        let header = |wanted: &str| {
            let mut headers = head.lines().filter_map(|line| line.split_once(": "));
            headers.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value.to_owned())
        };
        let more = format!("ETag: {e_tag}\r\n");
        if header("if-match").is_some_and(|wanted| wanted != e_tag) && !manners.ignores_if_match {
            return answer(&mut client, "412 Precondition Failed", &more, b"", 0);
        }
        let range = header("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            let last = last.parse().unwrap_or(u64::MAX).min(bytes.saturating_sub(1));
            Some((first.parse().ok()?, last))
        });
        if range.is_some_and(|(first, _)| first >= bytes) {
            return answer(&mut client, "416 Range Not Satisfiable", &more, b"", 0);
        }
        let range = range.filter(|_| dice(1) >= manners.whole);
        let shift =
            u64::from(range.is_some_and(|(first, last)| first < last) && dice(2) < manners.wrong_ranges);
        let range = range.map(|(first, last): (u64, u64)| (first + shift, last));
        let (first, len) = range.map_or((0, bytes), |(first, last)| (first, last + 1 - first));
        let (status, more) = match range {
            Some((first, last)) => {
                ("206 Partial Content", format!("{more}Content-Range: bytes {first}-{last}/{bytes}\r\n"))
            }
            None => ("200 OK", more),
        };
        let mut body = vec![0; len as usize];
        file.read_exact_at(&mut body, first)?;
        if manners.changes && !self.sent.lock().unwrap().insert((path.to_owned(), first, len)) {
            body.iter_mut().take(1).for_each(|byte| *byte ^= 1);
        }
        let sent = if fault < 2 * manners.faults { body.len() / 2 } else { body.len() };
        let body = if head.starts_with("HEAD") { &[][..] } else { &body[..sent] };
        answer(&mut client, status, &more, body, len)
    }
}

/// Another one for each file that has had a name.
fn e_tag(metadata: &fs::Metadata) -> String {
    format!("\"{:x}-{:x}-{:x}\"", metadata.ino(), metadata.mtime_nsec(), metadata.len())
}

impl Shared {
    /// The answer to a listing: all objects with a prefix, those after a key only, and with a delimiter those of one
    /// directory.
    fn listed(&self, bucket: &str, query: &str, too: &[String]) -> Listed {
        let parameter = |name: &str| {
            let found = query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            decoded(found.unwrap_or_default())
        };
        let (prefix, after) = (parameter("prefix"), parameter("start-after"));
        let is_level = parameter("delimiter") == "/";
        let directory = self.directory.join(bucket.trim_end_matches('/'));
        let mut keys: Vec<String> =
            crate::files_below(&directory).iter().map(|path| path.to_str().unwrap().to_owned()).collect();
        keys.extend(too.iter().filter(|_| !is_level).map(|key| format!("{prefix}{key}")));
        keys.sort_unstable();
        let below = |key: &str| key.strip_prefix(&prefix)?.split_once('/').map(|(name, _)| name.to_owned());
        let (mut directories, mut objects) = (BTreeSet::new(), Vec::new());
        for key in keys.iter().filter(|key| key.starts_with(&prefix) && **key > after) {
            if let Some(name) = below(key).filter(|_| is_level) {
                directories.insert(format!("{prefix}{name}/"));
                continue;
            }
            let found = directory.join(key).metadata().ok();
            let (bytes, e_tag) = found.map_or((5, String::new()), |found| (found.len(), e_tag(&found)));
            objects.push((key.clone(), bytes, e_tag));
        }
        Listed { directories, objects }
    }
}

/// The answer to a listing.
struct Listed {
    /// With a final slash.
    directories: BTreeSet<String>,
    /// Keys, bytes and ETags.
    objects: Vec<(String, u64, String)>,
}

impl Listed {
    /// As S3 and Google answer it.
    fn to_s3(&self) -> String {
        let objects = self.objects.iter().map(|(key, bytes, e_tag)| {
            format!(
                "<Contents><Key>{}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{bytes}</Size></Contents>",
                escaped(key),
                escaped(e_tag)
            )
        });
        let directories = self
            .directories
            .iter()
            .map(|name| format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", escaped(name)));
        let found: String = objects.chain(directories).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><IsTruncated>false</IsTruncated>\
             {found}</ListBucketResult>"
        )
    }

    /// As Azure answers it.
    fn to_azure(&self) -> String {
        let objects = self.objects.iter().map(|(key, bytes, e_tag)| {
            format!(
                "<Blob><Name>{}</Name><Properties><Last-Modified>Mon, 23 Nov 2026 00:00:00 GMT</Last-Modified>\
                 <Etag>{}</Etag><Content-Length>{bytes}</Content-Length>\
                 <Content-Type>application/octet-stream</Content-Type></Properties></Blob>",
                escaped(key),
                e_tag.trim_matches('"')
            )
        });
        let directories = self
            .directories
            .iter()
            .map(|name| format!("<BlobPrefix><Name>{}</Name></BlobPrefix>", escaped(name)));
        let found: String = objects.chain(directories).collect();
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults><Blobs>{found}</Blobs><NextMarker/>\
             </EnumerationResults>"
        )
    }
}

/// A text in XML.
fn escaped(text: &str) -> String {
    let each = text.chars().map(|letter| match letter {
        '&' | '<' | '>' | '"' => format!("&#{};", u32::from(letter)),
        letter if letter.is_control() => format!("&#{};", u32::from(letter)),
        letter => letter.to_string(),
    });
    each.collect()
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
        "HTTP/1.1 {status}\r\nContent-Length: {len}\r\n{more}\
         Last-Modified: Mon, 23 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n"
    )?;
    client.write_all(body)
}
