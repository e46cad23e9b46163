//! The file `version.toml` of a version: when it was made, and of what state.

use crate::format::snapshot::keys::digest;
use crate::model::{Error, Result, hex};

/// The file `version.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Description {
    /// When the version was made, in nanoseconds since 1970.
    pub created_at: u64,
    /// Logical bytes of its files.
    pub bytes: u64,
    /// BLAKE3 of the canonical log of the state.
    pub state: [u8; 32],
    /// Bytes of elements that differ from those of the version before, and of tensors that it lacks; `None` if they
    /// were not compared.
    pub changed: Option<u64>,
    /// Files that stay whole, as paths below the directory of the version.
    pub keyframes: Vec<String>,
}

impl Description {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        let Description { created_at, bytes, state, changed, keyframes } = self;
        let mut text = format!("created = {created_at}\nbytes = {bytes}\nstate = \"{}\"\n", hex(state));
        if let Some(changed) = changed {
            text.push_str(&format!("changed = {changed}\n"));
        }
        let quoted: Vec<String> = keyframes.iter().map(|name| format!("\"{name}\"")).collect();
        text.push_str(&format!("keyframes = [{}]\n", quoted.join(", ")));
        text
    }

    /// Reads the text of a file. `Corrupt` if it has other keys or values.
    pub fn parse(text: &str) -> Result<Description> {
        let table: toml::Table =
            text.parse().map_err(|error| Error::corrupt(format!("it cannot be read: {error}")))?;
        let mut found = Description::default();
        for (key, value) in &table {
            let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
            let names = || {
                let is_path = |name: &&str| {
                    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./".contains(&byte))
                };
                let names = value.as_array()?.iter();
                names.map(|name| name.as_str().filter(is_path).map(str::to_owned)).collect::<Option<Vec<_>>>()
            };
            let known = match key.as_str() {
                "created" => number.map(|number| found.created_at = number),
                "bytes" => number.map(|number| found.bytes = number),
                "changed" => number.map(|number| found.changed = Some(number)),
                "state" => value.as_str().and_then(digest).map(|state| found.state = state),
                "keyframes" => names().map(|names| found.keyframes = names),
                _ => None,
            };
            known.ok_or_else(|| Error::corrupt(format!("unknown setting {key} = {value}")))?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::Description;

    #[test]
    fn a_description_is_read_as_it_was_written_and_unknown_settings_are_refused() {
        let description = Description {
            created_at: 1 << 60,
            bytes: 5,
            state: [0xab; 32],
            changed: Some(0),
            keyframes: vec!["tier0.dat".to_owned(), "data/0000000000000001".to_owned()],
        };
        assert_eq!(Description::parse(&description.to_text()).unwrap(), description);
        let without = Description { changed: None, keyframes: Vec::new(), ..description };
        assert_eq!(Description::parse(&without.to_text()).unwrap(), without);
        for wrong in ["x = 1", "created = -1", "state = \"00\"", "keyframes = [1]", "keyframes = ['\"']", "="]
        {
            assert!(Description::parse(wrong).is_err(), "{wrong}");
        }
    }
}
