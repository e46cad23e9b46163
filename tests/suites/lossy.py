"""Reads of an encoded tensor return the written bytes: random operations against a model that begins with the bytes that a
reader sees. fsx begins with zeros; this begins with values that a tier has rounded.

    lossy.py CONTAINER TENSOR OPERATIONS SEED

CONTAINER is a .safetensors file in the mount and TENSOR a tensor of it. Their bytes are compared too.
"""
import mmap
import os
import random
import sys

container, tensor, operations, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
choose = random.Random(seed)
with open(tensor, "rb") as file:
    model = bytearray(file.read())
begin = os.path.getsize(container) - len(model)
descriptor = os.open(tensor, os.O_RDWR)


def look(path, at, count, base=0):
    with open(path, "rb", buffering=0) as file:
        found = os.pread(file.fileno(), count, base + at)
    assert found == model[at : at + count], f"{path}: bytes {at}..{at + count} of seed {seed}"


for step in range(operations):
    at = choose.randrange(len(model))
    what = choose.random()
    if what < 0.45:
        # Mostly a few elements, so that they become a patch; at times a block and more.
        most = 60_000 if choose.random() < 0.02 else 200
        new = choose.randbytes(min(choose.randrange(1, most), len(model) - at))
        model[at : at + len(new)] = new
        if choose.random() < 0.2:
            with mmap.mmap(descriptor, len(model)) as mapped:
                mapped[at : at + len(new)] = new
                mapped.flush()
        else:
            os.pwrite(descriptor, new, at)
    elif what < 0.85:
        count = choose.randrange(1, 70_000)
        assert os.pread(descriptor, count, at) == model[at : at + count], f"step {step} of seed {seed}: other bytes"
    elif what < 0.9:
        os.fsync(descriptor)
        # The other name of these bytes agrees after an fsync.
        look(container, at, choose.randrange(1, 70_000), begin)
    elif what < 0.95:
        os.close(descriptor)
        descriptor = os.open(tensor, os.O_RDWR)
    else:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
os.close(descriptor)
look(tensor, 0, len(model))
look(container, 0, len(model), begin)
print(f"lossy: {operations} operations on {tensor}: all as written")
