//! A mount that follows a remote: names lead to one snapshot at a time, open files and mappings keep theirs.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memmap2::Mmap;
use support::{Mounted, Place, answer, get, tierfs, wait_until};

const NAMES: [&str; 2] = ["first.bin", "deep/second.bin"];
/// More than the kernel reads at a time.
const NUMBERS: usize = 200_000;

/// A file that has nothing but this number.
fn file_of(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(NUMBERS)
}

/// The number of which a file consists; a mixture fails the test.
fn number_of(bytes: &[u8]) -> u64 {
    assert_eq!(bytes.len(), 8 * NUMBERS);
    let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes.chunks_exact(8).all(|chunk| chunk == number.to_le_bytes()), "two snapshots in one file");
    number
}

struct Published {
    place: Place,
    url: String,
}

impl Published {
    fn new() -> Published {
        let place = Place::new();
        support::run([Path::new("init"), &place.store()]).ok();
        fs::create_dir(place.path("bucket")).unwrap();
        let url = format!("file://{}", place.path("bucket").display());
        Published { place, url }
    }

    /// Publishes the files of a number. The snapshot has the same number.
    fn publish(&self, collection: &str, number: u64) {
        for name in NAMES {
            self.place.write(&format!("in/{name}"), file_of(number));
        }
        self.place.import(collection, &[&self.place.path("in")], &[]);
        let mut command = tierfs();
        command.arg("push").arg(self.place.store()).args([collection, &self.url, "--create", "--json"]);
        assert_eq!(answer(&mut command).json()["snapshot"], number);
    }

    fn mount(&self, period: &str) -> Mounted {
        let cache = self.place.path("cache");
        let options = ["--cache", cache.to_str().unwrap(), "--follow", period];
        self.place.mount_store_by(&mut tierfs(), (&self.url).into(), "remote", &options)
    }
}

fn shown(mounted: &Mounted, collection: &str) -> u64 {
    get(&mounted.path(collection), "snapshot").parse().unwrap()
}

#[test]
fn a_hundred_snapshots_are_shown_one_after_the_other_and_never_two_at_a_time() {
    const LAST: u64 = 101;
    let published = Published::new();
    published.publish("acme/m", 1);
    let mounted = published.mount("0.1");
    let (ended, compared) = (AtomicBool::new(false), AtomicU64::new(0));
    let root = mounted.path("acme/m");
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (root, ended, compared) = (&root, &ended, &compared);
            scope.spawn(move || {
                let mut last = 0;
                while !ended.load(Ordering::Relaxed) {
                    // The way that a program reads all of one snapshot.
                    let Ok(before) = attribute(root) else { continue };
                    let read = NAMES.map(|name| fs::read(root.join(name)));
                    let Ok(after) = attribute(root) else { continue };
                    let [Ok(first), Ok(second)] = read else { continue };
                    let (first, second) = (number_of(&first), number_of(&second));
                    assert!(first >= last && second >= first, "reader {reader}: {last}, {first}, {second}");
                    last = second;
                    if before == after {
                        assert_eq!((first, second), (before, before));
                        compared.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut kept: Vec<(u64, fs::File, Mmap)> = Vec::new();
        for number in 1..=LAST {
            if number > 1 {
                published.publish("acme/m", number);
            }
            let begun = Instant::now();
            wait_until("the snapshot is shown", || attribute(&root) == Ok(number));
            assert!(begun.elapsed() < Duration::from_secs(5));
            if number % 10 == 1 {
                let file = fs::File::open(root.join(NAMES[1])).unwrap();
                // SAFETY: nobody changes a snapshot.
                let mapping = unsafe { Mmap::map(&file).unwrap() };
                kept.push((number, file, mapping));
            }
        }
        for (number, file, mapping) in &mut kept {
            assert_eq!(number_of(mapping), *number, "a mapping");
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(number_of(&bytes), *number, "an open file");
        }
        ended.store(true, Ordering::Relaxed);
    });
    println!("{} comparisons", compared.load(Ordering::Relaxed));
    assert!(compared.load(Ordering::Relaxed) > 100);
    let told = support::events(&mounted, "snapshot");
    let texts: Vec<&str> = told.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(texts.len(), 100, "{texts:?}");
    assert!(told.iter().all(|event| event["path"] == "acme/m"));
    assert_eq!((texts[0], texts[99]), ("shows snapshot 2", "shows snapshot 101"));
    mounted.unmount();
}

/// The attribute `snapshot`, or the error.
fn attribute(root: &Path) -> Result<u64, String> {
    let mut value = [0; 32];
    let len =
        rustix::fs::getxattr(root, "user.tierfs.snapshot", &mut value).map_err(|error| error.to_string())?;
    String::from_utf8_lossy(&value[..len]).parse().map_err(|_| "no number".to_owned())
}

#[test]
fn a_signal_shows_new_snapshots_at_once_and_one_request_a_period_serves_all_collections() {
    let published = Published::new();
    for collection in ["acme/a", "acme/b", "other/c"] {
        published.publish(collection, 1);
    }
    let mounted = published.mount("3600");
    for collection in ["acme/a", "acme/b", "other/c"] {
        assert_eq!(shown(&mounted, collection), 1);
    }
    published.publish("acme/a", 2);
    published.publish("other/c", 2);
    assert_eq!((shown(&mounted, "acme/a"), shown(&mounted, "other/c")), (1, 1));
    let process: i32 = fs::read_to_string(mounted.path(".ctl/config"))
        .unwrap()
        .lines()
        .find_map(|line| line.strip_prefix("process = ")?.parse().ok())
        .unwrap();
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::HUP).unwrap();
    wait_until("the signal is answered", || {
        shown(&mounted, "acme/a") == 2 && shown(&mounted, "other/c") == 2
    });
    assert_eq!(shown(&mounted, "acme/b"), 1);
    mounted.unmount();
    let mounted = published.mount("0.1");
    for collection in ["acme/a", "acme/b", "other/c"] {
        shown(&mounted, collection);
    }
    let requests = || mounted.stats()["remote"]["requests"].as_u64().unwrap();
    // The first look is at each collection.
    let first = requests();
    wait_until("it has looked", || requests() > first + 8);
    let (before, begun) = (requests(), Instant::now());
    wait_until("it has looked often", || requests() >= before + 20);
    let periods = begun.elapsed().as_secs_f64() / 0.1;
    assert!(periods > 18.0, "20 requests in {periods} periods");
    mounted.unmount();
}

#[test]
fn a_push_that_could_not_say_so_is_shown_after_a_while() {
    let published = Published::new();
    published.publish("acme/m", 1);
    let mounted = published.mount("0.2");
    assert_eq!(shown(&mounted, "acme/m"), 1);
    let mark = published.place.path("bucket/tierfs.pushed");
    let before = fs::read(&mark).unwrap();
    published.publish("acme/m", 2);
    // As if the push had been killed before it wrote the hint.
    fs::write(&mark, before).unwrap();
    wait_until("the snapshot is shown", || attribute(&mounted.path("acme/m")) == Ok(2));
    // No hint at all: the object is another one, or none.
    published.publish("acme/m", 3);
    fs::write(&mark, [b'x'; 100]).unwrap();
    wait_until("the snapshot is shown", || attribute(&mounted.path("acme/m")) == Ok(3));
    published.publish("acme/m", 4);
    fs::remove_file(&mark).unwrap();
    wait_until("the snapshot is shown", || attribute(&mounted.path("acme/m")) == Ok(4));
    mounted.unmount();
}
