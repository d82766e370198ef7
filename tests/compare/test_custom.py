"""``--metrics``: metrics of the user's own, in msProbe's form, and files that are none."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from cli.shell import numprobe
from numprobe.compare.command import Output, run_to_folder
from numprobe.compare.msprobe.columns import METRICS, STATISTICS
from numprobe.compare.run import CompareOptions
from numprobe.record.errors import NumprobeError

from .msprobe_tables import the_csv
from .test_compat import EDGE, MLP, STEP
from .test_msprobe_rows import STORE
from .written import call, save, tensor, write

X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
LARGEST = "return float(abs(n - b).max())"


def metrics(folder: Path, **bodies: str) -> Path:
    """A folder of metrics: the name of a file and a column -> the body of compare."""
    folder.mkdir(exist_ok=True)
    for name, body in bodies.items():
        (folder / f"alg_{name}.py").write_text(
            f"def column_name():\n    return {name!r}\ndef compare(n, b):\n    {body}\n"
        )
    return folder


def pair(folder: Path, values: Mapping[str, tuple[np.ndarray, np.ndarray]], rank: int = 0) -> tuple[Path, Path]:
    """Two dumps with a call each name, whose only output is this pair."""
    sides = []
    for side, name in enumerate(("t", "g")):
        step = folder / name / "step0"
        place = step / "rank0"
        leaves = {}
        for api, arrays in values.items():
            op = f"Torch.{api}.0.forward"
            leaves[op] = call([], [tensor(arrays[side], data_name=save(step, f"{op}.output.0", arrays[side]))])
        head = {"task": "tensor", "level": "L1", "framework": "pytorch"}
        (place / "dump.json").write_text(json.dumps({**head, "data": leaves}))
        sides.append(step)
    return sides[0], sides[1]


def run(
    sides: tuple[Path, Path], folder: Path, out: Path, **options: object
) -> tuple[pl.DataFrame, list[dict[str, str]]]:
    """The table, and msProbe's as texts."""
    chosen = CompareOptions(use_cache=False, metrics=folder, **options)  # type: ignore[arg-type]
    run_to_folder(*sides, chosen, out, Output(compat=True))
    with the_csv(out).open(newline="") as file:
        return pl.read_parquet(out / "compare.parquet"), list(csv.DictReader(file))


@pytest.mark.parametrize("case", ["mlp", "edge"])
def test_every_cell_is_what_msprobe_answers(tmp_path: Path, case: str) -> None:
    """But for the call that msProbe does not pair. ``custom/*.csv`` is what msProbe 26.2 wrote with the same files."""
    target = MLP / "tensor" / STEP if case == "mlp" else EDGE / "tensor/target/dump.json"
    golden = Path(str(target).replace("target", "golden"))
    _, ours = run((target, golden), STORE / "custom" / "metrics", tmp_path / "out")
    assert list(ours[0])[8:18] == [*METRICS, "Given", "Largest", "Odd", STATISTICS[0]]
    with (STORE / "custom" / f"{case}.csv").open(newline="") as file:
        for row, theirs in zip(ours, csv.DictReader(file), strict=True):
            if not row["NPU Name"].startswith("Functional.calls."):
                assert {name: row[name] for name in theirs} == theirs


def test_columns_of_the_table_and_the_page(tmp_path: Path) -> None:
    values = {
        "far": (X + 1, X),
        "shape": (X, X.T),
        "nan": (np.where(X > 1, np.nan, X).astype("f4"), X),
        "same_nan": (np.where(X > 1, np.nan, X).astype("f4"),) * 2,
        "none": (np.zeros((0, 3), "f4"),) * 2,
    }
    folder = metrics(
        tmp_path / "m", largest=LARGEST, word="return '<b>' + str(n.shape)", fails="raise ValueError('a\\nb')"
    )
    table, cells = run(pair(tmp_path, values), folder, tmp_path / "out")
    assert table["metric.largest"].to_list() == pytest.approx([1.0, None, None, 0.0, None])
    assert table["metric.word"].to_list()[0].startswith("<b>")
    assert table.schema["metric.largest"] == table.schema["metric.fails"] == pl.Float64
    assert [row["largest"] for row in cells][1:] == ["shape unmatched", "N/A", "0.0", "unsupported"]
    assert {row["fails"] for row in cells} == {"unsupported", "shape unmatched", "N/A"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<th class="n">largest</th>' in page
    assert "<b>torch" not in page
    problems = json.loads((tmp_path / "out" / "result.json").read_text())["problems"]
    [failed] = [p["values"] for p in problems if p["kind"] == "metric"]
    assert failed == {"column": "fails", "count": 2, "why": "ValueError: a b"}
    assert "metric fails has no value for 2 pairs of tensors" in (tmp_path / "out" / "report.md").read_text()


def test_a_metric_cannot_change_what_others_get(tmp_path: Path) -> None:
    folder = metrics(tmp_path / "m", a="n *= 0; b += 7; return 1", b=LARGEST)
    table, _ = run(pair(tmp_path, {"f": (X + 1, X)}), folder, tmp_path / "out")
    assert table["metric.b"].to_list() == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("return 3", "3"),
        ("return -float('inf')", " -inf"),
        ("return float('nan')", ""),
        ("return '=1+1'", "'=1+1"),
        ("return 10**400", str(10**400)),
        ("return True", "unsupported"),
        ("return None", "unsupported"),
        ("return (1.0, '')", "unsupported"),
        ("return n.sum()", "unsupported"),
        ("raise SystemExit(3)", "unsupported"),
        ("return n.nonsense", "unsupported"),
    ],
)
def test_what_a_metric_may_give(tmp_path: Path, body: str, shown: str) -> None:
    _, cells = run(pair(tmp_path, {"f": (X + 1, X)}), metrics(tmp_path / "m", x=body), tmp_path / "out")
    assert [row["x"] for row in cells] == [shown]


def test_without_torch_they_get_numpy_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    folder = metrics(tmp_path / "m", kind="return type(n).__name__")
    table, _ = run(pair(tmp_path, {"f": (X, X)}), folder, tmp_path / "out")
    assert table["metric.kind"].to_list() == ["ndarray"]


def test_numbers_on_one_rank_and_texts_on_another(tmp_path: Path) -> None:
    folder = metrics(tmp_path / "m", x="return 1.5 if n.numel() == 32 else 'long'")
    sides = pair(tmp_path / "a", {"f": (X, X)})
    for one, other in zip(sides, pair(tmp_path / "b", {"f": (X[:2], X[:2])}), strict=True):
        (other / "rank0").rename(one / "rank1")
    run_to_folder(*sides, CompareOptions(use_cache=False, metrics=folder, jobs=2), tmp_path / "out")
    assert pl.read_parquet(tmp_path / "out" / "compare.parquet")["metric.x"].to_list() == ["1.5", "long"]


def test_a_changed_metric_is_computed_anew(tmp_path: Path) -> None:
    sides, out = pair(tmp_path, {"f": (X, X)}), tmp_path / "out"
    for number in (1, 2):
        folder = metrics(tmp_path / "m", x=f"return {number}")
        run_to_folder(*sides, CompareOptions(use_cache=False, metrics=folder), out)
        assert pl.read_parquet(out / "compare.parquet")["metric.x"].to_list() == [number]


def test_words_of_a_metric_leave_stdout_alone(tmp_path: Path) -> None:
    sides = pair(tmp_path, {"f": (X, X)})
    metrics(tmp_path / "m", x="print('from the metric'); return 1")
    ran = numprobe(tmp_path, "compare", *sides, "--metrics", "m", "--json", "--no-cache", "--jobs", 1)
    assert ran.json["verdict"] == "pass"
    assert "from the metric" in ran.err


def test_figures_alone_are_nothing_to_look_at(tmp_path: Path) -> None:
    step = write(tmp_path / "t", {"Torch.f.0.forward": call([tensor(X)], [tensor(X)])})
    folder = metrics(tmp_path / "m", x="return 1")
    ran = numprobe(tmp_path, "compare", step, step, "--metrics", folder, "--no-cache", "--json")
    assert "no_metrics" in [problem["kind"] for problem in ran.json["problems"]]


GOOD = "def column_name():\n    return 'x'\ndef compare(n, b):\n    return 1\n"
WRONG: Mapping[str, tuple[Mapping[str, str], str]] = {
    "nothing": ({}, "E-CMP-018"),
    "no metric": ({"other.py": GOOD}, "E-CMP-018"),
    "name": ({"alg_Upper.py": GOOD}, "small letters"),
    "syntax": ({"alg_x.py": "def column_name(:\n"}, "cannot be run: SyntaxError"),
    "import": ({"alg_x.py": "import nonsense_of_mine\n"}, "ModuleNotFoundError"),
    "exit": ({"alg_x.py": "raise SystemExit(0)\n"}, "SystemExit"),
    "no compare": ({"alg_x.py": "def column_name():\n    return 'x'\n"}, "without a function compare"),
    "no column_name": ({"alg_x.py": "def compare(n, b):\n    return 1\n"}, "without a function column_name"),
    "one argument": ({"alg_x.py": GOOD.replace("(n, b)", "(n)")}, "takes two arguments"),
    "three": ({"alg_x.py": GOOD.replace("(n, b)", "(n, b, c)")}, "takes two arguments"),
    "column fails": ({"alg_x.py": GOOD.replace("return 'x'", "return 1 / 0")}, "ZeroDivisionError"),
    "empty": ({"alg_x.py": GOOD.replace("'x'", "'  '")}, "gives no name"),
    "number": ({"alg_x.py": GOOD.replace("'x'", "3")}, "gives no name"),
    "lines": ({"alg_x.py": GOOD.replace("'x'", "'a\\nb'")}, "gives no name"),
    "ours": ({"alg_x.py": GOOD.replace("'x'", "'Cosine'")}, "column Cosine of a metric is one of the result's own"),
    "formula": ({"alg_x.py": GOOD.replace("'x'", "'=1'")}, "or a formula"),
    "twice": ({"alg_x.py": GOOD, "alg_y.py": GOOD}, "two metrics have one column: x"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_of_what_is_no_metric(tmp_path: Path, what: str) -> None:
    files, said = WRONG[what]
    folder = tmp_path / "m"
    if files:
        folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    with pytest.raises(NumprobeError) as caught:
        run_to_folder(*pair(tmp_path, {"f": (X, X)}), CompareOptions(use_cache=False, metrics=folder), tmp_path / "out")
    assert said in str(caught.value)
    assert str(folder) in caught.value.where
    assert not (tmp_path / "out").exists()
