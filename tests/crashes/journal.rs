//! A journal of the changes that programs make through a mount, and of the contents that may be read afterwards.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::{Random, assert_same, container_of, npy_file};

/// Block length of a small file.
pub const BLOCK: usize = 16 << 10;
/// The kernel may split a write at pages: some parts of a failed write may have succeeded.
pub const PAGE: usize = 4 << 10;

/// Number of threads in which a call of the same number may fail.
const THREADS: usize = 4;

/// How a change becomes visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    /// All of it or nothing.
    Whole,
    /// Each unit of it or not.
    Blocks,
    /// As a prefix: a file that is being written.
    Bytes,
}

/// The contents that a name may have; `None`: it may be missing.
#[derive(Clone, Default)]
struct Expected {
    acknowledged: Option<Vec<u8>>,
    under_way: Option<(Option<Vec<u8>>, How)>,
}

/// The changes, and whether they were acknowledged.
#[derive(Clone, Default)]
pub struct Journal {
    files: BTreeMap<String, Expected>,
    /// Acknowledged steps, and failed ones with their errors.
    pub done: usize,
    pub failed: Vec<(String, i32)>,
    /// The unit of a write inside a file: its bytes are all old or all new.
    unit: usize,
    /// Steps that found the disk full and were repeated.
    pub full: usize,
}

/// The reaction to an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// The work ends: the daemon was killed.
    Stop,
    /// The name is left alone, and other steps follow.
    GoOn,
}

/// Some steps.
type Work<'a> = &'a dyn Fn(&mut Journal) -> io::Result<()>;

/// One step: the names that it changes, their new contents, and the action.
struct Step<'a> {
    what: &'a str,
    becomes: Vec<(String, Option<Vec<u8>>, How)>,
}

impl Journal {
    /// An empty journal; writes inside files are old or new in units of this many bytes.
    pub fn by(unit: usize) -> Journal {
        Journal { unit, ..Journal::default() }
    }

    /// The same, in other units.
    pub fn with_unit(self, unit: usize) -> Journal {
        Journal { unit, ..self }
    }

    fn last(&self, name: &str) -> Option<Vec<u8>> {
        self.files.get(name)?.acknowledged.clone()
    }

    fn is_unsure(&self, name: &str) -> bool {
        self.files.get(name).is_some_and(|expected| expected.under_way.is_some())
    }

    /// Records a step, runs it, and records its result. A write that finds the disk full is repeated: nothing may have
    /// changed.
    fn step(&mut self, step: Step<'_>, doing: impl Fn() -> io::Result<()>) -> io::Result<()> {
        if step.becomes.iter().any(|(name, ..)| self.is_unsure(name)) {
            return Ok(());
        }
        for (name, bytes, how) in &step.becomes {
            self.files.entry(name.clone()).or_default().under_way = Some((bytes.clone(), *how));
        }
        let mut result = doing();
        let is_written = step.becomes.iter().all(|(_, _, how)| *how != How::Whole);
        let is_full = |error: &io::Error| error.raw_os_error() == Some(libc::ENOSPC);
        // Each thread of the daemon may find the disk full once.
        for _ in 0..THREADS {
            if is_written && result.as_ref().is_err_and(is_full) {
                self.full += 1;
                result = doing();
            }
        }
        assert!(
            !(is_written && result.as_ref().is_err_and(is_full)),
            "{}, a full disk stays full",
            step.what
        );
        if let Err(error) = result {
            self.failed.push((step.what.to_owned(), error.raw_os_error().unwrap_or_default()));
            return Err(error);
        }
        self.done += 1;
        for (name, ..) in &step.becomes {
            let expected = self.files.get_mut(name).unwrap();
            expected.acknowledged = expected.under_way.take().unwrap().0;
        }
        Ok(())
    }

    /// Writes a file and closes it.
    fn put(&mut self, folder: &Path, name: &str, bytes: &[u8], is_synced: bool) -> io::Result<()> {
        let becomes = vec![(name.to_owned(), Some(bytes.to_vec()), How::Bytes)];
        self.step(Step { what: &format!("write {name}"), becomes }, || {
            let file = File::create(folder.join(name))?;
            for (place, piece) in bytes.chunks(100_000).enumerate() {
                file.write_all_at(piece, place as u64 * 100_000)?;
            }
            if is_synced {
                file.sync_all()?;
            }
            closed(file)
        })
    }

    /// Writes a file beside another and renames it over that one.
    fn replace(&mut self, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
        let part = format!(".{name}.part");
        self.put(folder, &part, bytes, false)?;
        let becomes =
            vec![(part.clone(), None, How::Whole), (name.to_owned(), Some(bytes.to_vec()), How::Whole)];
        if self.is_unsure(&part) {
            return Ok(());
        }
        let what = format!("rename over {name}");
        self.step(Step { what: &what, becomes }, || fs::rename(folder.join(&part), folder.join(name)))
    }

    /// Records the present content of a name.
    pub fn note(&mut self, folder: &Path, name: &str) {
        let acknowledged = Some(fs::read(folder.join(name)).unwrap());
        self.files.insert(name.to_owned(), Expected { acknowledged, under_way: None });
    }

    /// Writes inside a file.
    fn patch(&mut self, folder: &Path, name: &str, at: usize, bytes: &[u8]) -> io::Result<()> {
        let Some(mut new) = self.last(name) else { return Ok(()) };
        new[at..at + bytes.len()].copy_from_slice(bytes);
        let becomes = vec![(name.to_owned(), Some(new), How::Blocks)];
        self.step(Step { what: &format!("write inside {name}"), becomes }, || {
            let file = File::options().write(true).open(folder.join(name))?;
            file.write_all_at(bytes, at as u64)?;
            file.sync_data()?;
            closed(file)
        })
    }

    fn remove(&mut self, folder: &Path, name: &str) -> io::Result<()> {
        let becomes = vec![(name.to_owned(), None, How::Whole)];
        self.step(Step { what: &format!("remove {name}"), becomes }, || fs::remove_file(folder.join(name)))
    }

    /// Runs a mixture of all steps.
    pub fn work(&mut self, folder: &Path, seed: u64, after: After) {
        let mut random = Random(seed);
        let container = |random: &mut Random| container_of(random, &[("a", 9000), ("deep/b", 30_001)]);
        for round in 0..2 {
            let bytes = [random.bytes(50_000), random.bytes(3000), random.bytes(300_000)];
            let array = npy_file(&random.floats(7000));
            let (first, second) = (container(&mut random), container(&mut random));
            let inside = random.bytes(40_000);
            let steps: [Work<'_>; 12] = [
                &|journal| journal.put(folder, "plain", &bytes[0], false),
                &|journal| journal.put(folder, "small", &bytes[1], round == 0),
                &|journal| journal.replace(folder, "replaced", &bytes[2]),
                &|journal| journal.put(folder, "x.npy", &array, round == 1),
                &|journal| journal.put(folder, "m.safetensors", &first, true),
                &|journal| journal.patch(folder, "kept", 20_000 + round, &inside),
                &|journal| journal.patch(folder, "replaced", 100_001, &inside),
                &|journal| journal.replace(folder, "m.safetensors", &second),
                &|journal| journal.patch(folder, ".tensors/w", 400, &inside[..40]),
                &|journal| journal.patch(folder, ".tensors/w", 16_380, &inside[..20_000]),
                &|journal| journal.remove(folder, "small"),
                &|journal| journal.patch(folder, "plain", 4097, &inside[..100]),
            ];
            for step in steps {
                if step(self).is_err() && after == After::Stop {
                    return;
                }
            }
        }
    }

    /// Each name has one of its allowed contents, and containers agree with their tensors.
    pub fn check(&self, folder: &Path, context: &str) {
        self.check_but(folder, context, &|_| false);
    }

    /// The same after a call has failed: a container that was being changed has its tensors after the next mount.
    pub fn check_there(&self, folder: &Path, context: &str) {
        let may_be_missing = |expected: &Expected| expected.under_way.is_some();
        self.check_but(folder, &format!("{context}, before its end"), &may_be_missing);
    }

    fn check_but(&self, folder: &Path, context: &str, may_be_missing: &dyn Fn(&Expected) -> bool) {
        for (name, expected) in &self.files {
            let what = format!("{context}: {name}");
            let found = match fs::read(folder.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                read => Some(read.unwrap_or_else(|error| panic!("{what}: {error}"))),
            };
            if name.ends_with(".safetensors")
                && !may_be_missing(expected)
                && let Some(found) = &found
                && let Ok(parsed) = safetensors::SafeTensors::deserialize(found)
            {
                for (tensor, view) in parsed.tensors() {
                    let read = fs::read(folder.join(".tensors").join(&tensor));
                    let read = read.unwrap_or_else(|error| panic!("{what}, {tensor}: {error}"));
                    assert_same(&read, view.data(), &format!("{what}, {tensor}"));
                }
            }
            if found == expected.acknowledged {
                continue;
            }
            let Some((new, how)) = &expected.under_way else {
                let lens = [&found, &expected.acknowledged].map(|bytes| bytes.as_ref().map(Vec::len));
                panic!("{what} is not what was acknowledged: {lens:?} bytes");
            };
            let right = found == *new
                || match how {
                    How::Whole => false,
                    How::Blocks => is_mixed(&found, &expected.acknowledged, new, self.unit),
                    How::Bytes => is_begun(&found, &expected.acknowledged, new),
                };
            assert!(right, "{what}: {:?} bytes that nobody wrote", found.map(|found| found.len()));
        }
    }
}

type Bytes = Option<Vec<u8>>;

fn is_mixed(found: &Bytes, old: &Bytes, new: &Bytes, unit: usize) -> bool {
    let (Some(found), Some(old), Some(new)) = (found, old, new) else { return false };
    let versions = old.chunks(unit).zip(new.chunks(unit));
    found.len() == old.len()
        && found.chunks(unit).zip(versions).all(|(it, (old, new))| it == old || it == new)
}

/// A file that is being written has a prefix of its bytes, perhaps followed by zeros.
fn is_begun(found: &Bytes, old: &Bytes, new: &Bytes) -> bool {
    let (Some(found), Some(new)) = (found, new) else { return old.is_none() && found.is_none() };
    found.len() <= new.len() && found.iter().zip(new).all(|(it, new)| it == new || *it == 0)
}

/// The standard library ignores errors of close.
pub fn closed(file: File) -> io::Result<()> {
    // SAFETY: the descriptor was this file's alone, and is not used after this.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
