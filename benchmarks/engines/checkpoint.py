"""Random small checkpoints in Hugging Face's layout, right ones and ones with a fault. Runs where transformers is installed.

python checkpoint.py FOLDER llama|qwen3|qwen3_moe [--like CHECKPOINT --fault NAME]
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

SIZES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96, "norm_topk_prob": True}
LATENT = {  # sizes that vLLM's latent attention has kernels for
    "num_key_value_heads": 4,
    "first_k_dense_replace": 4,  # no experts
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "head_dim": 64,
}
KINDS = {"llama": "Llama", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "deepseek_v3": "DeepseekV3"}
SETTINGS = {  # fault -> what the configuration says then
    "activation": {"hidden_act": "gelu_pytorch_tanh"},
    "rotary_base": {"rope_theta": 500.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "epsilon": {"rms_norm_eps": 5e-2},
    "router": {"norm_topk_prob": False},
}


def make(folder: Path, kind: str) -> None:
    """Numbers of the size that trained models have; gains of norms differ from 1."""
    torch.manual_seed(5)
    name = KINDS[kind]
    more = EXPERTS if kind.endswith("moe") else LATENT if kind.startswith("deepseek") else {}
    config = getattr(transformers, f"{name}Config")(**SIZES | more)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for p in model.parameters():
            wide = torch.randn_like(p)
            p.copy_(1 + 0.1 * wide if p.dim() == 1 else 1.2 * wide / p.shape[-1] ** 0.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def spoil(source: Path, folder: Path, fault: str) -> None:
    """A copy with a fault of the conversion or of the configuration."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    if fault in SETTINGS:
        (folder / "config.json").write_text(json.dumps(config | SETTINGS[fault], indent=1))
        return
    weights = load_file(folder / "model.safetensors")
    for name in list(weights):
        if fault == "stale_weight" and "layers.1." in name and name.endswith("down_proj.weight"):
            weights[name] = (weights[name] * 1.03).contiguous()
        elif fault == "gate_up" and "gate_proj" in name:
            other = name.replace("gate_proj", "up_proj")
            weights[name], weights[other] = weights[other], weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--fault", default="")
    asked = parser.parse_args()
    if asked.fault:
        spoil(asked.like, asked.folder, asked.fault)
    else:
        make(asked.folder, asked.kind)
