//! More collections and files than the daemon may have descriptors.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

use support::{Fixture, answer, assert_same, tierfs_limited};

fn descriptors(fixture: &Fixture) -> usize {
    let daemon = fixture.mounted().daemon().unwrap();
    fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().count()
}

fn content(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number * 31) as u8).collect()
}

const COLLECTIONS: usize = 700;

#[test]
fn more_collections_than_descriptors_are_written_read_and_remounted() {
    let mut fixture = Fixture::limited(512);
    let path = |fixture: &Fixture, number: usize, name: &str| {
        fixture.mounted().path(format!("demo/m{number:04}")).join(name)
    };
    // Some files stay open, one of them unlinked.
    let mut open = Vec::new();
    let mut nameless = None;
    for number in 0..COLLECTIONS {
        fs::create_dir(path(&fixture, number, "")).unwrap();
        fs::write(path(&fixture, number, "large"), content(number, 20_000)).unwrap();
        fs::write(path(&fixture, number, "small"), content(number, 100)).unwrap();
        if number < 10 {
            let options = OpenOptions::new().read(true).write(true).open(path(&fixture, number, "large"));
            open.push(options.unwrap());
        }
        if number == 10 {
            nameless = Some(File::open(path(&fixture, number, "large")).unwrap());
            fs::remove_file(path(&fixture, number, "large")).unwrap();
        }
        if number % 100 == 99 {
            let found = descriptors(&fixture);
            // Rings of requests have some of their own.
            assert!(found <= 420, "{found} descriptors of a daemon that may have 512, after {number}");
        }
    }
    let mut found = vec![0; 20_000];
    nameless.unwrap().read_exact_at(&mut found, 0).unwrap();
    assert_same(&found, &content(10, 20_000), "a file without a name");
    for (number, file) in open.iter_mut().enumerate() {
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"more").unwrap();
        let mut all = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut all).unwrap();
        assert_same(&all, &[&content(number, 20_000)[..], b"more"].concat(), "a file that stayed open");
    }
    drop(open);
    let check = |fixture: &Fixture| {
        (0..COLLECTIONS)
            .map(|number| {
                let small = path(fixture, number, "small");
                assert_same(&fs::read(&small).unwrap(), &content(number, 100), "small");
                if number != 10 {
                    let mut wanted = content(number, 20_000);
                    wanted.extend_from_slice(if number < 10 { b"more" } else { b"" });
                    assert_same(&fs::read(path(fixture, number, "large")).unwrap(), &wanted, "large");
                }
                fs::metadata(small).unwrap().ino()
            })
            .collect::<Vec<u64>>()
    };
    let numbers = check(&fixture);
    fs::rename(path(&fixture, 3, "small"), path(&fixture, 3, "renamed")).unwrap();
    fs::rename(path(&fixture, 3, "renamed"), path(&fixture, 3, "small")).unwrap();
    fixture.remount();
    assert_eq!(fs::read_dir(fixture.mounted().path("demo")).unwrap().count(), COLLECTIONS + 1);
    assert_eq!(check(&fixture), numbers, "inode numbers after a remount");
    let found = descriptors(&fixture);
    assert!(found <= 400, "{found} descriptors of a daemon that may have 512");
    let log = fixture.mounted().log();
    assert!(log.contains("limit of open files (RLIMIT_NOFILE) is 512"), "{log}");
    // A program that reads the store without a mount has the same limit.
    fixture.check();
}

#[test]
fn synced_files_survive_a_kill_after_their_descriptors_were_closed() {
    const THREADS: usize = 6;
    const EACH: usize = 30;
    let mut fixture = Fixture::limited(80);
    let name = |thread: usize, number: usize| format!("demo/s{thread}-{number}");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fixture = &fixture;
            scope.spawn(move || {
                for round in 0..3 {
                    for number in 0..EACH {
                        let directory = fixture.mounted().path(name(thread, number));
                        if round == 0 {
                            fs::create_dir(&directory).unwrap();
                        }
                        let mut file = File::create(directory.join(format!("f{round}"))).unwrap();
                        file.write_all(&content(thread * EACH + number + round, 20_000)).unwrap();
                        if round == 2 {
                            file.sync_all().unwrap();
                        }
                    }
                }
            });
        }
    });
    fixture.crash();
    for thread in 0..THREADS {
        for number in 0..EACH {
            for round in 0..3 {
                let path = fixture.mounted().path(name(thread, number)).join(format!("f{round}"));
                let wanted = content(thread * EACH + number + round, 20_000);
                assert_same(&fs::read(&path).unwrap(), &wanted, "after a kill");
            }
        }
    }
    fixture.check();
}

#[test]
fn doctor_names_the_limit_of_open_files() {
    let row = |limit: u64| {
        let rows = answer(tierfs_limited(limit).args(["doctor", "--json"])).json();
        rows.as_array().unwrap().iter().find(|row| row["what"] == "descriptors").unwrap().clone()
    };
    let (few, many) = (row(512), row(20_000));
    assert_eq!((&few["verdict"], &many["verdict"]), (&"warn".into(), &"ok".into()));
    assert!(few["found"].as_str().unwrap().contains("512"), "{few}");
    assert!(many["found"].as_str().unwrap().contains("20000"), "{many}");
}
