"""The plugin under test with stores, remotes and a bucket, in a temporary directory.

Every script of this folder is run as `SCRIPT PROGRAM DIRECTORY`, by tests/program/csi.rs, as root.
"""
import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import grpc
import numpy
from safetensors.numpy import save_file

from messages import MULTI_NODE_READER_ONLY, Client

LIBC = ctypes.CDLL(None, use_errno=True)
PATIENCE = 60
KEYS = {"AWS_ACCESS_KEY_ID": "READERKEY", "AWS_SECRET_ACCESS_KEY": "secret-of-the-reader", "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
URL = "s3://models/demo"

INVALID, NOT_FOUND, EXISTS, PRECONDITION = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.ALREADY_EXISTS,
                                            grpc.StatusCode.FAILED_PRECONDITION)


def capability(mode=MULTI_NODE_READER_ONLY, **mount):
    return {"mount": mount, "access_mode": {"mode": mode}}


def wait_until(what, condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"waited {PATIENCE} s in vain for {what}"
        time.sleep(0.01)


class Bucket:
    """Answers GETs of the objects below a directory, and listings, to requests that name the key of KEYS; counts both."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.requests, self.sent, self.refused = [], 0, 0
        bucket, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with lock:
                    bucket.requests.append(self.path)
                if f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/" not in self.headers.get("Authorization", ""):
                    bucket.refused += 1
                    return self.give(403, b"<Error><Code>InvalidAccessKeyId</Code></Error>")
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                if "list-type" in query:
                    return self.give(200, bucket.listing(unquote(parts.path).strip("/"), query).encode())
                path = bucket.directory / unquote(parts.path).lstrip("/")
                if not path.is_file():
                    return self.give(404, b"<Error><Code>NoSuchKey</Code></Error>")
                whole = path.read_bytes()
                tag = {"ETag": f'"{path.stat().st_ino:x}-{path.stat().st_mtime_ns:x}"'}
                wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
                if not wanted:
                    return self.give(200, whole, tag)
                first, last = int(wanted[1]), min(int(wanted[2] or len(whole)), len(whole) - 1)
                self.give(206, whole[first:last + 1], {**tag, "Content-Range": f"bytes {first}-{last}/{len(whole)}"})

            do_HEAD = do_GET

            def give(self, status, body, headers={}):
                self.send_response(status)
                for name, value in {"Content-Length": len(body), "Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT", **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    with lock:
                        bucket.sent += len(body)
                    with contextlib.suppress(ConnectionError):
                        self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"

    def listing(self, bucket, query):
        prefix, after, level = (query.get(key, [""])[0] for key in ["prefix", "start-after", "delimiter"])
        root = self.directory / bucket
        keys = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        found, folders = [], set()
        for key in (key for key in keys if key.startswith(prefix) and key > after):
            rest = key[len(prefix):]
            if level and level in rest:
                folders.add(prefix + rest.split(level)[0] + level)
                continue
            status = (root / key).stat()
            found.append(f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-23T00:00:00.000Z</LastModified>"
                         f'<ETag>"{status.st_ino:x}-{status.st_mtime_ns:x}"</ETag><Size>{status.st_size}</Size></Contents>')
        found += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(folders)]
        return f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{"".join(found)}</ListBucketResult>'


class Node:
    """A machine with the plugin: its state, its socket, and the directories that the kubelet would make."""

    def __init__(self, program, directory):
        self.program, self.directory = program, Path(directory)
        self.state, self.cache, self.socket = self.directory / "state", self.directory / "cache", self.directory / "csi.sock"
        self.failures, self.checked, self.process, self.client, self.numbers = [], 0, None, None, iter(range(1 << 30))
        self.log = open(self.directory / "plugin.log", "ab")

    # The plugin.

    def start(self, *options, node_id="node-1"):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self.process = subprocess.Popen([self.program, "csi", "--endpoint", f"unix://{self.socket}", "--node-id", node_id, "--state", self.state,
                                         "--cache", self.cache, *options], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=environment, start_new_session=True)
        self.client = Client(self.socket)
        wait_until("the answer to Probe", self.answers)

    def answers(self):
        assert self.process.poll() is None, f"the plugin ended with {self.process.returncode}: {(self.directory / 'plugin.log').read_text()}"
        with contextlib.suppress(grpc.RpcError):
            return self.client.Probe() is not None

    def stop(self, number=signal.SIGTERM):
        """Ends the plugin by a signal; its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.client.close()
        return code

    def restart(self, number=signal.SIGKILL):
        self.stop(number)
        self.start()

    # Stores and remotes.

    def run(self, *arguments, **environment):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL,
                              env={**os.environ, **environment})
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def model(self, name="model", seed=1, count=6, rows=256):
        """A folder with a container and a text."""
        folder = self.directory / "sources" / name
        folder.mkdir(parents=True)
        random = numpy.random.default_rng(seed)
        save_file({f"layers.{layer}.weight": random.standard_normal((rows, 512), dtype=numpy.float32) for layer in range(count)},
                  folder / "model.safetensors")
        (folder / "config.json").write_text(f'{{"seed": {seed}}}\n')
        for path in folder.iterdir():
            path.chmod(0o644)
        return folder

    def store(self, source, name="store", collection="acme/m"):
        store = self.directory / name
        if not store.exists():
            self.run("init", store)
        self.run("import", store, collection, *sorted(source.iterdir()))
        return store

    def remote(self, store, *options, collection="acme/m", name="models/demo"):
        """Pushes a collection to a directory that a bucket can serve; its URL as a directory."""
        folder = self.directory / "buckets" / name
        created = [] if folder.exists() else ["--create"]
        folder.mkdir(parents=True, exist_ok=True)
        url = f"file://{folder}"
        self.run("push", store, collection, url, *created, *options)
        return url

    # Volumes, as the kubelet asks for them.

    def place(self, name):
        """A directory for a volume, new at each call, below the directories in which the kubelet makes those for pods and stages."""
        below = {"pod": "pods/volumes/kubernetes.io~csi", "globalmount": "plugins/kubernetes.io/csi"}.get(name, "")
        path = self.directory / "kubelet" / below / f"{name}-{next(self.numbers)}"
        path.mkdir(parents=True)
        return path

    def stage(self, volume, context, secrets=None, mode=MULTI_NODE_READER_ONLY, at=None):
        at = at or self.place("globalmount")
        self.client.NodeStageVolume(volume_id=volume, staging_target_path=str(at), volume_capability=capability(mode), secrets=secrets,
                                    volume_context=context)
        return at

    def publish(self, volume, staged, context, mode=MULTI_NODE_READER_ONLY, readonly=False, at=None, secrets=None):
        at = at or self.place("pod") / "mount"
        self.client.NodePublishVolume(volume_id=volume, staging_target_path=str(staged) if staged else "", target_path=str(at),
                                      volume_capability=capability(mode), readonly=readonly, volume_context=context, secrets=secrets)
        return at

    def unpublish(self, volume, at):
        self.client.NodeUnpublishVolume(volume_id=volume, target_path=str(at))

    def unstage(self, volume, at):
        self.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(at))

    # The machine.

    def mounts(self):
        """Device and place of each tierfs below the directory, as this mount namespace has them."""
        found = []
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, kind = line.partition(" - ")
            device, point = fields.split(" ")[2], fields.split(" ")[4].encode().decode("unicode_escape")
            if kind.startswith("fuse") and point.startswith(f"{self.directory}/"):
                found.append((device, point))
        return found

    def connections(self):
        """Devices of the mounts: one for each daemon."""
        return {device for device, _ in self.mounts()}

    def daemons(self):
        """Processes that serve mounts below the directory, without those that only keep a device for one."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    if b"--announce" in words and str(self.directory).encode() in b"\0".join(words):
                        found.append(int(entry.name))
        return found

    def clear(self):
        """Ends the plugin and its daemons, and unmounts."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        marks = [str(self.directory).encode()]
        for _ in range(3):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    with contextlib.suppress(OSError):
                        line, name = (entry / "cmdline").read_bytes(), os.readlink(entry / "exe")
                        if any(mark in line for mark in marks) and Path(name).name.startswith("tierfs"):
                            os.kill(int(entry.name), signal.SIGKILL)
            for _, point in reversed(self.mounts()):
                LIBC.umount2(os.fsencode(point), 2)
            if not self.mounts() and not self.daemons():
                return
            time.sleep(0.1)

    # Checks.

    @contextlib.contextmanager
    def check(self, what):
        """Notes a failure and goes on with the next check."""
        self.checked += 1
        try:
            yield
        except Exception as error:  # noqa: BLE001 each failure is reported
            text = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.RpcError) else "".join(traceback.format_exception(error)[-3:])
            self.failures.append(f"{what}: {text}")

    def refused(self, what, codes, call, **fields):
        """Checks that a call fails with one of these codes, and says why."""
        codes = codes if isinstance(codes, tuple) else (codes,)
        with self.check(what):
            try:
                call(**fields)
            except grpc.RpcError as error:
                assert error.code() in codes, f"{error.code().name} instead of {[code.name for code in codes]}: {error.details()}"
                assert error.details(), "the error has no text"
                for secret in [KEYS["AWS_SECRET_ACCESS_KEY"]]:
                    assert secret not in error.details(), f"the error has a secret: {error.details()}"
                return
            raise AssertionError(f"succeeded instead of failing with {[code.name for code in codes]}")


def same_trees(found, source):
    """Compares each file of the source with the published one."""
    for path in sorted(Path(source).rglob("*")):
        if path.is_file():
            done = subprocess.run(["cmp", path, Path(found) / path.relative_to(source)], capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def node():
    """The node of a script; prints the failures of its checks and ends with 1 if there were any."""
    program, directory = sys.argv[1], Path(sys.argv[2])
    machine = Node(program, directory)
    try:
        yield machine
    except Exception:  # noqa: BLE001 the failures before it are told too
        machine.failures.append(traceback.format_exc())
    finally:
        machine.clear()
    if machine.failures:
        print(f"{len(machine.failures)} of {machine.checked} checks failed:", *machine.failures, sep="\n- ")
        print("log of the plugin:", (directory / "plugin.log").read_text()[-4000:], sep="\n")
        sys.exit(1)
    print(f"{machine.checked} checks passed")


def remove(path):
    shutil.rmtree(path, ignore_errors=True)
