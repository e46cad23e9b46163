//! The pieces of a snapshot that are ranges of objects which somebody else put there.
//!
//! Their names may be those of places: then nobody knows the bytes before they arrive. A read is held to the version of
//! the object, and the cache compares what it keeps with the digest of its first arrival.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use parking_lot::Mutex;
use reqwest::Url;

use crate::format::snapshot::keys::PieceName;
use crate::format::snapshot::manifest::{Manifest, Piece};
use crate::format::snapshot::references::{ReferredObject, ReferredPiece};
use crate::model::{Error, ErrorKind, Result};
use crate::remote::client::credentials::Variables;
use crate::remote::client::failure::Failure;
use crate::remote::client::version::Pin;
use crate::remote::client::{Client, Wanted};
use crate::remote::place::remote::Remote;
use crate::remote::source::open_within;

/// The URLs of directories of this machine begin with this.
const LOCAL: &str = "file://";
/// The variable by which a reader allows plain HTTP and servers of its own network.
const ALLOW: &str = "AWS_ALLOW_HTTP";
/// The schemes of URLs that name a server.
const ENCRYPTED: [&str; 3] = ["https", "https+whole", "oci"];
const PLAIN: [&str; 3] = ["http", "http+whole", "oci+http"];

/// The sources that snapshots of a remote refer to.
#[derive(Default)]
pub(in crate::remote) struct Elsewhere {
    /// By URL.
    clients: Mutex<HashMap<String, Client>>,
    replaced: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Elsewhere {
    /// The same, which calls this once an object turns out to be replaced or removed.
    pub fn calling(self, replaced: impl Fn() + Send + Sync + 'static) -> Elsewhere {
        Elsewhere { replaced: Some(Box::new(replaced)), ..self }
    }

    /// The clients of the sources, but for the remote itself.
    pub fn clients(&self) -> Vec<Client> {
        self.clients.lock().values().cloned().collect()
    }

    /// Where the pieces of a snapshot lie that are no objects of the remote. `Forbidden` if the remote must not lead there.
    pub fn referred(
        &self,
        manifest: &Manifest,
        remote: &Remote,
        must_be_signed: bool,
    ) -> Result<Option<Referred>> {
        let Some(references) = &manifest.references else { return Ok(None) };
        let (url, place) = (&references.source, remote.place());
        let refuse = |why: &str| {
            let (path, number) = (&manifest.collection.name, manifest.number);
            Err(Error::new(
                ErrorKind::Forbidden,
                format!("snapshot {number} of {path} refers to {url}: {why}"),
            ))
        };
        if must_be_signed && !references.are_read {
            return refuse(
                "a signature covers no bytes that nobody has read; publish it with tierfs index --checksum",
            );
        }
        if url == place {
            return Ok(Referred::of(manifest, remote.client()));
        }
        // A source leads nowhere by itself: its user has named the others too.
        let is_led = !remote.said().is_empty();
        if is_led && let Some(why) = refusal(url, place, Variables::of_process().is_on(ALLOW)) {
            return refuse(why);
        }
        let mut clients = self.clients.lock();
        if let Some(client) = clients.get(url) {
            return Ok(Referred::of(manifest, client));
        }
        let client = open_within(url, remote.client().deadlines())?.client().clone();
        clients.insert(url.clone(), client.clone());
        Ok(Referred::of(manifest, &client))
    }

    /// The error of a read of such a piece.
    pub fn failed(&self, referred: &Referred, piece: &Piece, failure: &Failure) -> Error {
        let (client, key) = (referred.client(), referred.key(piece));
        if matches!(failure, Failure::NotFound | Failure::Replaced)
            && let Some(replaced) = &self.replaced
        {
            replaced();
        }
        match failure {
            Failure::NotFound => {
                let text = format!("{}/{key} was removed since it was listed", client.place());
                Error::new(ErrorKind::Gone, text)
            }
            Failure::WrongBytes | Failure::WrongLength(_) => {
                Error::new(ErrorKind::Io, client.error("reading", key, failure).to_string())
            }
            failure => client.error("reading", key, failure),
        }
    }
}

/// The reason why a snapshot of the remote `place` must not lead a reader to a URL: whoever writes to the remote would choose
/// files of the reader, or servers that only the reader can reach. Names of hosts are not resolved.
fn refusal(url: &str, place: &str, allows_http: bool) -> Option<&'static str> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    if url.starts_with(LOCAL) {
        let real = |url: &str| std::fs::canonicalize(url.strip_prefix(LOCAL)?).ok();
        let is_below = real(url).zip(real(place)).is_some_and(|(path, above)| path.starts_with(above));
        return (!is_below).then_some("only files below the directory of the remote may be referred to");
    }
    if PLAIN.contains(&scheme) && !allows_http {
        return Some("it is plain HTTP, where others can change bytes; AWS_ALLOW_HTTP=true allows it");
    }
    if !ENCRYPTED.contains(&scheme) || allows_http {
        return None;
    }
    let parsed = Url::parse(&format!("https://{rest}")).ok();
    let is_public = parsed.as_ref().and_then(Url::host_str).is_some_and(|host| !is_private(host));
    (!is_public).then_some("it names a server of this machine or network; AWS_ALLOW_HTTP=true allows it")
}

/// Whether the name of a host says that it is this machine, or one of its network.
fn is_private(host: &str) -> bool {
    let host = host.trim_end_matches('.');
    match host.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(IpAddr::V4(address)) => {
            let [first, second, ..] = address.octets();
            let is_shared = first == 100 && (64..128).contains(&second);
            address.is_private()
                || address.is_loopback()
                || address.is_link_local()
                || first == 0
                || is_shared
        }
        Ok(IpAddr::V6(address)) => {
            address.is_loopback()
                || address.is_unspecified()
                || address.is_unique_local()
                || address.is_unicast_link_local()
        }
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Where the pieces of a snapshot lie.
pub(in crate::remote) struct Referred {
    client: Client,
    are_read: bool,
    objects: Vec<ReferredObject>,
    /// The object, by its index, and the place in it.
    places: HashMap<PieceName, (usize, u64)>,
}

impl Referred {
    /// The references of a manifest; `None` if it has none. The client is that of their source.
    pub fn of(manifest: &Manifest, client: &Client) -> Option<Referred> {
        let references = manifest.references.as_ref()?;
        let place = |referred: &ReferredPiece| {
            let piece = manifest.pieces.get(referred.piece as usize)?;
            Some((piece.name, (referred.object as usize, referred.offset)))
        };
        Some(Referred {
            client: client.clone(),
            are_read: references.are_read,
            objects: references.objects.clone(),
            places: references.pieces.iter().filter_map(place).collect(),
        })
    }

    /// The client of the source.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Whether the names of pieces are digests of their bytes.
    pub fn are_read(&self) -> bool {
        self.are_read
    }

    /// Whether a piece lies there.
    pub fn has(&self, piece: &Piece) -> bool {
        self.places.contains_key(&piece.name)
    }

    /// The key of the object with a piece; empty for others.
    pub fn key(&self, piece: &Piece) -> &str {
        let object = self.places.get(&piece.name).and_then(|(object, _)| self.objects.get(*object));
        object.map_or("", |object| &object.key)
    }

    /// The key of the object with a piece, and a range of the piece in it, held to its version.
    pub fn asked(&self, piece: &Piece, range: Range<u64>) -> Option<(String, Wanted)> {
        let (object, offset) = self.places.get(&piece.name)?;
        let object = self.objects.get(*object)?;
        let range = offset.saturating_add(range.start)..offset.saturating_add(range.end);
        let pin = Pin { version: object.version.clone(), bytes: object.bytes };
        Some((object.key.clone(), Wanted::range(range).of(&pin)))
    }
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn a_snapshot_leads_to_no_server_that_only_the_reader_reaches() {
        for url in [
            "http://models.example.com/x",
            "http+whole://models.example.com/x",
            "oci+http://models.example.com/x",
            "http://169.254.169.254/latest",
            "https://169.254.169.254/latest",
            "https://10.1.2.3/x",
            "https+whole://192.168.1.1/x",
            "https://user@127.0.0.1:8443/x",
            "https://0x7f000001/x",
            "https://localhost./x",
            "https://[::1]/x",
            "https://[::ffff:10.0.0.1]/x",
            "https://[fd00::1]/x",
            "oci://localhost:5000/x",
            "oci://10.0.0.1/x",
            "https://",
        ] {
            assert!(refusal(url, "s3://bucket", false).is_some(), "{url}");
        }
        for url in ["https://models.example.com/x", "oci://ghcr.io/x", "hf://acme/llama", "s3://bucket/x"] {
            assert_eq!(refusal(url, "file:///srv", false), None, "{url}");
        }
        assert_eq!(refusal("http://10.0.0.1/x", "s3://bucket", true), None);
    }

    #[test]
    fn a_snapshot_leads_to_no_file_beside_its_remote() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for name in ["remote/data", "beside"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root.join("beside"), root.join("remote/link")).unwrap();
        let url = |name: &str| format!("file://{}", root.join(name).display());
        assert_eq!(refusal(&url("remote/data"), &url("remote"), false), None);
        for name in ["beside", "remote/../beside", "remote/link", "remote/absent"] {
            assert!(refusal(&url(name), &url("remote"), true).is_some(), "{name}");
        }
        assert!(refusal("file:///etc", "s3://bucket", true).is_some());
    }
}
