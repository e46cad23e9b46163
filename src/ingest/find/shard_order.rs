//! The order of the shards of a file.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::model::{Error, Result};

/// Digits of a 128-bit number in the name of a shard.
const NUMBER_DIGITS: usize = 32;

/// The shards in the order of their 128-bit numbers, if the names of all end with one (before the suffix); else as they
/// are given. Fails with `Invalid` for a path or a number that repeats.
pub fn shards_in_order(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut seen = HashSet::with_capacity(paths.len());
    if let Some(path) = paths.iter().find(|path| !seen.insert(*path)) {
        return Err(Error::invalid(format!("the shard {} is there twice", path.display())));
    }
    let mut numbered = Vec::with_capacity(paths.len());
    for path in paths {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let digits = stem.len().checked_sub(NUMBER_DIGITS).and_then(|begin| stem.get(begin..));
        let is_hex = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        numbered.push((digits.filter(is_hex).and_then(|digits| u128::from_str_radix(digits, 16).ok()), path));
    }
    if numbered.iter().all(|(number, _)| number.is_some()) {
        numbered.sort_by_key(|(number, _)| *number);
        let same = numbered.windows(2).find(|two| matches!(two, [(one, _), (other, _)] if one == other));
        if let Some([(_, one), (_, other)]) = same {
            let text = format!("the shards {} and {} have the same number", one.display(), other.display());
            return Err(Error::invalid(text));
        }
    }
    Ok(numbered.into_iter().map(|(_, path)| path.clone()).collect())
}
