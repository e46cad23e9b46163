"""Trains a small model, and writes a checkpoint of each step; a step changes 1 % of the elements.

Usage: checkpoints.py DIRECTORY TYPE STEPS WIDTH. Prints as JSON, for each tensor, how many elements differ between the
first and the last checkpoint, and for each step how many bytes of elements differ from the step before.
"""

import json
import sys

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

directory, dtype, steps, width = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
stored_as = {"bf16": ml_dtypes.bfloat16, "f32": np.float32}[dtype]
random = np.random.default_rng(7)
model = {
    "first.weight": random.normal(0, 0.03, (width, width)),
    "first.bias": np.zeros(width),
    "second.weight": random.normal(0, 0.03, (width, width)),
    "second.bias": np.zeros(width),
}
model = {name: values.astype(np.float32) for name, values in model.items()}
wanted = random.normal(0, 0.05, (width, width)).astype(np.float32)


def bits(values):
    return np.ascontiguousarray(values).view({2: np.uint16, 4: np.uint32}[values.itemsize])


saved, losses, changed = [], [], []
for step in range(1, steps + 1):
    tensors = {name: values.astype(stored_as) for name, values in model.items()}
    save_file(tensors, f"{directory}/{step}.safetensors", metadata={"step": str(step)})
    if saved:
        differ = sum(int((bits(tensors[name]) != bits(saved[-1][name])).sum()) for name in tensors)
        changed.append(differ * next(iter(tensors.values())).itemsize)
    saved.append(tensors)
    inputs = random.normal(0, 1, (256, width)).astype(np.float32)
    hidden = inputs @ model["first.weight"] + model["first.bias"]
    active = np.maximum(hidden, 0)
    error = active @ model["second.weight"] + model["second.bias"] - inputs @ wanted
    losses.append(float((error**2).mean()))
    error /= len(inputs)
    back = (error @ model["second.weight"].T) * (hidden > 0)
    gradients = {
        "first.weight": inputs.T @ back,
        "first.bias": back.sum(0),
        "second.weight": active.T @ error,
        "second.bias": error.sum(0),
    }
    for name, gradient in gradients.items():
        flat, gradient = model[name].reshape(-1), gradient.reshape(-1)
        count = max(1, flat.size // 100)
        largest = np.argpartition(-np.abs(gradient), count)[:count]
        flat[largest] -= 0.002 * gradient[largest] / np.abs(gradient[largest]).mean()
assert losses[-1] < losses[0], losses
first, last = saved[0], saved[-1]
between = {name: int((bits(first[name]) != bits(last[name])).sum()) for name in first}
print(json.dumps({"elements": between, "changed": changed, "losses": [losses[0], losses[-1]]}))
