"""Names of modules and APIs of the target as they are called on the golden side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

# what wrappers put into module paths: torch's DDP, FSDP, torch.compile, activation checkpointing
WRAPPERS = frozenset(("module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "_forward_module"))

NO_LIST = -1  # number of a model that was recorded alone

Names: TypeAlias = Callable[[str, str], tuple[str, str]]


@lru_cache(maxsize=1 << 16)
def unwrapped(path: str) -> str:
    """A module path without the parts that wrappers add."""
    parts = path.split(".")
    return ".".join(p for p in parts if p not in WRAPPERS) if WRAPPERS.intersection(parts) else path


def model_of(path: str) -> int:
    """The number of a model in the list that was recorded, which its paths begin with.

    >>> model_of("1.decoder.layers.0.mlp"), model_of("decoder.layers.0.mlp")
    (1, -1)
    """
    first = path.partition(".")[0]
    return int(first) if first.isdecimal() else NO_LIST


def same_module(path: str, kind: str) -> tuple[str, str]:
    return unwrapped(path), kind.removeprefix("FSDP")


def same_api(prefix: str, api: str) -> tuple[str, str]:
    return prefix, api


@dataclass(frozen=True)
class Naming:
    """``module(path, class)`` and ``api(prefix, name)`` give what the golden side calls it. ``given``: records of the target
    (by op_index) whose golden record is known, whatever the names."""

    module: Names = same_module
    api: Names = same_api
    given: Mapping[int, int] = field(default_factory=dict)


SAME_NAMES = Naming()
