//! The messages of CSI 1.x, by the published numbers of their fields. Fields that no call reads or writes are left out:
//! a decoder skips them.
//!
//! Requests have secrets, so none of them can be printed.

use std::collections::BTreeMap;

use prost::Message;

use crate::csi::failure::{Failure, Outcome};

/// Names and values.
pub(in crate::csi) type Texts = BTreeMap<String, String>;

/// Reads a message from its bytes.
pub(in crate::csi) fn decoded<M: Message + Default>(bytes: &[u8]) -> Outcome<M> {
    M::decode(bytes).map_err(|error| Failure::invalid(format!("the message is damaged: {error}")))
}

/// The bytes of a message.
pub(in crate::csi) fn encoded(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct PluginInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
}

/// A list of capabilities, of the plugin, of its controller or of its node service: each is a message in a message.
#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<ServiceCapability>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct ServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub inner: Option<CapabilityKind>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct CapabilityKind {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

impl Capabilities {
    pub fn of(kinds: &[i32]) -> Capabilities {
        let one = |kind: &i32| ServiceCapability { inner: Some(CapabilityKind { kind: *kind }) };
        Capabilities { capabilities: kinds.iter().map(one).collect() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct VolumeCapability {
    #[prost(message, optional, tag = "1")]
    pub block: Option<Empty>,
    #[prost(message, optional, tag = "2")]
    pub mount: Option<MountVolume>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::csi) struct StageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Texts,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: Texts,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::csi) struct PublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: Texts,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: Texts,
}

/// The end of a stage or of a publish, and the question for the use of a volume: each has an identity and a path.
#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct PlaceRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct VolumeStats {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::csi) struct CreateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Texts,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Texts,
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<ContentSource>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub mutable_parameters: Texts,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(in crate::csi) struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct ContentSource {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<SourceName>,
    #[prost(message, optional, tag = "2")]
    pub volume: Option<SourceName>,
}

/// The identity of a volume or of a snapshot.
#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct SourceName {
    #[prost(string, tag = "1")]
    pub id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct CreateResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: Texts,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<ContentSource>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::csi) struct DeleteRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: Texts,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(in crate::csi) struct ValidateRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub volume_context: Texts,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Texts,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct ValidateResponse {
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<Confirmed>,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub(in crate::csi) struct Confirmed {
    #[prost(btree_map = "string, string", tag = "1")]
    pub volume_context: Texts,
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: Texts,
}
