"""YAML files as trees that know their lines, so that an error can name one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from numprobe.record.errors import NumprobeError

NULL = "tag:yaml.org,2002:null"


class Node:
    """A part of a file. Its methods fail with file and line where it is something else than what they give; ``like`` is an
    example of what was expected.

    Every scalar is text here: ``[0, dim]`` has the elements ``0`` and ``dim``.
    """

    def __init__(self, path: Path, node: Any) -> None:
        self._path, self._node = path, node

    @property
    def line(self) -> int:
        return int(self._node.start_mark.line) + 1 if self._node is not None else 1

    @property
    def is_empty(self) -> bool:
        return self._node is None or self._node.tag == NULL

    @property
    def is_list(self) -> bool:
        return self._node is not None and self._node.id == "sequence"

    def items(self, like: str) -> Iterator[tuple[str, Node]]:
        """Keys and values of an object."""
        if self._node is None or self._node.id != "mapping":
            self.fail(like)
        for key, value in self._node.value:
            yield Node(self._path, key).text(like), Node(self._path, value)

    def elements(self, like: str) -> list[Node]:
        """The elements of a list."""
        if not self.is_list:
            self.fail(like)
        return [Node(self._path, one) for one in self._node.value]

    def text(self, like: str) -> str:
        """The text of a scalar that is not empty."""
        if self.is_empty or self._node.id != "scalar" or not self._node.value.strip():
            self.fail(like)
        return str(self._node.value).strip()

    def fail(self, like: str, found: str = "") -> NoReturn:
        """Raise E-CMP-012."""
        raise NumprobeError(
            "E-CMP-012",
            "line {line} of the file has another form than it should",
            where=str(self._path),
            found="{content}",
            do="write it like {example}",
            line=self.line,
            content=found or self._shown(),
            example=like,
        )

    def _shown(self) -> str:
        if self.is_empty:
            return "null"
        forms = {"sequence": "[...]", "mapping": "{...}"}
        return forms.get(self._node.id) or str(self._node.value)[:80]


def read_yaml(path: Path) -> Node:
    """The tree of a YAML (or JSON) file.

    Raises:
        NumprobeError: E-CMP-010 the file cannot be read, E-CMP-011 it is damaged, E-CMP-013 PyYAML is not installed.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise NumprobeError(
            "E-CMP-010",
            "the file cannot be read: {reason}",
            where=str(path),
            do="check the path, and that the file is text in UTF-8",
            reason=getattr(error, "strerror", None) or str(error),
        ) from None
    try:
        yaml = import_module("yaml")
    except ImportError:
        raise NumprobeError(
            "E-CMP-013",
            "reading YAML needs PyYAML, which is not installed",
            where=str(path),
            do="pip install 'numprobe[yaml]'",
        ) from None
    try:
        return Node(path, yaml.compose(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise NumprobeError(
            "E-CMP-011",
            "line {line} of the file cannot be understood" if mark is not None else "the file cannot be understood",
            where=str(path),
            found="{reason}",
            do="check the colons, commas, quotes and indents there",
            line=mark.line + 1 if mark is not None else 0,
            reason=" ".join(str(getattr(error, "problem", None) or error).split()) or type(error).__name__,
        ) from None
