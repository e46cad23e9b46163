//! Variants: published in other tiers, and mounted in them.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use object_store::memory::InMemory;
use support::{Place, Random, answer, assert_same, container_of, tierfs};
use tierfs::engine::variant;
use tierfs::format::snapshot::manifest::Manifest;
use tierfs::model::{MoveTo, Progress, Result, Silent};
use tierfs::remote::place::garbage::{Keep, collect};
use tierfs::remote::place::remote::Remote;
use tierfs::remote::push::outcome::Pushed;
use tierfs::remote::push::parameters::{Parameters, Variants};
use tierfs::remote::push::publish::push;
use tierfs::remote::read::files::Source;
use tierfs::remote::read::published_collections::Published;
use tierfs::store::disk::files::FileDisk;
use tierfs::store::{Access, SnapshotDisk, Store};

use crate::faulty::{Fault, Faulty};
use crate::mounted;
use crate::push::{quiet, remote, request, stored};
use crate::reading::files_of;

/// A push in these tiers.
fn pushed_in(
    place: &Place,
    bucket: &Arc<Faulty>,
    number: u128,
    tiers: &[&str],
    progress: &dyn Progress,
) -> Result<Pushed> {
    let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "test")?;
    let variants = tiers.iter().map(|tier| variant(MoveTo::parse_variant(tier).unwrap(), store.settings()));
    let request = Parameters { variants: Variants::These(variants.collect()), ..request(number) };
    push(&remote(bucket)?, &store.collection("acme", "m")?, &request, progress)
}

fn newest(objects: &Arc<InMemory>) -> Option<Arc<Manifest>> {
    let remote = Remote::open(quiet(objects).client()).ok()?;
    let number = remote.newest("acme", "m").unwrap()?;
    Some(remote.manifest("acme", "m", number).unwrap().unwrap().manifest)
}

/// All files of the newest snapshot, as a mount in a tier shows them.
fn seen_in(objects: &Arc<InMemory>, tier: Option<&str>) -> HashMap<String, Vec<u8>> {
    seen_through(&quiet(objects), tier)
}

fn seen_through(bucket: &Arc<Faulty>, tier: Option<&str>) -> HashMap<String, Vec<u8>> {
    let remote = Remote::open(bucket.client()).unwrap();
    let source = Source::new(remote, None, Box::new(|path, text| panic!("{path}: {text}")));
    let published = Published::new(source, HashMap::new()).in_tier(tier.map(str::to_owned));
    let disk = SnapshotDisk::new(Arc::new(published));
    files_of(&Arc::new(Arc::new(disk).open_store().unwrap()), "acme", "m")
}

/// All files of a store with the same import, moved to a tier.
fn moved_to(place: &Place, tier: &str) -> HashMap<String, Vec<u8>> {
    let other = Place::new();
    support::run([Path::new("init"), &other.store()]).ok();
    other.import("acme/m", &[&place.path("in")], &[]);
    other.import("acme/m", &[&place.path("q8.safetensors")], &["--tier", "q8:all"]);
    let mounted = other.mount(&[]);
    answer(tierfs().args(["tier", tier, "--lossy"]).arg(mounted.path("acme/m"))).ok();
    mounted.unmount();
    files_of(
        &Arc::new(Store::open(Arc::new(FileDisk::new(&other.store())), Access::Read, "").unwrap()),
        "acme",
        "m",
    )
}

/// Counts the bytes that a push processes.
#[derive(Default)]
struct Counted(AtomicU64);

impl Progress for Counted {
    fn advance(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn a_variant_reads_as_a_local_store_that_was_moved_to_its_tier_and_is_not_encoded_again() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    let plain = pushed_in(&place, &quiet(&objects), 1, &[], &Silent).unwrap();
    let base = newest(&objects).unwrap();
    let exact = seen_in(&objects, None);
    let first = pushed_in(&place, &quiet(&objects), 2, &["q3x:all", "q5:all"], &Silent).unwrap();
    // The exact pieces are those of the first snapshot.
    assert_eq!((first.number, first.pieces - first.pieces_sent), (2, plain.pieces));
    let manifest = newest(&objects).unwrap();
    assert_eq!(manifest.files[..base.files.len()], base.files);
    assert_eq!(
        manifest.variants.iter().map(|variant| &*variant.name).collect::<Vec<_>>(),
        ["q3x:all", "q5:all"]
    );
    assert!(seen_in(&objects, None) == exact);
    for tier in ["q5:all", "q3x:all"] {
        let (found, wanted) = (seen_in(&objects, Some(tier)), moved_to(&place, tier));
        assert!(wanted["large.safetensors"] != exact["large.safetensors"], "{tier}");
        let mut names: Vec<&String> = wanted.keys().collect();
        names.sort();
        for name in names {
            assert_same(&found[name], &wanted[name], &format!("{tier}: {name}"));
        }
        assert_eq!(found.len(), wanted.len());
    }
    let counted = Counted::default();
    let again = pushed_in(&place, &quiet(&objects), 3, &["q3x:all", "q5:all"], &counted).unwrap();
    assert_eq!((again.number, again.is_unchanged, again.bytes_sent), (2, true, 0));
    assert_eq!(counted.0.load(Ordering::Relaxed), 0);
    // A push without variants publishes none, and a variant less takes the other one.
    let fewer = pushed_in(&place, &quiet(&objects), 4, &["q5:all"], &counted).unwrap();
    assert_eq!((fewer.number, fewer.bytes_sent, counted.0.into_inner()), (3, 0, 0));
    assert!(seen_in(&objects, Some("q5:all")) == moved_to(&place, "q5:all"));
    assert_eq!(pushed_in(&place, &quiet(&objects), 5, &[], &Silent).unwrap().number, 4);
    assert!(newest(&objects).unwrap().variants.is_empty());
    assert!(seen_in(&objects, None) == exact);
    // The same state gives the same pieces in another bucket, with other threads.
    let other = Arc::new(InMemory::new());
    pushed_in(&place, &quiet(&other), 6, &["q3x:all", "q5:all"], &Silent).unwrap();
    let other = newest(&other).unwrap();
    assert_eq!((&other.pieces, &other.files), (&manifest.pieces, &manifest.files));
}

#[test]
fn a_variant_of_a_real_model_is_read_with_little_more_than_the_bytes_of_a_store_in_its_tier() {
    let (place, moved) = (Place::new(), Place::new());
    for (place, options) in [(&place, &[][..]), (&moved, &["--tier", "q5"])] {
        support::run([Path::new("init"), &place.store()]).ok();
        place.import("acme/m", &[&support::minilm()], options);
    }
    let moved = Arc::new(Store::open(Arc::new(FileDisk::new(&moved.store())), Access::Read, "").unwrap());
    let wanted = files_of(&moved, "acme", "m");
    let needed = moved.tenant_use("acme").unwrap().stored;
    let objects = Arc::new(InMemory::new());
    let plain = pushed_in(&place, &quiet(&objects), 1, &[], &Silent).unwrap();
    let pushed = pushed_in(&place, &quiet(&objects), 2, &["q5"], &Silent).unwrap();
    let reader = quiet(&objects);
    let found = seen_through(&reader, Some("q5"));
    assert!(found == wanted, "{:?} differ from {:?}", found.keys(), wanted.keys());
    let (read, stored) = (reader.received(), pushed.bytes - plain.bytes);
    println!("the store has {needed} bytes; the variant takes {stored}, and was read with {read}");
    assert!(read as f64 <= 1.15 * needed as f64, "{read} bytes were read, and the store has {needed}");
    assert!(stored as f64 <= 1.15 * needed as f64, "{stored} bytes are stored, and the store has {needed}");
    // A reader of the exact collection gets none of the variant's pieces.
    let reader = quiet(&objects);
    seen_through(&reader, None);
    assert!(reader.received() < plain.bytes + (1 << 20), "{} of {}", reader.received(), plain.bytes);
}

#[test]
fn a_push_of_variants_killed_at_any_request_leaves_a_whole_snapshot_and_is_repeated() {
    let place = Place::new();
    support::run([Path::new("init"), &place.store()]).ok();
    let file = place.write("w.safetensors", container_of(&mut Random(3), &[("w", 1 << 18)]));
    place.import("acme/m", &[&file], &[]);
    let reference = Arc::new(InMemory::new());
    pushed_in(&place, &quiet(&reference), 1, &[], &Silent).unwrap();
    let bucket = quiet(&Arc::new(reference.fork()));
    pushed_in(&place, &bucket, 2, &["q8:all", "q5:all"], &Silent).unwrap();
    let (requests, last) = (bucket.requests(), newest(&bucket.objects).unwrap());
    let keys = |objects: &Arc<InMemory>| quiet(objects).client().list("piece", None).unwrap().len();
    let wanted = seen_in(&bucket.objects, Some("q5:all"));
    for killed_at in 0..requests {
        for fault in [Fault::Hangs, Fault::AnswerLost] {
            let objects = Arc::new(reference.fork());
            let dying = Faulty::over(&objects, move |request| match request.number {
                number if number == killed_at => fault,
                number if number > killed_at => Fault::Denied,
                _ => Fault::None,
            });
            drop(pushed_in(&place, &dying, 3, &["q8:all", "q5:all"], &Silent));
            let found = newest(&objects).unwrap();
            let context = format!("killed at request {killed_at} ({fault:?})");
            assert!(
                found.number == 1 && found.variants.is_empty() || found.files == last.files,
                "{context}: {found:?}"
            );
            let next = pushed_in(&place, &quiet(&objects), 4, &["q8:all", "q5:all"], &Silent).unwrap();
            assert_eq!(next.number, 2, "{context}");
            assert!(seen_in(&objects, Some("q5:all")) == wanted, "{context}");
            assert_eq!(keys(&objects), keys(&bucket.objects), "{context}");
        }
    }
}

#[test]
fn garbage_of_other_snapshots_leaves_the_pieces_of_variants_and_a_doomed_variant_is_stored_again() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    let hour = 3600;
    let clock = Arc::new(crate::faulty::Clock::default());
    let bucket = || Faulty::at(&objects, Some(&clock), |_| Fault::None);
    let keep = Keep {
        last: 1,
        younger: std::time::Duration::ZERO,
        grace: std::time::Duration::from_secs(24 * hour),
    };
    pushed_in(&place, &bucket(), 1, &["q5:all"], &Silent).unwrap();
    let first = newest(&objects).unwrap();
    let wanted = seen_in(&objects, Some("q5:all"));
    clock.advance(48 * hour);
    // A plan while the only snapshot has the variant names nothing.
    let collected = collect(&remote(&bucket()).unwrap(), &keep, false).unwrap();
    assert_eq!((collected.pieces_planned, collected.snapshots_planned), (0, 0));
    pushed_in(&place, &bucket(), 2, &[], &Silent).unwrap();
    let collected = collect(&remote(&bucket()).unwrap(), &keep, false).unwrap();
    let of_variant = first.pieces.len() - newest(&objects).unwrap().pieces.len();
    assert_eq!((collected.pieces_planned, collected.snapshots_planned), (of_variant, 1));
    // The plan may remove these pieces, so a push names others.
    pushed_in(&place, &bucket(), 3, &["q5:all"], &Silent).unwrap();
    clock.advance(48 * hour);
    let collected = collect(&remote(&bucket()).unwrap(), &keep, false).unwrap();
    assert_eq!((collected.pieces_removed, collected.snapshots_removed), (of_variant, 1));
    assert!(seen_in(&objects, Some("q5:all")) == wanted);
}

#[test]
fn a_collection_without_the_variant_is_shown_exactly_and_an_event_says_so() {
    let place = stored();
    let objects = Arc::new(InMemory::new());
    pushed_in(&place, &quiet(&objects), 1, &["q8"], &Silent).unwrap();
    let remote = Remote::open(quiet(&objects).client()).unwrap();
    let told = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let noted = told.clone();
    let source =
        Source::new(remote, None, Box::new(move |path, text| noted.lock().push(format!("{path}: {text}"))));
    let published = Published::new(source, HashMap::new()).in_tier(Some("q5".to_owned()));
    let disk = SnapshotDisk::new(Arc::new(published));
    let store = Arc::new(Arc::new(disk).open_store().unwrap());
    assert!(files_of(&store, "acme", "m") == seen_in(&objects, None));
    assert_eq!(*told.lock(), ["acme/m: snapshot 1 has no variant q5; it is shown exactly"]);
    assert_eq!(store.collection("acme", "m").unwrap().published().unwrap(), ["", "q8"]);
}

#[test]
fn mounts_show_the_published_bytes_of_a_tier_and_say_where_they_are_computed() {
    let place = Place::new();
    // Only matrices are taken.
    let header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1536,4096],\"data_offsets\":[0,25165824]},\
                  \"b\":{\"dtype\":\"F32\",\"shape\":[1000],\"data_offsets\":[25165824,25169824]}}";
    let floats = Random(4).floats(1536 * 4096 + 1000);
    place.write("in/large.safetensors", support::safetensors_file(header, &floats));
    place.write("in/config.json", b"{}");
    support::run([Path::new("init"), &place.store()]).ok();
    place.import("acme/m", &[&place.path("in")], &[]);
    fs::create_dir(place.path("bucket")).unwrap();
    let url = format!("file://{}", place.path("bucket").display());
    let published = mounted::Remote { place, url };
    published.push(&["--create"]);
    published.push(&["--variants", "q5"]);
    let place = &published.place;
    let listed = answer(tierfs().args(["log", &published.url, "acme/m"])).ok();
    assert!(listed.lines().any(|line| line.contains(" q5 ")), "{listed}");
    let checked = answer(tierfs().args(["fsck", &published.url])).ok();
    assert!(checked.starts_with("1 collections with 1 variants, "), "{checked}");
    let summed = answer(tierfs().args(["du", &published.url, "acme/m", "--variants", "--json"])).json();
    let sums = |form: usize| {
        ["variant", "bytes_stored", "bytes_shared", "bytes_unique"].map(|key| summed[form][key].clone())
    };
    let [[exact, stored, shared, unique], of_variant] = [sums(0), sums(1)];
    assert_eq!((exact.as_str(), of_variant[0].as_str()), (Some("exact"), Some("q5")));
    // The 24 MiB that are encoded are the collection's alone, and the variant has little but its tier file.
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    assert_eq!(
        [number(&stored), number(&of_variant[1])],
        [number(&shared) + number(&unique), number(&of_variant[2]) + number(&of_variant[3])]
    );
    assert_eq!(shared, of_variant[2]);
    assert!(number(&unique) > 24 << 20 && number(&shared) < 64 << 10, "{summed}");
    assert!(number(&of_variant[3]) < 6 << 20, "{summed}");
    let stated = answer(tierfs().args(["stat", &published.url, "acme/m"])).ok();
    assert!(stated.lines().any(|line| line == "variants      exact q5"), "{stated}");
    let local = place.mount(&["--read-only"]);
    let files = support::files_below(&local.path("acme/m"));
    // Only the variant's bytes are there: the pieces of data files are gone.
    let mut removed = 0;
    let remote = Remote::open(tierfs::remote::client::Client::open(&published.url).unwrap()).unwrap();
    let manifest = remote.manifest("acme", "m", 2).unwrap().unwrap().manifest;
    let own = manifest.files_of(None).unwrap().into_iter().map(|(_, file)| file);
    let large = own.max_by_key(|file| file.bytes).unwrap();
    for extent in &large.extents {
        let piece = &manifest.pieces[extent.piece as usize];
        // The header and the small tensor stay exact.
        if extent.offset > 0 && piece.raw == 8 << 20 {
            let key = tierfs::format::snapshot::keys::piece(&piece.name);
            removed += usize::from(fs::remove_file(place.path("bucket").join(key)).is_ok());
        }
    }
    assert!(removed >= 1, "{removed} pieces");
    let in_tier = |tier: &str| local.path("acme/m/.as").join(tier);
    let remote_mount = published.mount(&[]);
    for below in &files {
        let found = fs::read(remote_mount.path("acme/m/.as/q5").join(below)).unwrap();
        assert_same(&found, &fs::read(in_tier("q5").join(below)).unwrap(), &below.display().to_string());
    }
    let why = |tier: &str| {
        let path = remote_mount.path("acme/m/.as").join(tier).join("large.safetensors");
        support::try_get(&path, "why")
    };
    assert!(why("q5").is_err());
    assert!(why("q8").unwrap().contains("computed from the exact ones"));
    assert!(fs::read(remote_mount.path("acme/m/.as/q8/large.safetensors")).is_err());
    remote_mount.unmount();
    let mounted = published.mount(&["--tier", "warm5"]);
    for below in &files {
        let found = fs::read(mounted.path("acme/m").join(below)).unwrap();
        assert_same(&found, &fs::read(in_tier("q5").join(below)).unwrap(), &below.display().to_string());
    }
    // Other forms of the variant, and a tensor.
    let moved = fs::read(in_tier("q5").join("large.safetensors")).unwrap();
    let tensors: HashMap<String, Vec<u8>> = support::tensors_of(&moved).into_iter().collect();
    let tensor = |below: &str| fs::read(mounted.path("acme/m").join(below)).unwrap();
    assert_same(&tensor(".tensors/large.safetensors/a"), &tensors["a"], "a tensor");
    assert_same(&tensor(".as/npy/a.npy")[4096..], &tensors["a"], "an array");
    assert_same(&tensor(".as/q5/large.safetensors"), &moved, "the form of the tier that is shown");
    let sums = String::from_utf8(tensor(".as/sha256/SHA256SUMS")).unwrap();
    let digest =
        answer(std::process::Command::new("sha256sum").arg(in_tier("q5").join("large.safetensors"))).ok();
    assert!(sums.contains(&digest[..64]), "{sums}");
    assert_eq!(support::get(&mounted.path("acme/m"), "variants"), "q5 exact");
    mounted.unmount();
    local.unmount();
}
