"""The figures of every place on both sides, as a table: what questions on a run are answered from."""

from __future__ import annotations

import csv
import io

import numpy as np
from numpy.typing import ArrayLike

from numprobe.diagnose.rl_consistency.view import View, place
from numprobe.formats.msprobe.values import GIVEN, ValueTable

FILE = "slots.csv"
HEAD = (
    "place",
    "slot",
    *(f"{side}_{name}" for side in ("train", "rollout") for name in ("max", "min", "mean", "norm")),
    "error",
    "expected",
    "ratio",
    "verdict",
)


def table(view: View) -> str:
    """CSV with a row a slot, in the order of the mapping. A figure that a side lacks is empty; NaN and infinities are words.

    ``error`` is what the figures differ by, ``expected`` what the arithmetic explains, ``ratio`` one over the other.
    """
    train, rollout = _figures(view.train.calls.values), _figures(view.rollout.calls.values)
    at_train, at_rollout = view.leaves.target.tolist(), view.leaves.golden.tolist()
    compared = ((view.leaves.target >= 0) & (view.leaves.golden >= 0)).tolist()
    apart, expected, ratio = (_numbers(values) for values in (view.all_apart, view.judged.expected, view.judged.rho))
    rows: list[list[str]] = [list(HEAD)]
    for pair in range(len(view.records)):
        where = place(view.name(pair))
        for row in view.rows(pair):
            told = [apart[row], expected[row], ratio[row]] if compared[row] else ["", "", ""]
            sides = (*train[at_train[row]], *rollout[at_rollout[row]])
            rows.append([where, view.slot(row), *sides, *told, view.judged.verdict[row]])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _figures(values: ValueTable) -> list[list[str]]:
    """The four figures of every leaf as text; the last row, which -1 finds, is that of no leaf."""
    given = (values.status == GIVEN).tolist()
    texts = [
        [repr(value) if there else "" for value, there in zip(*row, strict=True)]
        for row in zip(values.figures.tolist(), given, strict=True)
    ]
    return [*texts, [""] * 4]


def _numbers(values: ArrayLike) -> list[str]:
    return ["" if value != value else repr(value) for value in np.asarray(values, np.float64).tolist()]
