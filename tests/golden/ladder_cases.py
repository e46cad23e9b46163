"""Writes ladder.txt: for each of 126 blocks, the payload that ladder.py makes of it, as its length and BLAKE3; or
difference.txt: the same for the differences of 81 blocks from others.

    python3 tests/golden/ladder_cases.py > tests/golden/ladder.txt
    python3 tests/golden/ladder_cases.py differences > tests/golden/difference.txt

tests/codec/ladder.rs and tests/codec/difference.rs make the same blocks from the same generator, so no payload is
stored here.
"""
import struct
import sys
from pathlib import Path

import blake3
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import ladder

LENGTHS = [1, 63, 64, 65, 513, 4096, 8192, 65535, 65536]
N = None
MASK = (1 << 64) - 1


def splitmix(seed, count):
    """SplitMix64: `count` numbers as uint64."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def bells(seed, n):
    """Integers around 0, up to 131,070 in magnitude: the sum of four 16-bit numbers less its mean."""
    r = splitmix(seed, n)
    parts = [(r >> np.uint64(16 * i) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4)]
    return sum(parts) - 131070


def f32(seed, n):
    low = (splitmix(seed + 1, n) & np.uint64(63)).astype(np.int64)
    return ((bells(seed, n) * 64 + low).astype("<f4") * np.float32(2.0**-28)).astype("<f4")


def bf16_bits(seed, n):
    return (f32(seed, n).view("<u4") >> 16).astype("<u2")


def every(n):
    return ((np.arange(n, dtype=np.uint64) * np.uint64(40503)) & np.uint64(0xFFFF)).astype("<u2")


def special(n):
    odd = np.array([0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x0001, 0x8001, 0x007F], "<u2")
    bits = bf16_bits(14, n)
    at = splitmix(15, n) % np.uint64(7) == 0
    bits[at] = odd[(splitmix(16, n) % np.uint64(10)).astype(int)][at]
    return bits


def rare(n):
    at = splitmix(12, n) % np.uint64(200) == 0
    return np.where(at, bf16_bits(13, n), 0x3F80).astype("<u2")


def f64(seed, n):
    low = (splitmix(seed + 1, n) & np.uint64(0xFFFFFF)).astype(np.int64)
    return ((bells(seed, n) << 24) + low).astype("<f8") * 2.0**-46


def float8(seed, n, mantissa):
    r = splitmix(seed, n)
    exponent = (r & np.uint64(3)) + (r >> np.uint64(2) & np.uint64(3)) + np.uint64(3)
    sign = r >> np.uint64(8) & np.uint64(1)
    low = r >> np.uint64(16) & np.uint64((1 << mantissa) - 1)
    return (sign << np.uint64(7) | exponent << np.uint64(mantissa) | low).astype(np.uint8)


CASES = [
    ("bf16", 2, 1, [N, 0], lambda n: bf16_bits(1, n)),
    ("f16", 2, 1, [N, 3], lambda n: f32(2, n).astype("<f2")),
    ("f32", 4, 1, [N, N, N, 0], lambda n: f32(3, n)),
    ("f32 of bf16", 4, 1, [0, 0, N, 0], lambda n: f32(4, n).view("<u4") & np.uint32(0xFFFF0000)),
    ("f64", 8, 1, [N, N, N, N, N, N, N, 0], lambda n: f64(5, n)),
    ("f64 of f32", 8, 1, [0, 0, 0, 0, N, N, N, 0], lambda n: f32(6, n).astype("<f8")),
    ("i8", 1, 0, [3], lambda n: (bells(7, n) >> 11).astype(np.int8)),
    ("f8_e4m3", 1, 1, [4], lambda n: float8(8, n, 3)),
    ("f8_e5m2", 1, 1, [3], lambda n: float8(9, n, 2)),
    ("noise", 2, 1, [N, 0], lambda n: (splitmix(10, n) & np.uint64(0xFFFF)).astype("<u2")),
    ("constant", 2, 1, [N, 0], lambda n: np.full(n, 0xBF80, "<u2")),
    ("rare", 2, 1, [0, 0], rare),
    ("each bf16", 2, 1, [0, 0], every),
    ("special", 2, 1, [N, 0], special),
]


def tuned(seed, n, shift):
    """Floats, and the same with noise of 2^-shift of their deviation."""
    base = f32(seed, n)
    return base, base + f32(seed + 2, n) * np.float32(2.0**-shift)


def pair(seed, shift, cast):
    return lambda n: tuple(cast(version) for version in tuned(seed, n, shift))


def to_bf16(values):
    return (values.view("<u4") >> 16).astype("<u2")


def rarely(n):
    base = bf16_bits(60, n)
    at = splitmix(61, n) % np.uint64(100) == 0
    return base, np.where(at, bf16_bits(62, n), base).astype("<u2")


# Name, element type, the base and the block.
DIFFERENCES = [
    ("bf16 near", "BF16", pair(30, 10, to_bf16)),
    ("bf16 farther", "BF16", pair(34, 6, to_bf16)),
    ("f16 near", "F16", pair(38, 10, lambda values: values.astype("<f2"))),
    ("f32 near", "F32", pair(42, 10, lambda values: values)),
    ("f32 of bf16", "F32", pair(46, 10, lambda values: values.view("<u4") & np.uint32(0xFFFF0000))),
    ("the same", "BF16", lambda n: (bf16_bits(50, n), bf16_bits(50, n))),
    ("rarely", "BF16", rarely),
    ("each", "BF16", lambda n: (every(n), every(n)[::-1])),
    ("special", "F16", lambda n: (special(n), bf16_bits(52, n))),
]


def difference(base, block, width):
    """z of two versions: the difference of their places in the order of floats, its sign in the lowest bit."""
    shift = 8 * width - 16
    u = lambda x: np.where(x >> 15 == 1, x ^ 0xFFFF, x ^ 0x8000)
    whole = [np.frombuffer(version, f"<u{width}").astype(np.int64) for version in (base, block)]
    d = (u(whole[1] >> shift) - u(whole[0] >> shift)) % 65536
    z = np.where(d < 32768, 2 * d, 2 * (65536 - d) - 1)
    return (z << shift | whole[1] % (1 << shift)).astype(f"<u{width}").tobytes()


def write_differences():
    print("# name; element type; elements; payload bytes; BLAKE3")
    for name, dtype, make in DIFFERENCES:
        width = 4 if dtype == "F32" else 2
        for n in LENGTHS:
            base, block = (np.ascontiguousarray(version).tobytes() for version in make(n))
            low = [0, 0] if width == 2 else [N, N, 0, 0]
            payload = ladder.encode(difference(base, block, width), width, 0, low)
            print(f"{name}; {dtype}; {n}; {len(payload)}; {blake3.blake3(payload).hexdigest()}")


def write_payloads():
    print("# name; bytes an element; rotated; low bits of each plane, - for raw; elements; payload bytes; BLAKE3")
    for name, w, rot, low, make in CASES:
        for n in LENGTHS:
            raw = np.ascontiguousarray(make(n)).tobytes()
            payload = ladder.encode(raw, w, rot, low)
            assert ladder.decode(payload) == raw
            bits = ",".join("-" if l is None else str(l) for l in low)
            print(f"{name}; {w}; {rot}; {bits}; {n}; {len(payload)}; {blake3.blake3(payload).hexdigest()}")


if __name__ == "__main__":
    write_differences() if sys.argv[1:] == ["differences"] else write_payloads()
