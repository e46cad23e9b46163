"""Makes the golden requests and replies of FUSE, tests/golden/fuse.json, from the kernel's header and independently of tierfs.

    python3 tests/golden/fuse.py

The structures, numbers and flags come from /usr/include/linux/fuse.h: ctypes lays the structures out as C does. Fields that a
case does not name are filled with noise, so that a parser which reads another place is found out; those of replies are zero.
"""
import ctypes
import json
import os
import re
from pathlib import Path

HEADER = Path("/usr/include/linux/fuse.h")
FOLDER = Path(__file__).resolve().parent
TYPES = {
    "uint16_t": ctypes.c_uint16,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
}
# Of protocols 7.37, 7.40 and 7.45, which older headers lack. The number of the physical file lies in `padding` of `struct fuse_open_out`.
NEWER = {"FOPEN_PASSTHROUGH": 1 << 7, "FUSE_TMPFILE": 51, "FUSE_COPY_FILE_RANGE_64": 53}
NOISE = 0xA5

S_IFREG, S_IFDIR = 0o100000, 0o040000
O_WRONLY, O_RDWR, O_EXCL, O_DIRECT = 1, 2, 0o200, 0o40000
CALLER = {"unique": 0x1122334455667788, "node": 0x0102030405060708, "user": 1001, "group": 1002, "thread": 4321}


def parsed():
    """The numbers and the structures of the header."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    numbers = dict(NEWER)
    for name, value in re.findall(r"^\s*(FUSE_\w+)\s*=\s*(\d+),", text, flags=re.M):
        numbers[name] = int(value)
    for name, value in re.findall(r"^#define\s+(FUSE_COMPAT_\w+)\s+(\d+)", text, flags=re.M):
        numbers[name] = int(value)
    for name, value in re.findall(r"^#define\s+(\w+)\s+\(1(?:ULL)? << (\d+)\)", text, flags=re.M):
        numbers[name] = 1 << int(value)
    structures = {}
    for name, body in re.findall(r"^struct (fuse_\w+) \{(.*?)^\};", text, flags=re.S | re.M):
        fields = []
        for line in body.split(";"):
            found = re.fullmatch(r"\s*(struct )?(\w+)\s+(\w+)(?:\[(\w*)\])?\s*", line)
            if not found:
                continue
            is_structure, kind, field, count = found.groups()
            if count == "":
                # A name or entries follow.
                continue
            base = structures.get(kind) if is_structure else TYPES.get(kind)
            if base is None:
                continue
            fields.append((field, base * int(count) if count else base))
        structures[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return numbers, structures


NUMBERS, STRUCTURES = parsed()


def packed(structure, fill=0, **fields):
    """The bytes of a structure."""
    kind = STRUCTURES[structure]
    value = kind.from_buffer_copy(bytes([fill]) * ctypes.sizeof(kind))
    for name, field in fields.items():
        inner = getattr(value, name)
        if isinstance(field, dict):
            for key, number in field.items():
                setattr(inner, key, number)
        else:
            setattr(value, name, field)
    return bytes(value)


def asked(structure, **fields):
    return packed(structure, NOISE, **fields)


REQUESTS = []
REPLIES = []


def request(kind, body, operation, **fields):
    head = {
        "len": ctypes.sizeof(STRUCTURES["fuse_in_header"]) + len(body),
        "opcode": NUMBERS[kind] if isinstance(kind, str) else kind,
        "unique": CALLER["unique"],
        "nodeid": CALLER["node"],
        "uid": CALLER["user"],
        "gid": CALLER["group"],
        "pid": CALLER["thread"],
    }
    data = asked("fuse_in_header", **head) + body
    REQUESTS.append({"bytes": data.hex(), "operation": operation, "fields": fields})


def reply(kind, body, unique=0x1122334455667788, error=0, **values):
    """A reply that the values give."""
    len_ = ctypes.sizeof(STRUCTURES["fuse_out_header"]) + len(body)
    data = packed("fuse_out_header", len=len_, error=-error, unique=unique) + body
    REPLIES.append({"kind": kind, "bytes": data.hex(), "unique": unique, "values": values})


def text(name):
    return name.encode() + b"\0"


def requests():
    name = "m\u00f6del.safetensors"
    request("FUSE_LOOKUP", text(name), "Lookup", name=name)
    request("FUSE_FORGET", asked("fuse_forget_in", nlookup=3), "Forget")
    nodes = [1 << 40 | 7, 1 << 63 | 5, 9]
    forgets = b"".join(packed("fuse_forget_one", nodeid=node, nlookup=2) for node in nodes)
    request("FUSE_BATCH_FORGET", asked("fuse_batch_forget_in", count=3) + forgets, "BatchForget", nodes=nodes)
    for flags, handle in [(0, None), (NUMBERS["FUSE_GETATTR_FH"], 77)]:
        body = asked("fuse_getattr_in", getattr_flags=flags, **({"fh": handle} if handle else {}))
        request("FUSE_GETATTR", body, "GetAttributes", handle=handle)
    setattrs()
    request("FUSE_READLINK", b"", "ReadLink")
    request("FUSE_SYMLINK", text("link") + text("../to/it"), "Symlink", name="link", target="../to/it")
    modes = {"mode": S_IFREG | 0o640, "umask": 0o027}
    request("FUSE_MKNOD", asked("fuse_mknod_in", **modes) + text("n"), "MakeNode", name="n", **modes)
    modes = {"mode": 0o755, "umask": 0o022}
    request("FUSE_MKDIR", asked("fuse_mkdir_in", **modes) + text("d"), "MakeDirectory", name="d", **modes)
    request("FUSE_UNLINK", text("gone"), "Unlink", name="gone")
    request("FUSE_RMDIR", text("gone"), "RemoveDirectory", name="gone")
    for opcode, structure, flags in [("FUSE_RENAME", "fuse_rename_in", 0), ("FUSE_RENAME2", "fuse_rename2_in", 1)]:
        more = {"flags": flags} if opcode == "FUSE_RENAME2" else {}
        body = asked(structure, newdir=1 << 41 | 3, **more) + text("old") + text("new")
        request(opcode, body, "Rename", name="old", new_parent=1 << 41 | 3, new_name="new", flags=flags)
    request("FUSE_LINK", asked("fuse_link_in", oldnodeid=1 << 42) + text("also"), "Link", node=1 << 42, new_name="also")
    request("FUSE_OPEN", asked("fuse_open_in", flags=O_RDWR | O_DIRECT), "Open", flags=O_RDWR | O_DIRECT)
    made = {"flags": O_WRONLY | O_EXCL, "mode": 0o600, "umask": 0o077}
    request("FUSE_CREATE", asked("fuse_create_in", **made) + text("new"), "Create", name="new", **made)
    request("FUSE_TMPFILE", asked("fuse_create_in", **made) + text("/"), "CreateNameless", **made)
    part = {"offset": 5 << 32, "size": 128 << 10}
    body = asked("fuse_read_in", fh=6, flags=O_DIRECT, **part)
    request("FUSE_READ", body, "Read", handle=6, flags=O_DIRECT, **part)
    data = bytes(range(1, 9))
    kills = [(NUMBERS["FUSE_WRITE_KILL_SUIDGID"], True), (NUMBERS["FUSE_WRITE_CACHE"], False)]
    for (how, kills), flags in zip(kills, [O_WRONLY | O_DIRECT, O_RDWR]):
        body = asked("fuse_write_in", fh=8, offset=4096, size=len(data), write_flags=how, flags=flags) + data
        request("FUSE_WRITE", body, "Write", handle=8, offset=4096, data=data.hex(), kills_setid=kills, flags=flags)
    cut = {"offset": 7 << 33, "length": 3 << 34}
    body = asked("fuse_fallocate_in", fh=12, mode=3, **cut)
    request("FUSE_FALLOCATE", body, "Allocate", handle=12, offset=7 << 33, bytes=3 << 34, flags=3)
    request("FUSE_LSEEK", asked("fuse_lseek_in", fh=13, offset=9 << 32, whence=3), "Seek", handle=13, offset=9 << 32, whence=3)
    ends = {"from_handle": 14, "from_offset": 3 << 33, "to_node": 1 << 40 | 5, "to_handle": 15, "to_offset": 5 << 33}
    body = asked("fuse_copy_file_range_in", fh_in=14, off_in=3 << 33, nodeid_out=1 << 40 | 5, fh_out=15, off_out=5 << 33,
                 len=7 << 33, flags=0)
    for opcode, is_wide in [("FUSE_COPY_FILE_RANGE", False), ("FUSE_COPY_FILE_RANGE_64", True)]:
        request(opcode, body, "CopyRange", **ends, bytes=7 << 33, flags=0, is_wide=is_wide)
    request("FUSE_STATFS", b"", "Statfs")
    request("FUSE_RELEASE", asked("fuse_release_in", fh=9), "Release", handle=9)
    request("FUSE_FSYNC", asked("fuse_fsync_in", fh=10), "Fsync", handle=10)
    value = b"q8\0:all"
    for flags in [0, os.XATTR_CREATE, os.XATTR_REPLACE]:
        body = asked("fuse_setxattr_in", size=len(value), flags=flags)
        # Without FUSE_SETXATTR_EXT the kernel sends the first two fields.
        body = body[:NUMBERS["FUSE_COMPAT_SETXATTR_IN_SIZE"]] + text("user.tierfs.tier") + value
        request("FUSE_SETXATTR", body, "SetXattr", name="user.tierfs.tier", value=value.hex(), flags=flags)
    body = asked("fuse_getxattr_in", size=64) + text("user.tierfs.tier")
    request("FUSE_GETXATTR", body, "GetXattr", name="user.tierfs.tier", size=64)
    request("FUSE_LISTXATTR", asked("fuse_getxattr_in", size=0), "ListXattr", size=0)
    request("FUSE_REMOVEXATTR", text("user.x"), "RemoveXattr", name="user.x")
    request("FUSE_FLUSH", asked("fuse_flush_in", fh=11), "Flush", handle=11)
    request("FUSE_OPENDIR", asked("fuse_open_in"), "OpenDirectory")
    listed = {"offset": 1 << 50, "size": 4096}
    request("FUSE_READDIR", asked("fuse_read_in", **listed), "ReadDirectory", **listed)
    request("FUSE_READDIRPLUS", asked("fuse_read_in", **listed), "ReadDirectoryPlus", **listed)
    request("FUSE_RELEASEDIR", asked("fuse_release_in"), "ReleaseDirectory")
    request("FUSE_FSYNCDIR", asked("fuse_fsync_in"), "FsyncDirectory")
    request("FUSE_INTERRUPT", asked("fuse_interrupt_in"), "Interrupt")
    request("FUSE_DESTROY", b"", "Destroy")
    body = asked("fuse_poll_in", fh=12, kh=13, events=0x41)
    request("FUSE_POLL", body, "Poll", handle=12, kernel_handle=13, events=0x41)
    for opcode in ("FUSE_INIT", "FUSE_ACCESS", "FUSE_IOCTL", "FUSE_BMAP"):
        request(opcode, bytes(64), "Other", opcode=NUMBERS[opcode])
    request(9999, b"", "Other", opcode=9999)


def setattrs():
    none = {"mode": None, "user": None, "group": None, "bytes": None, "accessed": None, "modified": None}
    fields = {"mode": S_IFREG | 0o4755, "uid": 5, "gid": 6, "size": 1 << 40, "atime": 1_700_000_000, "atimensec": 123,
              "mtime": 2**64 - 2, "mtimensec": 999_999_999}
    names = ["MODE", "UID", "GID", "SIZE", "ATIME", "MTIME"]
    every = sum(NUMBERS["FATTR_" + name] for name in names)
    request("FUSE_SETATTR", asked("fuse_setattr_in", valid=every, **fields), "SetAttributes", mode=S_IFREG | 0o4755, user=5,
            group=6, bytes=1 << 40, accessed=1_700_000_000_000_000_123, modified=-1_000_000_001)
    for name, changed in [("MODE", {"mode": fields["mode"]}), ("UID", {"user": 5}), ("GID", {"group": 6}),
                          ("SIZE", {"bytes": 1 << 40}), ("MTIME", {"modified": -1_000_000_001})]:
        body = asked("fuse_setattr_in", valid=NUMBERS["FATTR_" + name], **fields)
        request("FUSE_SETATTR", body, "SetAttributes", **{**none, **changed})
    now = sum(NUMBERS["FATTR_" + name] for name in ["ATIME", "ATIME_NOW", "MTIME", "MTIME_NOW", "FH", "CTIME"])
    body = asked("fuse_setattr_in", valid=now, **fields)
    request("FUSE_SETATTR", body, "SetAttributes", **{**none, "accessed": "now", "modified": "now"})
    far = {"atime": 2**63 - 1, "atimensec": 0, "mtime": 2**63, "mtimensec": 0}
    body = asked("fuse_setattr_in", valid=NUMBERS["FATTR_ATIME"] | NUMBERS["FATTR_MTIME"], **far)
    request("FUSE_SETATTR", body, "SetAttributes", **{**none, "accessed": 2**63 - 1, "modified": -(2**63)})


ATTRIBUTES = {
    "node": 1 << 40 | 7, "bytes": 123_456_789, "blocks": 241_127, "accessed": 1_700_000_000_000_000_005,
    "modified": -1, "changed": 1_800_000_001_999_999_999, "mode": S_IFREG | 0o2644, "links": 2, "user": 1001,
    "group": 1002, "block_bytes": 4096,
}


def attributes(of):
    times = {}
    for letter, name in [("a", "accessed"), ("m", "modified"), ("c", "changed")]:
        seconds, rest = divmod(of[name], 10**9)
        times |= {letter + "time": seconds % 2**64, letter + "timensec": rest}
    return {"ino": of["node"], "size": of["bytes"], "blocks": of["blocks"], "mode": of["mode"], "nlink": of["links"],
            "uid": of["user"], "gid": of["group"], "blksize": of["block_bytes"], **times}


def entry(of, name_for, attributes_for):
    return packed("fuse_entry_out", nodeid=of["node"], entry_valid=name_for[0], entry_valid_nsec=name_for[1],
                  attr_valid=attributes_for[0], attr_valid_nsec=attributes_for[1], attr=attributes(of))


def listed(shown, mode, next_, name):
    """`struct fuse_dirent` with its name, filled to a multiple of 8."""
    name = name.encode()
    data = packed("fuse_dirent", ino=shown, off=next_, namelen=len(name), type=mode >> 12) + name
    return data + bytes(-len(data) % 8)


def replies():
    reply("ok", b"")
    reply("dropped", b"", error=5)
    reply("data", b"some bytes", data=b"some bytes".hex())
    reply("placed", bytes(range(200)), place=300, data=bytes(range(200)).hex())
    times = {"name_for": [3600, 1], "attributes_for": [0, 999_999_999]}
    body = entry(ATTRIBUTES, **times)
    reply("entry", body, attributes=ATTRIBUTES, **times)
    body = packed("fuse_attr_out", attr_valid=10, attr_valid_nsec=7, attr=attributes(ATTRIBUTES))
    reply("attributes", body, attributes=ATTRIBUTES, valid_for=[10, 7])
    flags = [("direct", "FOPEN_DIRECT_IO"), ("keeps_cache", "FOPEN_KEEP_CACHE"), ("caches_listing", "FOPEN_CACHE_DIR"),
             ("no_flush", "FOPEN_NOFLUSH")]
    for name, flag in flags:
        body = packed("fuse_open_out", fh=1 << 33, open_flags=NUMBERS[flag])
        reply("opened", body, handle=1 << 33, flags=[name], backing=None)
    both = NUMBERS["FOPEN_NOFLUSH"] | NUMBERS["FOPEN_PASSTHROUGH"]
    body = packed("fuse_open_out", fh=4, open_flags=both, padding=21)
    reply("opened", body, handle=4, flags=["no_flush"], backing=21)
    body = entry(ATTRIBUTES, **times) + packed("fuse_open_out", fh=5, open_flags=NUMBERS["FOPEN_KEEP_CACHE"])
    reply("created", body, attributes=ATTRIBUTES, handle=5, flags=["keeps_cache"], backing=None, **times)
    reply("written", packed("fuse_write_out", size=1 << 20), bytes=1 << 20)
    # `struct fuse_copy_file_range_out` of protocol 7.45 has one number of 64 bits.
    for bytes_, is_wide, body in [(3 << 20, False, packed("fuse_write_out", size=3 << 20)),
                                  (3 << 33, True, packed("fuse_lseek_out", offset=3 << 33))]:
        reply("copied", body, bytes=bytes_, is_wide=is_wide)
    reply("offset", packed("fuse_lseek_out", offset=5 << 40), offset=5 << 40)
    reply("length", packed("fuse_getxattr_out", size=77), bytes=77)
    reply("polled", packed("fuse_poll_out", revents=0x41), events=0x41)
    space = {"blocks": 1000, "blocks_free": 500, "blocks_available": 400, "files": 90, "files_free": 80,
             "block_bytes": 4096, "name_bytes_max": 255}
    body = packed("fuse_statfs_out", st={
        "blocks": 1000, "bfree": 500, "bavail": 400, "files": 90, "ffree": 80, "bsize": 4096, "namelen": 255, "frsize": 4096,
    })
    reply("space", body, **space)
    names = [(1, S_IFDIR, 1, "."), (1 << 40 | 7, S_IFREG, 3, "12345678"), (5, 0o120000, 1 << 60, "\u00e4")]
    body = b"".join(listed(*of) for of in names)
    # The last name has no room.
    reply("listing", body, size=len(body) + 31, names=[*names, (6, S_IFREG, 9, "8 letter")])
    entries = [(1 << 40 | 7, 4, "a"), (1 << 40 | 8, 5, "12345678")]
    body = b""
    for shown, next_, name in entries:
        body += entry(ATTRIBUTES, **times) + listed(shown, ATTRIBUTES["mode"], next_, name)
    reply("entries", body, size=len(body), attributes=ATTRIBUTES, names=[*entries, (9, 6, "b")], **times)


requests()
replies()
protocol = re.search(r"FUSE_KERNEL_MINOR_VERSION (\d+)", HEADER.read_text()).group(1)
cases = {"protocol": f"7.{protocol}", "requests": REQUESTS, "replies": REPLIES}
(FOLDER / "fuse.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n")
