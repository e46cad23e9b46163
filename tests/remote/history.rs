//! Snapshots that are published again, removed, and named by their digest.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use object_store::memory::InMemory;
use support::{
    Answer, Mounted, Place, Random, answer, assert_same, container_of, files_below, tierfs, wait_until,
};
use tierfs::model::{CollectionName, ErrorKind as Kind};
use tierfs::remote::place::at::At;
use tierfs::remote::place::garbage::{Keep, collect};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::place::tags::{Move, set_tag};
use tierfs::remote::push::history::{How, Writers, remove, revert};
use tierfs::remote::push::parameters::Caption;

use crate::faulty::{Call, Clock, Fault, Faulty};
use crate::garbage::{HOUR, missing, named, push_from, stores};

const MANY: How = How { writers: Writers::Many, signer: None };
/// Young snapshots stay, and the last three.
const KEEP: Keep =
    Keep { last: 3, younger: Duration::from_secs(700 * HOUR), grace: Duration::from_secs(24 * HOUR) };
const CONFIGS: [&[u8]; 2] = [b"{\"first\": 1}", b"{\"second\": 2}"];

/// A store whose collection was pushed twice, with the config changed between.
struct Stand {
    place: Place,
    url: String,
    source: Vec<u8>,
}

impl Stand {
    fn new() -> Stand {
        let place = Place::new();
        let source = container_of(&mut Random(77), &[("w", 300_000), ("v", 2000)]);
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        answer(tierfs().arg("init").arg(place.store())).ok();
        let stand = Stand { place, url, source };
        stand.place.import("acme/m", &[&stand.place.write("m.safetensors", &stand.source)], &[]);
        for config in CONFIGS {
            stand.change(config);
            stand.push(&["--create"]).ok();
        }
        stand
    }

    fn change(&self, config: &[u8]) {
        self.place.import("acme/m", &[&self.place.write("config.json", config)], &[]);
    }

    fn push(&self, options: &[&str]) -> Answer {
        answer(tierfs().arg("push").arg(self.place.store()).args(["acme/m", &self.url]).args(options))
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Answer {
        answer(tierfs().arg(command).arg(&self.url).args(arguments))
    }

    fn log(&self) -> Vec<serde_json::Value> {
        self.run("log", &["acme/m", "--json"]).json().as_array().unwrap().clone()
    }

    fn pieces(&self) -> usize {
        files_below(&self.place.path("bucket/piece")).len()
    }

    fn mount(&self, name: &str, options: &[&str]) -> Mounted {
        let cache = self.place.path(format!("cache-{name}"));
        let options = [&["--cache", cache.to_str().unwrap()], options].concat();
        self.place.mount_store_by(&mut tierfs(), PathBuf::from(&self.url), name, &options)
    }
}

fn config(mounted: &Mounted) -> std::io::Result<Vec<u8>> {
    fs::read(mounted.path("acme/m/config.json"))
}

#[test]
fn an_older_snapshot_is_published_again_without_a_payload() {
    let stand = Stand::new();
    let mounted = stand.mount("following", &["--follow", "1"]);
    assert_eq!(config(&mounted).unwrap(), CONFIGS[1]);
    let mut open = File::open(mounted.path("acme/m/config.json")).unwrap();
    let before = stand.pieces();
    let told = stand.run("push", &["acme/m", "--revert", "1"]).ok();
    assert!(told.starts_with("pushed snapshot 3 of acme/m") && told.ends_with("0 B sent in 0\n"), "{told}");
    assert_eq!(stand.pieces(), before);
    wait_until("the mount shows the older state", || config(&mounted).is_ok_and(|found| found == CONFIGS[0]));
    assert_same(&fs::read(mounted.path("acme/m/m.safetensors")).unwrap(), &stand.source, "the container");
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert_eq!(found, CONFIGS[1], "an open file stays that of its snapshot");
    let log = stand.log();
    assert_eq!(log[0]["message"], "revert to snapshot 1");
    // The store that pushed before must say by --force that the newer state is wanted again.
    stand.push(&[]).failed(1, &["snapshot 3 of acme/m", "--force"]);
    assert!(
        stand.run("push", &["acme/m", "--revert", "3"]).ok().starts_with("nothing new, still snapshot 3")
    );
    stand.run("push", &["acme/m", "--revert", "9"]).failed(1, &["no snapshot 9"]);
    stand.run("tag", &["acme/m=2", "good"]).ok();
    assert!(
        stand.run("push", &["acme/m", "--revert", "good", "--message", "back"]).ok().contains("snapshot 4")
    );
    let digest = log[2]["blake3"].as_str().unwrap().to_owned();
    assert!(stand.run("push", &["acme/m", "--revert", &digest, "--tag", "old"]).ok().contains("snapshot 5"));
    let log = stand.log();
    assert_eq!((&log[0]["tags"][0], &log[1]["message"]), (&"old".into(), &"back".into()));
    stand.run("push", &["acme/m", "--revert", "1", "--variants", "q8"]).failed(2, &["cannot be used with"]);
    answer(tierfs().arg("push").arg(stand.place.store()).args(["acme/m", "--revert", "1"]))
        .failed(1, &["is not the URL of a remote"]);
    drop(open);
    wait_until("the mount shows the last one", || config(&mounted).is_ok_and(|found| found == CONFIGS[0]));
    mounted.unmount();
}

#[test]
fn a_removed_collection_is_gone_for_new_opens_and_its_numbers_go_on() {
    let stand = Stand::new();
    answer(tierfs().arg("push").arg(stand.place.store()).args(["acme/m=acme/a", &stand.url])).ok();
    let following = stand.mount("following", &["--follow", "1"]);
    assert_eq!(config(&following).unwrap(), CONFIGS[1]);
    let mut open = File::open(following.path("acme/m/m.safetensors")).unwrap();
    stand.run("tag", &["acme/m=1", "v1"]).ok();
    stand.run("rm", &["acme/m"]).failed(1, &["tags", "v1", "--force"]);
    stand.run("rm", &["acme/none"]).failed(1, &["has no acme/none"]);
    assert!(stand.run("rm", &["acme/m", "--force"]).ok().starts_with("acme/m: removed by snapshot 3"));
    assert_eq!(stand.run("tag", &["acme/m"]).ok(), "");
    let is_gone =
        |found: std::io::Result<Vec<u8>>| found.is_err_and(|error| error.kind() == ErrorKind::NotFound);
    wait_until("the mount shows it no more", || is_gone(config(&following)));
    let mut found = Vec::new();
    open.read_to_end(&mut found).unwrap();
    assert_same(&found, &stand.source, "an open file");
    let names = |mounted: &Mounted| -> Vec<_> {
        fs::read_dir(mounted.path("acme")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    };
    let fresh = stand.mount("fresh", &[]);
    assert!(is_gone(config(&fresh)));
    assert_eq!(names(&fresh).iter().filter(|name| !name.to_string_lossy().starts_with('.')).count(), 1);
    assert!(!stand.run("ls", &["acme"]).ok().contains(" m/"));
    assert_eq!(stand.log()[0]["removed"], true);
    answer(tierfs().args(["clone", &stand.url, "acme/m=acme/c"]).arg(stand.place.store()))
        .failed(1, &["was removed by snapshot 3"]);
    stand.run("rm", &["acme/m"]).failed(1, &["has removed acme/m"]);
    stand.run("tag", &["acme/m=3", "none"]).failed(1, &["has no snapshot 3"]);
    stand.push(&[]).failed(1, &["snapshot 3 removed acme/m", "--force"]);
    assert!(stand.push(&["--force"]).ok().starts_with("pushed snapshot 4"));
    wait_until("it is there again", || config(&following).is_ok_and(|found| found == CONFIGS[1]));
    stand.run("rm", &["acme/m"]).ok();
    // Until the garbage is collected, each snapshot can come back.
    assert!(stand.run("push", &["acme/m", "--revert", "1"]).ok().contains("snapshot 6"));
    wait_until("the first state is there", || config(&following).is_ok_and(|found| found == CONFIGS[0]));
    drop(open);
    following.unmount();
    fresh.unmount();
}

#[test]
fn a_tenant_is_shown_while_one_of_its_collections_is_left() {
    let stand = Stand::new();
    answer(tierfs().arg("push").arg(stand.place.store()).args(["acme/m=acme/z", &stand.url])).ok();
    stand.run("rm", &["acme/m"]).ok();
    let one = stand.mount("one", &[]);
    assert_eq!(fs::read(one.path("acme/z/config.json")).unwrap(), CONFIGS[1]);
    one.unmount();
    stand.run("rm", &["acme/z"]).ok();
    let none = stand.mount("none", &[]);
    assert!(fs::read_dir(none.path("acme")).is_err_and(|error| error.kind() == ErrorKind::NotFound));
    none.unmount();
}

#[test]
fn a_tag_moves_by_force_only() {
    let stand = Stand::new();
    stand.run("tag", &["acme/m=1", "v1"]).ok();
    stand.run("tag", &["acme/m=1", "v1"]).ok();
    stand.run("tag", &["acme/m=2", "v1"]).failed(1, &["the tag v1 of acme/m is snapshot 1", "--force"]);
    stand.run("tag", &["acme/m=2", "newest"]).ok();
    assert!(stand.push(&["--tag", "newest"]).ok().starts_with("nothing new"));
    let again = stand.run("push", &["acme/m", "--revert", "2", "--tag", "newest"]).ok();
    assert!(again.starts_with("nothing new"), "{again}");
    stand.change(b"{\"third\": 3}");
    stand.push(&["--tag", "v1"]).failed(1, &["the tag v1 of acme/m is snapshot 1"]);
    assert_eq!(stand.log().len(), 2, "nothing was pushed");
    // Also where it names the newest one, which has another state.
    stand.push(&["--tag", "newest"]).failed(1, &["the tag newest of acme/m is snapshot 2"]);
    stand
        .run("push", &["acme/m", "--revert", "1", "--tag", "newest"])
        .failed(1, &["the tag newest of acme/m is snapshot 2"]);
    assert_eq!(stand.log().len(), 2, "nothing was published");
    stand.run("tag", &["acme/m", "newest", "--remove"]).ok();
    assert_eq!(stand.run("tag", &["acme/m=2", "v1", "--force"]).ok(), "v1 is snapshot 2 of acme/m\n");
    assert_eq!(stand.run("tag", &["acme/m"]).ok(), "     2 v1\n");
    let digest = stand.log()[0]["blake3"].as_str().unwrap().to_owned();
    stand.run("tag", &["acme/m=2", &digest]).failed(1, &["cannot be a tag"]);
}

#[test]
fn a_digest_names_one_snapshot_whoever_replaces_objects_and_tags() {
    let stand = Stand::new();
    let log = stand.log();
    let digest = log[1]["blake3"].as_str().unwrap();
    let key = stand.place.path("bucket").join(log[1]["key"].as_str().unwrap());
    // The digest is the BLAKE3 of the object without its end, which repeats it.
    let bytes = fs::read(&key).unwrap();
    assert_eq!(blake3::hash(&bytes[..bytes.len() - 32]).to_hex().as_str(), digest);
    let at = format!("acme/m={digest}");
    let mounted = stand.mount("pinned", &["--at", &at, "--follow", "1"]);
    assert_eq!(config(&mounted).unwrap(), CONFIGS[0]);
    mounted.unmount();
    let store = stand.place.path("cloned");
    answer(tierfs().arg("init").arg(&store)).ok();
    answer(tierfs().args(["clone", &stand.url, "acme/m"]).arg(&store).args(["--at", digest])).ok();
    // The state of snapshot 2 in the place of snapshot 1.
    fs::copy(stand.place.path("bucket").join(log[0]["key"].as_str().unwrap()), &key).unwrap();
    let refused = |at: &str| {
        let mut command = tierfs();
        fs::create_dir_all(stand.place.path("none")).unwrap();
        command.args(["mount", &stand.url]).arg(stand.place.path("none")).args(["--at", at]);
        answer(command.arg("--cache").arg(stand.place.path("cache-none")))
    };
    refused(&at).failed(1, &["has no snapshot", digest]);
    refused(&format!("acme/m={}", "0".repeat(64))).failed(1, &["has no snapshot 000000"]);
}

#[test]
fn a_collection_that_others_are_differences_from_is_not_removed() {
    let stand = Stand::new();
    let mut changed = stand.source.clone();
    let last = changed.len() - 3;
    changed[last] ^= 1;
    let child = stand.place.write("child/m.safetensors", &changed);
    stand.place.import("acme/child", &[&child], &["--parent", "acme/m", "--reconstruct", "delta"]);
    answer(tierfs().arg("push").arg(stand.place.store()).args(["acme/child", &stand.url])).ok();
    stand.run("rm", &["acme/m"]).failed(1, &["blocks of acme/child are differences from acme/m"]);
    stand.run("rm", &["acme/child"]).ok();
    stand.run("rm", &["acme/m"]).ok();
}

#[test]
fn garbage_of_a_removed_collection_goes_whatever_its_age_and_the_removal_stays() {
    let [one, two, _] = &stores();
    let (objects, clock) = (Arc::new(InMemory::new()), Arc::new(Clock::default()));
    let bucket = Faulty::at(&objects, Some(&clock), |_| Fault::None);
    for (push, place) in [(1, one), (2, two)] {
        push_from(place, &bucket, &named("m", push), &clock).unwrap();
        push_from(place, &bucket, &named("kept", push), &clock).unwrap();
    }
    let remote = Remote::open(bucket.client()).unwrap();
    let place = CollectionName::new("acme", "m");
    set_tag(&remote, place, "v1", 1, Move::Refused).unwrap();
    assert!(remove(&remote, place, false, MANY).is_err());
    assert_eq!(remove(&remote, place, true, MANY).unwrap(), 3);
    // The pieces are old enough, the snapshots are not.
    clock.advance(25 * HOUR);
    let planned = collect(&remote, &KEEP, false).unwrap();
    assert_eq!(planned.snapshots_planned, 2, "{planned:?}");
    clock.advance(25 * HOUR);
    assert_eq!(collect(&remote, &KEEP, false).unwrap().snapshots_removed, 2);
    assert_eq!(
        missing(&objects),
        (vec!["kept=1".to_owned(), "kept=2".to_owned(), "m=3".to_owned()], Vec::new())
    );
    // Numbers go on, and what came before a second removal goes too.
    push_from(two, &bucket, &named("m", 5), &clock).unwrap();
    assert_eq!(remote.newest("acme", "m").unwrap(), Some(4));
    assert_eq!(remove(&remote, place, false, MANY).unwrap(), 5);
    clock.advance(25 * HOUR);
    assert_eq!(collect(&remote, &KEEP, false).unwrap().snapshots_planned, 2);
    clock.advance(25 * HOUR);
    collect(&remote, &KEEP, false).unwrap();
    assert!(
        missing(&objects).0.contains(&"m=5".to_owned()) && !missing(&objects).0.contains(&"m=3".to_owned())
    );
}

#[test]
fn a_revert_beside_the_end_of_a_collection_of_garbage_publishes_no_lost_piece() {
    let places = stores();
    let (objects, clock) = (Arc::new(InMemory::new()), Arc::new(Clock::default()));
    let quiet = Faulty::at(&objects, Some(&clock), |_| Fault::None);
    for (number, place) in (1..).zip(&places) {
        push_from(place, &quiet, &named("m", number), &clock).unwrap();
    }
    let keep = Keep { last: 1, younger: Duration::ZERO, ..KEEP };
    clock.advance(25 * HOUR);
    assert!(collect(&Remote::open(quiet.client()).unwrap(), &keep, false).unwrap().snapshots_planned > 0);
    clock.advance(25 * HOUR);
    // The sweep comes right before the revert looks for plans.
    let is_swept = Arc::new(AtomicBool::new(false));
    let once = is_swept.clone();
    let beside = Faulty::at(&objects, Some(&clock), move |request| {
        if request.call == Call::List
            && request.key.starts_with("models/gc")
            && !once.swap(true, Ordering::SeqCst)
        {
            let sweep = || collect(&Remote::open(quiet.client()).unwrap(), &keep, false).unwrap();
            std::thread::scope(|scope| {
                let sweep = scope.spawn(sweep);
                assert!(sweep.join().unwrap().pieces_removed > 0);
            });
        }
        Fault::None
    });
    let remote = Remote::open(beside.client()).unwrap();
    let error = revert(&remote, CollectionName::new("acme", "m"), &At::Number(1), &Caption::default(), MANY)
        .unwrap_err();
    assert!(is_swept.load(Ordering::SeqCst));
    assert_eq!(error.kind(), Kind::NotFound, "{error}");
    assert_eq!(missing(&objects), (vec!["m=3".to_owned()], Vec::new()));
}
