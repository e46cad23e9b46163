"""Makes tests/golden/batches/: embedding batches whose last record has no padding.

The writer pads a file before each record, so that the record begins at a multiple of 4,096 bytes, and not after the
last one. A file of one record is the record alone. Needs numpy and blake3. Run: python tests/golden/batches.py
"""
import struct
from pathlib import Path

import numpy as np
from blake3 import blake3

HERE = Path(__file__).parent / "batches"
PAGE = 4096


def leading(data: bytes) -> int:
    return int.from_bytes(blake3(data).digest()[:8], "big")


def encode(vector, weights, selected, aux: bytes = b"", version: int = 1) -> bytes:
    """A record of version 1 with big-endian floats and a hash of its own, or of version 2 with little-endian floats."""
    order = ">f4" if version == 1 else "<f4"
    payload = vector.astype(order).tobytes() + weights.astype(order).tobytes() + bytes(selected)
    flags = 0 if version == 1 else 3
    offset = 64 + len(payload) if aux else 0
    head = b"CGEB" + struct.pack(">HHIBB2x", version, flags, len(vector), len(weights), len(selected))
    head += struct.pack(">QQQQ16x", leading(payload + aux), 1500, offset, len(aux))
    return head + payload + aux


def write(name: str, records: list[bytes]) -> None:
    data, offsets = bytearray(), []
    for record in records:
        data += bytes(-len(data) % PAGE)
        offsets.append(len(data))
        data += record
    index = b"CGEI" + struct.pack(">H2xQQ", 1, len(offsets), leading(bytes(data)))
    index += struct.pack(f">{len(offsets)}Q", *offsets)
    (HERE / f"{name}.cgeb").write_bytes(data)
    (HERE / f"{name}.cgei").write_bytes(index)


HERE.mkdir(exist_ok=True)
random = np.random.default_rng(17)
vectors = random.standard_normal((3, 1536)).astype(np.float32)
weights = random.random((3, 8)).astype(np.float32)
small = random.standard_normal((4, 48)).astype(np.float32)
write("three", [encode(v, w, [1, 5]) for v, w in zip(vectors, weights)])
write("single", [encode(vectors[0], weights[0], [0, 7])])
auxes = [b"", b"", bytes(range(256)) * 16, b"the end"]
write("aux", [encode(v, weights[0, :1], [3], aux, 2) for v, aux in zip(small, auxes)])
# The last record fills its page, so the file ends as every other batch does.
write("full", [encode(small[0], weights[0, :0], [], bytes(PAGE - 64 - 4 * 48), 2)])
vectors.tofile(HERE / "three.f32")
