//! The last that was known of a remote: a mount shows it while the remote is away.
//!
//! A file below `known`, named by the first 16 bytes of the BLAKE3 of the URL with its server and account, is a text: the line `tierfs known 1`, the line
//! `remote` with the text of `tierfs.remote`, then lines `shown` with tenant, name, number, digest and bytes of a manifest that
//! a mount has shown. Texts have `%XX` as in keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::snapshot::keys;
use crate::format::snapshot::piece_map::Digest;
use crate::model::{OwnedCollectionName, hex};
use crate::remote::client::url::identity_of;
use crate::remote::place::listing::Listed;
use crate::remote::read::cache::root::{Root, unlinked};

pub(super) const KNOWN: &str = "known";
const FIRST_LINE: &str = "tierfs known 1";
/// The most bytes of such a file that are read.
const BYTES_MAX: u64 = 256 << 20;
/// Snapshots of a collection that are noted.
const SHOWN_MAX: usize = 8;
const NAME_BYTES: usize = 16;

/// A manifest that was shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownManifest {
    /// The number of the snapshot.
    pub number: u64,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its manifest.
    pub len: u64,
}

/// The last that was known of a remote.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    /// The text of its `tierfs.remote`.
    pub said: String,
    /// Manifests that were shown, ascending by number.
    shown: BTreeMap<OwnedCollectionName, Vec<ShownManifest>>,
}

/// The knowledge of the remote that a mount shows, and its file.
pub(super) struct KnownFile {
    root: Arc<Root>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: Known,
    /// The path below the cache, once the remote is known.
    path: Option<String>,
    is_saved: bool,
}

impl Known {
    fn to_text(&self) -> String {
        let mut text = format!("{FIRST_LINE}\nremote {}\n", keys::escape_whole(&self.said));
        let name = |place: &OwnedCollectionName| {
            format!("{} {}", keys::escape_whole(&place.tenant), keys::escape_whole(&place.name))
        };
        // Writing to a text cannot fail.
        for (place, shown) in &self.shown {
            for ShownManifest { number, digest, len } in shown {
                writeln!(text, "shown {} {number:016x} {} {len}", name(place), hex(digest))
                    .unwrap_or_default();
            }
        }
        text
    }

    fn parse(text: &str) -> Option<Known> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return None;
        }
        let said = keys::unescape_whole(lines.next()?.strip_prefix("remote ")?)?;
        let mut known = Known { said, ..Known::default() };
        for line in lines {
            let fields: Vec<&str> = line.split(' ').collect();
            let place = |tenant, name| {
                Some(OwnedCollectionName::new(keys::unescape_whole(tenant)?, keys::unescape_whole(name)?))
            };
            match fields.as_slice() {
                ["shown", tenant, name, number, digest, len] => {
                    let (number, digest) = (keys::number(number)?, keys::digest(digest)?);
                    known
                        .show(place(tenant, name)?, ShownManifest { number, digest, len: len.parse().ok()? });
                }
                _ => return None,
            }
        }
        Some(known)
    }

    /// The newest manifests of collections that were shown.
    pub fn newest(&self) -> impl Iterator<Item = (OwnedCollectionName, Listed)> {
        self.shown.iter().filter_map(|(place, shown)| {
            let ShownManifest { number, len, .. } = *shown.last()?;
            Some((place.clone(), Listed { number, len }))
        })
    }

    /// Adds the manifests that another mount of the same remote has shown.
    fn join(&mut self, others: Known) {
        for (place, shown) in others.shown {
            let mine = self.shown.get(&place);
            let is_known = |one: &ShownManifest| {
                mine.is_some_and(|mine| mine.iter().any(|own| own.number == one.number))
            };
            let more: Vec<ShownManifest> = shown.into_iter().filter(|one| !is_known(one)).collect();
            for manifest in more {
                self.show(place.clone(), manifest);
            }
        }
    }

    /// Notes a manifest. Returns whether it is new.
    fn show(&mut self, place: OwnedCollectionName, manifest: ShownManifest) -> bool {
        let shown = self.shown.entry(place).or_default();
        if shown.contains(&manifest) {
            return false;
        }
        shown.retain(|other| other.number != manifest.number);
        let at = shown.partition_point(|other| other.number < manifest.number);
        shown.insert(at, manifest);
        if shown.len() > SHOWN_MAX {
            shown.remove(0);
        }
        true
    }
}

/// The path of the file of a URL below a cache.
pub(super) fn path_of(url: &str) -> String {
    let digest = blake3::hash(identity_of(url).as_bytes());
    format!("{KNOWN}/{}", hex(digest.as_bytes().get(..NAME_BYTES).unwrap_or_default()))
}

/// Reads such a file; `None` if it is missing or damaged.
pub(super) fn read(path: &Path) -> io::Result<Option<Known>> {
    let mut text = String::new();
    match unlinked().read(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?.take(BYTES_MAX).read_to_string(&mut text)?,
    };
    Ok(Known::parse(&text))
}

impl KnownFile {
    pub fn new(root: &Arc<Root>) -> KnownFile {
        KnownFile { root: root.clone(), state: Mutex::default() }
    }

    /// Writes what has changed since the last call.
    pub fn save(&self) -> io::Result<()> {
        let is_unsaved = |state: &State| state.path.clone().filter(|_| !state.is_saved);
        let Some(path) = is_unsaved(&self.state.lock()) else { return Ok(()) };
        let _names = self.root.names()?;
        let others = read(&self.root.path(&path)).ok().flatten();
        let text = {
            let mut state = self.state.lock();
            state.is_saved = true;
            if let Some(others) = others.filter(|others| others.said == state.known.said) {
                state.known.join(others);
            }
            state.known.to_text()
        };
        let draft = self.root.path(&format!("{path}.new"));
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let written = unlinked().write(true).create_new(true).open(&draft).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_data()?;
            fs::rename(&draft, self.root.path(&path))
        });
        written.inspect_err(|_| drop(fs::remove_file(&draft)))
    }
}

impl KnownFile {
    /// Notes from now on what is known of the remote at a URL, which has said so of itself. `before` was known of it.
    pub fn begin(&self, url: &str, said: &str, before: Option<Known>) {
        let mut state = self.state.lock();
        let before = before.filter(|known| known.said == said);
        state.known = before.unwrap_or_else(|| Known { said: said.to_owned(), ..Known::default() });
        (state.path, state.is_saved) = (Some(path_of(url)), false);
    }

    /// Notes a manifest that is shown.
    pub fn show(&self, place: OwnedCollectionName, manifest: ShownManifest) {
        let mut state = self.state.lock();
        if state.known.show(place, manifest) {
            state.is_saved = false;
        }
    }

    /// The manifest of a snapshot of a collection that was shown: of this number, or the newest of them.
    pub fn shown(&self, place: &OwnedCollectionName, number: Option<u64>) -> Option<ShownManifest> {
        let state = self.state.lock();
        let shown = state.known.shown.get(place)?;
        match number {
            Some(number) => shown.iter().find(|shown| shown.number == number).copied(),
            None => shown.last().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::read::cache::{Cache, Size};

    fn manifest(number: u64) -> ShownManifest {
        ShownManifest { number, digest: [number as u8; 32], len: 100 + number }
    }

    #[test]
    fn knowledge_of_a_remote_outlives_the_mount_unless_another_took_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let place = OwnedCollectionName::new("t", "a b");
        let url = "s3://b/p";
        {
            let cache = Cache::open(folder.path(), Size::default()).unwrap();
            assert!(cache.known(url).is_none() && !Cache::knows(folder.path(), url));
            cache.know(url, "uuid = 1\n");
            (1..=20).for_each(|number| cache.note_shown(place.clone(), manifest(number)));
            cache.note_shown(place.clone(), manifest(15));
        }
        let cache = Cache::open(folder.path(), Size::default()).unwrap();
        assert!(Cache::knows(folder.path(), "s3://b/p/"));
        let newest: Vec<_> = cache.known(url).unwrap().newest().collect();
        assert_eq!(newest, [(place.clone(), Listed { number: 20, len: 120 })]);
        cache.know(url, "uuid = 1\n");
        assert_eq!(cache.shown(&place, None), Some(manifest(20)));
        assert_eq!(
            (cache.shown(&place, Some(13)), cache.shown(&place, Some(12))),
            (Some(manifest(13)), None)
        );
        cache.know(url, "uuid = 2\n");
        assert_eq!(cache.shown(&place, None), None);
    }

    #[test]
    fn a_damaged_file_is_no_knowledge() {
        let known = Known { said: "x".to_owned(), ..Known::default() };
        let text = known.to_text();
        assert_eq!(Known::parse(&text), Some(known));
        for wrong in
            ["", "tierfs known 1\n", "tierfs known 1\nremote x\nshown a b 1 2\n", &format!("{text}shown\n")]
        {
            assert_eq!(Known::parse(wrong), None, "{wrong:?}");
        }
    }
}
