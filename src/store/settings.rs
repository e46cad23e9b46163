//! `tierfs.toml`: identity and settings of a store.

use crate::model::{Error, Result, StoreId};
use crate::store::rules::Rules;

/// Version of the store layout that this program creates and opens.
pub const FORMAT_VERSION: i64 = 1;

/// Content of `tierfs.toml`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The uuid of the store.
    pub store: StoreId,
    /// A tensor whose name contains one of these, ignoring case, stays exact when a whole directory or
    /// container is moved without `:all`.
    pub keep: Vec<String>,
    /// Maximum number of files that the kernel reads by passthrough at the same time.
    pub passthrough_files_max: u32,
    /// Rules for automatic changes of tier.
    pub rules: Rules,
}

/// Tensors that model quantizers usually leave alone.
pub const KEEP: [&str; 7] = ["norm", "scale", "bias", "router", "gate", "embed", "lm_head"];

/// The kernel keeps a descriptor for each passthrough file.
const PASSTHROUGH_FILES_MAX: u32 = 4096;

impl Settings {
    /// The settings of a new store.
    pub fn new(store: StoreId) -> Settings {
        Settings {
            store,
            keep: KEEP.map(str::to_owned).to_vec(),
            passthrough_files_max: PASSTHROUGH_FILES_MAX,
            rules: Rules::default(),
        }
    }

    /// Whether the name of a tensor is on the list of those that stay exact.
    pub fn keeps(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.keep.iter().any(|part| name.contains(&part.to_lowercase()))
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let keep: Vec<String> =
            self.keep.iter().map(|part| toml::Value::from(part.as_str()).to_string()).collect();
        format!(
            "# A tierfs store. Made by tierfs; settings may be changed while it is not mounted.\n\
             format = {FORMAT_VERSION}\n\
             uuid = \"{}\"\n\n\
             # Tensors whose names contain one of these stay exact unless all are asked for.\n\
             keep = [{}]\n\n\
             # So many files at most are read by the kernel without the daemon at the same time.\n\
             passthrough_files_max = {}\n\n{}",
            self.store,
            keep.join(", "),
            self.passthrough_files_max,
            self.rules.to_text()
        )
    }

    /// Parses the text of the file.
    pub fn parse(text: &str) -> Result<Settings> {
        let table: toml::Table =
            text.parse().map_err(|error| Error::invalid(format!("tierfs.toml cannot be read: {error}")))?;
        let format = table.get("format").and_then(toml::Value::as_integer);
        match format {
            Some(FORMAT_VERSION) => {}
            Some(other) => {
                return Err(Error::unsupported(format!(
                    "tierfs.toml says format {other}, this program knows {FORMAT_VERSION}"
                )));
            }
            None => return Err(Error::invalid("tierfs.toml names no format")),
        }
        let uuid = table.get("uuid").and_then(toml::Value::as_str);
        let store = uuid.filter(|text| text.len() == 32).and_then(|text| u128::from_str_radix(text, 16).ok());
        let store = StoreId(store.ok_or_else(|| Error::invalid("tierfs.toml has no uuid of 32 hex digits"))?);
        let mut settings = Settings::new(store);
        for (key, value) in &table {
            match key.as_str() {
                "format" | "uuid" => {}
                "keep" => {
                    let parts = value.as_array().map(|parts| {
                        parts.iter().map(|part| part.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
                    });
                    settings.keep = parts
                        .flatten()
                        .ok_or_else(|| Error::invalid("tierfs.toml: keep is no list of texts"))?;
                }
                "passthrough_files_max" => {
                    let count = value.as_integer().and_then(|count| u32::try_from(count).ok());
                    settings.passthrough_files_max = count.ok_or_else(|| {
                        Error::invalid("tierfs.toml: passthrough_files_max is no number from 0 to 2^32 - 1")
                    })?;
                }
                other if settings.rules.take(other, value)? => {}
                other => return Err(Error::invalid(format!("tierfs.toml: {other} is no setting"))),
            }
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;
    use crate::model::StoreId;

    #[test]
    fn settings_are_read_as_they_are_written() {
        let mut settings = Settings::new(StoreId(0xfeed));
        settings.keep.push("a \"quoted\"\\part".to_owned());
        settings.passthrough_files_max = 7;
        assert_eq!(Settings::parse(&settings.to_text()).unwrap(), settings);
    }

    #[test]
    fn what_is_not_a_setting_is_refused() {
        let text = Settings::new(StoreId(1)).to_text();
        assert!(Settings::parse(&format!("{text}keeep = []\n")).is_err());
        assert!(Settings::parse(&text.replace("format = 1", "format = 2")).is_err());
        assert!(Settings::parse(&text.replace("max = 4096", "max = -1")).is_err());
        assert!(Settings::parse("").is_err());
    }

    #[test]
    fn kept_names_are_found_in_any_case() {
        let settings = Settings::new(StoreId(1));
        assert!(settings.keeps("encoder.LayerNorm.weight") && settings.keeps("model.embed_tokens"));
        assert!(!settings.keeps("layers.0.q_proj.weight"));
    }
}
