//! Rows of a tensor: the indices of its first dimension.

use std::fmt;

use crate::model::{Error, Result, beginning};

/// The most bytes of a wrong text that a message repeats.
const SHOWN_MAX: usize = 100;

/// Rows from the first one up to the end, which is not one of them. There is at least one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rows {
    pub first: u64,
    pub end: u64,
}

impl Rows {
    /// Parses `FIRST:END`. The error states the problem.
    pub fn parse(text: &str) -> Result<Rows> {
        let wrong = |why: &str| {
            let shown = beginning(text, SHOWN_MAX);
            Error::invalid(format!("rows are FIRST:END, such as 0:4096, not {shown:?}{why}"))
        };
        let (first, end) = text.split_once(':').ok_or_else(|| wrong(""))?;
        let number = |text: &str| {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            if !is_plain {
                return Err(wrong(""));
            }
            text.parse::<u64>().map_err(|_| wrong(": a number is over 2^64 - 1"))
        };
        let (first, end) = (number(first)?, number(end)?);
        if first >= end {
            return Err(wrong(": the end is not after the first row"));
        }
        Ok(Rows { first, end })
    }

    /// Splits the rows after `@` off the value of a tier.
    pub fn split(text: &str) -> Result<RowsOf<'_>> {
        match text.split_once('@') {
            Some((of, rows)) => Ok(RowsOf { of, rows: Some(Rows::parse(rows)?) }),
            None => Ok(RowsOf { of: text, rows: None }),
        }
    }
}

/// A value, and the rows that it is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsOf<'a> {
    pub of: &'a str,
    /// `None` for all.
    pub rows: Option<Rows>,
}

impl fmt::Display for Rows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.first, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::{Rows, RowsOf};

    #[test]
    fn rows_are_two_plain_numbers_in_order() {
        assert_eq!(Rows::parse("0:4096").unwrap(), Rows { first: 0, end: 4096 });
        assert_eq!(Rows::parse("7:18446744073709551615").unwrap().end, u64::MAX);
        let last = "0:18446744073709551616";
        for text in ["", "0", ":", "0:", ":5", "-1:5", "+1:5", "0:5:6", "5:5", "6:5", "0x1:5", "0 :5", last] {
            assert!(Rows::parse(text).is_err(), "{text}");
        }
        assert!(Rows::parse("6:5").unwrap_err().to_string().contains("not after the first row"));
        assert!(Rows::parse(last).unwrap_err().to_string().contains("2^64"));
    }

    #[test]
    fn rows_follow_a_value() {
        let rows = Some(Rows { first: 3, end: 9 });
        assert_eq!(Rows::split("q8:again@3:9").unwrap(), RowsOf { of: "q8:again", rows });
        assert_eq!(Rows::split("q8").unwrap(), RowsOf { of: "q8", rows: None });
        assert!(Rows::split("q8@").is_err() && Rows::split("q8@1:2@3:4").is_err());
    }
}
