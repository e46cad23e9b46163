//! Stores on both kinds of disk, files to import, and reading by path.

use std::sync::Arc;

use tierfs::ingest::{Options, Origin, Report, Target, import_file};
use tierfs::model::{CollectionName, Error, Owner, Result, Silent, StoreId};
use tierfs::store::Object;
use tierfs::store::Settings;
use tierfs::store::disk::memory::MemoryDisk;
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Collection};
use tierfs::store::{Node, ROOT, Touched, show_plain_names};
use tierfs::store::{OpenObject, Verify};
use tierfs::stream::{Segment, Stream};

pub const STORE: StoreId = StoreId(0xfeed);

/// Runs `test` on a disk in memory, and on one of files.
pub fn on_each_disk(test: impl Fn(Arc<dyn Disk>)) {
    test(Arc::new(MemoryDisk::new()));
    #[cfg(feature = "mount")]
    {
        let directory = tempfile::tempdir().unwrap();
        test(Arc::new(tierfs::store::disk::files::FileDisk::new(directory.path())));
    }
}

pub fn create(disk: &Arc<dyn Disk>) -> Arc<Collection> {
    disk.create_directory("t").unwrap();
    let collection =
        Collection::create(disk, STORE, CollectionName::new("t", "c"), 1, Owner { uid: 0, gid: 0 }, 0o755)
            .unwrap();
    // As an import does in a collection that it makes.
    let shown = collection.commit(Touched::default(), |batch, _| {
        batch.entry(show_plain_names(ROOT));
        Ok(())
    });
    shown.unwrap();
    Arc::new(collection)
}

pub fn open(disk: &Arc<dyn Disk>) -> Result<Arc<Collection>> {
    tierfs::store::open_collection(disk, STORE, CollectionName::new("t", "c"), Access::Write).map(Arc::new)
}

pub fn file(bytes: &[u8]) -> Arc<dyn File> {
    let file = MemoryDisk::new().open("source", Open::Create).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

pub fn target(path: &str) -> Target {
    let mut parts: Vec<Vec<u8>> = path.split('/').map(|part| part.as_bytes().to_vec()).collect();
    Target { name: parts.pop().unwrap(), directories: parts }
}

pub fn origin() -> Origin {
    Origin { mode: 0o644, owner: Owner { uid: 0, gid: 0 }, atime: 1, mtime: 1, sha256: None }
}

pub fn import(collection: &Arc<Collection>, path: &str, bytes: &[u8], options: &Options) -> Result<Report> {
    import_from(collection, path, &file(bytes), options)
}

pub fn import_from(
    collection: &Arc<Collection>,
    path: &str,
    source: &Arc<dyn File>,
    options: &Options,
) -> Result<Report> {
    let settings = Settings::new(STORE);
    import_file(collection, &settings, &target(path), source, &origin(), options, &Silent)
}

/// The node at a path, in which tensors have plain names.
pub fn find(collection: &Collection, path: &str) -> Option<Arc<Node>> {
    let state = collection.state();
    let mut at = ROOT;
    for part in path.split('/') {
        at = state.find_any(at, part.as_bytes())?;
    }
    state.node(at).cloned()
}

/// The paths of all names and of all tensors, sorted.
pub fn paths(collection: &Collection) -> Vec<String> {
    let state = collection.state();
    let all = state.nodes().flat_map(|node| {
        let is_part = node.file().is_some_and(|file| file.container.is_some());
        let names = state.links(node.entry.id).len() + usize::from(is_part);
        std::iter::repeat_n(node.entry.id, names)
    });
    let mut paths: Vec<String> =
        all.map(|id| String::from_utf8(state.path(id)).unwrap()).filter(|path| !path.is_empty()).collect();
    paths.sort();
    paths
}

pub fn objects(collection: &Collection, path: &str) -> Vec<Arc<Object>> {
    let node = find(collection, path).unwrap_or_else(|| panic!("{path} is not there"));
    collection.objects_of(node.entry.id).unwrap()
}

pub fn stream(collection: &Arc<Collection>, path: &str, verify: Verify) -> Stream {
    let segments = objects(collection, path)
        .iter()
        .map(|object| Segment::Object(OpenObject::open(collection, object, verify).unwrap()))
        .collect();
    Stream::new(segments).unwrap()
}

pub fn read(collection: &Arc<Collection>, path: &str) -> Result<Vec<u8>, Error> {
    let stream = stream(collection, path, Verify::First);
    let mut bytes = vec![0; stream.bytes() as usize];
    stream.read(0, &mut bytes).map(|_| bytes)
}

/// Reproducible pseudo-random numbers.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = self.0 ^ (self.0 >> 33);
        mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 16
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }

    /// Floats around zero, as f32.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.below(20_001) as f32 - 10_000.0) / 3000.0).collect()
    }
}

pub struct Tensor {
    pub name: String,
    pub dtype: safetensors::Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub fn tensor(name: &str, dtype: safetensors::Dtype, shape: &[usize], bytes: Vec<u8>) -> Tensor {
    Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

pub fn f32s(name: &str, shape: &[usize], numbers: &mut Numbers) -> Tensor {
    let values = numbers.floats(shape.iter().product());
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(name, safetensors::Dtype::F32, shape, bytes)
}

/// A safetensors file that the format's own crate makes.
pub fn safetensors_file(tensors: &[Tensor]) -> Vec<u8> {
    let views = tensors.iter().map(|tensor| {
        let view = safetensors::tensor::TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (tensor.name.as_str(), view.unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// An array file of version 1, its header padded as NumPy does.
pub fn npy_file(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + text.len() + 1) % 64 != 0 {
        text.push(' ');
    }
    text.push('\n');
    let len = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00".as_slice(), &len, text.as_bytes(), data].concat()
}

/// Every file below a directory of the disk, with its bytes.
pub fn files(disk: &Arc<dyn Disk>, at: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in disk.list(at).unwrap() {
        let path = format!("{at}/{}", entry.name);
        if entry.is_directory {
            found.extend(files(disk, &path));
        } else {
            let file = disk.open(&path, Open::Read).unwrap();
            let mut bytes = vec![0; file.len().unwrap() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            found.push((path, bytes));
        }
    }
    found
}
