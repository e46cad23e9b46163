//! Printing of text and JSON.

use std::io::{self, Write};

use crate::model::{Error, Result};

/// Prints to standard output. A closed pipe, for example by `head`, is not an error.
pub(in crate::cli) fn print(text: &str) -> Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Error::io("writing to standard output", error)),
    }
}

/// Prints a value as JSON.
pub(in crate::cli) fn print_json(value: &serde_json::Value) -> Result<()> {
    print(&format!("{value:#}\n"))
}

/// A number of bytes with a binary unit: `1.4 GiB`.
pub(in crate::cli) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit_name = UNITS.get(unit).copied().unwrap_or_default();
    if unit == 0 { format!("{bytes} {unit_name}") } else { format!("{value:.1} {unit_name}") }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn byte_counts_are_rounded_for_display() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(90_868_376), "86.7 MiB");
    }
}
