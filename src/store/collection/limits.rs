//! The quota of a collection.

use std::sync::Arc;

use crate::format::log::catalog::Entry;
use crate::model::Result;
use crate::store::collection::Collection;
use crate::store::quota::{Limits, Meter};
use crate::store::space::files::Touched;
use crate::store::state::ROOT;

/// Setting of a collection's own directory that holds its limits.
const SETTING: &str = "quota";

impl Collection {
    /// The meter of its use.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Counts its use for its tenant too.
    pub(in crate::store) fn metered(mut self, above: Arc<Meter>) -> Collection {
        let path = self.path();
        let kept = self.state.get_mut();
        let limits = match kept.setting(ROOT, SETTING).map(|text| Limits::default().changed(text)) {
            Some(Ok(limits)) => limits,
            Some(Err(error)) => {
                log::warn!("{path}: its quota cannot be read, and it has none: {error}");
                Limits::default()
            }
            None => Limits::default(),
        };
        let used = kept.used();
        self.meter = Meter::new(&path, Some(above), limits);
        self.meter.set_used(used);
        self
    }

    /// Sets the limits, durably.
    pub fn set_limits(&self, limits: Limits) -> Result<()> {
        self.commit(Touched::default(), |batch, _| {
            let value = (!limits.are_none()).then(|| limits.to_text());
            batch.entry(Entry::Setting { node: ROOT, key: SETTING.to_owned(), value });
            Ok(())
        })?;
        self.meter.set_limits(limits);
        Ok(())
    }
}
