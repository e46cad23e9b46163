//! `tierfs fsck --repair` keeps readable bytes bit for bit and names exactly the unreadable ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::stores::copied;
use crate::trace::{Fault, Point, points, traced};
use support::{Answer, Mounted, Place, Random, assert_same, ended, npy_file, run, wait_until};

/// Bytes of a block of these files, and of the payload of such a block of f32 in q8.
const BLOCK: u64 = 16 << 10;
const PAYLOAD: u64 = 64 * 68;
/// Offset of the elements in an array.
const HEADER: u64 = 128;
const PLAIN: u64 = 200_000;
const ELEMENTS: u64 = 20_000;

type Contents = BTreeMap<&'static str, Vec<u8>>;

fn fsck(store: &Path, options: &[&str]) -> Answer {
    run(["fsck".as_ref(), store.as_os_str()].into_iter().chain(options.iter().map(|option| option.as_ref())))
}

/// A store of a plain file, an encoded array and a small file, and their contents.
fn made(place: &Place) -> Contents {
    let mut random = Random(11);
    let array = npy_file(&random.floats(ELEMENTS as usize));
    assert_eq!(array.len() as u64, HEADER + ELEMENTS * 4);
    let sources = [("plain", random.bytes(PLAIN as usize)), ("w.npy", array), ("small", random.bytes(3000))];
    for (name, bytes) in &sources {
        let source = place.write(name, bytes);
        place.import("demo/c", &[&source], &["--tier", "q8:all"]);
    }
    let mounted = place.mount(&[]);
    let contents = ["plain", "w.npy", "w", "small"]
        .map(|name| (name, fs::read(mounted.path(Path::new("demo/c").join(name))).unwrap()))
        .into();
    mounted.unmount();
    contents
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x5a], at).unwrap();
}

/// Ranges of lost bytes by path; adjacent ranges are joined.
type Ranges = BTreeMap<String, Vec<[u64; 2]>>;

fn ranges_of(blocks: &BTreeSet<u64>, bytes: u64, skip: u64) -> Vec<[u64; 2]> {
    let mut out: Vec<[u64; 2]> = Vec::new();
    for block in blocks {
        let range = [skip + block * BLOCK, skip + ((block + 1) * BLOCK).min(bytes)];
        match out.last_mut().filter(|last| last[1] == range[0]) {
            Some(last) => last[1] = range[1],
            None => out.push(range),
        }
    }
    out
}

fn lost_in(report: &Value) -> Ranges {
    let lost = report["repaired"][0]["lost"].as_array().unwrap();
    lost.iter()
        .map(|lost| {
            let ranges = serde_json::from_value(lost["ranges"].clone()).unwrap();
            (lost["path"].as_str().unwrap().to_owned(), ranges)
        })
        .collect()
}

/// Every intact byte reads as before, and every lost page is an error.
fn check_ranges(mounted: &Mounted, contents: &Contents, lost: &Ranges, context: &str) {
    for (name, bytes) in contents {
        let file = File::open(mounted.path(Path::new("demo/c").join(name))).unwrap();
        let is_lost = |at: u64| {
            lost.get(*name)
                .is_some_and(|ranges| ranges.iter().any(|range| (range[0]..range[1]).contains(&at)))
        };
        let mut at = 0;
        while at < bytes.len() as u64 {
            // Pieces on one side of each border: the kernel reads whole pages, and a page with lost bytes is an error.
            let end = (at / 4096 * 4096 + 4096).min(bytes.len() as u64);
            let mut page = vec![0; (end - at) as usize];
            let read = file.read_exact_at(&mut page, at);
            let any = (at..end).any(is_lost);
            assert_eq!(read.is_err(), any, "{context}: {name} at {at}: {read:?}");
            if !any {
                assert_same(&page, &bytes[at as usize..end as usize], &format!("{context}: {name} at {at}"));
            }
            at = end;
        }
    }
}

/// Runs a repair and returns its report; checks that the store is clean and writable afterwards.
fn repaired(place: &Place, store: &Path, contents: &Contents, context: &str) -> Value {
    let unchanged = fsck(store, &[]);
    assert_eq!(unchanged.code, Some(3), "{context}: {unchanged:?}");
    assert!(unchanged.out.contains("not repaired"), "{context}: {unchanged:?}");
    let log = fs::read(store.join("demo/c/meta.log")).unwrap();
    let answer = fsck(store, &["--repair", "--json"]);
    assert_eq!(answer.code, Some(3), "{context}: {answer:?}");
    let report: Value = serde_json::from_str(&answer.out).unwrap();
    assert!(report["not_repaired"].as_array().unwrap().is_empty(), "{context}: {report}");
    let kept = report["repaired"][0]["log"].as_str().unwrap();
    assert_eq!(kept, "demo/c/meta.log.damaged-1", "{context}");
    assert_same(&fs::read(store.join(kept)).unwrap(), &log, context);
    fsck(store, &[]).ok();
    // A second repair finds and changes nothing.
    let before = fs::read(store.join("demo/c/meta.log")).unwrap();
    fsck(store, &["--repair"]).ok();
    assert_same(&fs::read(store.join("demo/c/meta.log")).unwrap(), &before, context);
    let lost = lost_in(&report);
    let mounted = mount(place, store);
    check_ranges(&mounted, contents, &lost, context);
    for name in lost.keys() {
        let mut why = [0_u8; 512];
        let path = mounted.path(Path::new("demo/c").join(name));
        let len = rustix::fs::getxattr(&path, "user.tierfs.why", &mut why).unwrap();
        assert!(String::from_utf8_lossy(&why[..len]).contains("were lost"), "{context}: {name}");
    }
    let bytes = Random(4).bytes(50_000);
    fs::write(mounted.path("demo/c/after"), &bytes).unwrap();
    assert_same(&fs::read(mounted.path("demo/c/after")).unwrap(), &bytes, context);
    mounted.unmount();
    fsck(store, &[]).ok();
    report
}

fn mount(place: &Place, store: &Path) -> Mounted {
    // A place mounts its own store, so this store takes its name.
    let own = place.store();
    let aside = place.path("aside");
    fs::rename(&own, &aside).unwrap();
    std::os::unix::fs::symlink(store, &own).unwrap();
    let mounted = place.mount(&[]);
    fs::remove_file(&own).unwrap();
    fs::rename(&aside, &own).unwrap();
    mounted
}

fn data_file(store: &Path) -> std::path::PathBuf {
    let mut found = fs::read_dir(store.join("demo/c/data")).unwrap().map(|entry| entry.unwrap().path());
    found.find(|path| fs::metadata(path).unwrap().len() == PLAIN).unwrap()
}

/// The losses that a repair must name if these blocks of the plain file and of the array are bad.
fn expected(plain: &BTreeSet<u64>, array: &BTreeSet<u64>) -> Ranges {
    let mut out = Ranges::new();
    if !plain.is_empty() {
        out.insert("plain".into(), ranges_of(plain, PLAIN, 0));
    }
    if !array.is_empty() {
        out.insert("w".into(), ranges_of(array, ELEMENTS * 4, 0));
        out.insert("w.npy".into(), ranges_of(array, ELEMENTS * 4, HEADER));
    }
    out
}

#[test]
fn flipped_bytes_of_payloads_lose_only_their_blocks() {
    let place = Place::new();
    let contents = made(&place);
    let mut random = Random(5);
    for round in 0..12 {
        let store = copied(&place, &place.store());
        let (mut plain, mut array) = (BTreeSet::new(), BTreeSet::new());
        for _ in 0..=random.below(4) {
            if round % 3 != 1 {
                let at = random.below(PLAIN as usize) as u64;
                if plain.insert(at / BLOCK) {
                    flip(&data_file(&store), at);
                }
            }
            if round % 3 != 0 {
                let at = random.below((ELEMENTS * 4 / BLOCK * PAYLOAD) as usize) as u64;
                if array.insert(at / PAYLOAD) {
                    flip(&store.join("demo/c/tier1.dat"), at);
                }
            }
        }
        let report = repaired(&place, &store, &contents, &format!("round {round}"));
        assert_eq!(lost_in(&report), expected(&plain, &array), "round {round}");
    }
}

#[test]
fn truncated_or_missing_store_files_lose_only_their_content() {
    let place = Place::new();
    let contents = made(&place);
    let blocks = |from: u64, bytes: u64| (from..bytes.div_ceil(BLOCK)).collect::<BTreeSet<u64>>();
    let none = BTreeSet::new();
    for (what, lost) in [
        ("data cut", expected(&blocks(6, PLAIN), &none)),
        ("data gone", expected(&blocks(0, PLAIN), &none)),
        ("tier cut", expected(&none, &blocks(2, ELEMENTS * 4))),
        ("tier gone", expected(&none, &blocks(0, ELEMENTS * 4))),
    ] {
        let store = copied(&place, &place.store());
        let tier = store.join("demo/c/tier1.dat");
        let cut = |path: &Path, len| File::options().write(true).open(path).unwrap().set_len(len).unwrap();
        match what {
            "data cut" => cut(&data_file(&store), 6 * BLOCK + 5),
            "data gone" => fs::remove_file(data_file(&store)).unwrap(),
            "tier cut" => cut(&tier, 2 * PAYLOAD + 100),
            _ => fs::remove_file(&tier).unwrap(),
        }
        let report = repaired(&place, &store, &contents, what);
        assert_eq!(lost_in(&report), lost, "{what}");
        let is_whole =
            |lost: &Value| lost["path"] != "w.npy" && lost["whole"] == Value::Bool(what.contains("gone"));
        assert!(report["repaired"][0]["lost"].as_array().unwrap().iter().any(is_whole), "{what}: {report}");
    }
}

#[test]
fn a_lost_block_can_be_rewritten() {
    let place = Place::new();
    let contents = made(&place);
    flip(&data_file(&place.store()), 2 * BLOCK + 1);
    assert_eq!(fsck(&place.store(), &["--repair"]).code, Some(3));
    let mounted = place.mount(&[]);
    let range = 2 * BLOCK as usize..3 * BLOCK as usize;
    let file = File::options().write(true).open(mounted.path("demo/c/plain")).unwrap();
    // Writing a part of it would leave the rest unknown.
    let error = file.write_all_at(b"part", 2 * BLOCK + 9).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    file.write_all_at(&contents["plain"][range], 2 * BLOCK).unwrap();
    drop(file);
    assert_same(&fs::read(mounted.path("demo/c/plain")).unwrap(), &contents["plain"], "plain");
    mounted.unmount();
    assert!(!fsck(&place.store(), &[]).ok().contains("lost"));
}

#[test]
fn a_repair_of_a_damaged_log_leaves_every_file_right_or_reported() {
    let place = Place::new();
    let mut contents = made(&place);
    let mounted = place.mount(&[]);
    let mut random = Random(6);
    for name in ["one", "two", "three", "four"] {
        let bytes = random.bytes(40_000);
        fs::create_dir_all(mounted.path("demo/c/sub")).unwrap();
        fs::write(mounted.path(Path::new("demo/c").join(name)), &bytes).unwrap();
        fs::rename(mounted.path(Path::new("demo/c").join(name)), mounted.path("demo/c/sub").join(name))
            .unwrap();
        contents.insert(name, bytes);
    }
    mounted.unmount();
    let len = fs::metadata(place.store().join("demo/c/meta.log")).unwrap().len();
    let end = fs::read(place.store().join("demo/c/meta.log")).unwrap();
    // Marks follow the last batch with records: Commits (7) of no slots. Without some of them nothing is lost.
    let is_mark = |slot: &[u8]| slot[0] == 7 && slot[29..33] == [0; 4];
    let is_last = |slot: &[u8]| slot.iter().any(|byte| *byte != 0) && !is_mark(slot);
    let end = end.chunks(128).rposition(is_last).unwrap() as u64 * 128;
    assert!(end > 8000 && end < len.max(end + 1));
    let mut whole = 0;
    for sector in (0..end / 512).step_by(3) {
        let context = format!("sector {sector}");
        let store = copied(&place, &place.store());
        let log = File::options().write(true).open(store.join("demo/c/meta.log")).unwrap();
        log.write_all_at(&[0xa5; 512], sector * 512).unwrap();
        let answer = fsck(&store, &["--repair", "--json"]);
        assert_eq!(answer.code, Some(3), "{context}: {answer:?}");
        let report: Value = serde_json::from_str(&answer.out).unwrap();
        assert!(report["not_repaired"].as_array().unwrap().is_empty(), "{context}: {report}");
        fsck(&store, &[]).ok();
        let mounted = mount(&place, &store);
        let folder = mounted.path("demo/c");
        let tensors = support::files_below(&folder.join(".tensors")).into_iter();
        let tensors = tensors.map(|path| Path::new(".tensors").join(path));
        let found: BTreeSet<_> = support::files_below(&folder).into_iter().chain(tensors).collect();
        let mut seen = BTreeSet::new();
        let text = report["repaired"][0].to_string();
        for path in found {
            let Ok(bytes) = fs::read(folder.join(&path)) else {
                let shown = path.strip_prefix(".tensors").unwrap_or(&path).display().to_string();
                assert!(
                    text.contains(&shown),
                    "{context}: {shown} cannot be read and is not named: {report}"
                );
                continue;
            };
            // Empty files are versions from before the first write.
            let known = contents.iter().find(|(_, known)| **known == bytes);
            let is_head = contents["w.npy"].starts_with(&bytes);
            assert!(known.is_some() || is_head, "{context}: {} has bytes that nobody wrote", path.display());
            seen.extend(known.map(|(name, _)| *name));
        }
        let missing: Vec<_> = contents.keys().filter(|name| !seen.contains(*name)).collect();
        for name in &missing {
            let is_named = text.contains(**name) || text.contains(".lost");
            assert!(is_named, "{context}: {name} is gone and not named: {report}");
        }
        whole += usize::from(missing.is_empty());
        assert!(missing.len() <= 3, "{context}: {missing:?}");
        fs::write(folder.join("after"), b"after").unwrap();
        mounted.unmount();
        fsck(&store, &[]).ok();
    }
    assert!(whole > 3, "only {whole} sectors without a loss");
}

#[test]
fn a_repair_killed_before_any_call_can_be_repeated_without_further_loss() {
    let place = Place::new();
    let contents = made(&place);
    for at in [3 * BLOCK + 1, 7 * BLOCK] {
        flip(&data_file(&place.store()), at);
    }
    let lost = expected(&[3, 7].into(), &BTreeSet::new());
    let notes = place.path("notes");
    let repair = |store: &Path, fault: Option<(&Point, Fault)>| {
        let arguments = [Path::new("fsck"), store, Path::new("--repair")];
        ended(&mut traced(&arguments, &notes, fault).spawn().unwrap(), "a traced repair")
    };
    let store = copied(&place, &place.store());
    assert_eq!(repair(&store, None), Some(3));
    let all = points(&notes);
    assert!(all.iter().any(|point| point.call == "rename"), "{all:?}");
    for point in all {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        assert_eq!(repair(&store, Some((&point, Fault::Kill))), None, "{context}");
        let code = fsck(&store, &["--repair"]).code;
        assert!(matches!(code, Some(0 | 3)), "{context}: {code:?}");
        fsck(&store, &[]).ok();
        let mounted = mount(&place, &store);
        check_ranges(&mounted, &contents, &lost, &context);
        mounted.unmount();
    }
}

#[test]
fn a_repair_refuses_a_store_in_use_and_leaves_a_clean_store_unchanged() {
    let place = Place::new();
    made(&place);
    let log = fs::read(place.store().join("demo/c/meta.log")).unwrap();
    assert!(fsck(&place.store(), &["--repair"]).ok().contains("ok"));
    let mounted = place.mount(&["--read-only"]);
    fsck(&place.store(), &["--repair"]).failed(1, &["in use"]);
    fsck(&place.store(), &[]).ok();
    mounted.unmount();
    assert_same(&fs::read(place.store().join("demo/c/meta.log")).unwrap(), &log, "the log");
    assert_eq!(fsck(&place.store(), &["--mend"]).code, Some(2));
    // A collection without a log cannot be repaired, and its bytes stay.
    fs::remove_file(place.store().join("demo/c/meta.log")).unwrap();
    // A reader has no exclusive lock that an unmount could wait for.
    let mut answer = fsck(&place.store(), &["--repair"]);
    wait_until("the daemon has ended", || {
        answer = fsck(&place.store(), &["--repair"]);
        answer.code != Some(1)
    });
    assert_eq!(answer.code, Some(3), "{answer:?}");
    assert!(answer.out.contains("not repaired: demo/c"), "{answer:?}");
    assert_eq!(fs::metadata(data_file(&place.store())).unwrap().len(), PLAIN);
}

#[test]
fn files_with_missing_objects_are_reported_and_a_repair_lists_them_as_lost() {
    use std::sync::Arc;
    use tierfs::format::log::record::Record;
    use tierfs::store::Touched;
    use tierfs::store::disk::files::FileDisk;
    use tierfs::store::{Access, Store};

    let place = Place::new();
    let contents = made(&place);
    {
        let store = Store::open(Arc::new(FileDisk::new(&place.store())), Access::Write, "a test").unwrap();
        let collection = store.collection("demo", "c").unwrap();
        let node = {
            let state = collection.state();
            state.directory(tierfs::store::ROOT).unwrap().get(b"plain").unwrap()
        };
        let object = collection.objects_of(node).unwrap()[0].entry.id;
        // A log that removes the object and leaves the file, which no program should write.
        let delete = |batch: &mut tierfs::store::Batch, _: &_| {
            batch.record(Record::Delete { object });
            Ok(())
        };
        collection.commit(Touched::default(), delete).unwrap();
    }
    let found = fsck(&place.store(), &[]);
    assert_eq!(found.code, Some(3), "{found:?}");
    assert!(found.out.contains("demo/c/plain: 1 of its objects are missing"), "{found:?}");
    let repaired = fsck(&place.store(), &["--repair"]);
    assert_eq!(repaired.code, Some(3), "{repaired:?}");
    assert!(repaired.out.contains("lost: demo/c/plain: the whole file"), "{repaired:?}");
    assert_eq!(fsck(&place.store(), &[]).code, Some(0));
    let mounted = place.mount(&[]);
    assert!(!mounted.path("demo/c/plain").exists());
    for name in ["w.npy", "w", "small"] {
        let found = fs::read(mounted.path(Path::new("demo/c").join(name))).unwrap();
        assert_same(&found, &contents[name], name);
    }
}

#[test]
fn differences_whose_parent_was_written_again_are_proven_by_the_recorded_digest_or_stay_as_they_are() {
    let place = Place::new();
    let mut random = Random(12);
    let parent = npy_file(&random.floats(ELEMENTS as usize));
    let mut child = parent.clone();
    for at in [200, 30_000, 70_000] {
        child[at] ^= 1;
    }
    let source = place.write("p/w.npy", &parent);
    place.import("demo/base", &[&source], &[]);
    let source = place.write("q/w.npy", &child);
    place.import("demo/tuned", &[&source], &["--parent", "demo/base", "--reconstruct", "delta"]);
    let (tuned, away) = (place.store().join("demo/tuned"), place.path("away"));
    // Without the child's collection the parent can be written, once a repair forgets it.
    fs::rename(&tuned, &away).unwrap();
    fsck(&place.store(), &["--repair"]).ok();
    let write = |at: u64, bytes: &[u8]| {
        let mounted = place.mount(&[]);
        let file = File::options().write(true).open(mounted.path("demo/base/w.npy")).unwrap();
        file.write_all_at(bytes, at).unwrap();
        drop(file);
        mounted.unmount();
    };
    let other = [parent[40_000] ^ 1];
    for bytes in [&other[..], &parent[40_000..40_001]] {
        write(40_000, bytes);
        let is_proven = bytes != other;
        let store = copied(&place, &place.store());
        fs::rename(&away, store.join("demo/tuned")).unwrap();
        let broken = fsck(&store, &[]);
        assert!(broken.out.contains("of the parent has changed"), "{}", broken.out);
        let repaired = fsck(&store, &["--repair"]);
        assert_eq!(repaired.code, Some(3));
        let wanted = if is_proven { "1 problems, repaired" } else { "1 problems, 1 not repaired" };
        assert!(repaired.out.contains(wanted), "{}", repaired.out);
        let again = fsck(&store, &[]);
        let mounted = mount(&place, &store);
        let found = fs::read(mounted.path("demo/tuned/w.npy"));
        if is_proven {
            again.ok();
            assert_same(&found.unwrap(), &child, "the child");
        } else {
            assert_eq!(again.code, Some(3));
            assert_eq!(found.unwrap_err().raw_os_error(), Some(libc::EIO));
        }
        mounted.unmount();
        fs::rename(store.join("demo/tuned"), &away).unwrap();
    }
}
