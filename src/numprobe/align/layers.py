"""Module paths of one framework as another calls them, level by level: what msProbe's ``--layer_mapping`` does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from numprobe.align.naming import unwrapped
from numprobe.record.names import OpName

ROOTS = ("TopLayer", "Cell")  # what the files call the level above all modules
STACK = "ParallelTransformer"  # its layers have other numbers on other pipeline stages
Children = tuple[tuple[str, str], ...]  # path below a module on the target, and on the golden side


@dataclass
class Translation:
    """``paths``: unwrapped module path of the target -> of the golden side. ``used``: (class, child) of the rules that some path
    went through -> whether the golden side has such a path."""

    paths: dict[str, str] = field(default_factory=dict)
    used: dict[tuple[str, str], bool] = field(default_factory=dict)


def translate(layers: Mapping[str, Children], target: Iterable[OpName], golden: Iterable[OpName]) -> Translation:
    """Translate the path of every module of the target.

    Args:
        layers: class of a module -> its children by other names, as paths of one or more parts; :data:`ROOTS` for the outermost
            modules. A child that is not named keeps its name.
    """
    kinds = {unwrapped(op.path): op.api for op in target if op.is_module}
    known = {unwrapped(op.path) for op in golden if op.is_module}
    return _Walk(layers, kinds, known).translation()


class _Walk:
    def __init__(self, layers: Mapping[str, Children], kinds: Mapping[str, str], golden: set[str]) -> None:
        self.rules = {kind: sorted(of, key=lambda pair: -pair[0].count(".")) for kind, of in layers.items()}
        self.root = [pair for kind in ROOTS for pair in self.rules.get(kind, ())]
        self.kinds, self.golden = kinds, golden
        self.prefixes = {
            ".".join(parts[:n]) for p in golden for parts in [p.split(".")] for n in range(1, len(parts) + 1)
        }
        self.numbers: dict[tuple[str, str], dict[str, str]] = {}
        self.found = Translation()

    def translation(self) -> Translation:
        for path in self.kinds:
            self.found.paths[path] = self._path(path)
        return self.found

    def _path(self, path: str) -> str:
        """Level by level; the longest child that fits first."""
        parts = path.split(".")
        done, out = 0, ""
        while done < len(parts):
            above = ".".join(parts[:done])
            kind = self.kinds.get(above, "") if done else ""
            rules = self.rules.get(kind, []) if done else self.root
            child, new = next(
                ((a, b) for a, b in rules if parts[done : done + a.count(".") + 1] == a.split(".")), ("", parts[done])
            )
            if child:
                rule = (kind or ROOTS[0], child)
                self.found.used[rule] = self.found.used.get(rule, False) or _joined(out, new) in self.prefixes
            elif kind == STACK and parts[done] == "layers" and done + 1 < len(parts):
                child = ".".join(parts[done : done + 2])
                new = f"layers.{self._number(_joined(above, 'layers'), _joined(out, 'layers'), parts[done + 1])}"
            done += child.count(".") + 1
            out = _joined(out, new)
        return out

    def _number(self, above: str, golden: str, number: str) -> str:
        """The layer of the same place in the stack, where the golden side does not have this number."""
        if (above, golden) not in self.numbers:
            ours, theirs = _numbers(self.kinds, above), _numbers(self.golden, golden)
            same = {*ours} <= {*theirs}
            self.numbers[above, golden] = {} if same else dict(zip(ours, theirs, strict=False))
        return self.numbers[above, golden].get(number, number)


def _joined(path: str, more: str) -> str:
    return f"{path}.{more}" if path else more


def _numbers(paths: Iterable[str], above: str) -> list[str]:
    start = f"{above}."
    inside = {p[len(start) :].partition(".")[0] for p in paths if p.startswith(start)}
    return sorted((n for n in inside if n.isdecimal()), key=int)


def windows(paths: Iterable[str], length: int) -> Sequence[str]:
    """Every run of ``length`` parts in the paths: what a child of that many parts may be called."""
    every = (p.split(".") for p in paths)
    return sorted({".".join(parts[i : i + length]) for parts in every for i in range(len(parts) - length + 1)})
