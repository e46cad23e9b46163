"""The calls of the controller: volumes, their names, capabilities, and clones that are written.

A clone is a collection of a store, made of a volume of a remote.
"""
import grpc

from messages import MULTI_NODE_MULTI_WRITER, MULTI_NODE_READER_ONLY, SINGLE_NODE_WRITER
from plugin import EXISTS, INVALID, NOT_FOUND, PRECONDITION, capability, node, same_trees, wait_until

GIB = 1 << 30


def arguments(machine, parameters):
    client = machine.client
    create = {"name": "arguments", "volume_capabilities": [capability(SINGLE_NODE_WRITER)], "parameters": parameters}
    for name in ["name", "volume_capabilities"]:
        machine.refused(f"CreateVolume without {name}", INVALID, client.CreateVolume, **{**create, name: None})
    for what, wrong in [("an unknown parameter", {**parameters, "size": "1"}), ("no store and no remote", {}),
                        ("both", {**parameters, "remote": "s3://models/demo"})]:
        machine.refused(f"CreateVolume with {what}", INVALID, client.CreateVolume, **{**create, "parameters": wrong})
    machine.refused("CreateVolume of a block device", (INVALID, PRECONDITION), client.CreateVolume,
                    **{**create, "volume_capabilities": [{"block": {}, "access_mode": {"mode": SINGLE_NODE_WRITER}}]})
    machine.refused("CreateVolume of a snapshot", (INVALID, NOT_FOUND), client.CreateVolume,
                    **create, volume_content_source={"snapshot": {"snapshot_id": "non-existing"}})
    machine.refused("CreateVolume of an unknown volume", NOT_FOUND, client.CreateVolume,
                    **create, volume_content_source={"volume": {"volume_id": "non-existing"}})
    machine.refused("CreateVolume with parameters that may be changed", INVALID, client.CreateVolume, **create, mutable_parameters={"a": "b"})
    machine.refused("DeleteVolume without volume_id", INVALID, client.DeleteVolume)
    with machine.check("DeleteVolume of an unknown volume succeeds"):
        client.DeleteVolume(volume_id="reallyfakevolumeid")
    machine.refused("ValidateVolumeCapabilities without volume_id", INVALID, client.ValidateVolumeCapabilities,
                    volume_capabilities=[capability(SINGLE_NODE_WRITER)])
    machine.refused("ValidateVolumeCapabilities of an unknown volume", NOT_FOUND, client.ValidateVolumeCapabilities, volume_id="some-vol-id",
                    volume_capabilities=[capability(SINGLE_NODE_WRITER)])
    for name in ["ListVolumes", "GetCapacity", "ListSnapshots"]:
        machine.refused(f"{name}, which no capability names", grpc.StatusCode.UNIMPLEMENTED, getattr(client, name))
    machine.refused("ControllerPublishVolume, which no capability names", grpc.StatusCode.UNIMPLEMENTED, client.ControllerPublishVolume,
                    volume_id="x", node_id="node-1", volume_capability=capability())


def names(machine, parameters):
    client = machine.client
    create = {"volume_capabilities": [capability(SINGLE_NODE_WRITER)], "parameters": parameters}
    with machine.check("CreateVolume without a capacity"):
        first = client.CreateVolume(name="plain", **create).volume
        assert first.volume_id and len(first.volume_id.encode()) <= 128, first
        assert dict(first.volume_context).items() >= parameters.items(), first
        with machine.check("the same name and parameters give the same volume"):
            assert client.CreateVolume(name="plain", **create).volume == first
        machine.refused("the same name with other parameters", EXISTS, client.CreateVolume, name="plain",
                        **{**create, "parameters": {**parameters, "collection": "acme"}})
        machine.refused("ValidateVolumeCapabilities without capabilities", INVALID, client.ValidateVolumeCapabilities, volume_id=first.volume_id)
        with machine.check("ValidateVolumeCapabilities confirms what the volume can do"):
            wanted = [capability(SINGLE_NODE_WRITER), capability(MULTI_NODE_READER_ONLY)]
            told = client.ValidateVolumeCapabilities(volume_id=first.volume_id, volume_context=dict(first.volume_context),
                                                     volume_capabilities=wanted)
            assert told.HasField("confirmed") and len(told.confirmed.volume_capabilities) == 2, told
        with machine.check("ValidateVolumeCapabilities denies a block device"):
            told = client.ValidateVolumeCapabilities(volume_id=first.volume_id, volume_context=dict(first.volume_context),
                                                     volume_capabilities=[{"block": {}, "access_mode": {"mode": SINGLE_NODE_WRITER}}])
            assert not told.HasField("confirmed") and told.message, told
        with machine.check("a plugin that was started anew knows the volume"):
            machine.restart()
            client = machine.client
            assert client.CreateVolume(name="plain", **create).volume == first
        for _ in range(2):
            with machine.check("DeleteVolume, once and again"):
                client.DeleteVolume(volume_id=first.volume_id)
    with machine.check("CreateVolume with a capacity"):
        ranged = client.CreateVolume(name="ranged", capacity_range={"required_bytes": GIB}, **create).volume
        assert ranged.capacity_bytes == 0 or ranged.capacity_bytes >= GIB, ranged
        machine.refused("the same name with a larger capacity", EXISTS, client.CreateVolume, name="ranged",
                        capacity_range={"required_bytes": 2 * GIB, "limit_bytes": 2 * GIB}, **create)
        client.DeleteVolume(volume_id=ranged.volume_id)
    with machine.check("CreateVolume with the longest name"):
        longest = client.CreateVolume(name="n" * 128, **create).volume
        client.DeleteVolume(volume_id=longest.volume_id)
    with machine.check("a volume with other writers than its kind has is refused or confirmed, in both calls"):
        remote = {"remote": f"file://{machine.directory}/buckets/models/demo"}
        codes = (INVALID, PRECONDITION)
        machine.refused("CreateVolume of a remote for writers", codes, client.CreateVolume, name="remote", parameters=remote,
                        volume_capabilities=[capability(MULTI_NODE_MULTI_WRITER)])
        readers = client.CreateVolume(name="remote", parameters=remote, volume_capabilities=[capability(MULTI_NODE_READER_ONLY)]).volume
        client.DeleteVolume(volume_id=readers.volume_id)


def clones(machine, source, store, remote):
    client = machine.client
    create = {"volume_capabilities": [capability(SINGLE_NODE_WRITER)], "parameters": {"store": str(store), "collection": "acme"}}
    of_remote = {"volume_capabilities": [capability(MULTI_NODE_READER_ONLY)], "parameters": {"remote": remote, "collection": "acme/m"}}
    origin = client.CreateVolume(name="origin", **of_remote).volume
    of = {"volume": {"volume_id": origin.volume_id}}
    copies = []
    for name in ["copy-1", "copy-2"]:
        with machine.check(f"CreateVolume of the clone {name}"):
            copy = client.CreateVolume(name=name, volume_content_source=of, **create).volume
            copies.append(copy)
            assert copy.content_source.volume.volume_id == origin.volume_id and copy.volume_id != origin.volume_id, copy
            assert client.CreateVolume(name=name, volume_content_source=of, **create).volume == copy
    machine.refused("the name of a clone without its source", EXISTS, client.CreateVolume, name="copy-1", **create)
    machine.refused("a clone in a remote", INVALID, client.CreateVolume, name="copy-3", volume_content_source=of, **of_remote)
    machine.refused("a clone with the name of a collection that is there", EXISTS, client.CreateVolume, name="copy-4", volume_content_source=of,
                    **{**create, "parameters": {"store": str(store), "collection": "acme/m"}})
    opened = []
    for volume, mode in [(origin, MULTI_NODE_READER_ONLY), *((copy, SINGLE_NODE_WRITER) for copy in copies)]:
        with machine.check("an origin and its clones are published"):
            # As external-provisioner writes it into a PersistentVolume.
            context = {**volume.volume_context, "storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-8081-csi.tierfs.io"}
            staged = machine.stage(volume.volume_id, context, mode=mode)
            opened.append((volume, staged, machine.publish(volume.volume_id, staged, context, mode=mode)))
            same_trees(opened[-1][2], source)
    machine.refused("a clone in a store that is in use: the provisioner tries again", (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED),
                    client.CreateVolume, name="copy-5", volume_content_source=of, **create)
    machine.refused("DeleteVolume of a clone that is in use", PRECONDITION, client.DeleteVolume, volume_id=copies[0].volume_id)
    with machine.check("a write into a clone reaches neither its origin nor its sibling"):
        first, second = opened[1][2], opened[2][2]
        with open(first / "model.safetensors", "r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 8192)
        (first / "config.json").unlink()
        (second / "new").write_text("new\n")
        same_trees(opened[0][2], source)
        assert (second / "config.json").read_bytes() == (source / "config.json").read_bytes() and not (first / "new").exists()
        wanted = bytearray((source / "model.safetensors").read_bytes())
        wanted[4096:12288] = b"\xff" * 8192
        assert (first / "model.safetensors").read_bytes() == wanted
    for volume, staged, target in opened:
        with machine.check("an origin and its clones end"):
            machine.unpublish(volume.volume_id, target)
            machine.unstage(volume.volume_id, staged)
    with machine.check("what was written into a clone is there after the plugin and the daemon ended"):
        wait_until("the end of daemons", lambda: not machine.daemons() and not machine.mounts())
        machine.restart()
        volume = opened[1][0]
        context = dict(volume.volume_context)
        staged = machine.stage(volume.volume_id, context, mode=SINGLE_NODE_WRITER)
        target = machine.publish(volume.volume_id, staged, context, mode=SINGLE_NODE_WRITER)
        assert (target / "model.safetensors").read_bytes() == wanted
        machine.unpublish(volume.volume_id, target)
        machine.unstage(volume.volume_id, staged)
    with machine.check("the clone is made once the store is free"):
        wait_until("the end of daemons", lambda: not machine.daemons() and not machine.mounts())
        copies.append(machine.client.CreateVolume(name="copy-5", volume_content_source=of, **create).volume)
    for volume in copies:
        with machine.check("DeleteVolume of a clone, once and again"):
            for _ in range(2):
                machine.client.DeleteVolume(volume_id=volume.volume_id)
    with machine.check("the deleted clones are gone, and what was there before stays"):
        machine.client.DeleteVolume(volume_id=origin.volume_id)
        wait_until("the end of daemons", lambda: not machine.daemons())
        assert "volume-" not in machine.run("ls", store, "acme"), machine.run("ls", store, "acme")
        machine.run("export", store, "acme/m", machine.directory / "exported")
        same_trees(machine.directory / "exported", source)
        machine.run("fsck", store)
        machine.run("fsck", remote)


with node() as machine:
    source = machine.model()
    store = machine.store(source)
    remote = machine.remote(store)
    parameters = {"store": str(store), "collection": "acme/m"}
    machine.start()
    for part, given in [(arguments, [parameters]), (names, [parameters]), (clones, [source, store, remote])]:
        with machine.check(part.__name__):
            part(machine, *given)
