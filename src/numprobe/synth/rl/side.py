"""How one side computes the model, and what is wrong there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np

from numprobe.synth.rl.arithmetic import Arithmetic, Array
from numprobe.synth.rl.model import Model, Weights
from numprobe.synth.rl.recorder import Recorder, Spread


@dataclass(frozen=True)
class Side:
    """``style`` megatron, hf or engine; the rest is right unless a scenario says otherwise.

    ``short_figures``: Mean and Norm are in the dtype of the tensor. ``stale`` are weights by their factor, ``stale_shard`` is
    (weight, rank, factor) where ranks share weights. ``steps``: how many tokens each call of an engine takes, one after
    the other; empty: all in one.
    """

    style: str
    world: int = 1
    level: str = "L0"
    dtype: str = "bf16"
    parts: int = 1
    fused_norm: bool = False
    shows_activation: bool = True
    warm_up: int = 0
    short_figures: bool = False
    steps: tuple[int, ...] = ()
    activation: str = "silu"
    attention_factor: float = 1.0
    attention_layer: int | None = None
    rotary: str = "halves"
    epsilon: float = 1e-6
    embedding_factor: float = 1.0
    exchanged_halves: bool = False
    exchanged_heads: bool = False
    stacked_rows: bool = False
    stale: Mapping[str, float] = field(default_factory=dict)
    stale_shard: tuple[str, int, float] | None = None
    shift: int = 0
    nan_rank: int | None = None

    def healthy(self) -> Side:
        """The same program without any fault."""
        plain, names = Side(self.style), [f.name for f in fields(Side)]
        return replace(self, **{name: getattr(plain, name) for name in names[names.index("activation") :]})

    def factor(self, layer: int) -> float:
        """Of the scores of attention."""
        return self.attention_factor if self.attention_layer in (None, layer) else 1.0


class Runner(ABC):
    """What the three styles share: weights of every rank, and products over ranks.

    A value is a list with one array for each rank (:data:`Spread`).
    """

    def __init__(self, model: Model, side: Side, weights: Weights, recorder: Recorder) -> None:
        self.model, self.side, self.recorder = model, side, recorder
        self.arithmetic = Arithmetic(side.dtype, side.parts)
        self.weights = {
            name: self.arithmetic.round(w * np.float32(side.stale.get(name, 1.0))) for name, w in weights.items()
        }

    @abstractmethod
    def forward(self, ids: Array, first: int = 0) -> None:
        """One recorded call of the model over the ids ``[tokens]``; only an engine can go on at a position ``first``."""

    def same(self, x: Array) -> Spread:
        """On all ranks."""
        return [x] * self.side.world

    def rows(self, name: str) -> Spread:
        """A weight that is split by its rows: a column-parallel one."""
        return self._stale(name, np.split(self.weights[name], self.side.world))

    def columns(self, name: str) -> Spread:
        """A weight that is split by its columns: a row-parallel one."""
        return self._stale(name, np.split(self.weights[name], self.side.world, axis=1))

    def _stale(self, name: str, parts: list[Array]) -> Spread:
        shard = self.side.stale_shard
        if shard is not None and shard[0] == name:
            parts[shard[1]] = self.arithmetic.round(parts[shard[1]] * np.float32(shard[2]))
        return parts

    def linear(self, x: Spread, weight: Spread, bias: Spread | None = None) -> Spread:
        biases: list[Array | None] = list(bias) if bias else [None] * len(x)
        return [self.arithmetic.linear(a, w, b) for a, w, b in zip(x, weight, biases, strict=True)]

    def reduced(self, x: Spread, weight: Spread) -> Spread:
        """A product whose sum goes over the ranks: partial products, then all-reduce."""
        parts = self.linear(x, weight)
        return self.same(parts[0] if len(parts) == 1 else self.arithmetic.round(np.sum(parts, axis=0)))

    def norm(self, x: Spread, name: str) -> Spread:
        return [self.arithmetic.norm(a, self.weights[name], self.side.epsilon) for a in x]

    def add(self, x: Spread, y: Spread) -> Spread:
        return [self.arithmetic.add(a, b) for a, b in zip(x, y, strict=True)]

    def embedded(self, ids: Array) -> Spread:
        y = self.arithmetic.round(self.weights["embed"][ids] * np.float32(self.side.embedding_factor))
        return [np.full_like(y, np.nan) if rank == self.side.nan_rank else y for rank in range(self.side.world)]

    def attend(self, q: Array, k: Array, v: Array, layer: int) -> Array:
        """``[tokens, heads, d]``, rotated before; heads exchanged where the side does so."""
        y = self.arithmetic.attend(q, k, v, self.side.factor(layer))
        return np.ascontiguousarray(y[:, ::-1]) if self.side.exchanged_heads else y

    def halves(self, i: int) -> tuple[Spread, Spread]:
        """The rows that are taken for gate and up."""
        names = ("up", "gate") if self.side.exchanged_halves else ("gate", "up")
        one, other = (self.rows(f"{i}.{name}") for name in names)
        return one, other


def place_of(weight: str) -> str:
    """``3.down`` -> ``layers.3.down``: the place that a weight has in the truth."""
    return f"layers.{weight}" if weight[0].isdigit() else weight
