"""What a kernel computes, in float32 with the rounding of a dtype behind every operator, and in its own order of summation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


def to_bf16(x: Array) -> Array:
    """The nearest bfloat16, ties to even, as float32. NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """With tanh (Hendrycks and Gimpel 2016)."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.asarray(np.float32(0.5) * x * (1 + np.tanh(inner)))


def relu(x: Array) -> Array:
    return np.asarray(np.maximum(x, np.float32(0)))


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"silu": silu, "gelu": gelu, "relu": relu}


@dataclass(frozen=True)
class Arithmetic:
    """``dtype`` bf16 or fp32; ``parts``: how many partial sums a product is added up from."""

    dtype: str = "bf16"
    parts: int = 1

    def round(self, x: Array) -> Array:
        return to_bf16(x) if self.dtype == "bf16" else np.asarray(x, np.float32)

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """``x [..., k]`` times ``weight [n, k]``."""
        k = weight.shape[1]
        step = -(-k // self.parts)
        total = sum(x[..., a : a + step] @ weight[:, a : a + step].T for a in range(0, k, step))
        y = np.asarray(total, np.float32)
        return self.round(y if bias is None else y + bias)

    def norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """Root mean square over the last dimension, its parts one by one."""
        pieces = np.array_split(x * x, self.parts, axis=-1)
        mean = sum(p.sum(-1, keepdims=True, dtype=np.float32) for p in pieces) / np.float32(x.shape[-1])
        return self.round(self.round(x / np.sqrt(mean + np.float32(epsilon))) * weight)

    def activated(self, activation: str, gate: Array) -> Array:
        return self.round(ACTIVATIONS[activation](gate))

    def gated(self, activation: str, gate: Array, up: Array) -> Array:
        return self.round(self.activated(activation, gate) * up)

    def add(self, x: Array, y: Array) -> Array:
        return self.round(x + y)

    def rotate(self, x: Array, style: str, base: float = 10_000.0, first: int = 0) -> Array:
        """Rotary embedding of ``[tokens, heads, d]``: of the ``halves`` of a head, or of ``neighbours``; ``first`` is the
        position of the first token."""
        d = x.shape[-1]
        frequency = base ** -(np.arange(0, d, 2, dtype=np.float32) / d)
        angle = np.arange(first, first + len(x), dtype=np.float32)[:, None, None] * frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = (x[..., ::2], x[..., 1::2]) if style == "neighbours" else (x[..., : d // 2], x[..., d // 2 :])
        turned = [a * cos - b * sin, b * cos + a * sin]
        if style == "neighbours":
            return self.round(np.stack(turned, -1).reshape(x.shape))
        return self.round(np.concatenate(turned, -1))

    def attend(self, q: Array, k: Array, v: Array, factor: float) -> Array:
        """Causal attention of ``q [tokens, heads, d]`` over ``k`` and ``v`` with as many heads or one for several. Where
        there are more of those, the first ones are of earlier tokens."""
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
        scores = q @ k.transpose(0, 2, 1) * np.float32(factor / np.sqrt(q.shape[-1]))
        scores = np.where(
            np.tri(q.shape[1], k.shape[1], k.shape[1] - q.shape[1], dtype=bool), scores, np.float32(-1e30)
        )
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.round((self.round(weights) @ v).transpose(1, 0, 2))
