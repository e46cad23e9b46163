//! Settings of files and directories: their storage in the log, and their meaning.

use crate::format::log::catalog::{Entry, NodeEntry, NodeType};
use crate::model::{Encoder, EntryId, Error, ErrorKind, LOSSES, Loss, Result, Threshold, Tier};
use crate::store::Collection;
use crate::store::State;
#[cfg(feature = "mount")]
use crate::store::allow_until_written;
use crate::store::{DeltaLimits, Rounding, Touched, Writes, now_nanoseconds};

/// A setting with a text value that is inherited: a tensor inherits from its container, a file from
/// the directories above it.
pub struct Setting {
    pub name: &'static str,
    /// The possible values; the first is the default.
    pub values: &'static [&'static str],
}

/// How far precision may be lost where no exact source remains.
pub const LOSSY: Setting = Setting { name: crate::store::LOSSY, values: &LOSSES };
/// Whether the engine moves it by policy.
pub const POLICY: Setting = Setting {
    name: crate::store::POLICY,
    values: &["manual", AUTO, "auto:q8", "auto:q7", "auto:q5", "auto:q3x", "auto:q3"],
};
/// The value by which the engine moves a tensor, to no tier below a floor: `auto:TIER`, or that of the tensor's consent.
const AUTO: &str = "auto";
/// The floor where nobody has named one.
const FLOOR: Tier = Tier::Q8;
/// Whether the policy moves a tensor as a whole, or each stretch of its blocks.
pub const UNIT: Setting = Setting { name: crate::store::UNIT, values: &["tensor", "block"] };
/// How scales are chosen.
pub const ENCODER: Setting = Setting { name: "encoder", values: &["best", "least", "absmax"] };
/// How small writes into an encoded tensor are stored.
pub const WRITES: Setting = Setting { name: "writes", values: &["exact", "delta"] };
/// Whether listings of a directory show the tensors of its containers. The mount option has the default.
pub const LIST: Setting = Setting { name: "list", values: &["files", "both"] };

/// Whether tensors also open by their plain names, beside the entries of a directory.
pub const PLAIN: Setting = Setting { name: crate::store::PLAIN, values: &crate::store::PLAINS };
/// How decoded bytes are cached: by what programs do, in the kernel's page cache, decoded as a whole, or not.
pub const CACHE: Setting = Setting { name: "cache", values: &["auto", "kernel", "decoded", "none"] };
/// How exact tensors that arrive are stored. `tierfs.toml` has the default.
pub const PACK: Setting = Setting { name: crate::store::PACK, values: &crate::store::PACKS };

impl Setting {
    pub const ALL: [Setting; 9] = [LOSSY, POLICY, UNIT, ENCODER, WRITES, LIST, PLAIN, CACHE, PACK];

    /// The setting with a name.
    pub fn from_name(name: &str) -> Option<Setting> {
        Setting::ALL.into_iter().find(|setting| setting.name == name)
    }

    pub fn default_value(&self) -> &'static str {
        self.values.first().copied().unwrap_or_default()
    }

    /// The value for a node.
    pub fn of<'a>(&self, state: &'a State, node: EntryId) -> &'a str {
        state.inherited(node, self.name).unwrap_or(self.default_value())
    }
}

/// Whether the user who makes a request allows loss of precision for it, independent of `lossy`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consent {
    /// The setting `lossy` decides.
    #[default]
    AsSet,
    /// Loss is allowed for this request.
    Given,
}

impl Consent {
    /// Splits the suffix `:lossy`, which gives consent, off a value.
    pub fn split(text: &str) -> (&str, Consent) {
        match text.strip_suffix(":lossy") {
            Some(rest) => (rest, Consent::Given),
            None => (text, Consent::AsSet),
        }
    }
}

/// The loss of precision that is allowed.
pub fn allowed_loss(state: &State, node: EntryId) -> Loss {
    Loss::parse(LOSSY.of(state, node))
}

/// Whether a value of `policy` is one by which the engine moves tensors.
pub(super) fn is_automatic(value: &str) -> bool {
    value.split(':').next() == Some(AUTO)
}

/// The lowest tier that the policy may move a tensor to. `None` if the engine does not move it by policy.
pub(super) fn policy_floor(state: &State, node: EntryId) -> Option<Tier> {
    let value = POLICY.of(state, node);
    let named = value.split_once(':').and_then(|(_, tier)| Tier::from_name(tier));
    is_automatic(value).then(|| match (named, allowed_loss(state, node)) {
        (Some(tier), _) | (None, Loss::DownTo(tier)) => tier,
        (None, Loss::Deny | Loss::Any) => FLOOR,
    })
}

/// Whether the engine moves a node by policy.
pub fn is_moved_by_policy(state: &State, node: EntryId) -> bool {
    policy_floor(state, node).is_some()
}

/// Whether the engine moves the stretches of a tensor by policy, each by its own use. Reads then count by block alone.
pub fn is_moved_by_block(state: &State, node: EntryId) -> bool {
    state.has_units() && UNIT.of(state, node) == "block" && is_moved_by_policy(state, node)
}

/// How programs' writes into a tensor are stored. A user must have allowed their rounding explicitly, because written data
/// has no other source.
pub fn writes(collection: &Collection, state: &State, node: EntryId) -> Writes {
    let is_rounded = WRITES.of(state, node) == "delta" && state.is_loss_asked_for(node);
    let rounding = || Rounding { encoder: encoder(state, node), loss: allowed_loss(state, node) };
    let limits = DeltaLimits::of(&collection.thresholds_of(state, node));
    Writes { rounding: is_rounded.then(rounding), limits }
}

/// Allows loss of precision for an imported node until it is written to.
#[cfg(feature = "mount")]
pub(super) fn allow_loss_until_written(collection: &Collection, node: EntryId) -> Result<()> {
    collection.record(Touched::default(), |batch, _| {
        batch.entry(allow_until_written(node, None));
        Ok(())
    })
}

/// How scales are chosen for later encodings.
pub fn encoder(state: &State, node: EntryId) -> Encoder {
    Encoder::from_name(ENCODER.of(state, node)).unwrap_or_default()
}

/// The most bytes that the files below a cache directory may take on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheLimit {
    Bytes(u64),
    /// Of the size of the store's disk.
    Percent(u64),
}

impl CacheLimit {
    /// The limit in a value of [`POLICY`]: `cache:200G`, with one of the units K, M, G and T, which are powers of 1024, or
    /// none; or `cache:50%`.
    pub fn from_policy(value: &str) -> Option<CacheLimit> {
        let size = value.strip_prefix("cache:")?;
        let digits =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
        if let Some(percent) = size.strip_suffix('%') {
            return digits(percent).filter(|percent| (1..=100).contains(percent)).map(CacheLimit::Percent);
        }
        let units = [("K", 10), ("M", 20), ("G", 30), ("T", 40)];
        let unit = units.into_iter().find_map(|(unit, power)| Some((size.strip_suffix(unit)?, power)));
        let (number, power) = unit.unwrap_or((size, 0));
        digits(number)?.checked_mul(1 << power).map(CacheLimit::Bytes)
    }

    /// The limit in bytes, on a disk of `total` bytes.
    pub fn bytes(self, total: u64) -> u64 {
        match self {
            CacheLimit::Bytes(bytes) => bytes,
            CacheLimit::Percent(percent) => (u128::from(total) * u128::from(percent) / 100) as u64,
        }
    }
}

/// Sets a setting of a file or a directory. Fails with `Invalid` for an impossible value, and with
/// `Denied` where another setting forbids it.
pub fn set_setting(collection: &Collection, node: EntryId, setting: &Setting, value: &str) -> Result<()> {
    let is_cache = setting.name == POLICY.name && CacheLimit::from_policy(value).is_some();
    if !is_cache && !setting.values.contains(&value) {
        let name = setting.name;
        let values = match name {
            _ if name == POLICY.name => {
                "manual, auto, auto:TIER such as auto:q5, or cache:SIZE such as cache:200G or cache:50%"
                    .to_owned()
            }
            _ if name == LOSSY.name => "deny, allow, or allow:TIER, such as allow:q8".to_owned(),
            _ => setting.values.join(" or "),
        };
        return Err(Error::invalid(format!("invalid value {value:?} of {name}; expected {values}")));
    }
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        if setting.name == WRITES.name && value == "delta" && allowed_loss(state, node) == Loss::Deny {
            let text = "writes=delta rounds written values; set lossy=allow first";
            return Err(Error::new(ErrorKind::Denied, text));
        }
        if is_cache && found.file().is_some() {
            return Err(Error::invalid("only a directory can be a cache"));
        }
        let was_import = setting.name == LOSSY.name && state.is_allowed_until_written(node);
        if state.setting(node, setting.name) == Some(value) && !was_import {
            return Ok(());
        }
        let mut set = |name: &str, value: &str| {
            batch.entry(Entry::Setting { node, key: name.to_owned(), value: Some(value.to_owned()) });
        };
        if setting.name == WRITES.name && value == "delta" && !state.is_loss_asked_for(node) {
            // A request for quantized writes allows the loss, where only an import did so far.
            set(LOSSY.name, LOSSY.of(state, node));
        }
        set(setting.name, value);
        batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        Ok(())
    })
}

/// Sets a threshold of a file or a directory. Fails with `Invalid` for a value out of its range.
pub fn set_threshold(
    collection: &Collection,
    node: EntryId,
    threshold: &Threshold,
    text: &str,
) -> Result<()> {
    let value = threshold.parse(text)?.to_string();
    collection.record(Touched::default(), |batch, state| {
        let found = state.node(node).ok_or_else(|| Error::new(ErrorKind::Gone, "the file is gone"))?;
        batch.entry(Entry::Setting { node, key: threshold.name.to_owned(), value: Some(value.clone()) });
        batch.node(NodeEntry { ctime: now_nanoseconds(), ..found.entry.clone() });
        Ok(())
    })
}

/// Stores the reason of a rejection in a file. Directories store none.
pub fn note_why(collection: &Collection, node: EntryId, why: &str) -> Result<()> {
    collection.record(Touched::default(), |batch, state| {
        let Some(found) = state.node(node) else { return Ok(()) };
        let mut entry = found.entry.clone();
        let NodeType::File(file) = &mut entry.node_type else { return Ok(()) };
        if *file.why != *why {
            file.why = why.into();
            batch.node(entry);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::CacheLimit;

    #[test]
    fn the_limit_of_a_cache_is_bytes_with_a_unit_or_a_share_of_the_disk() {
        let parsed = |text: &str| CacheLimit::from_policy(text).map(|limit| limit.bytes(1000));
        for (text, bytes) in [
            ("cache:0", 0),
            ("cache:18446744073709551615", u64::MAX),
            ("cache:3K", 3 << 10),
            ("cache:200G", 200 << 30),
            ("cache:16777215T", 16_777_215 << 40),
            ("cache:50%", 500),
            ("cache:100%", 1000),
        ] {
            assert_eq!(parsed(text), Some(bytes), "{text}");
        }
        for text in [
            "cache",
            "cache:",
            "cache:+5",
            "cache:-1",
            "cache: 5",
            "cache:5 ",
            "cache 5",
            "cache:G",
            "cache:%",
            "cache:0%",
            "cache:101%",
            "cache:1.5G",
            "cache:5g",
            "cache:5GB",
            "cache:18446744073709551616",
            "cache:16777216T",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }
}
