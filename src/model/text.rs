//! Sizes and digests as text.

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// The number in a unit: the unit in which `of` has at most four digits before the point.
fn scaled(bytes: u64, of: u64) -> (String, &'static str) {
    let (mut value, mut large, mut unit) = (bytes as f64, of as f64, 0);
    while large >= 1024.0 && unit + 1 < UNITS.len() {
        (value, large) = (value / 1024.0, large / 1024.0);
        unit += 1;
    }
    let name = UNITS.get(unit).copied().unwrap_or_default();
    (if unit == 0 { bytes.to_string() } else { format!("{value:.1}") }, name)
}

/// A number of bytes with a binary unit: `1.4 GiB`.
pub fn human(bytes: u64) -> String {
    let (number, unit) = scaled(bytes, bytes);
    format!("{number} {unit}")
}

/// A part of a number of bytes, in one unit: `23.0 of 86.7 MiB`.
pub fn human_part(part: u64, of: u64) -> String {
    let largest = part.max(of);
    let ((part, unit), (of, _)) = (scaled(part, largest), scaled(of, largest));
    format!("{part} of {of} {unit}")
}

/// Bytes as hexadecimal digits, such as a digest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::{human, human_part};

    #[test]
    fn bytes_are_rounded_for_people() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(90_868_376), "86.7 MiB");
        assert_eq!(human_part(1024, 90_868_376), "0.0 of 86.7 MiB");
        assert_eq!(human_part(7, 1000), "7 of 1000 B");
    }
}
