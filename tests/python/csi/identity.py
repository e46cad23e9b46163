"""Identity, and what a node and a controller say of themselves."""
import re

import grpc

from plugin import node

with node() as machine:
    machine.start(node_id="a-node.example")
    client = machine.client
    with machine.check("GetPluginInfo has a name that Kubernetes accepts, and a version"):
        told = client.GetPluginInfo()
        assert told.name == "csi.tierfs.io", told
        assert len(told.name) <= 63 and re.fullmatch(r"[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?", told.name), told
        assert told.vendor_version, told
    with machine.check("Probe says that the plugin is ready"):
        told = client.Probe()
        assert not told.HasField("ready") or told.ready.value, told
    with machine.check("GetPluginCapabilities names services that exist"):
        told = client.GetPluginCapabilities()
        kinds = [of.service.type for of in told.capabilities if of.HasField("service")]
        assert len(kinds) == len(set(kinds)) and set(kinds) <= {1, 2, 3}, told
        has_controller = 1 in kinds
    with machine.check("NodeGetInfo has the identity of the command line"):
        told = client.NodeGetInfo()
        assert told.node_id == "a-node.example" and told.max_volumes_per_node >= 0, told
    with machine.check("NodeGetCapabilities has stages and statistics"):
        kinds = [of.rpc.type for of in client.NodeGetCapabilities().capabilities]
        assert {1, 2} <= set(kinds) <= {1, 2, 4, 5} and len(kinds) == len(set(kinds)), kinds
    with machine.check("ControllerGetCapabilities has volumes and clones"):
        kinds = [of.rpc.type for of in client.ControllerGetCapabilities().capabilities]
        assert has_controller and {1, 7} <= set(kinds) <= {1, 7, 13} and len(kinds) == len(set(kinds)), kinds
    for what, name, request in [("an unknown call", "Node/NodeFormatVolume", b""), ("an unknown service", "Block/Probe", b""),
                                ("a request that is no message", "Node/NodeStageVolume", b"\xff" * 99),
                                ("a field of another type", "Node/NodeStageVolume", b"\x08\x01"),
                                ("a request of 32 MiB", "Node/NodeStageVolume", b"\x0a\x80\x80\x80\x10" + b"x" * (32 << 20))]:
        with machine.check(f"{what} is refused, and the next call is answered"):
            try:
                client.channel.unary_unary(f"/csi.v1.{name}")(request, timeout=30)
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL,
                                        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.OUT_OF_RANGE), error
            else:
                raise AssertionError("it succeeded")
            assert client.NodeGetInfo().node_id
    with machine.check("fields that the plugin does not know are passed over"):
        answer = client.channel.unary_unary("/csi.v1.Identity/GetPluginInfo")(b"\xf8\x3e\x01", timeout=30)
        assert b"csi.tierfs.io" in answer, answer
    with machine.check("other users may not call the plugin"):
        assert machine.socket.stat().st_mode & 0o077 == 0, oct(machine.socket.stat().st_mode)
    with machine.check("SIGTERM ends the plugin with 0, and another one takes the socket"):
        assert machine.stop() == 0
        machine.start("--driver-name", "other.tierfs.io")
        assert machine.client.GetPluginInfo().name == "other.tierfs.io"
    with machine.check("a plugin that was killed leaves a socket that the next one replaces"):
        machine.restart()
        assert machine.client.GetPluginInfo().name == "csi.tierfs.io"
