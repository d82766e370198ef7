"""A prefill of vLLM, in this process, so that hooks reach the model; with ``--answer`` also chunks and decode steps."""

from __future__ import annotations

import json
import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)

from recording import arguments, prompt, recorded, requests
from vllm import LLM, SamplingParams


def whole_rotary() -> None:
    """Rotary embeddings by vLLM's own PyTorch code: the CPU kernel of this release turns q wrongly where it is a slice of a
    larger tensor, as with latent attention."""
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

    RotaryEmbedding.forward_cpu = RotaryEmbedding.forward_native


if __name__ == "__main__":
    asked = arguments()
    if (
        json.loads((asked.checkpoint / "config.json").read_text()).get("kv_lora_rank")
        and asked.fault != "rotary_kernel"
    ):
        whole_rotary()
    engine = LLM(
        model=str(asked.checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=asked.dtype,
        max_model_len=128,
        max_num_seqs=4,
        enable_prefix_caching=False,
        **({"max_num_batched_tokens": 16, "enable_chunked_prefill": True} if asked.answer else {}),
    )
    model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    asks = requests() if asked.answer else [(prompt().tolist(), None)]
    settings = [
        SamplingParams(
            max_tokens=asked.answer or 1, temperature=0, detokenize=False, allowed_token_ids=[token] if token else None
        )
        for _, token in asks
    ]
    with recorded(model, asked):
        engine.generate([{"prompt_token_ids": ids} for ids, _ in asks], settings)
