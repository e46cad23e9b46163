"""Calls at the same time, for one volume and for many. A plugin may answer ABORTED to a call beside another one for the same volume."""
import os
import signal
import threading
import time

import grpc

from plugin import node, same_trees, wait_until

ABORTED = grpc.StatusCode.ABORTED


def patiently(call):
    """As the kubelet: again after ABORTED."""
    until = time.monotonic() + 60
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() != ABORTED or time.monotonic() > until:
                raise
            time.sleep(0.05)


def together(calls):
    """Runs the calls in a thread each, from one moment on; the failures of all."""
    barrier, failures = threading.Barrier(len(calls)), []

    def run(call):
        barrier.wait()
        try:
            patiently(call)
        except Exception as error:  # noqa: BLE001 each failure is reported
            failures.append(error)

    threads = [threading.Thread(target=run, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


with node() as machine:
    source = machine.model()
    store = machine.store(source)
    remotes = [machine.remote(store, name=f"models/{number}") for number in range(4)]
    machine.start()
    good = {"remote": remotes[0], "collection": "acme/m"}
    with machine.check("sixteen stages of one volume are one stage"):
        staged = machine.place("globalmount")
        together([lambda: machine.stage("one", good, at=staged)] * 16)
        assert len(machine.connections()) == len(machine.daemons()) == 1, (machine.mounts(), machine.daemons())
    with machine.check("sixteen publishes at one place are one publish"):
        target = machine.place("pod") / "mount"
        together([lambda: machine.publish("one", staged, good, at=target)] * 16)
        same_trees(target, source)
        assert len([point for _, point in machine.mounts() if point == str(target)]) == 1, machine.mounts()
    with machine.check("sixteen publishes at other places"):
        targets = [machine.place("pod") / "mount" for _ in range(16)]
        together([lambda at=at: machine.publish("one", staged, good, at=at) for at in targets])
        for at in targets:
            same_trees(at, source)
    with machine.check("sixteen unpublishes of one place, and of all places"):
        together([lambda: machine.unpublish("one", target)] * 16)
        together([lambda at=at: machine.unpublish("one", at) for at in targets])
        assert not any(at.exists() for at in [target, *targets])
    with machine.check("sixteen unstages of one volume"):
        together([lambda: machine.unstage("one", staged)] * 16)
        wait_until("the end of the daemon", lambda: not machine.daemons() and not machine.mounts())

    def whole_life(number):
        context = {"remote": remotes[number % len(remotes)], "collection": "acme/m"}
        volume = f"volume-{number}"
        for _ in range(2):
            at = patiently(lambda: machine.stage(volume, context))
            pod = patiently(lambda: machine.publish(volume, at, context))
            same_trees(pod, source)
            patiently(lambda: machine.unpublish(volume, pod))
            patiently(lambda: machine.unstage(volume, at))

    with machine.check("sixteen volumes of four remotes live twice, at the same time"):
        together([lambda number=number: whole_life(number) for number in range(16)])
        wait_until("the end of daemons", lambda: not machine.daemons() and not machine.mounts())
    with machine.check("the last volume of a daemon ends while another one begins"):
        for round_ in range(6):
            before, at = machine.stage(f"before-{round_}", good), machine.place("globalmount")
            together([lambda: machine.unstage(f"before-{round_}", before), lambda: machine.stage(f"after-{round_}", good, at=at)])
            pod = machine.publish(f"after-{round_}", at, good)
            same_trees(pod, source)
            machine.unpublish(f"after-{round_}", pod)
            machine.unstage(f"after-{round_}", at)
    with machine.check("a plugin that is killed during stages leaves what the next one mends"):
        places = [machine.place("globalmount") for _ in range(8)]
        for round_ in range(3):
            def begin(number):
                context = {"remote": remotes[number % len(remotes)], "collection": "acme/m"}
                try:
                    machine.stage(f"killed-{number}", context, at=places[number])
                except grpc.RpcError:
                    pass
            threads = [threading.Thread(target=begin, args=[number]) for number in range(8)]
            for thread in threads:
                thread.start()
            time.sleep(0.03 * (round_ + 1))
            machine.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
            machine.start()
        for number in range(8):
            context = {"remote": remotes[number % len(remotes)], "collection": "acme/m"}
            machine.stage(f"killed-{number}", context, at=places[number])
            pod = machine.publish(f"killed-{number}", places[number], context)
            same_trees(pod, source)
            machine.unpublish(f"killed-{number}", pod)
        assert len(machine.connections()) == 4, machine.mounts()
        for number in range(8):
            machine.unstage(f"killed-{number}", places[number])
        wait_until("the end of daemons", lambda: not machine.daemons() and not machine.mounts())
    with machine.check("nothing is left below the directories of the kubelet"):
        assert not [path for path in (machine.directory / "kubelet").rglob("*") if path.name == "mount"], os.listdir(machine.directory / "kubelet")
