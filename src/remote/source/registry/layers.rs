//! The files of an artifact: its manifest, and the headers of layers that are archives.
//!
//! | layer | files |
//! |---|---|
//! | one file: `.raw` (ModelPack), or any other type with a name | the file, by the annotation `org.cncf.model.filepath` or `org.opencontainers.image.title` |
//! | an archive: a type that ends with `.tar` (KitOps, ModelPack), but for a file that `oras push` has named | its members, at their places in it |
//! | a compressed archive: `.tar+gzip`, `.tar+zstd` | the archive itself, since parts of it cannot be read |

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use serde_json::Value;

use crate::model::{Error, Result};
use crate::remote::client::Client;
use crate::remote::client::failure::Failure;
use crate::remote::client::version::{Pin, Version};
use crate::remote::source::SourceObject;
use crate::remote::source::registry::place::{At, Digest};
use crate::remote::source::web::FILES_MAX;

/// Annotations with the path of a file, the ones that count first.
const NAMES: [&str; 3] =
    ["org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title"];
/// The type that `oras push` gives to any file, with its name as a title. Layers of containers have it too, without one.
const ANY_FILE: &str = "application/vnd.oci.image.layer.v1.tar";
/// The annotation of a directory that `oras push` has made an archive of.
const UNPACK: &str = "io.deis.oras.content.unpack";
/// Bytes of an archive that are asked for at a time, where its headers are.
const WINDOW: u64 = 128 << 10;
/// The same behind a member that is longer: the next is likely as long.
const ALONE: u64 = 4 << 10;
/// The most bytes of headers of an archive.
const HEADERS_MAX: u64 = 256 << 20;
/// The most bytes of a digest that is shown as a name.
const SHORT: usize = 12;

/// The manifest of a tag or a digest.
pub(super) enum Manifest {
    Layers(Vec<Layer>),
    /// A list of manifests, with their platforms; the only one of it, if it has one.
    Index {
        only: Option<Digest>,
        len: usize,
    },
}

/// A layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layer {
    pub digest: Digest,
    pub bytes: u64,
    pub content: Content,
}

/// The content of a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Content {
    /// A file with this path.
    File(String),
    /// An archive of files.
    Archive,
}

impl Manifest {
    pub fn parse(manifest: &Value) -> std::result::Result<Manifest, Failure> {
        let wrong = |text: &str| Failure::Refused(format!("the manifest of the registry {text}"));
        if let Some(manifests) = manifest.get("manifests").and_then(Value::as_array) {
            let only = match &manifests[..] {
                [one] => one.get("digest").and_then(Value::as_str).and_then(Digest::parse),
                _ => None,
            };
            return Ok(Manifest::Index { only, len: manifests.len() });
        }
        let layers =
            manifest.get("layers").and_then(Value::as_array).ok_or_else(|| wrong("has no layers"))?;
        let layer = |layer: &Value| {
            let text = |name: &str| layer.get(name).and_then(Value::as_str);
            let digest = text("digest").and_then(Digest::parse);
            let digest = digest.ok_or_else(|| wrong("names a layer by another digest than SHA-256"))?;
            let bytes = layer
                .get("size")
                .and_then(Value::as_u64)
                .ok_or_else(|| wrong("has a layer without a size"))?;
            let kind = text("mediaType").unwrap_or_default();
            let name = NAMES.iter().find_map(|name| layer.get("annotations")?.get(name)?.as_str());
            let is_packed =
                layer.get("annotations").and_then(|all| all.get(UNPACK)?.as_str()) == Some("true");
            let content = content_of(kind, name, is_packed, &digest);
            Ok(Layer { digest, bytes, content })
        };
        Ok(Manifest::Layers(layers.iter().map(layer).collect::<std::result::Result<_, Failure>>()?))
    }
}

fn content_of(kind: &str, name: Option<&str>, is_packed: bool, digest: &Digest) -> Content {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let short = || digest.hex().chars().take(SHORT).collect::<String>();
    let (is_archive, ending) = if kind.ends_with(".tar") {
        (kind != ANY_FILE || name.is_none() || is_packed, "")
    } else if kind.ends_with("tar+gzip") || kind.ends_with("tar.gzip") {
        (false, ".tar.gz")
    } else if kind.ends_with("tar+zstd") {
        (false, ".tar.zst")
    } else {
        (false, "")
    };
    if is_archive {
        return Content::Archive;
    }
    let name = name.map_or_else(short, str::to_owned);
    Content::File(if name.ends_with(ending) { name } else { format!("{name}{ending}") })
}

/// The files of layers. Those of a later layer take the place of those with the same path, as tools unpack them.
pub(super) fn objects(client: &Client, layers: &[Layer], modified: i64) -> Result<Vec<SourceObject>> {
    let mut found = BTreeMap::new();
    for layer in layers {
        let Layer { digest, bytes, content } = layer;
        let whole = At { digest: digest.clone(), part: None };
        match content {
            Content::File(path) => {
                let Some(key) = path_of(path.as_bytes()) else { continue };
                let (at, version) = (whole.to_string(), Version::Sha256(digest.0));
                let sha256 = Some(digest.0);
                let object = SourceObject { key: key.clone(), at, bytes: *bytes, version, modified, sha256 };
                found.insert(key, object);
            }
            Content::Archive => {
                let whole = whole.to_string();
                let members =
                    members(client, &whole, *bytes).map_err(|error| error_of(client, &whole, error))?;
                for Member { key, begin, bytes, modified } in members {
                    let at = At { digest: digest.clone(), part: Some(begin..begin + bytes) }.to_string();
                    let version = Version::Fixed;
                    let object =
                        SourceObject { key: key.clone(), at, bytes, version, modified, sha256: None };
                    found.insert(key, object);
                }
            }
        }
        if found.len() > FILES_MAX {
            let failure = Failure::Refused(format!("it has more than {FILES_MAX} files"));
            return Err(client.error("listing", "", &failure));
        }
    }
    Ok(found.into_values().collect())
}

/// A path without a slash at its beginning and without `.`. `None` if it leads elsewhere.
fn path_of(path: &[u8]) -> Option<String> {
    let path = str::from_utf8(path).ok()?;
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let is_inside = !parts.is_empty() && !parts.iter().any(|part| *part == ".." || part.contains('\0'));
    is_inside.then(|| parts.join("/"))
}

/// A file in an archive.
struct Member {
    key: String,
    /// The place of its bytes.
    begin: u64,
    bytes: u64,
    modified: i64,
}

/// The error of an archive, as it passes through its reader.
fn refusal(client: &Client, at: &str, text: &str) -> io::Error {
    io::Error::other(client.error("listing", at, &Failure::Refused(text.to_owned())))
}

fn error_of(client: &Client, at: &str, error: io::Error) -> Error {
    // The text of others quotes the bytes that were found.
    let other = |_| client.error("listing", at, &Failure::Refused("it is no archive of tar".to_owned()));
    error.downcast::<Error>().unwrap_or_else(other)
}

/// The files of an archive, by its headers.
fn members(client: &Client, at: &str, bytes: u64) -> io::Result<Vec<Member>> {
    let window =
        Window { client, at, bytes, position: 0, read_to: 0, left: HEADERS_MAX, begin: 0, held: Vec::new() };
    let mut archive = tar::Archive::new(window);
    let mut found = Vec::new();
    for entry in archive.entries_with_seek()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        // Sparse files are not one range. Links, devices and directories have no bytes.
        let is_sparse = |entry: &mut tar::Entry<'_, _>| -> io::Result<bool> {
            let Some(extensions) = entry.pax_extensions()? else { return Ok(false) };
            Ok(extensions.flatten().any(|extension| extension.key_bytes().starts_with(b"GNU.sparse")))
        };
        if !(kind.is_file() || kind.is_contiguous()) || is_sparse(&mut entry)? {
            if !kind.is_dir() {
                log::warn!(
                    "{at}: {:?} is left out: it is no ordinary file",
                    String::from_utf8_lossy(&entry.path_bytes())
                );
            }
            continue;
        }
        let Some(key) = path_of(&entry.path_bytes()) else { continue };
        let (begin, len) = (entry.raw_file_position(), entry.size());
        if begin.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(refusal(client, at, &format!("the archive ends within {key:?}")));
        }
        if found.len() >= FILES_MAX {
            return Err(refusal(client, at, &format!("the archive has more than {FILES_MAX} files")));
        }
        let modified = entry.header().mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
        found.push(Member { key, begin, bytes: len, modified });
    }
    Ok(found)
}

/// An archive in a registry, of which a piece is held.
struct Window<'a> {
    client: &'a Client,
    at: &'a str,
    bytes: u64,
    position: u64,
    /// The end of the last read.
    read_to: u64,
    /// Bytes that may still be read.
    left: u64,
    /// The place of the held piece.
    begin: u64,
    held: Vec<u8>,
}

impl Read for Window<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.position >= self.bytes {
            return Ok(0);
        }
        if self.held().is_empty() {
            let len = if self.position - self.read_to.min(self.position) < WINDOW { WINDOW } else { ALONE };
            let range = self.position..self.bytes.min(self.position.saturating_add(len));
            let pin = Pin { version: Version::Fixed, bytes: self.bytes };
            self.begin = range.start;
            self.held = self.client.get_version(self.at, range, &pin).map_err(io::Error::other)?;
        }
        let len = self.held().read(out)?;
        let refused = || refusal(self.client, self.at, "the headers of the archive do not end");
        self.left = self.left.checked_sub(len as u64).ok_or_else(refused)?;
        self.position += len as u64;
        self.read_to = self.position;
        Ok(len)
    }
}

impl Window<'_> {
    /// The bytes that are held from the position on.
    fn held(&self) -> &[u8] {
        let within = self.position.checked_sub(self.begin).and_then(|within| usize::try_from(within).ok());
        within.and_then(|within| self.held.get(within..)).unwrap_or_default()
    }
}

impl Seek for Window<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
        };
        self.position = to.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::{ANY_FILE, Content, content_of};
    use crate::remote::source::registry::place::Digest;

    #[test]
    fn a_layer_of_any_type_with_a_title_is_a_file_unless_it_is_to_be_unpacked() {
        let digest = Digest([0; 32]);
        let content = |kind: &str, name: Option<&str>, is_packed| content_of(kind, name, is_packed, &digest);
        let file = |name: &str| Content::File(name.to_owned());
        assert_eq!(content(ANY_FILE, Some("model.gguf"), false), file("model.gguf"));
        assert_eq!(content(ANY_FILE, Some("directory"), true), Content::Archive);
        assert_eq!(content(ANY_FILE, None, false), Content::Archive);
        let of_kit = "application/vnd.kitops.modelkit.model.v1.tar";
        assert_eq!(content(of_kit, Some("model"), false), Content::Archive);
        assert_eq!(content(&format!("{of_kit}+gzip"), Some("model"), false), file("model.tar.gz"));
        assert_eq!(content("", None, false), file("000000000000"));
    }
}
