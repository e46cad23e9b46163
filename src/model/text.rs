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

/// A time in seconds since 1970: `2026-11-27 04:20:10 UTC`.
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 400 years begin in March, so that a leap day is the last of its year.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = (era * 400 + year).saturating_add(u64::from(month <= 2));
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::{human, human_part, utc};

    #[test]
    fn seconds_are_dates_as_those_of_the_date_command() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_709_251_199, "2024-02-29 23:59:59 UTC"),
            (1_795_753_210, "2026-11-27 04:20:10 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), date);
        }
        assert!(utc(u64::MAX).ends_with(" UTC"));
    }

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
