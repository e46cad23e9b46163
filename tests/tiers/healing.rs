//! Corrupt stored bytes: rebuilt from the origin and stored anew, or an error.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use support::{Aligned, Mounted, Place, Random, npy_file, open_direct, read_at, run, set, wait_until};

const BLOCK: usize = 16_384;

/// A field of the lines that give the place of each block of a tensor.
pub fn fields(mounted: &Mounted, tensor: &str, field: &str) -> Vec<String> {
    let text = fs::read_to_string(mounted.path("t/c/.ctl/blocks").join(tensor)).unwrap();
    let of_line = |line: &str| {
        let found = line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('='));
        found.unwrap().to_owned()
    };
    text.lines().map(of_line).collect()
}

/// Flips a bit in the payload of each of these blocks, in the middle.
pub fn flip(mounted: &Mounted, tensor: &str, blocks: &[usize]) {
    let [files, offsets, lens] = ["file", "offset", "bytes"].map(|field| fields(mounted, tensor, field));
    for &block in blocks {
        let path = mounted.store.join("t/c").join(&files[block]);
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let at = offsets[block].parse::<u64>().unwrap() + lens[block].parse::<u64>().unwrap() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 8], at).unwrap();
    }
}

/// The content of a block of a tensor, read with O_DIRECT.
pub fn block(path: &Path, index: usize) -> Result<Vec<u8>, Errno> {
    let file = open_direct(path);
    let mut buffer = Aligned::new(BLOCK);
    let found = buffer.pages(BLOCK);
    match file.read_at(found, (index * BLOCK) as u64) {
        Ok(_) => Ok(found.to_vec()),
        Err(error) => Err(Errno::from_io_error(&error).unwrap()),
    }
}

pub fn verified(mounted: &Mounted, tensor: &str) -> String {
    let text = fs::read_to_string(mounted.path("t/c/.ctl/verify").join(tensor)).unwrap();
    text.lines().last().unwrap().to_owned()
}

/// The number of events of a kind about a tensor.
pub fn count_events(mounted: &Mounted, kind: &str, tensor: &str) -> usize {
    let path = format!("t/c/{tensor}");
    let events = support::events(mounted, kind);
    events.iter().filter(|event| event["path"].as_str().unwrap().ends_with(&path)).count()
}

/// Two tensors in a tier: one with a source, one without.
fn two(tier: &str, encoder: &str) -> (Place, Mounted) {
    let place = Place::new();
    let one = place.write("in/one.npy", npy_file(&Random(81).floats(100_000)));
    let two = place.write("in/two.npy", npy_file(&Random(82).floats(100_000)));
    place.import("t/c", &[&one], &["--in-place"]);
    place.import("t/c", &[&two], &["--tier", &format!("{tier}:all")]);
    let mounted = place.mount(&[]);
    set(&mounted.path("t/c/one"), "encoder", encoder).unwrap();
    set(&mounted.path("t/c/one"), "tier", tier).unwrap();
    (place, mounted)
}

#[test]
pub fn flipped_bits_heal_on_read_from_a_source_and_are_errors_without_one() {
    for (tier, encoder) in [("q8", "best"), ("q5", "absmax"), ("q3x", "best")] {
        let (place, mounted) = two(tier, encoder);
        let (one, two) = (mounted.path("t/c/one"), mounted.path("t/c/two"));
        let wanted: Vec<_> = (0..24).map(|index| block(&one, index).unwrap()).collect();
        let other: Vec<_> = (0..24).map(|index| block(&two, index).unwrap()).collect();
        let epochs = fields(&mounted, "one", "epoch");
        flip(&mounted, "one", &[3, 4, 20]);
        flip(&mounted, "two", &[5]);
        assert_eq!(verified(&mounted, "one"), "corrupt 3 of 25", "{tier}");
        assert_eq!(verified(&mounted, "two"), "corrupt 1 of 25");
        let offsets = fields(&mounted, "one", "offset");
        // Twice: the first time through the source.
        for _ in 0..2 {
            for index in [4, 3, 20, 7] {
                assert!(block(&one, index).unwrap() == wanted[index], "{tier}, block {index}");
            }
            assert_eq!(block(&two, 5), Err(Errno::IO));
            assert!(block(&two, 4).unwrap() == other[4]);
        }
        wait_until("all are stored anew", || verified(&mounted, "one") == "ok");
        let now = fields(&mounted, "one", "offset");
        let moved = (0..25).filter(|&index| now[index] != offsets[index]).collect::<Vec<_>>();
        assert_eq!(moved, [3, 4, 20], "{tier}");
        assert_eq!(fields(&mounted, "one", "epoch"), epochs);
        assert_eq!(count_events(&mounted, "repair", "one"), 3);
        assert_eq!(mounted.stats()["healed"], 3);
        assert_eq!(
            (count_events(&mounted, "corruption", "two"), count_events(&mounted, "repair", "two")),
            (1, 0)
        );
        mounted.kill();
        drop(mounted);
        let mounted = place.mount(&[]);
        assert_eq!(verified(&mounted, "one"), "ok");
        assert_eq!(fields(&mounted, "one", "epoch"), epochs);
        for (index, wanted) in wanted.iter().enumerate() {
            assert!(&block(&mounted.path("t/c/one"), index).unwrap() == wanted, "{tier}, block {index}");
        }
        assert_eq!(verified(&mounted, "two"), "corrupt 1 of 25");
    }
}

#[test]
fn parts_of_damaged_blocks_heal_and_blocks_without_their_own_source_do_not() {
    let (place, mounted) = two("q8", "best");
    let one = mounted.path("t/c/one");
    let whole = fs::read(&one).unwrap();
    // Written since: the source has other bytes than this block had.
    let file = fs::File::options().write(true).open(&one).unwrap();
    file.write_all_at(&[1, 2, 3, 4], 9 * BLOCK as u64).unwrap();
    drop(file);
    flip(&mounted, "one", &[9, 10, 24]);
    // Blocks that were verified in this mount are not verified again for a part.
    mounted.unmount();
    let mounted = place.mount(&[]);
    let file = fs::File::open(&one).unwrap();
    let mut part = [0; 100];
    assert_eq!(read_at(&file, &mut part, 10 * BLOCK as u64 + 5000), 100);
    assert!(part[..] == whole[10 * BLOCK + 5000..][..100]);
    assert_eq!(read_at(&file, &mut part, 24 * BLOCK as u64 + 6000), 100);
    assert!(part[..] == whole[24 * BLOCK + 6000..][..100]);
    assert_eq!(block(&one, 9), Err(Errno::IO));
    wait_until("the others are stored anew", || verified(&mounted, "one") == "corrupt 1 of 25");
    assert_eq!(count_events(&mounted, "corruption", "one"), 3);
}

#[test]
fn a_scrub_counts_what_is_damaged_and_heals_what_it_can() {
    let (place, mounted) = two("q7", "best");
    let one = fs::read(mounted.path("t/c/one")).unwrap();
    let read = |name: &str| fs::read_to_string(mounted.path(name)).unwrap();
    assert!(read("t/c/.ctl/scrub").contains("not since"));
    assert_eq!(fs::write(mounted.path("t/c/.ctl/scrub"), "please").unwrap_err().raw_os_error(), Some(22));
    assert_eq!(fs::write(mounted.path(".ctl/scrub"), "stop").unwrap_err().raw_os_error(), Some(22));
    flip(&mounted, "one", &[0, 24]);
    flip(&mounted, "two", &[1, 2, 3]);
    fs::write(mounted.path("t/c/.ctl/scrub"), "start").unwrap();
    wait_until("the scrub ends", || read("t/c/.ctl/scrub").contains("checked"));
    // 25 blocks of each tensor, and the bytes before them in their files.
    assert!(
        read("t/c/.ctl/scrub").contains(": 52 blocks checked, 5 corrupt, 2 healed"),
        "{}",
        read("t/c/.ctl/scrub")
    );
    assert!(read(".ctl/scrub").starts_with("t/c: at "));
    assert_eq!(
        (verified(&mounted, "one"), verified(&mounted, "two")),
        ("ok".into(), "corrupt 3 of 25".into())
    );
    assert!(fs::read(mounted.path("t/c/one")).unwrap() == one);
    let lines = read("t/c/.ctl/scrub");
    for (file, tensor, from, to, what) in
        [("one.npy", "one", 0, BLOCK, "corrupt, healed"), ("two.npy", "two", BLOCK, 4 * BLOCK, "corrupt")]
    {
        let header = fs::metadata(mounted.path(Path::new("t/c").join(file))).unwrap().len() - 400_000;
        let (first, last) = (header + from as u64, header + to as u64 - 1);
        let line = format!("t/c/{file}: bytes {first} to {last}: {what} (tensor {tensor})\n");
        assert!(lines.contains(&line), "{line} in {lines}");
        assert!(read(".ctl/scrub").contains(&line));
    }
    // From the command line: the mount, its store, and the store alone.
    flip(&mounted, "one", &[7]);
    let scrub = |path: &Path| run(["scrub".as_ref(), path.as_os_str()]);
    let answer = scrub(&mounted.mountpoint);
    assert!(answer.code == Some(3) && answer.out.contains("4 corrupt, 1 healed"), "{answer:?}");
    let answer = scrub(&place.store());
    assert!(answer.code == Some(3) && answer.out.contains("3 corrupt, 0 healed"), "{answer:?}");
    let answer = run(["scrub".as_ref(), place.store().as_os_str(), "--json".as_ref()]);
    let found: serde_json::Value = serde_json::from_str(&answer.out).unwrap();
    let header = fs::metadata(mounted.path("t/c/two.npy")).unwrap().len() - 400_000;
    let range = &found["ranges"][0];
    assert_eq!((&range["path"], &range["tensor"]), (&"t/c/two.npy".into(), &"two".into()), "{found}");
    assert_eq!(range["first"], header + BLOCK as u64);
    assert_eq!(range["last"], header + 4 * BLOCK as u64 - 1);
    assert_eq!((&range["healed"], found["ranges"].as_array().unwrap().len()), (&false.into(), 1));
    let verify = |path: &Path| run(["verify".as_ref(), path.as_os_str()]);
    for (at, file, header) in [("t", "two.npy", header), ("t/c/.tensors", ".tensors/two", 0)] {
        let answer = verify(&mounted.path(at));
        let last = format!("c/{file}: corrupt 3 of ");
        assert!(answer.code == Some(3) && answer.out.contains(&last), "{answer:?}");
        for block in 1..4 {
            let (first, last) = (header + block * BLOCK as u64, header + (block + 1) * BLOCK as u64 - 1);
            let line = format!("t/c/{file}: bytes {first} to {last}: ");
            assert!(answer.out.contains(&line), "{line} in {answer:?}");
        }
    }
    assert_eq!(verify(&mounted.path("t/c/one")).ok().lines().last().unwrap().rsplit(' ').next(), Some("ok"));
    assert_eq!(verify(&place.path("in/one.npy")).code, Some(1));
    flip(&mounted, "one", &[8]);
    fs::remove_file(mounted.path("t/c/two.npy")).unwrap();
    mounted.unmount();
    let answer = scrub(&place.store());
    assert!(answer.code == Some(3) && answer.out.contains("1 corrupt, 1 healed"), "{answer:?}");
    assert!(scrub(&place.store()).ok().contains(" 0 corrupt, 0 healed"));
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert!(fs::read(mounted.path("t/c/one")).unwrap() == one);
}

#[test]
fn healed_blocks_keep_their_numbers_after_a_log_rewrite() {
    let (place, mounted) = two("q8", "best");
    let one = fs::read(mounted.path("t/c/one")).unwrap();
    let epochs = fields(&mounted, "one", "epoch");
    flip(&mounted, "one", &[2]);
    assert_eq!(block(&mounted.path("t/c/one"), 2).unwrap(), one[2 * BLOCK..3 * BLOCK]);
    wait_until("it was rewritten", || verified(&mounted, "one") == "ok");
    mounted.job("t/c/.ctl/compact", "start");
    mounted.kill();
    drop(mounted);
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
    let mounted = place.mount(&[]);
    assert_eq!(fields(&mounted, "one", "epoch"), epochs);
    assert!(fs::read(mounted.path("t/c/one")).unwrap() == one);
    set(&mounted.path("t/c/one"), "tier", "exact").unwrap();
    assert!(fs::read(mounted.path("t/c/one.npy")).unwrap() == fs::read(place.path("in/one.npy")).unwrap());
}
