"""What msProbe's compare gets wrong or leaves unsaid, case by case (the numbers are those of the specification), done right."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from numprobe.compare.command import run_to_folder
from numprobe.compare.run import CompareOptions, compare
from numprobe.record.errors import NumprobeError

from .written import call, compared, save, tensor, write

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((4, 8)).astype(np.float32)
Y = RANDOM.standard_normal((4, 8)).astype(np.float32)


def pair(tmp_path: Path, target: object, golden: object) -> tuple[Path, Path]:
    """One call on both sides, with the same input and these outputs."""
    sides = [
        write(tmp_path / n, {"Torch.f.0.forward": call([tensor(X)], [v])}) for n, v in (("t", target), ("g", golden))
    ]
    return sides[0], sides[1]


def saved_pair(
    tmp_path: Path, target: np.ndarray, golden: np.ndarray, dtype: str = "torch.float32"
) -> tuple[Path, Path]:
    """The same with tensors beside."""
    steps = []
    for name, values in (("t", target), ("g", golden)):
        step = tmp_path / name / "step0"
        leaves = [
            tensor(v, d, data_name=save(step, f"Torch.f.0.forward.{k}", v))
            for k, v, d in (("input.0", X, "torch.float32"), ("output.0", values, dtype))
        ]
        (step / "rank0" / "dump.json").write_text(
            json.dumps(
                {
                    "task": "tensor",
                    "level": "L1",
                    "framework": "pytorch",
                    "data": {"Torch.f.0.forward": call(leaves[:1], leaves[1:])},
                }
            )
        )
        steps.append(step)
    return steps[0], steps[1]


def rows(target: Path, golden: Path, out: Path, **options: object) -> pl.DataFrame:
    """The table that the command writes."""
    run_to_folder(target, golden, CompareOptions(use_cache=False, **options), out)  # type: ignore[arg-type]
    return pl.read_parquet(out / "compare.parquet")


def test_w2_w3_an_operator_more_shifts_nothing_in_any_mode(tmp_path: Path) -> None:
    """msProbe's fuzzy match fails outside of tensor mode, and its search is quadratic."""

    def records(extra: int, digest: bool) -> dict[str, object]:
        found: dict[str, object] = {}
        for i in range(3000):
            values = np.random.default_rng(i).standard_normal(8)
            more = {"md5": f"{i:08x}"} if digest else {}
            leaf = tensor(values, **more)
            number = i + (i >= extra)
            if i == extra:
                found[f"Torch.mul.{i}.forward"] = call([tensor(values * 2)], [tensor(values * 3)])
            found[f"Torch.mul.{number}.forward"] = call([leaf], [leaf])
        return found

    for digest in (False, True):
        golden = write(tmp_path / f"g{digest}", records(10**9, digest), level="L1")  # type: ignore[arg-type]
        target = write(tmp_path / f"t{digest}", records(1500, digest), level="L1")  # type: ignore[arg-type]
        begun = time.monotonic()
        result = compared(target, golden)
        assert time.monotonic() - begun < 10
        [finding] = result.findings
        assert (finding.cause, finding.reason, finding.op) == ("unmatched", "only_target", "Torch.mul.1500.forward")
        assert result.verdict == "pass"
        assert result.counts["error"] == result.counts["warning"] == 0


def test_w4_reasons_reach_the_table(tmp_path: Path) -> None:
    table = rows(*pair(tmp_path, tensor(X), tensor(X[:2])), tmp_path / "out")
    assert table.filter(pl.col("role") == "output")["reason"].to_list() == ["shape"]


def test_w5_records_without_partner_are_rows_and_count(tmp_path: Path) -> None:
    both = {"Torch.f.0.forward": call([tensor(X)], [tensor(Y)])}
    target = write(tmp_path / "t", {**both, "Torch.new.0.forward": call([], [tensor(X)])})
    golden = write(tmp_path / "g", {**both, "Torch.old.0.forward": call([], [tensor(X)])})
    table = rows(target, golden, tmp_path / "out")
    assert sorted(table["verdict"].to_list()) == ["pass", "pass", "unmatched_golden", "unmatched_target"]
    result = compared(target, golden)
    assert result.coverage == pytest.approx(4 / 6, abs=1e-3)
    assert {f.op or f.golden_op for f in result.findings} == {"Torch.new.0.forward", "Torch.old.0.forward"}


def test_w6_another_integer_type_is_said_and_values_are_compared(tmp_path: Path) -> None:
    values = np.arange(8)
    table = rows(*pair(tmp_path, tensor(values, "torch.int64"), tensor(values, "torch.int32")), tmp_path / "out")
    assert table.row(1, named=True)["verdict"] == "pass"
    assert table.row(1, named=True)["status"] == "dtype"
    wrong = pair(tmp_path / "wrong", tensor(values + 1, "torch.int64"), tensor(values, "torch.int32"))
    assert compared(*wrong).verdict == "fail"


def test_w7_another_precision_is_no_error(tmp_path: Path) -> None:
    """msProbe marks every row of bf16 against fp32 as an error, for its dtype."""
    import ml_dtypes

    half = Y.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert compared(*pair(tmp_path, tensor(half, "torch.bfloat16"), tensor(Y))).verdict == "pass"


@pytest.mark.parametrize(
    ("name", "target", "golden"),
    [
        ("sign", -Y, Y),
        ("order", Y[::-1].copy(), Y),
        (
            "inf",
            np.where(np.arange(32).reshape(4, 8) == 5, np.inf, Y),
            np.where(np.arange(32).reshape(4, 8) == 5, -np.inf, Y),
        ),
        (
            "nan",
            np.where(np.arange(32).reshape(4, 8) == 5, np.nan, Y),
            np.where(np.arange(32).reshape(4, 8) == 6, np.nan, Y),
        ),
        ("element", np.where(np.arange(32).reshape(4, 8) == 5, 9, Y), Y),
        ("single", np.array([1.1]), np.array([1.0])),
        ("scalar", np.array(1.1), np.array(1.0)),
    ],
)
def test_w8_differences_that_pass_in_msprobe(tmp_path: Path, name: str, target: np.ndarray, golden: np.ndarray) -> None:
    result = compared(*saved_pair(tmp_path, target.astype(np.float32), golden.astype(np.float32)))
    assert result.verdict == "fail"
    assert result.findings[0].op == "Torch.f.0.forward"
    assert result.findings[0].slot == "output.0"
    if name == "sign":
        assert result.findings[0].layout == "sign_flip"
    if name == "order":
        assert result.findings[0].layout.startswith("reverse axis 0")


def test_w8_the_imaginary_part_counts(tmp_path: Path) -> None:
    real = X[0].astype(np.complex64)
    result = compared(*saved_pair(tmp_path, real + 5j, real - 3j, "torch.complex64"))
    assert result.verdict == "fail"


def test_w9_the_second_output_counts(tmp_path: Path) -> None:
    sides = [
        write(tmp_path / n, {"Torch.split.0.forward": call([tensor(X)], [tensor(X), tensor(v)])})
        for n, v in (("t", 2 * Y), ("g", Y))
    ]
    [finding] = compared(*sides).findings
    assert finding.slot == "output.1"


def test_w10_a_zero_in_the_golden_tensor_is_no_explosion(tmp_path: Path) -> None:
    """msProbe's relative error of 1e-9 against 0 is 8388."""
    golden = Y.copy()
    golden[0, 0] = 0
    target = golden.copy()
    target[0, 0] = 1e-9
    assert compared(*saved_pair(tmp_path, target, golden)).verdict == "pass"


def test_w11_differences_of_fp32_are_seen(tmp_path: Path) -> None:
    """msProbe rounds the cosine to six digits. Here it is 1 - cosine, and the relative error is a column."""
    table = rows(*saved_pair(tmp_path, Y * (1 + 3e-5 * X), Y), tmp_path / "out")
    row = table.filter(pl.col("role") == "output").row(0, named=True)
    expected = np.linalg.norm(Y * 3e-5 * X) / np.linalg.norm(Y)
    assert row["error"] == pytest.approx(expected, rel=1e-2)
    assert 0 < row["one_minus_cosine"] < 1e-9
    assert row["verdict"] == "error"


def test_w12_a_cause_is_told_from_what_hands_it_on(tmp_path: Path) -> None:
    wrong = Y * 2
    sides = [
        write(
            tmp_path / name,
            {
                "Torch.f.0.forward": call([tensor(X)], [tensor(y)]),
                "Torch.g.0.forward": call([tensor(y)], [tensor(y + 1)]),
                "Torch.h.0.forward": call([tensor(y + 1)], [tensor(np.exp(y))]),
            },
        )
        for name, y in (("t", wrong), ("g", Y))
    ]
    table = rows(sides[0], sides[1], tmp_path / "out")
    told = dict(
        zip(
            table.filter(pl.col("role") == "output")["target_op"],
            table.filter(pl.col("role") == "output")["status"],
            strict=True,
        )
    )
    assert told == {
        "Torch.f.0.forward": "introduced",
        "Torch.g.0.forward": "propagated",
        "Torch.h.0.forward": "propagated",
    }


def test_w13_a_dimension_of_one_is_said_and_a_transposed_shape_is_no_pass(tmp_path: Path) -> None:
    squeezed = pair(tmp_path / "a", tensor(Y[:, None]), tensor(Y))
    assert compared(*squeezed).verdict == "pass"
    assert rows(*squeezed, tmp_path / "out").row(1, named=True)["status"] == "squeezed"
    other = pair(tmp_path / "b", tensor(Y.T, md5="0"), tensor(Y, md5="0"))
    assert compared(*other).verdict == "fail"


def test_w14_ranks_are_paired_by_number(tmp_path: Path) -> None:
    for name, ranks in (("t", (1, 2)), ("g", (0, 1))):
        for rank in ranks:
            write(tmp_path / f"{name}{rank}", {"Torch.f.0.forward": call([tensor(X * rank)], [tensor(Y * (rank + 1))])})
            step = tmp_path / name / "step0"
            step.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"{name}{rank}" / "step0" / "rank0").rename(step / f"rank{rank}")
    result = compared(tmp_path / "t" / "step0", tmp_path / "g" / "step0")
    assert (result.verdict, result.premise) == ("inconclusive", "ranks")  # what nobody compared agrees with nothing
    assert compared(tmp_path / "t" / "step0", tmp_path / "g" / "step0", ranks=frozenset({1})).verdict == "pass"
    assert {(p.target, p.golden, p.status) for p in result.ranks if p.status == "ok"} == {("rank1", "rank1", "ok")}
    assert {p.target or p.golden for p in result.ranks if p.status == "missing"} == {"rank0", "rank2"}


def test_w15_an_infinite_difference_counts(tmp_path: Path) -> None:
    result = compared(*pair(tmp_path, tensor(Y), tensor(np.zeros_like(Y))))
    assert result.verdict == "fail"


def test_w17_equal_digests_need_no_tensor_and_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    target, golden = saved_pair(tmp_path, Y, Y)
    for step in (target, golden):
        file = step / "rank0" / "dump.json"
        content = json.loads(file.read_text())
        for leaf in (
            *content["data"]["Torch.f.0.forward"]["input_args"],
            *content["data"]["Torch.f.0.forward"]["output"],
        ):
            leaf["md5"] = "0123abcd"
            leaf["data_name"] = "missing.npy"
        file.write_text(json.dumps(content))
    assert compared(target, golden).verdict == "pass"
    out = tmp_path / "out"
    run_to_folder(target, golden, CompareOptions(use_cache=False), out)
    part = out / "parts" / "step0_rank0.parquet"
    before = part.stat().st_mtime_ns
    run_to_folder(target, golden, CompareOptions(use_cache=False), out)
    assert part.stat().st_mtime_ns == before


def test_w18_nothing_to_compare_is_an_error_that_says_what(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", {"Torch.f.0.forward": call([tensor(X)], [tensor(Y)])})
    with pytest.raises(NumprobeError, match="E-FMT"):
        compare(tmp_path / "nothing", golden)
    (tmp_path / "empty" / "step0" / "rank0").mkdir(parents=True)
    with pytest.raises(NumprobeError, match="E-"):
        compare(tmp_path / "empty", golden)
    other = write(tmp_path / "o", {"Torch.g.0.forward": call([], [tensor(Y)])})
    result = compared(other, golden)
    assert (result.verdict, result.premise, result.exit_code) == ("inconclusive", "nothing_compared", 3)


def test_graph_w1_a_wrong_parameter_is_the_finding(tmp_path: Path) -> None:
    sides = []
    for name, weight in (("t", 1.1 * Y), ("g", Y)):
        body = {**call([tensor(X)], [tensor(weight[0] * X)]), "parameters": {"weight": tensor(weight)}}
        sides.append(write(tmp_path / name, {"Module.layers.0.fc.Linear.forward.0": body}, level="L0"))
    [finding] = compared(*sides).findings
    assert (finding.cause, finding.parameter) == ("parameter", "layers.0.fc.weight")


@pytest.mark.parametrize("golden", [np.zeros((4, 8)), np.full((4, 8), np.nan)])
def test_graph_w2_zero_and_nan_in_the_golden_run_hide_nothing(tmp_path: Path, golden: np.ndarray) -> None:
    assert compared(*pair(tmp_path, tensor(Y), tensor(golden))).verdict == "fail"


def test_gradients_are_rated(tmp_path: Path) -> None:
    sides = []
    for name, gradient in (("t", 3 * Y), ("g", Y)):
        sides.append(
            write(
                tmp_path / name,
                {
                    "Torch.f.0.forward": call([tensor(X)], [tensor(Y)]),
                    "Torch.f.0.backward": {"input": [tensor(X)], "output": [tensor(gradient)]},
                },
            )
        )
    [finding] = compared(*sides).findings
    assert finding.op == "Torch.f.0.backward"


def test_gradients_of_another_definition_are_not_rated(tmp_path: Path) -> None:
    """msProbe records the last autograd node's gradients, numprobe those of the call."""
    records = {"Torch.f.0.backward": {"input": [tensor(X)], "output": [tensor(Y)]}}
    other = {"Torch.f.0.backward": {"input": [tensor(X)], "output": [tensor(3 * Y)]}}
    target = write(tmp_path / "t", other, grad_kind="true")
    golden = write(tmp_path / "g", records)
    table = rows(target, golden, tmp_path / "out")
    assert table.filter(pl.col("role") == "output")["reason"].to_list() == ["gradient_definition"]


def two_ranks(folder: Path, own: float, reduced: float) -> Path:
    """Two ranks that compute and then add up; rank 1 computes ``own`` times too much."""
    for rank in (0, 1):
        y = Y * own if rank == 1 else Y
        write(
            folder / f"part{rank}",
            {
                "Torch.f.0.forward": call([tensor(X)], [tensor(y)]),
                "Distributed.all_reduce.0.forward": call([tensor(y)], [tensor(reduced * Y)]),
                "Torch.g.0.forward": call([tensor(reduced * Y)], [tensor(reduced * X * Y)]),
            },
        )
        step = folder / "step0"
        step.mkdir(exist_ok=True)
        (folder / f"part{rank}" / "step0" / "rank0").rename(step / f"rank{rank}")
    return folder / "step0"


def test_what_a_collective_brings_in_is_the_finding_of_the_rank_that_made_it(tmp_path: Path) -> None:
    """msProbe reports the first difference of every rank, without an order."""
    [finding] = compared(two_ranks(tmp_path / "t", 3.0, 4.0), two_ranks(tmp_path / "g", 1.0, 2.0)).findings
    assert (finding.op, finding.ranks) == ("Torch.f.0.forward", [1])


def test_a_collective_that_is_wrong_itself_is_the_finding(tmp_path: Path) -> None:
    [finding] = compared(two_ranks(tmp_path / "t", 1.0, 4.0), two_ranks(tmp_path / "g", 1.0, 2.0)).findings
    assert (finding.op, finding.reason, finding.ranks) == ("Distributed.all_reduce.0.forward", "received", [0, 1])


def test_a_call_that_gives_the_same_again_ends_the_trail(tmp_path: Path) -> None:
    sides = [
        write(
            tmp_path / name,
            {
                "Torch.f.0.forward": call([tensor(X)], [tensor(y)]),
                "Torch.sign.0.forward": call([tensor(y)], [tensor(np.sign(Y))]),
                "Torch.g.0.forward": call([tensor(np.sign(Y))], [tensor(np.sign(Y) * X)]),
            },
        )
        for name, y in (("t", 2 * Y), ("g", Y))
    ]
    table = rows(sides[0], sides[1], tmp_path / "out")
    told = table.filter(pl.col("role") == "output").select("target_op", "status", "verdict").rows()
    assert told == [
        ("Torch.f.0.forward", "introduced", "error"),
        ("Torch.sign.0.forward", "recovered", "pass"),
        ("Torch.g.0.forward", "", "pass"),
    ]
