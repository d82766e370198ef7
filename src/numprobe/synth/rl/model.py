"""One decoder: its sizes, its weights, its prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from numprobe.synth.rl.arithmetic import Array, to_bf16

Weights = dict[str, Array]


@dataclass(frozen=True)
class Model:
    """Attention with grouped heads (``groups`` of them share k and v), or ``latent`` with low-rank q and kv and an indexer.

    ``gate_scale`` is the size of what comes into the activation: from 4 on silu and gelu look alike in figures.
    """

    layers: int = 4
    hidden: int = 64
    heads: int = 8
    groups: int = 2
    ffn: int = 160
    vocab: int = 512
    tokens: int = 13
    latent: bool = False
    bias: bool = False
    gate_scale: float = 1.0
    q_rank: int = 32
    kv_rank: int = 24
    index_heads: int = 4

    @property
    def head(self) -> int:
        """Size of a head; of a latent one three quarters have no position and a quarter is rotated."""
        return self.hidden // self.heads

    @property
    def rope(self) -> int:
        return self.head // 4 if self.latent else self.head

    @property
    def nope(self) -> int:
        return self.head - self.rope


def make_weights(model: Model, draw: np.random.Generator) -> Weights:
    """By the names of this module: ``0.q`` ``[out, in]``; numbers are bfloat16. Gains are near 1 and differ."""
    m, found = model, {}

    def normal(rows: int, columns: int, scale: float = 1.0) -> Array:
        return draw.standard_normal((rows, columns), np.float32) * np.float32(scale / np.sqrt(columns))

    def gain(size: int) -> Array:
        return 1 + np.float32(0.1) * draw.standard_normal(size, np.float32)

    found["embed"] = draw.standard_normal((m.vocab, m.hidden), np.float32)
    for i in range(m.layers):
        one = {"attn_norm": gain(m.hidden), "mlp_norm": gain(m.hidden)}
        if m.latent:
            one |= {"q_a": normal(m.q_rank, m.hidden), "kv_a": normal(m.kv_rank + m.rope, m.hidden)}
            one |= {"q_a_norm": gain(m.q_rank), "kv_a_norm": gain(m.kv_rank)}
            one["q_b"] = normal(m.heads * m.head, m.q_rank, 2.0)
            one["kv_b"] = normal(m.heads * (m.nope + m.head), m.kv_rank, 2.0)
            one |= {"index_q": normal(m.index_heads * m.head, m.q_rank), "index_k": normal(m.head, m.hidden)}
            one |= {"index_k_norm": gain(m.head), "index_weights": normal(m.index_heads, m.hidden)}
        else:
            sizes = {"q": m.heads, "k": m.groups, "v": m.groups}
            for name, heads in sizes.items():
                one[name] = normal(heads * m.head, m.hidden, 1.0 if name == "v" else 2.0)
                if m.bias:
                    one[f"{name}_bias"] = np.float32(0.2) * draw.standard_normal(heads * m.head, np.float32)
        one["out"] = normal(m.hidden, m.heads * m.head)
        one["gate"] = normal(m.ffn, m.hidden, m.gate_scale)
        one["up"] = np.float32(0.3) * one["gate"] + np.float32(0.954) * normal(m.ffn, m.hidden, m.gate_scale)
        one["down"] = normal(m.hidden, m.ffn)
        found |= {f"{i}.{name}": weight for name, weight in one.items()}
    found["norm"], found["head"] = gain(m.hidden), normal(m.vocab, m.hidden)
    return {name: to_bf16(weight) for name, weight in found.items()}
