"""An operator that gets an infinity and makes NaN: headline, evidence, class, table and bound say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from numprobe.diagnose.nan_overflow.page.markdown import render_markdown
from numprobe.diagnose.nan_overflow.result import NanResult

from .samples import NAN, all_reduce, analysed, call, t, write_step

FAR = {"a bare token": "Infinity", "an exponent": "1e400", "400 digits": "9" * 400, "6,000 digits": "9" * 6000}


def with_input(tmp_path: Path, api: str, figure: str) -> NanResult:
    records = {
        "Torch.relu.0.forward": call(t(1.0), out=t(1.0)),
        f"{api}.0.forward": call(t(12345.0, -1.0), t(0.5), out=t(NAN)),
        "Distributed.all_reduce.0.forward": all_reduce(t(NAN), t(NAN), 0, 1),
    }
    clean = {
        "Torch.relu.0.forward": call(t(1.0), out=t(1.0)),
        f"{api}.0.forward": call(t(1.0), t(0.5), out=t(1.0)),
        "Distributed.all_reduce.0.forward": all_reduce(t(1.0), t(NAN), 0, 1),
    }
    write_step(tmp_path / "step0", records, clean)
    file = tmp_path / "step0" / "rank0" / "dump.json"
    file.write_text(file.read_text().replace("12345.0", figure))
    return analysed(tmp_path)


@pytest.mark.parametrize("api", ["Functional.linear", "Torch.add", "Torch.exp"])
@pytest.mark.parametrize("figure", FAR.values(), ids=FAR)
def test_all_parts_of_the_report_agree(figure: str, api: str, tmp_path: Path):
    result = with_input(tmp_path, api, figure)
    assert (result.verdict, result.source_ranks) == ("overflow_found", [0])
    first = result.first
    assert first is not None
    assert first.slots[0].state == "inf"
    assert result.headline is not None
    assert (result.headline.key, result.headline.values["given"], result.headline.values["slot"]) == (
        "headline.from_infinite",
        "inf",
        "input_args.0",
    )
    assert result.evidence[0].message.key == "evidence.first_nan"
    assert first.clazz == "unknown"
    assert first.bound is not None
    assert first.bound.reason is not None
    assert first.bound.reason.key == "bound.infinite_input"
    report = render_markdown(result, "en")
    for wrong in ("turned finite inputs", "inputs of `Torch.add.0.forward` are finite", "an input has no statistics"):
        assert wrong not in report


@pytest.mark.parametrize("figure", ["12345.0", "9" * 25])
def test_a_large_finite_number_stays_finite(figure: str, tmp_path: Path):
    result = with_input(tmp_path, "Functional.linear", figure)
    assert result.headline is not None
    assert result.headline.key == "headline.introduced"
    assert result.evidence[0].message.key == "evidence.first_dirty"


def test_a_masked_row_got_its_infinity(tmp_path: Path):
    records = {
        "Torch.relu.0.forward": call(t(1.0), out=t(1.0)),
        "Functional.softmax.0.forward": call(t(1.0, float("-inf")), out=t(NAN)),
        "Torch.mul.0.forward": call(t(NAN), out=t(NAN)),
    }
    write_step(tmp_path / "step0", records)
    result = analysed(tmp_path)
    assert result.headline is not None
    assert (result.clazz, result.headline.values["given"]) == ("fully_masked_row", "-inf")


@pytest.mark.parametrize(("low", "asked"), [(0, True), (78, False)])
def test_an_empty_group_is_a_lead_only_where_there_is_one(low: int, asked: bool, tmp_path: Path):
    groups = {"type": "torch.Tensor", "dtype": "torch.int64", "shape": [2], "Max": 1024 - low, "Min": low}
    matmul = call(
        [t(1.0, shape=(1024, 8))], [t(0.5, shape=(2, 8, 4))], out=[t(NAN, shape=(1024, 4))], group_list=groups
    )
    records = {
        "Torch.relu.0.forward": call(t(1.0), out=t(1.0)),
        "NPU.npu_grouped_matmul.0.forward": matmul,
        "Torch.mul.0.forward": call(t(NAN), out=t(NAN)),
    }
    write_step(tmp_path / "step0", records)
    result = analysed(tmp_path)
    assert result.clazz == "kernel_fault"
    assert ("check.empty_expert" in [c.key for c in result.next_checks]) is asked
