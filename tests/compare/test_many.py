"""What is judged many at a time is judged as it is one by one: the same verdicts, figures and findings, to the last bit."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from numprobe.compare import many
from numprobe.compare.judge import judge
from numprobe.compare.ledger import _numbers_of
from numprobe.compare.rank import Compared, RankTask, compare_ranks
from numprobe.formats.dump import open_dump

from .written import Entry, write

APIS = (
    *("linear", "matmul", "add", "__add__", "mul", "silu", "layer_norm", "softmax", "exp", "view", "embedding", "topk"),
    *("scaled_dot_product_attention", "cross_entropy", "rand_like", "empty_like", "relu", "addmm", "something_new"),
)
LARGE = ([4, 8, 64], [64, 64], [4, 1, 64], [2048])
SHAPES = (*LARGE, [3], [], [0, 4])
Leaf = dict[str, object]


class Program:
    """Two runs of a program: every figure of the target is off by noise, now and then by more."""

    def __init__(self, seed: int, trouble: float, digests: bool, backward: bool) -> None:
        self.draw = random.Random(seed)
        self.trouble, self.digests, self.backward = trouble, digests, backward
        self.dtype, self.noise = self.draw.choice([("torch.float32", 1e-7), ("torch.bfloat16", 1e-3)])
        self.calls: dict[str, int] = {}
        self.weights = [self.leaf(1e-3) for _ in range(5)]
        self.records: tuple[dict[str, Entry], dict[str, Entry]] = ({}, {})
        self.parents: dict[str, str | None] = {}
        self.alive = [self.leaf()]

    def leaf(self, of_noise: float = 1.0) -> tuple[Leaf, Leaf]:
        draw = self.draw
        size = draw.choice(SHAPES if draw.random() < 0.1 else LARGE)
        figures = [draw.uniform(0.1, 5), -draw.uniform(0.1, 5), draw.gauss(0, 0.01), draw.uniform(10, 100)]
        if draw.random() < 0.05:
            figures = [0.0, 0.0, 0.0, 0.0]
        more = draw.choice([8, 60]) if draw.random() < self.trouble else of_noise
        off = 0.0 if draw.random() < (1 - self.trouble if self.digests else self.trouble) else self.noise * more
        near = [f * (1 + draw.gauss(0, off)) for f in figures] if off else list(figures)
        if draw.random() < self.trouble:
            near[0] = draw.choice([float("nan"), float("inf"), 1e30, 9.0])
        both = []
        for numbers in (near, figures):
            names = ("Max", "Min", "Mean", "Norm")
            leaf: Leaf = {
                "type": "torch.Tensor",
                "dtype": self.dtype,
                "shape": size,
                **dict(zip(names, numbers, strict=True)),
            }
            both.append({**leaf, "md5": f"{crc32(repr(numbers).encode()):08x}"} if self.digests else leaf)
        if draw.random() < self.trouble:
            both[0]["shape"] = [7, 7]
        return both[0], both[1]

    def call(self, parent: str | None) -> tuple[Leaf, Leaf]:
        draw = self.draw
        api = draw.choice(APIS)
        number = self.calls[api] = self.calls.get(api, -1) + 1
        name = f"{'Tensor' if api.startswith('_') else 'Functional'}.{api}.{number}.forward"
        inputs: list[tuple[object, object]] = [draw.choice(self.alive[-3:])]
        if draw.random() < 0.5:
            inputs.append(draw.choice(self.weights if draw.random() < 0.7 else [*self.alive, self.leaf()]))
        if draw.random() < 0.3:
            value = {"type": "float", "value": 0.5}
            inputs.append(({**value, "value": 0.75} if draw.random() < self.trouble else value, value))
        outputs = [self.leaf() for _ in range(draw.choice([1, 1, 1, 2, 0]))]
        lacks = [draw.random() < self.trouble / 4 for _ in range(2)]
        for side in range(2):
            if not lacks[side]:
                args = [i[side] for i in inputs]
                self.records[side][name] = {
                    "input_args": args,
                    "input_kwargs": {},
                    "output": [o[side] for o in outputs],
                }
        if draw.random() < 0.3:
            weight = draw.choice(self.weights)
            for side in (s for s in range(2) if not lacks[s]):
                self.records[side][name] = {**self.records[side][name], "parameters": {"weight": weight[side]}}
        self.parents[name] = parent
        self.alive += outputs
        return outputs[-1] if outputs else self.alive[-1]

    def module(self, path: str, parent: str | None, depth: int) -> tuple[Leaf, Leaf]:
        name = f"Module.{path}.Block.forward.0"
        given = self.alive[-1]
        inner = self.alive[-1]
        for k in range(self.draw.randrange(1, 5)):
            deeper = depth and self.draw.random() < 0.3
            inner = self.module(f"{path}.{k}", name, depth - 1) if deeper else self.call(name)
        output = inner if self.draw.random() < 0.8 else self.leaf()
        for side in range(2):
            weight = self.weights[len(path) % len(self.weights)][side]
            entry: dict[str, object] = {"input_args": [given[side]], "input_kwargs": {}, "output": [output[side]]}
            self.records[side][name] = {**entry, "parameters": {"weight": weight}}
        self.parents[name] = parent
        self.alive.append(output)
        return output

    def write(self, folder: Path) -> tuple[Path, Path]:
        for layer in range(self.draw.randrange(5, 40)):
            if self.draw.random() < 0.6:
                self.module(f"layers.{layer}", None, 2)
            else:
                self.call(None)
        if self.backward:
            for side in range(2):
                for name in [n for n in self.records[side] if n.startswith("Functional")][::-2]:
                    entry = self.records[side][name]
                    self.records[side][name.replace("forward", "backward")] = {
                        "input": entry["output"],
                        "output": entry["input_args"],
                    }
        target, golden = (
            write(folder / side, records, self.parents) for side, records in zip("tg", self.records, strict=True)
        )
        return target, golden


def told(compared: Compared) -> Iterator[object]:
    j = compared.judgement
    yield from map(repr, (j.verdict, j.status, [*j.rho], [*j.expected], j.cause, j.findings))
    yield compared.measures.reason.tolist()


def judged(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fewest: int) -> tuple[int, int]:
    """Compare both ways, which must give the same; returns how many pairs were judged at once, of how many."""
    task = RankTask(None, *(open_dump(step, use_cache=False).steps[0].ranks[0] for step in pair))
    blocks = []
    block = many.Many._block

    def counted(self: many.Many, begin: int, end: int) -> int:
        reached = block(self, begin, end)
        blocks.append(reached - begin)
        return reached

    with monkeypatch.context() as patch:
        patch.setattr(many.Many, "_block", counted)
        patch.setattr(many, "FEWEST", fewest)
        at_once = compare_ranks(task)
    with monkeypatch.context() as patch:
        patch.setattr(many.Many, "judge", lambda self, pair: pair)
        assert list(told(at_once)) == list(told(compare_ranks(task)))
    return sum(blocks), len(at_once.records)


@pytest.mark.parametrize("digests", [False, True])
@pytest.mark.parametrize("trouble", [0.002, 0.05])
@pytest.mark.parametrize("seed", range(12))
def test_many_at_a_time_is_as_one_by_one(
    seed: int, trouble: float, digests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(Program(seed, trouble, digests, backward=seed % 3 == 0).write(tmp_path), monkeypatch, 2 + 5 * seed)


@pytest.mark.parametrize("digests", [False, True])
def test_most_of_two_runs_that_agree_is_judged_at_once(
    digests: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for seed in range(20, 50):
        pair = Program(seed, 0.0, digests, backward=False).write(tmp_path / str(seed))
        found.append(judged(pair, monkeypatch, 256))
    at_once, every = (sum(column) for column in zip(*found, strict=True))
    assert at_once > every / 2


def test_the_same_figures_have_the_same_number() -> None:
    draw = np.random.default_rng(0)
    columns = [draw.choice([0.0, -0.0, 1.5, -2.0, np.nan, np.inf], 3000) for _ in range(4)]
    numbers = _numbers_of(columns)
    known: dict[str, int] = {}
    for row, number in zip(zip(*(c.tolist() for c in columns), strict=True), numbers.tolist(), strict=True):
        assert known.setdefault(repr([x + 0.0 for x in row]), number) == number
    assert len(set(known.values())) == len(known)


@pytest.mark.parametrize("trouble", [0.0, 0.02])
def test_no_leaf_costs_an_object_a_figure(trouble: float, tmp_path: Path) -> None:
    """With a finding every row is looked at by itself: of a million records that must not take gigabytes."""
    program = Program(5, trouble, False, backward=False)
    for _ in range(3000):
        program.call(None)
    sides = (write(tmp_path / side, of, program.parents) for side, of in zip("tg", program.records, strict=True))
    task = RankTask(None, *(open_dump(step, use_cache=False).steps[0].ranks[0] for step in sides))
    found = compare_ranks(task)
    assert bool(found.judgement.findings) == bool(trouble)
    tracemalloc.start()
    judge(found.target, found.golden, found.records, found.leaves, found.measures)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / len(found.leaves) < 500
