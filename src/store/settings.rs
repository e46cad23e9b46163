//! `tierfs.toml`: identity and settings of a store, and the rules for automatic changes of tier.

use std::collections::BTreeMap;

use crate::model::{
    Error, HOLD, IDLE, KEEP, KeptBy, Result, StoreId, THRESHOLDS, Threshold, Thresholds, Tier, keeps,
};

/// Version of the store layout that this program creates and opens.
pub const FORMAT_VERSION: i64 = 1;

/// Content of `tierfs.toml`.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The uuid of the store.
    pub store: StoreId,
    /// A tensor whose name has one of these words (`model/keep_list.rs`) stays exact when a whole directory or
    /// container is moved without `:all`.
    pub keep: Vec<String>,
    /// Maximum number of files that the kernel reads by passthrough at the same time.
    pub passthrough_files_max: u32,
    /// Maximum number of descriptors for logs, payload files and data files.
    pub descriptors_max: u32,
    /// Bytes of memory of all open collections above which unused ones are closed.
    pub idle_memory_max: u64,
    /// The default of the setting `pack` for arriving tensors.
    pub pack: &'static str,
    /// Which files share the bytes of data files.
    pub share: Share,
    /// Whether events are kept in the trail of the store.
    pub audit: bool,
    /// Whether mkdir(2) makes tenants and collections. Imports and the like do always.
    pub makes_directories: bool,
    /// Rules for automatic changes of tier.
    pub rules: Rules,
}

/// Which files share the bytes of data files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Share {
    /// No files.
    #[default]
    None,
    /// Files of one tenant, so that a tenant learns nothing from time or space about the files of
    /// others.
    Tenant,
    /// All files.
    Store,
}

impl Share {
    const NAMES: [(&'static str, Share); 3] =
        [("none", Share::None), ("tenant", Share::Tenant), ("store", Share::Store)];

    fn name(self) -> &'static str {
        let found = Share::NAMES.into_iter().find(|(_, share)| *share == self);
        found.map_or("none", |(name, _)| name)
    }

    fn from_name(name: &str) -> Option<Share> {
        Share::NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, share)| share)
    }
}

/// The values of the setting `pack`: verbatim, and packed.
pub const PACKS: [&str; 2] = ["none", "ladder"];

/// The default of `descriptors_max`: files that are rarely used are cheap to open.
pub const DESCRIPTORS_MAX: u32 = 1024;

/// The default of `idle_memory_max`: some 200,000 tensors of a hundred encoded blocks.
const IDLE_MEMORY_MAX: u64 = 1 << 30;

/// The kernel keeps a descriptor for each passthrough file.
const PASSTHROUGH_FILES_MAX: u32 = 4096;

/// Why a tensor of this name stays exact with a keep list, if it does.
pub(in crate::store) fn kept_by(list: &[String], name: &str, has_codes: bool) -> Option<KeptBy> {
    if keeps(list, name) { Some(KeptBy::KeepList) } else { has_codes.then_some(KeptBy::BesideCodes) }
}

impl Settings {
    /// The settings of a new store.
    pub fn new(store: StoreId) -> Settings {
        Settings {
            store,
            keep: KEEP.map(str::to_owned).to_vec(),
            passthrough_files_max: PASSTHROUGH_FILES_MAX,
            descriptors_max: DESCRIPTORS_MAX,
            idle_memory_max: IDLE_MEMORY_MAX,
            pack: PACKS[0],
            share: Share::Tenant,
            audit: true,
            makes_directories: true,
            rules: Rules::default(),
        }
    }

    /// Why a tensor of this name stays exact, if it does. `has_codes` says whether its file has codes.
    pub fn keeps(&self, name: &str, has_codes: bool) -> Option<KeptBy> {
        kept_by(&self.keep, name, has_codes)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let keep: Vec<String> =
            self.keep.iter().map(|part| toml::Value::from(part.as_str()).to_string()).collect();
        format!(
            "# The settings of a tierfs store. Edit them while the store is not mounted.\n\
             format = {FORMAT_VERSION}\n\
             uuid = \"{}\"\n\n\
             # Tensors with one of these words in their names stay exact, unless a move has :all.\n\
             keep = [{}]\n\n\
             # Maximum number of files that the kernel reads by passthrough at the same time.\n\
             passthrough_files_max = {}\n\n\
             # Maximum number of files of the store that are open at the same time, at least 16. Others are opened\n\
             # again when they are used.\n\
             descriptors_max = {}\n\n\
             # Bytes of memory for open collections. Beyond it those that no program uses are closed, and opened again\n\
             # when they are used.\n\
             idle_memory_max = {}\n\n\
             # Default of the setting pack for arriving tensors: none, or ladder for packed ones.\n\
             pack = \"{}\"\n\n\
             # Which files share equal bytes: none, tenant (the files of one tenant) or store.\n\
             share = \"{}\"\n\n\
             # Whether imports, moves, repairs and changes of settings are kept in .tierfs.audit: on or off.\n\
             audit = \"{}\"\n\n\
             # How tenants and collections are made: auto (also by mkdir) or explicit (only by commands such as tierfs import).\n\
             mkdir = \"{}\"\n\n{}",
            self.store,
            keep.join(", "),
            self.passthrough_files_max,
            self.descriptors_max,
            self.idle_memory_max,
            self.pack,
            self.share.name(),
            if self.audit { "on" } else { "off" },
            if self.makes_directories { "auto" } else { "explicit" },
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
            None => return Err(Error::invalid("tierfs.toml does not have the key format")),
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
                        .ok_or_else(|| Error::invalid("tierfs.toml: keep must be a list of texts"))?;
                }
                "passthrough_files_max" => settings.passthrough_files_max = count(key, value)?,
                "descriptors_max" => settings.descriptors_max = count(key, value)?,
                "idle_memory_max" => settings.idle_memory_max = number(key, value)?,
                "pack" => {
                    let known =
                        value.as_str().and_then(|text| PACKS.into_iter().find(|known| *known == text));
                    settings.pack = known
                        .ok_or_else(|| Error::invalid("tierfs.toml: pack must be \"none\" or \"ladder\""))?;
                }
                "share" => {
                    let share = value.as_str().and_then(Share::from_name);
                    settings.share = share.ok_or_else(|| {
                        Error::invalid("tierfs.toml: share must be \"none\", \"tenant\" or \"store\"")
                    })?;
                }
                "audit" => {
                    settings.audit = match value.as_str() {
                        Some("on") => true,
                        Some("off") => false,
                        _ => return Err(Error::invalid("tierfs.toml: audit must be \"on\" or \"off\"")),
                    };
                }
                "mkdir" => {
                    settings.makes_directories = match value.as_str() {
                        Some("auto") => true,
                        Some("explicit") => false,
                        _ => {
                            let text = "tierfs.toml: mkdir must be \"auto\" or \"explicit\"";
                            return Err(Error::invalid(text));
                        }
                    };
                }
                other if settings.rules.take(other, value)? => {}
                other => return Err(Error::invalid(format!("tierfs.toml: unknown setting {other}"))),
            }
        }
        Ok(settings)
    }
}

fn count(key: &str, value: &toml::Value) -> Result<u32> {
    let count = value.as_integer().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| Error::invalid(format!("tierfs.toml: {key} must be a number from 0 to 2^32 - 1")))
}

/// Default length of a tick in seconds.
pub const TICK_SECONDS: u32 = 60;

/// Rules for automatic changes of tier.
#[derive(Clone, PartialEq, Debug)]
pub struct Rules {
    /// Length of a tick in seconds. Accesses are counted in ticks, and tiers change once a tick.
    pub tick_seconds: u32,
    /// Those of tensors without their own.
    pub thresholds: Thresholds,
    /// Seconds without an access after which an exact tensor is packed; 0 for never.
    pub pack_idle: u64,
    /// Logical bytes moved in a tick. The last tensor may exceed it.
    pub pass_bytes: u64,
    /// Stored bytes in q7 above which the least recently used tensors move to q5; 0 for no limit.
    pub warm_byte_cap: u64,
    /// Capacities of tiers that have a limit.
    pub limits: BTreeMap<Tier, Limit>,
}

/// Capacity of a tier; 0 for no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Stored bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Limit {
    /// Whether these amounts exceed the capacity.
    pub fn is_passed(self, bytes: u64, blocks: u64) -> bool {
        self.bytes > 0 && bytes > self.bytes || self.blocks > 0 && blocks > self.blocks
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            tick_seconds: TICK_SECONDS,
            thresholds: Thresholds::default(),
            pack_idle: 3600,
            pass_bytes: 4 << 30,
            warm_byte_cap: 0,
            limits: BTreeMap::new(),
        }
    }
}

impl Rules {
    /// The text for the end of `tierfs.toml`.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "# Policy auto: seconds of a tick, and maximum bytes that a tick moves.\n\
             tick_seconds = {}\n\
             pass_bytes = {}\n\
             # Seconds without an access after which an exact tensor is packed; 0 for never.\n\
             pack_idle = {}\n\
             # Stored bytes in q7 above which the least recently used tensors move to q5; 0 for no limit.\n\
             warm_byte_cap = {}\n",
            self.tick_seconds, self.pass_bytes, self.pack_idle, self.warm_byte_cap
        );
        text.push_str(
            "# Thresholds of files and directories without their own: scores, seconds and shares.\n",
        );
        for threshold in &THRESHOLDS {
            text.push_str(&format!("{} = {}\n", threshold.name, threshold.of(&self.thresholds)));
        }
        if self.limits.is_empty() {
            text.push_str("# Capacities of tiers: limits.q8 = { bytes = 1000000000, blocks = 0 }\n");
        }
        for (tier, limit) in &self.limits {
            let Limit { bytes, blocks } = limit;
            text.push_str(&format!("limits.{tier} = {{ bytes = {bytes}, blocks = {blocks} }}\n"));
        }
        text
    }

    /// Reads a setting. Returns whether the key is one of these.
    fn take(&mut self, key: &str, value: &toml::Value) -> Result<bool> {
        let number = || number(key, value);
        match key {
            "tick_seconds" => {
                let seconds = u32::try_from(number()?).ok().filter(|seconds| *seconds > 0);
                self.tick_seconds =
                    seconds.ok_or_else(|| Error::invalid("tierfs.toml: tick_seconds must be at least 1"))?;
            }
            "pack_idle" => self.pack_idle = number()?,
            "pass_bytes" => self.pass_bytes = number()?,
            "warm_byte_cap" => self.warm_byte_cap = number()?,
            "limits" => {
                let tiers = value.as_table();
                let tiers =
                    tiers.ok_or_else(|| Error::invalid("tierfs.toml: limits must be a table of tiers"))?;
                for (name, value) in tiers {
                    let tier = Tier::from_name(name).filter(|tier| *tier != Tier::Absent);
                    let tier = tier.ok_or_else(|| {
                        Error::invalid(format!("tierfs.toml: limits.{name}: {name} is not a tier"))
                    })?;
                    self.limits.insert(tier, limit(name, value)?);
                }
            }
            key => {
                // Stores of earlier programs have these names.
                let name = match key {
                    "hold_seconds" => HOLD.name,
                    "idle_seconds" => IDLE.name,
                    name => name,
                };
                let Some(threshold) = THRESHOLDS.iter().find(|threshold| threshold.name == name) else {
                    return Ok(false);
                };
                threshold.set(&mut self.thresholds, threshold_value(threshold, value)?);
            }
        }
        Ok(true)
    }
}

/// A number, or a text as the setting of a directory has it: `hold = "7d"`.
fn threshold_value(threshold: &Threshold, value: &toml::Value) -> Result<f64> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    threshold.parse(&text).map_err(|error| Error::invalid(format!("tierfs.toml: {error}")))
}

fn number(key: &str, value: &toml::Value) -> Result<u64> {
    let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
    number.ok_or_else(|| Error::invalid(format!("tierfs.toml: {key} must be a number, 0 or more")))
}

fn limit(tier: &str, value: &toml::Value) -> Result<Limit> {
    let wrong = || Error::invalid(format!("tierfs.toml: limits.{tier} can have bytes and blocks only"));
    let mut limit = Limit::default();
    for (key, value) in value.as_table().ok_or_else(wrong)? {
        let place = match key.as_str() {
            "bytes" => &mut limit.bytes,
            "blocks" => &mut limit.blocks,
            _ => return Err(wrong()),
        };
        *place = number(key, value)?;
    }
    Ok(limit)
}

#[cfg(test)]
mod tests {
    use super::{Limit, Rules, Settings};
    use crate::model::{StoreId, Tier};

    #[test]
    fn settings_round_trip() {
        let mut settings = Settings::new(StoreId(0xfeed));
        settings.keep.push("a \"quoted\"\\part".to_owned());
        settings.passthrough_files_max = 7;
        settings.audit = false;
        settings.makes_directories = false;
        settings.pack = "ladder";
        assert_eq!(Settings::parse(&settings.to_text()).unwrap(), settings);
    }

    #[test]
    fn unknown_settings_are_refused() {
        let text = Settings::new(StoreId(1)).to_text();
        assert!(Settings::parse(&format!("{text}keeep = []\n")).is_err());
        assert!(Settings::parse(&text.replace("format = 1", "format = 2")).is_err());
        assert!(Settings::parse(&text.replace("max = 4096", "max = -1")).is_err());
        assert!(Settings::parse(&text.replace("pack = \"none\"", "pack = \"zip\"")).is_err());
        assert!(Settings::parse(&text.replace("mkdir = \"auto\"", "mkdir = \"yes\"")).is_err());
        assert!(Settings::parse("").is_err());
    }

    fn rules_of(text: &str) -> Option<Rules> {
        let mut rules = Rules::default();
        let table: toml::Table = text.parse().ok()?;
        table.iter().all(|(key, value)| rules.take(key, value).unwrap_or(false)).then_some(rules)
    }

    #[test]
    fn rules_round_trip() {
        let mut rules = Rules { tick_seconds: 1, warm_byte_cap: 7, ..Rules::default() };
        rules.thresholds.hold = 604_800.0;
        rules.thresholds.delta_norm = 0.125;
        assert_eq!(rules_of(&rules.to_text()).unwrap(), rules);
        rules.limits.insert(Tier::Q8, Limit { bytes: 5, blocks: 0 });
        rules.limits.insert(Tier::Exact, Limit { bytes: 0, blocks: 9 });
        assert_eq!(rules_of(&rules.to_text()).unwrap(), rules);
    }

    #[test]
    fn the_names_of_earlier_programs_are_read() {
        let rules = rules_of("hold_seconds = 7200\nidle_seconds = 60").unwrap();
        assert_eq!((rules.thresholds.hold, rules.thresholds.idle), (7200.0, 60.0));
        assert!(!rules.to_text().contains("_seconds = 7200"));
    }

    #[test]
    fn impossible_rules_are_refused() {
        for text in [
            "tick_seconds = 0",
            "hold = -1",
            "hold = \"1w\"",
            "down_below = 1000.5",
            "ema_share = true",
            "warm_byte_cap = \"much\"",
            "limits = 3",
            "limits.q9 = { bytes = 1 }",
            "limits.absent = { bytes = 1 }",
            "limits.q8 = { octets = 1 }",
            "limits.q8 = 1",
        ] {
            assert!(rules_of(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_limit_of_zero_means_no_limit() {
        assert!(!Limit::default().is_passed(u64::MAX, u64::MAX));
        let limit = Limit { bytes: 10, blocks: 2 };
        assert!(!limit.is_passed(10, 2) && limit.is_passed(11, 0) && limit.is_passed(0, 3));
    }
}
