//! Caches of keys and values: new files of 2 MiB and of 4 KiB by many writers, as the file tiers of inference engines make
//! them; tokens that are appended one by one; ranges that are read.
//!
//! A writer creates a file under a temporary name with O_EXCL, writes it with one call, closes it and renames it, in one of
//! 16 directories. Files are removed after each pass, outside of the time.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tierfs::model::Tier;

use super::{Kept, Shown};
use crate::Result;
use crate::daemon::Mounted;
use crate::place::{Place, Removed, missing};
use crate::python::Python;
use crate::table::{Checked, Contest, Row, Target};
use crate::values::Random;

const DIRECTORIES: usize = 16;
const LARGE: usize = 2 << 20;
const SMALL: usize = 4096;
const LARGE_FILES: u64 = 256;
const SMALL_FILES: u64 = 4000;
/// Bytes of a token in all layers of a small model, and how many follow each other.
const TOKEN: usize = 1536;
const TOKENS: u64 = 16_000;
/// Bytes of a range, and how many are read.
const RANGE: usize = 64 << 10;
const RANGES: u64 = 8000;
const ALIGN: usize = 4096;
/// The module of vLLM that stores and loads blocks, and the number of these.
const VLLM_IO: &str = "target/bench/vllm_io.py";
const VLLM_BLOCKS: u64 = 64;

/// Whether programs bypass the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Through {
    Cache,
    Direct,
}

impl Through {
    fn name(self) -> &'static str {
        if self == Through::Direct { "direct" } else { "cached" }
    }

    fn flags(self) -> i32 {
        if self == Through::Direct { libc::O_DIRECT } else { 0 }
    }
}

/// The work of a pass.
#[derive(Clone, Copy)]
struct Work {
    writers: usize,
    files: usize,
    bytes: usize,
    through: Through,
}

/// The figures of a pass.
struct Stored {
    seconds: f64,
    /// The 99th percentiles of the times of open and rename, in milliseconds.
    open: f64,
    rename: f64,
}

/// The rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for through in [Through::Cache, Through::Direct] {
        for writers in [1, 4, 16] {
            let name = format!("mount-kv.store-{writers}-{}", through.name());
            let what = format!("new files of 2 MiB, {}, {}", count(writers, "writer"), how(through));
            let reference = format!("the store's file system, {}", how(through));
            rows.push(Row::new(name, what, reference, "GB/s", Target::RatioAtLeast(0.6), move |place| {
                stored(place, writers, through)
            }));
        }
    }
    for through in [Through::Cache, Through::Direct] {
        let name = format!("mount-kv.load-{}", through.name());
        let what = format!("files of 2 MiB just stored, read by 16 readers, {}", how(through));
        let reference = format!("the store's file system, {}", how(through));
        rows.push(Row::new(name, what, reference, "GB/s", Target::Nothing, move |place| {
            loaded(place, through)
        }));
    }
    for writers in [1, 16] {
        let name = format!("mount-kv.small-{writers}");
        let what = format!("new files of 4 KiB, {}", count(writers, "writer"));
        let reference = "the store's file system through bindfs";
        rows.push(Row::new(name, what, reference, "thousand/s", Target::RatioAtLeast(0.5), move |place| {
            small(place, writers)
        }));
    }
    for through in [Through::Cache, Through::Direct] {
        let name = format!("mount-kv.core-{}", through.name());
        let what =
            format!("processor time of the daemon for a new file of 2 MiB, 16 writers, {}", how(through));
        rows.push(Row::new(name, what, "", "ms", Target::AtMost(0.6), move |place| {
            alone(place, through, |_, used| used)
        }));
    }
    type Time = fn(&Stored) -> f64;
    let times: [(&str, Time); 2] = [("open", |stored| stored.open), ("rename", |stored| stored.rename)];
    for (call, time) in times {
        let (name, what) =
            (format!("mount-kv.{call}-p99"), format!("p99 of {call}, 16 writers of 2 MiB, O_DIRECT"));
        rows.push(Row::new(name, what, "", "ms", Target::AtMost(5.0), move |place| {
            alone(place, Through::Direct, move |stored, _| time(stored))
        }));
    }
    for (verb, what) in [("store", "stored"), ("load", "loaded")] {
        let name = format!("mount-kv.vllm-{verb}");
        let what = format!("64 blocks of 2 MiB, {what} by vLLM's file tier with 16 threads");
        let target = if verb == "store" { Target::RatioAtLeast(0.6) } else { Target::Nothing };
        rows.push(Row::new(name, what, "the store's file system", "GB/s", target, move |place| {
            by_vllm(place, verb)
        }));
    }
    rows.push(Row::new(
        "mount-kv.append",
        "16,000 tokens of 1.5 KiB appended one by one to a new file",
        "the store's file system through bindfs",
        "thousand/s",
        Target::RatioAtLeast(0.5),
        appended,
    ));
    rows.push(Row::new(
        "mount-kv.range",
        "8,000 ranges of 64 KiB of files of 2 MiB: open, read, close",
        "the store's file system",
        "GB/s",
        Target::Nothing,
        ranges,
    ));
    rows
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn how(through: Through) -> &'static str {
    if through == Through::Direct { "O_DIRECT" } else { "by the page cache" }
}

/// Bytes that begin at a page.
struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0; len + ALIGN];
        Aligned { begin: bytes.as_ptr().align_offset(ALIGN), bytes, len }
    }

    fn all(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.len]
    }
}

/// A seed for each pass: no two passes store the same bytes.
fn next_seed() -> u64 {
    static SEED: AtomicUsize = AtomicUsize::new(1);
    SEED.fetch_add(1, Ordering::Relaxed) as u64
}

/// Makes the bytes of a file of a pass of others: a stamp for each page.
fn stamp(bytes: &mut [u8], seed: u64, file: usize) {
    for page in bytes.chunks_mut(ALIGN) {
        let (first, rest) = page.split_at_mut(8);
        first.copy_from_slice(&seed.to_le_bytes());
        if let Some(second) = rest.get_mut(..8) {
            second.copy_from_slice(&(file as u64).to_le_bytes());
        }
    }
}

fn random(len: usize) -> Aligned {
    let mut made = Aligned::new(len);
    Random::new(len as u64).fill(made.all());
    made
}

fn path_of(root: &Path, file: usize) -> PathBuf {
    root.join(format!("{:02x}", file % DIRECTORIES)).join(format!("{file}.bin"))
}

fn make_directories(root: &Path) -> Result<()> {
    for directory in 0..DIRECTORIES {
        fs::create_dir_all(root.join(format!("{directory:02x}")))?;
    }
    Ok(())
}

/// Runs `one` for each number below `count` on as many threads.
fn on_threads(
    threads: usize,
    count: usize,
    one: impl Fn(usize, &mut Aligned) -> Result<()> + Sync,
    bytes: usize,
) -> Result<()> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buffer = random(bytes);
                while let Some(number) =
                    Some(next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < count)
                {
                    if let Err(error) = one(number, &mut buffer) {
                        failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).replace(error);
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Stores files.
fn store(root: &Path, work: Work, seed: u64) -> Result<Stored> {
    let times = Mutex::new((Vec::new(), Vec::new()));
    let begun = Instant::now();
    let one = |file: usize, bytes: &mut Aligned| -> Result<()> {
        stamp(bytes.all(), seed, file);
        let path = path_of(root, file);
        let draft = path.with_extension("tmp");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(work.through.flags());
        let (begun, made) = (Instant::now(), options.open(&draft)?);
        let opened = begun.elapsed();
        made.write_all_at(bytes.all(), 0)?;
        drop(made);
        let begun = Instant::now();
        fs::rename(&draft, &path)?;
        let renamed = begun.elapsed();
        let mut times = times.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        times.0.push(opened);
        times.1.push(renamed);
        Ok(())
    };
    on_threads(work.writers, work.files, one, work.bytes)?;
    let seconds = begun.elapsed().as_secs_f64();
    let (open, rename) = times.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(Stored { seconds, open: p99(open), rename: p99(rename) })
}

fn p99(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    let place = (times.len() * 99 / 100).min(times.len().saturating_sub(1));
    times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
}

/// Reads all files once. Returns the time in seconds.
fn load(root: &Path, work: Work) -> Result<f64> {
    let begun = Instant::now();
    let one = |file: usize, bytes: &mut Aligned| -> Result<()> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).custom_flags(work.through.flags()).open(path_of(root, file))?;
        opened.read_exact_at(bytes.all(), 0)?;
        Ok(())
    };
    on_threads(work.writers, work.files, one, work.bytes)?;
    Ok(begun.elapsed().as_secs_f64())
}

fn remove(root: &Path, work: Work) -> Result<()> {
    (0..work.files).try_for_each(|file| Ok(fs::remove_file(path_of(root, file))?))
}

/// Whether each file has its bytes.
fn check(root: &Path, work: Work, seed: u64, what: &str) -> Result<Checked> {
    let mut expected = random(work.bytes);
    let mut checked = Checked::holds(what, work.files > 0)?;
    for file in 0..work.files {
        stamp(expected.all(), seed, file);
        let bytes = fs::read(path_of(root, file))?;
        checked = checked.and(Checked::bytes(&format!("{what}, file {file}"), &bytes, expected.all())?);
    }
    Ok(checked)
}

/// A mount of a store with nothing but a small file, and a directory of the store's file system.
struct Both {
    shown: Shown,
    plain: Removed,
}

impl Both {
    fn new(place: &Rc<Place>) -> Result<Rc<Both>> {
        place.shared("kv", || {
            let small = place.new_path("small.txt");
            fs::write(&small, b"a collection to write to")?;
            let kept = Rc::new(Kept::import(place, &small, Tier::Exact, &[])?);
            fs::remove_file(&small)?;
            let both =
                Both { shown: Shown::new(place, &kept, &[])?, plain: Removed(place.new_directory("plain")?) };
            make_directories(&both.ours())?;
            make_directories(&both.plain.0)?;
            Ok(both)
        })
    }

    fn ours(&self) -> PathBuf {
        self.shown.path("kv")
    }

    /// Stores once in both, and compares.
    fn checked(&self, work: Work, theirs: &Path) -> Result<Checked> {
        let mut checked = Checked::holds("files", true)?;
        for root in [self.ours().as_path(), theirs] {
            let seed = next_seed();
            store(root, work, seed)?;
            checked = checked.and(check(root, work, seed, &root.display().to_string())?);
            remove(root, work)?;
        }
        Ok(checked)
    }
}

/// The figure of storing and removing, outside of the time.
fn pass(root: &Path, work: Work) -> Result<Stored> {
    let stored = store(root, work, next_seed())?;
    remove(root, work)?;
    Ok(stored)
}

fn gigabytes(work: Work, seconds: f64) -> f64 {
    (work.files * work.bytes) as f64 / seconds / 1e9
}

fn large(place: &Place, writers: usize, through: Through) -> Work {
    Work { writers, files: place.scaled(LARGE_FILES) as usize, bytes: LARGE, through }
}

fn stored(place: &Rc<Place>, writers: usize, through: Through) -> Result<Contest> {
    let (both, work) = (Both::new(place)?, large(place, writers, through));
    let checked = both.checked(work, &both.plain.0)?;
    let also = both.clone();
    Contest::new(
        checked,
        move || Ok(gigabytes(work, pass(&both.ours(), work)?.seconds)),
        move || Ok(gigabytes(work, pass(&also.plain.0, work)?.seconds)),
    )
}

fn loaded(place: &Rc<Place>, through: Through) -> Result<Contest> {
    let (both, work) = (Both::new(place)?, large(place, 16, through));
    let checked = both.checked(work, &both.plain.0)?;
    let measured = move |root: &Path| -> Result<f64> {
        store(root, work, next_seed())?;
        let seconds = load(root, work)?;
        remove(root, work)?;
        Ok(gigabytes(work, seconds))
    };
    let also = both.clone();
    Contest::new(checked, move || measured(&both.ours()), move || measured(&also.plain.0))
}

/// The store's file system through bindfs.
fn bindfs(place: &Place) -> Result<(Mounted, Removed)> {
    let below = Removed(place.new_directory("below")?);
    let mountpoint = place.new_directory("mnt")?;
    if Command::new("bindfs").arg("--version").output().is_err() {
        return Err(missing("bindfs is not installed (scripts/setup.sh bench)"));
    }
    let mut command = Command::new("bindfs");
    command.arg("-f").arg(&below.0).arg(&mountpoint);
    Ok((Mounted::begin(command, mountpoint)?, below))
}

fn small(place: &Rc<Place>, writers: usize) -> Result<Contest> {
    let both = Both::new(place)?;
    let files = place.scaled(SMALL_FILES) as usize;
    let work = Work { writers, files, bytes: SMALL, through: Through::Cache };
    let peer = bindfs(place)?;
    let theirs = peer.0.path("kv");
    make_directories(&theirs)?;
    let checked = both.checked(work, &theirs)?;
    let thousands = move |stored: Stored| files as f64 / stored.seconds / 1e3;
    Contest::new(
        checked,
        move || Ok(thousands(pass(&both.ours(), work)?)),
        move || {
            let _mounted = &peer;
            Ok(thousands(pass(&theirs, work)?))
        },
    )
}

/// A figure of storing with 16 writers: of the pass, and of the milliseconds that the daemon's process uses for a file.
fn alone(
    place: &Rc<Place>,
    through: Through,
    figure: impl Fn(&Stored, f64) -> f64 + 'static,
) -> Result<Contest> {
    let (both, work) = (Both::new(place)?, large(place, 16, through));
    let checked = both.checked(work, &both.plain.0)?;
    Contest::alone(checked, move || {
        let process = both.shown.mounted.process()?;
        let before = processor_seconds(process)?;
        let stored = store(&both.ours(), work, next_seed())?;
        let used = processor_seconds(process)? - before;
        remove(&both.ours(), work)?;
        Ok(figure(&stored, used * 1e3 / work.files as f64))
    })
}

/// The processor time that a process has used, in seconds.
fn processor_seconds(process: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks =
        |place: usize| -> Result<f64> { Ok(fields.get(place).ok_or("/proc/PID/stat is short")?.parse()?) };
    // SAFETY: sysconf takes a number and touches no memory.
    let each = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok((ticks(11)? + ticks(12)?) / each)
}

/// Blocks stored, or loaded, by vLLM's own program, which compares the bytes that it loads.
fn by_vllm(place: &Rc<Place>, verb: &'static str) -> Result<Contest> {
    if !Path::new(VLLM_IO).exists() {
        return Err(missing(&format!("{VLLM_IO} is not there (scripts/setup.sh bench)")));
    }
    let both = Both::new(place)?;
    let blocks = place.scaled(VLLM_BLOCKS);
    let vllm = Python::start("tests/bench/vllm_kv.py", &[VLLM_IO, &blocks.to_string()])?;
    let vllm = Rc::new(RefCell::new(vllm));
    let (ours, theirs) = (both.ours().join("vllm"), both.plain.0.join("vllm"));
    let measured = move |vllm: &RefCell<Python>, directory: &Path| -> Result<f64> {
        let mut vllm = vllm.borrow_mut();
        let stored = vllm.seconds("store", directory)?;
        let loaded = vllm.seconds("load", directory)?;
        vllm.ask("clear", directory)?;
        let seconds = if verb == "store" { stored } else { loaded };
        Ok((blocks as usize * LARGE) as f64 / seconds / 1e9)
    };
    let mut checked = Checked::holds("blocks", blocks > 0)?;
    for directory in [&ours, &theirs] {
        fs::create_dir_all(directory)?;
        let is_right = measured(&vllm, directory)? > 0.0;
        checked = checked.and(Checked::holds(&directory.display().to_string(), is_right)?);
    }
    let also = vllm.clone();
    Contest::new(
        checked,
        move || {
            let _mounted = &both;
            measured(&vllm, &ours)
        },
        move || measured(&also, &theirs),
    )
}

fn append(path: &Path, tokens: u64, token: &[u8]) -> Result<f64> {
    let begun = Instant::now();
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    for _ in 0..tokens {
        file.write_all(token)?;
    }
    drop(file);
    Ok(tokens as f64 / begun.elapsed().as_secs_f64() / 1e3)
}

fn appended(place: &Rc<Place>) -> Result<Contest> {
    let both = Both::new(place)?;
    let peer = bindfs(place)?;
    let tokens = place.scaled(TOKENS);
    let token = random(TOKEN).all().to_vec();
    let (ours, theirs) = (both.ours().join("tokens"), peer.0.path("tokens"));
    let mut checked = Checked::holds("tokens", true)?;
    for path in [&ours, &theirs] {
        append(path, tokens, &token)?;
        let right = token.repeat(tokens as usize);
        checked = checked.and(Checked::bytes(&path.display().to_string(), &fs::read(path)?, &right)?);
        fs::remove_file(path)?;
    }
    let also = token.clone();
    let pass = move |path: &Path, token: &[u8]| -> Result<f64> {
        let rate = append(path, tokens, token)?;
        fs::remove_file(path)?;
        Ok(rate)
    };
    Contest::new(
        checked,
        move || {
            let _mounted = &both;
            pass(&ours, &token)
        },
        move || {
            let _mounted = &peer;
            pass(&theirs, &also)
        },
    )
}

fn ranges(place: &Rc<Place>) -> Result<Contest> {
    let (both, work) = (Both::new(place)?, large(place, 4, Through::Cache));
    let count = place.scaled(RANGES);
    let mut checked = Checked::holds("files", true)?;
    for root in [both.ours(), both.plain.0.clone()] {
        let seed = next_seed();
        store(&root, work, seed)?;
        checked = checked.and(check(&root, work, seed, &root.display().to_string())?);
    }
    let read = move |root: &Path| -> Result<f64> {
        let mut random = Random::new(9);
        let mut bytes = vec![0; RANGE];
        let begun = Instant::now();
        for _ in 0..count {
            let file = random.next() as usize % work.files;
            let at = random.next() % (LARGE / RANGE) as u64 * RANGE as u64;
            File::open(path_of(root, file))?.read_exact_at(&mut bytes, at)?;
        }
        Ok(count as f64 * RANGE as f64 / begun.elapsed().as_secs_f64() / 1e9)
    };
    let also = both.clone();
    Contest::new(checked, move || read(&both.ours()), move || read(&also.plain.0))
}
