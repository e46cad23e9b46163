//! Batches that are appended while a sync waits for the disk, and power cuts around them; a file that is written while it
//! is compared with others.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tierfs::model::{Owner, Result, Silent, StoreId};
use tierfs::store::disk::forward::{ForwardDisk, ForwardFile};
use tierfs::store::disk::{Disk, File, Open};
use tierfs::store::{Access, Collection, ROOT, Store, Verify};
use tierfs::vfs::open::{self, Changes, OpenFiles};

use crate::power_cut_disk::CutDisk;
use crate::recorder::Recorder;
use support::Random;

const LONG: Duration = Duration::from_secs(60);
const OWNER: Owner = Owner { uid: 0, gid: 0 };
/// More than 16 KiB, so that the file gets a data file.
const BYTES: usize = 100_000;

/// Says that a sync of a data file began, and waits until it may go on. Only the first sync does.
type Gate = Arc<Mutex<Option<(Sender<()>, Receiver<()>)>>>;

struct SlowDisk {
    inner: Recorder,
    gate: Gate,
    /// Number of writes to logs.
    batches: Arc<AtomicUsize>,
    removals: Option<Removals>,
}

impl SlowDisk {
    fn new(recorder: &Recorder, gate: &Gate) -> SlowDisk {
        SlowDisk { inner: recorder.clone(), gate: gate.clone(), batches: Arc::default(), removals: None }
    }
}

/// Removals of data files, each of which takes a while. The first one is told of.
#[derive(Clone)]
struct Removals {
    began: Sender<()>,
    count: Arc<AtomicUsize>,
}

impl Removals {
    fn one(&self) {
        if self.count.fetch_add(1, Ordering::Relaxed) == 0 {
            self.began.send(()).unwrap();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct SlowFile {
    inner: Arc<dyn File>,
    gate: Option<Gate>,
    batches: Option<Arc<AtomicUsize>>,
}

impl ForwardFile for SlowFile {
    fn inner(&self) -> &dyn File {
        &*self.inner
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(batches) = &self.batches {
            batches.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.write_at(bytes, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        let gate = self.gate.as_ref().and_then(|gate| gate.lock().unwrap().take());
        if let Some((began, goes_on)) = gate {
            began.send(()).unwrap();
            goes_on.recv_timeout(LONG).unwrap();
        }
        self.inner.sync_data()
    }
}

impl ForwardDisk for SlowDisk {
    fn inner(&self) -> &dyn Disk {
        &self.inner
    }

    fn open(&self, path: &str, how: Open) -> io::Result<Arc<dyn File>> {
        let gate = path.contains("/data/").then(|| self.gate.clone());
        let batches = path.ends_with("/meta.log").then(|| self.batches.clone());
        Ok(Arc::new(SlowFile { inner: Disk::open(&self.inner, path, how)?, gate, batches }))
    }

    fn remove_file(&self, path: &str) -> io::Result<()> {
        if path.contains("/data/") {
            self.removals.iter().for_each(Removals::one);
        }
        Disk::remove_file(&self.inner, path)
    }
}

fn write(collection: &Arc<Collection>, name: &[u8], bytes: &[u8]) {
    let known = collection.state().directory(ROOT).unwrap().get(name);
    let node = known.unwrap_or_else(|| open::create(collection, ROOT, name, 0o644, OWNER).unwrap());
    let file = OpenFiles::default().open(collection, node, Verify::First).unwrap();
    file.write(0, bytes).unwrap();
    file.flush_closed(&mut Changes::default()).unwrap();
}

fn read(collection: &Arc<Collection>, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let Some(node) = collection.state().directory(ROOT).unwrap().get(name) else { return Ok(None) };
    let file = OpenFiles::default().open(collection, node, Verify::Always)?;
    let mut bytes = vec![0; file.bytes() as usize];
    file.read(0, &mut bytes)?;
    Ok(Some(bytes))
}

/// The files after a power cut that keeps `kept` of 4 parts of what was not synced.
fn after_cut(
    recorder: &Recorder,
    count: usize,
    chance: &mut Random,
    kept: usize,
) -> [Result<Option<Vec<u8>>>; 3] {
    let cut = recorder.again(CutDisk::default(), count).cut(chance, kept);
    let store = Store::open(Arc::new(cut), Access::Write, "a test").unwrap();
    let collection = store.collection("t", "c").unwrap();
    [b"one".as_slice(), b"two", b"three"].map(|name| read(&collection, name))
}

#[test]
fn files_are_closed_while_a_sync_waits_and_each_sync_makes_all_before_it_durable() {
    let (mut random, mut chance) = (Random(5), Random(6));
    let [one, two, three, old] = [(); 4].map(|()| random.bytes(BYTES));
    let recorder = Recorder::new(CutDisk::default());
    let (began, begins) = channel();
    let (go_on, goes_on) = channel();
    let gate: Gate = Arc::default();
    let disk: Arc<dyn Disk> = Arc::new(SlowDisk::new(&recorder, &gate));
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = Store::open(disk, Access::Write, "a test").unwrap();
    let collection = store.collection_made("t", "c", OWNER).unwrap();
    write(&collection, b"three", &old);
    collection.sync().unwrap();
    let from = recorder.count();
    write(&collection, b"one", &one);
    *gate.lock().unwrap() = Some((began, goes_on));
    let (first, second) = std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            collection.sync_unmarked().unwrap();
            recorder.count()
        });
        begins.recv_timeout(LONG).unwrap();
        // With the log's lock held by the sync this would never end.
        write(&collection, b"two", &two);
        write(&collection, b"three", &three);
        let all = scope.spawn(|| {
            collection.sync().unwrap();
            recorder.count()
        });
        go_on.send(()).unwrap();
        (syncing.join().unwrap(), all.join().unwrap())
    });
    for count in from..=second {
        // A sync makes nothing durable that names bytes which are not.
        let [found_one, found_two, found_three] =
            after_cut(&recorder, count, &mut chance, 0).map(|found| match found {
                Ok(found) => found.unwrap_or_default(),
                Err(error) => panic!("change {count}: {error}"),
            });
        let is_before = count < first;
        assert!(found_one == one || is_before && found_one.is_empty(), "change {count}: the first file");
        assert!(found_two == two || found_two.is_empty(), "change {count}: the second file");
        assert!(found_three == three || found_three == old, "change {count}: the overwritten file");
        if is_before {
            continue;
        }
        let kept = 1 + chance.below(4);
        let [found_one, found_two, _] = after_cut(&recorder, count, &mut chance, kept);
        assert!(found_one.unwrap() == Some(one.clone()), "change {count}: the first sync has returned");
        // The system may have written the log before the bytes.
        if let Ok(Some(bytes)) = found_two {
            assert!(bytes.is_empty() || bytes == two, "change {count}: other bytes");
        }
    }
    let found = after_cut(&recorder, second, &mut chance, 0).map(Result::unwrap);
    assert!(found == [Some(one), Some(two), Some(three)], "the second sync has returned");
}

#[test]
fn a_file_that_is_changed_while_it_is_compared_does_not_come_to_share() {
    let same = Random(8).bytes(BYTES);
    let gate: Gate = Arc::default();
    let slow = SlowDisk::new(&Recorder::new(CutDisk::default()), &gate);
    let (batches, disk) = (slow.batches.clone(), Arc::new(slow) as Arc<dyn Disk>);
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = Store::open(disk, Access::Write, "a test").unwrap();
    let collection = store.collection_made("t", "c", OWNER).unwrap();
    let names = [b"one".as_slice(), b"written", b"flushed", b"removed", b"unchanged"];
    names.iter().for_each(|name| write(&collection, name, &same));
    collection.sync().unwrap();
    let mut expected = same.clone();
    expected[70_000..70_003].copy_from_slice(b"new");
    let table = OpenFiles::default();
    for name in &names[1..] {
        let node = collection.state().directory(ROOT).unwrap().get(name).unwrap();
        let file = table.open(&collection, node, Verify::First).unwrap();
        let (began, begins) = channel();
        let (go_on, goes_on) = channel();
        // The data file that it would share is synced after the comparison and before the batch.
        *gate.lock().unwrap() = Some((began, goes_on));
        let before = batches.load(Ordering::Relaxed);
        let shared = std::thread::scope(|scope| {
            let shares = scope.spawn(|| file.share_later(&Silent));
            begins.recv_timeout(LONG).unwrap();
            match *name {
                b"removed" => drop(open::unlink(&collection, ROOT, name).unwrap()),
                b"unchanged" => {}
                _ => file.write(70_000, b"new").unwrap(),
            }
            if *name == b"flushed" {
                file.flush_closed(&mut Changes::default()).unwrap();
            }
            go_on.send(()).unwrap();
            shares.join().unwrap()
        });
        let text = String::from_utf8_lossy(name);
        assert_eq!(shared.unwrap(), *name == b"unchanged", "{text}");
        if *name == b"unchanged" {
            // With another batch quotas would count the file twice in between.
            assert_eq!(batches.load(Ordering::Relaxed) - before, 1);
        }
        if *name != b"removed" {
            let mut found = vec![0; BYTES];
            file.read(0, &mut found).unwrap();
            assert!(found == if *name == b"unchanged" { &*same } else { &*expected }, "{text}");
            file.flush_closed(&mut Changes::default()).unwrap();
        }
    }
    assert_eq!(collection.shared_bytes().files, 2);
    assert!(read(&collection, b"written").unwrap() == Some(expected.clone()));
    assert!(read(&collection, b"flushed").unwrap() == Some(expected));
    assert!(read(&collection, b"one").unwrap() == Some(same));
}

#[test]
fn a_file_is_written_while_the_disk_takes_long_to_remove_many_others() {
    const FILES: usize = 200;
    let (recorder, mut random) = (Recorder::new(CutDisk::default()), Random(8));
    let (began, begins) = channel();
    let removals = Removals { began, count: Arc::default() };
    let slow = SlowDisk::new(&recorder, &Gate::default());
    let disk: Arc<dyn Disk> = Arc::new(SlowDisk { removals: Some(removals.clone()), ..slow });
    Store::create(&*disk, StoreId(7)).unwrap();
    let store = Store::open(disk, Access::Write, "a test").unwrap();
    let collection = store.collection_made("t", "c", OWNER).unwrap();
    let (bytes, name) = (random.bytes(BYTES), |file: usize| format!("{file}").into_bytes());
    (0..FILES).for_each(|file| write(&collection, &name(file), &bytes));
    collection.sync().unwrap();
    for file in 0..FILES {
        open::unlink(&collection, ROOT, &name(file)).unwrap();
    }
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| collection.sync().unwrap());
        begins.recv_timeout(LONG).unwrap();
        write(&collection, b"new", &bytes);
        let before = removals.count.load(Ordering::Relaxed);
        assert!(before < FILES, "it waited for all removals");
        syncing.join().unwrap();
    });
    assert_eq!(removals.count.load(Ordering::Relaxed), FILES, "a sync ends with all space given back");
    assert_eq!(read(&collection, b"new").unwrap().unwrap(), bytes);
}
