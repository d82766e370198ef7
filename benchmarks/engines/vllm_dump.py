"""A prefill of vLLM, in this process, so that hooks reach the model."""

from __future__ import annotations

import os

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
)

from recording import arguments, prompt, recorded
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    asked = arguments()
    engine = LLM(
        model=str(asked.checkpoint),
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=asked.dtype,
        max_model_len=128,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    model = engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    with recorded(model, asked):
        engine.generate(
            [{"prompt_token_ids": prompt().tolist()}], SamplingParams(max_tokens=1, temperature=0, detokenize=False)
        )
