"""Messages and calls of the Container Storage Interface 1.x, from the field numbers that its specification publishes.

A line of FIELDS is a message with its fields as `name=number`, `name=number:type`; `*` marks repeated ones, `|` those of the message's `oneof`.
Fields of strings have no type, and `map` is one of strings to strings. Enumerations are numbers in the protocol, and here.
"""
import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

CALLS = {
    "Identity": ["GetPluginInfo", "GetPluginCapabilities", "Probe"],
    "Controller": ["CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ValidateVolumeCapabilities",
                   "ListVolumes", "GetCapacity", "ControllerGetCapabilities", "CreateSnapshot", "DeleteSnapshot", "ListSnapshots",
                   "ControllerExpandVolume"],
    "Node": ["NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats", "NodeExpandVolume",
             "NodeGetCapabilities", "NodeGetInfo"],
}

FIELDS = """
CapacityRange: required_bytes=1:int64 limit_bytes=2:int64
Topology: segments=1:map
TopologyRequirement: requisite=1:*Topology preferred=2:*Topology
BlockVolume:
MountVolume: fs_type=1 mount_flags=2:*string volume_mount_group=3
AccessMode: mode=1:int32
VolumeCapability: block=1:|BlockVolume mount=2:|MountVolume access_mode=3:AccessMode
SnapshotSource: snapshot_id=1
VolumeSource: volume_id=1
VolumeContentSource: snapshot=1:|SnapshotSource volume=2:|VolumeSource
Volume: capacity_bytes=1:int64 volume_id=2 volume_context=3:map content_source=4:VolumeContentSource accessible_topology=5:*Topology
VolumeCondition: abnormal=1:bool message=2
VolumeUsage: available=1:int64 total=2:int64 used=3:int64 unit=4:int32
Capability: type=1:int32
PluginCapability: service=1:|Capability volume_expansion=2:|Capability
ServiceCapability: rpc=1:|Capability

GetPluginInfoRequest:
GetPluginInfoResponse: name=1 vendor_version=2 manifest=3:map
GetPluginCapabilitiesRequest:
GetPluginCapabilitiesResponse: capabilities=1:*PluginCapability
ProbeRequest:
ProbeResponse: ready=1:.google.protobuf.BoolValue

CreateVolumeRequest: name=1 capacity_range=2:CapacityRange volume_capabilities=3:*VolumeCapability parameters=4:map secrets=5:map \
volume_content_source=6:VolumeContentSource accessibility_requirements=7:TopologyRequirement mutable_parameters=8:map
CreateVolumeResponse: volume=1:Volume
DeleteVolumeRequest: volume_id=1 secrets=2:map
DeleteVolumeResponse:
ControllerPublishVolumeRequest: volume_id=1 node_id=2 volume_capability=3:VolumeCapability readonly=4:bool secrets=5:map volume_context=6:map
ControllerPublishVolumeResponse: publish_context=1:map
ControllerUnpublishVolumeRequest: volume_id=1 node_id=2 secrets=3:map
ControllerUnpublishVolumeResponse:
ValidateVolumeCapabilitiesRequest: volume_id=1 volume_context=2:map volume_capabilities=3:*VolumeCapability parameters=4:map secrets=5:map
Confirmed: volume_context=1:map volume_capabilities=2:*VolumeCapability parameters=3:map
ValidateVolumeCapabilitiesResponse: confirmed=1:Confirmed message=2
ListVolumesRequest: max_entries=1:int32 starting_token=2
ListedVolume: volume=1:Volume
ListVolumesResponse: entries=1:*ListedVolume next_token=2
GetCapacityRequest: volume_capabilities=1:*VolumeCapability parameters=2:map accessible_topology=3:Topology
GetCapacityResponse: available_capacity=1:int64
ControllerGetCapabilitiesRequest:
ControllerGetCapabilitiesResponse: capabilities=1:*ServiceCapability
CreateSnapshotRequest: source_volume_id=1 name=2 secrets=3:map parameters=4:map
CreateSnapshotResponse:
DeleteSnapshotRequest: snapshot_id=1 secrets=2:map
DeleteSnapshotResponse:
ListSnapshotsRequest: max_entries=1:int32 starting_token=2 source_volume_id=3 snapshot_id=4 secrets=5:map
ListSnapshotsResponse: next_token=2
ControllerExpandVolumeRequest: volume_id=1 capacity_range=2:CapacityRange secrets=3:map volume_capability=4:VolumeCapability
ControllerExpandVolumeResponse: capacity_bytes=1:int64 node_expansion_required=2:bool

NodeStageVolumeRequest: volume_id=1 publish_context=2:map staging_target_path=3 volume_capability=4:VolumeCapability secrets=5:map \
volume_context=6:map
NodeStageVolumeResponse:
NodeUnstageVolumeRequest: volume_id=1 staging_target_path=2
NodeUnstageVolumeResponse:
NodePublishVolumeRequest: volume_id=1 publish_context=2:map staging_target_path=3 target_path=4 volume_capability=5:VolumeCapability \
readonly=6:bool secrets=7:map volume_context=8:map
NodePublishVolumeResponse:
NodeUnpublishVolumeRequest: volume_id=1 target_path=2
NodeUnpublishVolumeResponse:
NodeGetVolumeStatsRequest: volume_id=1 volume_path=2 staging_target_path=3
NodeGetVolumeStatsResponse: usage=1:*VolumeUsage volume_condition=2:VolumeCondition
NodeExpandVolumeRequest: volume_id=1 volume_path=2 capacity_range=3:CapacityRange staging_target_path=4 volume_capability=5:VolumeCapability
NodeExpandVolumeResponse: capacity_bytes=1:int64
NodeGetCapabilitiesRequest:
NodeGetCapabilitiesResponse: capabilities=1:*ServiceCapability
NodeGetInfoRequest:
NodeGetInfoResponse: node_id=1 max_volumes_per_node=2:int64 accessible_topology=3:Topology
"""

PROTO = descriptor_pb2.FieldDescriptorProto
SCALARS = {"string": PROTO.TYPE_STRING, "int32": PROTO.TYPE_INT32, "int64": PROTO.TYPE_INT64, "bool": PROTO.TYPE_BOOL}

# Access modes of volumes.
SINGLE_NODE_WRITER, SINGLE_NODE_READER_ONLY, MULTI_NODE_READER_ONLY, MULTI_NODE_SINGLE_WRITER, MULTI_NODE_MULTI_WRITER = range(1, 6)
SINGLE_NODE_SINGLE_WRITER, SINGLE_NODE_MULTI_WRITER = 6, 7


def add_field(message, line):
    name, kind = line.split("=")
    number, _, kind = kind.partition(":")
    field = message.field.add(name=name, number=int(number), label=PROTO.LABEL_REPEATED if kind[:1] == "*" or kind == "map" else PROTO.LABEL_OPTIONAL)
    if kind[:1] == "|":
        if not message.oneof_decl:
            message.oneof_decl.add(name="of")
        field.oneof_index = 0
    kind = kind.lstrip("*|")
    if kind == "map":
        entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for key, place in [("key", 1), ("value", 2)]:
            entry.field.add(name=key, number=place, label=PROTO.LABEL_OPTIONAL, type=PROTO.TYPE_STRING)
        field.type, field.type_name = PROTO.TYPE_MESSAGE, f".csi.v1.{message.name}.{entry.name}"
    elif (kind or "string") in SCALARS:
        field.type = SCALARS[kind or "string"]
    else:
        field.type, field.type_name = PROTO.TYPE_MESSAGE, kind if kind[0] == "." else f".csi.v1.{kind}"


def build():
    file = descriptor_pb2.FileDescriptorProto(name="csi_v1", package="csi.v1", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name])
    for line in FIELDS.replace("\\\n", "").split("\n"):
        if line:
            name, _, fields = line.partition(":")
            message = file.message_type.add(name=name)
            for field in fields.split():
                add_field(message, field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return {message.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"csi.v1.{message.name}")) for message in file.message_type}


MESSAGES = build()


class Client:
    """The calls of a plugin as methods with the fields of the request as arguments. A failure raises `grpc.RpcError`."""

    def __init__(self, socket, timeout=90):
        # As the kubelet and the sidecars: grpcio would send the path of the socket, which is no authority.
        self.channel = grpc.insecure_channel(f"unix://{socket}", [("grpc.default_authority", "localhost")])
        self.timeout = timeout
        for service, names in CALLS.items():
            for name in names:
                setattr(self, name, self.call(service, name))

    def call(self, service, name):
        request, response = MESSAGES[f"{name}Request"], MESSAGES[f"{name}Response"]
        invoke = self.channel.unary_unary(f"/csi.v1.{service}/{name}", request_serializer=request.SerializeToString,
                                          response_deserializer=response.FromString)
        return lambda **fields: invoke(request(**{key: value for key, value in fields.items() if value is not None}), timeout=self.timeout)

    def close(self):
        self.channel.close()
