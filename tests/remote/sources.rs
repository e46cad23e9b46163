//! Buckets that nobody pushed to: mounted, indexed and imported, compared with the files that lie in them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{
    Bucket, Manners, Mounted, Place, Random, answer, assert_same, container_of, npy_file, tierfs, wait_until,
};

const URL: &str = "s3://bucket/models";
/// Writes files of formats that the libraries know best.
const LIBRARIES: &str = "
import sys, numpy, gguf
folder = sys.argv[1]
numpy.savez(folder + '/arrays.npz', x=numpy.arange(12.0).reshape(3, 4), y=numpy.zeros(5, dtype='i8'))
writer = gguf.GGUFWriter(folder + '/small.gguf', 'llama')
writer.add_tensor('blk.0.weight', numpy.arange(4096, dtype='f4').reshape(64, 64))
writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
";

/// A bucket with models.
pub struct Stand {
    pub place: Place,
    pub bucket: Bucket,
}

impl Stand {
    pub fn new(manners: Manners) -> Stand {
        let place = Place::new();
        fs::create_dir_all(place.path("buckets/bucket/models")).unwrap();
        let bucket = Bucket::with(&place.path("buckets"), 7, manners);
        Stand { place, bucket }
    }

    /// The path of an object.
    pub fn object(&self, key: &str) -> PathBuf {
        self.place.path("buckets/bucket/models").join(key)
    }

    pub fn write(&self, key: &str, bytes: impl AsRef<[u8]>) {
        self.place.write(&format!("buckets/bucket/models/{key}"), bytes);
    }

    /// Replaces an object in one moment.
    pub fn replace(&self, key: &str, bytes: impl AsRef<[u8]>) {
        self.place.write("draft", bytes);
        fs::rename(self.place.path("draft"), self.object(key)).unwrap();
    }

    /// Models of all formats, two of them, and a file beside them.
    pub fn with_models() -> Stand {
        let stand = Stand::new(Manners::default());
        let random = &mut Random(5);
        stand.write(
            "llama/model.safetensors",
            container_of(random, &[("a", 3 << 20), ("b", 70), ("c", 1 << 18)]),
        );
        stand.write("llama/config.json", b"{}");
        stand.write("llama/sub/empty", b"");
        stand.write("llama/sub/vector.npy", npy_file(&random.floats(999)));
        stand.write("odd/cut.safetensors", [255; 100]);
        stand.write("README.md", b"text");
        for model in fs::read_dir(support::repository("tests/golden/models")).unwrap().flatten() {
            stand.write(
                &format!("others/{}", model.file_name().to_str().unwrap()),
                fs::read(model.path()).unwrap(),
            );
        }
        support::python_line(LIBRARIES, [stand.object("others")]);
        stand
    }

    pub fn command(&self) -> std::process::Command {
        let mut command = tierfs();
        command.envs(self.bucket.environment());
        command
    }

    fn mount_url(&self, url: &str, name: &str, options: &[&str]) -> Mounted {
        let cache = self.place.path("cache");
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut self.command(), PathBuf::from(url), name, &options)
    }

    fn mount(&self, options: &[&str]) -> Mounted {
        self.mount_url(URL, "mount", options)
    }

    pub fn run(&self, arguments: &[&str]) -> support::Answer {
        answer(self.command().args(arguments))
    }
}

/// Compares all files below two directories, which have the same names.
#[track_caller]
pub fn same_trees(one: &Path, other: &Path) -> usize {
    let names = support::files_below(one);
    assert_eq!(names, support::files_below(other), "{}", one.display());
    for name in &names {
        let (one, other) = (fs::read(one.join(name)).unwrap(), fs::read(other.join(name)).unwrap());
        assert_same(&one, &other, &name.display().to_string());
    }
    names.len()
}

#[test]
fn a_bucket_reads_as_its_files_and_its_tensors_and_forms_as_from_a_store() {
    let stand = Stand::with_models();
    let mounted = stand.mount(&[]);
    assert_eq!(support::names(&mounted.path("")), ["models"]);
    assert_eq!(support::names(&mounted.path("models")), ["llama", "models", "odd", "others"]);
    assert_eq!(fs::read(mounted.path("models/models/README.md")).unwrap(), b"text");
    support::run([Path::new("init"), &stand.place.store()]).ok();
    for collection in ["llama", "others"] {
        assert!(
            same_trees(&mounted.mountpoint.join("models").join(collection), &stand.object(collection)) > 3
        );
        stand.place.import(&format!("models/{collection}"), &[&stand.object(collection)], &[]);
    }
    let local = stand.place.mount(&["--read-only"]);
    let mut compared = 0;
    for below in ["llama/.tensors", "llama/sub/.tensors", "others/.tensors", "llama/.as/npy", "llama/.as/q8"]
    {
        let path = |mounted: &Mounted| mounted.mountpoint.join("models").join(below);
        compared += same_trees(&path(&mounted), &path(&local));
    }
    assert!(compared > 40, "{compared}");
    let checksum = support::get(&mounted.mountpoint.join("models/llama/model.safetensors"), "checksum");
    assert_eq!(checksum, "none until read");
    let why = support::get(&mounted.mountpoint.join("models/odd/cut.safetensors"), "why");
    assert!(why.contains("shown as a plain file"), "{why}");
    assert_eq!(
        fs::write(mounted.path("models/llama/new"), b"1").unwrap_err().raw_os_error(),
        Some(libc::EROFS)
    );
    local.unmount();
    mounted.unmount();
    // A model has the same paths alone.
    let mounted = stand.mount_url("s3://bucket/models/llama", "one", &[]);
    assert_eq!(same_trees(&mounted.mountpoint.join("models/llama"), &stand.object("llama")), 4);
    mounted.unmount();
}

#[test]
fn the_cache_keeps_bytes_and_compares_them_with_their_first_arrival() {
    let stand = Stand::with_models();
    let source = fs::read(stand.object("llama/model.safetensors")).unwrap();
    let path = |mounted: &Mounted| mounted.mountpoint.join("models/llama/model.safetensors");
    let mounted = stand.mount(&[]);
    assert_same(&fs::read(path(&mounted)).unwrap(), &source, "cold");
    let (asked, _) = stand.bucket.counts();
    assert_same(&fs::read(path(&mounted)).unwrap(), &source, "again");
    assert_eq!(stand.bucket.counts().0, asked);
    let received = mounted.stats()["remote"]["received_bytes"].as_u64().unwrap();
    assert!(received < source.len() as u64 * 5 / 4 + (2 << 20), "{received} bytes of {}", source.len());
    mounted.unmount();
    // The index is kept too: only listings are asked for.
    let (asked, _) = stand.bucket.counts();
    let mounted = stand.mount(&[]);
    assert_same(&fs::read(path(&mounted)).unwrap(), &source, "after another mount");
    let (now, _) = stand.bucket.counts();
    assert!(now - asked <= 10, "{} requests", now - asked);
    mounted.unmount();
    // A byte of the cache changes while nothing is mounted.
    let folder = stand.place.path("cache/blob");
    let blobs = support::files_below(&folder).into_iter().map(|blob| folder.join(blob));
    let is_it = |blob: &PathBuf| fs::metadata(blob).unwrap().len() == source.len() as u64;
    let blob = blobs.into_iter().find(is_it).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&blob).unwrap();
    for at in [9 << 20, 100] {
        file.write_all_at(&[source[at] ^ 1], at as u64).unwrap();
    }
    let mounted = stand.mount(&[]);
    assert_same(&fs::read(path(&mounted)).unwrap(), &source, "after damage");
    mounted.unmount();
    let checked = stand.run(&["cache", stand.place.path("cache").to_str().unwrap(), "--verify"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[test]
fn answers_that_are_cut_refused_or_of_other_ranges_change_no_byte() {
    let stand = Stand::with_models();
    stand.bucket.behave(Manners { faults: 15, ..Manners::default() });
    let mounted = stand.mount(&[]);
    assert!(same_trees(&mounted.mountpoint.join("models/llama"), &stand.object("llama")) == 4);
    assert!(stand.bucket.counts().1 > 0);
    let wanted = fs::read(stand.object("others/training.ckpt")).unwrap();
    // These are answers that will not change by themselves.
    for manners in
        [Manners { wrong_ranges: 100, ..Manners::default() }, Manners { whole: 100, ..Manners::default() }]
    {
        stand.bucket.behave(manners.clone());
        let found = fs::read(mounted.mountpoint.join("models/others/training.ckpt"));
        assert!(found.is_err(), "{manners:?}");
    }
    stand.bucket.behave(Manners::default());
    let read = || fs::read(mounted.mountpoint.join("models/others/training.ckpt"));
    wait_until("the file is read", || read().is_ok());
    assert_same(&read().unwrap(), &wanted, "afterwards");
    mounted.unmount();
}

/// The content of a version: a container that says which version it is everywhere.
fn version(number: u8) -> Vec<u8> {
    let mut bytes = container_of(&mut Random(1), &[("a", 3 << 20), ("b", 70)]);
    let first = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    bytes[first..].fill(number);
    bytes
}

#[test]
fn an_object_that_is_replaced_is_estale_or_new_and_never_both() {
    for ignores_if_match in [false, true] {
        let stand = Stand::new(Manners { ignores_if_match, ..Manners::default() });
        stand.write("m/model.safetensors", version(0));
        let mounted = stand.mount(&["--follow", "0.2"]);
        let path = mounted.mountpoint.join("models/m/model.safetensors");
        let (is_over, complete, stale) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        match fs::read(&path) {
                            Ok(bytes) => {
                                let versions: BTreeSet<u8> = bytes[1000..].iter().copied().collect();
                                assert_eq!(versions.len(), 1, "a mixture of {versions:?}");
                                assert_same(&bytes, &version(bytes[1000]), "a version");
                                complete.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                let is_stale = error.raw_os_error() == Some(libc::ESTALE);
                                assert!(is_stale, "{error}");
                                stale.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            for number in 1..20 {
                stand.replace("m/model.safetensors", version(number));
                let (before, until) = (complete.load(Ordering::Relaxed), std::time::Instant::now());
                while complete.load(Ordering::Relaxed) < before + 2 && until.elapsed().as_millis() < 400 {
                    std::thread::yield_now();
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        wait_until("the last version", || fs::read(&path).is_ok_and(|bytes| bytes == version(19)));
        println!("{} whole, {} stale", complete.load(Ordering::Relaxed), stale.load(Ordering::Relaxed));
        assert!(complete.load(Ordering::Relaxed) > 0);
        mounted.unmount();
    }
}

#[test]
fn an_open_file_of_a_replaced_object_is_estale_and_a_new_one_has_the_new_bytes() {
    // More than is fetched ahead of a reader.
    let content = |number: u8| vec![number; 60 << 20];
    let stand = Stand::new(Manners::default());
    stand.write("m/data.dat", content(1));
    let mounted = stand.mount(&[]);
    let path = mounted.mountpoint.join("models/m/data.dat");
    let mut file = fs::File::open(&path).unwrap();
    let mut head = [0; 4096];
    file.read_exact(&mut head).unwrap();
    stand.replace("m/data.dat", content(2));
    let whole = file.read_to_end(&mut Vec::new());
    assert_eq!(whole.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    drop(file);
    // The mount lists again, without being told to.
    wait_until("the new version", || fs::read(&path).is_ok_and(|bytes| bytes == content(2)));
    mounted.unmount();
}

#[test]
fn inode_numbers_of_a_source_change_only_with_the_number_of_its_description() {
    let stand = Stand::new(Manners::default());
    stand.write("m/a.safetensors", container_of(&mut Random(5), &[("a", 3 << 20), ("b/c", 70)]));
    stand.write("m/sub/vector.npy", npy_file(&Random(6).floats(999)));
    stand.write("m/config.json", b"{}");
    for model in fs::read_dir(support::repository("tests/golden/models")).unwrap().flatten() {
        let key = format!("m/golden/{}", model.file_name().to_str().unwrap());
        stand.write(&key, fs::read(model.path()).unwrap());
    }
    let mounted = stand.mount(&[]);
    let root = mounted.mountpoint.join("models/m");
    let mut numbers = Vec::new();
    for directory in ["", ".tensors", "sub/.tensors", "golden/.tensors"] {
        for path in support::files_below(&root.join(directory)) {
            let inode = fs::metadata(root.join(directory).join(&path)).unwrap().ino();
            // The upper bits are those of the collection.
            numbers.push(format!("{directory} {} {}\n", path.display(), inode & ((1 << 40) - 1)));
        }
    }
    numbers.sort();
    // Programs keep files open while the next release takes a mount over. If these change, so must `DESCRIPTION`.
    let digest = blake3::hash(numbers.concat().as_bytes()).to_hex();
    assert_eq!(&digest[..16], "ad78c3d69ec12bd3", "{}", numbers.concat());
    mounted.unmount();
}

#[test]
fn names_of_any_kind_neither_escape_nor_hide_other_files() {
    let stand = Stand::new(Manners::default());
    for key in ["d/.as/x", "d/.tensors", "d/%41", "d/-rf", "both", "plain/file"] {
        stand.write(key, key);
    }
    let bad = ["/x", "../../../etc/passwd", "./x", "new\nline", "\u{1b}[2J"];
    (0..bad.len()).for_each(|number| stand.write(&format!("e{number}/f"), "f"));
    let mounted = stand.mount(&[]);
    let listed = support::files_below(&mounted.mountpoint.join("models/d"));
    let listed: Vec<&str> = listed.iter().map(|path| path.to_str().unwrap()).collect();
    assert!(listed.contains(&"%2Etensors") && listed.contains(&"%2Eas/x"), "{listed:?}");
    assert_eq!(fs::read(mounted.mountpoint.join("models/d/%2Eas/x")).unwrap(), b"d/.as/x");
    assert_eq!(fs::read(mounted.mountpoint.join("models/d/-rf")).unwrap(), b"d/-rf");
    assert_eq!(fs::read(mounted.mountpoint.join("models/plain/file")).unwrap(), b"plain/file");
    // A key that the client cannot name fails its own directory.
    for (number, key) in bad.into_iter().enumerate() {
        stand.bucket.behave(Manners { listed_too: vec![key.to_owned()], ..Manners::default() });
        let directory = mounted.mountpoint.join(format!("models/e{number}"));
        println!("{key:?}: {:?}", fs::read_dir(&directory).map(Iterator::count));
        assert!(!directory.join("etc").exists() && !directory.join("x").exists());
        assert_eq!(fs::read(mounted.mountpoint.join("models/d/-rf")).unwrap(), b"d/-rf");
    }
    mounted.unmount();
}

#[test]
fn a_directory_of_thousands_of_objects_is_listed_once() {
    const KEYS: usize = 5_000;
    let keys = (0..KEYS).map(|number| format!("many/{number:05}"));
    let stand = Stand::new(Manners { listed_too: keys.collect(), ..Manners::default() });
    stand.write("d/model.npy", npy_file(&[0; 400]));
    let mounted = stand.mount(&[]);
    let begun = std::time::Instant::now();
    let found = fs::read_dir(mounted.mountpoint.join("models/d/many")).unwrap().count();
    println!("{KEYS} objects in {:?}", begun.elapsed());
    assert_eq!(found, KEYS);
    assert_eq!(fs::read(mounted.mountpoint.join("models/d/model.npy")).unwrap(), npy_file(&[0; 400]));
    mounted.unmount();
}

#[test]
fn an_index_is_a_snapshot_whose_bytes_stay_in_the_bucket() {
    let stand = Stand::with_models();
    fs::create_dir(stand.place.path("remote")).unwrap();
    let remote = format!("file://{}", stand.place.path("remote").display());
    for (options, number) in [(&[][..], 1), (&["--checksum", "--as", "models/checked"], 1)] {
        let arguments = [&["index", "s3://bucket/models/llama", &remote, "--create"], options].concat();
        let text = stand.run(&arguments).ok();
        assert!(text.starts_with(&format!("pushed snapshot {number} of models/")), "{text}");
        let again = stand.run(&arguments).ok();
        assert!(again.starts_with("nothing new, still snapshot 1"), "{again}");
    }
    let stored: u64 = support::files_below(&stand.place.path("remote"))
        .iter()
        .map(|path| fs::metadata(stand.place.path("remote").join(path)).unwrap().len())
        .sum();
    assert!(stored < 64 << 10, "{stored} bytes in the remote");
    let mounted = stand.mount_url(&remote, "mount", &[]);
    for collection in ["llama", "checked"] {
        assert_eq!(
            same_trees(&mounted.mountpoint.join("models").join(collection), &stand.object("llama")),
            4
        );
    }
    let checksum = |name: &str| support::get(&mounted.mountpoint.join(name), "checksum");
    assert_eq!(checksum("models/llama/model.safetensors"), "none until read");
    assert!(checksum("models/checked/model.safetensors").starts_with("crc32c:"));
    mounted.unmount();
    stand.run(&["fsck", &remote]).ok();
    // The next snapshot is that of the new object, and the old one is still there.
    stand.replace("llama/config.json", b"{\"new\": 1}");
    let text = stand.run(&["index", "s3://bucket/models/llama", &remote, "--tag", "second"]).ok();
    assert!(text.starts_with("pushed snapshot 2 of models/llama"), "{text}");
    let mounted = stand.mount_url(&remote, "newest", &[]);
    assert_eq!(fs::read(mounted.mountpoint.join("models/llama/config.json")).unwrap(), b"{\"new\": 1}");
    mounted.unmount();
    let cache = stand.place.path("other-cache");
    let options = ["--cache", cache.to_str().unwrap(), "--at", "models/llama=1"];
    let mounted = stand.place.mount_store_by(&mut stand.command(), PathBuf::from(&remote), "first", &options);
    let error = fs::read(mounted.mountpoint.join("models/llama/config.json")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
    mounted.unmount();
    // Neither a store nor another source takes its place unasked, and it is no source of clones.
    stand
        .run(&["index", "s3://bucket/models/others", &remote, "--as", "models/llama"])
        .failed(1, &["no index of"]);
    let store = stand.place.store();
    support::run([Path::new("init"), &store]).ok();
    stand
        .run(&["clone", &remote, "models/llama", store.to_str().unwrap()])
        .failed(1, &["tierfs import copies"]);
}

#[test]
fn a_url_is_imported_as_a_directory_is() {
    let stand = Stand::with_models();
    let store = stand.place.store();
    let store = store.to_str().unwrap();
    for _ in 0..2 {
        stand.run(&["import", store, "acme/llama", "s3://bucket/models/llama"]).ok();
    }
    let local = stand.place.mount(&["--read-only"]);
    let found: Vec<PathBuf> = support::files_below(&local.mountpoint.join("acme/llama"));
    assert_eq!(found.len(), 4, "{found:?}");
    for name in found {
        let wanted = fs::read(stand.object("llama").join(&name)).unwrap();
        assert_same(&fs::read(local.mountpoint.join("acme/llama").join(&name)).unwrap(), &wanted, "imported");
    }
    local.unmount();
}

/// Reads 4 KiB at this place, without what the kernel reads ahead.
fn read_alone(file: &fs::File, at: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, at as u64).map(|()| bytes)
}

/// Opens a file whose reads the kernel does not lengthen.
fn opened_for_short_reads(path: &Path) -> fs::File {
    let file = fs::File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    file
}

#[test]
fn short_reads_of_a_source_fetch_few_bytes_with_a_cache_and_without() {
    let stand = Stand::new(Manners::default());
    let content = container_of(&mut Random(8), &[("a", 9 << 20), ("b", 7 << 20)]);
    stand.write("m/model.safetensors", &content);
    fs::create_dir(stand.place.path("remote")).unwrap();
    let remote = format!("file://{}", stand.place.path("remote").display());
    stand.run(&["index", "s3://bucket/models/m", &remote, "--create"]).ok();
    for (number, url) in [URL, &remote].into_iter().enumerate() {
        let cache = stand.place.path(format!("cache-{number}"));
        for cache in ["none", cache.to_str().unwrap()] {
            let options = ["--cache", cache];
            let mounted =
                stand.place.mount_store_by(&mut stand.command(), PathBuf::from(url), "mount", &options);
            let path = mounted.mountpoint.join("models/m/model.safetensors");
            let received = || mounted.stats()["remote"]["received_bytes"].as_u64().unwrap();
            let (file, before) = (opened_for_short_reads(&path), received());
            for number in 0..60 {
                // The beginning of a file is read by its piece, and reads that touch each other are a run.
                let at = (12 << 20) + 4097 + number * 7 % 60 * (768 << 10);
                assert_same(&read_alone(&file, at).unwrap(), &content[at..at + 4096], "a part");
            }
            let each = (received() - before) / 60;
            println!("{url} --cache {cache}: {each} bytes for each of 60 reads of 4 KiB");
            assert!(each <= 64 << 10, "{each} bytes for each read");
            assert_same(&fs::read(&path).unwrap(), &content, "all of it");
            drop(file);
            mounted.unmount();
        }
    }
}

#[test]
fn parts_of_an_open_file_of_a_replaced_object_are_estale_or_old() {
    let content = |number: u8| vec![number; 60 << 20];
    for name in ["none", "kept"] {
        let stand = Stand::new(Manners::default());
        stand.write("m/data.dat", content(1));
        let cache = stand.place.path(name);
        let options = ["--cache", if name == "none" { name } else { cache.to_str().unwrap() }];
        let mounted = stand.place.mount_store_by(&mut stand.command(), PathBuf::from(URL), "mount", &options);
        let path = mounted.mountpoint.join("models/m/data.dat");
        let file = opened_for_short_reads(&path);
        let places = |first: usize| (first..first + 20).map(|number| (10 << 20) + number * (1 << 20));
        assert!(places(0).all(|at| read_alone(&file, at).unwrap() == [1; 4096]));
        stand.replace("m/data.dat", content(2));
        for at in places(20).chain(places(0)) {
            match read_alone(&file, at) {
                Ok(bytes) => assert!(at < 30 << 20 && bytes == [1; 4096], "{at} has {}", bytes[0]),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
            }
        }
        drop(file);
        wait_until("the new version", || fs::read(&path).is_ok_and(|bytes| bytes == content(2)));
        mounted.unmount();
    }
}

#[test]
fn a_source_that_is_away_is_not_mounted_from_its_cache_and_the_error_says_why() {
    let stand = Stand::new(Manners::default());
    stand.write("m/data.dat", [1; 5000]);
    let mounted = stand.mount(&[]);
    fs::read(mounted.mountpoint.join("models/m/data.dat")).unwrap();
    mounted.unmount();
    let mut command = stand.command();
    let Stand { place, bucket } = stand;
    drop(bucket);
    command.args(["mount", URL]).arg(place.path("mount")).args(["--timeout", "2"]);
    answer(command.arg("--cache").arg(place.path("cache"))).failed(1, &[URL, "Connection refused"]);
}
