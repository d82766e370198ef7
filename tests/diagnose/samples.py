"""Samples for the tests of the skills: where they lie, copies with records taken out, and dumps written by hand."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from numprobe.diagnose.nan_overflow.digest import RankDigest
from numprobe.diagnose.nan_overflow.local import digest_rank
from numprobe.diagnose.nan_overflow.result import NanResult
from numprobe.diagnose.nan_overflow.skill import NanOptions, analyse
from numprobe.formats.dump import open_dump
from numprobe.synth.nan import UNIT

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
DATA = Path(__file__).parent.parent / "data"
GLOO = DATA / "gloo"
PYTORCH = DATA / "interop" / "pytorch"
COMPARE = DATA / "interop" / "compare"
SMALL = replace(UNIT, name="small", lean=True, micro_batches=2)  # 16 ranks: tp 2, pp 2, ep 4; about 200 records a rank

Record = dict[str, Any]
NAN, INF = math.nan, math.inf


def analysed(path: Path, **options: Any) -> NanResult:
    """The result, read anew in this process."""
    return analyse(path, NanOptions(use_cache=False, jobs=1, **options)).result


def all_source_ranks(result: NanResult) -> list[int]:
    return sorted(r for c in result.sources for r in c.ranks)


def filtered(source: Path, out: Path, keep: Callable[[str], bool]) -> Path:
    """A copy of a dump without the records that ``keep`` refuses, as a collector that skips them writes it."""
    shutil.copytree(source, out)
    for file in out.rglob("dump.json"):
        content = json.loads(file.read_text())
        content["data"] = {n: r for n, r in content["data"].items() if keep(n)}
        file.write_text(json.dumps(content, indent=1))
    for file in out.rglob("construct.json"):
        parents = json.loads(file.read_text())
        file.write_text(json.dumps({n: p for n, p in parents.items() if keep(n)}))
    return out


def t(
    high: Any, low: Any = None, *, shape: Sequence[int] = (4, 8), dtype: str = "float32", norm: Any = 1.0, **more: Any
) -> Record:
    """A tensor with these extrema; ``low`` defaults to ``-high``, or to NaN beside a NaN."""
    if low is None:
        low = high if high is None or math.isnan(high) else -high
    figures = {"Max": high, "Min": low, "Mean": 0.0, "Norm": norm}
    return {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape), **figures, **more}


def scalar(value: Any) -> Record:
    return {"type": type(value).__name__, "value": value}


def group(*ranks: int) -> Record:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": f"g{ranks[0]}"}


def call(*inputs: Any, out: Any, **keywords: Any) -> Record:
    """A record: positional inputs, keyword inputs, one output or a list of them."""
    return {"input_args": list(inputs), "input_kwargs": keywords, "output": out if isinstance(out, list) else [out]}


def all_reduce(given: Record, got: Record, *ranks: int) -> Record:
    return {"input_args": [given], "input_kwargs": {"group": group(*ranks)}, "output": [got, group(*ranks)]}


def write_rank(
    folder: Path, records: Mapping[str, Record], construct: Mapping[str, Any] | None = None, **header: Any
) -> Path:
    """``folder/dump.json`` (and construct.json, stack.json), as msProbe lays them out."""
    folder.mkdir(parents=True, exist_ok=True)
    top = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, **header}
    (folder / "dump.json").write_text(json.dumps({**top, "data": records}, indent=1))
    (folder / "construct.json").write_text(json.dumps(construct if construct is not None else {}))
    (folder / "stack.json").write_text("{}")
    return folder


def write_step(step: Path, *ranks: Mapping[str, Record]) -> Path:
    for rank, records in enumerate(ranks):
        write_rank(step / f"rank{rank}", records)
    return step


def digest(folder: Path) -> RankDigest:
    """What one rank tells, from its files."""
    (step,) = open_dump(folder, use_cache=False).steps
    (place,) = step.ranks
    return digest_rank(open_dump(folder, use_cache=False).rank(place))


def digest_of(folder: Path, records: Mapping[str, Record], **more: Any) -> RankDigest:
    return digest(write_rank(folder / "rank0", records, **more))


def benchmark(name: str) -> ModuleType:
    """A module of ``benchmarks/``. Its folder comes last, since names there are those of packages here."""
    if BENCHMARKS not in sys.path:
        sys.path.append(BENCHMARKS)
    return importlib.import_module(name)
