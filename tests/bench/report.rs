//! What was measured, as lines of JSON and as a table in `docs/BENCHMARKS.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::place::Place;
use crate::run::{Measured, Outcome, Spread};
use crate::table::Target;
use crate::{Result, machine};

const DOCUMENT: &str = "docs/BENCHMARKS.md";
const BEGIN: &str = "<!-- measured: written by scripts/bench.sh -->";
const END: &str = "<!-- end of measured -->";

/// A row as a line for people who wait.
pub fn line(measured: &Measured) -> String {
    let [ours, reference, ratio] = cells(measured);
    let mark = mark(measured);
    format!("{:<32} {ours} | {reference} | {ratio} | {} | {mark}", measured.name, target(measured))
}

/// Writes all rows as JSON lines, and the table: into the document after a whole run, else beside
/// the lines.
pub fn write(place: &Place, rows: &[Measured], command: &str, is_whole: bool) -> Result<()> {
    let lines: Vec<String> = rows.iter().map(|row| as_json(row).to_string()).collect();
    fs::write(place.root.join("rows.jsonl"), lines.join("\n") + "\n")?;
    let table = table(rows, command);
    fs::write(place.root.join("table.md"), &table)?;
    println!("\n{table}");
    let is_for_all = is_whole && !place.is_quick();
    if is_for_all && Path::new(DOCUMENT).exists() {
        let text = fs::read_to_string(DOCUMENT)?;
        let missing = || format!("{DOCUMENT} has no lines {BEGIN:?} and {END:?}");
        let (before, rest) = text.split_once(BEGIN).ok_or_else(missing)?;
        let (_, after) = rest.split_once(END).ok_or_else(missing)?;
        fs::write(DOCUMENT, format!("{before}{BEGIN}\n{table}{END}{after}"))?;
        println!("written to {DOCUMENT}");
    }
    Ok(())
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

fn table(rows: &[Measured], command: &str) -> String {
    let mut text = String::new();
    let machine = machine::describe();
    let (when, load) = (machine::when(), machine::load());
    let met = rows.iter().filter(|row| row.is_met() == Some(true)).count();
    let with_target = rows.iter().filter(|row| row.target != Target::Nothing).count();
    // A String takes everything.
    writeln!(
        text,
        "\nMachine: {machine}. {when}. Load average at the end: {load}. Repeat with `{command}`.\n\n\
         {met} of {with_target} rows reach their target."
    )
    .unwrap_or_default();
    for (is_through, title) in [(true, "Through the mount"), (false, "In process, one core")] {
        let mut rows = rows.iter().filter(|row| row.is_through == is_through).peekable();
        if rows.peek().is_none() {
            continue;
        }
        writeln!(text, "\n### {title}\n\n| row | what | ours | against | reference | ratio | target | |")
            .unwrap_or_default();
        writeln!(text, "|---|---|---|---|---|---|---|---|").unwrap_or_default();
        for row in rows {
            let [ours, reference, ratio] = cells(row);
            let (name, what, against) = (&row.name, &row.what, &row.reference);
            let (target, mark) = (target(row), mark(row));
            writeln!(
                text,
                "| `{name}` | {what} | {ours} | {against} | {reference} | {ratio} | {target} | {mark} |"
            )
            .unwrap_or_default();
        }
    }
    text.push('\n');
    text
}

/// Ours, the reference, the ratio.
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
