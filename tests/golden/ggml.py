"""Writes ggml.bin: blocks of random bytes of each quantized type of ggml, and the f32 that the package gguf makes of them.

    target/venv/bin/python tests/golden/ggml.py

For each type: the length of its name (u8), the name, the number of blocks (u32), the blocks, the values.
"""
import struct
from pathlib import Path

import gguf
import numpy as np

TYPES = ("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4 "
         "Q1_0 Q2_0 TQ1_0 TQ2_0 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S NVFP4").split()
# Offsets of f16 numbers in a block. Random bits there would often be NaN or infinite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
          "Q1_0": [0], "Q2_0": [0], "TQ1_0": [52], "TQ2_0": [64], "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0],
          "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "NVFP4": []}
SPECIAL = [0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, np.inf, -np.inf]



def dequantize(blocks, name):
    """The values that gguf makes. It lacks two types, which are decoded as ggml-quants.c does."""
    if name == "Q1_0":
        bits = np.unpackbits(blocks[:, 2:], axis=-1, bitorder="little")
        return blocks[:, :2].copy().view("<f2").astype(np.float32) * np.where(bits == 1, 1, -1).astype(np.float32)
    if name == "Q2_0":
        codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
        codes = codes.reshape(len(blocks), 64).astype(np.float32) - 1
        return blocks[:, :2].copy().view("<f2").astype(np.float32) * codes
    return gguf.dequantize(blocks, gguf.GGMLQuantizationType[name])


random = np.random.default_rng(7)
out = bytearray()
for name in TYPES:
    elements, size = (64, 18) if name == "Q2_0" else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    count = 2048 // elements + 16
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = (random.standard_normal(count) * 0.1).astype("<f2")
        scales[:len(SPECIAL)] = np.array(SPECIAL, "<f2")
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    if name == "MXFP4":
        blocks[:4, 0] = [0, 1, 2, 254]
    if name == "NVFP4":
        blocks[:8, :4] = np.array([0, 1, 7, 8, 0x7e, 0x7f, 0x80, 0xff], np.uint8)[:, None]
    if name == "IQ1_M":
        # The upper four bits of four numbers are the scale, of which the exponent is in the last.
        blocks[:, 55] = blocks[:, 55] & 0x8f | 0x20
    with np.errstate(all="ignore"):
        values = dequantize(blocks, name).astype("<f4")
    out += bytes([len(name)]) + name.encode() + struct.pack("<I", count) + blocks.tobytes() + values.tobytes()
(Path(__file__).parent / "ggml.bin").write_bytes(out)
