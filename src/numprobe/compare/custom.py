"""A user's own metrics: ``alg_<name>.py`` files of msProbe's form, run only where the user names their folder.

Each has ``column_name()``, which gives the header of its column, and ``compare(n, b)``, which is called with the target's and the
golden tensor and gives a number or a text.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from numprobe.align.calls import Calls, Tensors
from numprobe.align.leaves import LeafPairs
from numprobe.compare.msprobe.columns import Mode, header
from numprobe.compare.msprobe.files import is_formula
from numprobe.formats.tensors import TensorFile
from numprobe.metrics.reference import NOT_APPLICABLE, SHAPE_UNMATCHED, UNSUPPORTED, Cell, squeezed
from numprobe.record.errors import NumprobeError

NAME = re.compile(r"alg_([a-z0-9_]+)\.py")
FUNCTIONS = ("column_name", "compare")
_LONGEST = 100  # characters of a column's name


@dataclass(frozen=True)
class Metrics:
    """``files``, each with a digest of what it holds, and the ``columns`` that they give."""

    files: tuple[tuple[Path, str], ...] = ()
    columns: tuple[str, ...] = ()


@dataclass
class PairMetrics:
    """The metrics of the tensors of one pair of ranks, each pair of files once.

    ``failed``: by column and reason, of how many pairs there is no value because the function failed.
    """

    metrics: Metrics
    target: Tensors
    golden: Tensors
    failed: Counter[tuple[str, str]] = field(default_factory=Counter)
    done: dict[tuple[str, str], tuple[Cell, ...]] = field(default_factory=dict)
    rows: dict[int, tuple[Cell, ...]] = field(default_factory=dict)

    def of(self, target: str, golden: str) -> tuple[Cell, ...]:
        """The cells of two files by their names; texts say why there is no value, as msProbe says it."""
        names = (target, golden)
        if names not in self.done:
            self.done[names] = self._computed(*names)
        return self.done[names]

    def _computed(self, target: str, golden: str) -> tuple[Cell, ...]:
        every = len(self.metrics.columns)
        try:
            pair = self.target.open(target), self.golden.open(golden)
            if not pair[0].numel:
                return (UNSUPPORTED,) * every
            if squeezed(pair[0]) != squeezed(pair[1]):
                return (SHAPE_UNMATCHED,) * every
            arrays = [_whole(tensor) for tensor in pair]
        except NumprobeError:  # the figures of the row have the reason
            return (UNSUPPORTED,) * every
        if not _finite_alike(*arrays):
            return (NOT_APPLICABLE,) * every
        cells: list[Cell] = []
        for column, compare in zip(self.metrics.columns, _functions(self.metrics.files), strict=True):
            try:
                with _words_to_stderr():
                    cell = compare(*(_given(array) for array in arrays))
                if isinstance(cell, bool) or not isinstance(cell, (int, float, str)):
                    raise TypeError(f"compare gave {type(cell).__name__}, not int, float or str")
                cells.append(float(cell) if isinstance(cell, float) else cell)
            except (Exception, SystemExit) as error:  # whatever a function of somebody else's raises
                self.failed[column, _said(error)] += 1
                cells.append(UNSUPPORTED)
        return tuple(cells)

    def look_at(self, leaves: LeafPairs, target: Calls, golden: Calls) -> None:
        """Fill :attr:`rows`: by leaf row the cells, of rows that have a file on both sides."""
        files_t, files_g = target.values.files, golden.values.files
        for row, (t, g) in enumerate(zip(leaves.target.tolist(), leaves.golden.tolist(), strict=True)):
            if t in files_t and g in files_g:
                self.rows[row] = self.of(files_t[t], files_g[g])

    def reasons(self) -> Iterator[tuple[str, int, str]]:
        """Columns whose function failed: how often, and the most frequent reason."""
        for column in self.metrics.columns:
            of_column = Counter({why: n for (name, why), n in self.failed.items() if name == column})
            if of_column:
                yield column, of_column.total(), of_column.most_common(1)[0][0]

    def columns(self, n: int) -> Iterator[tuple[str, Sequence[Cell | None]]]:
        """By column of ``n`` rows: the values; None where there is none. Texts, if there is one among them."""
        none = (UNSUPPORTED, SHAPE_UNMATCHED, NOT_APPLICABLE)
        for number, column in enumerate(self.metrics.columns):
            values: list[Cell | None] = [None] * n
            for row, cells in self.rows.items():
                values[row] = None if cells[number] in none else cells[number]
            if any(isinstance(value, str) for value in values):
                yield column, [None if value is None else str(value) for value in values]
            else:
                yield column, [None if value is None else _as_float(value) for value in values]


def read_metrics(folder: Path) -> Metrics:
    """The metrics in a folder, in the order of their names. Their files are run.

    Raises:
        NumprobeError: E-CMP-018 no folder, or no metric in it; E-CMP-019 a file that is none, or two of one column.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.name.startswith("alg_") and path.suffix == ".py")
    except OSError as error:
        raise NumprobeError(
            "E-CMP-018",
            "the folder of --metrics cannot be read: {reason}",
            where=str(folder),
            do="give a folder with files alg_<name>.py",
            reason=error.strerror or str(error),
        ) from None
    if not found:
        raise NumprobeError(
            "E-CMP-018",
            "the folder of --metrics has no file alg_<name>.py",
            where=str(folder),
            do="give a folder with files alg_<name>.py",
        )
    for path in found:
        if not NAME.fullmatch(path.name):
            raise NumprobeError(
                "E-CMP-019",
                "the name of a metric's file may have small letters, digits and underscores only",
                where=str(path),
                do="call it alg_<name>.py, or move it elsewhere",
            )
    files = tuple((path.absolute(), blake2b(path.read_bytes(), digest_size=8).hexdigest()) for path in found)
    columns: dict[str, Path] = {}
    for path, _ in files:
        column = _column(path, _module(path))
        if column in columns:
            raise NumprobeError(
                "E-CMP-019",
                "two metrics have one column: {column}",
                where=f"{columns[column]}, {path}",
                do="give each column_name of its own",
                column=column,
            )
        columns[column] = path
    return Metrics(files, tuple(columns))


def _column(path: Path, functions: Mapping[str, Any]) -> str:
    """The name of a metric's column."""
    for name in FUNCTIONS:
        if not callable(functions.get(name)):
            raise NumprobeError(
                "E-CMP-019",
                "a metric without a function {function}",
                where=str(path),
                do="write def column_name() and def compare(n, b) in it",
                function=name,
            )
    try:
        inspect.signature(functions["compare"]).bind(None, None)
    except (TypeError, ValueError):
        raise NumprobeError(
            "E-CMP-019",
            "compare of a metric takes two arguments, the target's and the golden tensor",
            where=str(path),
            do="write def compare(n, b)",
        ) from None
    column = _guarded(path, functions["column_name"])
    if not isinstance(column, str) or not column.strip() or not column.isprintable() or len(column) > _LONGEST:
        raise NumprobeError(
            "E-CMP-019",
            "column_name of a metric gives no name",
            where=str(path),
            found="{name}",
            do="return a text of one line and at most {most} characters",
            name=_said(column),
            most=_LONGEST,
        )
    if column in header(Mode.TENSOR, stack=True) or is_formula(column):
        raise NumprobeError(
            "E-CMP-019",
            "column {column} of a metric is one of the result's own, or a formula",
            where=str(path),
            do="return another name",
            column=column,
        )
    return column


@lru_cache(maxsize=4)
def _functions(files: tuple[tuple[Path, str], ...]) -> list[Callable[[Any, Any], object]]:
    """The functions that compare. In a worker the files are run once more."""
    return [_module(path)["compare"] for path, _ in files]


def _module(path: Path) -> Mapping[str, Any]:
    """What a file defines."""
    spec = importlib.util.spec_from_file_location(f"numprobe_metric_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(path)
    module = importlib.util.module_from_spec(spec)
    _guarded(path, lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return vars(module)


def _guarded(path: Path, work: Callable[[], object]) -> object:
    """What the user's code gives; its errors are told with its file."""
    try:
        with _words_to_stderr():
            return work()
    except (Exception, SystemExit) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        raise NumprobeError(
            "E-CMP-019",
            "a metric cannot be run: {reason}",
            where=f"{path}, line {line}" if line else str(path),
            do="correct it, or move it elsewhere",
            reason=_said(error),
        ) from None


@contextmanager
def _words_to_stderr() -> Iterator[None]:
    """stdout is for results."""
    with redirect_stdout(sys.stderr):
        yield


def _said(what: object) -> str:
    name = f"{type(what).__name__}: " if isinstance(what, BaseException) else ""
    return "".join(c if c.isprintable() else " " for c in f"{name}{what}")[:200]


def _whole(tensor: TensorFile) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor without dimensions of 1; bfloat16 and the floats of 8 bits as float32."""
    array = np.squeeze(tensor.array())
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


def _finite_alike(target: np.ndarray[Any, Any], golden: np.ndarray[Any, Any]) -> bool:
    """Do NaN and infinities stand at the same places?"""
    if target.dtype.kind not in "fc" and golden.dtype.kind not in "fc":
        return True
    return np.array_equal(np.isnan(target), np.isnan(golden)) and np.array_equal(np.isinf(target), np.isinf(golden))


def _given(array: np.ndarray[Any, Any]) -> Any:
    """What a metric gets: a copy of its own with 0 in place of what is not finite, as torch's tensor where torch is there."""
    own = np.array(array)
    if own.dtype.kind in "fc":
        own[~np.isfinite(own)] = 0
    try:
        import torch
    except ImportError:
        return own
    return torch.from_numpy(own)


def _as_float(value: Cell) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if isinstance(value, int) and value > 0 else float("-inf")
