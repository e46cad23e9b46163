//! The table of test binaries in docs/CHANGING.md: each binary has a row, and each row a binary.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The document with the table.
const DOCUMENT: &str = "docs/CHANGING.md";
/// The first cell of the table's head.
const HEAD: &str = "| binary |";

/// The test binary that Cargo makes of a file, if it makes one: of `tests/NAME.rs` and of `tests/NAME/main.rs`.
fn binary(path: &str) -> Option<&str> {
    let below = path.strip_prefix("tests/")?;
    let name = below.strip_suffix("/main.rs").or_else(|| below.strip_suffix(".rs"))?;
    (!name.contains('/')).then_some(name)
}

/// The names in backquotes in the first cells of the table. Empty without a table.
fn rows(document: &str) -> Vec<&str> {
    let table = document.lines().skip_while(|line| !line.starts_with(HEAD)).skip(2);
    let cells = table.map_while(|line| line.strip_prefix("| `")?.split_once('`'));
    cells.map(|(name, _)| name).collect()
}

/// Differences between the binaries and the rows.
fn check<'a>(paths: impl IntoIterator<Item = &'a str>, document: &str) -> Vec<String> {
    let binaries: BTreeSet<&str> = paths.into_iter().filter_map(binary).collect();
    let rows = rows(document);
    let mut findings = Vec::new();
    for name in binaries.iter().filter(|name| !rows.contains(name)) {
        findings.push(format!("`{name}` has no row in the table of {DOCUMENT}; say what it needs and takes"));
    }
    for (place, name) in rows.iter().enumerate() {
        if !binaries.contains(name) {
            findings.push(format!("{DOCUMENT} has a row for `{name}`, and there is no such binary"));
        }
        if rows[..place].contains(name) {
            findings.push(format!("{DOCUMENT} has two rows for `{name}`; one is enough"));
        }
    }
    findings
}

#[test]
fn each_test_binary_has_a_row_in_the_table_and_each_row_a_binary() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let paths = crate::rust_files(root, "tests").unwrap();
    let document = fs::read_to_string(root.join(DOCUMENT)).unwrap();
    let findings = check(paths.iter().map(String::as_str), &document);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
    // The list of binaries above is that of Cargo only while Cargo finds them itself.
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    for line in ["[[test]]", "autotests"] {
        assert!(!manifest.contains(line), "Cargo.toml has {line}; tests/tidy/binaries.rs must read it");
    }
}

#[test]
fn a_missing_row_a_stale_row_and_a_double_row_are_found() {
    let paths = ["tests/one.rs", "tests/two/main.rs", "tests/two/part.rs", "tests/library/mod.rs"];
    let table = |rows: &str| format!("text\n\n| binary | subject |\n|---|---|\n{rows}\ntext\n| `four` | |\n");
    assert_eq!(check(paths, &table("| `one` | |\n| `two` | |\n")), Vec::<String>::new());
    let found = |rows| check(paths, &table(rows));
    assert!(matches!(&found("| `one` | |\n")[..], [only] if only.starts_with("`two` has no row")));
    let stale = found("| `one` | |\n| `two` | |\n| `three` | |\n");
    assert!(matches!(&stale[..], [only] if only.contains("a row for `three`")), "{stale:?}");
    let double = found("| `one` | |\n| `two` | |\n| `one` | |\n");
    assert!(matches!(&double[..], [only] if only.contains("two rows for `one`")), "{double:?}");
    assert_eq!(check(paths, "no table").len(), 2);
}
