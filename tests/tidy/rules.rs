//! The rules. Each takes a source and returns findings that say how to fix them.

use crate::source::{Finding, Source, first_segments, skip_spaces, word_at, words};

/// The layers with their height. A file of a layer may name its own layer and lower ones, never a sibling or a higher
/// one. A new top-level module gets a line here and a place on the map in docs/ARCHITECTURE.md.
const LAYERS: &[(&str, u8)] = &[
    ("model", 0),
    ("codec", 1),
    ("format", 1),
    ("store", 2),
    ("stream", 3),
    ("remote", 3),
    ("ingest", 4),
    ("engine", 5),
    ("open", 6),
    ("view", 6),
    ("vfs", 7),
    ("control", 8),
    ("fs", 9),
    ("gpu", 9),
    ("cli", 10),
];

/// Crates that one place wraps: the crate, the path prefixes that may name it, the alternative for other code.
const WRAPPED_CRATES: &[(&str, &[&str], &str)] = &[
    ("fuser", &["src/fs/"], "return a value of the crate's own types and let src/fs turn it into a reply"),
    (
        "clap",
        &["src/cli/", "src/main.rs"],
        "take parsed values as arguments; src/cli parses the command line",
    ),
    ("cudarc", &["src/gpu/"], "call src/gpu"),
    ("oxhttp", &["src/control/http.rs"], "let src/control/http.rs answer requests"),
    ("prometheus_client", &["src/control/metrics.rs"], "add the metric to src/control/metrics.rs"),
    ("object_store", &["src/remote/"], "call src/remote"),
    ("tokio", &["src/remote/"], "use threads; src/remote has the only asynchronous code"),
    ("reqwest", &["src/remote/"], "call src/remote"),
    ("rustls", &["src/remote/"], "call src/remote"),
    ("crc_fast", &["src/format/checksum.rs"], "call `checksum::of`"),
    ("crc32c", &["src/format/checksum.rs"], "call `checksum::of` or `checksum::joined`"),
];

pub const INTRINSICS_FOLDER: &str = "src/codec/arch/";
pub const ERRNO_FILE: &str = "src/fs/errno.rs";
pub const CODE_LINES_MAX: usize = 800;

/// Markers of unfinished work, in code and comments. Written in halves, because this file is checked too.
pub const UNFINISHED: &[&str] = &[
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("#[ig", "nore"),
    concat!("allow(dead", "_code)"),
    concat!("expect(dead", "_code)"),
];

fn height(layer: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == layer).map(|(_, height)| *height)
}

/// Imports between layers go downwards only.
pub fn layering(source: &Source) -> Vec<Finding> {
    let Some(own) = source.layer() else {
        return Vec::new();
    };
    let Some(own_height) = height(own) else {
        let what = format!(
            "`{own}` is no known layer; give it a height in tests/tidy.rs and a place in docs/ARCHITECTURE.md"
        );
        return vec![source.finding(0, what)];
    };
    let mut named = first_segments(&source.code, "crate");
    named.extend(first_segments(&source.code, "tierfs"));
    named.extend(through_super(source));
    let mut findings = Vec::new();
    for (at, other) in named {
        if other == own {
            continue;
        }
        let advice = match height(other) {
            Some(lower) if lower < own_height => continue,
            Some(same) if same == own_height => {
                "they are siblings: move what both need to a lower layer, or let a higher one pass the value"
            }
            Some(_) => {
                "that is upwards: take the value or a trait as an argument, or move what is needed down"
            }
            None => "that is the crate's root: name the layer that defines it",
        };
        findings.push(source.finding(at, format!("`{own}` names `{other}`; {advice}")));
    }
    findings
}

/// Layers named by climbing to the root: `super::super::store::...`.
fn through_super<'a>(source: &'a Source) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (at, segment) in first_segments(&source.code, "super") {
        let path = source.code[..at].trim_end_matches(['{', ' ']);
        let above = path.trim_end_matches("super::");
        let supers = (path.len() - above.len()) / "super::".len();
        // Further entries of a group do not show their `super`: assume at least one.
        if height(segment).is_some() && supers.max(1) >= source.depth() {
            found.push((at, segment));
        }
    }
    found
}

/// Foreign names stay behind the module that wraps them.
pub fn foreign_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, allowed, instead) in WRAPPED_CRATES {
        if !allowed.iter().any(|prefix| source.path.starts_with(prefix)) {
            let what = format!("`{name}` is named only in {}; {instead}", allowed.join(" and "));
            findings.extend(words(&source.code, name).map(|at| source.finding(at, what.clone())));
        }
    }
    if !source.path.starts_with(INTRINSICS_FOLDER) {
        let roots = ["core", "std"].into_iter();
        for (at, _) in roots.flat_map(|root| first_segments(&source.code, root)).filter(|(_, s)| *s == "arch")
        {
            let what = format!(
                "intrinsics stand only in {INTRINSICS_FOLDER}; put the function there, behind a check of the processor"
            );
            findings.push(source.finding(at, what));
        }
    }
    if source.path != ERRNO_FILE {
        let roots = ["libc", "Errno"].into_iter();
        for (at, name) in roots.flat_map(|root| first_segments(&source.code, root)) {
            if is_error_number(&source.code, at, name) {
                let what = format!(
                    "`{name}` is an error number; return an error with a kind (or match std::io::ErrorKind) and map it in {ERRNO_FILE}"
                );
                findings.push(source.finding(at, what));
            }
        }
    }
    findings
}

/// `libc::EIO` and `Errno::EIO`; not rustix's `Errno::IO`, which comes from the operating system and is not an answer
/// to a program; not EPOLLIN, not `EFD_CLOEXEC`, not a function.
fn is_error_number(code: &str, at: usize, name: &str) -> bool {
    let upper = !name.is_empty() && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    let of_rustix = code[..at].trim_end().ends_with("rustix::io::Errno::");
    upper && !of_rustix && name.starts_with('E') && !name.starts_with("EPOLL")
}

/// Each module begins with its purpose, and has a length for one sitting.
pub fn shape_of_the_file(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !source.text.starts_with("//! ") {
        findings.push(source.finding(0, "begin the file with a `//!` line that says what the module is"));
    }
    if source.is_unit_test_file() {
        return findings;
    }
    let lines: Vec<&str> = source.code.lines().collect();
    let starts_tests =
        |pair: &[&str]| pair[0].trim() == "#[cfg(test)]" && pair[1].trim_start().starts_with("mod ");
    let code_lines = lines.windows(2).position(starts_tests).unwrap_or(lines.len());
    if code_lines > CODE_LINES_MAX {
        let what = format!(
            "{code_lines} lines before the tests, {CODE_LINES_MAX} at most; a file this long usually holds two ideas: split it"
        );
        findings.push(source.finding(0, what));
    }
    findings
}

/// No unfinished work, no ignored result.
pub fn habits(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for marker in UNFINISHED {
        for (at, _) in source.without_strings.match_indices(marker) {
            findings.push(source.finding(at, format!("`{marker}`: finish it, or take it out")));
        }
    }
    for at in words(&source.code, "let") {
        let pattern = skip_spaces(&source.code, at + "let".len());
        let after = skip_spaces(&source.code, pattern + word_at(&source.code, pattern).len());
        let binds = source.code[after..].starts_with([':', '=']);
        if word_at(&source.code, pattern) == "_" && binds {
            findings.push(source.finding(
                at,
                "a value thrown away unseen: handle the error, log it, or call drop() if it has none",
            ));
        }
    }
    findings
}

/// A test's name is a sentence.
pub fn test_names(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, attribute) in source.code.match_indices("#[test]") {
        let Some(function) = words(&source.code[at..], "fn").next() else {
            continue;
        };
        let name_at = skip_spaces(&source.code, at + function + "fn".len());
        let name = word_at(&source.code, name_at);
        if name.split('_').filter(|word| !word.is_empty()).count() < 2 {
            let what = format!("the test `{name}` says little; name it with a sentence of what holds");
            findings.push(source.finding(at + attribute.len(), what));
        }
    }
    findings
}
