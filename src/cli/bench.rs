//! `tierfs bench`.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use memmap2::Mmap;

use crate::cli::Outcome;
use crate::cli::common::output::{human, print, print_json};
use crate::codec;
use crate::model::{Dtype, Encoder, Error, Result, Tier};

/// Bytes per read call.
const CALL_BYTES: usize = 1 << 20;
/// Bytes of a small read, and the number of small reads in a pass.
const PAGE_BYTES: usize = 4096;
const SMALL_READS: u64 = 2000;
/// Elements that the codecs work on: 128 KiB of f32, which fit the second-level cache.
const ELEMENTS: usize = 32 << 10;
/// Duration of one pass of a codec.
const PASS: Duration = Duration::from_millis(20);

/// Measure reads of files against a plain copy of them, and the codecs against memcpy.
///
/// Copies each file to the directory for temporary files and compares the two before it measures.
/// Rounds on the file and on the copy alternate; the first round is a warm-up. Prints the median, the
/// smallest and the largest ratio. Without paths, measures the codecs only.
///
/// Example: tierfs bench /mnt/acme/llama/model.safetensors
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files, on a mount or not
    paths: Vec<PathBuf>,
    /// Number of rounds to measure
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Directory for the plain copies, on the file system to compare with [default: temporary directory]
    #[arg(long, value_name = "DIRECTORY")]
    copy_to: Option<PathBuf>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

/// A measurement, with the figures of each turn: ours and the reference's.
struct Row {
    what: String,
    reference: &'static str,
    unit: &'static str,
    turns: Vec<(f64, f64)>,
}

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let mut rows = Vec::new();
        for path in &self.paths {
            self.measure_file(path, &mut rows)?;
        }
        if self.paths.is_empty() {
            self.measure_codecs(&mut rows)?;
        }
        if self.json {
            print_json(&rows.iter().map(Row::to_json).collect::<Vec<_>>().into())?
        } else {
            print(&rows.iter().map(Row::line).collect::<String>())?
        }
        Ok(Outcome::Succeeded)
    }

    fn measure_file(&self, path: &Path, rows: &mut Vec<Row>) -> Result<()> {
        let failed = |error| Error::io(path.display(), error);
        let bytes = fs::metadata(path).map_err(failed)?.len();
        if bytes < PAGE_BYTES as u64 {
            let text = format!("{} has {bytes} bytes; a file to measure needs at least 4096", path.display());
            return Err(Error::invalid(text));
        }
        let copy = Copied::of(path, self.copy_to.as_deref())?;
        copy.check(path)?;
        let kinds: [(&str, &str, Figure); 4] = [
            ("sequential, uncached", "GB/s", |path| {
                forget(path)?;
                sequential(path)
            }),
            ("sequential, cached", "GB/s", sequential),
            ("mmap, every page", "GB/s", mapped),
            ("random 4 KiB, O_DIRECT, median", "us", random),
        ];
        for (what, unit, figure) in kinds {
            let turns = self.turns(|| figure(path), || figure(&copy.path))?;
            let what = format!("{}: {what}, {}", path.display(), human(bytes));
            rows.push(Row { what, reference: "a plain file", unit, turns });
        }
        Ok(())
    }

    fn measure_codecs(&self, rows: &mut Vec<Row>) -> Result<()> {
        let raw = values();
        for tier in Tier::ENCODED {
            let mut payload = Vec::new();
            let encoded = codec::encode(tier, Encoder::Absmax, Dtype::F32, &raw, &mut payload)?;
            encoded.map_err(|_| Error::invalid("the values cannot be encoded"))?;
            let mut out = vec![0; raw.len()];
            let mut decode = || codec::decode(tier, Dtype::F32, black_box(&payload), ELEMENTS, &mut out);
            let decoding = || rate(&mut decode);
            let turns = self.turns(decoding, || copying(&raw))?;
            let what = format!("decode {} to f32, {}", tier.name(), codec::instruction_set());
            rows.push(Row { what, reference: "memcpy", unit: "GB/s", turns });
            let mut again = Vec::with_capacity(raw.len());
            let mut encode = || {
                again.clear();
                codec::encode(tier, Encoder::Absmax, Dtype::F32, black_box(&raw), &mut again).map(drop)
            };
            let turns = self.turns(|| rate(&mut encode), || copying(&raw))?;
            let what = format!("encode {} of f32, absmax", tier.name());
            rows.push(Row { what, reference: "memcpy", unit: "GB/s", turns });
        }
        Ok(())
    }

    /// Runs both once to warm up, then measures them in alternation.
    fn turns(
        &self,
        mut ours: impl FnMut() -> Result<f64>,
        mut reference: impl FnMut() -> Result<f64>,
    ) -> Result<Vec<(f64, f64)>> {
        ours()?;
        reference()?;
        (0..self.rounds).map(|_| Ok((ours()?, reference()?))).collect()
    }
}

impl Row {
    /// The median, the smallest and the largest figure.
    fn spread(&self, figure: impl Fn(&(f64, f64)) -> f64) -> [f64; 3] {
        let mut sorted: Vec<f64> = self.turns.iter().map(figure).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
        [at(sorted.len() / 2), at(0), at(sorted.len().saturating_sub(1))]
    }

    fn line(&self) -> String {
        let ([ours, ..], [reference, ..]) = (self.spread(|turn| turn.0), self.spread(|turn| turn.1));
        let [ratio, least, largest] = self.spread(|turn| turn.0 / turn.1);
        let (what, unit, against) = (&self.what, self.unit, self.reference);
        format!(
            "{what}\n    {ours:.2} {unit}; {against} {reference:.2} {unit}; ratio {ratio:.2} ({least:.2} to {largest:.2})\n"
        )
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "what": self.what,
            "reference": self.reference,
            "unit": self.unit,
            "ours": self.spread(|turn| turn.0),
            "of_reference": self.spread(|turn| turn.1),
            "ratio": self.spread(|turn| turn.0 / turn.1),
        })
    }
}

/// Measures a file, in GB/s or microseconds.
type Figure = fn(&Path) -> Result<f64>;

/// A plain copy of a file, removed on drop.
struct Copied {
    path: PathBuf,
}

impl Copied {
    fn of(path: &Path, directory: Option<&Path>) -> Result<Copied> {
        let directory = directory.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let copied = Copied { path: directory.join(format!("tierfs-bench-{}", std::process::id())) };
        let failed =
            |error| Error::io(format!("copying {} to {}", path.display(), directory.display()), error);
        let mut to = File::create_new(&copied.path).map_err(failed)?;
        std::io::copy(&mut File::open(path).map_err(failed)?, &mut to).map_err(failed)?;
        // The kernel cannot drop dirty pages.
        to.sync_all().map_err(failed)?;
        Ok(copied)
    }

    /// Fails unless the file still reads the same as its copy.
    fn check(&self, path: &Path) -> Result<()> {
        forget(path)?;
        if digest(path)? == digest(&self.path)? {
            Ok(())
        } else {
            Err(Error::corrupt(format!("two reads of {} returned different bytes", path.display())))
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        fs::remove_file(&self.path).unwrap_or_else(|error| log::warn!("{}: {error}", self.path.display()));
    }
}

fn digest(path: &Path) -> Result<blake3::Hash> {
    let failed = |error| Error::io(path.display(), error);
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).map_err(failed)?).map_err(failed)?;
    Ok(hasher.finalize())
}

/// Asks the kernel to drop a file's page cache.
fn forget(path: &Path) -> Result<()> {
    let failed = |error| Error::io(path.display(), error);
    let file = File::open(path).map_err(failed)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).map_err(|errno| failed(errno.into()))
}

fn sequential(path: &Path) -> Result<f64> {
    let failed = |error| Error::io(path.display(), error);
    let mut buffer = vec![1; CALL_BYTES];
    let mut file = File::open(path).map_err(failed)?;
    let (begun, mut bytes) = (Instant::now(), 0);
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(bytes as f64 / begun.elapsed().as_secs_f64() / 1e9),
            count => bytes += count,
        }
    }
}

/// Maps a file and touches each page, as programs that load models do.
fn mapped(path: &Path) -> Result<f64> {
    let failed = |error| Error::io(path.display(), error);
    let begun = Instant::now();
    let file = File::open(path).map_err(failed)?;
    // SAFETY: the mapping is only read. If another program truncates the file, this process ends, as any does that maps it.
    let mapping = unsafe { Mmap::map(&file) }.map_err(failed)?;
    black_box(mapping.iter().step_by(PAGE_BYTES).fold(0_u64, |sum, byte| sum + u64::from(*byte)));
    let (bytes, seconds) = (mapping.len(), begun.elapsed().as_secs_f64());
    Ok(bytes as f64 / seconds / 1e9)
}

/// The median time of small uncached reads, in microseconds.
fn random(path: &Path) -> Result<f64> {
    let failed = |error| Error::io(path.display(), error);
    // A direct read would first have to invalidate cached pages.
    forget(path)?;
    let direct = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path);
    let file = direct.map_err(failed)?;
    let pages = file.metadata().map_err(failed)?.len() / PAGE_BYTES as u64;
    // Twice the size, so that it contains an aligned page.
    let mut memory = vec![1_u8; 2 * PAGE_BYTES];
    let begin = memory.as_ptr().align_offset(PAGE_BYTES);
    let page = memory.get_mut(begin..begin + PAGE_BYTES).unwrap_or_default();
    let mut times = Vec::new();
    let mut number: u64 = 1;
    for _ in 0..SMALL_READS {
        // Knuth's linear congruential generator: its upper bits are random enough.
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let begun = Instant::now();
        file.read_exact_at(page, (number >> 16) % pages * PAGE_BYTES as u64).map_err(failed)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN))
}

/// Values of many magnitudes and both signs, as little-endian f32.
fn values() -> Vec<u8> {
    let value = |number: usize| ((number * 7919 % 20_011) as f32 - 10_005.0) / 500_000.0;
    (0..ELEMENTS).flat_map(|number| value(number).to_le_bytes()).collect()
}

/// Throughput of `work` over the elements, in GB/s of f32.
fn rate<T>(work: &mut impl FnMut() -> Result<T>) -> Result<f64> {
    let (begun, mut calls) = (Instant::now(), 0_u32);
    while begun.elapsed() < PASS {
        work()?;
        calls += 1;
    }
    Ok(f64::from(calls) * (ELEMENTS * 4) as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn copying(raw: &[u8]) -> Result<f64> {
    let mut copy = vec![0; raw.len()];
    rate(&mut || {
        black_box(&mut copy).copy_from_slice(black_box(raw));
        Ok(())
    })
}
