"""Ten pods read a published volume from mount namespaces of their own, while the plugin is killed and started again."""
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from plugin import KEYS, URL, Bucket, node, same_trees, wait_until

PODS = 10

# A pod: the published directory is bound to the place where its container would have it. It reads until a file appears, and prints how often.
POD = """
set -eu
mkdir -p "$2"
mount --bind "$1" "$2"
exec "$3" "$4" read "$2" "$5" "$6"
"""


def read(directory, wanted, end):
    """Reads all files again and again, and compares their digests."""
    wanted, rounds, slowest = json.loads(wanted), 0, 0.0
    while rounds == 0 or not Path(end).exists():
        for name, digest in wanted.items():
            begun = time.monotonic()
            found = hashlib.sha256((Path(directory) / name).read_bytes()).hexdigest()
            slowest = max(slowest, time.monotonic() - begun)
            assert found == digest, f"{name} has other bytes"
        rounds += 1
        print(rounds, flush=True)
    print(json.dumps({"rounds": rounds, "slowest": slowest}), flush=True)


def start_pod(target, inside, wanted, end, log):
    arguments = [str(target), str(inside), sys.executable, __file__, json.dumps(wanted), str(end)]
    return subprocess.Popen(["unshare", "--mount", "--propagation", "slave", "sh", "-c", POD, "pod", *arguments], stdin=subprocess.DEVNULL,
                            stdout=open(log, "wb"), stderr=subprocess.STDOUT)


def rounds(log):
    lines = [line for line in Path(log).read_text().splitlines() if line.isdigit()]
    return int(lines[-1]) if lines else 0


def main():
    with node() as machine:
        source = machine.model(count=24, rows=1024)
        machine.remote(machine.store(source))
        bucket = Bucket(machine.directory / "buckets")
        context = {"remote": URL, "collection": "acme/m"}
        secrets = {**KEYS, "AWS_ENDPOINT": bucket.endpoint}
        wanted = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in source.iterdir()}
        size = sum(path.stat().st_size for path in source.iterdir())
        machine.start()
        staged = machine.stage("shared", context, secrets)
        begun, before = bucket.sent, len(bucket.requests)
        end, pods = machine.directory / "end", []
        for number in range(PODS):
            target = machine.publish("shared", staged, context)
            log = machine.directory / f"pod-{number}.log"
            inside = machine.directory / f"inside-{number}"
            pods.append((target, log, start_pod(target, inside, wanted, end, log)))
        try:
            wait_until("the first round of each pod", lambda: all(rounds(log) or pod.poll() is not None for _, log, pod in pods))
            with machine.check("ten pods that read at once fetch each byte once, by one daemon"):
                sent, requests = bucket.sent - begun, len(bucket.requests) - before
                print(f"{PODS} pods read {size} bytes each; the bucket sent {sent} bytes for {requests} requests")
                # A slow answer is asked for a second time.
                assert size * 0.8 < sent < size * 1.5, (sent, size)
                assert len(machine.daemons()) == len(machine.connections()) == 1, (machine.daemons(), machine.mounts())
            served = machine.daemons()
            for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL]:
                with machine.check(f"the plugin ends by {number.name} and comes back under the pods"):
                    counts = [rounds(log) for _, log, _ in pods]
                    machine.stop(number)
                    wait_until("two rounds without a plugin", lambda: all(rounds(log) >= count + 2 for (_, log, _), count in zip(pods, counts)))
                    machine.start()
                    assert machine.daemons() == served, (machine.daemons(), served)
            with machine.check("the new plugin goes on with the volume"):
                machine.stage("shared", context, secrets, at=staged)
                machine.publish("shared", staged, context, at=pods[0][0])
                more = machine.publish("shared", staged, context)
                same_trees(more, source)
                assert machine.client.NodeGetVolumeStats(volume_id="shared", volume_path=str(more)).usage
                machine.unpublish("shared", more)
                assert machine.daemons() == served, (machine.daemons(), served)
        finally:
            end.write_text("")
            for _, _, pod in pods:
                try:
                    pod.wait(60)
                except subprocess.TimeoutExpired:
                    pod.kill()
        with machine.check("no pod saw an error or another byte"):
            for _, log, pod in pods:
                assert pod.returncode == 0, Path(log).read_text()[-2000:]
            told = [json.loads(Path(log).read_text().splitlines()[-1]) for _, log, _ in pods]
            print(f"rounds of the pods: {[of['rounds'] for of in told]}; slowest file: {max(of['slowest'] for of in told):.2f} s")
        with machine.check("the volume ends with the last pod"):
            for target, _, _ in pods:
                machine.unpublish("shared", target)
            machine.unstage("shared", staged)
            wait_until("the end of the daemon", lambda: not machine.daemons() and not machine.mounts())
            assert not any(target.exists() for target, _, _ in pods)


if sys.argv[1] == "read":
    read(*sys.argv[2:5])
else:
    main()
