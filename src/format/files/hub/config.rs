//! The configuration of a model, with the values that transformers assumes where a key is missing.

use serde_json::{Map, Value};

use crate::model::{Error, Result};

/// A value that transformers assumes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Assumed {
    Count(u64),
    Float(f64),
}

/// The configuration of a model.
pub(super) struct Config {
    /// The file.
    pub(super) raw: Map<String, Value>,
    /// The file with the keys of its text model, and with assumed values.
    all: Map<String, Value>,
    /// The encoding of positions.
    pub(super) positions: Positions,
}

/// The parameters of rotary position embeddings.
#[derive(Default)]
pub(super) struct Positions {
    /// Those of layers that attend to all tokens.
    pub(super) full: Map<String, Value>,
    /// The base of layers that attend to near tokens.
    pub(super) local_base: Option<f64>,
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// `Invalid` for bytes that are no JSON object.
    pub(super) fn parse(json: &[u8]) -> Result<Config> {
        let raw: std::result::Result<Map<String, Value>, _> = serde_json::from_slice(json);
        let raw = raw.map_err(|error| Error::invalid(format!("config.json: {error}")))?;
        let mut all = raw.clone();
        if let Some(inner) = raw.get("text_config").and_then(Value::as_object) {
            all.extend(inner.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        Ok(Config { raw, all, positions: Positions::default() })
    }

    /// The name of the architecture: that of the text model, or of the whole.
    pub(super) fn architecture(&self) -> Option<&str> {
        self.raw.get("architectures")?.as_array()?.first()?.as_str()
    }

    /// Adds assumed values, and takes the parameters of positions apart.
    pub(super) fn assume(&mut self, assumed: &[(&str, Assumed)]) {
        for (key, value) in assumed {
            let value = match value {
                Assumed::Count(count) => Value::from(*count),
                Assumed::Float(float) => Value::from(*float),
            };
            let known = self.all.entry((*key).to_owned()).or_insert(Value::Null);
            if known.is_null() {
                *known = value;
            }
        }
        self.positions = self.positions_of();
    }

    fn positions_of(&self) -> Positions {
        let of = |key: &str| self.all.get(key).and_then(Value::as_object).filter(|map| !map.is_empty());
        let parameters = of("rope_parameters").or_else(|| of("rope_scaling")).cloned().unwrap_or_default();
        let inner = |key: &str| parameters.get(key).and_then(Value::as_object);
        let mut full = match inner("full_attention").or_else(|| inner("sliding_attention")) {
            Some(_) => inner("full_attention").cloned().unwrap_or_default(),
            None => parameters.clone(),
        };
        let first = |keys: &[&str]| keys.iter().find_map(|key| self.value(key)).cloned();
        let mut fill = |key: &str, value: Option<Value>| {
            if let Some(value) = value.filter(|_| full.get(key).is_none_or(Value::is_null)) {
                full.insert(key.to_owned(), value);
            }
        };
        fill(
            "rope_theta",
            first(&[
                "global_rope_theta",
                "rope_global_theta",
                "rope_theta_global",
                "rope_theta",
                "rotary_emb_base",
            ]),
        );
        fill("rope_type", parameters.get("type").cloned());
        fill("original_max_position_embeddings", first(&["original_max_position_embeddings"]));
        if full.get("rope_type").and_then(Value::as_str).is_some_and(|kind| kind != "default") {
            let longest = self.value("max_position_embeddings").cloned();
            if full.get("original_max_position_embeddings").is_none_or(Value::is_null)
                && let Some(longest) = longest
            {
                full.insert("original_max_position_embeddings".to_owned(), longest);
            }
        }
        let local = inner("sliding_attention").and_then(|map| map.get("rope_theta")).and_then(Value::as_f64);
        let keys = [
            "local_rope_theta",
            "rope_local_theta",
            "rope_theta_local",
            "swa_rope_theta",
            "rope_local_base_freq",
        ];
        Positions { full, local_base: local.or_else(|| first(&keys)?.as_f64()) }
    }

    /// The value of a key. Null counts as missing.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.all.get(key).filter(|value| !value.is_null())
    }

    /// A count by the first of these keys that the configuration has.
    ///
    /// # Errors
    /// `Invalid` for a value that is not a u32.
    pub(super) fn count(&self, keys: &[&str]) -> Result<Option<u32>> {
        let Some((key, value)) = keys.iter().find_map(|key| Some((key, self.value(key)?))) else {
            return Ok(None);
        };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
        let wrong = || Error::invalid(format!("config.json: {key} is {}, not a count", shortened(value)));
        count.map(Some).ok_or_else(wrong)
    }

    /// As [`count`](Self::count), for a key that must be there.
    ///
    /// # Errors
    /// As there, and where all keys are missing.
    pub(super) fn needed(&self, keys: &[&str]) -> Result<u32> {
        let missing = || Error::invalid(format!("config.json has no {}", keys.first().unwrap_or(&"")));
        self.count(keys)?.ok_or_else(missing)
    }

    /// A number by the first of these keys that the configuration has.
    ///
    /// # Errors
    /// `Invalid` for another value.
    pub(super) fn float(&self, keys: &[&str]) -> Result<Option<f64>> {
        let Some((key, value)) = keys.iter().find_map(|key| Some((key, self.value(key)?))) else {
            return Ok(None);
        };
        let wrong = || Error::invalid(format!("config.json: {key} is {}, not a number", shortened(value)));
        value.as_f64().map(Some).ok_or_else(wrong)
    }

    /// Sets a value that another value implies, where it is missing.
    pub(super) fn imply(&mut self, key: &str, value: u32) {
        if self.value(key).is_none() {
            self.all.insert(key.to_owned(), Value::from(value));
        }
    }

    /// Replaces a value.
    pub(super) fn replace(&mut self, key: &str, value: u32) {
        self.all.insert(key.to_owned(), Value::from(value));
    }
}

/// A value as text for an error.
pub(super) fn shortened(value: &Value) -> String {
    crate::model::beginning(&value.to_string(), 40).to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Assumed, Config};

    #[test]
    fn assumed_values_fill_missing_keys_and_positions_are_taken_apart() {
        let json =
            br#"{"architectures": ["A"], "hidden_size": null, "rope_theta": 5, "text_config": {"layers": 3},
            "rope_scaling": {"type": "yarn", "factor": 4}, "rope_local_base_freq": 9}"#;
        let mut config = Config::parse(json).unwrap();
        config.assume(&[("hidden_size", Assumed::Count(8)), ("max_position_embeddings", Assumed::Count(16))]);
        assert_eq!(config.architecture(), Some("A"));
        assert_eq!(config.needed(&["none", "hidden_size"]).unwrap(), 8);
        assert_eq!(config.count(&["layers"]).unwrap(), Some(3));
        assert_eq!(config.positions.local_base, Some(9.0));
        let full = &config.positions.full;
        assert_eq!((full["rope_theta"].as_u64(), full["rope_type"].as_str()), (Some(5), Some("yarn")));
        assert_eq!(full["original_max_position_embeddings"].as_u64(), Some(16));
        assert!(config.needed(&["none"]).is_err() && config.count(&["rope_scaling"]).is_err());
        assert!(Config::parse(b"[]").is_err());
    }
}
