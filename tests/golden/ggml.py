"""Writes ggml.bin: blocks of random bytes of each quantized type of ggml, and the f32 that the package gguf makes of them.

    target/venv/bin/python tests/golden/ggml.py

For each type: the length of its name (u8), the name, the number of blocks (u32), the blocks, the values.
"""
import struct
from pathlib import Path

import gguf
import numpy as np

TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
# Offsets of f16 numbers in a block. Random bits there would often be NaN or infinite.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
SPECIAL = [0.0, -0.0, 6e-8, -6e-8, 65504.0, -65504.0, np.inf, -np.inf]

random = np.random.default_rng(7)
out = bytearray()
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = 2048 // elements + 16
    blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = (random.standard_normal(count) * 0.1).astype("<f2")
        scales[:len(SPECIAL)] = np.array(SPECIAL, "<f2")
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(count, 2)
    if name == "MXFP4":
        blocks[:4, 0] = [0, 1, 2, 254]
    with np.errstate(all="ignore"):
        values = gguf.dequantize(blocks, kind).astype("<f4")
    out += bytes([len(name)]) + name.encode() + struct.pack("<I", count) + blocks.tobytes() + values.tobytes()
(Path(__file__).parent / "ggml.bin").write_bytes(out)
