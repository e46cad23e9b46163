//! Checks the sources: layers, the places of foreign names, and habits that a compiler does not enforce. Checks the
//! documents: the names in them exist, and they are short. Every finding says how to fix it.

use std::fs;
use std::io;
use std::path::Path;

use source::{Finding, Source};

mod binaries;
mod docs;
mod figures;
mod planted;
mod rules;
mod source;
mod structure;

fn check(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::new(path, text);
    let mut findings = rules::habits(&source);
    findings.extend(rules::test_names(&source));
    findings.extend(rules::headless_comments(&source));
    if source.is_product_code() {
        findings.extend(rules::layering(&source));
        findings.extend(rules::foreign_names(&source));
        findings.extend(rules::shape_of_the_file(&source));
        findings.extend(rules::old_names(&source));
        findings.extend(rules::participles(&source));
        findings.extend(rules::changes_of_files(&source));
    }
    findings
}

/// Paths of all Rust files below a folder, relative to the package, sorted.
fn rust_files(root: &Path, folder: &str) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            found.extend(rust_files(root, &path)?);
        } else if path.ends_with(".rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[test]
fn the_sources_are_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = rust_files(root, "src").unwrap();
    paths.extend(rust_files(root, "tests").unwrap());
    assert!(paths.iter().any(|path| path == "src/lib.rs"), "found no src/lib.rs among {paths:?}");
    assert!(
        paths.iter().any(|path| path == "tests/tidy/main.rs"),
        "found no tests/tidy/main.rs among {paths:?}"
    );
    let texts: Vec<String> = paths.iter().map(|path| fs::read_to_string(root.join(path)).unwrap()).collect();
    let files = || paths.iter().map(String::as_str).zip(texts.iter().map(String::as_str));
    let mut findings: Vec<Finding> = files().flat_map(|(path, text)| check(path, text)).collect();
    let sources: Vec<Source> = files().map(|(path, text)| Source::new(path, text)).collect();
    findings.extend(structure::check(&sources));
    findings.extend(sources.iter().flat_map(rules::fragments));
    let report: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(report.is_empty(), "{} things to mend:\n{}", report.len(), report.join("\n"));
}
