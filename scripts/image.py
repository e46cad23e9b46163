"""Writes an OCI archive of an image with one layer, which `podman load` and `docker load` take.

    python3 scripts/image.py ROOT ARCHITECTURE TAG ARCHIVE

ROOT is the directory with the files of the image, ARCHITECTURE its name in Go (amd64, arm64). Times are those of
SOURCE_DATE_EPOCH, and all files belong to root, so that the same files give the same archive.
"""

import gzip
import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile
import time

WHEN = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
OCI = "application/vnd.oci.image"


def archive_of(add) -> bytes:
    """The bytes of an uncompressed tar archive."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        add(archive)
    return content.getvalue()


def owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = WHEN
    return member


class Blobs:
    """Blobs by their digests."""

    def __init__(self) -> None:
        self.contents: dict = {}

    def add(self, media_type: str, content: bytes) -> dict:
        digest = hashlib.sha256(content).hexdigest()
        self.contents[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type: str, value: dict) -> dict:
        return self.add(media_type, json.dumps(value, indent=1).encode())


def path_of(descriptor: dict) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def main() -> None:
    root, architecture, tag, destination = sys.argv[1:]
    entries = sorted(path.relative_to(root) for path in pathlib.Path(root).rglob("*"))
    layer = archive_of(
        lambda archive: [archive.add(pathlib.Path(root) / path, str(path), False, filter=owned) for path in entries]
    )
    blobs = Blobs()
    packed = blobs.add(f"{OCI}.layer.v1.tar+gzip", gzip.compress(layer, 9, mtime=0))
    labels = {
        "org.opencontainers.image.title": "tierfs",
        "org.opencontainers.image.version": tag.rsplit(":", 1)[1],
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
    }
    config = blobs.add_json(f"{OCI}.config.v1+json", {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(WHEN)),
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/tierfs"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Labels": labels,
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        "history": [{"created_by": "scripts/image.py"}],
    })
    manifest = blobs.add_json(f"{OCI}.manifest.v1+json", {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.manifest.v1+json",
        "config": config,
        "layers": [packed],
        "annotations": labels,
    })
    index = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}.index.v1+json",
        "manifests": [manifest | {
            "platform": {"architecture": architecture, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": tag},
        }],
    }
    # `docker load` before version 25 reads this file.
    names = [{"Config": path_of(config), "RepoTags": [tag], "Layers": [path_of(packed)]}]
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index, indent=1).encode(),
        "manifest.json": json.dumps(names, indent=1).encode(),
        **blobs.contents,
    }

    def add(archive: tarfile.TarFile) -> None:
        for name, content in files.items():
            member = owned(tarfile.TarInfo(name))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))

    pathlib.Path(destination).write_bytes(archive_of(add))


main()
