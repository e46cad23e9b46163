"""What may go wrong on a node: a reboot, a store that somebody uses, a remote that is silent, strange paths."""
import os
import signal
import socket
import threading
import time

import grpc

from messages import SINGLE_NODE_WRITER, Client
from plugin import INVALID, KEYS, LIBC, NOT_FOUND, PRECONDITION, URL, capability, node, same_trees, wait_until

UNAVAILABLE, LATE, ABORTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED


def end_of_all(machine):
    """As a reboot: no process, no mount."""
    machine.stop(signal.SIGKILL)
    for process in machine.daemons():
        os.kill(process, signal.SIGKILL)
    for _, point in reversed(machine.mounts()):
        LIBC.umount2(os.fsencode(point), 2)
    wait_until("the end of daemons and mounts", lambda: not machine.daemons() and not machine.mounts())


def reboots(machine, good, source):
    for again in [False, True]:
        staged = machine.stage("rebooted", good)
        target = machine.publish("rebooted", staged, good)
        end_of_all(machine)
        machine.start()
        if again:
            with machine.check("after a reboot the kubelet stages and publishes at the same places"):
                machine.stage("rebooted", good, at=staged)
                machine.publish("rebooted", staged, good, at=target)
                same_trees(target, source)
        with machine.check("after a reboot a volume is unpublished and unstaged"):
            machine.unpublish("rebooted", target)
            machine.unstage("rebooted", staged)
            assert not target.exists() and not machine.mounts() and not machine.daemons(), machine.mounts()


def used_store(machine, store):
    context, mountpoint = {"store": str(store), "collection": "acme/m"}, machine.place("by hand")
    machine.run("mount", store, mountpoint)
    machine.refused("a store that somebody has mounted", (UNAVAILABLE, PRECONDITION, ABORTED), machine.client.NodeStageVolume, volume_id="used",
                    staging_target_path=str(machine.place("globalmount")), volume_capability=capability(SINGLE_NODE_WRITER), volume_context=context)
    machine.run("umount", mountpoint)
    with machine.check("the store is staged once it is free"):
        staged = machine.stage("used", context, mode=SINGLE_NODE_WRITER)
        machine.unstage("used", staged)


def silent_remote(machine, good, source):
    """A server that takes connections and never answers."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=100)
    secrets = {**KEYS, "AWS_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
    context, staged = {"remote": URL, "collection": "acme/m"}, machine.place("globalmount")
    answers = []

    def ask():
        # The deadline of the caller is shorter than that of the remote.
        client = Client(machine.socket, timeout=15)
        try:
            client.NodeStageVolume(volume_id="silent", staging_target_path=str(staged), volume_capability=capability(), volume_context=context,
                                   secrets=secrets)
            answers.append("staged")
        except grpc.RpcError as error:
            answers.append(error.code())

    asking = threading.Thread(target=ask)
    asking.start()
    with machine.check("a volume is staged while another one waits for a silent remote"):
        time.sleep(1)
        other = machine.stage("other", good)
        same_trees(machine.publish("other", other, good, at=other.parent / "mount"), source)
        assert not answers, answers
        machine.unpublish("other", other.parent / "mount")
        machine.unstage("other", other)
    asking.join()
    with machine.check("the call fails, and says that it was late"):
        assert answers[0] in (LATE, UNAVAILABLE), answers
    with machine.check("a volume that was never staged is unstaged, and leaves nothing"):
        def unstage():
            try:
                machine.unstage("silent", staged)
                return True
            except grpc.RpcError as error:
                assert error.code() in (ABORTED, UNAVAILABLE), error
                return False
        wait_until("the end of the stage", unstage)
        wait_until("the end of its daemon", lambda: not machine.daemons() and not machine.mounts())
    silent.close()


def paths(machine, good, source):
    with machine.check("paths with spaces, quotes and other letters, as long as the system allows"):
        above = machine.directory / "kubelet" / "pods" / "a b\"c'd\\e,f\tü–漢" / ("x" * 200) / ("y" * 200)
        (above / "staged").mkdir(parents=True)
        staged = machine.stage("path", good, at=above / "staged")
        target = machine.publish("path", staged, good, at=above / "mount")
        same_trees(target, source)
        assert machine.client.NodeGetVolumeStats(volume_id="path", volume_path=str(target)).usage
        machine.unpublish("path", target)
        machine.unstage("path", staged)
        assert not target.exists()
    elsewhere = machine.place("elsewhere")
    with machine.check("a link at the place of a pod leads nowhere"):
        staged = machine.stage("link", good)
        link = machine.place("pod") / "mount"
        link.symlink_to(elsewhere)
        try:
            machine.publish("link", staged, good, at=link)
        except grpc.RpcError as error:
            assert error.code() in (INVALID, PRECONDITION, NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS), error
        assert not [point for _, point in machine.mounts() if point.startswith(str(elsewhere))], machine.mounts()
        machine.unpublish("link", link)
        assert elsewhere.exists()
        machine.unstage("link", staged)
    with machine.check("a directory with files at the place of a pod keeps them"):
        staged, full = machine.stage("full", good), machine.place("pod") / "mount"
        full.mkdir()
        (full / "file").write_text("x")
        try:
            machine.publish("full", staged, good, at=full)
            machine.unpublish("full", full)
        except grpc.RpcError as error:
            assert error.code() in (INVALID, PRECONDITION, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.INTERNAL), error
        assert (full / "file").read_text() == "x"
        machine.unstage("full", staged)


with node() as machine:
    source = machine.model()
    store = machine.store(source)
    good = {"remote": machine.remote(store), "collection": "acme/m"}
    machine.start()
    for part, arguments in [(reboots, [good, source]), (used_store, [store]), (silent_remote, [good, source]), (paths, [good, source])]:
        with machine.check(part.__name__):
            part(machine, *arguments)
