//! Writes the results as lines of JSON and as tables: those of this run below `target/bench`, those that are kept in
//! `tests/bench/results`, and the headline of `docs/BENCHMARKS.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::place::Place;
use crate::run::{Measured, Outcome, Spread};
use crate::table::{Row, Target};
use crate::{Result, machine};

/// The folder of the results that are kept.
pub const RESULTS: &str = "tests/bench/results";
const DOCUMENT: &str = "docs/BENCHMARKS.md";
const HEADLINE_BEGIN: &str = "<!-- headline: written by scripts/bench.sh -->";
const HEADLINE_END: &str = "<!-- end of headline -->";
const TABLE_HEAD: &str = "| row | what | ours | reference | ratio | target |\n|---|---|---|---|---|---|";

/// The kept tables: file, title, and the beginning of the names of its rows. The last one has all other rows.
const TABLES: [(&str, &str, &str); 4] = [
    ("forms.md", "Forms", "form"),
    ("remote.md", "Remotes", "remote"),
    ("io_uring.md", "Requests over io_uring", "mount-uring"),
    ("table.md", "Mount and process", ""),
];

/// The rows at the head of the document.
const HEADLINE: [&str; 10] = [
    "mount-exact.read",
    "mount-first.read",
    "mount-q8-f32.read",
    "mount-q8-f32.again",
    "mount-peers.q8-squashfuse",
    "mount-peers.q8-btrfs",
    "mount-small.files-again",
    "mount-import.exact",
    "mount-load.load-first",
    "codec-decode.avx512-q5",
];

/// A row as a line of progress.
pub fn line(measured: &Measured) -> String {
    let [ours, reference, ratio] = cells(measured);
    let mark = mark(measured);
    format!("{:<32} {ours} | {reference} | {ratio} | {} | {mark}", measured.name, target(measured))
}

/// Writes the rows as JSON lines and a table. Each kept table of which all rows were measured is written too, and after a
/// whole run the headline, unless the run was a quick one.
pub fn write(place: &Place, all: &[Row], measured: &[Measured], command: &str, is_whole: bool) -> Result<()> {
    let lines: Vec<String> = measured.iter().map(|row| as_json(row).to_string()).collect();
    fs::write(place.root.join("rows.jsonl"), lines.join("\n") + "\n")?;
    let table = table(measured.iter(), command);
    fs::write(place.root.join("table.md"), &table)?;
    println!("\n{table}");
    if place.is_quick() || !Path::new(DOCUMENT).exists() {
        return Ok(());
    }
    fs::create_dir_all(RESULTS)?;
    for (file, title, _) in TABLES {
        let rows: Vec<&Measured> = measured.iter().filter(|row| table_of(&row.name) == file).collect();
        let wanted = all.iter().filter(|row| table_of(&row.name) == file).count();
        // Without a server or a peer the figures of an earlier run stay.
        let is_run = rows.iter().any(|row| matches!(row.outcome, Outcome::Measured { .. }));
        if rows.len() == wanted && is_run {
            let path = Path::new(RESULTS).join(file);
            fs::write(&path, format!("# {title}\n{}", self::table(rows.into_iter(), command)))?;
            println!("written to {}", path.display());
        }
    }
    if is_whole {
        let text = fs::read_to_string(DOCUMENT)?;
        fs::write(DOCUMENT, with_section(&text, HEADLINE_BEGIN, HEADLINE_END, &headline(measured))?)?;
        println!("written to {DOCUMENT}");
    }
    Ok(())
}

/// The kept table that has a row.
fn table_of(name: &str) -> &'static str {
    TABLES.iter().find(|(_, _, begin)| name.starts_with(begin)).map_or("", |(file, ..)| file)
}

/// The text with other lines between two marks.
fn with_section(text: &str, begin: &str, end: &str, lines: &str) -> Result<String> {
    let missing = || format!("{DOCUMENT} has no lines {begin:?} and {end:?}");
    let (before, rest) = text.split_once(begin).ok_or_else(missing)?;
    let (_, after) = rest.split_once(end).ok_or_else(missing)?;
    Ok(format!("{before}{begin}\n{lines}{end}{after}"))
}

fn headline(rows: &[Measured]) -> String {
    let of_name = |name: &&str| rows.iter().find(|row| row.name == **name);
    let lines: Vec<String> = HEADLINE.iter().filter_map(of_name).map(table_line).collect();
    format!("\n{TABLE_HEAD}\n{}\n\n", lines.join("\n"))
}

fn table_line(row: &Measured) -> String {
    let [ours, reference, ratio] = cells(row);
    let (name, what) = (&row.name, &row.what);
    let reference =
        if reference.is_empty() { row.reference.clone() } else { format!("{}: {reference}", row.reference) };
    let target = match mark(row) {
        "" => target(row),
        mark => format!("{}, {mark}", target(row)),
    };
    format!("| `{name}` | {what} | {ours} | {reference} | {ratio} | {target} |")
}

fn as_json(row: &Measured) -> serde_json::Value {
    let spread = |spread: &Spread| json!([spread.least, spread.median, spread.largest]);
    let outcome = match &row.outcome {
        Outcome::Measured { ours, reference, ratio } => json!({
            "ours": spread(ours),
            "reference": reference.as_ref().map(spread),
            "ratio": ratio.as_ref().map(spread),
            "met": row.is_met(),
        }),
        Outcome::NotRun(why) => json!({ "not_run": why }),
        Outcome::Wrong(why) => json!({ "wrong": why }),
    };
    json!({ "row": row.name, "what": row.what, "against": row.reference, "unit": row.unit, "target": target(row), "result": outcome })
}

fn table<'a>(rows: impl Iterator<Item = &'a Measured>, command: &str) -> String {
    let rows: Vec<&Measured> = rows.collect();
    let mut text = String::new();
    let machine = machine::describe();
    let (when, load) = (machine::when(), machine::load());
    let met = rows.iter().filter(|row| row.is_met() == Some(true)).count();
    let with_target = rows.iter().filter(|row| row.target != Target::Nothing).count();
    // Writing to a String cannot fail.
    writeln!(
        text,
        "\nMachine: {machine}. {when}. Load average at the end: {load}. Repeat with `{command}`.\n\n\
         {met} of {with_target} rows reach their target."
    )
    .unwrap_or_default();
    for (is_through, title) in [(true, "Through the mount"), (false, "In process, one core")] {
        let mut rows = rows.iter().copied().filter(|row| row.is_through == is_through).peekable();
        if rows.peek().is_none() {
            continue;
        }
        writeln!(text, "\n## {title}\n\n{TABLE_HEAD}").unwrap_or_default();
        for row in rows {
            writeln!(text, "{}", table_line(row)).unwrap_or_default();
        }
    }
    text.push('\n');
    text
}

/// The figure of tierfs, the reference, the ratio.
fn cells(row: &Measured) -> [String; 3] {
    match &row.outcome {
        Outcome::Measured { ours, reference, ratio } => {
            let figure = |value: f64| format!("{} {}", short(value), row.unit);
            let ratio = ratio.as_ref().map(|ratio| {
                format!("{} ({} to {})", short(ratio.median), short(ratio.least), short(ratio.largest))
            });
            let ours = match ratio {
                Some(_) => figure(ours.median),
                None => format!("{} ({} to {})", figure(ours.median), short(ours.least), short(ours.largest)),
            };
            let reference = reference.as_ref().map(|reference| figure(reference.median));
            [ours, reference.unwrap_or_default(), ratio.unwrap_or_default()]
        }
        Outcome::NotRun(why) => [format!("not run: {why}"), String::new(), String::new()],
        Outcome::Wrong(why) => [format!("**failed: {why}**"), String::new(), String::new()],
    }
}

fn target(row: &Measured) -> String {
    match row.target {
        Target::RatioAtLeast(bound) => format!(">= {bound} x"),
        Target::RatioAtMost(bound) => format!("<= {bound} x"),
        Target::AtLeast(bound) => format!(">= {bound} {}", row.unit),
        Target::AtMost(bound) => format!("<= {bound} {}", row.unit),
        Target::Nothing => String::new(),
    }
}

fn mark(row: &Measured) -> &'static str {
    match row.is_met() {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    }
}

/// Three digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        least if least < 10.0 => 2,
        least if least < 100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}
