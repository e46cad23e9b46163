//! Measures tierfs against the alternatives of its users in one run, and writes the tables.
//!
//! `scripts/bench.sh` builds and runs it; `docs/BENCHMARKS.md` describes the measurements.

mod daemon;
mod empty;
mod growth;
mod inside;
mod machine;
mod place;
mod plot;
mod python;
mod read;
mod report;
mod run;
mod scale;
mod seaweed;
mod table;
mod through;
mod values;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;

use place::{Place, Size};

/// A failing row names the operation that failed.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "usage: tierfs-bench [--quick] [--rounds N] [--list] [--no-plots] [ROW...]
       tierfs-bench scale [COLLECTIONS]
       tierfs-bench empty MOUNTPOINT BYTES FILES BYTES-OF-EACH
       tierfs-bench get URL KEY

Runs the rows whose names begin so, all without any; then the plots, which count as rows called plot.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        Some("empty") => empty::main(arguments.get(1..).unwrap_or_default()).map(|()| true),
        Some("get") => seaweed::get(arguments.get(1..).unwrap_or_default()).map(|()| true),
        Some("scale") => scaled(arguments.get(1)).map(|()| true),
        _ => measure(&arguments),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("tierfs-bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Measures stores of 1 collection and more, up to 1,000 or the given number. A whole run changes `docs/plots/` and the
/// kept results.
fn scaled(largest: Option<&String>) -> Result<()> {
    let largest = largest.map_or(Ok(scale::LARGEST), |text| text.parse().map_err(|_| USAGE))?;
    let place = Place::new(Path::new("target/bench"), Size::Full)?;
    let directory =
        if largest == scale::LARGEST { Path::new("docs/plots").to_owned() } else { place.root.join("plots") };
    scale::measure(&place, largest, &directory)
}

/// Runs the requested rows. Whether every answer was right.
fn measure(arguments: &[String]) -> Result<bool> {
    let mut size = Size::Full;
    let (mut rounds, mut lists, mut plots) = (None, false, true);
    let mut names = Vec::new();
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => size = Size::Quick,
            "--list" => lists = true,
            "--no-plots" => plots = false,
            "--rounds" => rounds = Some(words.next().ok_or(USAGE)?.parse().map_err(|_| USAGE)?),
            name if !name.starts_with('-') => names.push(name.to_owned()),
            _ => return Err(USAGE.into()),
        }
    }
    let rows = table::rows();
    if lists {
        rows.iter().for_each(|row| println!("{:<32} {}", row.name, row.what));
        return Ok(true);
    }
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|prefix| name.starts_with(prefix));
    let place = Rc::new(Place::new(Path::new("target/bench"), size)?);
    let rounds = rounds.unwrap_or(if size == Size::Quick { 3 } else { 5 });
    let measured = run::run(&place, rows.iter().filter(|row| is_wanted(&row.name)), rounds)?;
    let is_whole = names.is_empty() && plots;
    let mut plotted = Ok(());
    if plots && is_wanted("plot") {
        plotted = growth::draw(&place, Path::new("docs/plots"), size == Size::Full && is_whole);
    }
    let command = format!("scripts/bench.sh {}", arguments.join(" "));
    report::write(&place, &rows, &measured, command.trim_end(), is_whole)?;
    plotted?;
    Ok(measured.iter().all(|measured| !matches!(measured.outcome, run::Outcome::Wrong(_))))
}
