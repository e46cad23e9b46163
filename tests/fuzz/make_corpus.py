"""Makes the seeds of the fuzz targets, tests/fuzz/corpus/, of the golden vectors and of logs that tierfs wrote.

    target/venv/bin/python tests/fuzz/make_corpus.py target/debug/tierfs

Files that are there and that it does not make stay: what a fuzzer found is added to them by hand.
"""
import io
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

ROOT = Path(__file__).resolve().parent
GOLDEN = ROOT.parent / "golden"
DTYPES = {"f32": 0, "f16": 1, "bf16": 2}
SLOT = 128


def put(target, name, *parts):
    folder = ROOT / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(parts))


def golden(name):
    return (GOLDEN / name).read_bytes()


def text(value):
    value = value.encode()
    return struct.pack("<I", len(value)) + value


def safetensors(header, data):
    header = json.dumps(header).encode()
    return struct.pack("<Q", len(header)) + header + bytes(data)


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def gguf(name, *tensors):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = GGUFWriter(path, "seed")
        writer.add_custom_alignment(16)
        writer.add_array("tokens", ["a", "", "\u00e4"])
        writer.add_array("scores", [0.5, -1.0])
        for tensor, shape, kind in tensors:
            data = np.arange(np.prod(shape), dtype="u1" if kind != GGMLQuantizationType.F32 else "<f4")
            writer.add_tensor(tensor, data.reshape(shape), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        put("gguf", name, path.read_bytes())


def containers():
    two = {
        "__metadata__": {"format": "pt"},
        "a/b": tensor("F32", [2, 2], 0, 16),
        "c\u00e4": tensor("BF16", [3], 16, 22),
        "empty": tensor("U8", [0, 5], 22, 22),
    }
    put("safetensors", "two", safetensors(two, 22))
    put("safetensors", "none", safetensors({}, 0))
    put("safetensors", "scalar", safetensors({"s": tensor("F8_E4M3", [], 0, 1)}, 1))
    # Claims far more data than the file has: only the header is read.
    large = {"w": tensor("F16", [1 << 20, 1 << 20], 0, 1 << 41)}
    put("safetensors", "header_of_a_large_one", safetensors(large, 0))
    for name, array in [
        ("matrix", np.zeros((3, 4), "<f4")),
        ("fortran", np.asfortranarray(np.zeros((3, 4), "<f8"))),
        ("big_endian", np.zeros(5, ">i2")),
        ("scalar", np.array(True)),
        ("none", np.zeros((0, 7), "<u8")),
    ]:
        out = io.BytesIO()
        np.save(out, array)
        put("npy", name, out.getvalue())
    gguf("two", ("blk.0.weight", [3, 36], GGMLQuantizationType.Q4_0), ("norm", [4], GGMLQuantizationType.F32))
    gguf("none")
    whole = (ROOT / "corpus" / "gguf" / "two").read_bytes()
    put("gguf", "cut", whole[: len(whole) // 2])
    out = io.BytesIO()
    np.lib.format.write_array_header_2_0(out, {"descr": "<V2", "fortran_order": False, "shape": (1 << 40, 3)})
    put("npy", "header_of_a_large_one", out.getvalue())


def indexes():
    shards = {"a": "model-00001-of-00002.safetensors", "b/c": "model-00002-of-00002.safetensors"}
    put("shard_index", "two", json.dumps({"metadata": {"total_size": 16}, "weight_map": shards}).encode())
    put("shard_index", "none", json.dumps({"weight_map": {}}).encode())
    odd = {"\u00e4\n": "x", "": "", "y": "\t", "w": "../z", "v": "../z"}
    put("shard_index", "odd", json.dumps({"weight_map": odd}).encode())
    put("shard_index", "twice", b'{"weight_map":{"a":"1","a":"2"},"weight_map":{"b":"2"}}')
    put("shard_index", "text", b"1\n\ta\n\tb\n2\n\tc\n\n\t")


def configurations():
    plain = {"peft_type": "LORA", "lora_alpha": 16, "alpha_pattern": {"^q_proj": 4, "layers.0.k.proj": 8},
             "use_rslora": True, "init_lora_weights": True}
    put("adapter_config", "plain", json.dumps(plain).encode())
    put("adapter_config", "other", json.dumps({"peft_type": "LORA", "use_dora": True}).encode())
    put("adapter_config", "name", b"base_model.model.model.layers.0.q_proj.lora_A.default.weight")
    for name, config in {
        "llama": {"num_attention_heads": 12, "num_key_value_heads": 4, "model_type": "phi3", "num_experts": 12},
        "words": {"text_config": {"num_attention_heads": 2**64 - 1, "num_key_value_heads": 2**64 - 1,
                                  "model_type": "phi3", "num_local_experts": 2**64 - 1}},
        "falcon": {"model_type": "falcon", "num_attention_heads": 6, "num_kv_heads": 2, "multi_query": False},
        "bigcode": {"model_type": "gpt_bigcode", "n_head": 12, "multi_query": False},
        "chatglm": {"model_type": "chatglm", "num_attention_heads": 12, "ffn_hidden_size": 24,
                    "quantization_config": {"bits": 4, "desc_act": True}},
        "counted": {},
    }.items():
        put("tensor_parallel", name, json.dumps(config).encode())
    words = {"model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": {"[PAD]": 0, "[UNK]": 1, "a": 2}}}
    bert = {"architectures": ["BertModel"], "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 8, "max_position_embeddings": 8, "layer_norm_eps": 1e-12}
    put("model_config", "bert", json.dumps(bert).encode() + b"\0" + json.dumps(words).encode())
    llama = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
             "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 3, "rms_norm_eps": 1e-5,
             "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
             "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                              "original_max_position_embeddings": 8}, "max_position_embeddings": 64}
    tokens = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}}
    put("model_config", "llama", json.dumps(llama).encode() + b"\0" + json.dumps(tokens).encode())
    modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling/"}]
    put("model_config", "pooling", json.dumps(modules).encode())


def records():
    for case in json.loads(golden("cases.json")):
        if case["kind"] in ("delta", "patch"):
            elements = len(golden(case["input"])) // (4 if case["dtype"] == "f32" else 2)
            head = bytes([case["kind"] == "patch", DTYPES[case["dtype"]]]) + struct.pack("<H", elements)
            put("delta", f"{case['kind']}_{case['dtype']}", head, golden(case["record"]))
    for name in ("create", "migrate", "commit"):
        put("record", name, golden(f"{name}.rec"))
    put("record", "slot_run", golden("slot_runs.rec")[:SLOT])
    put("manifest", "golden", golden("manifest.body"))
    put("manifest", "whole", golden("manifest.tfsn"))
    piece = bytes(range(32)) + struct.pack("<IIIB", 0, 100, 100, 0)
    extents = struct.pack("<QIII", 0, 0, 0, 60) + struct.pack("<QIII", 64, 0, 60, 40)
    put("piece_map", "one", b"TFCL\1\0\0\0", struct.pack("<II", 1, 2), piece, extents, b"\0" * 4 + b"H")
    put("piece_map", "none", b"TFCL\1\0\0\0", struct.pack("<II", 0, 0), b"\0" * 4)
    checked = b"TFCL\1\0\1\0"
    length = struct.pack("<Q", 104)
    put("piece_map", "checked", checked, struct.pack("<II", 1, 2), piece, extents, length, b"\0" * 4 + b"H" + bytes(32))
    put("piece_map", "checked_none", checked, struct.pack("<II", 0, 0), length, b"\0" * 4)
    other = bytes(range(32)) + struct.pack("<IIIB", 3, 50, 70, 1) + struct.pack("<QIII", 9, 0, 20, 30)
    put("piece_map", "checked_own", checked, struct.pack("<II", 1, 1), other, length, b"\0" * 4 + b"O" + bytes(32))
    difference = golden("version.difference")
    put("version", "golden", difference[: struct.unpack_from("<I", difference, 40)[0]])
    put("version", "description", golden("version.toml"))
    put("factor", "golden", golden("factor.rec"))
    zeros = b"\0" * 20 + struct.pack("<III", 1 << 30, 1 << 30, 0)
    put("factor", "of_rank_0", zeros)
    put("cgeb", "golden", golden("batch.cgeb")[: 64 + 1536 * 4 + 2000])
    small = b"CGEB" + struct.pack(">HHIBB2xQQQQ16x", 2, 1, 2, 1, 1, 77, 5, 77, 3)
    put("cgeb", "small", small, struct.pack("<3f", 1.0, -2.5, 0.5), b"\x03", b"aux")
    put("cgeb", "version_1", b"CGEB" + struct.pack(">HHIBB2xQQQQ16x", 1, 0, 1, 0, 0, 9, 9, 0, 0), struct.pack(">f", 7))
    put("cgei", "golden", golden("batch.cgei"))
    put("cgei", "none", b"CGEI" + struct.pack(">HHQQ", 1, 0, 0, 3))


def entries():
    put("catalog", "collection", b"\x01\x01", struct.pack("<IQQ", 7, 1700000000, 12))
    thing = bytes(48) + struct.pack("<QBQIBQQ", 3, 0, 40, 4096, 1, 1, 64)
    put("catalog", "object", b"\x02\x01", thing)
    put("catalog", "object_with_parent", b"\x02\x02", thing, bytes(range(16)), text("acme"), text("base"))
    node = struct.pack("<QIIIqqqQ", 5, 0o644, 1, 2, 6, 3, 4, 5)
    put("catalog", "directory", b"\x03\x05", node, b"\0")
    put("catalog", "symlink", b"\x03\x05", node, b"\1", text("../target"))
    of_a_tensor = b"".join([
        b"\x02\x01", struct.pack("<I", 1), bytes(16),
        b"\1", text("w"), b"\0", struct.pack("<IQQ", 2, 2, 5), bytes(16),
        b"\1", struct.pack("<Q", 4), b"\1", bytes(64), b"\1", struct.pack("<fdQ", 0.5, 0.25, 10), text("why"),
    ])
    put("catalog", "file", b"\x03\x05", node, of_a_tensor)
    records = struct.pack("<IBBIQBQQ", 2, 0, 0, 1, 1, 0, 0, 0)
    put("catalog", "batch", b"\x03\x06", node, b"\x02\x05", of_a_tensor[2:], records)
    records = struct.pack("<IBBIQBQQ", 2, 0, 0, 1, 1, 9, 0, 0)
    put("catalog", "batch_without_padding", b"\x03\x06", node, b"\x02\x05", of_a_tensor[2:], records)
    put("catalog", "node_removed", b"\x04\x01", struct.pack("<Q", 5))
    put("catalog", "name", b"\x05\x01", struct.pack("<QQ", 1, 9), text("w"), struct.pack("<Q", 5))
    put("catalog", "name_removed", b"\x06\x01", struct.pack("<Q", 1), text("w"))
    put("catalog", "setting", b"\x07\x01", struct.pack("<Q", 1), text("lossy"), b"\1", text("allow"))
    put("catalog", "setting_inherited", b"\x07\x01", struct.pack("<Q", 1), text("lossy"), b"\0")


def texts():
    for place, name in enumerate(["layers.0.w", "a/b/c%", "../x", ".", "", "x\ny", "/etc", "\u00e9" * 200, ".ctl/.as"]):
        put("names", f"name_{place}", bytes([place % 3]), name.encode())
    for place, value in enumerate(["4096x11008", "f8_e4m3", "BF16", "q5:all", "warm5", "absmax", "0", "q3x", "", "q8:all:again", "a,b,a"]):
        put("values", f"value_{place}", value.encode())
    put("values", "set_dtype", b"user.tierfs.dtype\nf32")
    put("values", "set_shape", b"user.tierfs.shape\n2x12")
    for name, value in [("tier", "q8"), ("lossy", "allow"), ("writes", "exact"), ("evict", "now"), ("encoder", "absmax"), ("tags", "model:w,team:x")]:
        put("values", f"set_{name}", f"user.tierfs.{name}\n{value}".encode())
    settings = "format = 1\nuuid = \"000000000000000000000000000000ab\"\nkeep = [\"norm\", \"a\\\"b\"]\n"
    put("values", "settings", settings.encode())


def ladders():
    sys.path.insert(0, str(GOLDEN))
    import ladder
    import ladder_cases

    for name, width, rotated, low, make in ladder_cases.CASES:
        for n in (65, 513):
            payload = ladder.encode(np.ascontiguousarray(make(n)).tobytes(), width, rotated, low)
            put("ladder", f"{name.replace(' ', '_')}_{n}", bytes([width.bit_length() - 1, 0, 0]), payload)
    for name, dtype, make in ladder_cases.DIFFERENCES:
        width = 4 if dtype == "F32" else 2
        for n in [65, 513]:
            base, block = (np.ascontiguousarray(version).tobytes() for version in make(n))
            z = ladder_cases.difference(base, block, width)
            payload = ladder.encode(z, width, 0, [0, 0] if width == 2 else [None, None, 0, 0])
            kind = 4 | ["BF16", "F16", "F32"].index(dtype) << 3
            put("ladder", f"difference_{name.replace(' ', '_')}_{n}", bytes([kind, 0, 0]), payload)


def archives():
    for path in (GOLDEN / "models").iterdir():
        if path.suffix in (".pt", ".pth", ".ckpt", ".bin"):
            put("torch", path.name, path.read_bytes())
            if not zipfile.is_zipfile(path):
                continue
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith("/data.pkl"):
                        put("torch", f"{path.name}.pickle", archive.read(name))
        elif path.suffix == ".onnx":
            put("onnx", path.name, path.read_bytes())
    call = b"\x80\x02cposix\nsystem\nX\x05\0\0\0touch\x85R."
    put("torch", "system.pickle", call)
    for name, save in (("stored", np.savez), ("compressed", np.savez_compressed)):
        out = io.BytesIO()
        save(out, w=np.zeros((3, 4), "<f4"), o=np.array([None]), i=np.arange(3))
        put("npz", name, out.getvalue())


def logs(program):
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)

        def imported(store, name, data, *options):
            (folder / name).write_bytes(data)
            command = [program, "import", folder / store, "t/c", folder / name, *options]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

        imported("one", "plain", b"some bytes")
        values = np.sin(np.arange(200, dtype="<f4")).tobytes()
        container = {"x/w": tensor("F32", [10, 20], 0, 800)}
        imported("two", "plain", bytes(9000), "--block-bytes", "4096")
        imported("two", "m.safetensors", safetensors(container, 0) + values, "--tier", "q8:all")
        imported("two", "plain", b"another")
        for store in ("one", "two"):
            log = (folder / store / "t/c/meta.log").read_bytes()
            log = log.rstrip(b"\0")
            log += bytes(-len(log) % SLOT)
            put("log", f"written_{store}", b"\0", log)
            put("log", f"sealed_{store}", b"\1", log[SLOT:])


def requests():
    """Requests of the kernel. Small inode numbers stand for the files of tests/fuzz/targets/requests.rs."""
    unique = iter(range(1, 1000))

    def one(opcode, node, *parts):
        body = b"".join(part if isinstance(part, bytes) else part.encode() + b"\0" for part in parts)
        return struct.pack("=IIQQIIII", 40 + len(body), opcode, next(unique), node, 0, 0, 7, 0) + body

    def reading(handle, offset, size):
        return struct.pack("=QQIIQII", handle, offset, size, 0, 0, 0, 0)

    def writing(handle, offset, data):
        return reading(handle, offset, len(data)) + data

    def closing(node, handle):
        return one(25, node, struct.pack("=QQQ", handle, 0, 0)), one(18, node, struct.pack("=QIIQ", handle, 0, 0, 0))

    opened, listing = struct.pack("=II", 0, 0), reading(0, 0, 4096)
    golden_requests = json.loads(golden("fuse.json"))["requests"]
    put("requests", "golden", *(bytes.fromhex(case["bytes"]) for case in golden_requests))
    put("requests", "read", one(1, 1, "t"), one(1, 2, "c"), one(1, 3, "m.safetensors"), one(3, 4, bytes(16)),
        one(14, 4, opened), one(15, 4, reading(0, 0, 4096)), one(15, 4, reading(0, 100, 131072)), *closing(4, 0),
        one(2, 4, struct.pack("=Q", 1)))
    put("requests", "tensor", one(14, 6, opened), one(15, 6, reading(0, 8, 100)), one(18, 6, struct.pack("=QIIQ", 0, 0, 0, 0)),
        one(42, 1, struct.pack("=IIQQQQ", 2, 0, 4, 1, 6, 1)), one(36, 0, struct.pack("=Q", 1)))
    put("requests", "list", *(part for node in (1, 2, 3, 5, 7, 9) for part in (
        one(27, node, opened), one(28, node, listing), one(44, node, listing), one(29, node, bytes(24)))), one(30, 3, bytes(16)))
    put("requests", "write", one(35, 3, struct.pack("=IIII", 2, 0o100644, 0o22, 0), "new"),
        one(14, 4, struct.pack("=II", 2, 0)), one(16, 4, writing(1, 4, b"other bytes")), *closing(4, 1),
        one(20, 4, struct.pack("=QII", 0, 0, 0)), one(4, 4, struct.pack("=IIQQ", 8, 0, 0, 50), bytes(64)))
    put("requests", "names", one(9, 3, struct.pack("=II", 0o755, 0), "d"), one(12, 3, struct.pack("=Q", 3), "m.safetensors", "n"),
        one(45, 3, struct.pack("=QII", 3, 1, 0), "n", "m.safetensors"), one(13, 3, struct.pack("=Q", 4), "also"),
        one(6, 3, "link", "../to"), one(8, 3, struct.pack("=IIII", 0o100600, 0, 0, 0), "node"), one(10, 3, "also"), one(11, 3, "d"))
    put("requests", "attributes", one(22, 6, struct.pack("=II", 64, 0), "user.tierfs.tier"), one(23, 6, struct.pack("=II", 0, 0)),
        one(21, 6, struct.pack("=II", 2, 0), "user.tierfs.tier", b"q8"), one(24, 6, "user.tierfs.tier"), one(17, 1))
    put("requests", "controls", one(14, 8, opened), one(15, 8, reading(0, 0, 4096)), one(14, 10, opened), one(40, 10, struct.pack(
        "=QQII", 1, 2, 1, 1)), one(16, 8, writing(0, 0, b"x")), one(38, 0), one(99, 1))


containers()
indexes()
configurations()
records()
entries()
texts()
ladders()
archives()
requests()
logs(sys.argv[1])
