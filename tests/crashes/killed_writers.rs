//! The daemon killed at any moment while programs write: closed, renamed or synced files are there, whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use support::{Fixture, Random, assert_same, container_of, npy_file, scale};

const ROUNDS: u64 = 20;
/// Names that each writer uses repeatedly.
const NAMES: usize = 6;

/// The contents that a file may have after a crash: the one acknowledged last, and the one in progress. `None`: it may
/// be missing.
#[derive(Clone, Default)]
struct Expected {
    acknowledged: Option<Vec<u8>>,
    under_way: Option<Option<Vec<u8>>>,
    /// Writing in place is not one change: the test only requires that the file exists.
    is_loose: bool,
}

type Journal = Mutex<BTreeMap<PathBuf, Expected>>;

fn begin(journal: &Journal, path: &Path, bytes: Option<Vec<u8>>, is_loose: bool) {
    let mut journal = journal.lock().unwrap();
    let expected = journal.entry(path.to_owned()).or_default();
    (expected.under_way, expected.is_loose) = (Some(bytes), is_loose);
}

fn done(journal: &Journal, path: &Path) {
    let mut journal = journal.lock().unwrap();
    let expected = journal.get_mut(path).unwrap();
    expected.acknowledged = expected.under_way.take().unwrap();
    expected.is_loose = false;
}

fn content(random: &mut Random, path: &Path) -> Vec<u8> {
    match path.extension().and_then(|suffix| suffix.to_str()) {
        Some("npy") => npy_file(&random.floats(500)),
        Some("safetensors") => {
            let name = path.file_stem().unwrap().to_str().unwrap();
            container_of(random, &[(&format!("{name}.a"), 300), (&format!("{name}.b"), 9000)])
        }
        _ => {
            let bytes = random.below(40_000);
            random.bytes(bytes)
        }
    }
}

/// Changes a file in one of several ways. An error ends the writer, because the daemon was killed.
fn change(journal: &Journal, folder: &Path, path: &Path, random: &mut Random) -> io::Result<()> {
    let new = content(random, path);
    match random.below(4) {
        0 => {
            begin(journal, path, Some(new.clone()), false);
            let temporary = folder.join(format!(".{}.part", path.file_name().unwrap().to_str().unwrap()));
            fs::write(&temporary, &new)?;
            fs::rename(&temporary, path)?;
        }
        1 => {
            begin(journal, path, Some(new.clone()), true);
            // The standard library ignores errors of close.
            let file = File::create(path)?;
            file.write_all_at(&new, 0)?;
            closed(file)?;
        }
        2 => {
            begin(journal, path, Some(new.clone()), true);
            let file = File::create(path)?;
            file.write_all_at(&new, 0)?;
            file.sync_all()?;
            // Perhaps still open when the daemon is killed: the synced bytes are there.
            done(journal, path);
            return Ok(());
        }
        _ => {
            begin(journal, path, None, false);
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
    }
    done(journal, path);
    Ok(())
}

fn closed(file: File) -> io::Result<()> {
    use std::os::fd::IntoRawFd;
    // SAFETY: the descriptor was this file's alone, and is not used after this.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn read_if_there(path: &Path) -> Option<Vec<u8>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.unwrap_or_else(|error| panic!("{}: {error}", path.display()))),
    }
}

#[test]
fn closed_renamed_and_synced_files_survive_a_killed_daemon() {
    let mut fixture = Fixture::new();
    let journal = Journal::default();
    let suffixes = ["bin", "npy", "safetensors"];
    for round in 0..ROUNDS * u64::from(scale()) {
        let folder = fixture.path("");
        std::thread::scope(|scope| {
            for (number, suffix) in suffixes.iter().enumerate() {
                let (journal, folder) = (&journal, &folder);
                scope.spawn(move || {
                    let mut random = Random(round * 10 + number as u64);
                    loop {
                        let name = format!(
                            "{}{number}.{suffix}",
                            ["a", "b", "c", "d", "e", "f"][random.below(NAMES)]
                        );
                        if change(journal, folder, &folder.join(name), &mut random).is_err() {
                            return;
                        }
                    }
                });
            }
            let mut random = Random(round + 1000);
            std::thread::sleep(Duration::from_millis(20 + random.below(250) as u64));
            fixture.mounted().kill();
        });
        fixture.crash();
        let mut journal = journal.lock().unwrap();
        for (path, expected) in journal.iter_mut() {
            let found = read_if_there(path);
            let what = format!("round {round}: {}", path.display());
            match (&found, &expected.under_way) {
                (_, Some(under_way)) if found == expected.acknowledged || found == *under_way => {}
                (_, Some(_)) if expected.is_loose => {}
                (Some(found), None) if expected.acknowledged.is_some() => {
                    assert_same(found, expected.acknowledged.as_ref().unwrap(), &what);
                }
                (None, None) if expected.acknowledged.is_none() => {}
                _ => panic!(
                    "{what}: {:?} bytes found, {:?} were acknowledged, under way {:?}",
                    found.as_ref().map(Vec::len),
                    expected.acknowledged.as_ref().map(Vec::len),
                    expected.under_way.as_ref().map(|way| way.as_ref().map(Vec::len))
                ),
            }
            *expected = Expected { acknowledged: found, ..Expected::default() };
        }
    }
    assert!(journal.lock().unwrap().len() > 12, "few files were written");
    fixture.check();
}
