//! Figures of the README and the guide are those of the tables that a measurement wrote.

use std::fs;
use std::path::Path;

const TABLE: &str = "tests/bench/results/table.md";
const TIERS: &str = "docs/TIERS.md";

/// A figure in the text of a document, and the cell of a table that it repeats.
struct Figure {
    document: &'static str,
    /// The words before the figure; breaks of lines count as spaces.
    before: &'static str,
    table: &'static str,
    /// The first cell of the row.
    row: &'static str,
    /// The number of the cell, from 0.
    column: usize,
}

const FIGURES: &[Figure] = &[
    Figure {
        document: "README.md",
        before: "an exact container reads at ",
        table: TABLE,
        row: "`mount-exact.read`",
        column: 4,
    },
    Figure {
        document: "README.md",
        before: "a first read of q8 at ",
        table: TABLE,
        row: "`mount-peers.q8-squashfuse`",
        column: 4,
    },
    Figure {
        document: "README.md",
        before: "opening, reading and closing 4 KiB reaches ",
        table: TABLE,
        row: "`mount-small.files-again`",
        column: 4,
    },
    Figure {
        document: "README.md",
        before: "of ext4's speed (",
        table: TABLE,
        row: "`mount-small.files-kernel`",
        column: 4,
    },
    Figure {
        document: "README.md",
        before: "sentence embeddings keep a cosine of ",
        table: TIERS,
        row: "q8, least",
        column: 4,
    },
    Figure {
        document: "docs/GUIDE.md",
        before: "Reads of bf16 weights in q8 are ",
        table: TABLE,
        row: "`mount-peers.q8-squashfuse`",
        column: 4,
    },
    Figure {
        document: "docs/GUIDE.md",
        before: "Reads of bf16 weights in q8 are 4.2 and ",
        table: TABLE,
        row: "`mount-peers.q8-btrfs`",
        column: 4,
    },
];

/// The number at the beginning of a text, and its digits after the point.
fn number(text: &str) -> Option<(f64, i32)> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let digits = text[..end].trim_end_matches('.');
    let after = digits.split_once('.').map_or(0, |(_, after)| after.len());
    Some((digits.parse().ok()?, i32::try_from(after).ok()?))
}

/// The number in a cell of a table.
fn cell(table: &str, row: &str, column: usize) -> Option<f64> {
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")).map(|line| line.split(" | "));
    let found = rows.map(Iterator::collect::<Vec<_>>).find(|cells| cells.first() == Some(&row))?;
    number(found.get(column)?).map(|(value, _)| value)
}

/// The fault of a figure, if it has one.
fn fault(figure: &Figure, document: &str, table: &str) -> Option<String> {
    let Figure { document: path, before, table: measured, row, column } = figure;
    let text = document.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((shown, digits)) = text.split_once(before).and_then(|(_, rest)| number(rest)) else {
        return Some(format!(
            "{path}: no figure behind \"{before}\"; change its row in tests/tidy/figures.rs"
        ));
    };
    let Some(value) = cell(table, row, *column) else {
        return Some(format!("{measured}: no row {row}, which {path} repeats"));
    };
    // A figure is the value rounded to its digits, or cut.
    let is_same = (value - shown).abs() <= 0.5001 * 10_f64.powi(-digits);
    (!is_same).then(|| format!("{path}: \"{before}{shown}\", but row {row} of {measured} has {value}"))
}

#[test]
fn figures_of_the_readme_and_the_guide_are_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    let faults: Vec<String> = FIGURES
        .iter()
        .filter_map(|figure| fault(figure, &read(figure.document), &read(figure.table)))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_figure_that_no_table_has_is_found() {
    let figure = Figure { document: "A.md", before: "reads at ", table: "table.md", row: "`a.b`", column: 2 };
    let table = "| row | what | ratio |\n|---|---|---|\n| `a.b` | reads | 6.06 (5.81 to 6.86) |\n";
    assert_eq!(fault(&figure, "It reads\nat 6.1 times that.", table), None);
    assert_eq!(fault(&figure, "It reads at 6.", table), None);
    for text in ["It reads at 6.2 times that.", "It reads at most.", "It writes."] {
        assert!(fault(&figure, text, table).is_some(), "{text}");
    }
    assert!(fault(&Figure { row: "`a.c`", ..figure }, "It reads at 6.1", table).is_some());
}
