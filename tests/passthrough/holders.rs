//! Each operation that changes bytes of a file, while each holder sees them: the table of `Change`, cell by cell.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use support::{
    Mapping, Mounted, Place, Random, answer, assert_same, container_of, open_direct, run, set, tierfs,
    wait_until,
};
use tierfs::store::disk::change::{Change, Holder, Kept};

/// Of at least 1 MiB, so that it may get a decoded copy.
const ELEMENTS: usize = 300_000;

/// A collection with one file for a cell of the table.
struct Cell<'a> {
    mounted: &'a Mounted,
    collection: String,
    bytes: Vec<u8>,
    context: String,
}

/// Reads what a holder sees, as long as it lives.
type Seen = Box<dyn Fn() -> Vec<u8>>;

impl<'a> Cell<'a> {
    fn new(mounted: &'a Mounted, context: String, number: usize) -> Cell<'a> {
        let collection = format!("t/c{number}");
        fs::create_dir_all(mounted.path(&collection)).unwrap();
        let bytes = container_of(&mut Random(number as u64), &[("w", ELEMENTS)]);
        let cell = Cell { mounted, collection, bytes, context };
        fs::write(cell.path("m.safetensors"), &cell.bytes).unwrap();
        cell.sync();
        cell
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mounted.path(&self.collection).join(name)
    }

    fn file(&self) -> PathBuf {
        self.path("m.safetensors")
    }

    fn sync(&self) {
        // Another file: absent bytes cannot be opened.
        let beside = fs::OpenOptions::new().create(true).append(true).open(self.path("beside")).unwrap();
        beside.sync_all().unwrap();
    }

    /// Bytes that the data files of the collection take on the disk.
    fn allocated(&self) -> u64 {
        let data = self.mounted.store.join(&self.collection).join("data");
        let files = fs::read_dir(data).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).map(|found| found.blocks() * 512).sum()
    }

    fn in_tier_file(&self) -> usize {
        let blocks = fs::read_to_string(self.path(".ctl/blocks/m.safetensors")).unwrap();
        blocks.lines().filter(|line| line.contains("file=tier0.dat")).count()
    }

    fn compact(&self) {
        self.mounted.job(&format!("{}/.ctl/compact", self.collection), "start");
    }

    /// Opens a file until the kernel reads it, which `counter` counts.
    fn opened<T>(&self, counter: &str, open: impl Fn() -> T) -> T {
        let mut opened = None;
        wait_until(&format!("{}: an open by the kernel", self.context), || {
            drop(fs::read(self.file()).unwrap());
            let before = self.mounted.counter(counter);
            opened = Some(open());
            self.mounted.counter(counter) > before
        });
        opened.unwrap()
    }

    fn hold(&self, holder: Holder) -> Seen {
        let path = self.file();
        let whole = |file: &File| {
            let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            bytes
        };
        let mapped = |flags: i32, with_descriptor: bool| -> Seen {
            let (file, mapping) =
                self.opened("passthrough_opens", || (File::open(&path).unwrap(), Mapping::of(&path, flags)));
            let file = with_descriptor.then_some(file);
            let len = self.bytes.len();
            Box::new(move || {
                let _kept = &file;
                mapping.bytes()[..len].to_vec()
            })
        };
        match holder {
            Holder::Descriptor => {
                let file = open_direct(&path);
                Box::new(move || whole(&file))
            }
            Holder::KernelDescriptor => {
                let file = self.opened("passthrough_opens", || File::open(&path).unwrap());
                // Its length is current, its bytes are not.
                let len = self.bytes.len();
                Box::new(move || {
                    let mut bytes = vec![0; len];
                    file.read_exact_at(&mut bytes, 0).unwrap();
                    bytes
                })
            }
            Holder::Mapping => mapped(libc::MAP_SHARED, true),
            Holder::MappingAlone | Holder::Clone => mapped(libc::MAP_SHARED, false),
            Holder::PrivateMapping => mapped(libc::MAP_PRIVATE, true),
            Holder::PrivateMappingAlone => mapped(libc::MAP_PRIVATE, false),
            Holder::DecodedCopy => {
                set(&path, "cache", "decoded").unwrap();
                set(&path, "tier", "packed:all").unwrap();
                let mapping = self.opened("decoded_hits", || Mapping::of(&path, libc::MAP_SHARED));
                set(&path, "tier", "verbatim:all").unwrap();
                Box::new(move || mapping.bytes().to_vec())
            }
            Holder::PinnedCopy => {
                set(&path, "pin", "1").unwrap();
                let seen = mapped(libc::MAP_SHARED, false);
                set(&path, "pin", "0").unwrap();
                seen
            }
            Holder::Sharing => {
                let other = self.path("other.safetensors");
                fs::write(&other, &self.bytes).unwrap();
                self.sync();
                drop(fs::read(&other).unwrap());
                let mapping = Mapping::of(&other, libc::MAP_SHARED);
                let other = Removed(other);
                Box::new(move || {
                    assert_same(&fs::read(&other.0).unwrap(), mapping.bytes(), "the other name");
                    mapping.bytes().to_vec()
                })
            }
            Holder::Child | Holder::Frozen => unreachable!("{holder:?} has a test of its own"),
        }
    }

    /// Overwrites a part of the file.
    fn overwrite(&self) {
        let file = fs::OpenOptions::new().write(true).open(self.file()).unwrap();
        file.write_all_at(&[0x3c; 400_000], (self.bytes.len() - 500_000) as u64).unwrap();
        file.sync_all().unwrap();
    }

    fn change(&self, change: Change) {
        let path = self.file();
        match change {
            Change::Reclaim => set(&path, "tier", "q8:all:lossy").unwrap(),
            Change::PunchLeft => {
                // The other name keeps the stretches from being reclaimed.
                let other = self.path("second.safetensors");
                fs::write(&other, &self.bytes).unwrap();
                self.sync();
                set(&path, "tier", "q8:all:lossy").unwrap();
                self.sync();
                fs::remove_file(&other).unwrap();
                self.sync();
                self.compact();
            }
            Change::Return => {
                self.overwrite();
                self.compact();
            }
            Change::Append => {
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                let end = self.bytes.len() as u64;
                file.write_all_at(&[7; 70_000], end).unwrap();
                file.write_all_at(&[9; 70_000], end + 3).unwrap();
                file.sync_all().unwrap();
                file.set_len(end + 10).unwrap();
                file.set_len(end + 200_000).unwrap();
                file.sync_all().unwrap();
                file.set_len(end).unwrap();
                file.write_all_at(&[8; 10], end + 77).unwrap();
            }
            Change::Remove => {
                fs::rename(&path, self.path("old")).unwrap();
                fs::write(&path, b"new").unwrap();
                fs::remove_file(self.path("old")).unwrap();
            }
            Change::Slots => {
                for name in ["a", "b"] {
                    fs::write(self.path(name), vec![1; 9000]).unwrap();
                }
                self.sync();
                fs::remove_file(self.path("a")).unwrap();
                self.compact();
            }
            Change::Evict => set(&path, "evict", "1").unwrap(),
            Change::Adopt => unreachable!("it has a test of its own"),
        }
        self.sync();
    }

    /// Whether the operation has taken place.
    fn is_done(&self, change: Change, before: u64) -> bool {
        match change {
            Change::Reclaim => {
                self.sync();
                self.allocated() < before / 2
            }
            Change::PunchLeft => {
                self.compact();
                self.allocated() < before / 2
            }
            Change::Return => {
                self.compact();
                self.in_tier_file() == 0
            }
            Change::Evict => {
                set(&self.file(), "evict", "1").unwrap();
                self.allocated() < before / 2
            }
            Change::Append | Change::Remove | Change::Slots | Change::Adopt => true,
        }
    }

    fn check(&self, change: Change, holder: Holder) {
        let context = &self.context;
        let seen = self.hold(holder);
        // A descriptor of the daemon reads the file as it is.
        let expected = || match holder {
            Holder::Descriptor => fs::read(self.file()).unwrap(),
            _ => self.bytes.clone(),
        };
        assert_same(&seen(), &expected(), context);
        let before = self.allocated();
        self.change(change);
        if (change, holder) == (Change::Remove, Holder::Descriptor) {
            return assert_same(&seen(), &self.bytes, context);
        }
        assert_same(&seen(), &expected(), context);
        match change.keeps(holder) {
            Kept::Waits => {
                assert!(!self.is_done(change, before), "{context}: it did not wait");
                assert_same(&seen(), &expected(), context);
                drop(seen);
                if holder == Holder::Sharing {
                    // A compaction frees the bytes that were left to the other name.
                    return wait_until(context, || {
                        self.compact();
                        self.is_done(change, before)
                    });
                }
                wait_until(&format!("{context}: done once nobody holds it"), || self.is_done(change, before));
            }
            Kept::Apart => {
                wait_until(&format!("{context}: done at once"), || self.is_done(change, before));
                assert_same(&seen(), &expected(), context);
            }
            Kept::Never(_) => unreachable!("{context}"),
        }
    }
}

/// A file that is removed when this is dropped.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// The cells with tests of their own, which need more than a mount.
fn is_elsewhere(change: Change, holder: Holder) -> bool {
    match holder {
        // Frozen collections: tests/remote/snapshots/frozen.rs.
        Holder::Child | Holder::Frozen => true,
        // Below.
        _ => matches!(change, Change::Evict | Change::Adopt) != (holder == Holder::Clone),
    }
}

#[test]
fn no_holder_of_a_file_sees_its_bytes_change() {
    let place = Place::new();
    let mounted = place.mount(&["--create", "-o", "decoded_cache=64M"]);
    let mut number = 0;
    for change in Change::ALL {
        for holder in Holder::ALL {
            let is_never = matches!(change.keeps(holder), Kept::Never(_));
            if is_never || is_elsewhere(change, holder) || holder == Holder::Clone {
                continue;
            }
            number += 1;
            let context = format!("{change:?} while held by {holder:?}");
            eprintln!("{context}");
            Cell::new(&mounted, context, number).check(change, holder);
        }
    }
    assert!(number >= 50, "{number} cells");
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn a_child_reads_the_same_through_each_operation_on_its_parent_that_is_not_refused() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    for (number, change) in (1..).zip(Change::ALL) {
        let context = format!("{change:?} while held by a child");
        let cell = Cell::new(&mounted, context.clone(), number);
        // Blocks in slots, which a compaction writes back.
        cell.overwrite();
        let mut child = fs::read(cell.file()).unwrap();
        for at in (child.len() - 900_000..child.len()).step_by(40_000) {
            child[at] ^= 1;
        }
        let source = place.write(&format!("{number}/m.safetensors"), &child);
        let options = ["--parent", &cell.collection, "--reconstruct", "delta"];
        let tuned = format!("t/tuned{number}");
        answer(tierfs().arg("import").arg(&mounted.store).arg(&tuned).arg(&source).args(options)).ok();
        let seen = || fs::read(mounted.path(&tuned).join("m.safetensors")).unwrap();
        assert_same(&seen(), &child, &context);
        let write = || fs::OpenOptions::new().write(true).open(cell.file()).map(drop);
        let refused = match change {
            Change::Reclaim | Change::PunchLeft => {
                set(&cell.file(), "tier", "q8:all:lossy").map_err(Into::into)
            }
            Change::Append => write(),
            Change::Remove => {
                fs::rename(cell.file(), cell.path("old")).and(fs::remove_file(cell.path("old")))
            }
            // Not of a clone.
            Change::Evict | Change::Adopt => continue,
            Change::Return | Change::Slots => Ok(()),
        };
        match change.keeps(Holder::Child) {
            Kept::Never(_) => {
                let error = refused.expect_err(&context);
                assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{context}");
            }
            _ => {
                cell.compact();
                wait_until(&context, || change != Change::Return || cell.is_done(change, 0));
            }
        }
        assert_same(&seen(), &child, &context);
    }
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

/// A store with a clone of a collection, and the URL of its remote.
fn cloned(bytes: &[u8]) -> (Place, Place, String) {
    let (source, place) = (Place::new(), Place::new());
    source.import("t/c0", &[&source.write("m.safetensors", bytes)], &[]);
    let url = format!("file://{}", source.path("remote").display());
    fs::create_dir_all(source.path("remote")).unwrap();
    answer(tierfs().arg("push").arg(source.store()).args(["t/c0", &url, "--create"])).ok();
    run([Path::new("init"), &place.store()]).ok();
    answer(tierfs().args(["clone", &url, "t/c0"]).arg(place.store())).ok();
    (source, place, url)
}

#[test]
fn no_holder_of_a_file_in_a_clone_sees_its_bytes_change() {
    let bytes = container_of(&mut Random(0), &[("w", ELEMENTS)]);
    for change in [Change::Evict, Change::Reclaim, Change::Return] {
        for holder in [Holder::Descriptor, Holder::KernelDescriptor, Holder::PrivateMapping, Holder::Clone] {
            if change != Change::Evict && holder != Holder::Clone {
                continue;
            }
            let (_source, place, _) = cloned(&bytes);
            let mounted = place.mount(&[]);
            let context = format!("{change:?} in a clone while held by {holder:?}");
            let cell =
                Cell { mounted: &mounted, collection: "t/c0".to_owned(), bytes: bytes.clone(), context };
            drop(fs::read(cell.file()).unwrap());
            cell.check(change, holder);
            mounted.unmount();
            run(["fsck".as_ref(), place.store().as_os_str()]).ok();
        }
    }
}

#[test]
fn a_push_from_a_clone_leaves_what_each_holder_sees() {
    let bytes = container_of(&mut Random(0), &[("w", ELEMENTS)]);
    for holder in [
        Holder::Descriptor,
        Holder::KernelDescriptor,
        Holder::Mapping,
        Holder::Clone,
        Holder::PrivateMapping,
        Holder::PrivateMappingAlone,
        Holder::DecodedCopy,
        Holder::PinnedCopy,
    ] {
        let (_source, place, url) = cloned(&bytes);
        let mounted = place.mount(&["-o", "decoded_cache=64M"]);
        let context = format!("a push of a clone while held by {holder:?}");
        let cell = Cell { mounted: &mounted, collection: "t/c0".to_owned(), bytes: bytes.clone(), context };
        drop(fs::read(cell.file()).unwrap());
        let seen = cell.hold(holder);
        cell.overwrite();
        let now = fs::read(cell.file()).unwrap();
        let expected = if holder == Holder::Descriptor { &now } else { &bytes };
        let push = || answer(tierfs().arg("push").arg(&mounted.store).args(["t/c0", &url])).ok();
        for _ in 0..2 {
            push();
            assert_same(&seen(), expected, &cell.context);
        }
        drop(seen);
        push();
        set(&mounted.path("t/c0"), "evict", "1").unwrap();
        assert_same(&fs::read(cell.file()).unwrap(), &now, &cell.context);
        mounted.unmount();
        run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    }
}

#[test]
fn a_mapping_outlives_the_daemon_and_what_it_shows_stays_until_it_ends() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    let cell = Cell::new(&mounted, "killed".to_owned(), 1);
    let seen = cell.hold(Holder::MappingAlone);
    let before = cell.allocated();
    cell.change(Change::Reclaim);
    mounted.kill();
    drop(cell);
    // The kernel keeps the files of a mount until that ends.
    drop(mounted);
    // The new daemon knows nothing of the mapping, and its log names the freed space.
    let again = place.mount_on("again", &[]);
    let bytes = container_of(&mut Random(1), &[("w", ELEMENTS)]);
    let context = "after a kill".to_owned();
    let cell = Cell { mounted: &again, collection: "t/c1".to_owned(), bytes, context };
    cell.compact();
    assert_same(&seen(), &cell.bytes, "after a kill and a compaction");
    assert!(cell.allocated() >= before, "{} of {before}", cell.allocated());
    drop(seen);
    wait_until("the space goes", || {
        cell.compact();
        cell.is_done(Change::Reclaim, before)
    });
    again.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

#[test]
fn moves_packs_evictions_and_overwrites_leave_what_a_mapping_shows() {
    let place = Place::new();
    let mounted = place.mount(&["--create"]);
    for (number, what) in (1..).zip(["tier", "packed", "discard", "overwrite", "truncate"]) {
        let cell = Cell::new(&mounted, what.to_owned(), number);
        let seen = cell.hold(Holder::MappingAlone);
        let before = cell.allocated();
        match what {
            "tier" => set(&cell.file(), "tier", "q3:all:lossy").unwrap(),
            "packed" => set(&cell.file(), "tier", "packed:all").unwrap(),
            "discard" => {
                set(&cell.file(), "lossy", "allow").unwrap();
                set(&cell.file(), "evict", "discard").unwrap();
            }
            "overwrite" => cell.overwrite(),
            _ => support::truncate(&cell.file(), 10).unwrap(),
        }
        for _ in 0..3 {
            cell.sync();
            assert_same(&seen(), &cell.bytes, what);
        }
        assert!(cell.allocated() >= before, "{what}: {} of {before}", cell.allocated());
        drop(seen);
        wait_until(&format!("{what}: the space goes"), || {
            cell.sync();
            cell.allocated() < before || what == "truncate"
        });
    }
    mounted.unmount();
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}
