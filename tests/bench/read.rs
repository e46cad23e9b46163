//! Ways to read a file, timed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::values::Random;

/// Bytes of a call, unless a row says otherwise.
pub const CALL: usize = 1 << 20;
const PAGE: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// Through the kernel's cache.
    Cache,
    /// Without the cache: O_DIRECT.
    Nothing,
    /// Through the kernel's cache, opened to write as well: a daemon that offers passthrough serves these reads
    /// itself.
    Daemon,
}

/// Memory that is aligned for O_DIRECT.
pub struct Buffer {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl Buffer {
    /// Zeros that begin at a page.
    pub fn new(len: usize) -> Buffer {
        // Written to, so that its pages exist before the measurement.
        let bytes = vec![1_u8; len + PAGE];
        let begin = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, begin, len }
    }

    /// The bytes.
    pub fn get(&mut self) -> &mut [u8] {
        let (begin, end) = (self.begin, self.begin + self.len);
        &mut self.bytes[begin..end]
    }
}

/// Opens a file to read.
pub fn open(path: &Path, through: Through) -> Result<File> {
    let flags = if through == Through::Nothing { libc::O_DIRECT } else { 0 };
    let writes = through == Through::Daemon;
    let opened = OpenOptions::new().read(true).write(writes).custom_flags(flags).open(path);
    Ok(opened.map_err(|error| format!("{}: {error}", path.display()))?)
}

/// Reads a file from `from` on; returns the bytes read.
pub fn all(file: &File, from: u64, buffer: &mut [u8]) -> io::Result<u64> {
    let mut offset = from;
    loop {
        match file.read_at(buffer, offset)? {
            0 => return Ok(offset - from),
            count => offset += count as u64,
        }
    }
}

/// Has the kernel forget the pages of a file.
pub fn forget(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    // SAFETY: the descriptor is open; nothing is passed but numbers.
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code).into()) }
}

/// Has the kernel read no more of a file than programs ask for.
pub fn forbid_read_ahead(file: &File) -> Result<()> {
    // SAFETY: the descriptor is open; nothing is passed but numbers.
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code).into()) }
}

/// The state of a file's pages in the kernel when a pass begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// They are dropped first.
    Cold,
    /// They stay as they are.
    Kept,
}

/// Opens a file and reads it once, in GB/s.
pub fn speed(path: &Path, call: usize, through: Through, pages: Pages) -> Result<f64> {
    let mut buffer = Buffer::new(call);
    if pages == Pages::Cold {
        forget(path)?;
    }
    let begun = Instant::now();
    let file = open(path, through)?;
    let bytes = all(&file, 0, buffer.get())?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

/// Reads files once, each in a thread of its own; the sum in GB/s.
pub fn speed_of_many(paths: &[&Path], call: usize, through: Through) -> Result<f64> {
    for path in paths {
        forget(path)?;
    }
    let files = paths.iter().map(|path| open(path, through)).collect::<Result<Vec<_>>>()?;
    let begun = Instant::now();
    let bytes = std::thread::scope(|scope| {
        let readers = files.iter().map(|file| scope.spawn(move || all(file, 0, Buffer::new(call).get())));
        let readers: Vec<_> = readers.collect();
        let read = |reader: std::thread::ScopedJoinHandle<'_, io::Result<u64>>| {
            reader.join().unwrap_or_else(|_| Err(io::Error::other("a reader panicked")))
        };
        readers.into_iter().map(read).sum::<io::Result<u64>>()
    })?;
    Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

/// The digest of a file from `from` on.
pub fn digest(path: &Path, from: u64, through: Through) -> Result<blake3::Hash> {
    let mut buffer = Buffer::new(CALL);
    let file = open(path, through)?;
    let mut hasher = blake3::Hasher::new();
    let mut offset = from;
    loop {
        match file.read_at(buffer.get(), offset)? {
            0 => return Ok(hasher.finalize()),
            count => {
                hasher.update(&buffer.get()[..count]);
                offset += count as u64;
            }
        }
    }
}

/// A mapped file.
pub struct Map {
    address: *mut libc::c_void,
    len: usize,
}

impl Map {
    /// Maps a whole file, shared.
    pub fn of(path: &Path) -> Result<Map> {
        let file = File::open(path)?;
        let len = file.metadata()?.len() as usize;
        // SAFETY: the kernel chooses the address, and the file stays as it is while a row runs.
        let address = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED {
            Err(io::Error::last_os_error().into())
        } else {
            Ok(Map { address, len })
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped in `of`, so long, until this is dropped.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) }
    }

    /// The share of its pages that are in memory.
    pub fn resident(&self) -> Result<f64> {
        let mut pages = vec![0_u8; self.len.div_ceil(PAGE)];
        // SAFETY: the mapping is this long, and there is a byte for each page.
        let code = unsafe { libc::mincore(self.address, self.len, pages.as_mut_ptr()) };
        if code != 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(pages.iter().filter(|page| **page & 1 == 1).count() as f64 / pages.len().max(1) as f64)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapped in `of`; nothing refers to it any more.
        unsafe { libc::munmap(self.address, self.len) };
    }
}

/// Maps a file and touches every page, in GB/s.
pub fn touch(path: &Path) -> Result<f64> {
    let begun = Instant::now();
    let map = Map::of(path)?;
    let sum: u64 = map.bytes().iter().step_by(PAGE).map(|byte| u64::from(*byte)).sum();
    std::hint::black_box(sum);
    Ok(map.len as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

/// Reads of 4 KiB at random places with O_DIRECT: microseconds of each, sorted.
pub fn latencies(path: &Path, count: usize, seed: u64) -> Result<Vec<f64>> {
    // The kernel would look up cached pages and drop them.
    forget(path)?;
    let file = open(path, Through::Nothing)?;
    let pages = file.metadata()?.len() / PAGE as u64;
    let mut buffer = Buffer::new(PAGE);
    let mut random = Random::new(seed);
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let offset = random.next() % pages * PAGE as u64;
        let begun = Instant::now();
        file.read_exact_at(buffer.get(), offset)?;
        found.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    found.sort_by(f64::total_cmp);
    Ok(found)
}

/// The percentile: this many of a hundred figures lie below it.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted.get(sorted.len() * percent / 100).copied().unwrap_or(f64::NAN)
}
