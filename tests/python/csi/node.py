"""The calls of a node, one volume at a time: arguments, repetition, contents, statistics, ends."""
import os
import signal
import subprocess
from pathlib import Path

import grpc

from messages import (MULTI_NODE_MULTI_WRITER, MULTI_NODE_READER_ONLY, SINGLE_NODE_MULTI_WRITER, SINGLE_NODE_READER_ONLY,
                      SINGLE_NODE_SINGLE_WRITER, SINGLE_NODE_WRITER)
from plugin import EXISTS, INVALID, KEYS, LIBC, NOT_FOUND, PRECONDITION, URL, Bucket, capability, node, same_trees, wait_until

OF_POD = {"csi.storage.k8s.io/pod.name": "server-0", "csi.storage.k8s.io/pod.namespace": "models", "csi.storage.k8s.io/pod.uid": "5d3e",
          "csi.storage.k8s.io/serviceAccount.name": "default"}
EPHEMERAL = {**OF_POD, "csi.storage.k8s.io/ephemeral": "true"}


def missing_fields(machine, context):
    client, staged, target = machine.client, machine.place("globalmount"), machine.place("pod") / "mount"
    stage = {"volume_id": "missing", "staging_target_path": str(staged), "volume_capability": capability(), "volume_context": context}
    for name in ["volume_id", "staging_target_path", "volume_capability"]:
        machine.refused(f"NodeStageVolume without {name}", INVALID, client.NodeStageVolume, **{**stage, name: None})
    publish = {**stage, "target_path": str(target)}
    for name in ["volume_id", "target_path", "volume_capability"]:
        machine.refused(f"NodePublishVolume without {name}", INVALID, client.NodePublishVolume, **{**publish, name: None})
    machine.refused("NodePublishVolume of a persistent volume without staging_target_path", (PRECONDITION, INVALID), client.NodePublishVolume,
                    **{**publish, "staging_target_path": None})
    machine.refused("NodePublishVolume of a volume that is not staged", (PRECONDITION, NOT_FOUND), client.NodePublishVolume, **publish)
    for name, call, fields in [("NodeUnstageVolume", client.NodeUnstageVolume, {"volume_id": "missing", "staging_target_path": str(staged)}),
                               ("NodeUnpublishVolume", client.NodeUnpublishVolume, {"volume_id": "missing", "target_path": str(target)}),
                               ("NodeGetVolumeStats", client.NodeGetVolumeStats, {"volume_id": "missing", "volume_path": str(target)})]:
        for field in fields:
            machine.refused(f"{name} without {field}", INVALID, call, **{**fields, field: None})
    machine.refused("NodeGetVolumeStats of an unknown volume", NOT_FOUND, client.NodeGetVolumeStats, volume_id="missing", volume_path="some/path")
    machine.refused("NodeExpandVolume", grpc.StatusCode.UNIMPLEMENTED, client.NodeExpandVolume, volume_id="missing", volume_path=str(target))


def wrong_arguments(machine, good, remote, store):
    client = machine.client

    def refused(what, context, codes=INVALID, secrets=None, of=None, staged=None, volume="wrong"):
        at = staged if staged is not None else str(machine.place("globalmount"))
        machine.refused(f"NodeStageVolume with {what}", codes, client.NodeStageVolume, volume_id=volume, staging_target_path=at,
                        volume_capability=of or capability(), volume_context=context, secrets=secrets)

    refused("no remote and no store", {"collection": "acme/m"})
    refused("both a remote and a store", {"remote": remote, "store": str(store)})
    refused("an unknown attribute", {**good, "colection": "acme/m"})
    refused("an attribute in other letters", {"Remote": remote})
    refused("an empty remote", {"remote": ""})
    refused("a remote of an unknown kind", {"remote": "ftp://models/demo"})
    refused("a remote that is an option", {"remote": "--allow-other"})
    refused("a relative store", {"store": "store"})
    refused("a tier that does not exist", {**good, "tier": "q9"})
    refused("a period that is no number", {**good, "follow": "often"})
    refused("a negative period", {**good, "follow": "-1"})
    refused("a collection that is no path", {**good, "collection": "../m"})
    refused("a collection that does not exist", {**good, "collection": "acme/nothing"}, (INVALID, NOT_FOUND))
    refused("a snapshot that does not exist", {**good, "snapshot": "99"}, (INVALID, NOT_FOUND))
    refused("a key that is none", {**good, "trust": "nonsense"}, (INVALID, PRECONDITION))
    refused("an unknown secret", good, secrets={"AWS_SECRET_KEY": "x"})
    refused("a secret that is a variable of the loader", good, secrets={"LD_PRELOAD": "/tmp/x.so"})
    refused("credentials in the URL", {"remote": "s3://key:secret-of-the-reader@models/demo"})
    refused("a remote that is not there", {"remote": f"file://{machine.directory}/nothing"},
            (NOT_FOUND, INVALID, PRECONDITION, grpc.StatusCode.UNAVAILABLE))
    refused("a store that is not there", {"store": f"{machine.directory}/nothing"}, (NOT_FOUND, INVALID, PRECONDITION))
    refused("a block device", good, (INVALID, PRECONDITION), of={"block": {}, "access_mode": {"mode": MULTI_NODE_READER_ONLY}})
    refused("neither a block device nor a mount", good, of={"access_mode": {"mode": MULTI_NODE_READER_ONLY}})
    refused("no access mode", good, of={"mount": {}})
    refused("an unknown access mode", good, (INVALID, PRECONDITION), of=capability(99))
    refused("a relative staging path", good, staged="globalmount")
    refused("a staging path that is a file", good, (INVALID, NOT_FOUND, PRECONDITION), staged=str(machine.directory / "plugin.log"))
    refused("a tier of a store", {"store": str(store), "tier": "q8"})
    # The directory of a collection is another one for each snapshot, and a pod would keep the first.
    refused("a collection that follows", {**good, "follow": "true"})
    refused("a snapshot without a collection", {"remote": remote, "snapshot": "1"})
    refused("an option of a mount that may weaken it", good, of=capability(mount_flags=["suid"]))
    with machine.check("no refused call left a mount or a daemon"):
        wait_until("the end of daemons", lambda: not machine.mounts() and not machine.daemons())
    before = sorted(path.name for path in machine.directory.iterdir())
    for volume in ["../../outside", "/etc/outside", "a\nb", "x" * 128, "ü–漢字", "."]:
        with machine.check(f"a volume with the identity {volume[:20]!r} works, or is refused"):
            try:
                staged = machine.stage(volume, good)
                machine.unstage(volume, staged)
            except grpc.RpcError as error:
                assert error.code() == INVALID and len(volume) < 128, f"{error.code().name}: {error.details()}"
    with machine.check("such identities lead to no path outside the state"):
        assert before == sorted(path.name for path in machine.directory.iterdir())
        assert not Path("/etc/outside").exists() and not machine.mounts()


def life(machine, good, source):
    """A volume from its stage to its end, each call twice."""
    client = machine.client
    staged = machine.stage("life", good)
    with machine.check("a second NodeStageVolume is the same as one"):
        devices = machine.connections()
        machine.stage("life", good, at=staged)
        assert machine.connections() == devices and len(devices) == 1, machine.mounts()
    target = machine.publish("life", staged, {**good, **OF_POD})
    with machine.check("a second NodePublishVolume is the same as one"):
        before = machine.mounts()
        machine.publish("life", staged, {**good, **OF_POD}, at=target)
        assert machine.mounts() == before
    with machine.check("the published files are those of the source"):
        same_trees(target, source)
    with machine.check("another user reads them"):
        read = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", "config.json"]
        done = subprocess.run(read, capture_output=True, text=True, cwd=target)
        assert done.stdout == (source / "config.json").read_text(), done.stderr
    for what, flags in [("create", os.O_WRONLY | os.O_CREAT), ("write", os.O_WRONLY)]:
        with machine.check(f"{what} in a published remote is refused"):
            try:
                os.close(os.open(target / ("new" if what == "create" else "config.json"), flags))
            except OSError as error:
                assert error.errno in (30, 13, 1), error
            else:
                raise AssertionError("it succeeded")
    machine.refused("NodeStageVolume of a staged volume with another attribute", EXISTS, client.NodeStageVolume, volume_id="life",
                    staging_target_path=str(staged), volume_capability=capability(), volume_context={**good, "tier": "q8"})
    machine.refused("NodePublishVolume at the same place with another access mode", EXISTS, client.NodePublishVolume, volume_id="life",
                    staging_target_path=str(staged), target_path=str(target), volume_capability=capability(SINGLE_NODE_READER_ONLY),
                    volume_context={**good, **OF_POD})
    machine.refused("NodePublishVolume of a remote for writers", (INVALID, PRECONDITION), client.NodePublishVolume, volume_id="life",
                    staging_target_path=str(staged), target_path=str(machine.place("pod") / "mount"), volume_context=good,
                    volume_capability=capability(MULTI_NODE_MULTI_WRITER))
    second = machine.publish("life", staged, {**good, **OF_POD}, readonly=True)
    with machine.check("a volume has two places, by one daemon"):
        same_trees(second, source)
        assert len(machine.connections()) == len(machine.daemons()) == 1, (machine.mounts(), machine.daemons())
    with machine.check("a place that is read-only refuses writes as a mount"):
        flags = os.statvfs(second).f_flag
        assert flags & os.ST_RDONLY, flags
    with machine.check("a mount in a pod allows no set-user-id bit and no device"):
        flags = os.statvfs(target).f_flag
        assert flags & os.ST_NOSUID and flags & os.ST_NODEV, flags
    with machine.check("NodeGetVolumeStats tells what statvfs tells"):
        usage = {usage.unit: usage for usage in client.NodeGetVolumeStats(volume_id="life", volume_path=str(target)).usage}
        told = os.statvfs(target)
        assert usage[1].total == told.f_blocks * told.f_frsize and usage[1].total > 3 << 20, (usage, told)
        assert all(getattr(of, name) >= 0 for of in usage.values() for name in ["available", "total", "used"]), usage
        assert usage[1].used + usage[1].available <= usage[1].total, usage
    machine.refused("NodeGetVolumeStats of another path", NOT_FOUND, client.NodeGetVolumeStats, volume_id="life", volume_path="some/path")
    machine.refused("NodeGetVolumeStats of a directory that is not published", NOT_FOUND, client.NodeGetVolumeStats, volume_id="life",
                    volume_path=str(machine.directory))
    for at in [second, target]:
        machine.unpublish("life", at)
    with machine.check("NodeUnpublishVolume removes the place, and leaves the stage"):
        assert not target.exists() and not second.exists() and target.parent.exists()
        assert machine.connections(), machine.mounts()
    machine.unpublish("life", target)
    again = machine.publish("life", staged, good)
    with machine.check("a volume is published again after its last place was removed"):
        same_trees(again, source)
    machine.unpublish("life", again)
    for _ in range(2):
        machine.unstage("life", staged)
    with machine.check("NodeUnstageVolume ends the daemon, and leaves the directory"):
        wait_until("the end of the daemon", lambda: not machine.daemons() and not machine.mounts())
        assert staged.is_dir()


def gone(machine, good, source):
    """Ends of what somebody else has ended already."""
    with machine.check("NodeUnpublishVolume and NodeUnstageVolume of what never was succeed"):
        machine.unpublish("never", machine.directory / "kubelet" / "nothing" / "mount")
        machine.unstage("never", machine.directory / "kubelet" / "nothing")
    with machine.check("a directory that is not a mount keeps its files"):
        kept = machine.place("kept")
        (kept / "file").write_text("x")
        try:
            machine.unpublish("never", kept)
        except grpc.RpcError:
            pass
        assert (kept / "file").read_text() == "x"
    with machine.check("a mount of somebody else stays"):
        foreign = machine.place("foreign")
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", foreign], check=True)
        try:
            (foreign / "file").write_text("x")
            for end in [machine.unpublish, machine.unstage]:
                try:
                    end("never", foreign)
                except grpc.RpcError:
                    pass
            assert (foreign / "file").exists()
        finally:
            LIBC.umount2(os.fsencode(foreign), 2)
    staged = machine.stage("gone", good)
    target = machine.publish("gone", staged, good)
    with machine.check("a place that somebody unmounted is unpublished"):
        assert LIBC.umount2(os.fsencode(target), 2) == 0
        machine.unpublish("gone", target)
        assert not target.exists()
    target = machine.publish("gone", staged, good)
    with machine.check("a volume whose daemon was killed is read again after the calls of the kubelet"):
        for process in machine.daemons():
            os.kill(process, signal.SIGKILL)
        wait_until("its end", lambda: not machine.daemons() or os.path.exists(target / "config.json"))
        machine.stage("gone", good, at=staged)
        second = machine.publish("gone", staged, good)
        same_trees(second, source)
        machine.unpublish("gone", second)
    with machine.check("a place of a dead daemon is unpublished and unstaged"):
        for process in machine.daemons():
            os.kill(process, signal.SIGKILL)
        machine.unpublish("gone", target)
        machine.unstage("gone", staged)
        wait_until("the end of mounts", lambda: not machine.mounts())
        assert not target.exists()
    staged = machine.stage("gone", good)
    with machine.check("a plugin whose state was lost unstages and unpublishes"):
        target = machine.publish("gone", staged, good)
        machine.stop()
        for path in machine.state.rglob("*"):
            if path.is_file() and not any(str(path).startswith(f"{point}/") for _, point in machine.mounts()):
                path.unlink()
        machine.start("--inline-paths", str(machine.directory / "buckets"))
        machine.unpublish("gone", target)
        machine.unstage("gone", staged)
        assert not target.exists() and not [point for _, point in machine.mounts() if point.startswith(f"{machine.directory}/kubelet/")]


def ephemeral(machine, good, source):
    targets = []
    for number in range(2):
        with machine.check(f"the ephemeral volume {number} is published without a stage"):
            volume, target = f"csi-{number:064x}", machine.place("pod") / "mount"
            targets.append((volume, target))
            for _ in range(2):
                machine.publish(volume, None, {**good, **EPHEMERAL}, mode=SINGLE_NODE_WRITER, readonly=True, at=target)
            same_trees(target, source)
    with machine.check("ephemeral volumes of a remote share a daemon"):
        assert len(machine.daemons()) == len(machine.connections()) == 1, (machine.daemons(), machine.mounts())
    for what, context in [("a store", {"store": str(machine.directory / "store")}), ("a directory", {"remote": f"file://{machine.directory}/other"}),
                          ("a key", {**good, "trust": "/etc/passwd"})]:
        machine.refused(f"an ephemeral volume with {what} of the node", (INVALID, PRECONDITION, grpc.StatusCode.PERMISSION_DENIED),
                        machine.client.NodePublishVolume, volume_id="csi-2", target_path=str(machine.place("pod") / "mount"),
                        volume_capability=capability(SINGLE_NODE_WRITER), readonly=True, volume_context={**context, **EPHEMERAL})
    machine.refused("an ephemeral volume with an unknown attribute", INVALID, machine.client.NodePublishVolume, volume_id="csi-2",
                    target_path=str(machine.place("pod") / "mount"), volume_capability=capability(SINGLE_NODE_WRITER), readonly=True,
                    volume_context={**good, **EPHEMERAL, "size": "1Gi"})
    for volume, target in targets:
        with machine.check("an ephemeral volume ends with its pod"):
            machine.unpublish(volume, target)
            machine.unpublish(volume, target)
            assert not target.exists()
    with machine.check("the daemon ends with the last ephemeral volume"):
        wait_until("the end of the daemon", lambda: not machine.daemons() and not machine.mounts())


def secrets(machine, source, bucket):
    context = {"remote": URL, "collection": "acme/m"}
    good = {**KEYS, "AWS_ENDPOINT": bucket.endpoint}
    denied = (INVALID, PRECONDITION, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    for what, wrong in [("without secrets", {"AWS_ENDPOINT": bucket.endpoint, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                                             "AWS_METADATA_ENDPOINT": bucket.endpoint}),
                        ("with wrong secrets", {**good, "AWS_ACCESS_KEY_ID": "ANOTHERKEY"})]:
        machine.refused(f"a remote {what}", denied, machine.client.NodeStageVolume, volume_id="secret", volume_capability=capability(),
                        staging_target_path=str(machine.place("globalmount")), volume_context=context, secrets=wrong)
    machine.refused("a secret with a byte 0", INVALID, machine.client.NodeStageVolume, volume_id="secret", volume_capability=capability(),
                    staging_target_path=str(machine.place("globalmount")), volume_context=context, secrets={**good, "AWS_REGION": "a\0b"})
    with machine.check("a remote with secrets has the files of the source"):
        staged = machine.stage("secret", context, good)
        target = machine.publish("secret", staged, context)
        same_trees(target, source)
    secret = KEYS["AWS_SECRET_ACCESS_KEY"].encode()
    with machine.check("no other user finds the secret on the machine"):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    assert secret not in (entry / "cmdline").read_bytes(), entry
                except OSError:
                    pass
        for path in [path for path in machine.state.rglob("*") if path.is_file()]:
            readable = path.stat().st_mode & 0o077 and all(parent.stat().st_mode & 0o011 for parent in [path.parent])
            assert not (readable and secret in path.read_bytes()), path
        assert secret not in (machine.directory / "plugin.log").read_bytes()
    with machine.check("a remote with other credentials has another daemon"):
        other = machine.stage("other", context, {**good, "AWS_SECRET_ACCESS_KEY": "another"})
        assert len(machine.connections()) == 2, machine.mounts()
        machine.unstage("other", other)
    machine.unpublish("secret", target)
    machine.unstage("secret", staged)


def attributes(machine, source, store, remote):
    newer = machine.model("newer", seed=2)
    machine.run("import", store, "acme/m", *sorted(newer.iterdir()))
    machine.remote(store, "--variants", "q5")
    whole = {"remote": remote}
    kept = {}
    for volume, context in [("whole", whole), ("newest", {**whole, "collection": "acme/m"}),
                            ("first", {**whole, "collection": "acme/m", "snapshot": "1"}),
                            ("tier", {**whole, "collection": "acme/m", "tier": "q5"}),
                            ("followed", {**whole, "follow": "true"}),
                            ("local", {"store": str(store), "collection": "acme/m"})]:
        with machine.check(f"the volume {volume} is published"):
            staged = machine.stage(volume, context)
            kept[volume] = (staged, machine.publish(volume, staged, context, readonly=True))
    place = {volume: target for volume, (_, target) in kept.items()}
    for what, found, wanted in [("a whole remote", place["whole"] / "acme/m", newer), ("the newest snapshot", place["newest"], newer),
                                ("an older snapshot", place["first"], source), ("a store", place["local"], newer)]:
        with machine.check(f"{what} has its files"):
            same_trees(found, wanted)
    with machine.check("a variant has the bytes that a local move gives"):
        machine.run("export", "--as", "q5", remote, "acme/m", machine.directory / "in q5")
        same_trees(place["tier"], machine.directory / "in q5")
        assert (place["tier"] / "model.safetensors").read_bytes() != (newer / "model.safetensors").read_bytes()
    with machine.check("other snapshots and tiers have daemons of their own; volumes with the same ones share them"):
        assert len(machine.connections()) == len(machine.daemons()) == 5, (machine.mounts(), machine.daemons())
    with machine.check("a volume follows its remote"):
        newest = machine.model("newest", seed=3)
        machine.unpublish("local", place["local"])
        machine.unstage("local", kept["local"][0])
        machine.run("import", store, "acme/m", *sorted(newest.iterdir()))
        machine.remote(store)
        followed, wanted = place["followed"] / "acme/m", (newest / "config.json").read_bytes()
        wait_until("the newer snapshot", lambda: (followed / "config.json").read_bytes() == wanted)
        same_trees(followed, newest)
        same_trees(place["newest"], newer)
    for volume, (staged, target) in kept.items():
        with machine.check(f"the volume {volume} ends"):
            machine.unpublish(volume, target)
            machine.unstage(volume, staged)
    with machine.check("all daemons end"):
        wait_until("the end of daemons", lambda: not machine.daemons() and not machine.mounts())


def writers(machine, store, source):
    machine.run("import", store, "acme/second", *sorted(source.iterdir()))
    context = {"store": str(store), "collection": "acme/m"}
    staged = machine.stage("written", context, mode=SINGLE_NODE_WRITER)
    target = machine.publish("written", staged, context, mode=SINGLE_NODE_WRITER)
    machine.refused("NodePublishVolume at the same place with another flag", EXISTS, machine.client.NodePublishVolume, volume_id="written",
                    staging_target_path=str(staged), target_path=str(target), volume_capability=capability(SINGLE_NODE_WRITER),
                    volume_context=context, readonly=True)
    with machine.check("a store takes writes, which stay"):
        (target / "answers.txt").write_text("42\n")
        machine.unpublish("written", target)
        machine.unstage("written", staged)
        staged = machine.stage("written", context, mode=SINGLE_NODE_WRITER)
        target = machine.publish("written", staged, context, mode=SINGLE_NODE_WRITER, readonly=True)
        assert (target / "answers.txt").read_text() == "42\n"
        try:
            (target / "answers.txt").write_text("43\n")
            raise AssertionError("a read-only place was written")
        except OSError as error:
            assert error.errno == 30, error
    machine.unpublish("written", target)
    machine.unstage("written", staged)
    with machine.check("two collections of a store have one daemon, and both take writes"):
        places = {}
        for collection in ["acme/m", "acme/second"]:
            of = {"store": str(store), "collection": collection}
            staged = machine.stage(collection, of, mode=SINGLE_NODE_WRITER)
            places[collection] = (staged, machine.publish(collection, staged, of, mode=SINGLE_NODE_WRITER))
        for collection, (_, target) in places.items():
            (target / "name.txt").write_text(collection)
        assert len(machine.daemons()) == len(machine.connections()) == 1, machine.mounts()
        for collection, (staged, target) in places.items():
            assert (target / "name.txt").read_text() == collection
            machine.unpublish(collection, target)
            machine.unstage(collection, staged)
    for mode, several in [(SINGLE_NODE_SINGLE_WRITER, False), (SINGLE_NODE_MULTI_WRITER, True), (SINGLE_NODE_WRITER, False)]:
        with machine.check(f"a store with the access mode {mode} has {'several places' if several else 'one place'}"):
            staged = machine.stage("modes", context, mode=mode)
            target, second = machine.publish("modes", staged, context, mode=mode), machine.place("pod") / "mount"
            call = {"volume_id": "modes", "staging_target_path": str(staged), "target_path": str(second), "volume_capability": capability(mode),
                    "volume_context": context}
            if several:
                machine.client.NodePublishVolume(**call)
                (second / "seen.txt").write_text("seen")
                assert (target / "seen.txt").read_text() == "seen"
                machine.unpublish("modes", second)
            else:
                machine.refused(f"a second place of a volume with the access mode {mode}", PRECONDITION, machine.client.NodePublishVolume, **call)
            machine.unpublish("modes", target)
            machine.unstage("modes", staged)
    with machine.check("the store is free and whole afterwards"):
        wait_until("the end of daemons", lambda: not machine.daemons())
        machine.run("fsck", store)


with node() as machine:
    source = machine.model()
    store = machine.store(source)
    remote = machine.remote(store)
    bucket = Bucket(machine.directory / "buckets")
    good = {"remote": remote, "collection": "acme/m"}
    machine.start("--inline-paths", str(machine.directory / "buckets"))
    missing_fields(machine, good)
    wrong_arguments(machine, good, remote, store)
    for part, arguments in [(life, [good, source]), (gone, [good, source]), (ephemeral, [good, source]), (secrets, [source, bucket]),
                            (attributes, [source, store, remote]), (writers, [store, source])]:
        with machine.check(part.__name__):
            part(machine, *arguments)
