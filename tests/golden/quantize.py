"""Writes quantize.bin: blocks of f32 with NaN, infinities and very small values, and the Q8_0 and Q4_0 that gguf makes of them.

    target/venv/bin/python tests/golden/quantize.py

The number of blocks (u32), the f32, the blocks of Q8_0, the blocks of Q4_0. The conversion of NaN and of numbers that do not
fit to integers is that of x86-64.
"""
import struct
from pathlib import Path

import gguf
import numpy as np

random = np.random.default_rng(11)
# Of other payloads the maximum of NumPy keeps some, by their places.
NANS = [0x7fc00000, 0xffc00000, 0x7f800001]


def bits(number):
    return np.array([number], "<u4").view("<f4")[0]


blocks = []
# One NaN of each kind in each place, and two of them.
for place in range(32):
    for number, nan in enumerate(NANS):
        block = (random.standard_normal(32) * 3).astype("<f4")
        block[place] = bits(nan)
        if number % 2:
            block[random.integers(32)] = bits(NANS[-number])
        blocks.append(block)
# Infinities, alone, of both signs and beside NaN.
for place in range(32):
    for others in ([], [-np.inf], [np.inf], [bits(NANS[1])]):
        block = random.standard_normal(32).astype("<f4")
        block[place] = np.inf if place % 2 else -np.inf
        for other in others:
            block[random.integers(32)] = other
        blocks.append(block)
# Magnitudes from the smallest number to the largest, with zeros of both signs.
for exponent in range(-150, 129):
    with np.errstate(all="ignore"):
        block = (random.uniform(-1, 1, 32) * 2.0**exponent).astype("<f4")
    block[random.integers(32)] = 0.0
    block[random.integers(32)] = -0.0
    blocks.append(block)
# Few steps of the smallest number, and scales around the least whose inverse is finite.
for step in range(1, 40):
    blocks.append((random.integers(-step, step + 1, 32) * 2.0**-149).astype("<f4"))
    for width in (127.0, 8.0):
        block = (random.uniform(-1, 1, 32) * 2.0**-128 * width).astype("<f4")
        block[step % 32] = width * (2.0**-128 + (step - 20) * 2.0**-149)
        blocks.append(block)
# Zeros of either sign first, the same magnitude with both signs, halves, the largest number.
for first in (0.0, -0.0):
    block = np.zeros(32, "<f4")
    block[16:] = -0.0
    block[0] = first
    blocks.append(block)
blocks += [np.full(32, -0.0, "<f4"), np.tile(np.array([3, -3], "<f4"), 16), np.tile(np.array([-3, 3], "<f4"), 16)]
blocks.append(np.concatenate([[127.0], np.arange(31) - 15.5]).astype("<f4"))
blocks.append(np.full(32, np.finfo(np.float32).max, "<f4"))

values = np.stack(blocks)
out = bytearray(struct.pack("<I", len(values)) + values.tobytes())
with np.errstate(all="ignore"):
    for name in ("Q8_0", "Q4_0"):
        out += gguf.quantize(values, gguf.GGMLQuantizationType[name]).tobytes()
(Path(__file__).parent / "quantize.bin").write_bytes(out)
