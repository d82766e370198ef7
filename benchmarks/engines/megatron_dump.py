"""A forward pass of Megatron-Core over gloo, tensor, pipeline and expert parallel: --tp --pp --vpp --ep.

Two functions that ask for a CUDA device are replaced, and a name that a module forgets is set; everything else is as released,
with the local layer specification.
``--fault qkv`` leaves the rows of q, k and v stacked, ``--fault shard`` scales the part of one weight on the last rank.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from recording import arguments, recorded, sequences
from safetensors.torch import load_file
from torch import Tensor

ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_pytorch_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}
Config = dict[str, Any]


def run(rank: int, asked: argparse.Namespace, port: int) -> None:
    world = max(asked.tp * asked.pp, asked.ep)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils

    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    moe_utils.te_general_gemm = None  # left undefined where Transformer Engine is missing
    parallel_state.initialize_model_parallel(
        asked.tp, asked.pp, virtual_chunks(asked), expert_model_parallel_size=asked.ep
    )
    config = json.loads((asked.checkpoint / "config.json").read_text())
    models = [build(config, asked, chunk) for chunk in range(asked.vpp)]
    for chunk, model in enumerate(models):
        load(model, config, asked, chunk)
        model.eval()
    with recorded(models if asked.vpp > 1 else models[0], asked, rank):
        for sequence in sequences(asked.answer):
            one_pass(models, sequence, asked, config)
    dist.destroy_process_group()


def virtual_chunks(asked: argparse.Namespace) -> int | None:
    return asked.vpp if asked.vpp > 1 else None


def build(c: Config, asked: argparse.Namespace, chunk: int) -> torch.nn.Module:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    dtype, normed, experts = getattr(torch, asked.dtype), c["model_type"].startswith("qwen3"), expert_count(c)
    moe: Config = {}
    if experts:
        moe = {
            "num_moe_experts": experts,
            "moe_router_topk": c["num_experts_per_tok"],
            "moe_ffn_hidden_size": c["moe_intermediate_size"],
            "moe_router_pre_softmax": not c["norm_topk_prob"],
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "allgather",
            "expert_model_parallel_size": asked.ep,
        }
    settings = TransformerConfig(
        num_layers=c["num_hidden_layers"],
        hidden_size=c["hidden_size"],
        num_attention_heads=c["num_attention_heads"],
        num_query_groups=c["num_key_value_heads"],
        kv_channels=c["head_dim"],
        ffn_hidden_size=c["intermediate_size"],
        use_cpu_initialization=True,
        gated_linear_unit=True,
        activation_func=ACTIVATIONS[c["hidden_act"]],
        normalization="RMSNorm",
        layernorm_epsilon=c["rms_norm_eps"],
        add_bias_linear=False,
        qk_layernorm=normed,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        bias_activation_fusion=False,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        tensor_model_parallel_size=asked.tp,
        pipeline_model_parallel_size=asked.pp,
        virtual_pipeline_model_parallel_size=virtual_chunks(asked),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        **moe,
    )
    base = (c.get("rope_parameters") or {}).get("rope_theta") or c.get("rope_theta", 10_000)
    model: torch.nn.Module = GPTModel(
        config=settings,
        transformer_layer_spec=get_gpt_layer_local_spec(
            normalization="RMSNorm", qk_layernorm=normed, num_experts=experts
        ),
        vocab_size=c["vocab_size"],
        max_sequence_length=256,
        position_embedding_type="rope",
        rotary_base=int(base),
        share_embeddings_and_output_weights=False,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
        vp_stage=chunk if asked.vpp > 1 else None,
    ).to(dtype)
    return model


def expert_count(c: Config) -> int | None:
    return c.get("num_experts") or c.get("num_local_experts")


def load(model: torch.nn.Module, c: Config, asked: argparse.Namespace, chunk: int) -> None:
    """The checkpoint's weights, converted, and of each the part of this rank."""
    from megatron.core import parallel_state as ps

    weights = load_file(asked.checkpoint / "model.safetensors")
    rank, last = ps.get_tensor_model_parallel_rank(), dist.get_rank() == dist.get_world_size() - 1
    each = c["num_hidden_layers"] // (asked.pp * asked.vpp)
    first = (chunk * asked.pp + ps.get_pipeline_model_parallel_rank()) * each

    def rows(w: Tensor) -> Tensor:
        return w.chunk(asked.tp, 0)[rank]

    def columns(w: Tensor) -> Tensor:
        return w.chunk(asked.tp, 1)[rank]

    found = {
        "embedding.word_embeddings.weight": rows(weights["model.embed_tokens.weight"]),
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
        "output_layer.weight": rows(weights["lm_head.weight"]),
    }
    for i in range(each):
        ours, theirs = f"decoder.layers.{i}.", f"model.layers.{first + i}."
        part = {n.removeprefix(theirs): w for n, w in weights.items() if n.startswith(theirs)}
        found |= {
            f"{ours}self_attention.linear_qkv.weight": rows(grouped(part, c, stacked=asked.fault == "qkv")),
            f"{ours}self_attention.linear_proj.weight": columns(part["self_attn.o_proj.weight"]),
            f"{ours}input_layernorm.weight": part["input_layernorm.weight"],
            f"{ours}pre_mlp_layernorm.weight": part["post_attention_layernorm.weight"],
        }
        if c["model_type"].startswith("qwen3"):
            for n in "qk":
                found[f"{ours}self_attention.{n}_layernorm.weight"] = part[f"self_attn.{n}_norm.weight"]
        if expert_count(c):
            found |= experts(part, f"{ours}mlp.", c, asked)
        else:
            gate, up = part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]
            down = columns(part["mlp.down_proj.weight"])
            if asked.fault == "shard" and last and i == 0:
                down = down * 0.9
            found[f"{ours}mlp.linear_fc1.weight"] = torch.cat([rows(gate), rows(up)])
            found[f"{ours}mlp.linear_fc2.weight"] = down
    own = model.state_dict()
    wanted = {n for n, w in own.items() if isinstance(w, Tensor) and "_extra_state" not in n}
    lacking = wanted - found.keys()
    if lacking:
        raise SystemExit(f"no weight in the checkpoint for {sorted(lacking)[:5]}")
    dtype = getattr(torch, asked.dtype)
    model.load_state_dict({n: found[n].to(dtype).clone() for n in wanted}, strict=False)


def grouped(part: dict[str, Tensor], c: Config, *, stacked: bool) -> Tensor:
    """Rows of q, k and v by query group."""
    heads, groups, size, hidden = (
        c[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    )
    q, k, v = (part[f"self_attn.{n}_proj.weight"] for n in "qkv")
    if stacked:
        return torch.cat([q, k, v])
    parts = [w.view(groups, n * size, hidden) for w, n in ((q, heads // groups), (k, 1), (v, 1))]
    return torch.cat(parts, 1).reshape(-1, hidden)


def experts(part: dict[str, Tensor], ours: str, c: Config, asked: argparse.Namespace) -> dict[str, Tensor]:
    """Router, and the experts of this rank or the parts of all; transformers keeps them one by one or all in one tensor."""
    from megatron.core import parallel_state

    count, rank = (expert_count(c) or 0) // asked.ep, parallel_state.get_tensor_model_parallel_rank()
    first = parallel_state.get_expert_model_parallel_rank() * count
    found = {f"{ours}router.weight": part["mlp.gate.weight"]}
    for e in range(count):
        name, own = f"mlp.experts.{first + e}.", f"{ours}experts.local_experts.{e}."
        if f"{name}down_proj.weight" in part:
            gate, up, down = (part[f"{name}{n}_proj.weight"] for n in ("gate", "up", "down"))
        else:
            gate, up = part["mlp.experts.gate_up_proj"][first + e].chunk(2)
            down = part["mlp.experts.down_proj"][first + e]
        found[f"{own}linear_fc1.weight"] = torch.cat([w.chunk(asked.tp)[rank] for w in (gate, up)])
        found[f"{own}linear_fc2.weight"] = down.chunk(asked.tp, 1)[rank]
    return found


def one_pass(models: list[torch.nn.Module], sequence: Tensor, asked: argparse.Namespace, c: Config) -> None:
    """Through the first model of every stage, then through the second."""
    from megatron.core import parallel_state as ps

    tokens = len(sequence)
    ids, positions = sequence[None], torch.arange(tokens)[None]
    mask = torch.ones(1, 1, tokens, tokens).triu(1).bool()
    shape, dtype = (tokens, 1, c["hidden_size"]), getattr(torch, asked.dtype)
    for model in models:
        if not model.pre_process:
            hidden = torch.empty(shape, dtype=dtype)
            dist.recv(hidden, ps.get_pipeline_model_parallel_prev_rank())
            model.set_input_tensor(hidden)
        y = model(ids, positions, mask)
        if not model.post_process:
            dist.send(y.contiguous(), ps.get_pipeline_model_parallel_next_rank())


if __name__ == "__main__":
    options = arguments("tp", "pp", "vpp", "ep")
    ranks = max(options.tp * options.pp, options.ep)
    free = 20_000 + os.getpid() % 20_000
    if ranks == 1:
        run(0, options, free)
    else:
        mp.spawn(run, (options, free), nprocs=ranks)
