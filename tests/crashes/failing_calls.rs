//! A system call fails: acknowledged changes are there, no change is half done, and the daemon survives.

use std::fs;
use std::path::Path;

use crate::journal::{After, Journal, PAGE};
use crate::stores::{SecondImport, check_after, copied, exported, fsck, store_with_files};
use crate::trace::{Daemon, Fault, Point, points, spread};
use support::Place;

/// Calls that a short run tries for each kind of error.
const TRIED: usize = 24;
/// Calls that a broken disk may fail, and those that a full disk may fail.
const BROKEN: [&str; 6] = ["pwrite64", "fdatasync", "fsync", "rename", "fallocate", "ftruncate"];
const FULL: [&str; 3] = ["pwrite64", "fallocate", "ftruncate"];

fn of(all: &[Point], calls: &[&str]) -> Vec<Point> {
    all.iter().filter(|point| calls.contains(&point.call)).cloned().collect()
}

/// Whether `strace` has recorded the fault.
fn has_come(notes: &Path) -> bool {
    fs::read_to_string(notes).unwrap().contains("(INJECTED)")
}

/// Runs a workload on a mount in which one call fails, and checks the files, at once and after a remount.
fn disturbed(place: &Place, known: &Journal, point: &Point, error: &'static str) -> Option<Journal> {
    let context = format!("{error} from {point}");
    let notes = place.path("notes");
    let store = copied(place, &place.store());
    let mut journal = known.clone().with_unit(PAGE);
    // The mount may refuse to start, with an error.
    if let Some(daemon) = Daemon::mount(place, &store, &notes, Some((point, Fault::Error(error)))) {
        journal.work(&daemon.path(""), 5, After::GoOn);
        let is_sync = ["fdatasync", "fsync"].contains(&point.call);
        if is_sync && has_come(&notes) {
            takes_no_more(&daemon, &context);
        }
        journal.check_there(&daemon.path(""), &context);
        daemon.end();
    }
    let came = has_come(&notes);
    check_after(place, &store, &journal, &context);
    came.then_some(journal)
}

/// After a failed sync the collection takes no writes, and the status says why.
fn takes_no_more(daemon: &Daemon, context: &str) {
    let written = fs::write(daemon.path("more"), b"more");
    let Err(written) = written else { panic!("{context}: it takes more") };
    assert_eq!(written.raw_os_error(), Some(libc::EROFS), "{context}: {written}");
    let status = fs::read_to_string(daemon.path(".ctl/status")).unwrap();
    assert!(status.contains("takes no more writes") && status.contains("fsck"), "{context}: {status}");
}

/// The calls of an undisturbed run.
fn calls(place: &Place, known: &Journal) -> Vec<Point> {
    let notes = place.path("notes");
    let store = copied(place, &place.store());
    let daemon = Daemon::mount(place, &store, &notes, None).unwrap();
    known.clone().work(&daemon.path(""), 5, After::GoOn);
    daemon.end();
    points(&notes)
}

#[test]
fn a_disk_error_is_reported_and_acknowledged_data_survives() {
    let place = Place::new();
    let known = store_with_files(&place);
    let all = of(&calls(&place, &known), &BROKEN);
    assert!(all.len() > 40, "{all:?}");
    let mut told = 0;
    for point in spread(all, TRIED) {
        let journal = disturbed(&place, &known, &point, "EIO");
        told += usize::from(journal.is_some_and(|journal| !journal.failed.is_empty()));
    }
    assert!(told > TRIED / 8, "only {told} runs failed");
}

#[test]
fn a_disk_that_is_full_for_one_call_loses_nothing_and_the_write_can_be_repeated() {
    let place = Place::new();
    let known = store_with_files(&place);
    let all = of(&calls(&place, &known), &FULL);
    let mut told = 0;
    for point in spread(all, TRIED) {
        let journal = disturbed(&place, &known, &point, "ENOSPC");
        told += usize::from(journal.is_some_and(|journal| journal.full + journal.failed.len() > 0));
    }
    // Most succeed at a second try, or can go on without the write.
    assert!(told > 0, "no run failed");
}

#[test]
fn an_import_with_a_failed_call_reports_it_and_leaves_each_file_old_or_new() {
    let import = SecondImport::new();
    let (place, old, new, all) = (&import.place, &import.old, &import.new, &import.points);
    for (calls, error) in [(&BROKEN[..], "EIO"), (&FULL[..], "ENOSPC")] {
        let mut told = 0;
        for point in spread(of(all, calls), TRIED) {
            let context = format!("{error} from {point}");
            let store = copied(place, &place.store());
            let code = import.run(&store, Some((&point, Fault::Error(error))));
            assert!(matches!(code, Some(0 | 1)), "{context}: {code:?}");
            told += usize::from(code == Some(1));
            fsck(&store, &context);
            let found = exported(place, &store);
            assert!(found.keys().eq(old.keys()), "{context}: {:?}", found.keys());
            for (name, bytes) in &found {
                let right = *bytes == new[name] || (*bytes == old[name] && code == Some(1));
                assert!(right, "{context}: {} after exit code {code:?}", name.display());
            }
        }
        assert!(told > TRIED / 4, "only {told} imports failed with {error}");
    }
}
