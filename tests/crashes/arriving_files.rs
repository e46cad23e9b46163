//! The daemon is killed while files arrive in a directory with settings for them: each is then as it was written or as
//! it arrives, never in between.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use crate::journal::closed;
use crate::stores::{copied, fsck};
use crate::trace::{Daemon, Fault, Point, points, spread};
use support::{Place, Random, assert_same, container_of, set, tierfs, try_get};

/// Calls before which a short run kills the daemon.
const TRIED: usize = 24;
/// Bytes of a row of 8x128 numbers of f32.
const ROW: usize = 8 * 128 * 4;

/// The files that arrive, as they are written.
struct Written {
    /// The first rows of a stream, and the rows that are appended to it; whole blocks.
    rows: [Vec<u8>; 2],
    /// A container that is renamed into place.
    container: Vec<u8>,
}

/// The changes that were acknowledged, in order: the rows, the appended rows, the container, its name.
const STEPS: usize = 4;

impl Written {
    fn new() -> Written {
        let mut random = Random(71);
        let rows = [0; 2].map(|_| random.floats(64 * ROW / 4));
        Written { rows, container: container_of(&mut random, &[("w", 90_000), ("v", 40_000)]) }
    }

    /// Writes them, and returns how many steps were acknowledged. Calls `after` after each.
    fn write(&self, folder: &Path, mut after: impl FnMut(&Path)) -> usize {
        let append = |bytes: &[u8]| {
            let mut file = OpenOptions::new().append(true).create(true).open(folder.join("rows"))?;
            file.write_all(bytes)?;
            closed(file)
        };
        let whole = || {
            let mut file = fs::File::create(folder.join("m.safetensors.tmp"))?;
            file.write_all(&self.container)?;
            closed(file)
        };
        let named = || fs::rename(folder.join("m.safetensors.tmp"), folder.join("m.safetensors"));
        let steps: [&dyn Fn() -> io::Result<()>; STEPS] =
            [&|| append(&self.rows[0]), &|| append(&self.rows[1]), &whole, &named];
        let done = steps.into_iter().take_while(|step| {
            step().is_ok_and(|()| {
                after(folder);
                true
            })
        });
        done.count()
    }
}

/// The bytes of a file, if it is there.
fn read(path: &Path) -> Option<Vec<u8>> {
    match fs::read(path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

#[test]
fn a_file_that_arrives_while_the_daemon_is_killed_is_exact_or_as_the_settings_say() {
    let place = Place::new();
    let kept = place.write("kept", b"kept");
    place.import("demo/c", &[&kept], &[]);
    let mounted = place.mount(&[]);
    let folder = mounted.path("demo/c/kv");
    fs::create_dir(&folder).unwrap();
    for (key, value) in [("lossy", "allow"), ("arrive", "q8:all"), ("dtype", "f32"), ("row", "8x128")] {
        set(&folder, key, value).unwrap();
    }
    mounted.unmount();

    let (written, notes) = (Written::new(), place.path("notes"));
    let (mut arrived_rows, mut arrived_container) = (Vec::new(), Vec::new());
    let store = copied(&place, &place.store());
    let daemon = Daemon::mount(&place, &store, &notes, None).unwrap();
    let done = written.write(&daemon.path("kv"), |folder| {
        arrived_rows.push(fs::read(folder.join("rows")).unwrap());
        arrived_container = read(&folder.join("m.safetensors")).unwrap_or_default();
    });
    assert_eq!(done, STEPS);
    daemon.end();
    let [first, second] = &written.rows;
    let [arrived, all_arrived, ..] = &arrived_rows[..] else { panic!("not all was written") };
    assert!(arrived != first, "the rows stay exact");
    assert!(all_arrived[..first.len()] == arrived[..], "rows change with an append");
    assert!(arrived_container != written.container, "the container stays exact");

    let mut hits = 0;
    for point in spread(points(&notes), TRIED) {
        let context = format!("killed before {point}");
        let store = copied(&place, &place.store());
        let done = killed(&place, &store, &written, &point, &notes);
        hits += usize::from(done < STEPS);
        fsck(&store, &context);
        let mounted = place.mount_store_by(&mut tierfs(), store, "mnt", &[]);
        let folder = mounted.path("demo/c/kv");

        let rows = read(&folder.join("rows")).unwrap_or_default();
        let versions =
            [vec![], first.clone(), arrived.clone(), [&arrived[..], second].concat(), all_arrived.clone()];
        // A kill between the reply and its arrival here counts as one step less.
        let version = versions.iter().position(|version| *version == rows);
        let version =
            version.unwrap_or_else(|| panic!("{context}: {} bytes of rows are no version", rows.len()));
        let least = [0, 2, 4][done.min(2)];
        assert!(version >= least, "{context}: after {done} steps version {version} of the rows is there");
        let (dtype, shape) = match version {
            0 => (None, None),
            1 => (Some("u8"), None),
            2 => (Some("f32"), Some("64x8x128")),
            _ => (Some("f32"), Some("128x8x128")),
        };
        for (key, wanted) in [("dtype", dtype), ("shape", shape)] {
            if let Some(wanted) = wanted {
                assert_eq!(try_get(&folder.join("rows"), key).unwrap(), wanted, "{context}: {key}");
            }
        }

        let temporary = read(&folder.join("m.safetensors.tmp"));
        let named = read(&folder.join("m.safetensors"));
        if done >= 3 {
            assert!(temporary.is_some() != named.is_some(), "{context}: one name");
        }
        if let Some(bytes) = temporary.filter(|_| done >= 3) {
            assert_same(&bytes, &written.container, &context);
        }
        if let Some(bytes) = named {
            assert!(bytes == written.container || bytes == arrived_container, "{context}: the container");
            assert!(done < STEPS || bytes == arrived_container, "{context}: the container stays exact");
        }
        mounted.unmount();
    }
    assert!(hits > TRIED / 3, "only {hits} daemons were killed while there was work");
}

/// Writes the files until the daemon is killed before a call. Returns the steps that were acknowledged.
fn killed(place: &Place, store: &Path, written: &Written, point: &Point, notes: &Path) -> usize {
    let Some(daemon) = Daemon::mount(place, store, notes, Some((point, Fault::Kill))) else { return 0 };
    let done = written.write(&daemon.path("kv"), |_| ());
    daemon.end();
    done
}
