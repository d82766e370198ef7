"""A forward pass of Hugging Face transformers."""

from __future__ import annotations

import torch
import transformers
from recording import arguments, recorded, sequences

asked = arguments()
model = transformers.AutoModelForCausalLM.from_pretrained(
    asked.checkpoint, dtype=getattr(torch, asked.dtype), attn_implementation="sdpa"
).eval()
with recorded(model, asked):
    for ids in sequences(asked.answer):
        model(ids[None])
