//! The daemon and imports killed at any moment: complete files stay whole, and incomplete ones leave nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{
    Mapping, Place, Random, answer, assert_same, container_of, ended, files_below, npy_file, run, tierfs,
    wait_until,
};

const ROUNDS: u32 = 20;
/// Fewer imports that are hit in the middle would show little.
const HITS_MIN: u32 = 6;
/// Files above this size have a data file each.
const GATHERED_BYTES_MAX: usize = 16 << 10;
const CONTAINER: [(&str, usize); 3] = [("first", 40_000), ("second", 30_001), ("third", 7)];

/// The contents of a collection's files, by path.
type Contents = BTreeMap<PathBuf, Vec<u8>>;

/// A folder of large, small and packed files, another one for each seed.
fn folder(place: &Place, name: &str, seed: u64) -> PathBuf {
    let mut random = Random(seed);
    for number in 0..24 {
        let container = container_of(&mut random, &CONTAINER);
        place.write(&format!("{name}/part-{number}/model.safetensors"), container);
        place.write(&format!("{name}/x{number}.npy"), npy_file(&random.floats(10_000)));
        place.write(&format!("{name}/small/{number}.json"), random.bytes(1000 + number));
    }
    place.write(&format!("{name}/large.bin"), random.bytes(8 << 20));
    place.path(name)
}

fn contents(folder: &Path) -> Contents {
    let names = files_below(folder);
    names.into_iter().map(|name| (name.clone(), fs::read(folder.join(&name)).unwrap())).collect()
}

/// The contents of a clean import of a folder, with its tensors.
fn as_imported(folder: &Path, options: &[&str]) -> Contents {
    let place = Place::new();
    place.import("demo/clean", &[folder], options);
    let mounted = place.mount(&[]);
    let found = contents(&mounted.path("demo/clean"));
    mounted.unmount();
    found
}

/// Kills an import after a while; returns the time that it took if it had ended before.
fn import_killed(
    place: &Place,
    collection: &str,
    folder: &Path,
    options: &[&str],
    after: Duration,
) -> Option<Duration> {
    let mut command = tierfs();
    command.arg("import").arg(place.store()).arg(collection).arg(folder).args(options);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let since = Instant::now();
    while since.elapsed() < after && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let took = since.elapsed();
    child.kill().unwrap();
    ended(&mut child, "a killed import").map(|_| took)
}

fn check(place: &Place) {
    run(["fsck".as_ref(), place.store().as_os_str()]).ok();
}

/// Every file of the collection is one of the versions, whole, and has its tensors beside it.
fn check_whole(place: &Place, collection: &str, versions: &[&Contents]) -> Contents {
    let mounted = place.mount(&[]);
    let folder = mounted.path(collection);
    let found = if folder.exists() { contents(&folder) } else { Contents::new() };
    mounted.unmount();
    for (name, bytes) in &found {
        let whole = versions.iter().any(|version| version.get(name) == Some(bytes));
        assert!(whole, "{collection}/{} is none of its versions", name.display());
        // A tensor is of the same version as its container.
        if let Some(container) =
            name.file_name().filter(|name| CONTAINER.iter().any(|(known, _)| name == known))
        {
            let container_name = name.with_file_name("model.safetensors");
            let container_bytes = &found[&container_name];
            let version =
                versions.iter().find(|version| version.get(&container_name) == Some(container_bytes));
            assert_same(bytes, &version.unwrap()[name], container.to_str().unwrap());
        }
    }
    found
}

/// Data files, and the allocated bytes of tier files.
fn usage(place: &Place, collection: &str) -> (usize, u64) {
    let folder = place.store().join(collection);
    let tiers =
        files_below(&folder).into_iter().filter(|name| name.extension().is_some_and(|kind| kind == "dat"));
    let bytes = tiers.map(|name| fs::metadata(folder.join(name)).unwrap().len()).sum();
    (fs::read_dir(folder.join("data")).map_or(0, Iterator::count), bytes)
}

fn killed_at_random_moments(options: &[&str], seed: u64) {
    let place = Place::new();
    let folders = [folder(&place, "one", seed), folder(&place, "two", seed + 1)];
    let versions = folders.each_ref().map(|folder| as_imported(folder, options));
    let since = Instant::now();
    place.import("demo/kept", &[&folders[0]], options);
    let mut whole_time = since.elapsed();
    let clean = usage(&place, "demo/kept");
    assert_eq!(
        clean.0,
        contents(&folders[0]).values().filter(|bytes| bytes.len() > GATHERED_BYTES_MAX).count()
    );

    let mut random = Random(seed);
    let mut hits = 0;
    for round in 0.. {
        if round >= ROUNDS && hits >= HITS_MIN {
            break;
        }
        // Spread over the duration of the import, each at a random moment of its share.
        let share = (f64::from(round % ROUNDS) + random.below(1000) as f64 / 1000.0) / f64::from(ROUNDS);
        let number = (round as usize + 1) % 2;
        let other = &versions[number];
        // Into an existing collection, and into a new one.
        let collection = if round % 4 < 2 { "demo/kept".to_owned() } else { format!("demo/new-{round}") };
        let ended = import_killed(&place, &collection, &folders[number], options, whole_time.mul_f64(share));
        match ended {
            // The machine is less busy now.
            Some(took) => whole_time = whole_time.min(took),
            None => hits += 1,
        }
        check(&place);
        let found = check_whole(&place, &collection, &[&versions[0], &versions[1]]);
        if collection == "demo/kept" {
            assert!(found.keys().eq(other.keys()), "a file was lost");
        }
        place.import(&collection, &[&folders[number]], options);
        check(&place);
        assert!(check_whole(&place, &collection, &[other]) == *other, "the second import is not whole");
        let (files, bytes) = usage(&place, &collection);
        assert_eq!(files, clean.0, "orphaned data files in {collection}, round {round}");
        // Room for the old files, the new ones and those of the killed import, before that space is used again.
        assert!(bytes <= clean.1 * 3, "{bytes} bytes of tier files in {collection}, {} wanted", clean.1);
    }
}

mod heavy {
    #[test]
    fn an_import_killed_at_any_moment_leaves_whole_files_and_no_orphans() {
        super::killed_at_random_moments(&[], 21);
    }

    #[test]
    fn an_import_into_a_tier_killed_at_any_moment_leaves_whole_files_and_no_orphans() {
        super::killed_at_random_moments(&["--tier", "q5:all"], 22);
    }
}

#[test]
fn a_killed_daemon_loses_nothing_and_its_mount_point_can_be_reused() {
    let place = Place::new();
    let source = folder(&place, "model", 23);
    place.import("demo/model", &[&source], &[]);
    let mounted = place.mount(&[]);
    let file = fs::File::open(mounted.path("demo/model/large.bin")).unwrap();
    let mapping = Mapping::of(&mounted.path("demo/model/large.bin"), libc::MAP_SHARED);
    let first = mapping.bytes()[..4096].to_vec();
    mounted.kill();
    let error = fs::read(mounted.path("demo/model/x1.npy")).unwrap_err();
    let number = error.raw_os_error();
    assert!(matches!(number, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    // Pages that the kernel has cached stay.
    assert_eq!(mapping.bytes()[..4096], first);
    drop((mapping, file));
    let shown = mounted.mountpoint.to_str().unwrap().to_owned();
    let mut again = tierfs();
    again.arg("mount").arg(place.store()).arg(&mounted.mountpoint);
    answer(&mut again).failed(1, &[&format!("tierfs umount {shown}`")]);
    run(["umount", &shown]).ok();
    drop(mounted);
    check(&place);
    let mounted = place.mount(&[]);
    assert!(contents(&mounted.path("demo/model")) == contents(&source), "something reads otherwise");
    mounted.kill();
    // Its own unmount removes the name too.
    run(["umount", &shown]).ok();
    wait_until("the mount's end", || !mounted.is_mounted());
}
