"""Simulates a fleet that mounts a remote and reads a model for the first time, by discrete events.

    python3 scripts/fleet.py                        1 to 10,000 machines and 140 GB: S3 alone, mirrors, a proxy a rack
    python3 scripts/fleet.py --machines 200 --proxies 16
    python3 scripts/fleet.py --measure PROGRAM      ten daemons of PROGRAM on a throttled server beside the simulation of
                                                    the same; exits with 1 if a time differs by more than 20 %. Needs root

An event is the start or the end of a machine, a machine that has caught up with its proxy, a step of a window of requests,
or a split of a partition. Between two events each machine reads at a constant rate: the fair share (max-min) of what the
sources, the links and the machine itself allow.

Not in the model: failures, retries, and bytes of manifests and logs, 0.1 % of a model.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
from dataclasses import dataclass, replace

import numpy as np

GB = 1e9

# Measured: `tierfs push` of 1 GiB of bf16 makes 134 pieces, hence 16,700 for 140 GB (docs/REMOTE.md, "Policies and costs").
PIECES_A_BYTE = 16_700 / 140e9
# Measured: `remote.cold-cpu` of tests/bench/results/remote.md, core-seconds of the daemon for 1 GB by HTTP.
CORE_SECONDS_A_GB = 0.84
# Requests at a time: where a client begins, and its limit. It grows by one with each window of successes, and read-ahead
# leaves one place in four to other reads (src/remote/client/window.rs).
WINDOW_START, WINDOW_MAX, WINDOW_AHEAD = 8, 128, 0.75
# Published (docs.aws.amazon.com, "Performance design patterns for Amazon S3"): GETs a second of a partition, the time to the
# first byte, and the bytes a second of one request.
PARTITION_GETS = 5_500
S3_LATENCY = 0.1
S3_REQUEST_RATE = 85e6
# List prices of us-east-1: one GET.
DOLLARS_A_GET = 0.0000004


@dataclass(frozen=True)
class Fleet:
    """Machines, and the places that they read from. Rates are bytes a second."""

    machines: int
    model_bytes: float = 140e9
    # Each machine: its link, the cores that the daemon may use, its cache disk.
    link: float = 25e9 / 8
    cores: float = 8
    disk: float = 2e9
    # Machines start within so many seconds, and differ in speed by this standard deviation (of the logarithm).
    jitter: float = 10.0
    spread: float = 0.1
    # The bucket and its mirrors: partitions of each, which double after so many seconds (0: never).
    sources: int = 1
    partitions: int = 1
    split_after: float = 0.0
    source_rate: float = float("inf")
    latency: float = S3_LATENCY
    request_rate: float = S3_REQUEST_RATE
    # Machines that share a proxy; 0: there are none. Its links up and down.
    rack: int = 0
    proxy_up: float = 100e9 / 8
    proxy_down: float = 100e9 / 8
    pieces_a_byte: float = PIECES_A_BYTE
    partition_gets: float = PARTITION_GETS
    seed: int = 1


@dataclass(frozen=True)
class Loaded:
    """The times in seconds until a share of the machines has the model, and the GETs that sources answered."""

    half: float
    most: float
    all: float
    gets: float


def fair(limits: np.ndarray, groups: np.ndarray, count: int, capacity: float) -> np.ndarray:
    """The max-min fair shares in each of `count` groups that has a capacity, none above its limit."""
    shares, open_ = limits.copy(), limits > 0
    over = np.bincount(groups, limits, minlength=count) > capacity
    open_ &= over[groups]
    left = np.full(count, capacity)
    # Those below the level of their group get their limit, and the level of the rest rises.
    while open_.any():
        level = left / np.maximum(np.bincount(groups[open_], minlength=count), 1)
        below = open_ & (limits <= level[groups])
        if not below.any():
            shares[open_] = level[groups[open_]]
            break
        left -= np.bincount(groups[below], limits[below], minlength=count)
        open_ &= ~below
    return shares


def window_rate(fleet: Fleet, age: np.ndarray) -> np.ndarray:
    """The rate that the window of requests of a machine allows, by the time since its start."""
    piece = 1 / fleet.pieces_a_byte
    request = fleet.latency + piece / fleet.request_rate
    window = np.minimum(WINDOW_START + age / request, WINDOW_MAX) * WINDOW_AHEAD
    return window * piece / request


def simulate(fleet: Fleet) -> Loaded:
    """Runs a fleet until each machine has the model."""
    random = np.random.default_rng(fleet.seed)
    count = fleet.machines
    start = random.uniform(0, fleet.jitter, count)
    start[0] = 0.0
    own = min(fleet.link, fleet.cores / CORE_SECONDS_A_GB * GB, fleet.disk)
    own = own * random.lognormal(0, fleet.spread, count) if fleet.spread else np.full(count, own)
    # Without proxies each machine is a rack of its own, which has the machine's link.
    rack = np.arange(count) // (fleet.rack or 1)
    racks = int(rack[-1]) + 1
    up, down = (fleet.proxy_up, fleet.proxy_down) if fleet.rack else (np.inf, np.inf)
    source = np.arange(racks) % fleet.sources
    piece = 1 / fleet.pieces_a_byte

    got, fetched = np.zeros(count), np.zeros(racks)
    finished = np.full(count, np.inf)
    now, steps_until = 0.0, fleet.jitter + WINDOW_MAX * (fleet.latency + piece / fleet.request_rate)
    # Events closer to one another than this are one.
    grain = 1e-3 * fleet.model_bytes / own.max()
    while not np.isfinite(finished).all():
        reads = (start <= now) & ~np.isfinite(finished)
        splits = int(now / fleet.split_after) if fleet.split_after else 0
        partitions = min(fleet.partitions << min(splits, 8), 256)
        capacity = min(partitions * fleet.partition_gets * piece, fleet.source_rate)

        limit = np.where(reads, np.minimum(own, window_rate(fleet, now - start)), 0.0)
        leads = reads & (got >= fetched[rack] - 0.5)
        wanted = np.zeros(racks)
        np.maximum.at(wanted, rack[leads], limit[leads])
        arriving = fair(np.minimum(wanted, up), source, fleet.sources, capacity)
        limit[leads] = np.minimum(limit[leads], arriving[rack[leads]])
        rate = fair(limit, rack, racks, down)
        front = np.zeros(racks)
        np.maximum.at(front, rack[leads], rate[leads])

        with np.errstate(divide="ignore", invalid="ignore"):
            until_end = np.where(rate > 0, (fleet.model_bytes - got) / rate, np.inf)
            closing = rate - front[rack]
            until_caught = np.where(~leads & reads & (closing > 0), (fetched[rack] - got) / closing, np.inf)
        times = [until_end.min(), until_caught.min()]
        times += [(start[start > now] - now).min()] if (start > now).any() else []
        times += [1.0] if now < steps_until else []
        times += [(splits + 1) * fleet.split_after - now] if fleet.split_after and partitions < 256 else []
        step = max(min(times), grain)
        got = np.minimum(got + rate * step, fleet.model_bytes)
        fetched = np.minimum(fetched + front * step, fleet.model_bytes)
        # A machine has nothing that its proxy has not.
        np.maximum.at(fetched, rack, got)
        now += step
        finished[reads & (got >= fleet.model_bytes * (1 - 1e-9))] = now
    taken = np.sort(finished)
    at = lambda share: float(taken[min(int(np.ceil(share * count)) - 1, count - 1)])
    return Loaded(at(0.5), at(0.99), at(1.0), float(fetched.sum() * fleet.pieces_a_byte))


def clock(seconds: float) -> str:
    """A time for people."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(fleets: list[tuple[str, Fleet]]) -> None:
    print("| machines | sources | 50 % have it | 99 % | all | GETs | $ |")
    print("|---|---|---|---|---|---|---|")
    for name, fleet in fleets:
        loaded = simulate(fleet)
        times = " | ".join(clock(seconds) for seconds in (loaded.half, loaded.most, loaded.all))
        cost = loaded.gets * DOLLARS_A_GET
        print(f"| {fleet.machines:,} | {name} | {times} | {loaded.gets:,.0f} | {cost:.2f} |", flush=True)


# The throttled server: objects of a directory that `tierfs push file://…` has filled, as a bucket.


class Throttled:
    """A server with the part of S3's interface that a mount uses. All answers share `rate` bytes a second; each has
    `latency` and at most `request_rate`."""

    def __init__(self, directory: str, rate: float, latency: float, request_rate: float) -> None:
        self.directory, self.rate, self.latency, self.request_rate = directory, rate, latency, request_rate
        self.free_at = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readline():
                headers = {}
                while (line := (await reader.readline()).strip()):
                    name, _, value = line.decode().partition(":")
                    headers[name.strip().lower()] = value.strip()
                method, target, _ = request.decode().split(" ", 2)
                await asyncio.sleep(self.latency)
                status, fields, body = self.answer(method, target, headers)
                head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *fields]
                writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
                if method != "HEAD":
                    await self.send(writer, body)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def send(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        begun, sent = time.monotonic(), 0
        while sent < len(body):
            part = body[sent : sent + (64 << 10)]
            now = time.monotonic()
            # Each part takes its turn on the link of the server.
            self.free_at = max(self.free_at, now) + len(part) / self.rate
            due = max(self.free_at, begun + (sent + len(part)) / self.request_rate)
            await asyncio.sleep(max(due - now, 0))
            writer.write(part)
            await writer.drain()
            sent += len(part)

    def answer(self, method: str, target: str, headers: dict) -> tuple[str, list[str], bytes]:
        split = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(split.query, keep_blank_values=True))
        key = urllib.parse.unquote(split.path).split("/", 2)[2:]
        key = key[0] if key else ""
        if "list-type" in query:
            return "200 OK", ["Content-Type: application/xml"], self.listing(query)
        path = os.path.join(self.directory, key)
        if method not in ("GET", "HEAD") or not os.path.isfile(path):
            return "404 Not Found", [], b"<Error><Code>NoSuchKey</Code></Error>" if method != "HEAD" else b""
        with open(path, "rb") as file:
            body = file.read()
        tag = f'ETag: "{len(body)}-{os.stat(path).st_mtime_ns}"'
        fields = [tag, "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"]
        if headers.get("if-none-match") == tag.removeprefix("ETag: "):
            return "304 Not Modified", fields, b""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", headers.get("range", ""))
        if not wanted:
            return "200 OK", fields, body
        first, last = wanted.groups()
        begin = int(first) if first else max(len(body) - int(last), 0)
        end = min(int(last) + 1, len(body)) if first and last else len(body)
        fields.append(f"Content-Range: bytes {begin}-{end - 1}/{len(body)}")
        return "206 Partial Content", fields, body[begin:end]

    def listing(self, query: dict) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        keys, folders = [], set()
        for folder, _, names in os.walk(self.directory):
            for name in names:
                key = os.path.relpath(os.path.join(folder, name), self.directory)
                if not key.startswith(prefix) or key <= after:
                    continue
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    folders.add(key[: cut + 1])
                else:
                    keys.append(key)
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{os.path.getsize(os.path.join(self.directory, key))}</Size>"
            '<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"1"</ETag></Contents>'
            for key in sorted(keys)
        )
        found += "".join(
            f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in sorted(folders)
        )
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult><Name>b</Name>'
            f"<IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
        ).encode()


async def serve_on(port_is: asyncio.Future, server: Throttled) -> None:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=4096)
    port_is.set_result(listening.sockets[0].getsockname()[1])
    async with listening:
        await listening.serve_forever()


def mount_and_read(program: str, url: str, work: str, number: int, env: dict) -> subprocess.Popen:
    """A process that mounts with a cache of its own, reads all files, and prints the seconds since its start."""
    mount_point, cache = f"{work}/mnt-{number}", f"{work}/cache-{number}"
    os.makedirs(mount_point)
    script = (
        'set -e; begun=$(date +%s.%N); "$1" mount --cache "$4" "$2" "$3" >/dev/null; '
        'cat "$3"/t/c/* >/dev/null; date +%s.%N | awk -v b="$begun" \'{ print $1 - b }\'; "$1" umount "$3" >/dev/null'
    )
    command = ["bash", "-c", script, "read", program, url, mount_point, cache]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


async def measured(program: str, directory: str, fleet: Fleet, work: str) -> list[float]:
    """The times of real daemons."""
    port = asyncio.get_running_loop().create_future()
    server = Throttled(directory, fleet.source_rate, fleet.latency, fleet.request_rate)
    serving = asyncio.create_task(serve_on(port, server))
    env = dict(os.environ, AWS_ENDPOINT_URL=f"http://127.0.0.1:{await port}", AWS_ALLOW_HTTP="true")
    env.update(AWS_SKIP_SIGNATURE="true", AWS_REGION="us-east-1")
    machines = [mount_and_read(program, "s3://bucket/", work, n, env) for n in range(fleet.machines)]
    answers = await asyncio.gather(*(asyncio.to_thread(machine.communicate) for machine in machines))
    serving.cancel()
    if any(machine.returncode for machine in machines):
        sys.exit("a daemon failed")
    return sorted(float(answer[0]) for answer in answers)


def compare(program: str) -> bool:
    """Whether the simulation agrees with ten daemons, on servers that limit different things."""
    bytes_of_model, machines = 256 << 20, 10
    agrees = True
    with tempfile.TemporaryDirectory(prefix="fleet-") as work:
        os.makedirs(f"{work}/model")
        with open(f"{work}/model/weights.bin", "wb") as file:
            file.write(os.urandom(bytes_of_model))
        os.makedirs(f"{work}/bucket")
        quiet = {"stdout": subprocess.DEVNULL, "check": True}
        subprocess.run([program, "init", f"{work}/store"], **quiet)
        subprocess.run([program, "import", f"{work}/store", "t/c", f"{work}/model"], **quiet)
        subprocess.run([program, "push", f"{work}/store", "t/c", f"file://{work}/bucket", "--create"], **quiet)
        pieces = sum(len(names) for _, _, names in os.walk(f"{work}/bucket/piece"))
        model = float(bytes_of_model)
        alike = Fleet(
            machines, model, jitter=0.0, spread=0.0, pieces_a_byte=pieces / model, partition_gets=1e9
        )
        cases = [
            ("the server's link", replace(alike, source_rate=100e6, latency=0.02, request_rate=100e6)),
            ("each request", replace(alike, source_rate=1e9, latency=0.3, request_rate=2e6)),
        ]
        for name, fleet in cases:
            times = asyncio.run(measured(program, f"{work}/bucket", fleet, tempfile.mkdtemp(dir=work)))
            real = (times[machines // 2 - 1], times[-1])
            loaded = simulate(fleet)
            for share, one, other in (("50 %", real[0], loaded.half), ("all", real[1], loaded.all)):
                differs = abs(other / one - 1)
                agrees = agrees and differs <= 0.2
                print(f"limited by {name}: {share} after {one:.1f} s, simulated {other:.1f} s ({differs:.0%} apart)")
    return agrees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, metavar="N")
    parser.add_argument("--gigabytes", type=float, default=140, help="of the model")
    parser.add_argument("--link", type=float, default=25, metavar="GBIT", help="of a machine, in Gbit/s")
    parser.add_argument("--disk", type=float, default=2, metavar="GB", help="the cache disk writes, in GB/s")
    parser.add_argument("--cores", type=float, default=8, help="of a machine, for the daemon")
    parser.add_argument("--mirrors", type=int, default=0, help="buckets beside the remote")
    parser.add_argument("--partitions", type=int, default=1, help="of each bucket at the begin")
    parser.add_argument("--split-after", type=float, default=0, metavar="S", help="partitions double, in seconds")
    parser.add_argument("--proxies", type=int, default=0, metavar="N", help="machines that share a proxy")
    parser.add_argument("--measure", metavar="PROGRAM", help="compare with ten daemons")
    parser.add_argument("--json", action="store_true", help="print the times of one fleet in seconds")
    chosen = parser.parse_args()
    if chosen.measure:
        sys.exit(0 if compare(chosen.measure) else 1)
    fleet = Fleet(
        chosen.machines or 1,
        chosen.gigabytes * GB,
        link=chosen.link * GB / 8,
        disk=chosen.disk * GB,
        cores=chosen.cores,
        sources=1 + chosen.mirrors,
        partitions=chosen.partitions,
        split_after=chosen.split_after,
        rack=chosen.proxies,
    )
    if chosen.machines and chosen.json:
        print(json.dumps(simulate(fleet).__dict__))
    elif chosen.machines:
        table([("as asked", fleet)])
    else:
        kinds = [
            ("one bucket", {}),
            ("one bucket, partitions double every 10 min", {"split_after": 600.0}),
            ("and 3 mirrors", {"sources": 4}),
            ("a proxy for 16 machines", {"rack": 16}),
        ]
        sizes = (1, 10, 100, 1000, 10_000)
        table([(name, replace(fleet, machines=size, **how)) for size in sizes for name, how in kinds])


main()
