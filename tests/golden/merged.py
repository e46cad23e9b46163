"""Makes tests/golden/merged/: bases, adapters of them, and what PEFT merges.

Needs torch, transformers, safetensors and peft 0.21. Run: python tests/golden/merged.py
"""
import json
import shutil
import warnings
from pathlib import Path

import torch
from peft import LoHaConfig, LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

warnings.filterwarnings("ignore")
HERE = Path(__file__).parent / "merged"
torch.manual_seed(12)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(24, 40)
        self.k_proj = nn.Linear(24, 24, bias=False)
        self.c_attn = Conv1D(72, 24)
        self.c_proj = Conv1D(24, 24)
        self.norm = nn.LayerNorm(24)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(50, 24)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.conv = nn.Conv2d(6, 10, 3)
        self.point = nn.Conv2d(10, 12, 1)
        self.lm_head = nn.Linear(24, 50, bias=False)

    def forward(self, x):
        return self.lm_head(self.embed_tokens(x))


def base(dtype):
    torch.manual_seed(3)
    model = Model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    return model.to(dtype)


def tensors(model):
    return {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}


CASES = {
    "plain": ("bf16", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj"]}),
    "patterns": ("f16", {
        "r": 5, "lora_alpha": 7, "target_modules": ["q_proj", "k_proj"], "use_rslora": True,
        "rank_pattern": {"layers.1.q_proj": 3}, "alpha_pattern": {"layers.0.k_proj": 30, "q_proj": 11}}),
    "embedding": ("f32", {
        "r": 6, "lora_alpha": 3, "target_modules": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"], "bias": "all"}),
    "transposed": ("bf16", {
        "r": 4, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
    "convolution": ("f32", {"r": 3, "lora_alpha": 6, "target_modules": ["conv", "point"]}),
    "bias": ("f16", {"r": 2, "lora_alpha": 5, "target_modules": ["q_proj"], "lora_bias": True}),
    "pickle": ("bf16", {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}),
}
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

shutil.rmtree(HERE, ignore_errors=True)
for name, dtype in TYPES.items():
    folder = HERE / f"base-{name}"
    folder.mkdir(parents=True)
    save_file(tensors(base(dtype)), folder / "model.safetensors", metadata={"format": "pt"})
    # An architecture with Conv1D.
    (folder / "config.json").write_text('{"model_type": "gpt2"}\n')
for case, (dtype, options) in CASES.items():
    model = get_peft_model(base(TYPES[dtype]), LoraConfig(**options), autocast_adapter_dtype=case != "patterns")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "modules_to_save" in name:
                parameter.copy_(torch.randn(parameter.shape) * 0.3)
    model.save_pretrained(HERE / case, safe_serialization=case != "pickle")
    (HERE / case / "README.md").unlink(missing_ok=True)
    save_file(tensors(model.merge_and_unload()), HERE / f"{case}.safetensors")
REFUSED = {
    "dora": LoraConfig(r=2, target_modules=["q_proj"], use_dora=True),
    "loha": LoHaConfig(r=2, target_modules=["q_proj"]),
    "pissa": LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights="pissa"),
}
for case, config in REFUSED.items():
    get_peft_model(base(torch.float32), config).save_pretrained(HERE / case)
    (HERE / case / "README.md").unlink(missing_ok=True)
bases = {case: dtype for case, (dtype, _) in CASES.items()}
(HERE / "cases.json").write_text(json.dumps({"bases": bases, "refused": sorted(REFUSED)}, indent=1) + "\n")
