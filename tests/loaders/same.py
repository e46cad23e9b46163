"""Runs a loader on two directories and compares what it gives. Each `load_*.py` here is such a loader: `load_*.py SOURCE MOUNT`
exits 1 with a message on a difference.
"""
import sys

import numpy as np


def fail(message):
    sys.exit(f"differs: {message}")


def same(one, other, what):
    """Arrays by type, shape and bytes; lists and dicts by what is in them; all else by value."""
    if type(one) is not type(other):
        fail(f"{what} is {type(one).__name__} of the source, {type(other).__name__} of the mount")
    if isinstance(one, dict):
        if list(one) != list(other):
            fail(f"{what} has {list(one)[:9]} of the source, {list(other)[:9]} of the mount")
        for key, value in one.items():
            same(value, other[key], f"{what}: {key}")
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            fail(f"{what} has {len(one)} parts of the source, {len(other)} of the mount")
        for place, pair in enumerate(zip(one, other)):
            same(*pair, f"{what}[{place}]")
    elif isinstance(one, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            fail(f"{what} is {one.dtype}{one.shape} of the source, {other.dtype}{other.shape} of the mount")
        if np.ascontiguousarray(one).tobytes() != np.ascontiguousarray(other).tobytes():
            fail(f"{what}: elements")
    elif one != other:
        fail(f"{what} is {one!r} of the source, {other!r} of the mount")


def compare(load):
    """Runs a loader on both directories of the command line and compares the results."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} SOURCE MOUNT")
    source, mount = (load(folder) for folder in sys.argv[1:])
    if not source:
        fail("the source has nothing to load")
    same(source, mount, "what was loaded")
