"""Bad input: a row with a reason or one clear error; never a traceback, and no pass where something could not be compared."""

from __future__ import annotations

import copy
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from cli.shell import command, numprobe, process, tree
from numprobe.compare.command import Output, run_to_folder
from numprobe.compare.page.screen import render_json_line
from numprobe.compare.result import CompareResult
from numprobe.compare.run import CompareOptions
from numprobe.metrics import on_device
from numprobe.record.errors import NumprobeError

from .written import Entry, call, compared, save, tensor, write

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)
Y = RANDOM.standard_normal((4, 8)).astype(np.float32)
NAN = float("nan")
INF = float("inf")
NAME = "Torch.f.0.forward"


def value(kind: str, what: object) -> dict[str, object]:
    """An argument that is no tensor."""
    return {"type": kind, "value": what}


def outputs(folder: Path, target: object, golden: object) -> CompareResult:
    """One call with the same input on both sides and these outputs."""
    sides = [write(folder / n, {NAME: call([tensor(X)], [v])}) for n, v in (("t", target), ("g", golden))]
    return compared(*sides)


def arguments(folder: Path, target: object, golden: object) -> CompareResult:
    """One call with the same tensors on both sides and these further arguments."""
    sides = [write(folder / n, {NAME: call([tensor(X), v], [tensor(Y)])}) for n, v in (("t", target), ("g", golden))]
    return compared(*sides)


def saved(folder: Path, values: np.ndarray, figures: bool = True, dtype: str = "torch.float32") -> Path:
    """A dump of task tensor: one call, its input and output beside."""
    step = folder / "step0"
    leaves = [
        tensor(v, d, data_name=save(step, f"{NAME}.{k}", v))
        for k, v, d in (("input.0", X, "torch.float32"), ("output.0", values, dtype))
    ]
    if not figures:
        leaves = [{**leaf, "Max": None, "Min": None, "Mean": None, "Norm": None} for leaf in leaves]
    body = {"task": "tensor", "level": "L1", "framework": "pytorch", "data": {NAME: call(leaves[:1], leaves[1:])}}
    (step / "rank0" / "dump.json").write_text(json.dumps(body))
    return step


def ranks(folder: Path, *steps: Path) -> Path:
    """One step whose ranks are those of these dumps."""
    for number, step in enumerate(steps):
        shutil.copytree(step / "rank0", folder / "step0" / f"rank{number}")
    return folder / "step0"


# --- values that are no tensors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (value("int", 1_000_000), value("int", 1_000_001)),
        (value("int", 10**400), value("int", 10**400 + 1)),
        (value("int", 10**400), value("float", 1.0)),
        (value("float", INF), value("float", -INF)),
        (value("float", INF), value("float", 1.0)),
        (value("float", NAN), value("float", 1.0)),
        (value("float", 1e-9), value("float", 0.0)),
        (value("slice", [0, 3, None]), value("slice", [0, 4, None])),
        (value("complex", "(1+2j)"), value("complex", "(1+3j)")),
        (value("float64", 1.0), value("float64", 2.0)),
        (value("torch.distributed.ReduceOp", "RedOpType.SUM"), value("torch.distributed.ReduceOp", "RedOpType.AVG")),
        (value("ellipsis", "..."), value("int", 1)),
        (None, value("int", 1)),
        (value("int", 1), None),
    ],
)
def test_an_argument_that_differs_is_a_warning(tmp_path: Path, target: object, golden: object) -> None:
    assert arguments(tmp_path, target, golden).counts["warning"] == 1


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (value("int", 10**400), value("int", 10**400)),
        (value("float", NAN), value("float", NAN)),
        (value("float", INF), value("float", INF)),
        (value("float", 0.1), value("float", 0.1 * (1 + 1e-9))),
        (value("int", 1), value("float", 1.0)),
        (value("slice", [0.5, NAN]), value("slice", [0.5, NAN])),
        (value("str", "cuda:0"), value("str", "cpu")),
        (value("torch.dtype", "torch.float16"), value("torch.dtype", "torch.float32")),
        (value("mindspore.dtype", "Float16"), value("mindspore.dtype", "Float32")),
        (None, None),
    ],
)
def test_arguments_that_agree(tmp_path: Path, target: object, golden: object) -> None:
    assert arguments(tmp_path, target, golden).counts["pass"] == 3


# --- figures -----------------------------------------------------------------------------------------------------------


def test_complex_numbers_are_rounded_as_their_parts_are(tmp_path: Path) -> None:
    wide = Y.astype(np.float64) + 1j * X
    kind = "torch.complex64"
    assert outputs(tmp_path / "a", tensor(wide * (1 + 1e-7), kind), tensor(wide, kind)).verdict == "pass"
    assert outputs(tmp_path / "b", tensor(wide * 1.01, kind), tensor(wide, kind)).verdict == "fail"
    same_nan = outputs(tmp_path / "c", tensor(wide * NAN, kind), tensor(wide * NAN, kind))
    assert same_nan.counts["incomparable"] == 1


@pytest.mark.parametrize("shape", [None, [-4, 8], "4x8", [[4], 8]])
def test_a_shape_that_is_none_is_unknown(tmp_path: Path, shape: object) -> None:
    leaf = {**tensor(Y), "shape": shape}
    assert outputs(tmp_path / "a", leaf, leaf).verdict == "pass"
    assert outputs(tmp_path / "b", leaf, tensor(Y)).verdict == "pass"
    assert outputs(tmp_path / "c", leaf, tensor(2 * Y)).verdict == "fail"


def test_a_shape_of_more_elements_than_any_tensor_has(tmp_path: Path) -> None:
    leaf = {**tensor(Y), "shape": [10**30, 8]}
    assert outputs(tmp_path / "a", leaf, leaf).verdict == "pass"
    sides = [write(tmp_path / n, {NAME: call([tensor(X)], [v])}) for n, v in (("t", leaf), ("g", tensor(Y)))]
    for _ in range(2):
        comparison, _ = run_to_folder(*sides, CompareOptions(use_cache=False), tmp_path / "out")
        assert comparison.result.findings[0].reason == "shape"


def test_a_parameter_of_a_shape_that_no_tensor_has(tmp_path: Path) -> None:
    """It is no part of the other that 10^30 ranks hold."""
    sides = [
        write(
            tmp_path / n,
            {"Module.a.Linear.forward.0": {**call([tensor(X)], [tensor(Y)]), "parameters": {"weight": leaf}}},
        )
        for n, leaf in (("t", {**tensor(Y), "shape": [10**30, 8]}), ("g", tensor(Y)))
    ]
    [finding] = compared(*sides).findings
    assert (finding.cause, finding.reason, finding.parameter) == ("parameter", "shape", "a.weight")


@pytest.mark.parametrize("figure", ["Mean", "Norm"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_sum_that_overflowed_on_one_side_is_unknown(tmp_path: Path, figure: str, side: int) -> None:
    """A collector that adds up in fp16 gives an infinite norm of numbers that are all finite."""
    leaves = [tensor(Y), tensor(Y)]
    leaves[side][figure] = INF
    assert outputs(tmp_path / "a", *leaves).verdict == "pass"
    leaves = [tensor(2 * Y), tensor(Y)]
    leaves[side][figure] = INF
    assert outputs(tmp_path / "b", *leaves).verdict == "fail"


def test_the_same_nan_on_both_sides_is_not_compared(tmp_path: Path) -> None:
    result = outputs(tmp_path, tensor(np.full((4, 8), NAN)), tensor(np.full((4, 8), NAN)))
    assert result.counts["incomparable"] == 1
    assert result.coverage == 0.5


# --- digests -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", ["", "None", "N/A", "0a1b2c3d"])
def test_a_digest_that_contradicts_the_figures_is_none(tmp_path: Path, digest: str) -> None:
    assert outputs(tmp_path, tensor(2 * Y, md5=digest), tensor(Y, md5=digest)).verdict == "fail"


@pytest.mark.parametrize(
    ("target", "golden"),
    [("0a1b2c3d", "0a1b2c3d0a1b2c3d"), ("0x0000000000000001", "0a1b2c3d"), ("0A1B2C3D", "0a1b2c3d")],
)
def test_digests_of_two_kinds_tell_nothing(tmp_path: Path, target: str, golden: str) -> None:
    assert outputs(tmp_path, tensor(Y, md5=target), tensor(Y, md5=golden)).verdict == "pass"
    bare = {k: v for k, v in tensor(Y).items() if k not in ("Max", "Min", "Mean", "Norm")}
    counts = outputs(tmp_path / "bare", {**bare, "md5": target}, {**bare, "md5": golden}).counts
    assert counts["error"] == 0
    assert counts["incomparable"] == (target.lower() != golden.lower())


# --- files of tensors --------------------------------------------------------------------------------------------------


class Code:
    """What an object array with code in it would do."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("executed",)


def huge(file: Path) -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 8), }".ljust(117) + b"\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)


def outside(file: Path) -> None:
    elsewhere = file.parents[3] / "elsewhere.npy"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)


def again(file: Path, make: Callable[[Path], object]) -> None:
    file.unlink()
    make(file)


DAMAGE: Mapping[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "cut": lambda f: f.write_bytes(f.read_bytes()[:-7]),
    "empty": lambda f: f.write_bytes(b""),
    "noise": lambda f: f.write_bytes(np.random.default_rng(1).bytes(500)),
    "folder": lambda f: again(f, Path.mkdir),
    "pipe": lambda f: again(f, os.mkfifo),
    "ring": lambda f: again(f, lambda p: p.symlink_to(p)),
    "outside": outside,
    "huge": huge,
    "code": lambda f: np.save(f, np.array([Code()], dtype=object), allow_pickle=True),
}
OUTPUT = Path("rank0", "dump_tensor_data", f"{NAME}.output.0.npy")


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_tensor_that_cannot_be_read(tmp_path: Path, damage: str) -> None:
    """Figures that differ still show a difference; figures that agree do not make up for the tensor."""
    for name, factor, figures, verdict in (
        ("agree", 1, True, "incomparable"),
        ("differ", 2, True, "error"),
        ("unknown", 1, False, "incomparable"),
    ):
        target, golden = (saved(tmp_path / name / n, v, figures) for n, v in (("t", factor * Y), ("g", Y)))
        DAMAGE[damage](target / OUTPUT)
        run_to_folder(target, golden, CompareOptions(use_cache=False), tmp_path / name / "out")
        table = pl.read_parquet(tmp_path / name / "out" / "compare.parquet")
        row = table.filter(pl.col("role") == "output").row(0, named=True)
        assert row["verdict"] == verdict
        assert row["problem"].startswith("target: E-FMT-")
        assert row["reason"] == ("file" if verdict == "incomparable" else None)
        assert compared(target, golden).coverage == (1.0 if verdict == "error" else 0.5)
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "name", ["../../../../g/step0/" + OUTPUT.as_posix(), "/etc/passwd", "a\0b", "", ".", "x" * 5000, "-1"]
)
def test_a_name_that_leads_nowhere_or_out_of_the_folder(tmp_path: Path, name: str) -> None:
    target, golden = (saved(tmp_path / n, Y) for n in ("t", "g"))
    file = target / "rank0" / "dump.json"
    content = json.loads(file.read_text())
    content["data"][NAME]["output"][0]["data_name"] = name
    file.write_text(json.dumps(content))
    result = compared(target, golden)
    assert (result.counts["pass"], result.counts["incomparable"]) == (1, 1)


def test_tensors_on_a_device(tmp_path: Path) -> None:
    """One table, whichever computes; and no folder where none can."""
    target, golden = (saved(tmp_path / n, f * Y) for n, f in (("t", 2), ("g", 1)))
    tables = []
    for name in ("", "cpu"):
        out = tmp_path / f"out{name}"
        run_to_folder(target, golden, CompareOptions(use_cache=False, device=name), out, Output(compat=True))
        [cells] = out.glob("compare_result_*.csv")
        tables.append((pl.read_parquet(out / "compare.parquet"), pl.read_csv(cells)))
    for ours, theirs in zip(*tables, strict=True):
        assert_frame_equal(ours, theirs, rel_tol=1e-12, abs_tol=0)
    ran = numprobe(tmp_path, "compare", target, golden, "--device", "nonsense", "-o", "no")
    assert (ran.code, (tmp_path / "no").exists()) == (2, False)
    assert "E-CMP-016  --device nonsense cannot be used" in ran.err


def test_a_device_that_fails_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    target, golden = (saved(tmp_path / n, f * Y) for n, f in (("t", 2), ("g", 1)))
    made = on_device.device("cpu")
    monkeypatch.setattr(on_device._Torch, "put", fails)
    monkeypatch.setattr(on_device, "device", lambda name: made)
    with pytest.raises(NumprobeError, match="E-CMP-017"):
        run_to_folder(target, golden, CompareOptions(use_cache=False, device="cpu"), tmp_path / "out")


@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (8, 4)])
def test_a_file_of_another_shape_behind_figures_that_agree(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Also of a module's output, which by its figures is that of the call inside it."""
    call_name, module = "Torch.f.0.forward", "Module.m.M.forward.0"
    sides = []
    for name in ("t", "g"):
        step = tmp_path / name / "step0"
        leaves = [tensor(Y, data_name=save(step, f"{op}.output.0", Y)) for op in (call_name, module)]
        content = {op: call([tensor(X)], [leaf]) for op, leaf in zip((call_name, module), leaves, strict=True)}
        head = {"task": "tensor", "level": "mix", "framework": "pytorch"}
        (step / "rank0" / "dump.json").write_text(json.dumps({**head, "data": content}))
        (step / "rank0" / "construct.json").write_text(json.dumps({call_name: module, module: None}))
        sides.append(step)
    save(sides[0], f"{module}.output.0", np.zeros(shape))
    result = compared(*sides)
    assert (result.verdict, result.counts["error"]) == ("fail", 1)
    assert (result.findings[0].cause, result.findings[0].op) == ("layout", module)


def test_inputs_of_another_shape_are_told_where_nothing_else_could_be_compared(tmp_path: Path) -> None:
    sides = [write(tmp_path / n, {NAME: call([tensor(v)], [tensor(2 * v)])}) for n, v in (("t", X), ("g", X[:, :3]))]
    result = compared(*sides)
    assert (result.verdict, result.premise) == ("inconclusive", "inputs_differ")


def test_without_any_tensor_nothing_was_compared(tmp_path: Path) -> None:
    target, golden = (saved(tmp_path / n, Y) for n in ("t", "g"))
    shutil.rmtree(target / "rank0" / "dump_tensor_data")
    result = compared(target, golden)
    assert (result.verdict, result.premise) == ("inconclusive", "nothing_compared")


def test_a_tensor_that_was_not_asked_for_is_compared_by_its_figures(tmp_path: Path) -> None:
    """The list of one side saves fewer tensors than the other does."""
    target, golden = (saved(tmp_path / n, Y) for n in ("t", "g"))
    file = target / "rank0" / "dump.json"
    content = json.loads(file.read_text())
    del content["data"][NAME]["output"][0]["data_name"]
    file.write_text(json.dumps(content))
    assert compared(target, golden).counts["pass"] == 2


def test_denormals_of_fp64(tmp_path: Path) -> None:
    small = np.full(20, 1e-320)
    sides = [saved(tmp_path / n, f * small, dtype="torch.float64") for n, f in (("t", 2), ("g", 1))]
    assert compared(*sides).verdict == "fail"
    assert compared(sides[0], sides[0]).verdict == "pass"


# --- what no input decides ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["arange", "full", "ones", "tensor", "linspace", "eye", "zeros_like", "new_full"])
@pytest.mark.parametrize("kind", ["torch.int64", "torch.float32"])
def test_constants_that_differ_are_an_error(tmp_path: Path, api: str, kind: str) -> None:
    """Positions that begin at one are no memory that nobody filled; and what comes of them is no surprise."""
    first, then = f"Torch.{api}.0.forward", "Torch.f.0.forward"
    sides = []
    for name, begin in (("t", 1), ("g", 0)):
        leaf = tensor(np.arange(begin, begin + 16, dtype="i8" if "int" in kind else "f4"), kind)
        sides.append(write(tmp_path / name, {first: call([], [leaf]), then: call([leaf], [tensor(Y + begin)])}))
    [finding] = compared(*sides).findings
    assert (finding.op, finding.cause, finding.severity) == (first, "introduced", "error")


def test_memory_that_nobody_filled_may_differ(tmp_path: Path) -> None:
    sides = [write(tmp_path / n, {"Torch.empty.0.forward": call([], [tensor(v)])}) for n, v in (("t", X), ("g", Y))]
    assert compared(*sides).verdict == "pass"


# --- parents -----------------------------------------------------------------------------------------------------------


def test_a_ring_of_parents_explains_no_difference(tmp_path: Path) -> None:
    """What is inside a module explains its output only if it ran before it ended."""
    names = [f"Torch.f{i}.0.forward" for i in range(8)]
    ring = {name: names[(3 * i + 1) % 8] for i, name in enumerate(names)}
    sides = [
        write(tmp_path / n, {name: call([tensor(i * X)], [tensor(f * i * Y)]) for i, name in enumerate(names, 1)}, ring)
        for n, f in (("t", 2), ("g", 1))
    ]
    assert compared(*sides).counts["error"] == 8


# --- ranks of different kinds ------------------------------------------------------------------------------------------


def records(*factors: float) -> dict[str, Entry]:
    return {f"Torch.f{i}.0.forward": call([tensor(X)], [tensor(f * Y)]) for i, f in enumerate(factors)}


def test_ranks_with_tensors_with_figures_and_with_nothing(tmp_path: Path) -> None:
    sides = []
    for name in ("t", "g"):
        figures, nothing = (write(tmp_path / name / n, r) for n, r in (("figures", records(1, 2)), ("nothing", {})))
        sides.append(ranks(tmp_path / name, nothing, figures, saved(tmp_path / name / "tensors", Y)))
    ran = numprobe(
        tmp_path, "compare", *sides, "-o", "out", "--table", "csv", "--table", "xlsx", "--json", "--no-cache"
    )
    assert ran.code == 0
    assert ran.json["counts"]["pass"] == 6
    assert pl.read_parquet(tmp_path / "out" / "compare.parquet").height == 6


@pytest.mark.parametrize("side", [0, 1])
def test_the_last_record_is_on_one_side_only_and_has_no_tensors(tmp_path: Path, side: int) -> None:
    more = [records(1), {**records(1), "Torch.synchronize.0.forward": call([], [])}]
    result = compared(*(write(tmp_path / str(n), more[n == side]) for n in (0, 1)))
    assert (result.verdict, result.findings[0].slot) == ("pass", "")
    assert result.findings[0].op == ("Torch.synchronize.0.forward" if side == 0 else None)


@pytest.mark.parametrize("figure", [10**400, -(10**30), 2**64 - 1, -(2**63), "1e400"])
def test_figures_beyond_every_integer(tmp_path: Path, figure: object) -> None:
    leaf = {**tensor(np.array([1, 2]), "torch.int64"), "Max": figure}
    sides = [write(tmp_path / n, {NAME: call([tensor(X)], [v])}) for n, v in (("t", leaf), ("g", tensor(Y)))]
    run_to_folder(*sides, CompareOptions(use_cache=False), tmp_path / "out")
    again, _ = run_to_folder(*sides, CompareOptions(use_cache=False), tmp_path / "out")
    assert again.result.verdict == "fail"


@pytest.mark.filterwarnings("ignore:overflow")  # of the norm in this test
@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_numbers_whose_squares_no_float_holds(tmp_path: Path, scale: float) -> None:
    kind = "torch.float64"
    wide = np.full(16, scale)
    assert (
        outputs(tmp_path / "a", tensor(wide, kind, Norm=4 * scale), tensor(wide, kind, Norm=4 * scale)).verdict
        == "pass"
    )
    assert outputs(tmp_path / "b", tensor(wide * 3, kind), tensor(wide, kind)).verdict == "fail"
    out = tmp_path / "out"
    sides = [tmp_path / "b" / n / "step0" for n in ("t", "g")]
    assert run_to_folder(*sides, CompareOptions(use_cache=False), out)[0].result.verdict == "fail"
    inputs = [
        write(tmp_path / n, {NAME: call([tensor(v, kind)], [tensor(v, kind)])}) for n, v in (("t", wide), ("g", X))
    ]
    assert compared(*inputs).verdict != "pass"


def test_texts_that_utf8_cannot_hold(tmp_path: Path) -> None:
    odd = value("str", "\ud800")
    sides = [
        write(tmp_path / n, {NAME: call([odd], [tensor(v, md5="\udcff"), odd], key=odd)})
        for n, v in (("t", 2 * Y), ("g", Y))
    ]
    for _ in range(2):
        ran = numprobe(
            tmp_path, "compare", *sides, "-o", "out", "--json", "--table", "csv", "--compat", "msprobe", "--no-cache"
        )
        assert (ran.code, ran.json["first"]["op"]) == (1, NAME)


# --- folders and names -------------------------------------------------------------------------------------------------


def test_names_of_folders_that_are_no_utf8(tmp_path: Path) -> None:
    named = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff\xfe"))
    target, golden = write(named / "t", records(1)), write(tmp_path / "g", records(2))
    ran = numprobe(
        tmp_path, "compare", target, golden, "-o", named / "out", "--table", "csv", "--table", "xlsx", "--json"
    )
    assert ran.code == 1
    assert ran.json["first"]["op"] == "Torch.f0.0.forward"
    assert sorted(p.suffix for p in (named / "out").glob("compare.*")) == [".csv", ".parquet", ".xlsx"]


@pytest.mark.parametrize("option", ["--noise", "--baseline"])
def test_nothing_is_written_into_the_further_dumps(tmp_path: Path, option: str) -> None:
    target, golden, other = (write(tmp_path / n, records(1)) for n in ("t", "g", "o"))
    before = tree(tmp_path)
    ran = numprobe(tmp_path, "compare", target, golden, option, other, "-o", other / "rank0" / "out", "--no-cache")
    assert ran.code == 2
    assert "E-OUT-003" in ran.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize("size", [500, 3000, 8000])
def test_a_full_disk(tmp_path: Path, size: int) -> None:
    """One error, and no half-written file stays behind."""
    import subprocess

    target, golden = (write(tmp_path / n, records(*range(300))) for n in ("t", "g"))

    def limit() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    ran = subprocess.run(
        command("compare", target, golden, "-o", tmp_path / "out", "--no-cache", "--jobs", "1"),
        preexec_fn=limit,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )
    assert ran.returncode == 2
    assert "E-OUT-002" in ran.stderr
    assert not list((tmp_path / "out").rglob(".*"))


def test_the_dumps_stay_as_they_are(tmp_path: Path) -> None:
    target, golden = (saved(tmp_path / n, v) for n, v in (("t", 2 * Y), ("g", Y)))
    before = tree(tmp_path)
    (tmp_path / "cwd").mkdir()
    assert process(tmp_path / "cwd", "compare", target, golden, "--compat", "msprobe", "--quiet").code == 1
    assert {k: v for k, v in tree(tmp_path).items() if k.startswith(("t", "g"))} == {
        k: v for k, v in before.items() if k.startswith(("t", "g"))
    }


# --- anything ----------------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    *(None, 0, -1, 1.5, NAN, INF, -INF, 10**400, 2**63, True, "", "NaN", "1e400", [], {}, [None], [[]], {"": {}}),
    *("torch.complex64", "torch.int64", "torch.bool", "torch.float8_e4m3fn", [0], [-1], [10**30], ["a"], "x" * 3000),
    *("=1+1", "<b>", "\ud800", "\n", "../x", 1e308, 5e-324, tensor(X), {"type": "torch.Tensor"}),
]
WORDS = (
    "Max",
    "Norm",
    "shape",
    "dtype",
    "type",
    "md5",
    "data_name",
    "value",
    "stat_dtype",
    "input_args",
    "output",
    "grad_of",
)
STEP: dict[str, Entry] = {
    "Torch.mul.0.forward": call([tensor(X), value("float", 2.0)], [tensor(2 * X)]),
    "Module.a.Linear.forward.0": {**call([tensor(2 * X)], [tensor(Y)]), "parameters": {"weight": tensor(Y)}},
    "Torch.topk.0.forward": call(
        [tensor(Y), value("int", 2)], [[tensor(Y[:, :2]), tensor(np.arange(8), "torch.int64")]]
    ),
    "Distributed.all_reduce.0.forward": call([tensor(Y, md5="0a1b2c3d")], [tensor(2 * Y, md5="0a1b2c3e")]),
    "Torch.mul.0.backward": {"input": [tensor(Y)], "output": [tensor(2 * Y), None]},
    "Module.a.Linear.parameters_grad": {"weight": [tensor(Y)]},
}
PARENTS: dict[str, str | None] = {"Torch.topk.0.forward": "Module.a.Linear.forward.0"}


def places(tree: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything inside."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in inside:
        yield (*here, key)
        yield from places(part, (*here, key))


def damaged(tree: Any, draw: Callable[[Any], Any]) -> Any:
    """With a few things replaced, taken away, renamed or put elsewhere."""
    tree = copy.deepcopy(tree)
    for _ in range(draw(st.integers(0, 6))):
        ways = list(places(tree))
        if not ways:
            break
        *above, key = draw(st.sampled_from(ways))
        around = tree
        for k in above:
            around = around[k]
        how = draw(st.sampled_from(("replace", "remove", "add", "rename", "repeat")))
        if how == "remove":
            del around[key]
        elif how == "add" and isinstance(around, dict):
            around[draw(st.sampled_from(WORDS))] = copy.deepcopy(draw(st.sampled_from(ODD)))
        elif how == "rename" and isinstance(around, dict):
            around[str(key).replace("0", "1") if draw(st.booleans()) else draw(st.sampled_from([*STEP]))] = around.pop(
                key
            )
        elif how == "repeat" and isinstance(around, list):
            around.append(copy.deepcopy(around[key]))
        else:
            around[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return tree


@pytest.mark.filterwarnings("error")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_dumps_end_in_a_verdict_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "data": STEP}
    sides = []
    for name in ("t", "g"):
        place = folder / name / "step0" / "rank0"
        place.mkdir(parents=True)
        for file, content in (
            ("dump.json", head),
            ("construct.json", PARENTS),
            ("stack.json", {"0": [[*STEP], ["a, line 1"]]}),
        ):
            (place / file).write_text(json.dumps(damaged(content, data.draw)))
        sides.append(place.parent)
    try:
        options = CompareOptions(
            use_cache=False, jobs=1, noise=sides[1], by=data.draw(st.sampled_from(["auto", "tensor"]))
        )
        comparison, run = run_to_folder(*sides, options, folder / "out", Output(tables=("csv",), compat=True))
    except NumprobeError:
        return
    result = comparison.result
    assert result.verdict != "pass" or (not result.counts["error"] and result.counts["pass"] + result.counts["warning"])
    assert json.loads((run.path / "result.json").read_text())["verdict"] == result.verdict
    json.loads(render_json_line(result, "out"))


def test_an_error_of_the_input_leaves_no_folder_behind(tmp_path: Path) -> None:
    sides = [
        write(tmp_path / side, {"Functional.silu.0.forward": call([tensor([1.0])], [tensor([1.0])])}) for side in "tg"
    ]
    (sides[1] / "rank0").rename(sides[1] / "rank7")
    (sides[0] / "rank3").mkdir()
    shutil.copy(sides[0] / "rank0" / "dump.json", sides[0] / "rank3")
    out = tmp_path / "out"
    for place in (out, out / "deeper" / "run"):
        with pytest.raises(NumprobeError, match="E-CMP-001"):
            run_to_folder(*sides, CompareOptions(use_cache=False), place)
        assert not out.exists()
    out.mkdir()
    (out / "mine").mkdir()
    (out / "mine" / "kept").write_text("")
    with pytest.raises(NumprobeError, match="E-OUT-001"):
        run_to_folder(*sides, CompareOptions(use_cache=False), out)
    assert (out / "mine" / "kept").exists()


def test_a_run_that_was_there_stays_when_its_input_is_lost(tmp_path: Path) -> None:
    sides = [
        write(tmp_path / side, {"Functional.silu.0.forward": call([tensor([1.0])], [tensor([1.0])])}) for side in "tg"
    ]
    out = tmp_path / "out"
    run_to_folder(*sides, CompareOptions(use_cache=False), out)
    (sides[1] / "rank0" / "dump.json").write_text("no json")
    with pytest.raises(NumprobeError):
        run_to_folder(*sides, CompareOptions(use_cache=False), out)
    assert (out / "report.html").exists()
    assert (out / "run.json").exists()


def test_an_output_below_a_file_needs_another_place_not_more_room(tmp_path: Path) -> None:
    step = write(tmp_path / "t", {"Functional.silu.0.forward": call([tensor([1.0])], [tensor([1.0])])})
    (tmp_path / "file").write_text("")
    with pytest.raises(NumprobeError, match="E-OUT-002") as caught:
        run_to_folder(step, step, CompareOptions(use_cache=False), tmp_path / "file" / "out")
    assert caught.value.do == "choose another -o"
