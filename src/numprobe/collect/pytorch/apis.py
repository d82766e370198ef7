"""Which functions are recorded, how much each matters, and which arguments of them hold nothing: the tables of ``apis.json``.

The names are those of msProbe, so that call counters agree (HOK-1, HOK-2, CFG-6).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container, Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


class Api(NamedTuple):
    """A function to wrap: ``getattr(resolve(owner), attribute)`` is recorded as ``{prefix}.{attribute}.{call}.forward``."""

    prefix: str
    owner: str
    attribute: str


class Mask(NamedTuple):
    """Arguments and outputs of an API that are recorded as null, by position or keyword: buffers not yet or no more valid."""

    inputs: Container[int | str]
    outputs: Container[int | str]


class Everything:
    """Holds every position and keyword."""

    def __contains__(self, _: object) -> bool:
        return True


def wrapped_apis() -> list[Api]:
    """Every function to wrap that exists here and now, in the order of the tables.

    Packages other than torch count only when the program has imported them, since importing some of them changes it; ask again
    when a run starts. About a millisecond.
    """
    found: list[Api] = []
    for group in _tables()["wrapped"]:
        for root in group["owners"]:
            if not _is_loaded(root):
                continue
            for dotted in group["names"]:
                path, _, attribute = f"{root}.{dotted}".rpartition(".")
                if hasattr(resolve(path), attribute):
                    found.append(Api(group["prefix"], path, attribute))
    return found


def resolve(path: str) -> Any:
    """The module or class of a dotted path such as ``torch.linalg`` or ``torch.Tensor``; None if there is none."""
    parts = path.split(".")
    owner: Any = import_module(parts[0]) if parts[0] in ("torch", "numpy", "random") else sys.modules.get(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        owner = getattr(owner, part, None) or sys.modules.get(".".join(parts[:depth]))
    return owner


def known_names() -> frozenset[str]:
    """The names that a pre-check's ``white_list`` and ``black_list`` may hold: ``conv2d``, ``linalg.inv``."""
    groups = _tables()["wrapped"]
    return frozenset(
        name
        for group in groups
        if group["prefix"] in ("Functional", "Tensor", "Torch", "NPU")
        for name in group["names"]
    )


@lru_cache(maxsize=2)
def core_apis(compat: bool = False) -> frozenset[str]:
    """The APIs that decide results: matrix products, convolutions, normalisations, embeddings, attention, by bare name.

    Ours holds ``linear`` and ``chain_matmul``, which the reference loses to a typing error; ``compat`` leaves them out too.
    Communication, NPU and MindSpeed functions all count as core: see :func:`passes_risk`.
    """
    tables = _tables()
    names = tables["core"] if compat else [*tables["core"], *tables["core_of_ours"]]
    return frozenset(name.rpartition(".")[2] for name in names)


@lru_cache(maxsize=1)
def low_apis() -> frozenset[str]:
    """The APIs that only make, shape, copy or cast, by bare name."""
    return frozenset(_tables()["low"])


def passes_risk(prefix: str, api: str, risk_level: str, compat: bool = False) -> bool:
    """Whether ``risk_level`` keeps the API ``{prefix}.{api}`` (CFG-6).

    What is not of torch's own four owners (communication, vendor and custom functions) always passes.
    """
    if risk_level == "ALL" or prefix not in ("Functional", "Tensor", "Torch", "VF"):
        return True
    return api in core_apis(compat) if risk_level == "CORE" else api not in low_apis()


@lru_cache(maxsize=1)
def ignored_arguments() -> Mapping[str, Mask]:
    """What is masked in forward records, by ``{prefix}.{api}``: ``Distributed.recv`` has no valid input 0."""
    return {
        f"{prefix}.{api}": Mask(frozenset(mask.get("input", ())), frozenset(mask.get("output", ())))
        for prefix, apis in _tables()["ignored_arguments"].items()
        for api, mask in apis.items()
    }


def random_apis() -> list[tuple[str, str, str]]:
    """The functions that draw random numbers, as (library, owner, attribute): ``("torch_random", "torch", "randn")``."""
    return [
        (library, group["owner"], name)
        for library, group in _tables()["random"].items()
        for name in group["names"]
        if hasattr(resolve(group["owner"]), name)
    ]


def _is_loaded(root: str) -> bool:
    """torch counts always; ``torch.ops.npu`` is of torch_npu; a vendor's package when the program has imported it."""
    package = "torch_npu" if root == "torch.ops.npu" else root.partition(".")[0]
    return package == "torch" or package in sys.modules


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads((Path(__file__).parent / "apis.json").read_text(encoding="utf-8"))
    return tables
