//! Printing of text and JSON.

use std::io::{self, Write};

use crate::model::{Error, Result};
pub(in crate::cli) use crate::model::{human, human_part};

/// Attributes whose values are numbers.
const NUMBERS: [&str; 8] = ["pin", "shards", "blocks", "bits", "bytes", "bytes_stored", "score", "chain"];

/// The value of an attribute as JSON: numbers as numbers, a shape as an array, an error as an object.
pub(in crate::cli) fn attribute_json(name: &str, value: &str) -> serde_json::Value {
    let number = |text: &str| {
        text.parse::<u64>()
            .map_or_else(|_| text.parse::<f64>().ok().map(Into::into), |number| Some(number.into()))
    };
    let found: Option<serde_json::Value> = match name {
        "shape" if value.is_empty() => Some(Vec::<u64>::new().into()),
        "shape" => {
            value.split('x').map(|part| part.parse::<u64>().ok()).collect::<Option<Vec<_>>>().map(Into::into)
        }
        "error" => {
            let part = |part: &str| number(part.split_once('=')?.1);
            let mut parts = value.split(' ');
            match (parts.next().and_then(part), parts.next().and_then(part)) {
                (Some(max), Some(rms)) => Some(serde_json::json!({ "max": max, "rms": rms })),
                _ => None,
            }
        }
        "access" => value.split_once(' ').and_then(|(count, last)| {
            Some(serde_json::json!({ "count": number(count)?, "last": number(last)? }))
        }),
        name if NUMBERS.contains(&name) => number(value),
        _ => None,
    };
    found.unwrap_or_else(|| value.into())
}

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
