//! `tierfs gpu-read`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::Outcome;
use crate::cli::common::output::{print, print_json};
use crate::gpu::{self, Compared, ComparedOn, Options, Report, Route, Span, Wanted};
use crate::model::{ErrorKind, Result};

/// Read files into the memory of a GPU and report the route of each read.
///
/// cuFile reads a file whose bytes lie in one physical file. Any other file goes through pinned host memory.
/// Exits with 1 if the CUDA driver or the device is missing, with 3 if compared bytes differ.
///
/// Example: tierfs gpu-read --verify /mnt/acme/llama/.tensors/model.layers.0.weight
#[derive(clap::Args)]
pub(super) struct Args {
    /// Files, on a mount or not
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Start at this byte of each file
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    offset: u64,
    /// Number of bytes to read [default: up to the end of the file]
    #[arg(long, value_name = "BYTES")]
    len: Option<u64>,
    /// Compare the bytes on the device with an ordinary read of the file
    #[arg(long)]
    verify: bool,
    /// Read each file five times by each available route and print table rows
    #[arg(long)]
    bench: bool,
    /// Route of the reads
    #[arg(long, value_enum, default_value_t = Way::Auto)]
    route: Way,
    /// Number of the CUDA device, from 0
    #[arg(long, value_name = "N", default_value_t = 0)]
    device: u32,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Way {
    /// cuFile where possible, otherwise through host memory
    Auto,
    /// cuFile only; fail where it cannot read the file
    Cufile,
    Host,
}

/// Reads per route in a benchmark. The first may find the page cache empty.
const BENCH_READS: usize = 5;

impl Args {
    pub fn run(self) -> Result<Outcome> {
        let wanted = match self.route {
            Way::Auto => Wanted::Auto,
            Way::Cufile => Wanted::CuFile,
            Way::Host => Wanted::Host,
        };
        let options = Options { wanted, verify: self.verify, device: self.device };
        let mut done = Outcome::Succeeded;
        let mut rows = Vec::new();
        for path in &self.paths {
            let reports =
                if self.bench { self.bench(path, &options)? } else { vec![self.once(path, &options)?] };
            if reports.iter().any(|report| report.compared.is_some_and(|compared| compared.differing > 0)) {
                done = Outcome::Corrupt;
            }
            match (self.json, self.bench) {
                (true, _) => rows.extend(reports.iter().map(|report| value(path, report))),
                (false, true) => print(&table(path, &reports))?,
                (false, false) => {
                    print(&reports.iter().map(|report| line(path, report)).collect::<String>())?
                }
            }
        }
        if self.json {
            print_json(&Value::Array(rows))?;
        }
        Ok(done)
    }

    fn once(&self, path: &Path, options: &Options) -> Result<Report> {
        gpu::read(path, Span { offset: self.offset, len: self.len }, options)
    }

    /// Reads by each route in turn. A route that is not available for the file is logged and skipped. Fails if no
    /// route is available.
    fn bench(&self, path: &Path, options: &Options) -> Result<Vec<Report>> {
        let ways: &[Wanted] = match options.wanted {
            Wanted::Auto => &[Wanted::CuFile, Wanted::Host],
            Wanted::CuFile => &[Wanted::CuFile],
            Wanted::Host => &[Wanted::Host],
        };
        let mut reports = Vec::new();
        let mut missing = None;
        for wanted in ways {
            for _ in 0..BENCH_READS {
                match self.once(path, &Options { wanted: *wanted, ..*options }) {
                    Ok(report) => reports.push(report),
                    Err(error) if error.kind() == ErrorKind::NotSupported => {
                        missing = Some(error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        match missing {
            Some(error) if reports.is_empty() => Err(error),
            Some(error) => {
                log::warn!("{error}");
                Ok(reports)
            }
            None => Ok(reports),
        }
    }
}

/// Speed in GB/s (10^9 bytes per second).
fn speed(report: &Report) -> f64 {
    report.bytes as f64 / 1e9 / report.seconds.max(1e-9)
}

fn compared(compared: Compared) -> String {
    let place = match compared.place {
        ComparedOn::Device => "on the device",
        ComparedOn::Host => "on the host",
    };
    match compared.differing {
        0 => format!("compared {place}: the same"),
        differing => format!("compared {place}: {differing} bytes differ"),
    }
}

fn line(path: &Path, report: &Report) -> String {
    let (path, bytes, seconds) = (path.display(), report.bytes, report.seconds);
    let (way, why) = match &report.route {
        Route::CuFile { path, offset } => {
            (format!("by cuFile from {} at {offset}", path.display()), String::new())
        }
        Route::Host { why } => ("through host memory".to_owned(), format!("  not by cuFile: {why}\n")),
    };
    let same = report.compared.map_or(String::new(), |found| format!("  {}\n", compared(found)));
    let steps: String = report.steps.iter().map(|step| format!("  {step}\n")).collect();
    let speed = speed(report);
    format!(
        "{path}: {bytes} bytes {way} in {seconds:.4} s ({speed:.2} GB/s) to {}\n{why}{steps}{same}",
        report.device
    )
}

fn name(route: &Route) -> &'static str {
    match route {
        Route::CuFile { .. } => "cuFile",
        Route::Host { .. } => "host",
    }
}

/// Rows for tests/bench/results: file, bytes, route, the first read and the fastest in GB/s, comparison, device.
fn table(path: &Path, reports: &[Report]) -> String {
    let file = path.display();
    let mut text = String::new();
    for route in ["cuFile", "host"] {
        let mut of_route = reports.iter().filter(|report| name(&report.route) == route);
        let Some(first) = of_route.next() else { continue };
        let best = of_route.map(speed).fold(speed(first), f64::max);
        let same = first.compared.map_or("not compared".to_owned(), compared);
        let by_the_host = first.steps.iter().map(|step| format!("; {step}")).collect::<String>();
        text.push_str(&format!(
            "| {file} | {} | {route} | {:.2} | {best:.2} | {same}{by_the_host} | {} |\n",
            first.bytes,
            speed(first),
            first.device
        ));
    }
    text
}

fn value(path: &Path, report: &Report) -> Value {
    let physical = match &report.route {
        Route::CuFile { path, offset } => json!({ "path": path.display().to_string(), "offset": offset }),
        Route::Host { .. } => Value::Null,
    };
    let why = match &report.route {
        Route::CuFile { .. } => Value::Null,
        Route::Host { why } => Value::from(why.as_str()),
    };
    let found = report.compared.map(|found| {
        let place = if found.place == ComparedOn::Device { "device" } else { "host" };
        json!({ "on": place, "differing": found.differing })
    });
    json!({
        "path": path.display().to_string(),
        "bytes": report.bytes,
        "route": name(&report.route).to_lowercase(),
        "physical": physical,
        "why": why,
        "steps": report.steps,
        "seconds": report.seconds,
        "gigabytes_per_second": speed(report),
        "device": report.device,
        "compared": found,
    })
}
