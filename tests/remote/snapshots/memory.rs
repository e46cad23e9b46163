//! A remote in memory: pieces by name, manifests by collection, and a push that only this process sees.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use tierfs::format::snapshot::keys::PieceName;
use tierfs::format::snapshot::manifest::{
    Described, FileExtent, FileKind, Manifest, ManifestFile, Needed, OwnerAndMode, PIECES_MAX, Piece,
    PieceEncoding, SnapshotName, Variant,
};
use tierfs::format::snapshot::pieces::pieces;
use tierfs::format::zstandard;
use tierfs::model::{CollectionName, EntryId, OwnedCollectionName, StoreId};
use tierfs::store::{
    Canonical, CanonicalVariant, Collection, Frozen, OpenObject, Snapshot, SnapshotDisk, SnapshotFiles,
    Snapshots, Store, Verify,
};
use tierfs::stream::{Segment, Stream};

pub const REMOTE: StoreId = StoreId(0x0ec0);

/// The remote. Clones share it.
#[derive(Clone, Default)]
pub struct Remote(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    pieces: HashMap<PieceName, Vec<u8>>,
    /// How often bytes of files but the log are read wrong until they are fetched again; the number of
    /// times that they were.
    damaged: (u32, u32),
    /// By tenant and collection, the manifests in order.
    manifests: BTreeMap<OwnedCollectionName, Vec<Vec<u8>>>,
}

/// The outcome of a push.
#[derive(Debug)]
pub struct Pushed {
    /// Raw bytes of all pieces.
    pub bytes: u64,
    /// Raw bytes of the pieces that were not there, without those of the log.
    pub new: u64,
    pub manifest: Manifest,
}

impl Remote {
    /// Pushes what a frozen collection is.
    pub fn push(&self, frozen: &Frozen, place: CollectionName<'_>) -> Pushed {
        self.push_canonical(&frozen.canonical(REMOTE).unwrap(), place)
    }

    pub fn push_canonical(&self, canonical: &Canonical, place: CollectionName<'_>) -> Pushed {
        self.push_with(canonical, &[], place)
    }

    /// Pushes a frozen collection and these variants of it.
    pub fn push_with(
        &self,
        canonical: &Canonical,
        variants: &[CanonicalVariant],
        CollectionName { tenant, name }: CollectionName<'_>,
    ) -> Pushed {
        let mut made = Made::default();
        let mut pushed = 0;
        self.put_log(&mut made, canonical.log());
        made.end_file(FileKind::Log, 0, canonical.log().len() as u64, 0);
        for file in canonical.files() {
            let mut raw = Vec::new();
            for stretches in file.pieces() {
                canonical.read(file, &stretches, &mut raw).unwrap();
                pushed += self.put(&mut made, &raw, PieceEncoding::Raw, &stretches);
            }
            made.end_file(file.kind, file.number, file.bytes, file.mtime);
        }
        let mut named = Vec::new();
        for variant in variants {
            let log = made.files.len() as u32;
            self.put_log(&mut made, variant.log());
            made.end_file(FileKind::Log, 0, variant.log().len() as u64, 0);
            for file in variant.files() {
                let mut raw = Vec::new();
                for stretches in file.pieces() {
                    canonical.read_variant(variant, file, &stretches, &mut raw).unwrap();
                    pushed += self.put(&mut made, &raw, PieceEncoding::Raw, &stretches);
                }
                made.end_file(file.kind, file.number, file.bytes, file.mtime);
            }
            for (place, file) in (1..).zip(canonical.files()).filter(|(_, file)| file.kind == FileKind::Data)
            {
                let Some(narrowed) = variant.narrowed(file) else { continue };
                let shared = made.files[place].extents_in(&narrowed.shared);
                let mut raw = Vec::new();
                for stretches in narrowed.own {
                    canonical.read(file, &stretches, &mut raw).unwrap();
                    pushed += self.put(&mut made, &raw, PieceEncoding::Raw, &stretches);
                }
                made.end_file(file.kind, file.number, file.bytes, file.mtime);
                let extents = &mut made.files.last_mut().unwrap().extents;
                extents.extend(shared);
                extents.sort_unstable_by_key(|extent| extent.offset);
            }
            let files = (log + 1..made.files.len() as u32).collect();
            named.push(Variant {
                name: variant.choice().name(),
                log,
                files,
                recipe: variant.choice().recipe(),
            });
        }
        let needs = canonical.needs().iter().map(|OwnedCollectionName { tenant, name: collection }| Needed {
            tenant: tenant.clone(),
            collection: collection.clone(),
            number: 1,
        });
        let mut objects = self.0.lock();
        let before = objects
            .manifests
            .entry(OwnedCollectionName::new(tenant.to_owned(), name.to_owned()))
            .or_default();
        let manifest = Manifest {
            remote: REMOTE,
            number: before.len() as u64 + 1,
            parent: None,
            push: 1,
            created_at: 1,
            collection: Described {
                tenant: tenant.to_owned(),
                name: name.to_owned(),
                tenant_owner: OwnerAndMode { uid: 7, gid: 8, mode: 0o750 },
                owner: canonical.owner(),
                created_at: canonical.created_at(),
            },
            message: String::new(),
            tool: "a test".to_owned(),
            needs: needs.collect(),
            pieces: made.pieces,
            differences: Vec::new(),
            references: None,
            files: made.files,
            variants: named,
        };
        assert!(manifest.pieces.len() < PIECES_MAX);
        before.push(manifest.to_bytes().unwrap());
        let bytes = manifest.pieces.iter().map(|piece| u64::from(piece.raw)).sum();
        Pushed { bytes, new: pushed, manifest }
    }

    fn put_log(&self, made: &mut Made, log: &[u8]) {
        let whole = 0..log.len() as u64;
        for stretches in pieces(&[Vec::from([whole])]) {
            let raw: Vec<u8> = stretches.iter().flat_map(|range| bytes_of(log, range)).copied().collect();
            self.put(made, &raw, PieceEncoding::Zstandard, &stretches);
        }
    }

    /// Adds a piece to what is made. Returns its bytes if it was not there.
    fn put(&self, made: &mut Made, raw: &[u8], encoding: PieceEncoding, stretches: &[Range<u64>]) -> u64 {
        let stored = if encoding == PieceEncoding::Raw { raw.to_vec() } else { zstandard::encode(raw) };
        let (stored, encoding) =
            if stored.len() < raw.len() { (stored, encoding) } else { (raw.to_vec(), PieceEncoding::Raw) };
        let name = PieceName { digest: *blake3::hash(&stored).as_bytes(), generation: 0 };
        let piece = Piece { name, stored: stored.len() as u32, raw: raw.len() as u32, encoding };
        made.extents.extend(FileExtent::of_piece(made.pieces.len() as u32, stretches));
        made.pieces.push(piece);
        let is_new = self.0.lock().pieces.insert(name, stored).is_none();
        if is_new { raw.len() as u64 } else { 0 }
    }

    /// Changes the newest manifest of a collection.
    pub fn change(&self, place: CollectionName<'_>, change: impl FnOnce(&mut Manifest)) {
        let mut objects = self.0.lock();
        let all = objects.manifests.get_mut(&place.owned()).unwrap();
        let mut manifest = Manifest::parse(all.last().unwrap()).unwrap();
        change(&mut manifest);
        *all.last_mut().unwrap() = manifest.to_bytes().unwrap();
    }

    /// Replaces the log of the newest snapshot of a collection.
    pub fn change_log(&self, place: CollectionName<'_>, log: &[u8]) {
        let mut made = Made::default();
        self.put_log(&mut made, log);
        self.change(place, |manifest| {
            let skipped = manifest.pieces.len() as u32;
            manifest.pieces.extend(&made.pieces);
            made.extents.iter_mut().for_each(|extent| extent.piece += skipped);
            manifest.files[0].bytes = log.len() as u64;
            manifest.files[0].extents = made.extents;
        });
    }

    /// Makes the copies of all files but logs wrong, and again after so many fetches less one.
    pub fn damage(&self, times: u32) {
        self.0.lock().damaged = (times, 0);
    }

    /// How often damaged copies were fetched again.
    pub fn fetched_again(&self) -> u32 {
        self.0.lock().damaged.1
    }

    /// The store that a mount of the remote has.
    pub fn store(&self) -> Store {
        Arc::new(self.disk()).open_store().unwrap()
    }

    pub fn disk(&self) -> SnapshotDisk {
        SnapshotDisk::new(Arc::new(self.clone()))
    }
}

fn bytes_of<'a>(bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    &bytes[range.start as usize..range.end as usize]
}

#[derive(Default)]
struct Made {
    pieces: Vec<Piece>,
    files: Vec<ManifestFile>,
    extents: Vec<FileExtent>,
}

impl Made {
    fn end_file(&mut self, kind: FileKind, number: u64, bytes: u64, mtime: i64) {
        let extents = std::mem::take(&mut self.extents);
        self.files.push(ManifestFile { kind, number, bytes, mtime, extents });
    }
}

impl Snapshots for Remote {
    fn place(&self) -> String {
        "a remote in memory".to_owned()
    }

    fn id(&self) -> StoreId {
        REMOTE
    }

    fn tenants(&self) -> io::Result<Vec<String>> {
        let mut tenants: Vec<String> =
            self.0.lock().manifests.keys().map(|OwnedCollectionName { tenant, .. }| tenant.clone()).collect();
        tenants.dedup();
        Ok(tenants)
    }

    fn collections(&self, tenant: &str) -> io::Result<Vec<String>> {
        let objects = self.0.lock();
        let of_tenant =
            objects.manifests.keys().filter(|OwnedCollectionName { tenant: of, .. }| of == tenant);
        Ok(of_tenant.map(|OwnedCollectionName { name, .. }| name.clone()).collect())
    }

    fn open(&self, tenant: &str, collection: &str) -> io::Result<Option<Snapshot>> {
        let objects = self.0.lock();
        let all = objects.manifests.get(&OwnedCollectionName::new(tenant.to_owned(), collection.to_owned()));
        let Some(bytes) = all.and_then(|all| all.last()) else { return Ok(None) };
        let manifest = Arc::new(Manifest::parse(bytes).map_err(|error| io::Error::other(error.to_string()))?);
        let files = Arc::new(Files { remote: self.clone(), manifest: manifest.clone() });
        let digest = tierfs::format::snapshot::manifest::digest(bytes).unwrap();
        let name = SnapshotName { number: manifest.number, digest, more: bytes.len() as u64 };
        Ok(Some(Snapshot { manifest, variant: None, files, name }))
    }
}

struct Files {
    remote: Remote,
    manifest: Arc<Manifest>,
}

impl SnapshotFiles for Files {
    fn read_at(&self, file: usize, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let objects = self.remote.0.lock();
        let end = offset + buffer.len() as u64;
        assert!(end <= self.manifest.files[file].bytes, "a read past the end");
        buffer.fill(0);
        let extents = self.manifest.files[file].extents.iter();
        for extent in extents.filter(|extent| extent.offset < end && extent.end() > offset) {
            let piece = &self.manifest.pieces[extent.piece as usize];
            let stored = &objects.pieces[&piece.name];
            let raw = match piece.encoding {
                PieceEncoding::Raw => stored.clone(),
                PieceEncoding::Zstandard => zstandard::decode(stored, piece.raw as usize).unwrap(),
                PieceEncoding::Difference => panic!("this push makes no differences"),
            };
            let (from, until) = (extent.offset.max(offset), extent.end().min(end));
            let at = (from - extent.offset) as usize + extent.piece_offset as usize;
            let len = (until - from) as usize;
            buffer[(from - offset) as usize..][..len].copy_from_slice(&raw[at..at + len]);
        }
        if objects.damaged.0 > 0 && file > 0 {
            buffer.iter_mut().for_each(|byte| *byte ^= 1);
        }
        Ok(())
    }

    fn refetch(&self, file: usize, offset: u64, len: u64) -> io::Result<bool> {
        assert!(offset + len <= self.manifest.files[file].bytes);
        let mut objects = self.remote.0.lock();
        objects.damaged = (objects.damaged.0.saturating_sub(1), objects.damaged.1 + 1);
        Ok(true)
    }
}

/// The parts of a file that programs can see.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    /// Mode, user, group, mtime, ctime, type and, of a tensor, its shape and element type.
    about: String,
    /// The bytes, or why they cannot be read.
    bytes: Result<Vec<u8>, String>,
    /// The tiers of its blocks.
    tiers: Vec<String>,
}

/// Everything in a collection, by path.
pub fn seen(collection: &Arc<Collection>) -> BTreeMap<String, Seen> {
    let nodes: Vec<_> = collection.state().nodes().cloned().collect();
    let mut all = BTreeMap::new();
    for node in nodes {
        let is_part = node.file().is_some_and(|file| file.container.is_some());
        let names: Vec<String> = match is_part {
            true => vec![String::from_utf8(collection.state().path(node.entry.id)).unwrap()],
            false => paths_of(collection, node.entry.id),
        };
        let entry = &node.entry;
        let what = match &entry.node_type {
            tierfs::format::log::catalog::NodeType::File(file) => {
                let mut file = file.clone();
                file.objects.clear();
                format!("{file:?}")
            }
            other => format!("{other:?}"),
        };
        let state = collection.state();
        let settings: Vec<_> = state
            .settings_of(entry.id)
            .filter(|(key, _)| !["pin", "parents in "].iter().any(|start| key.starts_with(start)))
            .filter(|(key, _)| *key != "imported" && *key != "reconstruct")
            .collect();
        let about = format!(
            "{} {:o} {} {} {} {} {} {what} {settings:?}",
            entry.id.0, entry.mode, entry.uid, entry.gid, entry.atime, entry.mtime, entry.ctime
        );
        drop(settings);
        drop(state);
        let (mut bytes, mut tiers) = (Ok(Vec::new()), Vec::new());
        if node.file().is_some() {
            let objects = collection.parts_of(entry.id).unwrap().0;
            for object in &objects {
                let layout = object.layout();
                let blocks = object.blocks.read();
                tiers.extend(blocks.described(layout).map(|(_, block)| format!("{:?}", block.stored.tier)));
            }
            let segments = objects
                .iter()
                .map(|object| Segment::Object(OpenObject::open(collection, object, Verify::Always).unwrap()));
            let stream = Stream::new(segments.collect()).unwrap();
            let mut read = vec![0; stream.bytes() as usize];
            bytes = stream.read(0, &mut read).map(|_| read).map_err(|error| error.kind().code().to_owned());
        }
        for name in names {
            let seen = Seen { about: about.clone(), bytes: bytes.clone(), tiers: tiers.clone() };
            all.insert(name, seen);
        }
    }
    all
}

/// Compares the bytes and the tiers of what is seen of two collections.
pub fn assert_same_bytes(found: &BTreeMap<String, Seen>, expected: &BTreeMap<String, Seen>, context: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{context}");
    for (name, seen) in expected {
        assert_eq!(found[name].tiers, seen.tiers, "{context}: {name}");
        assert!(found[name].bytes == seen.bytes, "{context}: {name} has other bytes");
    }
}

/// The paths of a node: one for each name.
fn paths_of(collection: &Collection, node: EntryId) -> Vec<String> {
    let state = collection.state();
    let names = state.links(node).iter();
    let mut paths: Vec<String> = names
        .map(|(parent, name)| {
            let parent = String::from_utf8_lossy(&state.path(*parent)).into_owned();
            format!("{parent}/{}", String::from_utf8_lossy(name))
        })
        .collect();
    if paths.is_empty() {
        paths.push(format!("node {}", node.0));
    }
    paths
}

/// Compares what is seen of two collections, and names the first difference.
pub fn assert_same(found: &BTreeMap<String, Seen>, expected: &BTreeMap<String, Seen>, context: &str) {
    let names = |all: &BTreeMap<String, Seen>| all.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{context}");
    for (name, seen) in expected {
        let here = &found[name];
        assert_eq!(here.about, seen.about, "{context}: {name}");
        assert_eq!(here.tiers, seen.tiers, "{context}: {name}");
        assert!(here.bytes == seen.bytes, "{context}: {name} has other bytes");
    }
}
