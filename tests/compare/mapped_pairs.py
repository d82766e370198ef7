"""Pairs of dumps whose names differ, as MindSpore and PyTorch would write them, and what msProbe makes of them.

python -m tests.compare.mapped_pairs MSPROBE

MSPROBE is the program in an environment that has MindSpore; without it msProbe does not compare a MindSpore target. Writes the
folders ``layers``, ``cells`` and ``apis`` of ``tests/data/compare/msprobe``.
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

STORE = Path(__file__).parent.parent / "data" / "compare" / "msprobe"
FRAMES = ["File a.py, line 3, in forward, \n y=x"]
Data = dict[str, Any]

LAYERS = """TopLayer:
  net: model
Net:
  embedding.word: word_embeddings
TransformerLayer:
  attention: self_attn
Attn:
  qkv: query_key_value
"""
CELLS = "net.fc1.Dense: model.fc1.Linear\nnet: model\nDense: Linear\n"
ITEMS = """Cell.net.fc1.Dense.forward.0.input.0: Module.model.fc1.Linear.forward.0.input.0
Mint.add.0.forward.input.0: Torch.add.0.forward.input.1
Mint.add.0.forward.input.1: Torch.add.0.forward.input.1
Tensor.equal.0.forward.output.0: N/A
"""
SWAPPED = """- ms_api: Mint.add
  pt_api: Torch.add
  ms_args: [0, 1]
  pt_args: [1, 0]
  ms_output: [0]
  pt_output: [0]
"""
RENAMED = f"""{SWAPPED}- ms_api: Functional.x
  pt_api: Torch.y
  ms_args: [0, dim]
  pt_args: [0, 1]
  ms_output: [1]
  pt_output: [0]
"""


def tensor(seed: int) -> Data:
    """The same figures for the same seed."""
    values = [random.Random(seed).uniform(-2, 2) + i / 100 for i in range(20)]
    norm = sum(v * v for v in values) ** 0.5
    figures = {"Max": max(values), "Min": min(values), "Mean": sum(values) / 20, "Norm": norm}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 5], **figures, "requires_grad": False}


def call(seed: int, inputs: int = 1, **more: object) -> Data:
    args = [tensor(seed + i) for i in range(inputs)]
    return {"input_args": args, "input_kwargs": {}, "output": [tensor(seed + 100)], **more}


def backward(seed: int, outputs: int = 1) -> Data:
    return {"input": [tensor(seed)], "output": [tensor(seed + i) for i in range(1, outputs + 1)]}


def layers(mindspore: bool) -> tuple[Data, dict[str, str | None]]:
    """Two layers of a transformer, which the target counts from 4, and a module that the other side lacks."""
    kind, root, top, attn, attn_class, qkv, linear, api = (
        ("Cell", "net", "Net", "attention", "Attn", "qkv", "Dense", "Functional")
        if mindspore
        else ("Module", "model", "Model", "self_attn", "Attention", "query_key_value", "Linear", "Torch")
    )
    word = "embedding.word" if mindspore else "word_embeddings"

    def module(path: str) -> str:
        return f"{kind}.{root}.{path}.forward.0" if path != top else f"{kind}.{root}.{top}.forward.0"

    data, parents = {module(top): call(1)}, {module(top): None}

    def add(name: str, entry: Data, parent: str | None) -> None:
        data[name], parents[name] = entry, parent  # type: ignore[assignment]

    stack = module("decoder.ParallelTransformer")
    for i, number in enumerate((4, 5) if mindspore else (0, 1)):
        layer = module(f"decoder.layers.{number}.TransformerLayer")
        attention = module(f"decoder.layers.{number}.{attn}.{attn_class}")
        add(layer, call(10 + i), stack)
        add(attention, call(20 + i), layer)
        add(module(f"decoder.layers.{number}.{attn}.{qkv}.{linear}"), call(30 + i), attention)
        add(f"{api}.softmax.{i}.forward", call(40 + i), attention)
        add(f"{api}.softmax.{i}.backward", backward(50 + i), attention.replace("forward", "backward"))
    add(stack, call(2), module(top))
    add(module(f"{word}.{top}Embedding"), call(60), module(top))
    add(module(f"zz_only_{root}.X"), call(61), module(top))
    return data, parents


def cells(mindspore: bool) -> Data:
    """A few modules and functions under both names."""
    a = ("Cell.net", "Dense", "Mint.add", "Functional.dense", "MintFunctional.softmax", "Tensor.equal")
    b = ("Module.model", "Linear", "Torch.add", "Functional.linear", "Functional.softmax", "Tensor.eq")
    root, linear, add, dense, softmax, equal = a if mindspore else b
    return {
        f"{root}.fc1.{linear}.forward.0": call(1, parameters={"weight": tensor(7)}),
        f"{root}.fc2.{linear}.forward.0": call(2),
        f"{root}.norm.LayerNorm.forward.0": call(3),
        f"{add}.0.forward": call(4, 2),
        f"{dense}.0.forward": call(5),
        f"{softmax}.0.forward": call(6),
        f"{equal}.0.forward": call(8),
        f"{root}.fc1.{linear}.backward.0": backward(20),
        f"{root}.fc1.{linear}.parameters_grad.0": {"weight": [tensor(30)]},
    }


def apis(mindspore: bool) -> Data:
    """An addition with its gradients, and a function whose keyword is a position on the other side."""
    add, other = ("Mint.add", "Functional.x") if mindspore else ("Torch.add", "Torch.y")
    arguments = (
        {"input_args": [tensor(1)], "input_kwargs": {"dim": tensor(2)}}
        if mindspore
        else {"input_args": [tensor(1), tensor(2)], "input_kwargs": {}}
    )
    outputs = [tensor(3), tensor(4)] if mindspore else [tensor(4), tensor(5)]
    return {
        f"{add}.0.forward": call(4, 2),
        f"{add}.0.backward": backward(1, 2),
        f"{other}.0.forward": {**arguments, "output": outputs},
    }


def write(folder: Path, mindspore: bool, data: Data, parents: dict[str, str | None] | None = None) -> None:
    folder.mkdir(parents=True)
    framework = "mindspore" if mindspore else "pytorch"
    content = {"task": "statistics", "level": "mix", "framework": framework, "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "stack.json").write_text(json.dumps({"0": [list(data), FRAMES]}), encoding="utf-8")
    if parents is not None:
        (folder / "construct.json").write_text(json.dumps(parents), encoding="utf-8")


def main(msprobe: str) -> None:
    for name in ("layers", "cells", "apis"):
        shutil.rmtree(STORE / name, ignore_errors=True)
    for mindspore, side in ((True, "target"), (False, "golden")):
        write(STORE / "layers" / side, mindspore, *layers(mindspore))
        write(STORE / "cells" / side, mindspore, cells(mindspore))
        write(STORE / "apis" / side, mindspore, apis(mindspore))
    for folder, file, text, option, result in (
        ("layers", "layers.yaml", LAYERS, "-lm", "result"),
        ("cells", "cells.yaml", CELLS, "-cm", "by_cell"),
        ("cells", "items.yaml", ITEMS, "-dm", "by_item"),
        ("cells", "apis.yaml", SWAPPED, "-am", "by_api"),
        ("apis", "apis.yaml", RENAMED, "-am", "result"),
    ):
        place = STORE / folder
        (place / file).write_text(text, encoding="utf-8")
        sides = ["-tp", place / "target" / "dump.json", "-gp", place / "golden" / "dump.json"]
        subprocess.run([msprobe, "compare", *sides, option, place / file, "-o", place / result], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
