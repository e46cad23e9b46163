//! The index of a sharded model, and the text that the log has of it.

use tierfs::format::budget::Budget;
use tierfs::format::files::shard_index::{files, parse, tensors, to_lines};

pub fn check(bytes: &[u8]) {
    as_text(&String::from_utf8_lossy(bytes));
    let mut budget = Budget::default();
    let found = parse(bytes, &mut budget);
    assert!(budget.spent() <= 2 * bytes.len() as u64, "{} steps", budget.spent());
    let Ok(found) = found else { return };
    let names: usize = found.values().map(Vec::len).sum();
    // Quotes, a colon and a comma around each.
    assert!(names * 5 <= bytes.len(), "{names} names");
    let lines = to_lines(&found);
    assert!(lines.len() <= bytes.len(), "{} bytes of text", lines.len());
    // The text has the names again, except for empty ones and those with control characters.
    let is_plain = |name: &&String| !name.is_empty() && !name.chars().any(char::is_control);
    let wanted: Vec<(&str, Vec<&str>)> = found
        .iter()
        .filter(|(file, _)| is_plain(file))
        .map(|(file, tensors)| (file.as_str(), tensors.iter().filter(is_plain).map(String::as_str).collect()))
        .collect();
    let again = files(&lines);
    let again: Vec<(&str, Vec<&str>)> =
        again.into_iter().map(|(file, range)| (file, tensors(&lines[range]).collect())).collect();
    assert_eq!(again, wanted);
}

/// Any text gives ranges that ascend, in the text.
fn as_text(text: &str) {
    let mut at = 0;
    for (file, range) in files(text) {
        assert!(at <= range.start && range.start <= range.end && range.end <= text.len(), "{range:?}");
        assert!(!file.contains('\n'));
        at = range.end;
        tensors(&text[range]).for_each(|tensor| assert!(!tensor.contains('\n')));
    }
}
