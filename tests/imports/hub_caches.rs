//! Imports of the cache of the Hugging Face Hub's client, in its own layout.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::directories::{self, Way, each_way};
use support::{Place, Random, assert_same, container_of, minilm, run};

const FIRST: &str = "1111111111111111111111111111111111111111";
const SECOND: &str = "2222222222222222222222222222222222222222";

/// A repository in a cache.
struct Repository(PathBuf);

impl Repository {
    fn new(place: &Place, name: &str) -> Repository {
        let path = place.path("hub").join(name);
        for directory in ["blobs", "refs", "snapshots", ".no_exist/x"] {
            fs::create_dir_all(path.join(directory)).unwrap();
        }
        fs::write(path.join(".no_exist/x/adapter_config.json"), b"").unwrap();
        Repository(path)
    }

    fn blob(&self, etag: &str, bytes: &[u8]) {
        fs::write(self.0.join("blobs").join(etag), bytes).unwrap();
    }

    /// A link of a snapshot, as the client makes it.
    fn file(&self, commit: &str, path: &str, etag: &str) {
        let link = self.0.join("snapshots").join(commit).join(path);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let up = "../".repeat(path.matches('/').count() + 2);
        symlink(format!("{up}blobs/{etag}"), link).unwrap();
    }

    fn point(&self, name: &str, commit: &str) {
        fs::write(self.0.join("refs").join(name), commit).unwrap();
    }
}

/// Two models, one of them with two revisions, a data set, and the remains of downloads.
fn cache(place: &Place) -> (PathBuf, Repository) {
    let minilm_repository = Repository::new(place, "models--sentence-transformers--all-MiniLM-L6-v2");
    let source = minilm();
    for (number, path) in ["model.safetensors", "config.json", "1_Pooling/config.json"].iter().enumerate() {
        let etag = format!("{number:064x}");
        let blob = minilm_repository.0.join("blobs").join(&etag);
        fs::hard_link(source.join(path), &blob)
            .or_else(|_| fs::copy(source.join(path), &blob).map(|_| ()))
            .unwrap();
        minilm_repository.file(FIRST, path, &etag);
    }
    minilm_repository.point("main", FIRST);
    let tiny = Repository::new(place, "models--acme--tiny");
    tiny.blob("aa", &container_of(&mut Random(1), &[("w", 100_000)]));
    tiny.blob("bb", b"{\"revision\": 1}");
    tiny.blob("cc", b"{\"revision\": 2}");
    tiny.blob("dd.incomplete", &[0; 100]);
    for (commit, config) in [(FIRST, "bb"), (SECOND, "cc")] {
        tiny.file(commit, "model.safetensors", "aa");
        tiny.file(commit, "nested/copy.safetensors", "aa");
        tiny.file(commit, "config.json", config);
    }
    tiny.point("main", SECOND);
    tiny.point("v1", FIRST);
    let data = Repository::new(place, "datasets--acme--words");
    data.blob("ee", b"words");
    data.file(FIRST, "words.txt", "ee");
    data.point("main", FIRST);
    place.write("hub/.locks/models--acme--tiny/aa.lock", b"");
    place.write("hub/version.txt", b"1");
    (place.path("hub"), tiny)
}

fn tiny_container() -> Vec<u8> {
    container_of(&mut Random(1), &[("w", 100_000)])
}

/// Bytes of the data files of a collection.
fn stored(way: &Way, collection: &str) -> u64 {
    let folder = way.place.store().join(collection).join("data");
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_hub_cache_becomes_a_collection_for_each_model() {
    each_way(|way| {
        let (hub, _tiny) = cache(&way.place);
        let since = Instant::now();
        let answer = way.import("acme", &hub, &[]);
        let first = since.elapsed();
        let data = hub.join("datasets--acme--words");
        let said = answer.err.lines().filter(|line| !line.contains("created store at"));
        assert_eq!(
            said.map(|line| format!("{line}\n")).collect::<String>(),
            format!(
                "tierfs: {0}: a dataset; only models are imported with the whole cache; to import it, name its \
                 directory: TENANT/datasets--acme--words {0}\n",
                data.display()
            )
        );
        let said = answer.ok();
        assert!(said.contains("acme/acme--tiny: 2 files with "), "{said}");
        assert!(said.contains("nested/copy.safetensors  linked\n"), "{said}");
        assert!(said.contains("acme/sentence-transformers--all-MiniLM-L6-v2: 3 files with "), "{said}");
        let minilm_bytes = fs::read(minilm().join("model.safetensors")).unwrap();
        let model = "acme/sentence-transformers--all-MiniLM-L6-v2";
        way.with_mount(|mounted| {
            let read = |path: &str| fs::read(mounted.path(path)).unwrap();
            assert_same(&read(&format!("{model}/model.safetensors")), &minilm_bytes, "minilm");
            assert_eq!(
                read(&format!("{model}/1_Pooling/config.json")),
                fs::read(minilm().join("1_Pooling/config.json")).unwrap()
            );
            assert_eq!(read("acme/acme--tiny/config.json"), b"{\"revision\": 2}");
            assert_same(&read("acme/acme--tiny/nested/copy.safetensors"), &tiny_container(), "a blob");
            let mut names: Vec<_> = fs::read_dir(mounted.path("acme"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            assert_eq!(names, ["acme--tiny", "sentence-transformers--all-MiniLM-L6-v2"]);
        });
        assert_eq!(stored(way, "acme/acme--tiny"), tiny_container().len() as u64, "each blob once");
        let contents = || {
            let mut files = directories::stored(&way.place);
            // Usage that the mount counts, which reads above have changed.
            files.retain(|path, _| !path.ends_with("access"));
            files
        };
        let before = contents();
        // The shortest of ten, since other tests run beside.
        let again = (0..10).map(|_| {
            let since = Instant::now();
            let said = way.import("acme", &hub, &[]).ok();
            let second = since.elapsed();
            assert_eq!(
                said,
                format!(
                    "acme/acme--tiny: nothing new; 3 files unchanged\n{model}: nothing new; 3 files unchanged\n"
                )
            );
            second
        });
        let second = again.min().unwrap();
        let after = contents();
        for path in before.keys().chain(after.keys()) {
            assert!(before.get(path) == after.get(path), "{} was written", path.display());
        }
        println!("first {first:?}, second {second:?}");
        assert!(second * 10 < first, "{second:?} after {first:?}");
        let sum = way.import("acme", &hub, &["--json"]).json();
        assert_eq!(sum["collections"][0]["unchanged"], 3);
        assert_eq!(sum["skipped"].as_array().unwrap().len(), 1);
    });
}

#[test]
fn revisions_of_a_model_share_their_blobs() {
    each_way(|way| {
        let (hub, tiny) = cache(&way.place);
        let repository = tiny.0.clone();
        let read = |path: &str| way.content(&format!("acme/tiny/{path}"));
        way.import("acme/tiny", &repository, &["--revision", "v1"]).ok();
        assert_eq!(read("config.json").unwrap(), b"{\"revision\": 1}");
        // Another revision replaces the first, as a checkout does.
        let counts = way.counts("acme/tiny", &repository, &["--revision", "2222"]);
        assert_eq!(counts, [1, 2, 0]);
        assert_eq!(read("config.json").unwrap(), b"{\"revision\": 2}");
        way.import("acme/all", &repository, &["--all-revisions"]).ok();
        let check = |way: &Way, links: u64| {
            way.with_mount(|mounted| {
                let path = |path: &str| mounted.path(format!("acme/all/{path}"));
                for (place, config) in [(FIRST, 1), (SECOND, 2), ("main", 2), ("v1", 1)]
                    .map(|(place, number)| (place, format!("{{\"revision\": {number}}}")))
                {
                    assert_eq!(fs::read_to_string(path(&format!("{place}/config.json"))).unwrap(), config);
                    let model = fs::read(path(&format!("{place}/model.safetensors"))).unwrap();
                    assert_same(&model, &tiny_container(), place);
                }
                assert_eq!(fs::read_link(path("main")).unwrap(), Path::new(SECOND));
                use std::os::unix::fs::MetadataExt;
                let one = fs::metadata(path(&format!("{FIRST}/model.safetensors"))).unwrap();
                let other = fs::metadata(path(&format!("{SECOND}/nested/copy.safetensors"))).unwrap();
                assert_eq!((one.ino(), one.nlink()), (other.ino(), links));
            });
            assert_eq!(stored(way, "acme/all"), tiny_container().len() as u64);
        };
        check(way, 4);
        assert_eq!(way.counts("acme/all", &repository, &["--all-revisions", "--delete"]), [0, 6, 0]);
        // A new revision links to existing blobs; removing one leaves the others.
        let third = "0000000000000000000000000000000000000000";
        tiny.file(third, "model.safetensors", "aa");
        assert_eq!(way.counts("acme/all", &repository, &["--all-revisions"]), [0, 6, 0]);
        check(way, 5);
        fs::remove_dir_all(repository.join("snapshots").join(third)).unwrap();
        assert_eq!(way.counts("acme/all", &repository, &["--all-revisions", "--delete"]), [0, 6, 1]);
        check(way, 4);
        way.import("acme/tiny", &repository, &["--revision", "v9"])
            .failed(1, &["no revision v9; it has main, v1, 1111111111111111111111111111111111111111, 2222"]);
        way.import("acme", &hub, &["--revision", "v1"]).failed(1, &["MiniLM", "no revision v1; it has main"]);
        assert_eq!(way.content("acme/acme--tiny/config.json").unwrap(), b"{\"revision\": 1}");
    });
}

#[test]
fn a_directory_that_is_not_a_cache_or_is_incomplete_is_named() {
    each_way(|way| {
        let (hub, tiny) = cache(&way.place);
        way.import("acme/all", &hub, &[]).failed(
            1,
            &["is a hub cache; to import each of its models into a separate collection, name a tenant: \
               tierfs import STORE TENANT "],
        );
        let folder = way.place.path("hub/.locks");
        way.import("acme", &folder, &[])
            .failed(2, &["is not a hub cache; to import it, name a collection: acme/COLLECTION"]);
        way.import("acme/x", &folder, &["--revision", "main"]).failed(
            1,
            &["is not a repository of a hub cache, so --revision and --all-revisions do not apply"],
        );
        fs::remove_file(tiny.0.join("blobs/cc")).unwrap();
        way.import("acme/tiny", &tiny.0, &[]).failed(
            1,
            &["config.json: it is a dangling link to ../../blobs/cc; its download is incomplete; \
               download the model again, which continues the download"],
        );
        assert!(way.content("acme/tiny/model.safetensors").is_some());
        fs::remove_file(tiny.0.join("refs/main")).unwrap();
        way.import("acme/tiny", &tiny.0, &[]).failed(1, &["no refs/main; choose one with --revision: v1, "]);
        way.import("acme/words", &hub.join("datasets--acme--words"), &[]).ok();
        assert_eq!(way.content("acme/words/words.txt").unwrap(), b"words");
        if way.mounted.is_none() {
            run(["fsck".as_ref(), way.place.store().as_os_str()]).ok();
        }
    });
}
