//! A small collection, snapshots of its content, and its log as bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tierfs::format::log::catalog::NodeEntry;
use tierfs::ingest::{Blocking, Options, Origin, Target, import_file};
use tierfs::model::{CollectionName, EntryId, Error, ErrorKind, MoveTo, Owner, Result, Silent, StoreId};
use tierfs::store::ROOT;
use tierfs::store::Settings;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, Open};
use tierfs::store::{Access, Collection};
use tierfs::store::{OpenObject, Verify};
use tierfs::stream::{Segment, Stream};
use tierfs::vfs::open::{OpenFiles, create, unlink};

pub const STORE: StoreId = StoreId(0x5707e);
pub const LOG: &str = "t/c/meta.log";
pub const SLOT: usize = 128;

/// Paths with their nodes and contents.
pub type Picture = BTreeMap<String, (NodeEntry, Result<Vec<u8>, ErrorKind>)>;

/// Files of a disk by their paths.
pub type Files = BTreeMap<String, Vec<u8>>;

/// A collection at rest, and snapshots after each import.
pub struct World {
    pub files: Files,
    /// Bytes of the log after each import, and the snapshot then.
    pub steps: Vec<(usize, Picture)>,
}

impl World {
    pub fn log(&self) -> &[u8] {
        &self.files[LOG]
    }

    /// The snapshot that the first `bytes` bytes of the log must give.
    pub fn picture_at(&self, bytes: usize) -> Option<&Picture> {
        self.steps.iter().rev().find(|(len, _)| *len <= bytes).map(|(_, picture)| picture)
    }

    pub fn last(&self) -> &Picture {
        &self.steps.last().unwrap().1
    }

    /// A disk with these files and another log.
    pub fn disk(&self, log: &[u8]) -> Arc<dyn Disk> {
        let disk = MemoryDisk::new();
        for directory in ["t", "t/c", "t/c/data"] {
            disk.create_directory(directory).unwrap();
        }
        for (path, bytes) in &self.files {
            let bytes = if path == LOG { log } else { bytes };
            disk.open(path, Open::Create).unwrap().write_at(bytes, 0).unwrap();
        }
        Arc::new(disk)
    }
}

/// Imports, of a plain file, of an exact one in a data file, of encoded ones in a directory. Before the last of them, a small
/// file is made and written, and another made and removed: a small batch each.
pub fn world() -> World {
    let disk: Arc<dyn Disk> = Arc::new(MemoryDisk::new());
    disk.create_directory("t").unwrap();
    let collection = Arc::new(
        Collection::create(&disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 7, gid: 8 }, 0o755)
            .unwrap(),
    );
    let mut steps = vec![(log_len(&disk), picture(&collection))];
    let encoded = Options { tier: Some(MoveTo::parse("q8:all").unwrap()), ..Options::default() };
    let cut = Options { blocking: Blocking::bytes(4096).unwrap(), ..Options::default() };
    for (path, bytes, options) in [
        ("config.json", b"{\"a\": 1}".to_vec(), Options::default()),
        ("d/m.safetensors", safetensors(&[("x/w", 200), ("v", 3)]), encoded),
        ("big", noise(17_000), cut),
        ("last", noise(50), Options::default()),
    ] {
        if path == "last" {
            small_changes(&collection, || steps.push((log_len(&disk), picture(&collection))));
        }
        import(&collection, path, &bytes, &options).unwrap();
        steps.push((log_len(&disk), picture(&collection)));
    }
    drop(collection);
    World { files: files(&disk), steps }
}

/// Changes as programs make them through a mount. `then` is called after each batch.
pub fn small_changes(collection: &Arc<Collection>, mut then: impl FnMut()) {
    let made = create(collection, ROOT, b"made", 0o644, Owner { uid: 1000, gid: 1000 }).unwrap();
    then();
    let open_file = OpenFiles::default().open(collection, made, Verify::First).unwrap();
    open_file.write(0, &noise(100)).unwrap();
    open_file.flush().unwrap();
    then();
    // Its content does not fit the slot.
    let name = [b'n'; 200];
    create(collection, ROOT, &name, 0o600, Owner { uid: 1000, gid: 1000 }).unwrap();
    then();
    unlink(collection, ROOT, &name).unwrap();
    then();
}

fn log_len(disk: &Arc<dyn Disk>) -> usize {
    disk.open(LOG, Open::Read).unwrap().len().unwrap() as usize
}

pub fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..count).map(|_| next()).collect()
}

/// A file of f32 tensors.
fn safetensors(tensors: &[(&str, usize)]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, count)| (0..*count).flat_map(|i| (i as f32).sin().to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, count), data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![*count], data);
        (*name, view.unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

pub fn import(collection: &Arc<Collection>, path: &str, bytes: &[u8], options: &Options) -> Result<()> {
    let source = MemoryDisk::new().open("s", Open::Create).unwrap();
    source.write_at(bytes, 0).unwrap();
    let mut parts: Vec<Vec<u8>> = path.split('/').map(|part| part.as_bytes().to_vec()).collect();
    let name = parts.pop().unwrap();
    let target = Target { directories: parts, name };
    let origin = Origin { mode: 0o640, owner: Owner { uid: 1, gid: 2 }, atime: 4, mtime: 3, sha256: None };
    import_file(collection, &Settings::new(STORE), &target, &source, &origin, options, &Silent).map(|_| ())
}

pub fn open(disk: &Arc<dyn Disk>, access: Access) -> Result<Arc<Collection>, Error> {
    tierfs::store::open_collection(disk, STORE, CollectionName::new("t", "c"), access).map(Arc::new)
}

pub fn picture(collection: &Arc<Collection>) -> Picture {
    let mut out = Picture::new();
    look(collection, ROOT, "", &mut out);
    out
}

fn look(collection: &Arc<Collection>, at: EntryId, path: &str, out: &mut Picture) {
    let (node, children) = {
        let state = collection.state();
        let Some(node) = state.node(at).cloned() else { return };
        let children: Vec<_> = state
            .directory(at)
            .into_iter()
            .flat_map(|directory| directory.after(EntryId(0)))
            .map(|(_, name, node)| (String::from_utf8_lossy(name).into_owned(), node))
            .collect();
        (node, children)
    };
    let bytes = if node.file().is_some() { bytes_of(collection, at) } else { Ok(Vec::new()) };
    let bytes = bytes.map_err(|error| error.kind());
    if let Ok(bytes) = &bytes {
        assert_eq!(node.bytes, bytes.len() as u64, "{path}");
    }
    out.insert(path.to_owned(), (node.entry.clone(), bytes));
    for (name, child) in children {
        look(collection, child, &format!("{path}/{name}"), out);
    }
}

fn bytes_of(collection: &Arc<Collection>, node: EntryId) -> Result<Vec<u8>> {
    let objects = collection.objects_of(node)?;
    let segments: Result<Vec<Segment>> = objects
        .iter()
        .map(|object| OpenObject::open(collection, object, Verify::First).map(Segment::Object))
        .collect();
    let stream = Stream::new(segments?)?;
    let mut bytes = vec![0; stream.bytes() as usize];
    stream.read(0, &mut bytes)?;
    Ok(bytes)
}

/// All files of a disk.
pub fn files(disk: &Arc<dyn Disk>) -> Files {
    fn walk(disk: &Arc<dyn Disk>, at: &str, out: &mut Files) {
        for entry in disk.list(at).unwrap() {
            let path = if at.is_empty() { entry.name.clone() } else { format!("{at}/{}", entry.name) };
            if entry.is_directory {
                walk(disk, &path, out);
            } else {
                let file = disk.open(&path, Open::Read).unwrap();
                let mut bytes = vec![0; file.len().unwrap() as usize];
                file.read_exact_at(&mut bytes, 0).unwrap();
                out.insert(path, bytes);
            }
        }
    }
    let mut out = Files::new();
    walk(disk, "", &mut out);
    out
}

/// The ranges of the batches with their Commits, from the types and lengths of the slots.
pub fn batches(log: &[u8]) -> Vec<(usize, usize)> {
    let number = |at: usize| u32::from_le_bytes(log[at..at + 4].try_into().unwrap()) as usize;
    let mut found = Vec::new();
    let mut begin = SLOT;
    let mut at = SLOT;
    while at < log.len() {
        let payload = match log[at] {
            6 => number(at + 21),
            8 => number(at + 46) * 4,
            11 => number(at + 33),
            _ => 0,
        };
        let is_commit = matches!(log[at], 7 | 11);
        at += SLOT + payload.next_multiple_of(SLOT);
        if is_commit {
            found.push((begin, at));
            begin = at;
        }
    }
    assert_eq!(begin, log.len(), "the log ends with a Commit");
    found
}
