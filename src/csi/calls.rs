//! The table of calls: the path of each, and the function that answers it.

use std::time::Instant;

use prost::Message;

use crate::csi::driver::Driver;
use crate::csi::failure::{Code, Failure, Outcome};
use crate::csi::messages::{Empty, decoded, encoded};
use crate::csi::{controller, identity, node};

pub(in crate::csi) const IDENTITY: &str = "csi.v1.Identity";
const NODE: &str = "csi.v1.Node";
const CONTROLLER: &str = "csi.v1.Controller";

/// Answers a call: the bytes of a message, by those of another.
pub(in crate::csi) fn answer(driver: &Driver, path: &str, bytes: &[u8], until: Instant) -> Outcome<Vec<u8>> {
    let (service, name) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, name) {
        (IDENTITY, "GetPluginInfo") => call(bytes, |_: Empty| Ok(identity::plugin_info(driver))),
        (IDENTITY, "GetPluginCapabilities") => call(bytes, |_: Empty| Ok(identity::capabilities())),
        (IDENTITY, "Probe") => call(bytes, |_: Empty| identity::probe(driver)),
        (NODE, "NodeGetInfo") => call(bytes, |_: Empty| Ok(node::info(driver))),
        (NODE, "NodeGetCapabilities") => call(bytes, |_: Empty| Ok(node::capabilities())),
        (NODE, "NodeStageVolume") => call(bytes, |request| node::stage(driver, &request, until)),
        (NODE, "NodeUnstageVolume") => call(bytes, |request| node::unstage(driver, &request, until)),
        (NODE, "NodePublishVolume") => call(bytes, |request| node::publish(driver, &request, until)),
        (NODE, "NodeUnpublishVolume") => call(bytes, |request| node::unpublish(driver, &request, until)),
        (NODE, "NodeGetVolumeStats") => call(bytes, |request| node::stats(driver, &request)),
        (CONTROLLER, "ControllerGetCapabilities") => call(bytes, |_: Empty| Ok(controller::capabilities())),
        (CONTROLLER, "CreateVolume") => call(bytes, |request| controller::create(driver, &request, until)),
        (CONTROLLER, "DeleteVolume") => call(bytes, |request| controller::delete(driver, &request, until)),
        (CONTROLLER, "ValidateVolumeCapabilities") => {
            call(bytes, |request| controller::validate(driver, &request))
        }
        _ => Err(Failure::new(Code::Unimplemented, format!("{name} is not a call of this driver"))),
    }
}

fn call<Q: Message + Default, A: Message>(
    bytes: &[u8],
    handle: impl FnOnce(Q) -> Outcome<A>,
) -> Outcome<Vec<u8>> {
    handle(decoded(bytes)?).map(|answer| encoded(&answer))
}
