"""Makes the golden records of runs of slots, the golden manifest and the golden version, independently of tierfs.

    target/venv/bin/python tests/golden/snapshots.py
"""
import struct
from pathlib import Path

from blake3 import blake3
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


def text(value):
    value = value.encode()
    return struct.pack("<I", len(value)) + value


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed(number):
    return varint(2 * number if number >= 0 else -2 * number - 1)


def snapshot_file(kind, number, size, mtime, extents):
    """extents: (offset, piece, offset in the piece, bytes)."""
    out = struct.pack("<BQQqI", kind, number, size, mtime, len(extents))
    end, before, end_in_piece = 0, 0, 0
    for offset, piece, piece_offset, length in extents:
        expected = end_in_piece if piece == before else 0
        out += varint(offset - end) + signed(piece - before) + signed(piece_offset - expected) + varint(length)
        end, before, end_in_piece = offset + length, piece, piece_offset + length
    return out


def manifest_body():
    pieces = [(0x10, 7, 300, 900, 1), (0x20, 0, 8 << 20, 8 << 20, 0), (0x30, 0xFFFFFFFF, 70000, 70000, 0), (0x40, 8, 512, 1024, 1),
              (0x50, 0, 200, 40000, 2)]
    # From the second piece, 30,000 bytes of BF16 at 64; the rest has no base.
    differences = [struct.pack("<I", 4) + bytes([0x51]) * 32 + struct.pack("<QI", 16, 2) + struct.pack("<IBII", 30000, DTYPE_CODE["bf16"], 1, 64)
                   + struct.pack("<IBII", 10000, DTYPE_CODE["u8"], 0xFFFFFFFF, 0)]
    log, data, tier, delta, factor = range(5)
    files = [
        snapshot_file(log, 0, 900, 0, [(0, 0, 0, 900)]),
        snapshot_file(data, 1, (8 << 20) + 600, 1_700_000_000_123_456_789, [(0, 2, 0, 500), (600, 1, 0, 8 << 20)]),
        snapshot_file(data, 0x1F00000000, 1 << 40, -1, [(8, 4, 0, 40000)]),
        snapshot_file(tier, 2, 64000, 0, [(0, 2, 500, 63000), (63488, 2, 63500, 64)]),
        snapshot_file(delta, 0, 64, 0, [(0, 2, 69000, 64)]),
        snapshot_file(factor, 0, 20, 0, [(10, 2, 0, 10)]),
        snapshot_file(log, 0, 1024, 0, [(0, 3, 0, 1024)]),
        snapshot_file(tier, 2, 4096, 0, [(4000, 2, 69900, 96)]),
        snapshot_file(data, 1, (8 << 20) + 600, 1_700_000_000_123_456_789, [(0, 2, 0, 500)]),
    ]
    return b"".join([
        text("acme"), text("llama 3"), struct.pack("<3I", 1000, 100, 0o750), struct.pack("<3I", 1001, 101, 0o2775),
        struct.pack("<Q", 1_700_000_000), text("first \u00e9"), text("tierfs 0.1.0"),
        struct.pack("<I", 1), text("acme"), text("base"), struct.pack("<Q", 3),
        struct.pack("<I", len(pieces)),
        *(bytes([name]) * 32 + struct.pack("<IIIB", *rest) for name, *rest in pieces),
        struct.pack("<I", len(differences)), *differences,
        struct.pack("<I", len(files)), *files,
        struct.pack("<I", 1), text("q5"), struct.pack("<IIII", 6, 2, 7, 8), bytes(range(32)),
    ])


def zstd_frame(data):
    """A frame of raw blocks, as RFC 8878 has them: one segment, four bytes of content size, no checksum."""
    half = len(data) // 2
    blocks = [(0, data[:half]), (1, data[half:])]
    heads = [(last | len(block) << 3).to_bytes(3, "little") for last, block in blocks]
    body = b"".join(head + block for head, (_, block) in zip(heads, blocks))
    return struct.pack("<IBI", 0xFD2FB528, 0xA0, len(data)) + body


def manifest(body):
    head = b"TFSN" + struct.pack("<HH", 1, 0) + bytes(range(16)) + struct.pack("<QQ", 18, 17) + bytes([0xAB]) * 32
    head += bytes(range(100, 116)) + struct.pack("<QQ", 1_700_000_000_000_000_001, len(body))
    whole = head + zstd_frame(body)
    return whole + blake3(whole).digest()


def difference():
    """A base, a piece that is a difference from it, and the bytes that the piece stands for."""
    base = bytes(range(256)) * 2
    weights = bytearray(base[8:408])
    changes = [(3, 1), (150, -2), (199, 300)]
    sparse, before = b"", 0
    for element, change in changes:
        old = int.from_bytes(weights[2 * element:2 * element + 2], "little")
        weights[2 * element:2 * element + 2] = ((old + change) % 65536).to_bytes(2, "little")
        sparse += varint(element - before) + signed(change)
        before = element + 1
    ids = bytes(range(200, 216))
    raw = bytes(weights) + b"extra" + base[100:130] + ids
    stretches = [("bf16", 400, 0, 8), ("u8", 5, 0xFFFFFFFF, 0), ("u8", 30, 0, 100), ("i64", 16, 0, 0)]
    codes = DTYPE_CODE | {"i64": 8}
    head = struct.pack("<BBHI", 1, 1, 0, len(stretches)) + blake3(raw).digest()
    head += blake3(base).digest() + struct.pack("<IIIB", 7, len(base), len(base), 0)
    for dtype, length, piece, offset in stretches:
        head += struct.pack("<IBII", length, codes[dtype], piece, offset)
    body = head + b"\x01" + struct.pack("<I", len(sparse)) + sparse + b"extra" + b"\x00" + b"\x03" + ids
    return base, zstd_frame(body), raw


def version():
    """A file of the next version, the file of a version as its difference from that and another one, and its bytes."""
    base, tier = bytes(range(256)) * 2, bytes(range(60, 200))
    weights, sparse, before = bytearray(base[8:408]), b"", 0
    for element, change in [(3, 1), (150, -2), (199, 300)]:
        old = int.from_bytes(weights[2 * element:2 * element + 2], "little")
        weights[2 * element:2 * element + 2] = ((old + change) % 65536).to_bytes(2, "little")
        sparse += varint(element - before) + signed(change)
        before = element + 1
    ids = bytes(range(200, 216))
    # Zeros of more than one chunk, and one whose bytes are there as they are.
    zeros, literal = bytes(131_072 + 10), b"extra"
    raw = bytes(weights) + literal + base[100:130] + zeros + ids
    chunks = [b"\x01" + struct.pack("<I", len(sparse)) + sparse, b"\x03" + literal, b"\x00", b"\x00", b"\x00", b"\x03" + ids]
    none = 0xFFFFFFFF
    stretches = [(400, "bf16", 0, 8), (5, "u8", none, 0), (30, "u8", 0, 100), (len(zeros), "u8", none, 0), (16, "i64", 1, 64)]
    names = [b"0000000000000009", b"tier0.dat"]
    body = b"".join(bytes([len(name)]) + name for name in names)
    for length, dtype, index, offset in stretches:
        body += struct.pack("<QBIQ", length, (DTYPE_CODE | {"i64": 8})[dtype], index, offset)
    body += b"".join(struct.pack("<I", len(chunk)) for chunk in chunks)
    changed = 3 * 2 + len(ids)
    head = b"TFVD" + struct.pack("<HHQQQ", 1, len(names), 4, len(raw), changed)
    head += struct.pack("<III", len(stretches), len(chunks), 44 + len(body) + 4) + body
    return base, tier, head + struct.pack("<I", crc32c(head)) + b"".join(chunks), raw


(FOLDER / "slot_runs.rec").write_bytes(runs())
(FOLDER / "manifest.body").write_bytes(manifest_body())
(FOLDER / "manifest.tfsn").write_bytes(manifest(manifest_body()))
for name, content in zip(["base", "piece", "raw"], difference()):
    (FOLDER / f"difference.{name}").write_bytes(content)
for name, content in zip(["base", "tier", "difference", "raw"], version()):
    (FOLDER / f"version.{name}").write_bytes(content)
(FOLDER / "version.toml").write_text(
    f'created = {1 << 60}\nbytes = 5\nstate = "{"ab" * 32}"\nchanged = 22\nkeyframes = ["tier0.dat", "0000000000000009"]\n'
)
