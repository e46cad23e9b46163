//! A damaged end of the log loses nothing that was synced: the log records what was durable.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use support::{Fixture, Place, Random, run, shell, wait_until};

const FILES: usize = 40;

fn log_of(store: &Path) -> PathBuf {
    store.join("demo/m/meta.log")
}

fn contents(number: usize) -> Vec<u8> {
    Random(number as u64).bytes(500 + number * 700)
}

/// A copy of a store with one bad page of its log.
fn copy_with_bad_page(place: &Place, begin: u64, len: u64) -> PathBuf {
    let to = place.path("damaged");
    if to.exists() {
        fs::remove_dir_all(&to).unwrap();
    }
    shell(&place.path(""), &format!("cp -a {} {}", place.store().display(), to.display()));
    let log = fs::File::options().write(true).open(log_of(&to)).unwrap();
    let bytes = vec![0x5a; len.min(log.metadata().unwrap().len() - begin) as usize];
    log.write_all_at(&bytes, begin).unwrap();
    to
}

/// Whether these bytes are a file that a repair found or a data file that it kept.
fn is_kept(exported: &Path, store: &Path, bytes: &[u8]) -> bool {
    let found = fs::read_dir(exported.join("lost+found")).into_iter().flatten();
    let kept = fs::read_dir(store.join("demo/m/data")).unwrap();
    let mut all = found.chain(kept).map(|entry| fs::read(entry.unwrap().path()).unwrap());
    // A data file keeps its largest length.
    all.any(|found| found.starts_with(bytes))
}

/// For each page of the log that may be bad: either all files are there, or the damage is reported and a repair names
/// the lost files.
fn check_bad_pages(place: &Place) {
    let len = fs::metadata(log_of(&place.store())).unwrap().len();
    let mut damaged = 0;
    for (page, back) in
        [(512, 0), (512, 1), (512, 2), (512, 5), (512, 9), (512, 17), (4096, 0), (4096, 1), (4096, 2)]
    {
        let begin = (len - 1) / page * page;
        let Some(begin) = begin.checked_sub(back * page) else { continue };
        let context = format!("{page} bytes at {begin} of {len}");
        let store = copy_with_bad_page(place, begin, page);
        let answer = run(["fsck".as_ref(), store.as_os_str()]);
        let repaired = match answer.code {
            Some(0) => String::new(),
            Some(3) => {
                damaged += 1;
                assert!(answer.out.contains("read-only"), "{context}: {answer:?}");
                run(["fsck".as_ref(), store.as_os_str(), "--repair".as_ref()]).out
            }
            _ => panic!("{context}: {answer:?}"),
        };
        let to = place.path("exported");
        if to.exists() {
            fs::remove_dir_all(&to).unwrap();
        }
        // Files that lost bytes are not exported.
        run(["export".as_ref(), store.as_os_str(), "demo/m".as_ref(), to.as_os_str()]);
        let all = shell(&to, "find . -type f -exec sha256sum {} +");
        let all = String::from_utf8(all.stdout).unwrap();
        for number in 0..FILES {
            let name = format!("f{number:02}");
            let is_there = fs::read(to.join(&name)).is_ok_and(|bytes| bytes == contents(number));
            // A name can be lost with the page, but the bytes then remain.
            let is_told = answer.code == Some(3)
                && (repaired.contains(&name) || is_kept(&to, &store, &contents(number)));
            assert!(is_there || is_told, "{context}: {name} is gone, and nobody says so: {repaired}\n{all}");
        }
    }
    assert!(damaged >= 3, "only {damaged} bad pages were damage");
}

#[test]
fn a_bad_sector_after_a_sync_or_an_unmount_loses_no_file_silently() {
    let mut fixture = Fixture::new();
    for number in 0..FILES {
        fs::write(fixture.path(&format!("f{number:02}")), contents(number)).unwrap();
    }
    for _ in 0..2 {
        fs::write(fixture.mounted().path(".ctl/sync"), "1").unwrap();
    }
    fixture.unmount();
    check_bad_pages(&fixture.place);
}

#[test]
fn an_idle_mount_marks_its_files_durable_before_it_is_killed() {
    let fixture = Fixture::new();
    for number in 0..FILES {
        fs::write(fixture.path(&format!("f{number:02}")), contents(number)).unwrap();
    }
    let log = log_of(&fixture.place.store());
    // The last slot is a Commit without records.
    wait_until("a mark", || {
        let bytes = fs::read(&log).unwrap();
        let last = bytes.chunks(128).rfind(|slot| slot.iter().any(|byte| *byte != 0)).unwrap();
        last[0] == 7 && last[29..33] == [0; 4]
    });
    fixture.mounted().kill();
    let place = &fixture.place;
    check_bad_pages(place);
}

#[test]
fn an_import_survives_the_loss_of_the_end_of_the_log() {
    let place = Place::new();
    for number in 0..FILES {
        place.write(&format!("from/f{number:02}"), contents(number));
    }
    place.import("demo/m", &[&place.path("from")], &[]);
    check_bad_pages(&place);
}
