"""Makes a small llama with an adapter: `adapt.py FOLDER` makes FOLDER/base, FOLDER/lora, which PEFT saves, and FOLDER/merged, which it
merges. All sums are exact in f32, so their order does not matter.
"""
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
torch.manual_seed(5)
model = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=128)).float()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_((parameter * 256).round() / 256)
model.save_pretrained(folder / "base")
adapted = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM"))
with torch.no_grad():
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.copy_(torch.randint(-2, 3, parameter.shape) / 16)
adapted.save_pretrained(folder / "lora")
adapted.merge_and_unload().save_pretrained(folder / "merged")
