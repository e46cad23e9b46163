"""Makes the golden small batches of a log (record 11), independently of tierfs, from docs/FORMAT.md.

    target/venv/bin/python tests/golden/small_batches.py
"""
import struct
from pathlib import Path

from reference import DTYPE_CODE, crc32c, log_record, object_id, tensor_id

FOLDER = Path(__file__).resolve().parent
GENERATION = 2
HEAD = 65


def varint(number):
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def signed(number):
    return varint(2 * number if number >= 0 else -2 * number - 1)


def u128(number):
    return number.to_bytes(16, "little")


class Batch:
    """The records of one batch, in their order. Each method adds one."""

    def __init__(self, sequence, number, unsynced):
        self.sequence, self.number, self.unsynced = sequence, number, unsynced
        self.content, self.count = b"", 0
        self.last_node, self.first_time, self.last_object = 0, None, None

    def add(self, tag, *fields):
        self.content += bytes([tag]) + b"".join(fields)
        self.count += 1

    def node_number(self, node):
        field = signed(node - self.last_node)
        self.last_node = node
        return field

    def time(self, nanoseconds):
        field = signed(nanoseconds - (self.first_time or 0))
        if self.first_time is None:
            self.first_time = nanoseconds
        return field

    def seconds(self, at):
        return signed(at - (self.first_time or 0) // 1_000_000_000)

    def object_of(self, number):
        return b"\x01" if number == self.last_object else b"\x00" + u128(number)

    def node(self, node, mode, owner, times, created_at, objects=None):
        """objects: those of a plain file; None for a directory."""
        fields = [self.node_number(node), varint(mode), varint(owner[0]), varint(owner[1])]
        fields += [self.time(time) for time in times] + [self.seconds(created_at)]
        if objects is not None:
            fields += [varint(len(objects))] + [self.object_of(number) for number in objects]
        self.add(1 if objects is None else 2, *fields)

    def node_removed(self, node):
        self.add(3, self.node_number(node))

    def name(self, parent, name, node, entry):
        number = self.node_number(node)
        self.add(4, varint(parent), bytes([len(name)]), name, number, signed(entry - self.last_node))

    def name_removed(self, parent, name):
        self.add(5, varint(parent), bytes([len(name)]), name)

    def object(self, tensor, seed, creation, dtype, size, block_bytes, extent=None):
        place = b"\x00" if extent is None else b"\x01" + varint(extent[0]) + varint(extent[1])
        difference = signed(creation - (self.sequence + self.count))
        self.add(6, u128(tensor), varint(seed), difference, bytes([DTYPE_CODE[dtype]]), varint(size),
                 varint(block_bytes), place)
        self.last_object = object_id(tensor, seed, creation)
        return self.last_object

    def create(self, number, block, flags, offset, payload, created_at):
        self.add(7, self.object_of(number), varint(block), bytes([flags]), varint(offset), varint(len(payload)),
                 struct.pack("<I", crc32c(payload)), self.seconds(created_at))

    def delete(self, number):
        self.add(8, self.object_of(number))

    def record(self):
        content = self.content + b"\xff"
        head, tail = content[:HEAD], content[HEAD:]
        body = {
            21: struct.pack("<QI", self.number, self.unsynced),
            33: struct.pack("<II", len(tail), crc32c(tail)),
            41: struct.pack("<H", self.count),
            43: head.ljust(HEAD, b"\0"),
        }
        return log_record(11, 0, 0, body, GENERATION, self.sequence) + tail + bytes(-len(tail) % 128)


def made():
    """A directory and a file of 100 bytes in it: longer than the slot."""
    batch = Batch(sequence=900, number=41, unsynced=3)
    at = 1_700_000_000_123_456_789
    batch.node(70, 0o2775, (1000, 100), (at, at, at), 1_700_000_000)
    batch.name(1, b"made", 70, 71)
    plain = batch.object(tensor_id("acme", "llama", "made/small"), 0, 902, "u8", 100, 16384)
    batch.create(plain, 0, 0, 4096, bytes(range(100)), 1_700_000_001)
    batch.node(72, 0o600, (0, 65534), (at - 5_000_000_000, at + 1, at + 2), 1_699_999_999, [plain])
    batch.name(70, "small \u00e9".encode(), 72, 60)
    return batch.record()


def grown():
    """An older object, one with a seed, in a data file, and a file of both."""
    batch = Batch(sequence=1 << 40, number=1 << 33, unsynced=0)
    older = object_id(tensor_id("acme", "llama", "older"), 0, 17)
    seeded = batch.object(tensor_id("acme", "llama", "seeded"), 1 << 63, 1000, "f32", 1 << 35, 131072, (7, 1 << 34))
    batch.create(seeded, 5, 1, (1 << 34) + 5 * 131072, bytes(131072), 1_700_000_000)
    batch.node(9, 0o644, (1, 2), (-1_000_000_000, 0, 300), 0, [older, seeded])
    batch.delete(seeded)
    return batch.record()


def removed():
    """Removals alone: they fit into the slot."""
    batch = Batch(sequence=930, number=43, unsynced=1)
    batch.name_removed(70, "small \u00e9".encode())
    batch.delete(object_id(tensor_id("acme", "llama", "made/small"), 0, 902))
    batch.node_removed(72)
    batch.name_removed(1, b"made")
    batch.node_removed(70)
    return batch.record()


(FOLDER / "small_batches.rec").write_bytes(made() + grown() + removed())
