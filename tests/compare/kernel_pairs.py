"""Kernels of static graphs as MindSpore lays them out, with every case that the table of a pair has.

    python -m tests.compare.kernel_pairs FOLDER            writes FOLDER/tensors and FOLDER/tables, each with target and golden

``msprobe compare -tp FOLDER/tensors/target -gp FOLDER/tensors/golden --rank 0,1 --step 0,1`` (release 26.2, beside MindSpore 2.10
on a CPU) gave what is in ``tests/data/compare/msprobe/kernels``, with the paths cut from the names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

HEAD = (
    "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,"
    "Max Value,Min Value,Avg Value,L2Norm Value"
)
X = np.array([[0.25, -0.5, 1.75], [0.1, 0.64, -0.53]], np.float32)
FIRST = np.arange(6).reshape(2, 3) == 0
NAN, INF = (np.where(FIRST, np.float32(odd), X) for odd in (np.nan, np.inf))
CASES = {
    "same": (X, X),
    "diff": (X * 1.5, X),
    "small": (X * np.float32(1.0001), X),
    "shape": (X, X.T.copy()),
    "squeeze": (X[None], X),
    "nan": (NAN, X),
    "nanboth": (NAN, NAN),
    "inf": (INF, -INF),
    "int": (np.arange(6), np.arange(6) + 1),
    "dtype": (X.astype(np.float16), X),
    "zero": (X * 0, X),
    "zerog": (X, X * 0),
    "one": (X[:1, :1], X[:1, :1] * 2),
    "scalar": (X[0, 0], X[0, 0] * 2),
    "bool": (X > 0, X < 0),
    "neg": (-X, X),
}
TABLES: tuple[tuple[str, ...], tuple[str, ...]] = (
    (
        'MatMul,Default/a-op0,0,0,100,input,0,24,Float32,"(2, 3)",1.5,-1,0.25,3',
        'MatMul,Default/a-op0,0,0,101,output,0,24,Float32,"(2, 3)",2,-1,0.25,3',
        'Add,Default/b-op1,0,0,102,output,0,24,Float32,"(2, 3)",nan,-1,0.25,inf',
        'Add,Default/t-op1,0,0,102,output,0,24,Float32,"(2, 3)",1,-1,0.25,3',
        'Z,Default/z,0,0,103,output,0,24,Int32,"()",1,1,1,1',
        'Big,Default/big,0,0,103,output,0,24,Float32,"(3,)",10,1,1,1',
    ),
    (
        'MatMul,Default/a-op0,0,0,200,input,0,24,Float32,"(2, 3)",1.5,-1,0.25,3',
        'MatMul,Default/a-op0,0,0,201,output,0,24,Float32,"(2, 3)",1,-1,0.25,2',
        'Add,Default/b-op1,0,0,202,output,0,24,Float32,"(2, 3)",1,-1,0.25,1',
        'Add,Default/g-op1,0,0,202,output,0,24,Float32,"(2, 3)",1,-1,0.25,3',
        'Z,Default/z,0,0,203,output,0,24,Int32,"()",0,1,1,1',
        'Big,Default/big,0,0,103,output,0,24,Float16,"(3, 1)",1,0,1,1',
    ),
)


def put(
    root: Path, name: str, values: np.ndarray, *, rank: int = 0, graph: int = 0, step: int = 0, time: int = 1
) -> Path:
    """One output of one kernel."""
    folder = root / f"rank_{rank}" / "Net" / str(graph) / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"Op.{name}.3.0.{time}.output.0.DefaultFormat.X.npy"
    np.save(file, values)
    return file


def table(root: Path, lines: Iterable[str], head: str = HEAD) -> Path:
    folder = root / "rank_0" / "Net" / "0" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "statistic.csv").write_text("\n".join([head, *lines, ""]))
    return folder / "statistic.csv"


def tensors(root: Path) -> tuple[Path, Path]:
    """Every case; kernels of one side; one that ran several times; two graphs of a step; two steps; two ranks."""
    sides = root / "target", root / "golden"
    for i, side in enumerate(sides):
        for time, (name, values) in enumerate(CASES.items()):
            put(side, name, values[i], time=1000 * (i + 1) + time)
        put(side, f"only_{side.name}", X)
        for j in range(3 - i):  # the target's in the other order, and once more
            put(side, "repeated", X + np.float32(j), time=10 - j if i == 0 else 10 + j)
        put(side, "of_graph_1", X, graph=1)
        put(side, "of_step_1", X, step=1)
        put(side, "of_rank_1", X, rank=1)
    return sides


def tables(root: Path) -> tuple[Path, Path]:
    sides = root / "target", root / "golden"
    for side, lines in zip(sides, TABLES, strict=True):
        table(side, lines)
    return sides


if __name__ == "__main__":
    tensors(Path(sys.argv[1], "tensors"))
    tables(Path(sys.argv[1], "tables"))
