"""Writes tensor_parallel_plans.txt: how transformers splits the matrices of each architecture over ranks.

    python tensor_parallel_plans.py > tensor_parallel_plans.txt

A line has the model type, the pattern of names and the plan of `base_model_tp_plan`. Plans of vision and audio models, of
experts and of whole modules are left out. Made with transformers 5.24.
"""
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

OTHER = ("vision", "audio", "encoder", "image", "patch", "speech")
PLANS = ("colwise", "rowwise", "embedding", "replicate")
print(f"# base_model_tp_plan of transformers {transformers.__version__}")
for kind in sorted(CONFIG_MAPPING.keys()):
    plan = getattr(CONFIG_MAPPING[kind], "base_model_tp_plan", None) or {}
    for pattern, how in plan.items():
        if how.startswith(PLANS) and not any(word in f"{kind} {pattern}" for word in OTHER):
            print(kind, pattern, how)
