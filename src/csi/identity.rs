//! The Identity service: the name of the driver and its services.

use crate::csi::driver::Driver;
use crate::csi::failure::Outcome;
use crate::csi::messages::{BoolValue, Capabilities, PluginInfo, ProbeResponse};

/// The plugin has a controller.
const CONTROLLER_SERVICE: i32 = 1;

pub(in crate::csi) fn plugin_info(driver: &Driver) -> PluginInfo {
    PluginInfo { name: driver.settings.name.clone(), vendor_version: driver.settings.version.clone() }
}

pub(in crate::csi) fn capabilities() -> Capabilities {
    Capabilities::of(&[CONTROLLER_SERVICE])
}

/// Whether the plugin works. A liveness probe starts another one if it does not.
pub(in crate::csi) fn probe(driver: &Driver) -> Outcome<ProbeResponse> {
    driver.check().map(|()| ProbeResponse { ready: Some(BoolValue { value: true }) })
}
