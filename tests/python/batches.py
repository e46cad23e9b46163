"""Embedding batches for tests, with the independent writer of tests/golden: `make` writes one and its parts,
`check` verifies every hash of a batch and of its index. Nothing of the program is used."""
import struct
import sys
from pathlib import Path

import numpy as np
from blake3 import blake3

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import reference  # noqa: E402


def make(stem: str, kind: str, count: int, dimension: int, experts: int, top_k: int) -> None:
    """kind: `plain` (version 2, hashes of the payload), `big` (version 1), `mixed` (both, aux of varying lengths)."""
    rng = np.random.default_rng(count * 31 + dimension)
    vectors = rng.standard_normal((count, dimension)).astype("<f4")
    weights = rng.random((count, experts)).astype("<f4")
    selected = rng.integers(0, 256, (count, top_k)).astype("u1")
    records = []
    for i in range(count):
        little = kind == "plain" or (kind == "mixed" and i % 5 != 0)
        aux = rng.bytes(int(rng.integers(0, 9000))) if kind == "mixed" and i % 7 == 3 else b""
        own = None if little and i % 3 != 1 else i * 0x0123456789AB
        records.append(reference.cgeb_record(vectors[i], weights[i], selected[i].tolist(), i, aux, little, own))
    data, index = reference.cgeb_file(records)
    for suffix, raw in [(".cgeb", data), (".cgei", index), (".x", vectors.tobytes()), (".w", weights.tobytes()),
                        (".s", selected.tobytes())]:
        Path(stem + suffix).write_bytes(raw)


def check(batch: str, index: str) -> None:
    """Verifies all hashes; prints how many records there are, and how many hashes covered a payload."""
    data, head = Path(batch).read_bytes(), Path(index).read_bytes()
    magic, version, count, digest = struct.unpack(">4sH2xQQ", head[:24])
    assert (magic, version) == (b"CGEI", 1)
    assert digest == int.from_bytes(blake3(data).digest()[:8], "big"), "the data hash of the index"
    offsets = struct.unpack(f">{count}Q", head[24:])
    covered = 0
    for offset, end in zip(offsets, (*offsets[1:], len(data))):
        fields = struct.unpack(">4sHHIBB2xQQQQ16x", data[offset:offset + 64])
        magic, _, flags, dimension, experts, top_k, stored, _, aux_offset, aux_length = fields
        assert magic == b"CGEB"
        fixed = 64 + 4 * dimension + 4 * experts + top_k
        last = aux_offset + aux_length if aux_offset else fixed
        padded = -(-last // 4096) * 4096
        assert end - offset in ({padded, last} if end == len(data) else {padded}) and not any(data[offset + last:end])
        if flags & 2:
            payload = data[offset + 64:offset + fixed] + data[offset + aux_offset:offset + last] * bool(aux_offset)
            assert stored == int.from_bytes(blake3(payload).digest()[:8], "big"), f"the record at byte {offset}"
            covered += 1
    print(count, covered)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        check(*sys.argv[2:])
