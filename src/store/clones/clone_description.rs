//! `clone.toml` in the directory of a collection: it makes the collection a clone, and names the snapshot that
//! the clone shows as long as nobody changes it.

use crate::model::{Error, Result, StoreId, hex};

/// Name of the file in the directory of a collection.
pub const CLONE_NAME: &str = "clone.toml";
/// Name of the file while it is written.
pub(super) const DRAFT_NAME: &str = "clone.toml.new";
/// A longer file is not ours.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 16;
const FORMAT: i64 = 1;

/// The snapshot of a remote that a collection is a clone of. It has no credentials.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CloneSource {
    /// The URL of the remote.
    pub url: String,
    /// The uuid of the remote.
    pub remote: StoreId,
    /// The tenant in the remote.
    pub tenant: String,
    /// The name of the collection in the remote.
    pub collection: String,
    /// The number of the snapshot.
    pub number: u64,
    /// BLAKE3 of the canonical log of the snapshot: a collection with another one was changed.
    pub log: [u8; 32],
    /// The random number of a push that was begun. A newer snapshot with it has the state of this clone.
    pub push: Option<u128>,
    /// A text of the program that has made the clone, by which it knows its own.
    pub mark: Option<String>,
}

impl CloneSource {
    /// The text of the file.
    pub fn to_text(&self) -> String {
        let mut table = toml::Table::new();
        let mut text = |key: &str, value: String| table.insert(key.to_owned(), toml::Value::String(value));
        text("url", self.url.clone());
        text("remote", self.remote.to_string());
        text("tenant", self.tenant.clone());
        text("collection", self.collection.clone());
        text("snapshot", self.number.to_string());
        text("log", hex(&self.log));
        if let Some(push) = self.push {
            text("push", format!("{push:032x}"));
        }
        if let Some(mark) = &self.mark {
            table.insert("mark".to_owned(), toml::Value::String(mark.clone()));
        }
        table.insert("format".to_owned(), toml::Value::Integer(FORMAT));
        format!("# The origin of a clone. Made by tierfs.\n{table}")
    }

    /// Reads the file.
    pub fn parse(text: &str) -> Result<CloneSource> {
        let table: toml::Table =
            text.parse().map_err(|error| Error::corrupt(format!("{CLONE_NAME} cannot be read: {error}")))?;
        let format = table.get("format").and_then(toml::Value::as_integer).unwrap_or(0);
        if format != FORMAT {
            return Err(Error::unsupported(format!(
                "{CLONE_NAME} has format {format}; this program knows {FORMAT}"
            )));
        }
        let wrong = |key: &str| Error::corrupt(format!("{CLONE_NAME}: {key} is missing or wrong"));
        let text = |key: &str| table.get(key).and_then(toml::Value::as_str).ok_or_else(|| wrong(key));
        let number = |key: &str| {
            let digits = text(key)?;
            let found = u128::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 32);
            found.ok_or_else(|| wrong(key))
        };
        let log = text("log")?;
        Ok(CloneSource {
            url: text("url")?.to_owned(),
            remote: StoreId(number("remote")?),
            tenant: text("tenant")?.to_owned(),
            collection: text("collection")?.to_owned(),
            number: text("snapshot")?.parse().map_err(|_| wrong("snapshot"))?,
            log: digest(log).ok_or_else(|| wrong("log"))?,
            mark: if table.contains_key("mark") { Some(text("mark")?.to_owned()) } else { None },
            push: if table.contains_key("push") { Some(number("push")?) } else { None },
        })
    }
}

/// The bytes of 64 hexadecimal digits.
fn digest(digits: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * place..2 * place + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::CloneSource;
    use crate::model::StoreId;

    #[test]
    fn a_description_is_read_as_it_was_written_and_damaged_ones_are_refused() {
        let source = CloneSource {
            url: "s3://models/\"a\"".to_owned(),
            remote: StoreId(7),
            tenant: "acme".to_owned(),
            collection: "m".to_owned(),
            number: u64::MAX,
            log: [0xab; 32],
            push: None,
            mark: None,
        };
        let mark = Some("volume-\"1\"".to_owned());
        let pushing = CloneSource { push: Some(u128::MAX), mark, ..source.clone() };
        for source in [source, pushing] {
            assert_eq!(CloneSource::parse(&source.to_text()).unwrap(), source);
            for key in ["format", "url", "remote", "tenant", "collection", "snapshot", "log"] {
                let text = source.to_text().replace(&format!("\n{key} ="), "\nother =");
                assert!(CloneSource::parse(&text).is_err(), "{text}");
            }
        }
        for text in ["", "format = 2", "format = 1\nurl = 3", "\u{0}"] {
            assert!(CloneSource::parse(text).is_err(), "{text}");
        }
    }
}
