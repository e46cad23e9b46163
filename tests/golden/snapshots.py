"""Makes the golden records of runs of slots, independently of tierfs.

    target/venv/bin/python tests/golden/snapshots.py
"""
import struct
from pathlib import Path

from reference import DTYPE_CODE, crc32c, log_record

FOLDER = Path(__file__).resolve().parent
OBJECT = 0x0123456789ABCDEF0011223344556677


def slot_run(block, dtype, tier, bits, encoding, group_len, shape, created_at, offset, flags, blocks, seq):
    """blocks: (CRC32C, value as 4 bytes) of each. Returns the slot and the array, filled to whole slots."""
    array = b"".join(struct.pack("<I", crc) + value for crc, value in blocks)
    dims = list(shape) + [0] * (8 - len(shape))
    body = {
        21: bytes([DTYPE_CODE[dtype], tier, bits]),
        30: struct.pack("<Q", created_at),
        38: struct.pack("<Q", offset),
        46: struct.pack("<II", len(blocks), crc32c(array)),
        70: bytes([0, len(shape)]),
        72: struct.pack("<8I", *dims),
        104: bytes([encoding, flags]),
        106: struct.pack("<H", group_len),
    }
    return log_record(9, OBJECT, block, body, 2, seq) + array + bytes(-len(array) % 128)


def runs():
    scales = [(0x11111111 * (i + 1), struct.pack("<f", 0.25 * (i + 1))) for i in range(3)]
    lengths = [(7 + i, struct.pack("<I", 8000 + i)) for i in range(17)]
    exact = [(0xFFFFFFFF, bytes(4)), (0, bytes(4))]
    return b"".join([
        slot_run(3, "bf16", 2, 5, 1, 64, [512, 64], 1_700_000_000, 65536, 0, scales, 50),
        slot_run(0, "bf16", 0, 16, 16, 0, [9], 1_700_000_001, 128, 0, lengths, 51),
        slot_run(9, "f32", 0, 32, 0, 0, [], 1_700_000_002, 0, 2, exact, 90),
    ])


(FOLDER / "slot_runs.rec").write_bytes(runs())
