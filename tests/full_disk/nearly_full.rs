//! A disk with room for one copy of what is written: containers are taken apart where their bytes lie, removed files
//! are free at once, and what is lost at an unmount is named.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::full_store::{Small, write};
use crate::refused_calls::use_up_the_reserve;
use support::{Random, assert_same, container_of, events, npy_file, run, tensors_of, wait_until};

const MIB: usize = 1 << 20;

/// A container of `mib` MiB and a little more, with tensors whose borders lie at no round offset.
fn container(random: &mut Random, mib: usize) -> Vec<u8> {
    let elements = mib * MIB / 4;
    let sizes = [elements / 2 - 7, 3, elements / 4 + 1, elements / 4 + 3];
    container_of(random, &[("a", sizes[0]), ("b", sizes[1]), ("c", sizes[2]), ("d", sizes[3])])
}

impl Small {
    /// The file and its tensors read as they were written, and the log agrees.
    #[track_caller]
    fn check_container(&self, name: &str, bytes: &[u8]) {
        assert_same(&self.fixture.read(name), bytes, name);
        for (tensor, expected) in tensors_of(bytes) {
            assert_same(&self.fixture.read(&format!(".tensors/{tensor}")), &expected, &tensor);
        }
        let verified = fs::read_to_string(self.fixture.path(".ctl/verify").join(name)).unwrap();
        assert_eq!(verified, "ok\n", "{name}");
    }

    /// The same now and after a remount, at the end of a test.
    #[track_caller]
    fn check_to_the_end(mut self, name: &str, bytes: &[u8]) {
        self.check_container(name, bytes);
        self.fixture.remount();
        self.check_container(name, bytes);
        self.fixture.unmount();
    }

    fn taken(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.store).unwrap();
        (found.f_blocks - found.f_bfree) * found.f_frsize
    }

    /// Leaves so many bytes free.
    fn leave(&self, bytes: u64) {
        let found = rustix::fs::statvfs(&self.store).unwrap();
        let free = found.f_bfree * found.f_frsize;
        fs::write(self.filler(), vec![1; (free - bytes) as usize]).unwrap();
    }
}

fn syncs(small: &Small) {
    fs::write(small.fixture.mounted().path(".ctl/sync"), "now").unwrap();
}

/// Writes pieces in this order, with a flush of everything after each of `stops`.
fn write_pieces(small: &Small, name: &str, bytes: &[u8], piece: usize, order: &[usize], stops: usize) {
    let file = fs::File::create(small.fixture.path(name)).unwrap();
    for (place, index) in order.iter().enumerate() {
        let at = index * piece;
        let end = bytes.len().min(at + piece);
        file.write_all_at(&bytes[at..end], at as u64).unwrap();
        if place % stops == stops - 1 {
            syncs(small);
        }
    }
    // The error of a close is not visible here: that of a sync is.
    file.sync_all().unwrap();
}

#[test]
fn pieces_out_of_order_with_flushes_between_take_room_for_one_copy() {
    let mut small = Small::of_bytes(26 << 20);
    let bytes = container(&mut Random(21), 16);
    // Pieces that fit no block: some blocks are recorded in part.
    let piece = 2_100_001;
    let count = bytes.len().div_ceil(piece);
    let order: Vec<usize> = (1..count).step_by(2).chain((0..count).step_by(2)).collect();
    let before = small.taken();
    write_pieces(&small, "m.safetensors", &bytes, piece, &order, 3);
    small.check_container("m.safetensors", &bytes);
    syncs(&small);
    wait_until("the space of what moved", || {
        syncs(&small);
        small.taken() - before < (bytes.len() + 5 * MIB) as u64
    });
    small.fixture.crash();
    small.check_container("m.safetensors", &bytes);
    small.fixture.remount();
    small.check_container("m.safetensors", &bytes);
    // A compaction makes it one data file again.
    small.fixture.mounted().job("demo/m/.ctl/compact", "start");
    small.check_container("m.safetensors", &bytes);
    small.fixture.unmount();
}

#[test]
fn a_file_that_is_grown_first_and_filled_slowly_takes_room_for_one_copy() {
    let mut small = Small::of_bytes(24 << 20);
    let mut random = Random(22);
    let array = npy_file(&random.bytes(16 * MIB));
    let file = fs::File::create(small.fixture.path("x.npy")).unwrap();
    file.set_len(array.len() as u64).unwrap();
    file.write_all_at(&array[..128], 0).unwrap();
    syncs(&small);
    // Recognized, recorded and filled from several places at a time.
    let piece = 1_000_000;
    let count = array.len().div_ceil(piece);
    assert!(!count.is_multiple_of(5), "{count} pieces");
    for (place, step) in (0..count).enumerate() {
        let index = (step * 5) % count;
        let end = array.len().min((index + 1) * piece);
        file.write_all_at(&array[index * piece..end], (index * piece) as u64).unwrap();
        if place % 4 == 3 {
            syncs(&small);
        }
    }
    file.sync_all().unwrap();
    drop(file);
    for _ in 0..2 {
        assert_same(&small.fixture.read("x.npy"), &array, "the array");
        assert_same(&small.fixture.read(".tensors/x"), &array[128..], "its tensor");
        small.fixture.crash();
    }
    small.fixture.remount();
    assert_same(&small.fixture.read("x.npy"), &array, "the array");
    small.fixture.unmount();
}

#[test]
fn a_write_into_a_hole_that_a_kill_interrupts_leaves_zeros_or_the_bytes() {
    let mut small = Small::of_bytes(32 << 20);
    let bytes = container(&mut Random(23), 8);
    let path = small.fixture.path("m.safetensors");
    let file = fs::File::create(&path).unwrap();
    let (half, len) = (bytes.len() / 2, bytes.len());
    file.write_all_at(&bytes[half..], half as u64).unwrap();
    file.sync_all().unwrap();
    // Into the hole, and not recorded.
    file.write_all_at(&bytes[..half / 2], 0).unwrap();
    small.fixture.mounted().kill();
    drop(file);
    small.fixture.crash();
    let found = small.fixture.read("m.safetensors");
    assert_eq!(found.len(), len);
    assert_same(&found[half..], &bytes[half..], "what was recorded");
    for block in found[..half].chunks(4096).zip(bytes[..half].chunks(4096)) {
        assert!(block.0 == block.1 || block.0.iter().all(|byte| *byte == 0), "bytes of neither version");
    }
    // It goes on from there, as a download does.
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&bytes[..half], 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    small.check_to_the_end("m.safetensors", &bytes);
}

#[test]
fn the_new_version_of_a_container_needs_room_for_itself_only() {
    let mut small = Small::of_bytes(20 << 20);
    let mut random = Random(24);
    for round in 0..3 {
        let array = npy_file(&random.bytes(12 * MIB));
        // As `cp` and `np.save` do over a file that is there.
        let file = fs::File::create(small.fixture.path("x.npy")).unwrap();
        file.write_all_at(&array, 0).unwrap_or_else(|error| panic!("round {round}: {error}"));
        file.sync_all().unwrap_or_else(|error| panic!("round {round}: {error}"));
        drop(file);
        assert_same(&small.fixture.read("x.npy"), &array, "the array");
        if round == 1 {
            small.fixture.remount();
        }
        assert_same(&small.fixture.read(".tensors/x"), &array[128..], "its tensor");
    }
    small.fixture.unmount();
}

#[test]
fn a_move_to_fewer_bits_goes_on_in_the_space_that_it_frees() {
    let mut small = Small::of_bytes(24 << 20);
    let mut random = Random(27);
    let array = npy_file(&random.floats(4 << 20));
    assert_eq!(write(&small.fixture.path("x.npy"), &array), Ok(()));
    syncs(&small);
    small.leave(1 << 20);
    let file = small.fixture.path("x.npy");
    support::answer(support::tierfs().args(["tier", "q8:all", "--lossy"]).arg(&file)).ok();
    assert_eq!(small.fixture.attribute(".tensors/x", "tier"), "q8");
    let found = fs::read(&file).unwrap();
    small.fixture.remount();
    assert_same(&small.fixture.read("x.npy"), &found, "the array in q8");
    small.fixture.unmount();
}

#[test]
fn a_removed_model_makes_room_for_another_at_once() {
    let mut small = Small::of_bytes(24 << 20);
    let mut random = Random(25);
    let directory = small.fixture.path("");
    let free = || {
        let found = rustix::fs::statvfs(&directory).unwrap();
        found.f_bavail * found.f_frsize
    };
    for round in 0..3 {
        let bytes = container(&mut random, 14);
        let name = format!("m{round}.safetensors");
        assert_eq!(write(&small.fixture.path(&name), &bytes), Ok(()), "round {round}");
        small.check_container(&name, &bytes);
        let before = free();
        fs::remove_file(small.fixture.path(&name)).unwrap();
        // The kernel closes a file that was read at a time of its choice.
        wait_until("what was removed to count as free", || free() >= before + 13 * MIB as u64);
    }
    // Of a file that is open nothing is free.
    let bytes = random.bytes(14 * MIB);
    assert_eq!(write(&small.fixture.path("open"), &bytes), Ok(()));
    let open = fs::File::open(small.fixture.path("open")).unwrap();
    fs::remove_file(small.fixture.path("open")).unwrap();
    assert!(free() < 10 << 20);
    drop(open);
    wait_until("the close", || free() > 20 << 20);
    // An import finds the room too.
    let source = small.fixture.place.write("source/new.safetensors", container(&mut random, 14));
    small.fixture.place.try_import("demo/m", &[&source], &[]).ok();
    small.check_container("new.safetensors", &fs::read(&source).unwrap());
    small.fixture.unmount();
}

#[test]
fn a_container_without_room_to_be_taken_apart_is_kept_and_taken_apart_later() {
    let mut small = Small::of_bytes(32 << 20);
    let bytes = container(&mut Random(26), 8);
    let path = small.fixture.path("m.safetensors");
    let file = fs::File::create(&path).unwrap();
    // Every block is recorded in part, so all of them lie in slots after the second pass.
    let halves: Vec<usize> = (0..bytes.len().div_ceil(8192)).collect();
    for pass in 0..2 {
        for at in halves.iter().filter(|half| *half % 2 == pass).map(|half| half * 8192) {
            // The header comes last: nothing is recognized before.
            if at > 0 {
                file.write_all_at(&bytes[at..bytes.len().min(at + 8192)], at as u64).unwrap();
            }
        }
        if pass == 0 {
            syncs(&small);
        }
    }
    file.write_all_at(&bytes[..8192], 0).unwrap();
    small.leave(300_000);
    file.sync_all().unwrap();
    drop(file);
    assert_same(&small.fixture.read("m.safetensors"), &bytes, "a container on a full disk");
    let why = small.fixture.attribute("m.safetensors", "why");
    assert!(why.contains("until the disk has room"), "{why}");
    small.fixture.crash();
    assert_same(&small.fixture.read("m.safetensors"), &bytes, "after a kill");
    small.empty();
    wait_until("its tensors", || {
        syncs(&small);
        small.fixture.path(".tensors/a").exists()
    });
    small.check_container("m.safetensors", &bytes);
    assert!(support::try_get(&small.fixture.path("m.safetensors"), "why").is_err());
    small.fixture.unmount();
}

#[test]
fn a_change_of_the_header_copies_no_tensor() {
    let small = Small::of_bytes(24 << 20);
    let mut bytes = container(&mut Random(27), 14);
    assert_eq!(write(&small.fixture.path("m.safetensors"), &bytes), Ok(()));
    // A space in the padding of the header.
    let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let file = fs::File::options().write(true).open(small.fixture.path("m.safetensors")).unwrap();
    assert!(bytes[end - 1] == b' ' || bytes[end - 1] == b'}');
    file.write_all_at(&bytes[end - 1..end], end as u64 - 1).unwrap();
    file.sync_all().unwrap();
    // A byte of each tensor too.
    for at in [end, bytes.len() - 5] {
        bytes[at] ^= 1;
        file.write_all_at(&bytes[at..at + 1], at as u64).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    small.check_to_the_end("m.safetensors", &bytes);
}

#[test]
fn writes_that_a_full_log_refused_are_recorded_at_the_unmount() {
    let mut small = Small::new();
    let mut random = Random(28);
    let (old, new) = (random.bytes(300_000), random.bytes(300_000));
    let model = container(&mut random, 1);
    assert_eq!(write(&small.fixture.path("f"), &old), Ok(()));
    let file = fs::File::options().write(true).open(small.fixture.path("f")).unwrap();
    file.write_all_at(&new, 0).unwrap();
    let container = fs::File::create(small.fixture.path("m.safetensors")).unwrap();
    container.write_all_at(&model, 0).unwrap();
    small.fill();
    for file in [&file, &container] {
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    }
    drop((file, container));
    let status = fs::read_to_string(small.fixture.mounted().path(".ctl/status")).unwrap();
    for name in ["demo/m/f: ", "demo/m/m.safetensors: "] {
        assert!(status.lines().any(|line| line.starts_with("! ") && line.contains(name)), "{status}");
    }
    let why = small.fixture.attribute("f", "why");
    assert!(why.contains("not on the disk yet"), "{why}");
    assert!(!events(small.fixture.mounted(), "unrecorded").is_empty());
    small.fixture.unmount();
    small.fixture.mount();
    assert_same(&small.fixture.read("f"), &new, "the file");
    assert_same(&small.fixture.read("m.safetensors"), &model, "the container");
    small.empty();
    wait_until("its tensors", || {
        syncs(&small);
        small.fixture.path(".tensors/a").exists()
    });
    small.fixture.unmount();
}

#[test]
fn an_unmount_that_loses_writes_fails_and_names_the_files() {
    let mut small = Small::new();
    let mut random = Random(29);
    let (old, new) = (random.bytes(300_000), random.bytes(300_000));
    assert_eq!(write(&small.fixture.path("f"), &old), Ok(()));
    let names: Vec<String> = (0..1500).map(|number| format!("empty{number}")).collect();
    for name in &names {
        fs::write(small.fixture.path(name), b"").unwrap();
    }
    let file = fs::File::options().write(true).open(small.fixture.path("f")).unwrap();
    file.write_all_at(&new, 0).unwrap();
    small.fill();
    use_up_the_reserve(&small, &names);
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    drop(file);
    assert_same(&small.fixture.read("f"), &new, "what was written");
    small.fill_disk();
    let mountpoint = small.fixture.mounted().mountpoint.clone();
    run(["umount".as_ref(), mountpoint.as_os_str()]).failed(1, &["without the last writes", "demo/m/f"]);
    small.empty();
    // Its daemon has ended: this mounts it again.
    small.fixture.crash();
    assert!(!events(small.fixture.mounted(), "unrecorded").is_empty());
    assert_same(&small.fixture.read("f"), &old, "the version before");
    small.fixture.unmount();
}

#[test]
fn a_quota_is_the_size_that_df_shows() {
    let small = Small::new();
    let space = |path: &Path| {
        let found = rustix::fs::statvfs(path).unwrap();
        (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
    };
    let whole = space(&small.fixture.path(""));
    assert_eq!(whole.0, 16 << 20);
    assert_eq!(write(&small.fixture.path("f"), &Random(30).bytes(MIB)), Ok(()));
    fs::write(small.fixture.path(".ctl/quota"), "bytes=4M").unwrap();
    assert_eq!(space(&small.fixture.path("")), (4 << 20, 3 << 20));
    assert_eq!(space(&small.fixture.path("f")).1, 3 << 20);
    fs::write(small.fixture.mounted().path("demo/.ctl/quota"), "bytes=2M").unwrap();
    assert_eq!(space(&small.fixture.mounted().path("demo")), (2 << 20, 1 << 20));
    assert_eq!(space(&small.fixture.path("")), (2 << 20, 1 << 20));
    assert_eq!(space(&small.fixture.mounted().path("")).0, 16 << 20);
    assert!(small.fixture.path("f").metadata().unwrap().size() == MIB as u64);
}
