//! The option `--decoded-cache`: the most memory that decoded files may take.

use std::str::FromStr;

use crate::model::Error;

/// The most memory that decoded files take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Budget {
    /// No memory: no file is decoded as a whole.
    Off,
    /// A number of bytes.
    Bytes(u64),
    /// A part of the memory.
    Percent(u8),
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::Percent(10)
    }
}

impl Budget {
    /// The budget in bytes on a machine with `total` bytes of memory.
    pub fn bytes_of(self, total: u64) -> u64 {
        match self {
            Budget::Off => 0,
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(percent) => total / 100 * u64::from(percent),
        }
    }
}

impl FromStr for Budget {
    type Err = Error;

    fn from_str(text: &str) -> Result<Budget, Error> {
        let wrong = || {
            Error::invalid(format!(
                "invalid value {text:?}; expected a size such as 512M, a part such as 10%, or off"
            ))
        };
        if text == "off" {
            return Ok(Budget::Off);
        }
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Budget::Percent).ok_or_else(wrong);
        }
        let short = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
        let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
        let unit = units.into_iter().find_map(|(unit, bits)| Some((short.strip_suffix(unit)?, bits)));
        let (number, bits) = unit.unwrap_or((short, 0));
        let number =
            number.parse::<u64>().ok().filter(|_| number.starts_with(|first: char| first.is_ascii_digit()));
        let bytes = number.and_then(|number| number.checked_mul(1 << bits)).filter(|bytes| *bytes > 0);
        bytes.map(Budget::Bytes).ok_or_else(wrong)
    }
}

impl std::fmt::Display for Budget {
    fn fmt(&self, text: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Budget::Off => text.write_str("off"),
            Budget::Bytes(bytes) => write!(text, "{bytes}"),
            Budget::Percent(percent) => write!(text, "{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn sizes_and_parts_are_read() {
        for (text, wanted) in [
            ("off", Budget::Off),
            ("4096", Budget::Bytes(4096)),
            ("16M", Budget::Bytes(16 << 20)),
            ("2GiB", Budget::Bytes(2 << 30)),
            ("1KB", Budget::Bytes(1024)),
            ("10%", Budget::Percent(10)),
        ] {
            assert_eq!(text.parse::<Budget>().unwrap(), wanted);
            assert_eq!(wanted.to_string().parse::<Budget>().unwrap(), wanted);
        }
        for text in ["", "on", "0", "0%", "101%", "-1", "+1", "x%", "99999999T", "1X", "M"] {
            assert!(text.parse::<Budget>().is_err(), "{text}");
        }
        assert_eq!((Budget::Percent(10).bytes_of(1000), Budget::Off.bytes_of(1000)), (100, 0));
    }
}
