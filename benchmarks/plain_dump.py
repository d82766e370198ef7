"""A plain tensor-parallel dump of any size: layers of norm, linear, activation, linear, all_reduce, forward only.

One rank's activation makes an inf in a layer near the middle, the layer's all_reduce gives it to all. There is nothing in it
at which msProbe's `overflow_check` stops early or aborts, so that both tools can answer it (`peer.py`). `nan.py` uses it for
a quick look while simulated dumps are being changed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SHAPE = [1024, 2, 4096]


def write(folder: Path, *, ranks: int, megabytes: float, source: int, seed: int = 0) -> str:
    """Write step0/rank*/ with dump.json files of about the given size each; returns the name of the faulty record."""
    probe, _ = _layer(0, _Values(seed, 0, 0), _clean(random.Random(0)), dirty=False, begins=False)
    layers = max(4, round(megabytes * 1e6 / len(_members(probe))))
    fault = layers // 2
    for rank in range(ranks):
        texts: list[str] = []
        stacks: dict[str, Any] = {}
        construct: dict[str, str | None] = {}
        x = _clean(random.Random(seed))
        for layer in range(layers):
            values = _Values(seed, layer, rank)
            data, x = _layer(layer, values, x, dirty=layer >= fault, begins=rank == source and layer == fault)
            module = f"Module.layers.{layer}.mlp.MLP.forward.0"
            texts.append(_members(data))
            construct |= {name: None if name == module else module for name in data}
            stacks[str(layer)] = [list(data), ["File /workspace/model.py, line 40, in forward, \n x = block(x)"]]
        target = folder / "step0" / f"rank{rank}"
        target.mkdir(parents=True)
        head = '{\n "task": "statistics",\n "level": "mix",\n "framework": "pytorch",\n "dump_data_dir": null,\n "data": {\n'
        (target / "dump.json").write_text(head + ",\n".join(texts) + "\n }\n}")
        (target / "stack.json").write_text(json.dumps(stacks, indent=1))
        (target / "construct.json").write_text(json.dumps(construct, indent=1))
    return f"Torch.exp.{fault}.forward"


class _Values:
    """Where a layer's figures come from: `shared` gives every rank the same, `own` each rank its own."""

    def __init__(self, seed: int, layer: int, rank: int) -> None:
        self.shared = random.Random(f"{seed}/{layer}")
        self.own = random.Random(f"{seed}/{layer}/{rank}")


def _record(high: float, low: float, mean: float, norm: float) -> dict[str, Any]:
    head = {"type": "torch.Tensor", "dtype": "torch.bfloat16", "shape": SHAPE}
    return head | {"Max": high, "Min": low, "Mean": mean, "Norm": norm, "requires_grad": True}


def _clean(values: random.Random) -> dict[str, Any]:
    return _record(values.uniform(1, 9), -values.uniform(1, 9), values.gauss(0, 0.01), values.uniform(500, 900))


def _layer(
    layer: int, values: _Values, x: dict[str, Any], *, dirty: bool, begins: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(members of one layer, its output). In the layer where the fault begins only its rank is dirty before the all_reduce."""
    inf, nan = float("inf"), float("nan")
    all_nan = _record(nan, nan, nan, nan)
    relayed = x["Max"] != x["Max"]  # NaN came in

    def after(clean: dict[str, Any]) -> dict[str, Any]:
        return all_nan if relayed else clean

    normed = after(_clean(values.shared))
    up = after(_record(95.0, -3.0, 0.1, 700.0) if begins else _clean(values.own))
    exp = after(_record(inf, 0.05, inf, inf) if begins else _record(values.own.uniform(2, 9), 0.1, 1.1, 600.0))
    down = all_nan if begins else after(_clean(values.own))
    reduced = all_nan if dirty else _clean(values.shared)
    out = all_nan if dirty else _clean(values.shared)
    gamma, first, second = _clean(values.shared), _clean(values.own), _clean(values.own)
    calls = {
        f"Functional.rms_norm.{layer}.forward": ([x, gamma], normed),
        f"Functional.linear.{2 * layer}.forward": ([normed, first], up),
        f"Torch.exp.{layer}.forward": ([up], exp),
        f"Functional.linear.{2 * layer + 1}.forward": ([exp, second], down),
        f"Distributed.all_reduce.{layer}.forward": ([down], reduced),
        f"Tensor.__add__.{layer}.forward": ([x, reduced], out),
        f"Module.layers.{layer}.mlp.MLP.forward.0": ([x], out),
    }
    data = {
        name: {"input_args": inputs, "input_kwargs": {}, "output": [output]} for name, (inputs, output) in calls.items()
    }
    return data, out


def _members(data: dict[str, Any]) -> str:
    """The text of an object's members, one level deeper than json.dumps writes them."""
    return " " + json.dumps(data, indent=1)[2:-2].replace("\n", "\n ")
