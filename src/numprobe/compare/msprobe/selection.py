"""What to merge: the YAML (or JSON) configuration of msProbe's ``merge_result``, and named process groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from numprobe.align.yaml_file import Node, read_yaml

# examples of what is expected, for errors
_LIKE = "{api: [Functional.linear], compare_index: [Max diff], groups: {tp0: [0, 1]}}"
_GROUPS = "groups: {tp0: [0, 1]}"


@dataclass(frozen=True)
class Selection:
    """Rows, columns and groups.

    ``apis``: names or their leading dotted parts (``Functional``, ``Functional.linear``, ``Functional.linear.0.forward``), empty
    for every row. ``indices``: columns, empty for all figures of the mode and ``Requires_grad Consistent``. ``groups``: name of a
    process group -> its ranks.
    """

    apis: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def selects(self, name: str) -> bool:
        """Whether a row of this name is wanted."""
        return not self.apis or f"{name}.".startswith(self._starts)

    @cached_property
    def _starts(self) -> tuple[str, ...]:
        return tuple(f"{api.rstrip('.')}." for api in self.apis)


def read_selection(path: Path) -> Selection:
    """The keys ``api``, ``compare_index`` and ``groups`` of a configuration; all may be missing.

    Raises:
        NumprobeError: E-CMP-010 to E-CMP-013, with file, line and what was expected there.
    """
    apis: tuple[str, ...] = ()
    indices: tuple[str, ...] = ()
    groups: dict[str, tuple[int, ...]] = {}
    for key, value in read_yaml(path).items(_LIKE):
        if key == "api":
            apis = _names(value)
        elif key == "compare_index":
            indices = _names(value)
        elif key == "groups":
            groups = {} if value.is_empty else {name: _ranks(ranks) for name, ranks in value.items(_GROUPS)}
        else:
            value.fail(_LIKE, found=key)
    return Selection(apis, indices, groups)


def _names(node: Node) -> tuple[str, ...]:
    return () if node.is_empty else tuple(one.text(_LIKE) for one in node.elements(_LIKE))


def _ranks(node: Node) -> tuple[int, ...]:
    ranks = [one.text(_GROUPS) for one in node.elements(_GROUPS)]
    if not ranks or not all(rank.isdecimal() for rank in ranks):
        node.fail(_GROUPS)
    return tuple(map(int, ranks))
