"""Does a quantized model read as the reference decodes it?

    quantized.py SOURCE.safetensors MOUNTED_DIR --tier q8|q7|q5|q3 [--encoder absmax|best] [--only-large] [--block-bytes N]

For every float tensor of the source, the mounted file and the container's range must hold what
tests/golden/reference.py gives for encoding and decoding, bit for bit (absmax), or must err no more than that in any
group (best). Other tensors must be unchanged. --only-large: imported without `:all`, so that small, flat and kept
tensors stay exact. Before that the vectorized codec here is held against reference.py itself. Exits 1 at the first difference.
"""
import argparse
import sys
from pathlib import Path

import numpy as np

from weights import NUMPY_TYPES, fail, header, mapped, mounted_file, same_bytes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import reference  # noqa: E402

GROUP = 64
FLOATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
LARGE_TENSOR_BYTES = 16 << 20
BLOCK_BYTES_SMALL, BLOCK_BYTES_LARGE = 16 << 10, 128 << 10
ELEMENTS_MIN = 65536
KEPT_NAMES = ("norm", "scale", "bias", "router", "gate", "embed", "lm_head")
# A group's error is a sum of float64 squares; two ways to sum them may differ by this much of it.
ERROR_SLACK = 1e-6


def decoded(x: np.ndarray, bits: int, block_elements: int) -> np.ndarray:
    """The array after absmax encoding and decoding, for blocks of block_elements (a multiple of the group).

    Blocks with a non-finite value or a subnormal scale stay exact.
    """
    assert block_elements % GROUP == 0
    q = np.float32(reference.QMAX[bits])
    padded = np.zeros(-(-x.size // GROUP) * GROUP, np.float32)
    padded[: x.size] = x.astype(np.float32)
    groups = padded.reshape(-1, GROUP)
    largest = np.max(np.abs(groups), axis=1, initial=0)
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        scale = largest / q
        zero = largest == 0
        exact_group = ~np.isfinite(largest) | (~zero & (scale < np.finfo(np.float32).tiny))
        divisor = np.where(zero | exact_group, np.float32(1), scale)
        scale = np.where(zero, np.float32(0), scale)
        # Whole numbers lose the sign of a rounded -0.3, as codes do.
        codes = np.clip(np.rint(groups / divisor[:, None]), -q, q)
        codes[exact_group] = 0
        out = (codes.astype(np.int8).astype(np.float32) * scale[:, None]).reshape(-1)[: x.size].astype(x.dtype)
    groups_a_block = block_elements // GROUP
    for block in np.unique(np.nonzero(exact_group)[0] // groups_a_block):
        span = slice(int(block) * block_elements, (int(block) + 1) * block_elements)
        out[span] = x[span]
    return out


def reference_decoded(x: np.ndarray, dtype: str, bits: int, block_elements: int) -> np.ndarray:
    """The same, by reference.py, one block after another."""
    out = []
    for start in range(0, x.size, block_elements):
        block = x[start : start + block_elements]
        try:
            if not np.isfinite(block.astype(np.float32)).all():
                raise ValueError
            out.append(reference.decode_block(reference.encode_block_absmax(block.astype(np.float32), bits), bits, block.size, dtype))
        except ValueError:
            out.append(block)
    return np.concatenate(out)


def check_against_reference() -> int:
    """Random small arrays: lengths that do not fill a group or block, zeros, outliers, non-finite values, subnormal scales."""
    rng = np.random.default_rng(5)
    cases = 0
    for dtype, numpy_type in reference.DTYPES.items():
        for bits in reference.QMAX:
            for size in (1, 63, 64, 65, 256, 257, 1000):
                x = reference.sample(rng, size, dtype)
                if size >= 256:
                    x[70:76] = -np.array([0, 1, 2, 3, 4, 5]).astype(numpy_type) * numpy_type(0.5)
                if size == 1000:
                    x[300], x[900] = np.float32("nan"), np.float32("-inf")
                    x[512:640] = numpy_type(1e-44) if dtype == "f32" else numpy_type(0)
                for block_elements in (64, 256):
                    got = decoded(x, bits, block_elements)
                    wanted = reference_decoded(x, dtype, bits, block_elements)
                    if got.dtype != wanted.dtype or got.tobytes() != wanted.tobytes():
                        fail(f"this script disagrees with reference.py: {dtype}, {bits} bits, {size} values, blocks of {block_elements}")
                    cases += 1
    return cases


def group_errors(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Sum of squared differences of each group."""
    padded = np.zeros(-(-got.size // GROUP) * GROUP, np.float64)
    padded[: got.size] = got.astype(np.float64) - wanted.astype(np.float64)
    return (padded.reshape(-1, GROUP) ** 2).sum(axis=1)


def is_touched(name: str, shape: tuple[int, ...], only_large: bool) -> bool:
    if not only_large:
        return True
    elements = int(np.prod(shape, dtype=np.int64))
    return len(shape) >= 2 and elements >= ELEMENTS_MIN and not any(kept in name.lower() for kept in KEPT_NAMES)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source", type=Path)
    arguments.add_argument("mounted", type=Path)
    arguments.add_argument("--tier", required=True, choices=("q8", "q7", "q5", "q3"))
    arguments.add_argument("--encoder", default="absmax", choices=("absmax", "best"))
    arguments.add_argument("--only-large", action="store_true")
    arguments.add_argument("--block-bytes", type=int)
    given = arguments.parse_args()
    bits = int(given.tier[1:])
    cases = check_against_reference()

    container = given.mounted / given.source.name
    source, got = mapped(given.source), mapped(container)
    if got.size != source.size:
        fail(f"{container}: {got.size} bytes, expected {source.size}")
    tensors = header(given.source)
    if header(container) != tensors:
        fail(f"{container}: its header names other tensors, types, shapes or offsets than {given.source}")
    quantized, squares, values = 0, 0.0, 0
    for tensor in tensors.values():
        raw = source[tensor.start : tensor.end]
        from_file, from_container = mapped(mounted_file(given.mounted, tensor.name)), got[tensor.start : tensor.end]
        same_bytes(f"{tensor.name}, its file against its range of the container", from_file, from_container)
        if tensor.dtype not in FLOATS or not is_touched(tensor.name, tensor.shape, given.only_large):
            same_bytes(f"{tensor.name}, which stays exact", from_file, raw)
            continue
        x = np.frombuffer(raw.tobytes(), NUMPY_TYPES[tensor.dtype])
        y = np.frombuffer(from_file.tobytes(), NUMPY_TYPES[tensor.dtype])
        block_bytes = given.block_bytes or (BLOCK_BYTES_LARGE if raw.size >= LARGE_TENSOR_BYTES else BLOCK_BYTES_SMALL)
        wanted = decoded(x, bits, block_bytes // x.itemsize)
        if given.encoder == "absmax":
            same_bytes(f"{tensor.name} in {given.tier}", from_file, wanted.view(np.uint8))
        else:
            ours, absmax = group_errors(y, x), group_errors(wanted, x)
            worse = ours > absmax * (1 + ERROR_SLACK)
            if worse.any():
                at = int(np.argmax(worse))
                fail(f"{tensor.name}, group {at}: squared error {ours[at]:.6g}, absmax has {absmax[at]:.6g}")
        finite = np.isfinite(x.astype(np.float32))
        squares += float(((y[finite].astype(np.float64) - x[finite].astype(np.float64)) ** 2).sum())
        values += int(finite.sum())
        quantized += 1
    if quantized == 0:
        fail(f"{given.source}: no tensor of it is quantized, so nothing was checked")
    rms = (squares / max(values, 1)) ** 0.5
    print(f"ok: {quantized} of {len(tensors)} tensors in {given.tier} ({given.encoder}), RMS error {rms:.6g}; {cases} cases agree with reference.py")


if __name__ == "__main__":
    main()
