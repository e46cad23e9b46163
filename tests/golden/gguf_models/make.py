"""Makes the models of this folder, and golden.txt: the GGUF files that the converter of llama.cpp makes of them.

    make.py CONVERTER [MODEL...]

CONVERTER is vendor/llama.cpp of the source package llama-cpp-python 0.3.36. Needs torch, transformers 5.24, tokenizers,
sentencepiece, numpy. The tokenizers are trained on a few sentences, so the hash by which the converter names a pre-tokenizer
knows none of them: it is told the name. Weights follow from their names by a formula that tests/forms/gguf_model.rs has too;
tensors.txt of a model lists them, each with its shard.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

HERE = pathlib.Path(__file__).parent
TEXT = """The quick brown fox jumps over the lazy dog. A file system shows tensors as files, and tensors are shown as a file
of other bytes. It's 1234 days, I'll say; they've 99 reasons: don't, can't! Größe, naïve, привет мир, 世界 and 🚀.
def main(argument): return argument + 1  # a comment""".splitlines()
TYPES = {"f32": ("F32", 4), "f16": ("F16", 2), "bf16": ("BF16", 2), "i64": ("I64", 8)}


def values(name, dtype, count):
    """The bytes of a tensor. Every value has few enough bits for its type, so nothing is rounded here."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = (seed ^ byte) * 0x01000193 & 0xFFFFFFFF
    at = np.arange(count, dtype=np.uint64)
    mixed = (at * 0x9E3779B1 + seed & 0xFFFFFFFF).astype(np.uint64)
    mixed ^= mixed >> 15
    mixed = mixed * 0x85EBCA77 & 0xFFFFFFFF
    mixed ^= mixed >> 13
    bits = {"f32": 24, "f16": 11, "bf16": 8, "i64": 8}[dtype]
    number = (mixed >> (32 - bits)).astype(np.int64) - (1 << bits - 1)
    if dtype == "i64":
        return number.astype("<i8").tobytes()
    wide = (number / (1 << bits + 3)).astype("<f4")
    if dtype == "f16":
        return wide.astype("<f2").tobytes()
    return wide.tobytes() if dtype == "f32" else (wide.view("<u4") >> 16).astype("<u2").tobytes()


def safetensors(path, tensors):
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, dtype, shape in tensors:
        kind, size = TYPES[dtype]
        data = values(name, dtype, int(np.prod(shape, dtype=int)))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def lay_out(folder, into):
    """Writes the safetensors files of a model, with an index where there are several."""
    shards = {}
    for line in (folder / "tensors.txt").read_text().splitlines():
        shard, name, dtype, shape = line.split(" ")
        sizes = [int(size) for size in shape.split("x")] if shape != "-" else []
        shards.setdefault(shard, []).append((name, dtype, sizes))
    for shard, tensors in shards.items():
        safetensors(into / shard, tensors)
    if len(shards) > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": {name: shard for shard, tensors in shards.items() for name, *_ in tensors}}
        (into / "model.safetensors.index.json").write_text(json.dumps(index))


def list_tensors(folder, tensors, shards=1):
    tensors = sorted(tensors)
    names = ["model.safetensors"] if shards == 1 else [f"model-{at + 1:05}-of-{shards:05}.safetensors" for at in range(shards)]
    # Neighbours lie in different shards.
    lines = [f"{names[at % shards]} {name} {dtype} {'x'.join(map(str, shape)) or '-'}" for at, (name, dtype, shape) in enumerate(tensors)]
    (folder / "tensors.txt").write_text("\n".join(sorted(lines)) + "\n")


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n" if not isinstance(value, str) else value)


def byte_level(pattern, special, vocab=320, post=None):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated", False), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=vocab - len(special), initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if post:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT = "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"


def layers(count, hidden, inner, heads, kv, head, dtype, *, bias=False, qk_norm=False, more_norms=()):
    found = []
    for at in range(count):
        place = f"model.layers.{at}."
        for name, rows, columns in (("q", heads * head, hidden), ("k", kv * head, hidden), ("v", kv * head, hidden), ("o", hidden, heads * head)):
            found.append((f"{place}self_attn.{name}_proj.weight", dtype, [rows, columns]))
            if bias and name != "o":
                found.append((f"{place}self_attn.{name}_proj.bias", dtype, [rows]))
        if qk_norm:
            found += [(f"{place}self_attn.{name}_norm.weight", dtype, [head]) for name in "qk"]
        found += [(f"{place}mlp.{name}_proj.weight", dtype, [inner, hidden]) for name in ("gate", "up")]
        found.append((f"{place}mlp.down_proj.weight", dtype, [hidden, inner]))
        norms = ("input_layernorm", "post_attention_layernorm", *more_norms)
        found += [(f"{place}{name}.weight", dtype, [hidden]) for name in norms]
    return found


def whole(vocab, hidden, dtype, *, head=True):
    found = [("model.embed_tokens.weight", dtype, [vocab, hidden]), ("model.norm.weight", dtype, [hidden])]
    return found + ([("lm_head.weight", dtype, [vocab, hidden])] if head else [])


def llama3(folder):
    from tokenizers import processors

    def post(tokenizer):
        begin = "<|begin_of_text|>"
        template = processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1", special_tokens=[(begin, tokenizer.token_to_id(begin))])
        return processors.Sequence([processors.ByteLevel(trim_offsets=False), template])

    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    byte_level(LLAMA, special, post=post).save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[2],
          "clean_up_tokenization_spaces": True, "chat_template": CHAT, "model_input_names": ["input_ids", "attention_mask"]})
    write(folder, "generation_config.json", {"bos_token_id": 317, "do_sample": True, "eos_token_id": [318, 319], "temperature": 0.6, "top_p": 0.9})
    write(folder, "config.json", {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "bos_token_id": 317, "eos_token_id": 318,
          "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 131072, "mlp_bias": False, "model_type": "llama",
          "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
          "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
          "rope_theta": 500000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 320})
    list_tensors(folder, layers(2, 64, 96, 4, 2, 16, "bf16") + whole(320, 64, "bf16"), shards=2)
    return "llama-bpe"


def qwen2(folder):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    byte_level(QWEN, special).save(str(folder / "tokenizer.json"))
    added = {str(317 + at): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for at, token in enumerate(special)}
    write(folder, "tokenizer_config.json", {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": special[1:],
          "bos_token": None, "chat_template": CHAT, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "errors": "replace",
          "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
    write(folder, "generation_config.json", {"bos_token_id": 317, "pad_token_id": 317, "do_sample": True, "eos_token_id": [319, 317],
          "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20})
    write(folder, "config.json", {"architectures": ["Qwen2ForCausalLM"], "bos_token_id": 317, "eos_token_id": 319, "hidden_act": "silu", "hidden_size": 64,
          "intermediate_size": 96, "max_position_embeddings": 32768, "max_window_layers": 21, "model_type": "qwen2", "num_attention_heads": 4,
          "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
          "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 352})
    write(folder, "README.md", "---\nlicense: apache-2.0\nlicense_link: https://example.org/LICENSE\nlanguage:\n- en\npipeline_tag: text-generation\n"
          "base_model: Some/Base-1.5B\ntags:\n- chat\nlibrary_name: transformers\n---\n\n# A model\n")
    list_tensors(folder, layers(2, 64, 96, 4, 2, 16, "bf16", bias=True) + whole(352, 64, "bf16", head=False))
    return "qwen2"


def qwen3(folder):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    tokenizer = byte_level(QWEN, special[:3])
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in special[3:]])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"add_bos_token": False, "bos_token": None, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
          "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer", "unk_token": None})
    write(folder, "chat_template.jinja", CHAT)
    write(folder, "config.json", {"architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "bos_token_id": 317, "eos_token_id": 319, "head_dim": 32,
          "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 40960, "model_type": "qwen3",
          "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, "rope_theta": 1000000,
          "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "float16", "use_sliding_window": False, "vocab_size": 322})
    list_tensors(folder, layers(2, 64, 96, 4, 2, 32, "f16", qk_norm=True) + whole(322, 64, "f16"))
    return "qwen2"


def word_piece(folder, special):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False))
    pair = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=pair)
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"cls_token": "[CLS]", "do_lower_case": True, "mask_token": "[MASK]", "model_max_length": 512, "pad_token": "[PAD]",
          "sep_token": "[SEP]", "strip_accents": None, "tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"})
    return tokenizer.get_vocab_size()


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(folder):
    vocab = word_piece(folder, SPECIAL)
    write(folder, "config.json", {"architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 64, "intermediate_size": 80, "layer_norm_eps": 1e-12,
          "max_position_embeddings": 48, "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 2, "pad_token_id": 0, "type_vocab_size": 2,
          "vocab_size": vocab})
    write(folder, "modules.json", [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
          {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])
    (folder / "1_Pooling").mkdir(exist_ok=True)
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True})
    tensors = [("embeddings.position_ids", "i64", [1, 48]), ("embeddings.word_embeddings.weight", "f32", [vocab, 64]),
               ("embeddings.position_embeddings.weight", "f32", [48, 64]), ("embeddings.token_type_embeddings.weight", "f32", [2, 64]),
               ("embeddings.LayerNorm.weight", "f32", [64]), ("embeddings.LayerNorm.bias", "f32", [64]),
               ("pooler.dense.weight", "f32", [64, 64]), ("pooler.dense.bias", "f32", [64])]
    for at in range(2):
        place = f"encoder.layer.{at}."
        for name, rows, columns in (("attention.self.query", 64, 64), ("attention.self.key", 64, 64), ("attention.self.value", 64, 64),
                                    ("attention.output.dense", 64, 64), ("intermediate.dense", 80, 64), ("output.dense", 64, 80)):
            tensors += [(f"{place}{name}.weight", "f32", [rows, columns]), (f"{place}{name}.bias", "f32", [rows])]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors += [(f"{place}{name}.{part}", "f32", [64]) for part in ("weight", "bias")]
    list_tensors(folder, tensors)
    return "default"


def sentence_pieces(folder, vocab, **options):
    import sentencepiece

    with tempfile.TemporaryDirectory() as place:
        (pathlib.Path(place) / "text").write_text("\n".join(TEXT))
        sentencepiece.SentencePieceTrainer.train(input=f"{place}/text", model_prefix=f"{place}/tokenizer", vocab_size=vocab, model_type="bpe",
                                                 byte_fallback=True, character_coverage=0.98, minloglevel=2,
                                                 normalization_rule_name="identity", **options)
        (folder / "tokenizer.model").write_bytes((pathlib.Path(place) / "tokenizer.model").read_bytes())


def mistral(folder):
    sentence_pieces(folder, 340)
    added = {str(at): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for at, token in enumerate(["<unk>", "<s>", "</s>"])}
    added["340"] = {"content": "[INST]", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": False}
    write(folder, "tokenizer_config.json", {"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": added, "bos_token": "<s>", "eos_token": "</s>",
          "chat_template": CHAT, "legacy": False, "model_max_length": 1000000000000000019884624838656, "pad_token": None, "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>"})
    write(folder, "config.json", {"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
          "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 4, "num_hidden_layers": 2,
          "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
          "vocab_size": 344})
    list_tensors(folder, layers(2, 64, 96, 4, 2, 16, "bf16") + whole(344, 64, "bf16"))
    return ""


def gemma3(folder):
    sentence_pieces(folder, 340, pad_id=0, eos_id=1, bos_id=2, unk_id=3, user_defined_symbols=["<mask>", "<unused0>", "\n\n"])
    write(folder, "tokenizer_config.json", {"add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "eos_token": "</s>", "pad_token": "<pad>",
          "chat_template": CHAT, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>"})
    write(folder, "added_tokens.json", {"<image_soft_token>": 340})
    write(folder, "config.json", {"architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attn_logit_softcapping": None, "bos_token_id": 2, "eos_token_id": 1,
          "final_logit_softcapping": None, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 64, "intermediate_size": 96,
          "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 1,
          "pad_token_id": 0, "query_pre_attn_scalar": 32, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
          "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 341})
    norms = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
    list_tensors(folder, layers(2, 64, 96, 4, 1, 32, "bf16", qk_norm=True, more_norms=norms) + whole(344, 64, "bf16", head=False))
    return ""


def llama_hf(folder):
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    sentence_pieces(folder, 340)
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    (folder / "tokenizer.model").unlink()
    vocab = {pieces.id_to_piece(at): at for at in range(pieces.vocab_size())}
    merges = [(left, text[len(left):]) for text in vocab for left in (text[:cut] for cut in range(1, len(text))) if left in vocab and text[len(left):] in vocab]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.add_tokens(["<tool>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"add_bos_token": True, "add_eos_token": False, "add_prefix_space": False, "bos_token": {"content": "<s>", "__type": "AddedToken", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False},
          "eos_token": "</s>", "legacy": False, "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>"})
    write(folder, "config.json", {"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 96,
          "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 1, "rms_norm_eps": 1e-06, "torch_dtype": "float32", "vocab_size": 341})
    list_tensors(folder, layers(1, 48, 96, 4, 4, 12, "f32") + whole(341, 48, "f32") + [("model.layers.0.self_attn.rotary_emb.inv_freq", "f32", [6])])
    return ""


def nomic_bert(folder):
    vocab = word_piece(folder, SPECIAL)
    write(folder, "config.json", {"activation_function": "swiglu", "architectures": ["NomicBertModel"], "layer_norm_epsilon": 1e-12, "model_type": "nomic_bert", "n_embd": 64, "n_head": 4,
          "n_inner": 96, "n_layer": 2, "n_positions": 2048, "pad_vocab_size_multiple": 64, "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
          "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
          "type_vocab_size": 2, "use_rms_norm": False, "vocab_size": vocab + 8, "causal": False})
    tensors = [("embeddings.word_embeddings.weight", "f32", [vocab + 8, 64]), ("embeddings.token_type_embeddings.weight", "f32", [2, 64]),
               ("emb_ln.weight", "f32", [64]), ("emb_ln.bias", "f32", [64])]
    for at in range(2):
        place = f"encoder.layers.{at}."
        tensors += [(f"{place}attn.Wqkv.weight", "f32", [192, 64]), (f"{place}attn.out_proj.weight", "f32", [64, 64]), (f"{place}mlp.fc11.weight", "f32", [96, 64]),
                    (f"{place}mlp.fc12.weight", "f32", [96, 64]), (f"{place}mlp.fc2.weight", "f32", [64, 96])]
        tensors += [(f"{place}norm{norm}.{part}", "f32", [64]) for norm in (1, 2) for part in ("weight", "bias")]
    list_tensors(folder, tensors)
    return "default"


MODELS = {made.__name__: made for made in (llama3, qwen2, qwen3, bert, mistral, gemma3, llama_hf, nomic_bert)}
RUN = """
import os, runpy, sys
sys.path.insert(0, sys.argv[1])
import conversion.base as base
known = base.TextModel.get_vocab_base_pre
def named(self, tokenizer):
    try:
        return known(self, tokenizer)
    except NotImplementedError:
        return os.environ["PRE"]
base.TextModel.get_vocab_base_pre = named
# transformers 5 knows nomic_bert, but not the keys that configurations of its models have. Without the class the converter reads
# the file itself.
class Config(base.AutoConfig):
    @classmethod
    def from_pretrained(cls, folder, **options):
        if "nomic" in str(folder):
            raise ValueError("not a class of transformers")
        return base_config(folder, **options)
base_config = base.AutoConfig.from_pretrained
base.AutoConfig = Config
if "Q4" in os.environ:
    # The converter does not write Q4_0. It is told to take it for Q8_0, in the blocks of gguf-py.
    import gguf
    types = gguf.GGMLQuantizationType
    def other(kind):
        return types.Q4_0 if kind == types.Q8_0 else kind
    quantize, shape_of = gguf.quants.quantize, gguf.quant_shape_from_byte_shape
    add_tensor, add_file_type = gguf.GGUFWriter.add_tensor, gguf.GGUFWriter.add_file_type
    gguf.quants.quantize = lambda data, kind: quantize(data, other(kind))
    gguf.quant_shape_from_byte_shape = lambda shape, kind: shape_of(shape, other(kind))
    gguf.GGUFWriter.add_tensor = lambda self, name, tensor, raw_dtype=None: add_tensor(self, name, tensor, raw_dtype=other(raw_dtype))
    gguf.GGUFWriter.add_file_type = lambda self, kind: add_file_type(self, gguf.LlamaFileType.MOSTLY_Q4_0)
sys.argv = [sys.argv[1] + "/convert_hf_to_gguf.py"] + sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main():
    converter, wanted = sys.argv[1], sys.argv[2:] or list(MODELS)
    golden = HERE / "golden.txt"
    lines = [line for line in golden.read_text().splitlines() if line.split(" ")[0] not in wanted] if golden.exists() else []
    for name in wanted:
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        pre = MODELS[name](folder)
        with tempfile.TemporaryDirectory() as place:
            model = pathlib.Path(os.environ.get("KEEP", place)) / name
            subprocess.run(["cp", "-r", folder, model], check=True)
            (model / "tensors.txt").unlink()
            lay_out(folder, model)
            for kind in ("auto", "q8_0", "q4_0"):
                out = model.parent / f"{name}-{kind}.gguf"
                environment = dict(os.environ, PRE=pre, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
                if kind == "q4_0":
                    environment["Q4"] = "1"
                done = subprocess.run([sys.executable, "-c", RUN, converter, str(model), "--outtype", "q8_0" if kind == "q4_0" else kind, "--outfile", str(out)], env=environment, capture_output=True, text=True)
                if done.returncode:
                    sys.exit(f"{name} as {kind}:\n{done.stderr[-3000:]}")
                data = out.read_bytes()
                lines.append(f"{name} {kind} {len(data)} {hashlib.sha256(data).hexdigest()}")
        print(name)
    golden.write_text("\n".join(sorted(lines)) + "\n")


if __name__ == "__main__":
    main()
