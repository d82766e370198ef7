"""What a finding says of the record that it is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .written import call, compared, tensor, write

RANDOM = np.random.default_rng(0)
X, W, V = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (8, 4), (8,)))


MODULE = "Module.a.Linear.forward.0"


def sides(folder: Path, name: str, arguments: list[Any], wrong: int) -> list[Path]:
    """One call inside a module with a weight and a bias; one argument differs."""
    made = []
    for side, factor in (("t", 1.5), ("g", 1.0)):
        given = [factor * v if i == wrong else v for i, v in enumerate(arguments)]
        leaves = [tensor(v) if isinstance(v, np.ndarray) else {"type": "int", "value": v} for v in given]
        grads = {"Module.a.Linear.parameters_grad.0": {"weight": [tensor(W)], "bias": [tensor(V)]}}
        records = {name: call(leaves, [tensor(factor * (X @ W.T))])}
        made.append(write(folder / side, {**records, **grads}, {MODULE: None, name: MODULE}))
    return made


@pytest.mark.parametrize(
    ("name", "arguments", "wrong", "expected"),
    [
        ("Functional.linear.0.forward", [X, W, V], 1, "a.weight"),
        ("Functional.linear.0.forward", [X, W, V], 2, "a.bias"),
        ("Functional.layer_norm.0.forward", [X, 1, V, V], 2, "a.weight"),
        ("Torch.rms_norm.0.forward", [X, 1, V], 2, "a.weight"),
        ("Functional.batch_norm.0.forward", [X, 1, 1, V, V], 4, "a.bias"),
        ("Torch.addmm.0.forward", [V, X, W.T], 2, "a.weight"),
    ],
)
def test_a_parameter_has_the_name_of_its_place(
    tmp_path: Path, name: str, arguments: list[Any], wrong: int, expected: str
) -> None:
    found = compared(*sides(tmp_path, name, arguments, wrong)).findings[0]
    assert (found.op, found.cause, found.parameter) == (name, "parameter", expected)


@pytest.mark.parametrize(
    ("name", "arguments", "wrong", "expected"),
    [
        ("Tensor.t.0.forward", [W], 0, "a.weight"),
        ("Tensor.add.0.forward", [X, V], 1, "a.bias"),
        ("Tensor.mul.0.forward", [W, W[0]], 1, "a"),  # the module has no parameter of this shape
    ],
)
def test_a_parameter_that_any_call_was_given_is_known_by_its_shape(
    tmp_path: Path, name: str, arguments: list[Any], wrong: int, expected: str
) -> None:
    """Its figures are those of a parameter of another module."""
    value = arguments[wrong]
    dumps = sides(tmp_path, name, arguments, wrong)
    for step, factor in zip(dumps, (1.5, 1.0), strict=True):
        file = step / "rank0" / "dump.json"
        content = json.loads(file.read_text())
        other = {**call([], [tensor(X)]), "parameters": {"w": tensor(factor * np.asarray(value))}}
        content["data"]["Module.b.Other.forward.0"] = other
        file.write_text(json.dumps(content))
    found = compared(*dumps).findings[0]
    assert (found.op, found.cause, found.parameter) == (name, "parameter", expected)
