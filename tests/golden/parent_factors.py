"""A small matrix in bf16 as its parent plus a product of rank 2: the record of factor.dat, and the sums.

    python3 tests/golden/parent_factors.py     (numpy, ml_dtypes)

NumPy's SVD makes the factors. The sums are computed with the additions and roundings that FORMAT.md states, one by one.
"""

from pathlib import Path

import ml_dtypes
import numpy as np

FOLDER = Path(__file__).parent
OBJECT, DIFFERENCE = 0x0102030405060708090A0B0C0D0E0F10, 0xFFFFFFFE
M, N, K = 48, 40, 2

rng = np.random.default_rng(11)
parent = (0.02 * rng.standard_normal((M, N))).astype(ml_dtypes.bfloat16)
merge = rng.standard_normal((M, K)) @ rng.standard_normal((K, N))
merge *= 0.2 * np.linalg.norm(parent.astype("f8")) / np.linalg.norm(merge)
child = (parent.astype("f8") + merge).astype(ml_dtypes.bfloat16)

left, scales, right = np.linalg.svd(child.astype("f8") - parent.astype("f8"), full_matrices=False)
left, right = left[:, :K], right[:K]
of_left, of_right = abs(left).max(axis=0), abs(right).max(axis=1)
u = (left / of_left).astype("<f2")
s = (scales[:K] * of_left * of_right).astype("<f4")
v = (right / of_right[:, None]).astype("<f2")

head = OBJECT.to_bytes(16, "little") + b"".join(int(x).to_bytes(4, "little") for x in (DIFFERENCE, M, N, K))
product = np.zeros((M, N), "f4")
for r in range(K):
    weight = u[:, r].astype("f4") * s[r]
    product = product + weight[:, None] * v[r].astype("f4")[None, :]
assert product.dtype == np.float32
sums = (product + parent.astype("f4")).astype(ml_dtypes.bfloat16)

for name, content in [
    ("rec", head + u.tobytes() + s.tobytes() + v.tobytes()),
    ("parent", parent.tobytes()),
    ("child", child.tobytes()),
    ("sums", sums.tobytes()),
]:
    (FOLDER / f"parent_factor.{name}").write_bytes(content)
error = np.linalg.norm(sums.astype("f8") - child.astype("f8")) / np.linalg.norm(child.astype("f8"))
print(f"error {error:.5f}, {np.mean(sums != child):.3f} of the elements differ")
